"""What a connection needs of a server that runs, and how one fails; nothing here needs the SDK."""

from collections.abc import Callable, Mapping
from typing import Protocol

from ...errors import WeakIncentivesError
from ...prompt.tool import ToolResult
from ...serde import Json
from .lock import ServerLock

__all__ = ["UNKNOWN_EFFECT", "LiveServer", "Notify", "ServerEndedError", "ServerError"]

UNKNOWN_EFFECT = "The call may have taken effect; look before you call again."

type Notify = Callable[[object], object]
"""Receives an event; any thread may call it."""


class ServerError(WeakIncentivesError):
    """A server gave no answer; the text, which the model reads, says why."""


class ServerEndedError(ServerError):
    """The connection was lost; `sent` says whether the server may have begun the call."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class LiveServer(Protocol):
    """A server that runs, seen through the SDK's client."""

    @property
    def lock(self) -> ServerLock:
        """What the server offers, in the form of a lock."""
        ...

    @property
    def has_ended(self) -> bool:
        """Whether the connection is known to be lost."""
        ...

    async def refresh(self) -> bool:
        """Lists the tools again if the server said that they changed; returns whether it did."""
        ...

    async def call(
        self, tool: str, arguments: Mapping[str, Json], notify: Notify
    ) -> ToolResult[Json]:
        """Returns the server's answer; raises `ServerError` without one."""
        ...
