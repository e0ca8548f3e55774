"""`Evaluation` is one evaluation of a run, from its first request to the model's answer.

`Evaluation.effects` defines all steps once, as a generator: start the inner loop, ask the provider,
run tool calls, submit their outcomes. The run performs these effects.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

from ..content import to_content
from ..errors import ControlFlow
from ..limits import Clock, Meter
from ..locks import RunToken
from ..prompt.errors import VisibilityExpansionRequired
from ..prompt.registry import RESERVED_TOOL_NAMES
from ..prompt.renderer import AnyRenderedPrompt, RenderedPrompt
from ..runtime.events import Operation, PromptExecuted
from .adapter import (
    ConnectingAdapter,
    Connection,
    EvaluationStart,
    ParentRun,
    ProviderAdapter,
    config_for,
    publisher,
    session_in,
    source_of,
)
from .approving import ApprovedCalls
from .available_tools import with_disclosure_tools, with_provider_tools
from .commits import stored
from .config import inherited
from .conversation import Conversation, begin, rendered_tools
from .effects import Close, Effects
from .errors import ChangedRunError, LimitError, PromptEvaluationError, raise_instead
from .evaluation_events import opening_events, stop_event
from .inner_loop import Action, Finished, InnerLoop, ProviderRequest, Restart, ToolCalls, TooLong
from .logged_run import (
    ACCEPT,
    Answered,
    CallKey,
    LoggedCall,
    ProviderFailure,
    Rendered,
    SectionRequest,
)
from .messages import AssistantMessage, ToolCall, ToolExecutionOutcome, UserMessage
from .replay import Replay
from .requests import ProviderRequests
from .response import AnswerRejected, PromptResponse, ToolCallFinished, ToolCallStarted
from .run_limits import RunLimits
from .run_log import Called, UndecidedError, drop_unfinished, evaluation_usage, replay
from .suspension import RunSuspended, restore_suspension, suspend
from .tool_executor import AdapterOfCall, ToolExecutor

__all__ = ["Evaluation"]

type Nest = Callable[[ProviderAdapter, ParentRun, Clock], AdapterOfCall]


class Evaluation[Out]:
    """One evaluation by an adapter that connects to its provider, as part of the run `token`.

    Call `begin`, perform `effects`, then call `end`, with the exception if one ended the
    evaluation. `nest` creates the adapters that handlers receive for nested runs.
    """

    def __init__(
        self,
        adapter: ConnectingAdapter,
        rendered: RenderedPrompt[Out],
        options: EvaluationStart,
        token: RunToken,
        nest: Nest,
    ) -> None:
        self._started = perf_counter()
        prompt, session = source_of(rendered), session_in(options)
        self._log, self._resumes = options["log"], options.get("resumes", False)
        connection = self._connection = adapter.connect(rendered)
        self._open: Connection | None = connection
        rendered = with_provider_tools(
            rendered, connection.provider_tools, can_ask=options.get("approver") is not None
        )
        self._clock = adapter.clock
        self._session, self._prompt, self._options = session, prompt, options
        self._publish = publisher(session, options.get("bus"))
        self._ids = self._log.ids(session.session_id)
        conversation = self._begin_log(rendered)
        self.begins = self._log.begins
        rendered = with_disclosure_tools(rendered, conversation)
        self._new_loop = self._inner_loop(adapter, rendered, conversation)
        self._loop = self._new_loop()
        self._operation = self._new_operation(adapter, rendered.text, streamed=token.streamed)
        self.meter = self._loop.meter
        self._limits = self._run_limits(adapter)
        self._requests = ProviderRequests(
            connection, self._loop, self._limits, self._operation, self._publish, log=self._log
        )
        self.tools = ToolExecutor(
            prompt=prompt,
            rendered=rendered,
            adapter=self._adapter_of_call(adapter, token, nest),
            config=self._loop.config,
            session=session,
            publish=self._publish,
            operation=self._operation,
            log=self._log,
            clock=adapter.clock,
            run=token,
        )
        self._approved = self._approved_calls(adapter)
        log = self._log
        is_nested = log.caller is not None and (log.keeps_changes or log.is_repeated)
        self._replay = Replay(self.tools, prompt, session) if is_nested else None
        self._feedback: UserMessage | None = None  # the last rejection that was published
        self._has_ended = False  # if true, every call has an answer
        self._events = opening_events(
            rendered, prompt, self._operation, conversation, options, ids=self._ids
        )

    def _begin_log(self, rendered: AnyRenderedPrompt) -> Conversation:
        """Returns the initial conversation, and logs that the evaluation starts with it."""
        log = self._log
        log.continued = self._options.get("conversation")
        entry = log.entries[log.begins] if self._resumes else None
        if isinstance(entry, Rendered) and entry.conversation is not None:
            return entry.conversation
        conversation = self._initial_conversation(rendered)
        rendering = self._options.get("rendering")
        log.entries.append(
            Rendered(conversation=conversation)
            if rendering is None
            else replace(rendering, conversation=conversation)
        )
        return conversation

    def _initial_conversation(self, rendered: AnyRenderedPrompt) -> Conversation:
        """Returns the initial conversation; its media bytes are stored in the session."""
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
        # the last message may be an answer that the provider did not finish
        return conversation.keeping_media(store, len(earlier.messages) - 1 if appended else 0)

    def _inner_loop(
        self, adapter: ConnectingAdapter, rendered: AnyRenderedPrompt, conversation: Conversation
    ) -> Callable[[], InnerLoop]:
        options, parent = self._options, self._options.get("parent")
        config, log = config_for(adapter, rendered, options), self._log
        forces = config.settings is not None and config.settings.forces_call
        return partial(
            InnerLoop,
            conversation=conversation,
            structured_output=rendered.structured_output,
            param_descriptions=rendered.tool_param_descriptions,
            max_request_tokens=options.get("max_request_tokens"),
            content=self._session.content,
            meter=Meter(config.budget, parent.meter if parent else None),
            config=config,
            has_called=forces and any(map(_is_call, log.entries)),
        )

    def _run_limits(self, adapter: ConnectingAdapter) -> RunLimits:
        if self._log.record.entries:
            self.meter.load(self._log.recorded_usage(), adapter.model)
        turns = self._options.get("previous_turns", 0)
        return RunLimits(self._loop.config, self.meter, adapter.clock, adapter.model, turns)

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
            parent=parent.operation if parent else None,
            **self._ids,
        )

    def _approved_calls(self, adapter: ConnectingAdapter) -> ApprovedCalls:
        approver = self._options.get("approver")
        caller = self._log.caller
        can_suspend = approver is None and (caller is None or caller.can_suspend)
        limits, deadline = self._limits, self._loop.config.deadline
        return ApprovedCalls(
            self.tools,
            self._session,
            self._publish,
            approver,
            # does not use `self`: a reference cycle would leave evaluations to the garbage
            # collector
            check_limits=lambda expired: limits.check_calls(1, expired=expired),
            seconds_left=lambda: adapter.seconds_left(deadline),
            can_suspend=can_suspend,
            streamed=self._operation.streamed,
        )

    def _adapter_of_call(
        self, adapter: ConnectingAdapter, token: RunToken, nest: Nest
    ) -> AdapterOfCall:
        """Returns a function that creates the adapters for runs nested in this one's tool calls."""
        bus, deadline = self._operation.bus, self._loop.config.deadline
        approver = self._options.get("approver")
        outer, levels = self._options.get("parent"), self._loop.config.max_depth
        levels = min(levels, outer.levels_left) if outer else levels
        config = inherited(self._options.get("config"), self._loop.config.prices)
        parent = ParentRun(token, self.meter, bus, deadline, approver, levels - 1, config)
        return nest(adapter, parent, self._clock)

    def begin(self) -> None:
        """Publishes the initial events, unless a durable run has already done so."""
        if self._log.sink is None or not self._resumes:
            for event in self._events:
                self._publish(event)
        self._operation.__enter__()

    def effects(self) -> Effects[PromptResponse[Out] | Restart | TooLong]:
        """Runs the conversation and returns how it ended.

        An error carries the progress so far, such as the usage and the conversation.
        """
        loop = self._loop
        try:
            end = yield from self._converse()
            if isinstance(end, Finished) and (connection := self.take_connection()):
                yield Close(connection)
        except VisibilityExpansionRequired as signal:  # raised by a handler
            end = Restart(signal)
        except ChangedRunError as error:
            self._log.refusal = error
            if self._resumes:
                restore_suspension(self._log, self._session)
            raise
        except PromptEvaluationError as error:
            yield from stored(self._log)
            self._apply_changes()
            self._stop()
            raise_instead(error, loop.failed(error))
        match end:
            case Finished():
                if (delta := self._requests.last_delta(end.output)) is not None:
                    yield delta
                return self._finish(end)
            case Restart(request):
                decisions = self.tools.available.decisions
                return Restart(request.with_progress(loop.meter.usage, decisions, loop.turns))
            case TooLong():
                return end

    @property
    def turns(self) -> int:
        """The number of requests so far."""
        return self._loop.turns

    def take_connection(self) -> Connection | None:
        """Returns the connection, which the caller must close; `None` if it is already closed."""
        connection, self._open = self._open, None
        return connection

    def stop(self, error: BaseException | None) -> Conversation:
        """Returns the conversation so far, ready to be continued; `error` is why it stopped."""
        if not isinstance(error, Exception | None):
            return self.so_far()
        self._stop(suspended=isinstance(error, RunSuspended))
        return self._loop.conversation_now

    def so_far(self, size: int | None = None) -> Conversation:
        """Returns the conversation after the first `size` log entries, or after all of them."""
        again, entries = self._new_loop(), self._log.entries[self.begins : size]
        replay(again, entries, self.tools.available.outcome_of)
        if size in (None, len(self._log.entries)):
            again.running = self._loop.running
        else:  # the meter has counted what came later
            again.meter = Meter(
                tokens=evaluation_usage(self._log.to_value(size), self.begins).usage
            )
        again.stop()
        again.transcript += self.tools.earlier.rest()
        return again.conversation_now

    def end(self, error: BaseException | None) -> None:
        """Ends the evaluation, and publishes an event if `error` ended it."""
        try:
            if error is not None:
                loop, seconds = self._loop, perf_counter() - self._started
                stopped = stop_event(
                    error, self._operation, loop.usage, loop.turns, seconds, ids=self._ids
                )
                if stopped is not None:
                    self._publish(stopped)
        finally:  # even an interrupt in an event handler must not leave the operation open
            self._operation.__exit__(None, error, None)

    def _stop(self, *, suspended: bool = False) -> None:
        """Completes the conversation with earlier evaluations' calls, so that it can continue."""
        if not self._has_ended:
            self._loop.stop(suspended=suspended)
            self._loop.transcript += self.tools.earlier.rest()
        self._has_ended = True

    def _converse(self) -> Effects[Finished | Restart | TooLong]:
        action = self._start()
        if isinstance(action, Finished):  # the run was interrupted after the answer
            action = yield from self._check_output(action)
        while True:
            if isinstance(action, ToolCalls):
                action = yield from self._run_calls(action)
            elif isinstance(action, ProviderRequest):
                try:
                    repeated = self._repeat_answer(action) if self._log.is_repeated else None
                    action = repeated or (yield from self._send(action))
                    if isinstance(action, Finished):
                        action = yield from self._check_output(action)
                except PromptEvaluationError:
                    self._publish_rejection()
                    raise
                rejected = self._publish_rejection()
                if self._operation.streamed and rejected is not None:
                    yield rejected
            else:
                return action

    def _start(self) -> Action:
        """Returns the first request, or the pending calls of a suspended run."""
        if not self._resumes:
            return self._loop.start()
        log, tools = self._log, self.tools
        entries = log.entries[self.begins :]
        action = replay(self._loop, entries, tools.available.outcome_of, tools.available.restore)
        for entry in entries:
            if isinstance(entry, LoggedCall):
                outcome = tools.available.outcome_of(entry)
                called = Called(entry.key, entry.call, outcome, entry.has_run)
                tools.recall(called, in_turn=entry.key.startswith(f"{log.turn}/"))
            match entry:
                case Answered(ProviderFailure(fell_back=True) as failure):
                    self._connection.fall_back(failure.to_error())
                case _:
                    pass
        match entries[-1]:
            case Answered(ProviderFailure(fell_back=False) as failure) if log.sink is not None:
                raise failure.to_error()  # this failure ended the evaluation
            case LoggedCall(call=call, request=SectionRequest() as request) if (
                call.name not in RESERVED_TOOL_NAMES
            ):  # the call's handler ended the evaluation
                return Restart(request.to_error())
            case _:
                pass
        if isinstance(action, ProviderRequest):
            drop_unfinished(self._loop)
        elif isinstance(action, Restart | TooLong):
            self._apply_changes()
        return action

    def _suspend(self, calls: Sequence[ToolCall]) -> Effects[RunSuspended]:
        """Returns the error that suspends the run until there is a decision on `calls`."""
        later = list(zip(calls, self._log.keys(calls), strict=True))[1:]
        yield from self._approved.ask_later(later)
        return suspend(self._log, self._prompt, self._session)

    def _repeat_answer(self, request: ProviderRequest) -> Action | None:
        """Passes the next recorded answer to the inner loop, or raises the next failure."""
        while (answered := self._log.next_recorded(Answered)) is not None:
            self._log.add_answer(answered)
            reply = answered.reply
            if isinstance(reply, ProviderFailure) and reply.fell_back:
                self._connection.fall_back(reply.to_error())
                continue
            for change in request.changes:
                self.tools.available.apply(change)
            if isinstance(reply, AssistantMessage):
                return self._loop.receive(reply)
            if reply.arrived is not None:
                self._loop.transcript.append(reply.arrived)
            raise reply.to_error()
        return None

    def _send(self, request: ProviderRequest) -> Effects[Action]:
        """Asks for the model's next message and passes it to the inner loop."""
        for change in request.changes:
            self.tools.available.apply(change)
        try:
            self._limits.reserve_request(request.turn - 1)
        except LimitError:
            self._loop.turns -= 1  # the request is not sent
            raise
        if request.changes and self._operation.streamed:
            for message in request.tool_messages:  # noqa: UP028 - `yield from` takes no outcomes
                yield message
        answer = yield from self._requests.send(request)
        yield from stored(self._log)
        return self._loop.receive(answer)

    def _check_output(self, finished: Finished) -> Effects[Action]:
        """Checks the answer with the template's `accept`; the model must correct a rejected one."""
        accept = self._prompt.template.accept
        if accept is None:
            return finished
        # The check runs as a pseudo call, so that it is logged; no tool can have this name.
        call = ToolCall(f"accept_{self._loop.turns}", ACCEPT, finished.text)
        key, last = f"{self._log.turn}/{ACCEPT}", self._log.entries[-1]
        if isinstance(last, LoggedCall) and last.key == key:
            return finished
        inside = self._log.begin_call(key, call)
        outcome = yield from self.tools.check_output(inside, accept, finished.output)
        yield from stored(self._log)
        if outcome.success:
            return finished
        return self._loop.reject(outcome.message.content)

    def _publish_rejection(self) -> AnswerRejected | None:
        """Publishes and returns an event if the model's answer was rejected."""
        match self._loop.transcript[-1]:
            case UserMessage(str() as reason, repair=True) as feedback if (
                feedback is not self._feedback
            ):
                self._feedback = feedback
                rejected = AnswerRejected(reason, **self._ids)
                self._publish(rejected)
                return rejected
            case _:
                return None

    def _finish(self, finished: Finished) -> PromptResponse[Out]:
        """Publishes the end of the evaluation and returns its response."""
        self._has_ended = True
        loop, text = self._loop, finished.text
        # Any: parsed as the prompt's declared output type, which is Out
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
                **self._ids,
            )
        )
        response: PromptResponse[Out] = PromptResponse(
            prompt_name=self._operation.name,
            text=text,
            output=output,
            usage=loop.usage,
            turns=loop.turns,
            conversation=loop.conversation_now,
            session=self._session,
        )
        self._operation.set_result(response)
        return response

    def _run_calls(self, action: ToolCalls) -> Effects[Action]:
        """Runs the first of the calls, in parallel if allowed, and submits their outcomes."""
        keys = self._log.keys(action.calls)
        recorded = self._log.next_recorded(LoggedCall, keys[0]) if self._log.is_repeated else None
        if recorded is not None:
            calls = action.calls[:1]
        else:
            calls = self._batch(action.calls, keys)
            calls = self.tools.next_batch(calls)
            try:
                calls = self._limits.reserve_calls(calls, already_started=self._has_started(keys))
            except LimitError:
                if not self._loop.requests:
                    raise
                return self._restart()  # opens the sections that the turn has requested so far
        if self._operation.streamed:
            for started in calls:
                yield ToolCallStarted(started)
        outcomes, signal = yield from self._execute_calls(calls, keys, recorded)
        yield from stored(self._log)
        if not isinstance(signal, UndecidedError):
            next_action = yield from self._submit(calls, outcomes)
            if signal is not None:
                raise signal
            return next_action
        # The pending call and the calls after it have not been run.
        self._limits.release_calls(0 if recorded else len(calls) - len(outcomes))
        self._loop.running = ()
        if outcomes:
            yield from self._submit(calls, outcomes)
        raise (yield from self._suspend(action.calls[len(outcomes) :])) from None

    def _batch(self, calls: tuple[ToolCall, ...], keys: Sequence[CallKey]) -> tuple[ToolCall, ...]:
        """Returns the turn's first calls; a call with suspended nested runs is returned alone."""
        known = self._log.record.inside
        for index, key in enumerate(keys if known else ()):
            if key in known:
                return calls[: max(index, 1)]
        return calls

    def _has_started(self, keys: Sequence[CallKey]) -> bool:
        """Whether one of the next calls ran before and started nested runs."""
        known = self._log.record.inside
        return bool(known) and any(key in known for key in keys)

    def _execute_calls(
        self, calls: tuple[ToolCall, ...], keys: Sequence[CallKey], recorded: LoggedCall | None
    ) -> Effects[tuple[Sequence[ToolExecutionOutcome], ControlFlow | UndecidedError | None]]:
        """Runs the first calls of a turn, or repeats a recorded call."""
        call = calls[0]
        if recorded is None and not self._has_started(keys):
            self._limits.check_calls(len(calls))
        if recorded is not None or len(calls) > 1:
            self._set_running(calls)
        try:
            if recorded is not None and self._replay is not None:
                inside = self._approved.begin(recorded.call, keys[0])
                return [(yield from self._replay.repeat(recorded, inside))], None
            if len(calls) == 1:
                execute = partial(self._approved.execute, call, keys[0], self._set_running)
                if self._replay is not None:
                    execute = partial(self._replay.record, execute, call.name)
                # not stored in a variable: an interrupt's traceback would keep the effects
                # unfinished
                return [(yield from execute())], None
            begin = [
                partial(self._approved.begin, *pair) for pair in zip(calls, keys, strict=False)
            ]
            return (yield from self.tools.execute_parallel(calls, begin))
        except UndecidedError as undecided:
            return [], undecided

    def _set_running(self, calls: tuple[ToolCall, ...]) -> None:
        self._loop.running = calls

    def _submit(
        self, calls: Sequence[ToolCall], outcomes: Sequence[ToolExecutionOutcome]
    ) -> Effects[Action]:
        """Submits the outcomes of calls to the inner loop and returns the next action."""
        # Submit before the stream's reader can end the run, because these calls have already run.
        action = self._loop.submit(outcomes)
        if isinstance(action, Restart | TooLong):
            self._apply_changes()
        if self._operation.streamed:
            for call, outcome in zip(calls, outcomes, strict=False):
                yield ToolCallFinished(call, outcome.message)
        return action

    def _restart(self) -> Restart:
        self._apply_changes()
        return self._loop.restart()

    def _apply_changes(self) -> None:
        """Applies the sections that the last turn opened and closed.

        The model has already been told about them.
        """
        for change in self._loop.tool_changes:
            self.tools.available.apply(change)


def _is_call(entry: object) -> bool:
    """Returns whether the model answered with a tool call."""
    return isinstance(entry, Answered) and bool(getattr(entry.reply, "tool_calls", ()))
