"""MCP servers as sections of a prompt, defined by lock files that people review."""

from .events import MCPLogMessage, MCPProgress, MCPServerChanged
from .section import MCPSection

__all__ = ["MCPLogMessage", "MCPProgress", "MCPSection", "MCPServerChanged"]
