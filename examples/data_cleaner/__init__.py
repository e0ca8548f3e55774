"""A data cleaner: repairs a messy CSV file step by step and writes it only if the run succeeds.

`sheet` is the table, a resource that can be rolled back; `prompt` is the agent; `offline` replaces
the model. The example shows that a tool call is a transaction: if a conversion fails at one cell,
no cell stays converted and no change is recorded, so the model can try another way.
"""
