"""A data cleaner: mends a messy CSV step by step and writes it only when all is done.

`sheet` is the table as a resource that can be put back, `prompt` is the agent, `offline` stands in
for a model. It shows that a tool call is a transaction: a conversion that meets an impossible cell
leaves no cell converted and no change noted, so the model can simply try another way.
"""
