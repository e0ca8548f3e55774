"""MCP server events, published on the running call's bus."""

from dataclasses import dataclass
from typing import Literal

from ...runtime.events import Event
from .lock import ToolDifference

__all__ = ["MCPElicitationAnswered", "MCPLogMessage", "MCPProgress", "MCPServerChanged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MCPProgress(Event):
    """A server reports the progress of a tool call; `total` is `None` if unknown."""

    server: str
    tool: str
    progress: float
    total: float | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MCPLogMessage(Event):
    """A server sent a log message; `level` is a syslog level such as `warning`."""

    server: str
    level: str
    text: str
    logger: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MCPServerChanged(Event):
    """A server differs from its lock after it was started; calls to changed tools are rejected."""

    server: str
    differences: tuple[ToolDifference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MCPElicitationAnswered(Event):
    """A server asked the user; if the library answered instead, `reason` explains why.

    The event does not contain the answer itself.
    """

    server: str
    message: str
    action: Literal["accept", "decline", "cancel"]
    reason: str = ""
