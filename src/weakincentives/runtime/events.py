"""The event bus, and the events that an evaluation publishes: the log of what happened.

Events are frozen values. Publishing is synchronous and in order; a failing handler is logged.
"""

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from os import urandom
from time import time
from typing import Literal, TypedDict

from ..content import Document, Image
from ..limits import TokenUsage, utc_now
from ..protocols import EventBus, ToolOutcome
from ..serde import Json
from ..visibility import SectionPath, SectionVisibility

__all__ = [
    "AnswerRejected",
    "ApprovalDecided",
    "Compacted",
    "EvaluationStopped",
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
    "SectionTexts",
    "ToolInvoked",
    "ToolsInjected",
    "ToolsWithdrawn",
    "VisibilityExpanded",
]

_log = logging.getLogger(__name__)


def new_id() -> str:
    """Returns an id as unique as a UUID, without importing `uuid`."""
    return urandom(16).hex()


class EventIds(TypedDict):
    """The ids that the events of one run have in common."""

    session_id: str | None
    run_id: str | None
    run_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of the telemetry events; sessions keep them in LOG slices, which no rollback changes.

    A run inside a tool call has the `run_id` of the run around it, and its place in it as
    `run_path`: `"3/call_7/1:"` is the first run inside call `call_7` of turn 3. That of a run which
    no call started is empty. A run that waits, and a chat's turn that was stopped, go on with their
    `run_id`.
    """

    event_id: str = field(default_factory=new_id)
    created_at: datetime = field(default_factory=utc_now)
    session_id: str | None = None
    run_id: str | None = None
    run_path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionTexts:
    """The texts of one enabled section, rendered to be measured.

    `visibility` is `None` for a hidden section, `summary` for one that cannot be summarized.
    `tools` has the section's tools as JSON, about as a provider receives them. Opening the section
    shows the sections at `opens` in full. `expanded_size` is the number of characters of their
    texts and tools. If one of them cannot be rendered, `full`, `opens` and `expanded_size` describe
    what is shown now.
    """

    path: SectionPath
    visibility: SectionVisibility | None
    full: str
    summary: str | None
    tools: Mapping[str, str]
    opens: tuple[SectionPath, ...]
    expanded_size: int

    @property
    def shown(self) -> str:
        """The section's own part of the prompt now."""
        match self.visibility:
            case SectionVisibility.FULL:
                return self.full
            case SectionVisibility.SUMMARY:
                return self.summary or ""
            case None:
                return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRendered(Event):
    """An evaluation begins with this text and the tools of these names.

    In a conversation, `message` is what the user says now, and `changes` what the model is told of
    sections that have changed since it last read them. `visibility` has every section of the
    prompt, with `None` for hidden and disabled ones. `measure` renders the texts of all enabled
    sections, hidden ones included. Call it only when you need these texts, since it costs more than
    rendering the prompt.
    """

    ns: str
    key: str
    name: str
    adapter: str
    text: str
    tool_names: tuple[str, ...]
    message: str = ""
    changes: str = ""
    media: tuple[Image | Document, ...] = ()
    visibility: Mapping[SectionPath, SectionVisibility | None] = field(
        default_factory=dict[SectionPath, SectionVisibility | None], repr=False
    )
    measure: Callable[[], tuple[SectionTexts, ...]] = field(
        default=tuple[SectionTexts, ...], repr=False, compare=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OverridesDropped(Event):
    """A prompt was rendered without stale overrides: the code has changed their texts since."""

    ns: str
    key: str
    tag: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamsMissing(Event):
    """The model cannot open the sections of these keys: their params are not bound."""

    ns: str
    key: str
    sections: tuple[str, ...]
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderCalled(Event):
    """A request to the provider ended, after `seconds` of wall-clock time.

    `error` is the text of the failure, `None` without one. `text` is what the model wrote, as an
    answer or beside tool calls. `model` is the model that answered, as the provider names it; else
    the one that the request named. `cost` is in dollars, by `RunConfig.prices`; `None` if
    unknown.
    """

    adapter: str
    turn: int
    seconds: float
    usage: TokenUsage = field(default_factory=TokenUsage)
    finish: str = ""
    tool_calls: int = 0
    error: str | None = None
    text: str = field(default="", repr=False)
    model: str = ""
    cost: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolInvoked(Event):
    """A tool call ended; `content` is exactly what the model receives.

    `arguments` has the first 10,000 characters of what the model wrote. `params` is `None` when the
    call was refused before its handler ran. `replayed` says that the executor repeated the answer
    of an earlier evaluation without running the handler. `changes` is what the handler changed, as
    `runtime.transactions.changes_since` describes it, if a handler of the evaluation's `Operation`
    called `record_changes`; a call that failed was rolled back. Three fields are empty except for
    disclosure tools: `requested_sections` are the keys that the model asked for, `reason` is the
    model's reason, and `current_visibility_state` is the visibility of the shown sections before
    the call.
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
    changes: Mapping[str, Mapping[str, Json]] = field(
        default_factory=dict[str, Mapping[str, Json]], repr=False
    )

    @property
    def success(self) -> bool:
        """Whether the call succeeded."""
        return self.result.success

    @property
    def rendered(self) -> str:
        """The result's value as the model receives it; empty when there is none."""
        return self.content[len(self.result.message) :].removeprefix("\n\n")


@dataclass(frozen=True, slots=True)
class ToolsInjected(Event):
    """Tools of an opened section became available; `timestamp` is in seconds of the UTC epoch."""

    tool_names: tuple[str, ...]
    section_key: str
    timestamp: float = field(default_factory=time)


@dataclass(frozen=True, slots=True)
class ToolsWithdrawn(Event):
    """Tools of a closed section are no longer available."""

    tool_names: tuple[str, ...]
    section_key: str


@dataclass(frozen=True, slots=True)
class AnswerRejected(Event):
    """The model's last answer does not count; it reads `reason`, and is asked again if it may be.

    A stream yields this event too: the text since the last request is void.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibilityExpanded(Event):
    """An evaluation ended, and another starts with these sections open.

    A stream tells its reader so by `Restarted`.
    """

    section_keys: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalDecided(Event):
    """A person decided on a tool call, `seconds` after being asked.

    `approval` says what was shown: the arguments, or the effects too. `preview` is the text that
    was shown, with the difference that the call would make. `reason` is that of a denial.
    """

    name: str
    call_id: str
    approval: Literal["arguments", "effects"]
    decision: Literal["approve", "deny", "replace"]
    reason: str = ""
    seconds: float = 0.0
    preview: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted(Event):
    """A conversation became shorter, since its next request was too long.

    Its first `dropped_turns` turns went, and `summary` stands for them if it is not empty; of the
    last turn the first `dropped_calls` tool calls went. `tokens_before` and `tokens_after` are
    estimates of the request.
    """

    ns: str
    key: str
    dropped_turns: int
    dropped_calls: int
    tokens_before: int
    tokens_after: int
    summary: str = field(default="", repr=False)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationStopped(Event):
    """An evaluation ended without a response.

    `reason` is `"limit"` for a limit of the caller, such as a deadline or a budget, `"suspended"`
    for a run that waits for people, `"cancelled"` if the caller stopped it, and else `"failed"`.
    `code` is that of a `PromptEvaluationError`, `error` the text of the exception. `pending` has
    the previews of the calls that wait, as text.
    """

    prompt_name: str
    adapter: str
    reason: Literal["limit", "failed", "suspended", "cancelled"]
    code: str = ""
    error: str = ""
    usage: TokenUsage = field(default_factory=TokenUsage)
    turns: int = 0
    seconds: float = 0.0
    pending: tuple[str, ...] = field(default=(), repr=False)


type OperationKind = Literal["execution", "evaluation", "request", "tool"]
"""A `MainLoop`'s execution, one evaluation, one request to the provider, or one tool call."""

type _EndHandler = Callable[[BaseException | None], object]


@dataclass(slots=True, kw_only=True, eq=False)
class Operation:
    """Something that takes time, such as a tool call; it publishes itself when it begins.

    A handler runs in the thread and the context of the operation, and calls `on_end` to learn how
    it ends. Parts of an operation, such as an evaluation's requests and tool calls, are published
    only if a handler called `on_end`. An operation is no `Event`: sessions and logs do not keep it.
    `name` is that of the prompt, the model or the tool; `text` is the prompt's text or the call's
    arguments; `result` is set before the end unless an exception ends the operation. `streamed`
    says that the reader of the stream runs its own code during the operation, in the same context.
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
    run_id: str | None = None
    run_path: str = ""
    parent: "Operation | None" = field(default=None, repr=False)
    result: object = field(default=None, repr=False)
    records_changes: bool = field(default=False, init=False, repr=False)
    _end_handlers: list[_EndHandler] = field(
        default_factory=list[_EndHandler], init=False, repr=False
    )

    def on_end(self, handler: _EndHandler, /) -> None:
        """Calls `handler` when the operation ends, with the exception that ended it or `None`.

        Handlers run where the operation ran, newest first.
        """
        self._end_handlers.append(handler)

    def record_changes(self) -> None:
        """Asks an evaluation to describe in `ToolInvoked.changes` what each tool call changes."""
        self.records_changes = True

    @property
    def observed(self) -> bool:
        """Whether a handler called `on_end`."""
        return bool(self._end_handlers)

    def part(
        self,
        kind: OperationKind,
        name: str,
        *,
        call_id: str = "",
        text: str = "",
        streamed: bool = False,
    ) -> AbstractContextManager[Callable[[object], None]]:
        """Returns the context of a part of this operation; entering it gives `set_result`."""
        if not self.observed:
            return _UNOBSERVED
        return replace(
            self, kind=kind, name=name, call_id=call_id, text=text, streamed=streamed, parent=self
        )

    def set_result(self, result: object, /) -> None:
        """Stores the result for the handlers of the end."""
        self.result = result

    def __enter__(self) -> Callable[[object], None]:
        try:
            self.bus.publish(self)
        except BaseException as error:  # an interrupt; earlier handlers wait for the end already
            self.__exit__(None, error, None)
            raise
        return self.set_result

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for handler in reversed(self._end_handlers):
            try:
                handler(error)
            except Exception:  # it must not end the run that it watches
                _log_failure(handler, self)


def _ignore(result: object, /) -> None: ...


_UNOBSERVED = nullcontext(_ignore)


def _log_failure(handler: object, event: object) -> None:
    # the handler's `repr` may be long, contain secrets, or fail
    name = getattr(handler, "__qualname__", type(handler).__qualname__)
    event_type = type(event).__name__
    _log.exception("Event handler failed", extra={"event_type": event_type, "handler": name})


class InProcessEventBus:
    """The `EventBus` of one process: calls handlers in the publishing thread, in order."""

    def __init__(self) -> None:
        # Single operations change and copy it, without a lock: the garbage collector may end a
        # subscription anywhere.
        self._subscriptions: dict[object, tuple[type, Callable[..., object]]] = {}

    def subscribe[E](
        self, event_type: type[E], handler: Callable[[E], object], /
    ) -> Callable[[], None]:
        """Calls `handler` for each later event of `event_type`; returns a function that stops it.

        An event of a subclass counts. Raises `TypeError` unless `event_type` is a class and
        `handler` is callable.
        """
        try:
            isinstance(None, event_type)
        except TypeError as error:
            raise TypeError(
                "the event type for subscribe must be a class, such as ToolInvoked, got "
                f"{event_type!r}"
            ) from error
        if not callable(handler):
            raise TypeError(
                f"the handler for subscribe must be a function that takes an event, got {handler!r}"
            )
        key = object()
        self._subscriptions[key] = (event_type, handler)

        def unsubscribe() -> None:
            self._subscriptions.pop(key, None)

        return unsubscribe

    def publish(self, event: object, /) -> None:
        """Delivers `event` to its handlers before it returns, and logs a handler that raises."""
        for event_type, handler in tuple(self._subscriptions.values()):
            if isinstance(event, event_type):
                try:
                    handler(event)
                except Exception:
                    _log_failure(handler, event)
