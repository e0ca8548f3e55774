"""What the example agents share: `models` says which model answers, `watch` shows a run, `command`
does both.
"""
