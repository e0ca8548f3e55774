"""Claude models through the Claude Agent SDK and its bundled CLI.

Needs the extra `claude-agent-sdk`.
"""

from .adapter import ClaudeAgentSDKAdapter

__all__ = ["ClaudeAgentSDKAdapter"]
