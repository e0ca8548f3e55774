"""MCP servers as sections of a prompt, defined by lock files that people review."""
