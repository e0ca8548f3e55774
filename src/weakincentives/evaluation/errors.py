"""Errors that end an evaluation, with its usage, turns and conversation up to the failure."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Literal, NoReturn, Self

from ..errors import WeakIncentivesError, copy_error
from ..limits import TokenUsage
from ..protocols import SessionProtocol
from .conversation import Conversation
from .messages import Message

__all__ = [
    "BudgetExceededError",
    "ChangedRunError",
    "DeadlineExceededError",
    "DepthLimitError",
    "EvaluationPhase",
    "ExpansionLimitError",
    "LimitError",
    "PromptEvaluationError",
    "ThrottleError",
    "TurnLimitError",
    "raise_instead",
]

type EvaluationPhase = Literal["request", "response", "limit"]
"""Where an evaluation failed: in a request, in the response, or at a limit set by the caller."""


class PromptEvaluationError(WeakIncentivesError):
    """An evaluation failed.

    `code` is a short name for the kind of failure, `status` is the HTTP status if there was one,
    and `remedy` suggests a fix. `param` is the request's field that the provider names as
    invalid, if it does. `usage` and `turns` cover the evaluation up to the failure.
    `conversation` contains all messages so far and can be continued, because every tool call has an
    answer. It is `None` if the evaluation failed before the conversation started. `session` is the
    run's session, unless the error comes from another process.
    """

    def __init__(
        self,
        message: str,
        *,
        phase: EvaluationPhase,
        code: str,
        provider: str = "",
        status: int | None = None,
        remedy: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.phase: EvaluationPhase = phase
        self.code = code
        self.provider = provider
        self.status = status
        self.remedy = remedy
        self.param = ""
        self.usage = TokenUsage()
        self.turns = 0
        self.conversation: Conversation | None = None
        self.session: SessionProtocol | None = None

    @property
    def transcript(self) -> Sequence[Message]:
        """The messages of the conversation."""
        return () if self.conversation is None else self.conversation.messages

    def __str__(self) -> str:
        place = " ".join(str(part) for part in (self.provider, self.status) if part)
        text = f"{place}: {self.message}" if place else self.message
        if self.remedy:
            text = f"{text.removesuffix('.')}; {self.remedy}"
        return f"{text} [{self.phase}/{self.code}]"

    def __reduce__(self) -> tuple[object, ...]:
        state = {**self.__dict__, "session": None}
        return partial(type(self), phase=self.phase, code=self.code), self.args, state

    def with_progress(
        self, *, usage: TokenUsage, turns: int, conversation: Conversation | None
    ) -> Self:
        """Returns a copy with the usage, turns and conversation of the evaluation so far."""
        return copy_error(self, usage=usage, turns=turns, conversation=conversation)


class ChangedRunError(WeakIncentivesError, ValueError):
    """A suspended run cannot continue, because its prompt or its tools have changed."""


class ThrottleError(PromptEvaluationError):
    """The provider rejects further requests; `retry_after` is the time to wait, if known."""

    retry_after: timedelta | None = None


class LimitError(PromptEvaluationError):
    """A limit that the caller set was reached."""


class DeadlineExceededError(LimitError):
    """The deadline passed."""


class BudgetExceededError(LimitError):
    """The budget is exhausted."""


class TurnLimitError(LimitError):
    """The model has not finished after `max_turns` requests."""


class DepthLimitError(LimitError):
    """A tool call tried to nest a run deeper than `max_depth` allows."""


class ExpansionLimitError(LimitError):
    """The model requested sections more often than `max_expansions` allows."""


def raise_instead(error: BaseException, complete: BaseException) -> NoReturn:
    """Raises `complete` in place of `error`, without chaining them."""
    try:
        raise complete
    finally:
        complete.__context__ = error.__context__
        del complete, error  # otherwise, the exception's traceback would refer to the exception
