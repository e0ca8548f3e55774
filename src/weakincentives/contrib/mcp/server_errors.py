"""MCP server errors, with messages for the model; this module does not need the SDK."""

from collections.abc import Callable

from ...errors import WeakIncentivesError

__all__ = ["UNKNOWN_EFFECT", "Notify", "ServerEndedError", "ServerError"]

UNKNOWN_EFFECT = "The call may have taken effect; look before you call again."

type Notify = Callable[[object], object]
"""Receives an event; can be called from any thread."""


class ServerError(WeakIncentivesError):
    """A server returned no result; the model sees the message, which gives the reason."""


class ServerEndedError(ServerError):
    """The connection was lost; if `sent`, the server may have started the call."""

    def __init__(self, server: str, *, sent: bool) -> None:
        effect = f" {UNKNOWN_EFFECT}" if sent else ""
        super().__init__(f"MCP server {server!r} ended before it answered.{effect}")
        self.sent = sent
