"""MCP servers as sections of a prompt, defined by lock files that you review."""

from .elicitation import Accept, Cancel, Decline, Elicitation
from .section import MCPSection
from .server_events import MCPElicitationAnswered, MCPLogMessage, MCPProgress, MCPServerChanged

__all__ = [
    "Accept",
    "Cancel",
    "Decline",
    "Elicitation",
    "MCPElicitationAnswered",
    "MCPLogMessage",
    "MCPProgress",
    "MCPSection",
    "MCPServerChanged",
]
