"""What every adapter is, and the one way in which adapters with our own inner loop evaluate a
prompt.
"""

import logging
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import aclosing, closing
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, Protocol, Self, Unpack

from ..errors import WeakIncentivesError
from ..evaluation.adapter import LoopOptions, ProviderAdapter, check_arguments, publisher
from ..evaluation.call_history import CallHistory
from ..evaluation.drivers import Journal, drive, drive_async
from ..evaluation.errors import DeadlineExceededError, PromptEvaluationError, ThrottleError
from ..evaluation.inner_loop import Finished, InnerLoop, InnerLoopConfig, ProviderRequest
from ..evaluation.messages import AssistantMessage, UserMessage, sendable
from ..evaluation.response import Completed, PromptResponse, StreamEvent, TextDelta
from ..evaluation.schemas import tool_to_spec
from ..evaluation.tool_executor import ToolExecutor
from ..limits import Budget, Clock, Deadline, utc_now
from ..prompt.context import Evaluator
from ..prompt.errors import VisibilityExpansionRequired
from ..prompt.prompt import Prompt
from ..prompt.renderer import RenderedPrompt
from ..prompt.sizes import measure
from ..prompt.tool import AnyTool
from ..protocols import EventBus, SessionProtocol
from ..runtime.events import (
    Operation,
    OverridesDropped,
    ParamsMissing,
    PromptExecuted,
    PromptRendered,
    ProviderCalled,
)

__all__ = [
    "Connection",
    "LoopAdapter",
    "PromptEvaluationError",
    "PromptResponse",
    "ProviderAdapter",
    "ThrottleError",
]

_log = logging.getLogger(__name__)

_LONGEST_WAIT = 365.0 * 24 * 3600  # neither sockets nor locks take every number of seconds


class Connection(Protocol):
    """One evaluation's line to the provider; it may remember what it has encoded already.

    `provider_tools` stand for tools that the provider runs by itself.
    """

    provider_tools: Sequence[AnyTool] = ()

    def close(self) -> None:
        """Ends the line, once; by default there is nothing to end."""
        return

    async def aclose(self) -> None:
        """As `close`, without blocking the event loop."""
        self.close()

    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        """The model's next message. Raises `PromptEvaluationError` when there is none.

        What it raises once the deadline has passed is told as that.
        """
        ...

    async def ask_async(self, request: ProviderRequest, /) -> AssistantMessage:
        """As `ask`, without blocking the event loop."""
        ...

    def ask_stream(self, request: ProviderRequest, /) -> Iterator[TextDelta | AssistantMessage]:
        """The pieces of the model's text as they come, then the whole message; by default one
        piece.
        """
        answer = self.ask(request)
        if answer.text:
            yield TextDelta(answer.text)
        yield answer

    async def ask_stream_async(
        self, request: ProviderRequest, /
    ) -> AsyncGenerator[TextDelta | AssistantMessage]:
        """As `ask_stream`, without blocking the event loop."""
        answer = await self.ask_async(request)
        if answer.text:
            yield TextDelta(answer.text)
        yield answer


class LoopAdapter(ProviderAdapter):
    """An adapter whose conversations our own inner loop drives; a subclass says how to ask its
    provider.

    `config` holds the rules of the loop; an evaluation's budget replaces the one in it, the
    earliest deadline holds.
    """

    name: str = "adapter"
    model: str = ""

    def __init__(self, *, config: InnerLoopConfig | None = None, clock: Clock = utc_now) -> None:
        self.config = config or InnerLoopConfig()
        self.clock = clock

    @property
    def supports_dynamic_tools(self) -> bool:
        return True

    @property
    def budget(self) -> Budget | None:
        return self.config.budget

    @abstractmethod
    # Any: a prompt of any output
    def connect(self, rendered: RenderedPrompt[Any], /) -> Connection:
        """Opens a line to the provider for one evaluation of `rendered`."""

    def seconds_left(self, deadline: Deadline | None) -> float | None:
        """Seconds until the deadline, as a time-out: never zero, at most a year; `None` without a
        deadline.
        """
        if deadline is None:
            return None
        return min(max(0.001, deadline.remaining(self.clock()).total_seconds()), _LONGEST_WAIT)

    def check_deadline(self, deadline: Deadline | None) -> None:
        """Raises `TimeoutError` once the deadline has passed."""
        if deadline is not None and deadline.has_passed(self.clock()):
            raise TimeoutError

    @property
    def evaluator(self) -> Evaluator:
        """The adapter by which tool handlers evaluate further prompts."""
        return self

    def journal(self, tools: ToolExecutor, /) -> Journal | None:
        """What records the work of one evaluation by `evaluate`; by default nothing does."""
        return None

    def evaluate[Out](
        self, prompt: Prompt[Out] | RenderedPrompt[Out], /, **given: Unpack[LoopOptions]
    ) -> PromptResponse[Out]:
        with _Run(self, prompt, **given) as run:
            with run.resources, closing(run.line):
                journal = self.journal(run.tools)
                events = drive(
                    run.loop,
                    run.ask,
                    run.tools,
                    journal=journal,
                    clock=self.clock,
                    calls_told=False,
                )
                [end] = deque(events, maxlen=1)
            return run.response(end)

    async def evaluate_async[Out](
        self, prompt: Prompt[Out] | RenderedPrompt[Out], /, **given: Unpack[LoopOptions]
    ) -> PromptResponse[Out]:
        with _Run(self, prompt, **given) as run:
            async with run.resources, aclosing(run.line):
                events = drive_async(
                    run.loop, run.ask_async, run.tools, clock=self.clock, calls_told=False
                )
                end = [event async for event in events][-1]
            return run.response(end)

    def stream[Out](
        self, prompt: Prompt[Out] | RenderedPrompt[Out], /, **given: Unpack[LoopOptions]
    ) -> Generator[StreamEvent[Out]]:
        """As `evaluate`, telling what happens while it does; the last event holds the response.

        Close the generator to stop early: nothing more runs then, and what has run stays.
        """
        end: object = None
        with _Run(self, prompt, streamed=True, **given) as run:
            with run.resources, closing(run.line):
                for event in drive(run.loop, run.ask, run.tools, clock=self.clock):
                    if isinstance(event, Finished):
                        end = event
                    else:
                        yield event
            response = run.response(end)
        yield Completed(response)  # it is over by then, and many read no further

    async def stream_async[Out](
        self, prompt: Prompt[Out] | RenderedPrompt[Out], /, **given: Unpack[LoopOptions]
    ) -> AsyncGenerator[StreamEvent[Out]]:
        """As `stream`, without blocking the event loop."""
        end: object = None
        with _Run(self, prompt, streamed=True, **given) as run:
            events = drive_async(run.loop, run.ask_async, run.tools, clock=self.clock)
            async with run.resources, aclosing(run.line), aclosing(events):
                async for event in events:
                    if isinstance(event, Finished):
                        end = event
                    else:
                        yield event
            response = run.response(end)
        yield Completed(response)


class _Run[Out]:
    """What one evaluation puts together before it starts, and the events around it.

    Enter it to run it.
    """

    def __init__(
        self,
        adapter: LoopAdapter,
        prompt: Prompt[Out] | RenderedPrompt[Out],
        *,
        session: SessionProtocol,
        bus: EventBus | None = None,
        deadline: Deadline | None = None,
        budget: Budget | None = None,
        call_history: CallHistory | None = None,
        streamed: bool = False,
    ) -> None:
        self._started = perf_counter()
        self.clock = adapter.clock
        check_arguments(prompt, session, deadline, budget)
        rendered = (
            prompt
            if isinstance(prompt, RenderedPrompt)
            else prompt.render(session=session, deadline=deadline)
        )
        bound = rendered.prompt
        if bound is None:
            raise ValueError(
                "evaluate needs a prompt rendered by Prompt.render, not by a bare PromptRenderer"
            )
        self.resources = bound.resources
        self.line = adapter.connect(rendered)
        offered = rendered
        if self.line.provider_tools:
            offered = replace(rendered, tools=(*rendered.tools, *self.line.provider_tools))
        self.session_id = session.session_id
        self.publish = publisher(session, bus)
        texts = rendered.tool_param_descriptions
        self.loop = InnerLoop(
            text=sendable(rendered.text),
            tools=tuple([tool_to_spec(tool, texts.get(tool.name)) for tool in offered.tools]),
            structured_output=rendered.structured_output,
            param_descriptions=texts,
            config=_rules(adapter, budget or adapter.budget, deadline, rendered.deadline),
        )
        self.work = Operation(
            bus=session.bus if bus is None else bus,
            kind="evaluation",
            name=bound.name,
            provider=adapter.name,
            model=adapter.model,
            text=rendered.text,
            streamed=streamed,
            session_id=self.session_id,
        )
        self.tools = ToolExecutor(
            prompt=bound,
            rendered=offered,
            adapter=adapter.evaluator,
            config=self.loop.config,
            session=session,
            publish=self.publish,
            work=self.work,
            call_history=call_history,
        )
        self._announce(rendered, bound, tuple([tool.name for tool in offered.tools]))

    def _announce(
        self, rendered: RenderedPrompt[Out], prompt: Prompt[Out], tools: tuple[str, ...]
    ) -> None:
        """Says what the model is shown, which stored texts it is not, and which sections it cannot
        open.
        """
        self.publish(
            PromptRendered(
                ns=prompt.ns,
                key=prompt.key,
                name=prompt.name,
                adapter=self.work.provider,
                text=self.work.text,
                tool_names=tools,
                visibility={
                    **{node.path: None for node in rendered.registry.sections},
                    **rendered.visibility,
                },
                measure=partial(measure, rendered.view),
                session_id=self.session_id,
            )
        )
        stored = rendered.overrides
        if stored is not None and stored.stale:
            self.publish(
                OverridesDropped(
                    ns=prompt.ns,
                    key=prompt.key,
                    tag=stored.tag,
                    texts=tuple([str(one.id) for one in stored.stale]),
                    session_id=self.session_id,
                )
            )
        if rendered.missing_params:
            kinds = sorted({kind.__name__ for kind in rendered.missing_params.values()})
            sections = tuple([".".join(path) for path in rendered.missing_params])
            remedy = f"bind them: prompt.bind({', '.join([f'{kind}(…)' for kind in kinds])})"
            _log.warning(
                "Params of hidden sections are missing; %s", remedy, extra={"sections": sections}
            )
            self.publish(
                ParamsMissing(
                    ns=prompt.ns,
                    key=prompt.key,
                    sections=sections,
                    remedy=remedy,
                    session_id=self.session_id,
                )
            )

    def __enter__(self) -> Self:
        self.work.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Tells an error how far this conversation had come; one from a tool's own evaluation knows
        of that only.
        """
        if isinstance(error, VisibilityExpansionRequired):
            complete: WeakIncentivesError = error.with_progress(
                self.loop.run_usage, self.tools.decisions
            )
        elif isinstance(error, PromptEvaluationError):
            complete = self.loop.failed(error)
        else:
            self.work.__exit__(kind, error, trace)
            return
        self.work.__exit__(kind, complete, trace)
        try:
            raise complete from error.__cause__
        finally:
            del complete  # an exception must not lead to itself by its traceback

    def ask(self, request: ProviderRequest) -> Iterator[TextDelta | AssistantMessage]:
        """The model's next message, with an event for the call; pieces of it come first where these
        are wanted.
        """
        with _Call(self, request) as call:
            if not self.work.streamed:
                call.answer = self.line.ask(request)
            else:
                for piece in self.line.ask_stream(request):
                    if isinstance(piece, AssistantMessage):
                        call.answer = piece
                    else:
                        yield piece
        yield call.answer

    async def ask_async(
        self, request: ProviderRequest
    ) -> AsyncGenerator[TextDelta | AssistantMessage]:
        """As `ask`, without blocking the event loop."""
        with _Call(self, request) as call:
            if not self.work.streamed:
                call.answer = await self.line.ask_async(request)
            else:
                async with aclosing(self.line.ask_stream_async(request)) as pieces:
                    async for piece in pieces:
                        if isinstance(piece, AssistantMessage):
                            call.answer = piece
                        else:
                            yield piece
        yield call.answer

    def response(self, finished: object) -> PromptResponse[Out]:
        """The response to a finished conversation; its event is published first."""
        assert isinstance(finished, Finished)  # noqa: S101 - a conversation that ends otherwise has raised
        # Any: parsed by the prompt's own declaration, which is what Out stands for
        output: Any = finished.output
        work, loop = self.work, self.loop
        self.publish(
            PromptExecuted(
                prompt_name=work.name,
                adapter=work.provider,
                text=finished.text,
                output=output,
                usage=loop.usage,
                turns=loop.turns,
                seconds=perf_counter() - self._started,
                session_id=self.session_id,
            )
        )
        response: PromptResponse[Out] = PromptResponse(
            prompt_name=work.name,
            text=finished.text,
            output=output,
            usage=loop.usage,
            turns=loop.turns,
            transcript=tuple(loop.transcript),
        )
        work.set_result(response)
        return response


_NO_ANSWER = AssistantMessage()


class _Call:
    """One call of the provider, of which an event is made when it is over.

    A class, since each turn enters one.
    """

    __slots__ = ("_gave", "_part", "_request", "_run", "_started", "answer")

    def __init__(self, run: _Run[Any], request: ProviderRequest) -> None:
        self._run = run
        self._request = request
        self.answer = _NO_ANSWER

    def __enter__(self) -> Self:
        work = self._run.work
        self._part = work.part("request", work.model, streamed=work.streamed)
        self._gave = self._part.__enter__()
        self._started = perf_counter()
        return self

    def __exit__(self, kind: object, raised: BaseException | None, trace: object) -> None:
        run, deadline, answer, error = self._run, self._request.deadline, self.answer, raised
        if (
            isinstance(raised, Exception)
            and deadline is not None
            and deadline.has_passed(run.clock())
        ):
            told = "the deadline passed during a request"
            error = DeadlineExceededError(
                told, phase="limit", code="deadline", provider=run.work.provider
            )
        elif raised is None and answer is _NO_ANSWER:
            error = TypeError(
                f"{type(run.line).__name__} streamed no whole AssistantMessage; it comes last"
            )
        called = ProviderCalled(
            adapter=run.work.provider,
            turn=self._request.turn,
            seconds=perf_counter() - self._started,
            usage=answer.usage,
            finish=answer.finish if error is None else "",
            tool_calls=len(answer.tool_calls),
            error=None if error is None else f"{type(error).__name__}: {error}",
            text=answer.text,
            repair=_repair(self._request),
            session_id=run.session_id,
        )
        if error is None:
            self._gave(answer)
        try:
            run.publish(called)
        finally:  # a handler may be interrupted
            self._part.__exit__(None if error is None else type(error), error, None)
        if error is not None and error is not raised:
            raise error from raised


def _repair(request: ProviderRequest) -> str:
    """What the request tells the model about its last answer, when that was rejected."""
    last = request.transcript[-1]
    return last.content if request.turn > 1 and isinstance(last, UserMessage) else ""


def _rules(
    adapter: LoopAdapter, budget: Budget | None, *deadlines: Deadline | None
) -> InnerLoopConfig:
    """The adapter's rules, with the budget and the first of all deadlines of one evaluation."""
    own = budget and budget.deadline(adapter.clock())
    ends = [one for one in (*deadlines, adapter.config.deadline, own) if one]
    return replace(
        adapter.config,
        supports_dynamic_tools=adapter.supports_dynamic_tools,
        deadline=min(ends, default=None),
        budget=budget,
    )
