"""A repository assistant: brings a changelog up to date with Git's MCP server, and commits it.

`git.json` locks what the server offers, `prompt` is the agent, `sample` makes a repository to work
on, `offline` replaces the model. The example shows that an external server takes part in
transactions: a commit that the repository's hook refuses leaves nothing behind.
"""
