"""Running a prompt: the loop over values, its drivers, tool calls, messages, and the loop around an
evaluation.
"""
