"""A documentation assistant over this repository's own `docs/` and `specs/`: the demo, run by `make demo`.

`library` holds the documents, `prompt` is the agent, `watch` shows a run as it happens, `models` says which model
answers.
"""
