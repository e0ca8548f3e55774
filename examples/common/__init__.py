"""Shared code: `models` chooses the model, `watch` shows a run, and `command` does both."""
