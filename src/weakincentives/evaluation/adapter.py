"""The contract between the engine and an adapter: `ProviderAdapter` and `Connection`."""

import asyncio
import logging
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial, wraps
from importlib import import_module
from inspect import iscoroutinefunction, markcoroutinefunction
from typing import Any, ClassVar, Protocol, Required, Self, TypedDict, Unpack, cast

from ..content import MediaSupport, Part, to_content
from ..event_loops import threads
from ..limits import Budget, Clock, Deadline, Meter, check_limits, utc_now
from ..locks import RunToken
from ..model_settings import ModelSettings, unsupported
from ..prompt.renderer import AnyRenderedPrompt, RenderedPrompt
from ..prompt.template import Prompt, PromptTemplate
from ..prompt.tool import AnyTool
from ..protocols import EventBus, SessionProtocol
from ..record_types import AnyType
from ..runtime.events import Operation
from ..runtime.session import Session
from ..signatures import AnyFunction, argument_remedy
from ..visibility import SectionPath, SectionVisibility
from .approval import Approver, Decision
from .chat_turn import ChatTurn
from .config import with_settings
from .conversation import Conversation, OnChange
from .errors import DepthLimitError, PromptEvaluationError
from .inner_loop import ProviderRequest, RunConfig
from .logged_run import Rendered
from .messages import AssistantMessage
from .response import (
    AnswerRejected,
    Completed,
    Delta,
    PromptResponse,
    ReasoningDelta,
    StreamEvent,
    TextDelta,
)
from .run_log import LogSink, OpenCall, RunLog
from .suspension import Suspension

__all__ = [
    "ConnectingAdapter",
    "Connection",
    "ConversationOptions",
    "EvaluationOptions",
    "EvaluationStart",
    "ExecutionOptions",
    "LoopOptions",
    "ParentRun",
    "ProviderAdapter",
    "RunOptions",
    "Runnable",
    "adapter_in",
    "bound",
    "check_arguments",
    "config_for",
    "publisher",
    "session_in",
    "source_of",
    "takes_bindings",
    "to_adapter",
    "with_message",
]

_log = logging.getLogger(__name__)

_MAX_TIMEOUT = 365.0 * 24 * 3600  # sockets and locks reject very large numbers of seconds


type Runnable[Out] = Prompt[Out] | RenderedPrompt[Out] | PromptTemplate[Out]
"""What can be run; a template is bound without params."""


class EvaluationOptions(TypedDict, total=False):
    """The arguments of `ProviderAdapter.evaluate`, except the prompt.

    Without a `session`, a run creates its own, which is the response's `session`.
    """

    session: SessionProtocol
    bus: EventBus | None
    deadline: Deadline | None
    budget: Budget | None


class ConversationOptions(EvaluationOptions, total=False):
    """The arguments that start or continue a conversation.

    If the user sends a `message` (a string, or a list of strings, images and documents), the prompt
    becomes the model's instructions; otherwise, the prompt is the user's message. To continue a
    conversation, pass it as `conversation`. If sections of the prompt have changed in the meantime,
    `on_change="append"` sends the model their new text, and `on_change="restate"` restates the
    conversation.

    `approver` decides on calls to tools that have `approval=`. The fields with which `config` was
    created take precedence over those of the adapter's config, and `settings` over those of
    `config`, of the prompt and of the adapter.
    """

    message: str | Sequence[Part] | None
    conversation: Conversation | None
    on_change: OnChange
    approver: Approver | None
    config: RunConfig | None
    settings: ModelSettings | None


@dataclass(frozen=True, slots=True)
class ParentRun:
    """The parent run of an evaluation.

    The parent is either a `MainLoop` execution, or an evaluation whose tool call evaluates another
    prompt. The nested evaluation also counts its usage in `meter`, and must end by `deadline`.
    `run` is the run that reserved the session. `approver` decides for the parent, and for nested
    runs without their own approver. `call` is the tool call whose handler started the evaluation.
    `levels_left` is the number of further levels at which runs may be nested. `config` has what was
    given for the parent, and applies to its nested runs too. `operation` is the execution's.
    """

    run: RunToken | None
    meter: Meter
    bus: EventBus | None = None
    deadline: Deadline | None = None
    approver: Approver | None = None
    levels_left: int = sys.maxsize
    config: RunConfig | None = None
    operation: Operation | None = None
    call: OpenCall | None = None

    def for_call(self, bus: EventBus, call: OpenCall) -> "ParentRun":
        """Returns the parent for runs nested in one tool call."""
        return replace(self, bus=bus, call=call)

    def inherited(self, *, same_model: bool) -> RunConfig | None:
        """Returns the config of a nested run; settings are for the parent's own model."""
        return self.config if same_model or not self.config else self.config.without("settings")

    def check_depth(self, name: str, session: SessionProtocol) -> None:
        """Raises `DepthLimitError` if a run of the prompt `name` would be nested too deeply."""
        if self.levels_left < 0:
            error = DepthLimitError(
                f"cannot run {name!r}: its parent runs are already nested as deeply as max_depth "
                "allows",
                phase="limit",
                code="depth",
                remedy="end the recursion, or raise RunConfig.max_depth",
            )
            error.session = session
            raise error


class LoopOptions(ConversationOptions, total=False):
    """The arguments of `LoopAdapter.evaluate`, except the prompt.

    `save` is called with the conversation when the run ends, even if it was interrupted or
    suspended.
    """

    save: Callable[[Conversation], object] | None


class RunOptions(LoopOptions, total=False):
    """The arguments of `MainLoop.resume`, except the prompt, the suspension and the decisions.

    `adapter`, or the model that it names, replaces the loop's adapter. `visibility_overrides` apply
    to all evaluations. A `Chat` passes its `turn`, and the run that reserved the session for this
    one as `caller`.
    """

    adapter: "ProviderAdapter | str | None"
    visibility_overrides: Mapping[SectionPath, SectionVisibility] | None
    caller: RunToken | None
    turn: ChatTurn | None


class ExecutionOptions(RunOptions, total=False):
    """The arguments of `MainLoop.execute`, except the prompt.

    To resume a suspended run, pass its `suspension`, and `decisions` by call id; see
    `MainLoop.resume`. A durable run passes its `sink`.
    """

    suspension: Suspension | None
    decisions: Mapping[str, Decision] | None
    sink: LogSink | None


class EvaluationStart(ConversationOptions, total=False):
    """The arguments for one of a run's evaluations.

    `log` is the run's log; if `resumes` is true, the evaluation continues where the log ends. For
    each evaluation after the first, `rendering` gives the reason. The evaluation ends with
    `TooLong` instead of sending another request of more than `max_request_tokens`. `previous_turns`
    is the number of requests in the run's earlier evaluations, which count towards `max_turns`.
    `parent` is the parent run; if there is none, the evaluation is a run of its own.
    """

    log: Required[RunLog]
    resumes: bool
    rendering: Rendered
    max_request_tokens: int | None
    previous_turns: int
    parent: ParentRun | None


def takes_bindings[F: AnyFunction](method: F) -> F:
    """Decorates a method so that it copies its prompt's bindings when it is called.

    It also creates a session if none was passed.

    Otherwise, a coroutine or generator would read the bindings only when it runs, possibly after
    another `bind`.
    """

    @wraps(method)
    def begin(self: object, prompt: object, *args: object, **options: object) -> object:
        taken = prompt.for_run() if isinstance(prompt, Prompt) else prompt
        if options.get("session") is None:
            options["session"] = Session()
        return method(self, taken, *args, **options)

    return cast(F, markcoroutinefunction(begin) if iscoroutinefunction(method) else begin)


def to_adapter(adapter: object, taker: str = "adapter=") -> "ProviderAdapter":
    """Returns an adapter that may be given as a model's name; `None` means `WINK_MODEL`."""
    if adapter is None or isinstance(adapter, str):
        # this layer does not know the providers
        names = import_module("weakincentives.adapters.model_names")
        adapter = names.adapter_for(adapter)
    if not isinstance(adapter, ProviderAdapter):
        raise TypeError(
            f"{taker} takes an adapter, such as OpenAIAdapter(model), or the name of a model, got "
            f"{adapter!r}{'; use FallbackAdapter(*models)' * isinstance(adapter, list | tuple)}"
        )
    return adapter


def adapter_in(options: Mapping[str, object], default: "ProviderAdapter") -> "ProviderAdapter":
    """Returns the adapter that a call's options name, or the default."""
    adapter = options.get("adapter")
    return default if adapter is None else to_adapter(adapter)


def with_message[Options: ConversationOptions](
    options: Options, message: str | Sequence[Part] | None
) -> Options:
    """Returns the options with a message that was passed by position."""
    if message is None:
        return options
    if options.get("message") is not None:
        raise TypeError("message is passed twice; pass it by position or as message=")
    options["message"] = message
    return options


def bound[Out](prompt: Runnable[Out]) -> Prompt[Out] | RenderedPrompt[Out]:
    """Returns a prompt, or a template bound without params."""
    return prompt.bind() if isinstance(prompt, PromptTemplate) else prompt


def session_in(options: EvaluationOptions) -> SessionProtocol:
    """Returns the session, which `takes_bindings` has added if the caller passed none."""
    session = options.get("session")
    assert session is not None  # `check_arguments` rejects it
    return session


class ProviderAdapter(ABC):
    """Evaluates prompts with one provider's model.

    One adapter can serve any number of prompts, sessions and threads.
    """

    def __class_getitem__(cls, output_type: object, /) -> type[Self]:
        """Returns the class itself, because an adapter serves every output type."""
        return cls

    @property
    def supports_dynamic_tools(self) -> bool:
        """Whether tools can be added to a running conversation.

        If not, opening a section that has tools starts a new evaluation.
        """
        return False

    @property
    def budget(self) -> Budget | None:
        """The default budget for an evaluation."""
        return None

    @property
    def media(self) -> MediaSupport:
        """The images and documents that the adapter can send; none by default."""
        return MediaSupport()

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
        """Sends `prompt` to the model, runs its tool calls and returns its final response.

        `bus` defaults to the session's. Raises `PromptEvaluationError` when the provider fails or
        the evaluation reaches a limit, and `VisibilityExpansionRequired` when the model requests
        sections that only a new evaluation can open.
        """

    @takes_bindings
    async def evaluate_async[Out](
        self, prompt: Prompt[Out] | RenderedPrompt[Out], /, **options: Unpack[EvaluationOptions]
    ) -> PromptResponse[Out]:
        """Like `evaluate`, without blocking the event loop; by default it runs in a thread."""
        work = partial(copy_context().run, lambda: self.evaluate(prompt, **options))
        return await asyncio.get_running_loop().run_in_executor(threads(), work)

    @takes_bindings
    def stream[Out](
        self, prompt: Prompt[Out] | RenderedPrompt[Out], /, **options: Unpack[EvaluationOptions]
    ) -> Generator[StreamEvent[Out]]:
        """Evaluates `prompt` and yields events; by default, yields all of the text at the end.

        The last event contains the response.
        """
        response = self.evaluate(prompt, **options)
        if response.text:
            yield TextDelta(response.text)
        yield Completed(response)

    @takes_bindings
    async def stream_async[Out](
        self, prompt: Prompt[Out] | RenderedPrompt[Out], /, **options: Unpack[EvaluationOptions]
    ) -> AsyncGenerator[StreamEvent[Out]]:
        """Like `stream`, without blocking the event loop."""
        response = await self.evaluate_async(prompt, **options)
        if response.text:
            yield TextDelta(response.text)
        yield Completed(response)


class Connection(Protocol):
    """One evaluation's connection to the provider; it can cache encoded messages.

    `provider_tools` are tools that the provider itself runs.
    """

    provider_tools: Sequence[AnyTool] = ()

    def target(self) -> tuple[str, str]:
        """Returns the adapter and model for the next request; `""` means the connection's own."""
        return "", ""

    def fall_back(self, error: PromptEvaluationError, /) -> bool:
        """Switches to another provider after `error`; returns false if there is none.

        After a switch, the engine sends the request again. By default, there is no other provider.
        """
        return False

    def arrived(self) -> AssistantMessage | None:
        """Returns the part of the answer received before the last request failed or was stopped.

        Its `finish` is `"error"`; the engine counts its usage and keeps its text. By default,
        nothing was received.
        """
        return None

    def close(self) -> None:
        """Closes the connection; the engine calls this once. By default, it does nothing."""
        return

    async def aclose(self) -> None:
        """Closes the connection without blocking the event loop."""
        self.close()

    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        """Returns the model's next message; raises `PromptEvaluationError` if the request fails.

        The engine reports an error raised after the deadline as `DeadlineExceededError`.
        """
        ...

    async def ask_async(self, request: ProviderRequest, /) -> AssistantMessage:
        """Like `ask`, without blocking the event loop."""
        ...

    def ask_stream(
        self, request: ProviderRequest, /
    ) -> Iterator[Delta | AnswerRejected | AssistantMessage]:
        """Yields chunks of reasoning and text, then the message; one chunk of each by default."""
        answer = self.ask(request)
        if answer.reasoning:
            yield ReasoningDelta(answer.reasoning)
        if answer.text:
            yield TextDelta(answer.text)
        yield answer

    async def ask_stream_async(
        self, request: ProviderRequest, /
    ) -> AsyncGenerator[Delta | AnswerRejected | AssistantMessage]:
        """Like `ask_stream`, without blocking the event loop."""
        answer = await self.ask_async(request)
        if answer.reasoning:
            yield ReasoningDelta(answer.reasoning)
        if answer.text:
            yield TextDelta(answer.text)
        yield answer


class ConnectingAdapter(ProviderAdapter):
    """An adapter that connects to its provider and leaves the loop to the engine.

    `config` contains the loop's limits and options. A run's budget replaces the one in `config`; if
    there are several deadlines, the earliest applies. `has_own_loop` is true for classes that
    evaluate prompts with a loop of their own.
    """

    name: str = "adapter"
    model: str = ""
    has_own_loop: ClassVar[bool] = True
    _rules: tuple[RunConfig, RunConfig] | None = None

    def __init__(
        self,
        *,
        config: RunConfig | None = None,
        settings: ModelSettings | None = None,
        clock: Clock = utc_now,
    ) -> None:
        self.config = with_settings(config, settings) or RunConfig()
        self.config.check_prices()
        self.clock = clock

    @property
    def supports_dynamic_tools(self) -> bool:
        return True

    @property
    def budget(self) -> Budget | None:
        return self.config.budget

    def rules(self) -> RunConfig:
        """Returns `config` with the adapter's `supports_dynamic_tools`; cached for speed."""
        config, supports, known = self.config, self.supports_dynamic_tools, self._rules
        if known and known[0] is config and known[1].supports_dynamic_tools is supports:
            return known[1]
        rules = replace(config, supports_dynamic_tools=supports)
        self._rules = config, rules
        return rules

    def identity(self) -> dict[str, object]:
        """Returns what determines the model's answers, except `config`; a cache can digest it."""
        return {"adapter": type(self).__name__, "model": self.model}

    def without_retries(self) -> Self:
        """Returns an adapter that sends each request once; by default, the adapter itself."""
        return self

    def check_settings(self, settings: ModelSettings) -> None:
        """Raises `ValueError` for settings that requests cannot contain; by default, for all."""
        if settings.given:
            raise unsupported(settings.given, type(self).__name__)

    def limited(self, config: RunConfig) -> RunConfig:
        """Returns a run's config within what this adapter supports; by default, only its tools.

        Raises `ValueError` for settings that the adapter does not support.
        """
        if config.settings is not None:
            self.check_settings(config.settings)
        supports = self.supports_dynamic_tools
        if config.supports_dynamic_tools is supports:
            return config
        return replace(config, supports_dynamic_tools=supports)

    @abstractmethod
    def connect(self, rendered: AnyRenderedPrompt, /) -> Connection:
        """Opens a connection to the provider for one evaluation of `rendered`."""

    def seconds_left(self, deadline: Deadline | None) -> float | None:
        """Returns the seconds until the deadline as a timeout: more than 0, at most a year."""
        if deadline is None:
            return None
        return min(max(0.001, deadline.remaining(self.clock()).total_seconds()), _MAX_TIMEOUT)

    def deadline_of(self, request: ProviderRequest) -> Deadline | None:
        """Returns the earlier of the run's deadline and the end of the request's own `timeout`."""
        if request.settings is None or request.settings.timeout is None:
            return request.deadline
        seconds = min(request.settings.timeout, _MAX_TIMEOUT)
        own = Deadline.after(seconds, now=self.clock())
        return min(own, request.deadline) if request.deadline else own

    def check_deadline(self, deadline: Deadline | None) -> None:
        """Raises `TimeoutError` once the deadline has passed."""
        if deadline is not None and deadline.has_passed(self.clock()):
            raise TimeoutError


_INTERNAL = {"caller", "sink", "turn"}  # options that the library passes to itself


def check_arguments(
    prompt: object, options: Mapping[str, object], known: AnyType, *kinds: type
) -> None:
    """Raises `TypeError` for an argument with an unknown name or the wrong type.

    `known` is the options' `TypedDict`, and `kinds` are the types allowed for `prompt`.
    """
    if unknown := sorted(options.keys() - known.__annotations__):
        names = [name for name in known.__annotations__ if name not in _INTERNAL]
        remedy = argument_remedy(unknown[0], names)
        raise TypeError(f"unknown argument {unknown[0]!r} of an evaluation; {remedy}")
    if not isinstance(prompt, kinds):
        shown = repr(prompt) if isinstance(prompt, str) else f"a {type(prompt).__name__}"
        raise TypeError(f"cannot evaluate {shown}; pass a template or template.bind(…)")
    session, conversation = options.get("session"), options.get("conversation")
    if isinstance(session, type) or not callable(getattr(session, "dispatch", None)):
        raise TypeError(f"session must be a Session object, got {session!r}")
    check_limits(options.get("deadline"), options.get("budget"))
    message: Any = options.get("message")  # Any: `to_content` checks it
    if message is not None:
        to_content(message)
    if (on_change := options.get("on_change", "append")) not in ("append", "restate"):
        raise ValueError(f"on_change must be 'append' or 'restate', got {on_change!r}")
    config: Any = options.get("config")  # Any: of a caller that does not use a type checker
    if not isinstance(config, RunConfig | None):
        raise TypeError(f"config must be a RunConfig, got {config!r}")
    if not isinstance(settings := options.get("settings"), ModelSettings | None):
        raise TypeError(f"settings must be ModelSettings, got {settings!r}")
    approver = options.get("approver")
    if approver is not None and not callable(approver):
        raise TypeError(f"approver must be a function that takes a Preview, got {approver!r}")
    if not isinstance(conversation, Conversation | None):
        raise TypeError(
            "conversation must be a Conversation, such as response.conversation, got a "
            f"{type(conversation).__name__}"
        )


def source_of[Out](rendered: RenderedPrompt[Out]) -> Prompt[Out]:
    """Returns the prompt behind `rendered`; raises `ValueError` if a bare renderer created it."""
    prompt = rendered.prompt
    if not isinstance(prompt, Prompt):
        raise ValueError(  # noqa: TRY004 - the type is right, but the value has no prompt
            "evaluate takes a prompt rendered by Prompt.render, got one rendered by a bare "
            "PromptRenderer"
        )
    return prompt


def config_for(
    adapter: ConnectingAdapter, rendered: AnyRenderedPrompt, options: EvaluationStart
) -> RunConfig:
    """Returns the adapter's config with an evaluation's budget and its earliest deadline."""
    config, parent = adapter.rules(), options.get("parent")
    is_nested = parent is not None and parent.levels_left < sys.maxsize
    if is_nested and config.settings and config.settings.forces_call:
        config = replace(config, settings=config.settings.without("tool_choice"))
    if (nearer := options.get("config")) is not None:
        config = adapter.limited(nearer.over(config))
    budget = options.get("budget") or config.budget
    candidates = (
        *(options.get("deadline"), rendered.deadline, config.deadline),
        *(parent and parent.deadline, budget and budget.deadline(adapter.clock())),
    )
    deadline = min([deadline for deadline in candidates if deadline], default=None)
    if deadline is not config.deadline or budget is not config.budget:
        config = replace(config, deadline=deadline, budget=budget)
    config.check_prices()
    return config


def publisher(session: SessionProtocol, bus: EventBus | None) -> Callable[[object], None]:
    """Returns a function that publishes on `bus`, and to the session if it uses another bus."""
    if bus is None or bus is session.bus:
        return session.bus.publish

    def publish(event: object) -> None:
        bus.publish(event)
        try:
            session.dispatch(event)
        except Exception:  # as on the session's own bus, a failing reducer does not stop others
            _log.exception("Event handler failed", extra={"event_type": type(event).__name__})

    return publish
