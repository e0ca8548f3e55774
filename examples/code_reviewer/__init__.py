"""A code reviewer: reads a Python project and reports defects, each at a line that exists.

`checks` finds suspicious places, `prompt` is the agent, `offline` replaces the model, `sample` is a
project with defects. The example shows a read-only workspace, guidelines that open on demand with a
tool each, findings as typed state, and a tool that refuses a finding at a line that does not exist.
With `--fix` it changes the project, after a person has seen each change.
"""
