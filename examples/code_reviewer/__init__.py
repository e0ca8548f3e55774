"""A code reviewer: reads a Python project and reports defects, each at a line that exists.

`checks` finds suspicious places, `prompt` is the agent, `offline` stands in for a model, `sample`
is a project with defects. It shows a workspace that cannot be changed, guidelines that open on
demand with a tool each, findings as typed state, and a tool that refuses a finding at a line that
is not there.
"""
