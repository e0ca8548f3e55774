"""A code reviewer: reads a Python project and reports defects, each at a line that exists.

`checks` finds suspicious places, `prompt` is the agent, `offline` replaces the model, and `sample`
is a project with defects. The example shows a read-only workspace, guidelines that open on demand
and bring a tool each, findings as typed state, and a tool that rejects findings at lines that do
not exist. With `--fix`, it also changes the project, after the user has approved each change.
"""
