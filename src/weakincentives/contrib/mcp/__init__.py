"""MCP servers as sections of a prompt, defined by lock files that people review."""

from .elicitation import Accept, Cancel, Decline, Elicitation
from .events import MCPElicitationAnswered, MCPLogMessage, MCPProgress, MCPServerChanged
from .section import MCPSection

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
