"""The event bus, and the events that an evaluation publishes.

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

from ..citations import Citation
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
    """The ids that all events of one run share."""

    session_id: str | None
    run_id: str | None
    run_path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base class of telemetry events; sessions keep them in LOG slices, unaffected by rollbacks.

    A nested run has the same `run_id` as its parent run, and `run_path` is its position in that
    run: `"3/call_7/1:"` is the first run nested in call `call_7` of turn 3. If no call started the
    run, `run_path` is empty. A suspended run and a stopped chat turn keep their `run_id` when they
    continue.
    """

    event_id: str = field(default_factory=new_id)
    created_at: datetime = field(default_factory=utc_now)
    session_id: str | None = None
    run_id: str | None = None
    run_path: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionTexts:
    """The texts of one enabled section, rendered for measuring.

    `visibility` is `None` for a hidden section, and `summary` is `None` for a section that cannot
    be summarized. `tools` contains the section's tools as JSON, approximately as a provider
    receives them. Opening the section shows the sections at `opens` in full. `expanded_size` is the
    number of characters in the texts and tools of these sections. If one of them cannot be
    rendered, `full`, `opens` and `expanded_size` describe the section's current form.
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
        """The section's own part of the current prompt."""
        match self.visibility:
            case SectionVisibility.FULL:
                return self.full
            case SectionVisibility.SUMMARY:
                return self.summary or ""
            case None:
                return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRendered(Event):
    """An evaluation starts with this text and the tools with these names.

    In a conversation, `message` is the user's new message, and `changes` tells the model which
    sections have changed since it last saw them. `visibility` contains every section of the prompt,
    with `None` for hidden and disabled sections. `measure` renders the texts of all enabled
    sections, including hidden ones. Call it only when you need these texts, because it costs more
    than rendering the prompt.
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
    """A prompt was rendered without stale overrides, whose original texts have changed."""

    ns: str
    key: str
    tag: str
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamsMissing(Event):
    """The model cannot open the sections with these keys, because their params are not bound."""

    ns: str
    key: str
    sections: tuple[str, ...]
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderCalled(Event):
    """A request to the provider ended, after `seconds` of wall-clock time.

    `error` is the text of the failure, or `None`. `text` is the model's text, either as an answer
    or alongside tool calls; `reasoning` is the reasoning that the provider shows, and `citations`
    are the sources that the text cites. `model` is the model name reported by the provider, or the
    name in the request if the provider does not report one. `cost` is in dollars, calculated with
    `RunConfig.prices`, or `None` if it is unknown.
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
    reasoning: str = field(default="", repr=False)
    citations: tuple[Citation, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolInvoked(Event):
    """A tool call ended; `content` is the exact text that the model receives.

    `arguments` contains the first 10,000 characters of the model's arguments. `params` is `None` if
    the call was rejected before its handler ran. `replayed` means that the executor repeated the
    answer from an earlier evaluation without running the handler. `changes` describes the handler's
    changes in the format of `runtime.transactions.changes_since`, if a handler for the evaluation's
    `Operation` called `record_changes`; a failed call's changes were rolled back. Three fields are
    set only for disclosure tools: `requested_sections` are the keys that the model requested,
    `reason` is the model's reason, and `current_visibility_state` is the visibility of the shown
    sections before the call.
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
        """The result's value as the model receives it; empty if there is none."""
        return self.content[len(self.result.message) :].removeprefix("\n\n")


@dataclass(frozen=True, slots=True)
class ToolsInjected(Event):
    """An opened section's tools became available; `timestamp` is in seconds since the epoch."""

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
    """The answer was rejected; the model receives `reason` and retries while repairs remain.

    Streams also yield this event: discard the text received since the last request.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibilityExpanded(Event):
    """An evaluation ended, and another one starts with these sections open.

    Streams yield `Restarted` instead.
    """

    section_keys: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalDecided(Event):
    """The approver decided on a tool call, `seconds` after being asked.

    `approval` is the kind of preview: only the arguments, or the effects as well. `preview` is the
    preview as text, including the changes that the call would make. `reason` is the reason for a
    denial.
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
    """A conversation was shortened, because its next request was too long.

    Its first `dropped_turns` turns were removed, and replaced with `summary` unless that is empty.
    In the last turn, the first `dropped_calls` tool calls were removed. `tokens_before` and
    `tokens_after` are estimates of the request's size.
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

    `reason` is `"limit"` if a limit set by the caller was reached, such as a deadline or a budget,
    `"suspended"` for a suspended run, `"cancelled"` if the caller stopped the run, and `"failed"`
    otherwise. `code` is the exception's code if it is a `PromptEvaluationError`, and `error` is its
    text. `pending` contains the previews of the pending calls, as text.
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
"""A `MainLoop` execution, an evaluation, a request to the provider, or a tool call."""

type _EndHandler = Callable[[BaseException | None], object]


@dataclass(slots=True, kw_only=True, eq=False)
class Operation:
    """A step that takes time, such as a tool call; it publishes itself when it starts.

    Handlers run in the operation's thread and context, and call `on_end` to be notified when it
    ends. Parts of an operation, such as an evaluation's requests and tool calls, are published only
    if a handler called `on_end`. An operation is not an `Event`, so sessions and logs do not keep
    it. `name` is the name of the prompt, model or tool; `text` is the prompt's text or the call's
    arguments. `result` is set before the operation ends, unless an exception ends it. `streamed`
    means that the stream's reader runs its own code during the operation, in the same context.
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

        The handlers run in the operation's thread and context, newest first.
        """
        self._end_handlers.append(handler)

    def record_changes(self) -> None:
        """Asks an evaluation to describe each tool call's changes in `ToolInvoked.changes`."""
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
        """Returns a context manager that runs a part of this operation and yields `set_result`."""
        if not self.observed:
            return _UNOBSERVED
        return replace(
            self, kind=kind, name=name, call_id=call_id, text=text, streamed=streamed, parent=self
        )

    def set_result(self, result: object, /) -> None:
        """Stores the result for the handlers that run at the end."""
        self.result = result

    def __enter__(self) -> Callable[[object], None]:
        try:
            self.bus.publish(self)
        except BaseException as error:  # an interrupt; earlier handlers already expect the end
            self.__exit__(None, error, None)
            raise
        return self.set_result

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for handler in reversed(self._end_handlers):
            try:
                handler(error)
            except Exception:  # a handler must not end the run that it observes
                _log_failure(handler, self)


def _ignore(result: object, /) -> None: ...


_UNOBSERVED = nullcontext(_ignore)


def _log_failure(handler: object, event: object) -> None:
    # the handler's `repr` could be long, contain secrets, or fail
    name = getattr(handler, "__qualname__", type(handler).__qualname__)
    event_type = type(event).__name__
    _log.exception("Event handler failed", extra={"event_type": event_type, "handler": name})


class InProcessEventBus:
    """The `EventBus` of one process: calls handlers in the publishing thread, in order."""

    def __init__(self) -> None:
        # Changed and copied by atomic operations instead of under a lock, because the garbage
        # collector can end a subscription at any point.
        self._subscriptions: dict[object, tuple[type, Callable[..., object]]] = {}

    def subscribe[E](
        self, event_type: type[E], handler: Callable[[E], object], /
    ) -> Callable[[], None]:
        """Calls `handler` for each later event of `event_type`; returns a function to unsubscribe.

        Events of subclasses are included. Raises `TypeError` if `event_type` is not a class or
        `handler` is not callable.
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
        """Delivers `event` to its handlers before returning, and logs handlers that raise."""
        for event_type, handler in tuple(self._subscriptions.values()):
            if isinstance(event, event_type):
                try:
                    handler(event)
                except Exception:
                    _log_failure(handler, event)
