"""A repository assistant: brings a changelog up to date with Git's MCP server, and commits it.

`git.json` locks the server's tools, `prompt` is the agent, `sample` creates a repository to work
on, and `offline` replaces the model. The example shows that an external server takes part in
transactions: if the repository's hook rejects a commit, nothing is left behind.
"""
