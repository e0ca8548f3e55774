"""A documentation assistant over this repository's own `docs/` and `specs/`: the demo, run by `make
demo`.

`library` holds the documents, `prompt` is the agent. It shows a summarized section whose tools
arrive when the model opens it, tools that answer a wrong path with the right ones, and a typed
answer with its sources.
"""
