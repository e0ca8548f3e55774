"""A data cleaner: mends a messy CSV step by step and writes it only when the run ends well.

`sheet` is the table, a resource that can be rolled back, `prompt` is the agent, `offline` replaces
the model. The example shows that a tool call is a transaction: a conversion that meets an
impossible cell leaves no cell converted and no change recorded, so the model can simply try another
way.
"""
