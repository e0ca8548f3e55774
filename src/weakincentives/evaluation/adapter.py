"""The contract between the engine and an adapter: `ProviderAdapter`, and what an evaluation takes
beside its prompt.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Required, Self, TypedDict, Unpack

from ..limits import Budget, Deadline, check_limits
from ..prompt.prompt import Prompt
from ..prompt.renderer import RenderedPrompt
from ..protocols import EventBus, SessionProtocol
from .call_history import CallHistory
from .response import PromptResponse

__all__ = [
    "EvaluationOptions",
    "LoopOptions",
    "ProviderAdapter",
    "check_arguments",
    "publisher",
]

_log = logging.getLogger(__name__)


class EvaluationOptions(TypedDict, total=False):
    """What an evaluation is given beside its prompt, as `ProviderAdapter.evaluate` says."""

    session: Required[SessionProtocol]
    bus: EventBus | None
    deadline: Deadline | None
    budget: Budget | None


class LoopOptions(EvaluationOptions, total=False):
    """What a `LoopAdapter` takes besides: the calls that earlier evaluations of the run made.

    `MainLoop` passes `call_history` only for prompts with tools that must not run twice. An adapter
    that hands evaluations on to another one takes `**options` and passes them all.
    """

    call_history: CallHistory | None


class ProviderAdapter(ABC):
    """Evaluates prompts with one provider's model.

    One adapter serves any number of prompts, sessions and threads.
    """

    def __class_getitem__(cls, output_type: object, /) -> type[Self]:
        """The class itself, since an adapter serves every output type; seeds write
        `ProviderAdapter[Any]`.
        """
        return cls

    @property
    def supports_dynamic_tools(self) -> bool:
        """Whether tools can be added to a running conversation; if not, opening a section starts
        evaluation again.
        """
        return False

    @property
    def budget(self) -> Budget | None:
        """What holds for an evaluation that is given no budget."""
        return None

    @abstractmethod
    def evaluate[Out](
        self,
        prompt: Prompt[Out] | RenderedPrompt[Out],
        /,
        *,
        session: SessionProtocol,
        bus: EventBus | None = None,
        deadline: Deadline | None = None,
        budget: Budget | None = None,
    ) -> PromptResponse[Out]:
        """Runs the conversation that `prompt` opens until the model is done. `bus` is by default
        the session's.

        Raises `PromptEvaluationError` when the provider fails or a limit is reached, and lets
        `VisibilityExpansionRequired` pass.
        """

    async def evaluate_async[Out](
        self, prompt: Prompt[Out] | RenderedPrompt[Out], /, **given: Unpack[EvaluationOptions]
    ) -> PromptResponse[Out]:
        """As `evaluate`, without blocking the event loop; by default `evaluate` in a thread."""
        return await asyncio.to_thread(lambda: self.evaluate(prompt, **given))


def check_arguments(
    prompt: object,
    session: object,
    deadline: object,
    budget: object,
    *,
    kinds: tuple[type, ...] = (Prompt, RenderedPrompt),
) -> None:
    """Raises `TypeError` for arguments with which no evaluation can begin; `kinds` are those of
    prompts.
    """
    if not isinstance(prompt, kinds):
        shown = repr(prompt) if isinstance(prompt, str) else f"a {type(prompt).__name__}"
        raise TypeError(f"{shown} cannot be evaluated; give a Prompt, which template.bind(…) makes")
    if isinstance(session, type) or not callable(getattr(session, "dispatch", None)):
        raise TypeError(f"session is {session!r}; give a Session(), which keeps the state")
    check_limits(deadline, budget)


def publisher(session: SessionProtocol, bus: EventBus | None) -> Callable[[object], None]:
    """Publishes on `bus`; the session hears of it too when that is not its own bus, to which it
    listens anyway.
    """
    if bus is None or bus is session.bus:
        return session.bus.publish

    def publish(event: object) -> None:
        bus.publish(event)
        try:
            session.dispatch(event)
        except Exception:  # a reducer's fault is isolated as it is on the session's own bus
            _log.exception("Event handler failed", extra={"event_type": type(event).__name__})

    return publish
