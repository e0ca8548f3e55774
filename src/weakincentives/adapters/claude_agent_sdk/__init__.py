"""Support for Claude models through the Claude Agent SDK and its bundled CLI.

Needs the `claude-agent-sdk` extra.
"""

from .adapter import ClaudeAgentSDKAdapter

__all__ = ["ClaudeAgentSDKAdapter"]
