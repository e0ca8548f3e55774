"""`Evaluation`: one evaluation of a run, from its first request to the model's answer.

`Evaluation.effects` defines its course once, as a generator: start the inner loop, ask the
provider, run tool calls, submit their outcomes. The run around it performs these effects.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

from ..content import to_content
from ..errors import ControlFlow
from ..limits import Clock, TokenUsage
from ..prompt.errors import VisibilityExpansionRequired
from ..prompt.renderer import RenderedPrompt
from ..runs import RunToken
from ..runtime.events import Operation, PromptExecuted, new_id
from .adapter import (
    ConnectingAdapter,
    Connection,
    EvaluationStart,
    ParentRun,
    ProviderAdapter,
    publisher,
    source_of,
)
from .approved_calls import ApprovedCalls
from .available_tools import with_disclosure_tools, with_provider_tools
from .conversation import Conversation, begin, rendered_tools
from .effects import Close, Effects, run
from .errors import LimitError, PromptEvaluationError, raise_instead
from .evaluation_events import opening_events, stop_event
from .inner_loop import (
    Action,
    Finished,
    InnerLoop,
    InnerLoopConfig,
    ProviderRequest,
    Restart,
    ToolCalls,
    TooLong,
)
from .journal import Journal
from .messages import ToolCall, ToolExecutionOutcome, UserMessage
from .nested_runs import ChangedRunError, NestedCall, UndecidedError, Waiting
from .requests import ProviderRequests
from .response import AnswerRejected, PromptResponse, ToolCallFinished, ToolCallStarted
from .run_log import ACCEPT, Answered, Called, replayed
from .run_logs import OpenCalls
from .run_recorder import RunRecorder
from .suspend import recall_calls, suspend, wait_on, waiting_for
from .suspension import RunSuspended
from .tool_executor import AdapterOfCall, ToolExecutor, same_adapter

__all__ = ["Evaluation"]

type Nest = Callable[[ProviderAdapter, ParentRun, Clock], AdapterOfCall]


class Evaluation[Out]:
    """One evaluation by an adapter that connects to its provider, as a part of the run `token`.

    Call `begin`, perform `effects`, and call `end` with the exception that ended it, if one did.
    `nest` makes the adapters that handlers receive, for runs that are parts of their calls.
    """

    def __init__(
        self,
        adapter: ConnectingAdapter,
        rendered: RenderedPrompt[Out],
        options: EvaluationStart,
        token: RunToken,
        nest: Nest,
    ) -> None:
        self._started, self._id = perf_counter(), new_id()
        prompt, session, parent = source_of(rendered), options["session"], options.get("parent")
        self._is_nested = parent is not None and parent.evaluation_id is not None
        self._log = parent.log if parent else None
        self._resumption = options.get("resume")
        self.journal: Journal | None = None
        connection = self._connection = adapter.connect(rendered)
        self._is_connected = True
        rendered = with_provider_tools(
            rendered, connection.provider_tools, can_ask=options.get("approver") is not None
        )
        self._clock = adapter.clock
        self._session, self._prompt, self._options = session, prompt, options
        self._publish = publisher(session, options.get("bus"))
        conversation = self._opening(rendered)
        rendered = with_disclosure_tools(rendered, conversation)
        self._loop = self._inner_loop(adapter, rendered, conversation)
        self._operation = self._new_operation(adapter, rendered.text, streamed=token.streamed)
        self.meter = self._loop.meter
        self._requests = ProviderRequests(
            connection, self._loop, self._operation, self._publish, self._clock
        )
        self.tools = ToolExecutor(
            prompt=prompt,
            rendered=rendered,
            adapter=self._adapter_of_call(adapter, token, nest),
            config=self._loop.config,
            session=session,
            publish=self._publish,
            operation=self._operation,
            call_history=options.get("call_history"),
            clock=adapter.clock,
            run=token,
        )
        self._open = OpenCalls(self._id, self.meter, self._log)
        self._approved = self._approved_calls(adapter)
        self._recorder: RunRecorder | None = None
        if self._log is not None:
            self._recorder = RunRecorder(self._log, self.tools, self._open, prompt, session)
        if (earlier := options.get("conversation")) is not None:
            # calls of its last turn, and not of the one that begins
            self.tools.recall_unknown(earlier.unknown_calls)
        self._feedback: UserMessage | None = None  # the last one that was published
        self._is_stopped = self._is_finished = False
        self._events = opening_events(
            rendered, prompt, self._operation, conversation, options, event_id=self._id
        )

    # Any, twice: a prompt of any output
    def _opening(self, rendered: RenderedPrompt[Any]) -> Conversation:
        """Returns the conversation to begin with; the session keeps the bytes of its media."""
        if self._resumption is not None:
            return self._resumption.suspension.conversation
        options, store = self._options, self._session.content
        for media in rendered.media:
            store.put(media)
        tools, message = rendered_tools(rendered), options.get("message")
        content = None if message is None else to_content(message)
        if (earlier := options.get("conversation")) is None:
            return begin(rendered, tools, content).keeping_media(store)
        on_change = options.get("on_change", "append")
        conversation = earlier.continued(rendered, tools, content, on_change)
        appended = conversation.messages[0] is earlier.messages[0]
        # the last message may have been one that the provider did not finish
        return conversation.keeping_media(store, len(earlier.messages) - 1 if appended else 0)

    def _inner_loop(
        self, adapter: ConnectingAdapter, rendered: RenderedPrompt[Any], conversation: Conversation
    ) -> InnerLoop:
        options, parent = self._options, self._options.get("parent")
        return InnerLoop(
            conversation=conversation,
            structured_output=rendered.structured_output,
            param_descriptions=rendered.tool_param_descriptions,
            max_request_tokens=options.get("max_request_tokens"),
            previous_turns=options.get("previous_turns", 0),
            content=self._session.content,
            parent_meter=parent.meter if parent else None,
            config=_config(adapter, rendered, options),
            model=adapter.model,
        )

    def _new_operation(self, adapter: ConnectingAdapter, text: str, *, streamed: bool) -> Operation:
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

    def _approved_calls(self, adapter: ConnectingAdapter) -> ApprovedCalls:
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

    def _adapter_of_call(
        self, adapter: ConnectingAdapter, token: RunToken, nest: Nest
    ) -> AdapterOfCall:
        """Returns the adapters that handlers receive, for runs that are parts of this one."""
        evaluator = adapter.evaluator
        if not isinstance(evaluator, ProviderAdapter):
            return same_adapter(evaluator)
        bus, deadline = self._operation.bus, self._loop.config.deadline
        approver = self._options.get("approver")
        outer, levels = self._options.get("parent"), self._loop.config.max_depth
        levels = min(levels, outer.levels_left) if outer else levels
        session, meter = self._session, self.meter
        parent = ParentRun(token, session, meter, bus, deadline, self._id, approver, levels - 1)
        return nest(evaluator, parent, self._clock)

    def begin(self) -> None:
        """Publishes what the evaluation begins with."""
        for event in self._events:
            self._publish(event)
        self._operation.__enter__()

    def effects(self) -> Effects[PromptResponse[Out] | Restart | TooLong]:
        """Runs the conversation to its end; what it returns says how.

        An error has the progress so far, such as usage and conversation.
        """
        loop = self._loop
        try:
            end = yield from self._converse(self.journal)
            if isinstance(end, Finished) and (connection := self.take_connection()):
                yield Close(connection)
        except VisibilityExpansionRequired as signal:  # of a handler
            end = Restart(signal)
        except ChangedRunError as error:
            wait_on(error, self._log, self._resumption, loop, self._session)
            raise
        except PromptEvaluationError as error:
            self._stop()
            raise_instead(error, loop.failed(error))
        match end:
            case Finished():
                return self._finish(end)
            case Restart(request):
                decisions = self.tools.available.decisions
                return Restart(request.with_progress(loop.meter.usage, decisions, loop.turns))
            case TooLong():
                return end

    @property
    def turns(self) -> int:
        """The requests so far."""
        return self._loop.turns

    def take_connection(self) -> Connection | None:
        """Returns the connection, which the caller closes; `None` if somebody has closed it."""
        is_connected, self._is_connected = self._is_connected, False
        return self._connection if is_connected else None

    def stop(self, error: BaseException | None) -> Conversation:
        """Returns the conversation so far, which can go on; `error` has ended it, if one has."""
        if not isinstance(error, Exception | None) and self.journal is None:
            self._loop = replayed(self._loop, self.tools.log)
        if not self._is_finished:
            self._stop()
        return self._loop.conversation_now

    def end(self, error: BaseException | None) -> None:
        """Publishes that `error` has ended the evaluation, if one has."""
        try:
            if error is not None:
                loop, seconds = self._loop, perf_counter() - self._started
                stopped = stop_event(error, self._operation, loop.usage, loop.turns, seconds)
                if stopped is not None:
                    self._publish(stopped)
        finally:  # an interrupt of an event's handler does not keep the operation open
            self._operation.__exit__(None, error, None)

    def _stop(self) -> None:
        """Makes the conversation one that can go on, with the calls of earlier evaluations."""
        self._loop.stop()
        if not self._is_stopped:
            self._loop.transcript += self.tools.unrepeated_calls()
        self._is_stopped = True

    def _converse(self, journal: Journal | None) -> Effects[Finished | Restart | TooLong]:
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
                return action

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

    def _finish(self, finished: Finished) -> PromptResponse[Out]:
        """Publishes the end of the evaluation and returns its response."""
        self._is_finished = True
        loop, text = self._loop, finished.text
        # Any: parsed by the prompt's own declaration, which is what Out stands for
        output: Any = finished.output
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
            conversation=loop.conversation_now,
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
            action = self._loop.submit(outcomes, self._clock())
        except LimitError:
            self._apply_changes()
            if streamed:
                yield from _finished(calls, outcomes)
            raise
        if isinstance(action, Restart | TooLong):
            self._apply_changes()
        if streamed:
            yield from _finished(calls, outcomes)
        return action

    def _apply_changes(self) -> None:
        """Applies what the last turn opened and closed, since the model has read that it did."""
        for change in self._loop.tool_changes:
            self.tools.available.apply(change)


def _config(
    adapter: ConnectingAdapter,
    rendered: RenderedPrompt[Any],  # Any: a prompt of any output
    options: EvaluationStart,
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
