"""A documentation assistant over this repository's `docs/` and `specs/`; `make demo` runs it.

`library` holds the documents, `prompt` is the agent. The example shows a summarized section whose
tools arrive when the model opens it, tools that answer a wrong path with the right ones, and a
typed answer with its sources.
"""
