"""The event bus and the events that an evaluation publishes; they are the log of what happened.

Events are frozen values. Publishing is synchronous and in order; a handler that raises is reported
and isolated.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from os import urandom
from time import time
from typing import Literal

from ..limits import TokenUsage, utc_now
from ..protocols import EventBus, ToolOutcome
from ..visibility import SectionPath, SectionVisibility

__all__ = [
    "Event",
    "EventBus",
    "InProcessEventBus",
    "Operation",
    "OperationKind",
    "OverridesDropped",
    "ParamsMissing",
    "PromptExecuted",
    "PromptRendered",
    "ProviderCalled",
    "ToolInvoked",
    "ToolsInjected",
    "ToolsWithdrawn",
    "VisibilityExpanded",
]

_log = logging.getLogger(__name__)


def new_id() -> str:
    """As unique as a UUID, without the import."""
    return urandom(16).hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of the telemetry events.

    A session keeps them in LOG slices, which survive a rollback.
    """

    event_id: str = field(default_factory=new_id)
    created_at: datetime = field(default_factory=lambda: utc_now())  # noqa: PLW0108 - a test may set another clock
    session_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRendered(Event):
    """A prompt was rendered for an evaluation: its text and the names of the tools it opens with.

    `rendered` is the `RenderedPrompt` itself, for whoever wants to measure it.
    """

    ns: str
    key: str
    name: str
    adapter: str
    text: str
    tool_names: tuple[str, ...]
    rendered: object = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverridesDropped(Event):
    """Stored overrides were left out of a prompt, since they do not fit its code's texts any more."""

    ns: str
    key: str
    tag: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamsMissing(Event):
    """The model cannot open `sections`, given by their keys, because params of theirs are not
    bound.
    """

    ns: str
    key: str
    sections: tuple[str, ...]
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderCalled(Event):
    """One request to the provider ended; `seconds` is its wall-clock time, `error` the failure's
    text if it failed.

    `text` is what the model wrote, beside tool calls or as an answer; `repair` is what the request
    said about the answer before it, when that was rejected.
    """

    adapter: str
    turn: int
    seconds: float
    usage: TokenUsage = field(default_factory=TokenUsage)
    finish: str = ""
    tool_calls: int = 0
    error: str | None = None
    text: str = field(default="", repr=False)
    repair: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolInvoked(Event):
    """One tool call ended, well or not. `content` is exactly what the model was sent.

    `params` is `None` when the call was refused before its handler; `arguments` then holds the
    first 10,000 characters of what the model wrote, and is empty otherwise. `replayed` says that
    the answer of an earlier evaluation was given again and the handler not run. Disclosure tools
    alone fill `requested_sections`, the keys asked for, `reason`, the model's own, and
    `current_visibility_state`, every shown section's visibility before the call.
    """

    name: str
    call_id: str
    params: object
    result: ToolOutcome
    content: str
    seconds: float = 0.0
    prompt_name: str = ""
    replayed: bool = False
    requested_sections: tuple[str, ...] = ()
    reason: str = ""
    current_visibility_state: Mapping[SectionPath, SectionVisibility] = field(
        default_factory=dict[SectionPath, SectionVisibility]
    )
    arguments: str = ""

    @property
    def success(self) -> bool:
        """Whether the tool did what it was asked."""
        return self.result.success

    @property
    def rendered(self) -> str:
        """The result's value as the model saw it: `content` without the message; empty when no
        value was shown.
        """
        return self.content[len(self.result.message) :].removeprefix("\n\n")


@dataclass(frozen=True, slots=True)
class ToolsInjected(Event):
    """Tools of a section that the model opened became available; `timestamp` is in UTC epoch
    seconds.
    """

    tool_names: tuple[str, ...]
    section_key: str
    timestamp: float = field(default_factory=lambda: time())  # noqa: PLW0108 - likewise


@dataclass(frozen=True, slots=True)
class ToolsWithdrawn(Event):
    """Tools of a section that the model closed are no longer available."""

    tool_names: tuple[str, ...]
    section_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibilityExpanded(Event):
    """An evaluation ended so that another may start with these sections open."""

    section_keys: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptExecuted(Event):
    """An evaluation ended with a response."""

    prompt_name: str
    adapter: str
    text: str
    output: object
    usage: TokenUsage
    turns: int
    seconds: float


type OperationKind = Literal["execution", "evaluation", "request", "tool"]
"""What takes time: a `MainLoop`'s execution, one evaluation, one request to the provider, one tool
call.
"""


@dataclass(slots=True, kw_only=True, eq=False)
class Operation:
    """Something that takes time, published when it begins, in the thread and the context in which
    it then runs.

    It is no `Event`, so that sessions and logs do not keep it. A handler calls `at_end` to hear how
    it ends; parts of a work are published only when a handler did so for the whole. `name` is that
    of the prompt, the model or the tool; `text` the prompt's text or the call's arguments; `result`
    is what came of it, unless it was an exception. `streamed` says that the consumer's own code
    runs in between, in the same context.
    """

    bus: EventBus = field(repr=False)
    kind: OperationKind
    name: str
    provider: str = ""
    model: str = ""
    call_id: str = ""
    text: str = field(default="", repr=False)
    streamed: bool = False
    session_id: str | None = None
    whole: "Operation | None" = field(default=None, repr=False)
    result: object = field(default=None, repr=False)
    _ends: list[Callable[[BaseException | None], object]] = field(
        default_factory=list[Callable[[BaseException | None], object]], init=False, repr=False
    )

    def at_end(self, tell: Callable[[BaseException | None], object], /) -> None:
        """Calls `tell` when the work has ended, where it ran, with the exception that it ended
        with, if any.
        """
        self._ends.append(tell)

    @property
    def observed(self) -> bool:
        """Whether somebody wants to hear how it ends."""
        return bool(self._ends)

    def part(
        self,
        kind: OperationKind,
        name: str,
        *,
        call_id: str = "",
        text: str = "",
        streamed: bool = False,
    ) -> AbstractContextManager[Callable[[object], None]]:
        """A part of this work, to be entered around it; what it gives there takes the part's
        result.
        """
        if not self._ends:
            return _UNHEARD
        return replace(
            self, kind=kind, name=name, call_id=call_id, text=text, streamed=streamed, whole=self
        )

    def set_result(self, result: object, /) -> None:
        """Keeps what came of the work."""
        self.result = result

    def __enter__(self) -> Callable[[object], None]:
        try:
            self.bus.publish(self)
        # no handler raises but an interrupt; those before it have opened something
        except BaseException as error:
            self.__exit__(None, error, None)
            raise
        return self.set_result

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for tell in reversed(self._ends):
            try:
                tell(error)
            except Exception:  # as for handlers of events
                _report(tell, self)


def _report(handler: Callable[..., object], event: object) -> None:
    """Logs that a handler failed.

    Its qualified name tells which, for its `repr` may be long, tell secrets, or fail.
    """
    name = getattr(handler, "__qualname__", type(handler).__qualname__)
    _log.exception(
        "Event handler failed", extra={"event_type": type(event).__name__, "handler": name}
    )


def _ignore(result: object, /) -> None: ...


_UNHEARD = nullcontext(_ignore)


class InProcessEventBus:
    """The `EventBus` of one process.

    Handlers run in the publishing thread, in order of subscription.
    """

    def __init__(self) -> None:
        # Single operations change and copy it, without a lock: the garbage collector may end a
        # subscription anywhere.
        self._subscriptions: dict[object, tuple[type, Callable[..., object]]] = {}

    def subscribe[E](
        self, event_type: type[E], handler: Callable[[E], object], /
    ) -> Callable[[], None]:
        """Calls `handler` for each later event of `event_type` or a subclass; call the result to
        stop that.

        Raises `TypeError` unless the one is a class and the other can be called.
        """
        try:
            isinstance(None, event_type)
        except TypeError as error:
            raise TypeError(
                f"subscribe got {event_type!r}; give the class of events, such as ToolInvoked"
            ) from error
        if not callable(handler):
            raise TypeError(
                f"subscribe got the handler {handler!r}; give a function that takes an event"
            )
        key = object()
        self._subscriptions[key] = (event_type, handler)

        def unsubscribe() -> None:
            self._subscriptions.pop(key, None)

        return unsubscribe

    def publish(self, event: object, /) -> None:
        """Delivers `event` to its handlers before it returns; a handler that raises is logged, the
        others still run.
        """
        for wanted, handler in tuple(self._subscriptions.values()):
            if isinstance(event, wanted):
                try:
                    handler(event)
                except Exception:  # a subscriber's fault must not end the run that it watches
                    _report(handler, event)
