"""The protocol by which a durable run records an evaluation and replays it from its records."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..limits import Meter
from .inner_loop import ProviderRequest
from .messages import AssistantMessage, ToolCall, ToolExecutionOutcome

__all__ = ["CallIdentity", "Journal"]


@dataclass(frozen=True, slots=True)
class CallIdentity:
    """A journal's key of a tool call, and whether an earlier attempt of the run began the call.

    The executor does not run such a call again if it must not run twice: the model reads that its
    outcome is unknown. Runs nested in the call count in `meter`.
    """

    idempotency_key: str
    began: bool = False
    meter: Meter | None = None


class Journal(Protocol):
    """Records the requests and tool calls of one evaluation, or answers them from its records."""

    def ask(
        self, request: ProviderRequest, ask: Callable[[], AssistantMessage], /
    ) -> AssistantMessage:
        """Returns the recorded answer to `request`, or calls `ask` and records what it returns."""
        ...

    def execute(
        self,
        call: ToolCall,
        execute: Callable[[CallIdentity | None], ToolExecutionOutcome],
        check_decided: Callable[[], None] | None = None,
        /,
    ) -> ToolExecutionOutcome:
        """Returns the recorded outcome of `call`, or calls `execute` and records its outcome.

        Both callables raise `RunSuspended`, which is recorded too, if a person must decide first;
        `check_decided` does nothing else, and comes before a call that must not begin twice.
        """
        ...
