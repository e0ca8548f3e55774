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

from ..errors import ControlFlow, WeakIncentivesError
from ..event_loops import closing_shielded
from ..limits import Budget, Clock, Deadline, Meter, TokenUsage, utc_now
from ..prompt.context import Evaluator
from ..prompt.errors import VisibilityExpansionRequired
from ..prompt.prompt import Prompt
from ..prompt.renderer import RenderedPrompt
from ..runs import Reservation, Run
from ..runtime.events import Operation, PromptExecuted, new_id
from .adapter import (
    Connection,
    LoopOptions,
    ParentRun,
    ProviderAdapter,
    check_arguments,
    publisher,
    source_of,
    takes_bindings,
)
from .approved_calls import ApprovedCalls
from .conversation import Conversation
from .effects import Effects, perform, perform_async, run
from .errors import CompactionRequired, PromptEvaluationError
from .evaluation_events import opening_events, stop_event
from .inner_loop import Action, Finished, InnerLoopConfig, ProviderRequest, ToolCalls
from .journal import Journal
from .main_loop import NestedAdapter
from .messages import ToolCall, ToolExecutionOutcome, UserMessage
from .nested_runs import ChangedRunError, NestedCall, UndecidedError, Waiting
from .opening import inner_loop, opening, render, with_disclosure_tools, with_provider_tools
from .requests import ProviderRequests
from .response import (
    AnswerRejected,
    Completed,
    PromptResponse,
    StreamEvent,
    ToolCallFinished,
    ToolCallStarted,
)
from .run_log import ACCEPT, Answered, Called, replayed
from .run_logs import OpenCalls
from .run_recorder import RunRecorder
from .run_stream import run_stream
from .suspend import recall_calls, suspend, wait_on, waiting_for
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

    @takes_bindings
    def evaluate[Out](
        self, prompt: Prompt[Out] | RenderedPrompt[Out], /, **options: Unpack[LoopOptions]
    ) -> PromptResponse[Out]:
        evaluation = Evaluation(self, prompt, **options)
        [completed] = self._perform(evaluation, self.journal(evaluation.tools, evaluation.meter))
        return _response(completed)

    # These three take what the base takes and more keywords, which pyright compares with all.
    @takes_bindings
    async def evaluate_async[Out](  # pyright: ignore[reportIncompatibleMethodOverride]
        self, prompt: Prompt[Out] | RenderedPrompt[Out], /, **options: Unpack[LoopOptions]
    ) -> PromptResponse[Out]:
        events = self._perform_async(Evaluation(self, prompt, **options))
        [completed] = [event async for event in events]
        return _response(completed)

    @takes_bindings
    @run_stream
    def stream[Out](  # pyright: ignore[reportIncompatibleMethodOverride]
        self, prompt: Prompt[Out] | RenderedPrompt[Out], /, **options: Unpack[LoopOptions]
    ) -> Generator[StreamEvent[Out]]:
        """Evaluates `prompt` and yields what happens; the last event holds the response.

        Close the generator to stop early, from any thread: no further call runs, and finished calls
        keep their effects.
        """
        yield from self._perform(Evaluation(self, prompt, streamed=True, **options))

    @takes_bindings
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
            connection = closing_shielded(evaluation.connection)
            async with evaluation.resources, connection, closing_shielded(events):
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

    _journal: Journal | None = None

    def __init__(
        self,
        adapter: LoopAdapter,
        prompt: Prompt[Out] | RenderedPrompt[Out],
        *,
        streamed: bool = False,
        **options: Unpack[LoopOptions],
    ) -> None:
        self._started, self._id = perf_counter(), new_id()
        check_arguments(prompt, options, LoopOptions, Prompt, RenderedPrompt)
        session, parent = options["session"], options.get("parent")
        self._is_nested = parent is not None and parent.evaluation_id is not None
        self._log = parent.log if parent else None
        self._resumption = options.get("resume")
        source = prompt if isinstance(prompt, Prompt) else source_of(prompt)
        source.declare_state(session)
        rendered = render(prompt, options)
        self.resources = source.resources
        self._run = Run(source.name, parent.run if parent else None, streamed)
        self.reservation = Reservation(self._run, source.runs_with(session))
        self.connection = adapter.connect(rendered)
        rendered = with_provider_tools(rendered, self.connection.provider_tools, options)
        self._clock = adapter.clock
        self._session, self._prompt, self._options = session, source, options
        self._publish = publisher(session, options.get("bus"))
        conversation = opening(rendered, options, session.content)
        rendered = with_disclosure_tools(rendered, conversation)
        config = _config(adapter, rendered, options)
        self._loop = inner_loop(rendered, conversation, options, config, adapter.model)
        self._operation = self._new_operation(adapter, rendered.text, streamed=streamed)
        self.meter = self._loop.meter
        self._requests = ProviderRequests(
            self.connection, self._loop, self._operation, self._publish, self._clock
        )
        self.tools = ToolExecutor(
            prompt=source,
            rendered=rendered,
            adapter=self._nested_adapter(adapter.evaluator),
            config=self._loop.config,
            session=session,
            publish=self._publish,
            operation=self._operation,
            call_history=options.get("call_history"),
            clock=adapter.clock,
        )
        self._open = OpenCalls(self._id, self.meter, self._log)
        self._approved = self._approved_calls(adapter)
        self._recorder: RunRecorder | None = None
        if self._log is not None:
            self._recorder = RunRecorder(self._log, self.tools, self._open, source, session)
        if (earlier := options.get("conversation")) is not None:
            # calls of its last turn, and not of the one that begins
            self.tools.recall_unknown(earlier.unknown_calls)
        self._finished: Finished | None = None
        self._feedback: UserMessage | None = None  # the last one that was published
        self._conversation: Conversation | None = None
        self._opening = opening_events(
            rendered, source, self._operation, conversation, options, event_id=self._id
        )

    def _new_operation(self, adapter: LoopAdapter, text: str, *, streamed: bool) -> Operation:
        bus, session, parent = self._options.get("bus"), self._session, self._options.get("parent")
        return Operation(
            bus=session.bus if bus is None else bus,
            kind="evaluation",
            name=self._prompt.name,
            provider=adapter.name,
            model=adapter.model,
            text=text,
            streamed=streamed,
            session_id=session.session_id,
            parent=parent.operation if parent else None,
        )

    def _approved_calls(self, adapter: LoopAdapter) -> ApprovedCalls:
        approver = self._options.get("approver")
        can_wait = approver is None and (not self._is_nested or self._log is not None)
        return ApprovedCalls(
            self.tools,
            self._session,
            self._publish,
            approver,
            self._open,
            check_limits=lambda expired: self._check_limits(1, expired=expired),
            seconds_left=lambda: adapter.seconds_left(self._loop.config.deadline),
            records=can_wait,
            streamed=self._operation.streamed,
        )

    def _check_limits(self, count: int, *, expired: bool = False) -> None:
        """Raises a `LimitError` if `count` calls may not run any more, as with `expired` time."""
        if (loop := self._loop).has_limits:
            deadline = loop.config.deadline
            loop.check_calls(count, deadline.expires_at if expired and deadline else self._clock())

    def _nested_adapter(self, evaluator: Evaluator) -> Evaluator:
        """Returns the adapter that handlers receive, for runs that are parts of this one."""
        if not isinstance(evaluator, ProviderAdapter):
            return evaluator
        bus, deadline = self._operation.bus, self._loop.config.deadline
        approver = self._options.get("approver")
        outer, levels = self._options.get("parent"), self._loop.config.max_depth
        levels = min(levels, outer.levels_left) if outer else levels
        run, session, meter = self._run, self._session, self.meter
        parent = ParentRun(run, session, meter, bus, deadline, self._id, approver, levels - 1)
        return NestedAdapter(evaluator, parent, self._clock)

    def __enter__(self) -> Self:
        for event in self._opening:
            self._publish(event)
        self._operation.__enter__()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception | None) and self._journal is None:
            self._loop = replayed(self._loop, self.tools.log)
        if isinstance(error, ChangedRunError):
            wait_on(error, self._log, self._resumption, self._loop, self._session)
        complete = self._with_progress(error)
        if not isinstance(error, RunSuspended):
            self._save_conversation()
        try:
            if complete is not None:
                self._publish_stop(complete)
        finally:  # an interrupt of an event's handler does not keep the operation open
            self._operation.__exit__(kind, complete, trace)
        if error is None or complete is None or complete is error:
            return
        try:
            raise complete
        finally:
            complete.__context__ = error.__context__  # and not the error that it replaces
            del complete  # else the exception's traceback would refer to the exception

    def _with_progress(self, error: BaseException | None) -> BaseException | None:
        """Returns the error with the progress of this evaluation.

        An error of an evaluation inside a handler has its own progress, which it replaces.
        """
        loop = self._loop
        if isinstance(error, VisibilityExpansionRequired):
            return error.with_progress(loop.meter.usage, self.tools.available.decisions, loop.turns)
        if isinstance(error, PromptEvaluationError):
            self._stop()
            return loop.failed(error)
        if isinstance(error, CompactionRequired):
            self._stop()
            return error.with_progress(loop.meter.usage, loop.conversation_now, loop.turns)
        return error

    def _publish_stop(self, error: BaseException) -> None:
        loop, seconds = self._loop, perf_counter() - self._started
        stopped = stop_event(error, self._operation, loop.usage, loop.turns, seconds)
        if stopped is not None:
            self._publish(stopped)

    def _save_conversation(self) -> None:
        save = self._options.get("save")
        if save is None:
            return
        if self._conversation is None:
            self._stop()
            self._conversation = self._loop.conversation_now
        save(self._conversation)

    def _stop(self) -> None:
        """Makes the conversation one that can go on, with the calls of earlier evaluations."""
        self._loop.stop()
        if self._finished is None:
            self._loop.transcript += self.tools.unrepeated_calls()

    def effects(self, journal: Journal | None = None) -> Effects[None]:
        """Runs the conversation to its end; `finish` then returns the response."""
        self._journal = journal
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
        self.tools.log += map(Called, suspension.calls_of_turn, outcomes)
        self._begin_turn(suspension.calls_of_turn, self._resumption.waiting)
        return self._loop.resume(
            suspension.spent, suspension.turns, suspension.repairs, outcomes, self._clock()
        )

    def _begin_turn(self, calls: Sequence[ToolCall], waited: Waiting | None = None) -> None:
        """Takes the calls of an answer, and the decisions on them if the run has `waited`."""
        if self._log is not None:
            waited = self._log.resume()
        self._open.begin_turn(calls, waited)

    def _suspend(
        self, undecided: UndecidedError, calls: Sequence[ToolCall], *, reserved: int = 0
    ) -> Effects[RunSuspended]:
        """Returns the error that ends the run until people have decided on the first of `calls`.

        Of these calls, `reserved` are counted, and have not run.
        """
        self.meter.add(TokenUsage(), tool_calls=-reserved)
        self._open.decisions |= undecided.decisions
        later = list(zip(calls[1:], self._open.ids(calls)[1:], strict=True))
        pending = yield from self._approved.pending(undecided.previews, later)
        waiting = waiting_for(pending, calls, self._open, self._prompt)
        return suspend(
            waiting,
            loop=self._loop,
            prompt=self._prompt,
            session=self._session,
            options=self._options,
        )

    def _send(self, request: ProviderRequest, journal: Journal | None) -> Effects[Action]:
        """Asks for the model's next message and passes it to the inner loop."""
        for change in request.changes:
            self.tools.available.apply(change)
        if request.changes and self._operation.streamed:
            for message in request.tool_messages:  # noqa: UP028 - `yield from` takes no outcomes
                yield message
        if journal is not None:
            asking = self._requests.send(request, keep_arrived=False)
            answer = journal.ask(request, partial(run, asking))
        elif self._recorder is not None:
            answer = yield from self._recorder.ask(self._requests.send(request))
        else:
            answer = yield from self._requests.send(request)
        self.tools.log.append(Answered(answer))
        self._begin_turn(answer.tool_calls)
        return self._loop.receive(answer, self._clock())

    def _check_output(self, finished: Finished, journal: Journal | None) -> Effects[Action]:
        """Lets the template accept the answer; a rejected one goes back to the model."""
        accept = self._prompt.template.accept
        if accept is None:
            return finished
        # As a call, so that a journal records it; no tool can have this name.
        call = ToolCall(f"accept_{self._loop.turns}", ACCEPT, finished.text)
        check = partial(self.tools.check_output, call, accept, finished.output)
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
                rejected = AnswerRejected(reason, session_id=self._session.session_id)
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
                session_id=self._session.session_id,
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
        calls = self._open.batch(action.calls)
        calls = self.tools.next_batch(calls) if journal is None else calls[:1]
        record = self._recorder.take(calls[0]) if self._recorder else None
        calls = self._loop.reserve(calls if record is None else calls[:1])
        if self._operation.streamed:
            for started in calls:
                yield ToolCallStarted(started)
        outcomes, signal = yield from self._execute_calls(action, calls, record, journal)
        if not isinstance(signal, UndecidedError):
            next_action = yield from self._submit(calls, outcomes)
            if signal is not None:
                raise signal
            return next_action
        # The call that waits and those after it have not been run.
        self.meter.add(TokenUsage(), tool_calls=len(outcomes) - len(calls))
        self._loop.running = ()
        if outcomes:
            yield from self._submit(calls, outcomes)
        raise (yield from self._suspend(signal, action.calls[len(outcomes) :])) from None

    def _execute_calls(
        self,
        action: ToolCalls,
        calls: tuple[ToolCall, ...],
        record: NestedCall | None,
        journal: Journal | None,
    ) -> Effects[tuple[Sequence[ToolExecutionOutcome], ControlFlow | UndecidedError | None]]:
        """Runs the first calls of a turn, or repeats one that has a `record`."""
        call, ids, recorder = calls[0], self._open.ids(action.calls), self._recorder
        self._check_limits(len(calls))
        if journal is not None or record is not None or len(calls) > 1:
            self._set_running(calls)
        try:
            if journal is not None:
                wait = partial(self._suspend, calls=action.calls, reserved=1)
                outcome = journal.execute(call, *self._approved.recorded(call, ids[0], wait))
                self._open.forget(ids[0])
                return [outcome], None
            if record is not None and recorder is not None:
                return [(yield from recorder.repeat(record, ids[0]))], None
            if len(calls) == 1:
                effects = self._approved.execute(call, ids[0], self._set_running)
                if recorder is not None:
                    effects = recorder.execute(call, ids[0], effects)
                return [(yield from effects)], None
            pairs = zip(calls, ids, strict=False)
            identify = [partial(self._approved.identify, *pair) for pair in pairs]
            outcomes, signal = yield from self.tools.execute_parallel(calls, identify)
            if recorder is not None:
                recorder.record(calls, ids, outcomes)
            return outcomes, signal
        except UndecidedError as undecided:
            return [], undecided

    def _set_running(self, calls: tuple[ToolCall, ...]) -> None:
        self._loop.running = calls

    def _submit(
        self, calls: Sequence[ToolCall], outcomes: Sequence[ToolExecutionOutcome]
    ) -> Effects[Action]:
        """Submits the outcomes of calls to the inner loop and returns the next action."""
        streamed = self._operation.streamed
        try:  # before a reader of the stream can end the run: these calls have been run
            next_action = self._loop.submit(outcomes, self._clock())
        except WeakIncentivesError:  # a limit, or a request for sections
            # Apply what the turn opened and closed, since the model has read that it did.
            for change in self._loop.tool_changes:
                self.tools.available.apply(change)
            if streamed:
                yield from _finished(calls, outcomes)
            raise
        if streamed:
            yield from _finished(calls, outcomes)
        return next_action


# Any: a prompt of any output
def _config(
    adapter: LoopAdapter, rendered: RenderedPrompt[Any], options: LoopOptions
) -> InnerLoopConfig:
    """Returns the adapter's rules with the budget and the earliest deadline of one evaluation."""
    budget, parent = options.get("budget") or adapter.budget, options.get("parent")
    candidates = (
        *(options.get("deadline"), rendered.deadline, adapter.config.deadline),
        *(parent and parent.deadline, budget and budget.deadline(adapter.clock())),
    )
    return replace(
        adapter.config,
        supports_dynamic_tools=adapter.supports_dynamic_tools,
        deadline=min([deadline for deadline in candidates if deadline], default=None),
        budget=budget,
    )


def _finished(calls: Sequence[ToolCall], outcomes: Sequence[ToolExecutionOutcome]) -> Effects[None]:
    for call, outcome in zip(calls, outcomes, strict=False):
        yield ToolCallFinished(call, outcome.message)
