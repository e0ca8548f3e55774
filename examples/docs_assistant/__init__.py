"""A documentation assistant over this repository's `docs/` and `specs/`; `make demo` runs it.

`library` contains the documents, and `prompt` is the agent. The example shows a summarized section
whose tools arrive when the model opens it, a tool that replies to a wrong path with the valid ones,
and a typed answer with its sources.
"""
