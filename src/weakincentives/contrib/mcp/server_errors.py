"""How a server fails, in words for the model; nothing here needs the SDK."""

from collections.abc import Callable

from ...errors import WeakIncentivesError

__all__ = ["UNKNOWN_EFFECT", "Notify", "ServerEndedError", "ServerError"]

UNKNOWN_EFFECT = "The call may have taken effect; look before you call again."

type Notify = Callable[[object], object]
"""Receives an event; any thread may call it."""


class ServerError(WeakIncentivesError):
    """A server gave no answer; the text, which the model reads, says why."""


class ServerEndedError(ServerError):
    """The connection was lost; `sent` says whether the server may have begun the call."""

    def __init__(self, server: str, *, sent: bool) -> None:
        effect = f" {UNKNOWN_EFFECT}" if sent else ""
        super().__init__(f"MCP server {server!r} ended before it answered.{effect}")
        self.sent = sent
