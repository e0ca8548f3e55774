"""Events of MCP servers, which a connection publishes on the bus of the call that runs."""

from dataclasses import dataclass
from typing import Literal

from ...runtime.events import Event
from .lock import ToolDifference

__all__ = ["MCPElicitationAnswered", "MCPLogMessage", "MCPProgress", "MCPServerChanged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MCPProgress(Event):
    """A server reports how far a call of its tool is; `total` is `None` if it does not know."""

    server: str
    tool: str
    progress: float
    total: float | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MCPLogMessage(Event):
    """A server wrote a log message; `level` is one of syslog's, such as `warning`."""

    server: str
    level: str
    text: str
    logger: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MCPServerChanged(Event):
    """A server that was started differs from its lock; the tools that changed are refused."""

    server: str
    differences: tuple[ToolDifference, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MCPElicitationAnswered(Event):
    """A server asked a person; `reason` says why the library has answered instead.

    The content of an answer is not here.
    """

    server: str
    message: str
    action: Literal["accept", "decline", "cancel"]
    reason: str = ""
