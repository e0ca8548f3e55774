"""`LoopAdapter`, an adapter that uses the library's inner loop, and `Evaluation`, one run of it.

`Evaluation.effects` defines the course of an evaluation once, as a generator: start the inner loop,
ask the provider, run tool calls, submit their outcomes. `LoopAdapter.evaluate`, `stream` and their
`async` forms perform these effects.
"""

import logging
from abc import abstractmethod
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import aclosing, closing
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, Self, Unpack

from ..content import Part, text_of, to_content
from ..errors import WeakIncentivesError
from ..limits import Budget, Clock, Deadline, Meter, utc_now
from ..prompt.context import Evaluator
from ..prompt.errors import VisibilityExpansionRequired
from ..prompt.prompt import Prompt
from ..prompt.renderer import RenderedPrompt
from ..prompt.sizes import measure
from ..runs import Reservation, Run
from ..runtime.events import (
    Operation,
    OverridesDropped,
    ParamsMissing,
    PromptExecuted,
    PromptRendered,
    new_id,
)
from .adapter import (
    Connection,
    LoopOptions,
    ParentRun,
    ProviderAdapter,
    check_arguments,
    publisher,
    source_of,
)
from .approval import Preview
from .approved_calls import ApprovedCalls, UndecidedError
from .conversation import Conversation
from .effects import Effects, perform, perform_async, run
from .errors import CompactionRequired, PromptEvaluationError
from .inner_loop import (
    Action,
    Finished,
    InnerLoop,
    InnerLoopConfig,
    ProviderRequest,
    ToolCalls,
)
from .journal import CallIdentity, Journal
from .main_loop import NestedAdapter
from .messages import (
    Instructions,
    Message,
    ToolCall,
    ToolExecutionOutcome,
    ToolsAdded,
    ToolsRemoved,
    UserMessage,
    media_of,
)
from .opening import opening, with_disclosure_tools
from .requests import ProviderRequests
from .response import (
    AnswerRejected,
    Completed,
    PromptResponse,
    StreamEvent,
    ToolCallFinished,
    ToolCallStarted,
)
from .suspend import recall_calls, suspend
from .suspension import RunSuspended
from .tool_executor import ToolExecutor

__all__ = ["Evaluation", "LoopAdapter"]

_log = logging.getLogger(__name__)

_MAX_TIMEOUT = 365.0 * 24 * 3600  # sockets and locks refuse very large numbers of seconds


class LoopAdapter(ProviderAdapter):
    """An adapter that uses the library's inner loop; a subclass says how to ask its provider.

    `config` holds the rules of the loop. The budget of an evaluation replaces the one in `config`;
    the earliest of all deadlines applies.
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

    @property
    def evaluator(self) -> Evaluator:
        """The adapter that tool handlers use to evaluate further prompts."""
        return self

    @abstractmethod
    # Any: a prompt of any output
    def connect(self, rendered: RenderedPrompt[Any], /) -> Connection:
        """Opens a connection to the provider for one evaluation of `rendered`."""

    def seconds_left(self, deadline: Deadline | None) -> float | None:
        """Returns the seconds until the deadline, as a time-out: more than 0, at most a year."""
        if deadline is None:
            return None
        return min(max(0.001, deadline.remaining(self.clock()).total_seconds()), _MAX_TIMEOUT)

    def check_deadline(self, deadline: Deadline | None) -> None:
        """Raises `TimeoutError` once the deadline has passed."""
        if deadline is not None and deadline.has_passed(self.clock()):
            raise TimeoutError

    def journal(self, tools: ToolExecutor, meter: Meter, /) -> Journal | None:
        """Returns the journal of one evaluation by `evaluate`; by default there is none.

        `meter` counts the evaluation's usage.
        """
        return None

    def evaluate[Out](
        self, prompt: Prompt[Out] | RenderedPrompt[Out], /, **options: Unpack[LoopOptions]
    ) -> PromptResponse[Out]:
        evaluation = Evaluation(self, prompt, **options)
        [completed] = self._perform(evaluation, self.journal(evaluation.tools, evaluation.meter))
        return _response(completed)

    # These three take what the base takes and more keywords, which pyright compares with all.
    async def evaluate_async[Out](  # pyright: ignore[reportIncompatibleMethodOverride]
        self, prompt: Prompt[Out] | RenderedPrompt[Out], /, **options: Unpack[LoopOptions]
    ) -> PromptResponse[Out]:
        events = self._perform_async(Evaluation(self, prompt, **options))
        [completed] = [event async for event in events]
        return _response(completed)

    def stream[Out](  # pyright: ignore[reportIncompatibleMethodOverride]
        self, prompt: Prompt[Out] | RenderedPrompt[Out], /, **options: Unpack[LoopOptions]
    ) -> Generator[StreamEvent[Out]]:
        """Evaluates `prompt` and yields what happens; the last event holds the response.

        Close the generator to stop early: no further call runs, and finished calls keep their
        effects.
        """
        yield from self._perform(Evaluation(self, prompt, streamed=True, **options))

    async def stream_async[Out](  # pyright: ignore[reportIncompatibleMethodOverride]
        self, prompt: Prompt[Out] | RenderedPrompt[Out], /, **options: Unpack[LoopOptions]
    ) -> AsyncGenerator[StreamEvent[Out]]:
        """Like `stream`, without blocking the event loop."""
        evaluation = Evaluation(self, prompt, streamed=True, **options)
        async with aclosing(self._perform_async(evaluation)) as events:
            async for event in events:
                yield event

    def _perform[Out](
        self, evaluation: "Evaluation[Out]", journal: Journal | None = None
    ) -> Generator[StreamEvent[Out]]:
        with evaluation.reservation, evaluation:
            with evaluation.resources, closing(evaluation.connection):
                yield from perform(evaluation.effects(journal))
            response = evaluation.finish()
        yield Completed(response)  # after the clean-up, since a reader may stop at this event

    async def _perform_async[Out](
        self, evaluation: "Evaluation[Out]"
    ) -> AsyncGenerator[StreamEvent[Out]]:
        with evaluation.reservation, evaluation:
            events = perform_async(evaluation.effects())
            async with evaluation.resources, aclosing(evaluation.connection), aclosing(events):
                async for event in events:
                    yield event
            response = evaluation.finish()
        yield Completed(response)


def _response[Out](event: StreamEvent[Out]) -> PromptResponse[Out]:
    assert isinstance(event, Completed)  # noqa: S101 - the last event of every stream
    return event.response


class Evaluation[Out]:
    """One evaluation by a `LoopAdapter`: a context manager around its `effects`.

    On exit it adds the progress so far, such as usage and transcript, to an exception.
    """

    def __init__(
        self,
        adapter: LoopAdapter,
        prompt: Prompt[Out] | RenderedPrompt[Out],
        *,
        streamed: bool = False,
        **options: Unpack[LoopOptions],
    ) -> None:
        self._started = perf_counter()
        check_arguments(prompt, options, LoopOptions, Prompt, RenderedPrompt)
        session, bus, deadline = options["session"], options.get("bus"), options.get("deadline")
        self._id, parent = new_id(), options.get("parent")
        self._parent_id = parent.evaluation_id if parent else None
        earlier, self._resumption = options.get("conversation"), options.get("resume")
        goes_on = self._resumption.suspension.conversation if self._resumption else earlier
        source = prompt if isinstance(prompt, Prompt) else source_of(prompt)
        source.declare_state(session)
        if isinstance(prompt, Prompt):
            decisions = None if goes_on is None else goes_on.decisions_for(prompt)
            prompt = prompt.render(session=session, decisions=decisions, deadline=deadline)
        self.resources = source.resources
        self._run = Run(source.name, parent.run if parent else None)
        self.reservation = Reservation(self._run, source.runs_with(session))
        self.connection = adapter.connect(prompt)
        rendered = prompt
        if self.connection.provider_tools:
            rendered = replace(prompt, tools=(*prompt.tools, *self.connection.provider_tools))
        self._clock = adapter.clock
        self._session, self._prompt, self._options = session, source, options
        self._session_id = session.session_id
        self._publish = publisher(session, bus)
        self._save = options.get("save")
        conversation = opening(rendered, options, session.content)
        rendered = with_disclosure_tools(rendered, conversation)
        self._loop = InnerLoop(
            conversation=conversation,
            structured_output=prompt.structured_output,
            param_descriptions=prompt.tool_param_descriptions,
            max_request_tokens=options.get("max_request_tokens"),
            previous_turns=options.get("previous_turns", 0),
            content=session.content,
            parent_meter=parent.meter if parent else None,
            config=_rules(
                adapter,
                options.get("budget") or adapter.budget,
                deadline,
                prompt.deadline,
                parent.deadline if parent else None,
            ),
            model=adapter.model,
        )
        self._operation = Operation(
            bus=session.bus if bus is None else bus,
            kind="evaluation",
            name=source.name,
            provider=adapter.name,
            model=adapter.model,
            text=prompt.text,
            streamed=streamed,
            session_id=self._session_id,
        )
        self.meter = self._loop.meter
        self._requests = ProviderRequests(
            self.connection,
            self._loop,
            self._operation,
            self._publish,
            self._clock,
        )
        self.tools = ToolExecutor(
            prompt=source,
            rendered=rendered,
            adapter=self._nested_adapter(adapter.evaluator, options),
            config=self._loop.config,
            session=session,
            publish=self._publish,
            operation=self._operation,
            call_history=options.get("call_history"),
        )
        self._approved = ApprovedCalls(
            self.tools,
            session,
            self._publish,
            options.get("approver"),
            self._resumption,
            streamed=streamed,
        )
        if earlier is not None:  # its last turn, and not the one that begins
            self.tools.recall_unknown(earlier.unknown_calls)
        self._accept = source.template.accept
        self._finished: Finished | None = None
        self._feedback: UserMessage | None = None  # the last one that was published
        new = conversation.messages[len(goes_on.messages) if goes_on else 0 :]
        self._conversation: Conversation | None = None
        message = None if self._resumption else options.get("message")
        self._announce = partial(
            self._publish_prompt, rendered, source, message, new, continued=goes_on is not None
        )

    def _nested_adapter(self, evaluator: Evaluator, options: LoopOptions) -> Evaluator:
        """Returns the adapter that handlers receive, for runs that are parts of this one."""
        if not isinstance(evaluator, ProviderAdapter):
            return evaluator
        bus, deadline = self._operation.bus, self._loop.config.deadline
        approver, meter = options.get("approver"), self._loop.meter
        parent = ParentRun(self._run, options["session"], meter, bus, deadline, self._id, approver)
        return NestedAdapter(evaluator, parent, self._clock)

    def _publish_prompt(
        self,
        rendered: RenderedPrompt[Out],
        prompt: Prompt[Out],
        message: str | Sequence[Part] | None,
        new: Sequence[Message],
        *,
        continued: bool,
    ) -> None:
        """Publishes the rendered prompt, its stale overrides, and sections that cannot open."""
        changes = [item.content for item in new if isinstance(item, Instructions) and continued]
        self._publish(
            PromptRendered(
                ns=prompt.ns,
                key=prompt.key,
                name=prompt.name,
                adapter=self._operation.provider,
                text=rendered.text,
                tool_names=tuple([tool.name for tool in rendered.tools]),
                message=text_of(to_content(message)) if message else "",
                changes="\n\n".join(changes),
                media=tuple([media for item in new for media in media_of(item)]),
                parent_id=self._parent_id,
                event_id=self._id,
                visibility={
                    **{node.path: None for node in rendered.registry.sections},
                    **rendered.visibility,
                },
                measure=partial(measure, rendered.view),
                session_id=self._session_id,
            )
        )
        overrides = rendered.overrides
        if overrides is not None and overrides.stale:
            self._publish(
                OverridesDropped(
                    ns=prompt.ns,
                    key=prompt.key,
                    tag=overrides.tag,
                    texts=tuple([str(text.id) for text in overrides.stale]),
                    session_id=self._session_id,
                )
            )
        if rendered.missing_params:
            types = sorted({type_.__name__ for type_ in rendered.missing_params.values()})
            sections = tuple([".".join(path) for path in rendered.missing_params])
            remedy = f"bind them: prompt.bind({', '.join([f'{name}(…)' for name in types])})"
            fields = {"sections": sections}
            _log.warning("Params of hidden sections are missing; %s", remedy, extra=fields)
            self._publish(
                ParamsMissing(
                    ns=prompt.ns,
                    key=prompt.key,
                    sections=sections,
                    remedy=remedy,
                    session_id=self._session_id,
                )
            )

    def __enter__(self) -> Self:
        self._announce()
        self._operation.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # An error of an evaluation inside a handler has its progress: replace it.
        if isinstance(error, VisibilityExpansionRequired):
            decisions = self.tools.available.decisions
            complete: WeakIncentivesError = error.with_progress(
                self._loop.meter.usage, decisions, self._loop.turns
            )
        elif isinstance(error, PromptEvaluationError):
            self._stop()
            complete = self._loop.failed(error)
        elif isinstance(error, CompactionRequired):
            self._stop()
            conversation = self._loop.conversation_now
            complete = error.with_progress(self._loop.meter.usage, conversation, self._loop.turns)
        else:
            if not isinstance(error, RunSuspended):
                self._save_conversation()
            self._operation.__exit__(kind, error, trace)
            return
        self._save_conversation()
        self._operation.__exit__(kind, complete, trace)
        try:
            raise complete
        finally:
            complete.__context__ = error.__context__  # and not the error that it replaces
            del complete  # else the exception's traceback would refer to the exception

    def _save_conversation(self) -> None:
        if self._save is None:
            return
        if self._conversation is None:
            self._stop()
            self._conversation = self._loop.conversation_now
        self._save(self._conversation)

    def _stop(self) -> None:
        """Makes the conversation one that can go on, with the calls of earlier evaluations."""
        self._loop.stop()
        if self._finished is None:
            self._loop.transcript += self.tools.unrepeated_calls()

    def effects(self, journal: Journal | None = None) -> Effects[None]:
        """Runs the conversation to its end; `finish` then returns the response."""
        action = self._start()
        while True:
            if isinstance(action, ToolCalls):
                action = yield from self._run_calls(action, journal)
            elif isinstance(action, ProviderRequest):
                try:
                    action = yield from self._send(action, journal)
                    if isinstance(action, Finished):
                        action = yield from self._check_output(action, journal)
                except PromptEvaluationError:
                    self._publish_rejection()
                    raise
                rejected = self._publish_rejection()
                if self._operation.streamed and rejected is not None:
                    yield rejected
            else:
                self._finished = action
                return

    def _start(self) -> Action:
        """Returns the first request, or the calls that a suspended evaluation has left."""
        if self._resumption is None:
            return self._loop.start(self._clock())
        suspension, outcomes = recall_calls(self.tools, self._resumption)
        return self._loop.resume(
            suspension.spent, suspension.turns, suspension.repairs, outcomes, self._clock()
        )

    def _suspend(self, first: Preview, later: Sequence[ToolCall]) -> Effects[RunSuspended]:
        """Returns the error that ends the run until people have decided."""
        pending = yield from self._approved.pending(first, later)
        return suspend(
            pending,
            self._approved.decisions,
            loop=self._loop,
            prompt=self._prompt,
            session=self._session,
            options=self._options,
        )

    def _send(self, request: ProviderRequest, journal: Journal | None) -> Effects[Action]:
        """Asks for the model's next message and passes it to the inner loop."""
        changes = self._apply_changes(request)
        if self._operation.streamed:
            for change in changes:  # noqa: UP028 - `yield from` a list cannot take the outcomes
                yield change
        if journal is None:
            answer = yield from self._requests.send(request)
        else:
            answer = journal.ask(request, partial(run, self._requests.send(request)))
        return self._loop.receive(answer, self._clock())

    def _check_output(self, finished: Finished, journal: Journal | None) -> Effects[Action]:
        """Lets the template accept the answer; a rejected one goes back to the model."""
        if self._accept is None:
            return finished
        # As a call, so that a journal records it; no tool can have this name.
        call = ToolCall(f"accept_{self._loop.turns}", "<accept>", finished.text)
        check = partial(self.tools.check_output, call, self._accept, finished.output)
        if journal is None:
            outcome = yield from check()
        else:
            outcome = journal.execute(call, lambda identity: run(check(identity)))
        if outcome.success:
            return finished
        return self._loop.reject(outcome.message.content, self._clock())

    def _publish_rejection(self) -> AnswerRejected | None:
        """Publishes that the model's answer was rejected, if it was; returns the event."""
        match self._loop.transcript[-1]:
            case UserMessage(str() as reason, repair=True) as feedback if (
                feedback is not self._feedback
            ):
                self._feedback = feedback
                rejected = AnswerRejected(reason, session_id=self._session_id)
                self._publish(rejected)
                return rejected
            case _:
                return None

    def finish(self) -> PromptResponse[Out]:
        """Publishes the end of the evaluation and returns its response."""
        assert self._finished is not None  # noqa: S101 - `effects` has set it or raised
        loop, text = self._loop, self._finished.text
        self._conversation = loop.conversation_now
        # Any: parsed by the prompt's own declaration, which is what Out stands for
        output: Any = self._finished.output
        self._publish(
            PromptExecuted(
                prompt_name=self._operation.name,
                adapter=self._operation.provider,
                text=text,
                output=output,
                usage=loop.usage,
                turns=loop.turns,
                seconds=perf_counter() - self._started,
                session_id=self._session_id,
            )
        )
        response: PromptResponse[Out] = PromptResponse(
            prompt_name=self._operation.name,
            text=text,
            output=output,
            usage=loop.usage,
            turns=loop.turns,
            conversation=self._conversation,
        )
        self._operation.set_result(response)
        return response

    def _run_calls(self, action: ToolCalls, journal: Journal | None) -> Effects[Action]:
        """Runs the first of the calls, in parallel where that is allowed, and submits them."""
        tools, streamed = self.tools, self._operation.streamed
        calls = tools.next_batch(action.calls) if journal is None else action.calls[:1]
        calls = self._loop.reserve(calls)
        if streamed:
            for started in calls:
                yield ToolCallStarted(started)
        set_running = partial(setattr, self._loop, "running")
        call, signal = calls[0], None
        outcomes: Sequence[ToolExecutionOutcome]
        try:
            if journal is not None:
                set_running(calls)
                outcomes = [journal.execute(call, partial(self._execute, call))]
            elif len(calls) == 1:
                outcomes = [(yield from self._approved.execute(call, set_running))]
            else:
                set_running(calls)
                outcomes, signal = yield from tools.execute_parallel(calls)
        except UndecidedError as undecided:
            raise (yield from self._suspend(undecided.preview, action.calls[1:])) from None
        try:  # before a reader of the stream can end the run: these calls have been run
            next_action = self._loop.submit(outcomes, self._clock())
        except WeakIncentivesError:  # a limit, or a request for sections
            # Apply what the turn opened and closed, since the model has read that it did.
            for change in self._loop.tool_changes:
                tools.available.apply(change)
            if streamed:
                yield from _finished(calls, outcomes)
            raise
        if streamed:
            yield from _finished(calls, outcomes)
        if signal is not None:
            raise signal
        return next_action

    def _execute(self, call: ToolCall, identity: CallIdentity | None) -> ToolExecutionOutcome:
        return run(self._approved.execute(call, lambda _: None, identity))

    def _apply_changes(self, request: ProviderRequest) -> Sequence[ToolsAdded | ToolsRemoved]:
        """Applies tool changes and returns their transcript entries."""
        entries: list[ToolsAdded | ToolsRemoved] = []
        if request.changes:
            for change in request.changes:
                self.tools.available.apply(change)
            for message in reversed(request.transcript):
                if not isinstance(message, ToolsAdded | ToolsRemoved):
                    break
                entries.insert(0, message)
        return entries


def _finished(calls: Sequence[ToolCall], outcomes: Sequence[ToolExecutionOutcome]) -> Effects[None]:
    for call, outcome in zip(calls, outcomes, strict=False):
        yield ToolCallFinished(call, outcome.message)


def _rules(
    adapter: LoopAdapter, budget: Budget | None, *deadlines: Deadline | None
) -> InnerLoopConfig:
    """Returns the adapter's rules with the budget and the earliest deadline of one evaluation."""
    budget_deadline = budget and budget.deadline(adapter.clock())
    candidates = (*deadlines, adapter.config.deadline, budget_deadline)
    return replace(
        adapter.config,
        supports_dynamic_tools=adapter.supports_dynamic_tools,
        deadline=min([deadline for deadline in candidates if deadline], default=None),
        budget=budget,
    )
