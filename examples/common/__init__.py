"""Shared by the example agents: `models` chooses the model, `watch` shows a run, `command` both."""
