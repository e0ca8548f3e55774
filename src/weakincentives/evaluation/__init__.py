"""The engine: runs the conversation of a prompt with its provider and tools to the end."""
