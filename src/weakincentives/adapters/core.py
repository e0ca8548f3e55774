"""What every adapter is, and the one way in which adapters with our own inner loop evaluate a prompt."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Generic, Protocol

from ..limits import Budget, Clock, Deadline, TokenUsage, utc_now
from ..ports import EventBus, SessionProtocol
from ..prompt.errors import VisibilityExpansionRequired
from ..prompt.prompt import Prompt
from ..prompt.renderer import RenderedPrompt
from ..runtime.events import PromptExecuted, PromptRendered, ProviderCalled
from ..specialised import Specialised
from .drivers import drive, drive_async
from .errors import PromptEvaluationError, ThrottleError
from .inner_loop import Finished, InnerLoop, InnerLoopConfig, ProviderRequest
from .tool_executor import ToolExecutor
from .tool_spec import tool_to_spec
from .transcript import AssistantMessage, Message, sendable

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # Any: an adapter serves prompts of every output type; see specs/decisions.
    OutputT = TypeVar("OutputT", default=Any)
else:  # the default is for type checkers; 3.12's own TypeVar knows none
    from typing import TypeVar

    OutputT = TypeVar("OutputT")

__all__ = [
    "Conversation",
    "LoopAdapter",
    "PromptEvaluationError",
    "PromptResponse",
    "ProviderAdapter",
    "ThrottleError",
]


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptResponse[Out](Specialised):
    """What an evaluation gave: the final `text` and, where the prompt declares one, the typed `output`.

    `text` is the model's own, or the JSON that `output` was read from; `turns` counts provider requests, `transcript`
    is the whole conversation.
    """

    prompt_name: str
    text: str
    output: Out | None
    usage: TokenUsage
    turns: int
    transcript: Sequence[Message] = field(default=(), repr=False)


class ProviderAdapter(ABC, Generic[OutputT]):
    """Evaluates prompts with one provider's model. One adapter serves any number of prompts, sessions and threads."""

    @property
    def supports_dynamic_tools(self) -> bool:
        """Whether tools can be added to a running conversation; if not, opening a section starts evaluation again."""
        return False

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
        """Runs the conversation that `prompt` opens until the model is done. `bus` is by default the session's.

        Raises `PromptEvaluationError` when the provider fails or a limit is reached, and lets
        `VisibilityExpansionRequired` pass.
        """

    async def evaluate_async[Out](
        self,
        prompt: Prompt[Out] | RenderedPrompt[Out],
        /,
        *,
        session: SessionProtocol,
        bus: EventBus | None = None,
        deadline: Deadline | None = None,
        budget: Budget | None = None,
    ) -> PromptResponse[Out]:
        """As `evaluate`, without blocking the event loop; by default `evaluate` in a thread."""

        def run() -> PromptResponse[Out]:
            return self.evaluate(prompt, session=session, bus=bus, deadline=deadline, budget=budget)

        return await asyncio.to_thread(run)


class Conversation(Protocol):
    """One evaluation's line to the provider; it may remember what it has encoded already."""

    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        """The model's next message. Raises `PromptEvaluationError` when there is none."""
        ...

    async def ask_async(self, request: ProviderRequest, /) -> AssistantMessage:
        """As `ask`, without blocking the event loop."""
        ...


class LoopAdapter(ProviderAdapter[OutputT]):
    """An adapter whose conversations our own inner loop drives; a subclass says how to ask its provider.

    `config` holds the rules of the loop; an evaluation's budget replaces the one in it, the earliest deadline holds.
    """

    name: str = "adapter"

    def __init__(self, *, config: InnerLoopConfig | None = None, clock: Clock = utc_now) -> None:
        self.config = config or InnerLoopConfig()
        self.clock = clock

    @property
    def supports_dynamic_tools(self) -> bool:
        return True

    @abstractmethod
    def converse(self, rendered: RenderedPrompt[Any], /) -> Conversation:  # Any: a prompt of any output
        """Opens a line to the provider for one evaluation of `rendered`."""

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
        run = _Run(self, prompt, session=session, bus=bus, deadline=deadline, budget=budget)
        try:
            finished = drive(run.loop, run.watched(run.line.ask), run.tools, clock=self.clock)
        except (PromptEvaluationError, VisibilityExpansionRequired) as error:
            run.tell_progress(error)
            raise
        return run.response(finished)

    async def evaluate_async[Out](
        self,
        prompt: Prompt[Out] | RenderedPrompt[Out],
        /,
        *,
        session: SessionProtocol,
        bus: EventBus | None = None,
        deadline: Deadline | None = None,
        budget: Budget | None = None,
    ) -> PromptResponse[Out]:
        run = _Run(self, prompt, session=session, bus=bus, deadline=deadline, budget=budget)
        try:
            finished = await drive_async(run.loop, run.watched_async(run.line.ask_async), run.tools, clock=self.clock)
        except (PromptEvaluationError, VisibilityExpansionRequired) as error:
            run.tell_progress(error)
            raise
        return run.response(finished)


class _Run[Out]:
    """What one evaluation puts together before it starts, and the events around it."""

    def __init__(
        self,
        adapter: LoopAdapter[Any],
        prompt: Prompt[Out] | RenderedPrompt[Out],
        *,
        session: SessionProtocol,
        bus: EventBus | None,
        deadline: Deadline | None,
        budget: Budget | None,
    ) -> None:
        self._started = perf_counter()
        rendered = prompt if isinstance(prompt, RenderedPrompt) else prompt.render(session=session, deadline=deadline)
        if rendered.prompt is None:
            raise ValueError("evaluate needs a prompt rendered by Prompt.render, not by a bare PromptRenderer")
        self._rendered = rendered
        self._name = rendered.prompt.name
        self._adapter_name = adapter.name
        self._session_id = session.session_id
        self._publish = publisher(session, bus)
        config = adapter.config
        budget = budget or config.budget
        own = budget and budget.deadline(adapter.clock())
        ends = [one for one in (deadline, rendered.deadline, config.deadline, own) if one]
        self.loop = InnerLoop(
            text=sendable(rendered.text),
            tools=tuple(
                [tool_to_spec(tool, rendered.tool_param_descriptions.get(tool.name)) for tool in rendered.tools]
            ),
            structured_output=rendered.structured_output,
            config=replace(
                config,
                supports_dynamic_tools=adapter.supports_dynamic_tools,
                deadline=min(ends, default=None),
                budget=budget,
            ),
        )
        self.line = adapter.converse(rendered)
        self.tools = ToolExecutor(
            prompt=rendered.prompt,
            rendered=rendered,
            adapter=adapter,
            supports_dynamic_tools=adapter.supports_dynamic_tools,
            session=session,
            bus=session.bus if bus is None else bus,
            publish=self._publish,
            deadline=self.loop.config.deadline,
        )
        template = rendered.prompt.template
        self._publish(
            PromptRendered(
                ns=template.ns,
                key=template.key,
                name=template.name,
                adapter=adapter.name,
                text=rendered.text,
                tool_names=tuple([tool.name for tool in rendered.tools]),
                session_id=self._session_id,
            )
        )

    def watched(
        self, ask: Callable[[ProviderRequest], AssistantMessage]
    ) -> Callable[[ProviderRequest], AssistantMessage]:
        """`ask`, with an event for each call."""

        def asking(request: ProviderRequest) -> AssistantMessage:
            started = perf_counter()
            try:
                answer = ask(request)
            except BaseException as error:
                self._called(request, started, error)
                raise
            self._called(request, started, answer)
            return answer

        return asking

    def watched_async(
        self, ask: Callable[[ProviderRequest], Awaitable[AssistantMessage]]
    ) -> Callable[[ProviderRequest], Awaitable[AssistantMessage]]:
        """`ask`, with an event for each call."""

        async def asking(request: ProviderRequest) -> AssistantMessage:
            started = perf_counter()
            try:
                answer = await ask(request)
            except BaseException as error:
                self._called(request, started, error)
                raise
            self._called(request, started, answer)
            return answer

        return asking

    def tell_progress(self, error: PromptEvaluationError | VisibilityExpansionRequired) -> None:
        """Tells an error how far this conversation had come; one from a tool's own evaluation knows of that only."""
        if isinstance(error, VisibilityExpansionRequired):
            error.spent = self.loop.spent
        else:
            self.loop.failed(error)

    def response(self, finished: Finished) -> PromptResponse[Out]:
        """The response to a finished conversation; its event is published first."""
        # Any: the loop parsed the output by the prompt's own declaration, which is what Out stands for.
        output: Any = finished.output
        loop = self.loop
        self._publish(
            PromptExecuted(
                prompt_name=self._name,
                adapter=self._adapter_name,
                text=finished.text,
                output=output,
                usage=loop.usage,
                turns=loop.turns,
                seconds=perf_counter() - self._started,
                session_id=self._session_id,
            )
        )
        return PromptResponse(
            prompt_name=self._name,
            text=finished.text,
            output=output,
            usage=loop.usage,
            turns=loop.turns,
            transcript=tuple(loop.transcript),
        )

    def _called(self, request: ProviderRequest, started: float, result: AssistantMessage | BaseException) -> None:
        answer = result if isinstance(result, AssistantMessage) else None
        self._publish(
            ProviderCalled(
                adapter=self._adapter_name,
                turn=request.turn,
                seconds=perf_counter() - started,
                usage=answer.usage if answer else TokenUsage(),
                finish=answer.finish if answer else "",
                tool_calls=len(answer.tool_calls) if answer else 0,
                error=None if answer else f"{type(result).__name__}: {result}",
                session_id=self._session_id,
            )
        )


def publisher(session: SessionProtocol, bus: EventBus | None) -> Callable[[object], None]:
    """Publishes on `bus`; the session hears of it too when that is not its own bus, to which it listens anyway."""
    if bus is None or bus is session.bus:
        return session.bus.publish

    def publish(event: object) -> None:
        bus.publish(event)
        try:
            session.dispatch(event)
        except Exception:  # a reducer's fault is isolated as it is on the session's own bus
            _log.exception("Event handler failed", extra={"event_type": type(event).__name__})

    return publish
