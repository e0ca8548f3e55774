"""Runs tool calls: from the model's text to the answer that it reads.

A call passes these places. An `Evaluation` receives it in an answer of the provider
and asks `next_batch` which calls run together. `execute` admits the call: it finds the tool and
parses the arguments. It opens a transaction over session and resources and yields the handler,
which `effects.perform` invokes. A failure is undone. The call's entry in the run's log commits it.
Then the executor publishes `ToolInvoked` and returns a `ToolExecutionOutcome`, which the evaluation
submits to the inner loop.

Every mistake of the model or the tool becomes a failed answer. Only `ControlFlow` and exceptions
outside `Exception`, such as `KeyboardInterrupt`, leave this module.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

from ..errors import ControlFlow, message_of
from ..limits import Clock, utc_now
from ..prompt.context import Evaluator, ToolContext, revoke
from ..prompt.errors import (
    OutputRejected,
    PromptError,
    ToolValidationError,
    VisibilityExpansionRequired,
)
from ..prompt.output import OutputCheck
from ..prompt.progressive_disclosure import OpenSectionsParams
from ..prompt.prompt import Prompt
from ..prompt.registry import RESERVED_TOOL_NAMES
from ..prompt.renderer import RenderedPrompt
from ..prompt.tool import MAY_RUN_ON_FORKS, NON_REPEATABLE, AnyTool, ToolHandler, ToolResult
from ..protocols import EventBus, Forkable, Resources, SessionProtocol
from ..resources import NotIsolatedError
from ..runs import RunToken
from ..runtime.events import Operation, ToolInvoked, new_id
from ..visibility import SectionPath, SectionVisibility
from .available_tools import AvailableTools
from .call_history import CallHistory, CallRecord, call_key, messages_of
from .commits import Changes, Commits, Performed
from .effects import Effects, Parallel
from .inner_loop import InnerLoopConfig
from .messages import Message, ToolCall, ToolExecutionOutcome, ToolMessage, sendable
from .nested_runs import ChangedRunError, UndecidedError
from .parallel_calls import ForkedCall
from .run_log import Called, RunLog
from .run_logs import CallLog, Identity
from .tool_answers import (
    check_restart,
    failed,
    requested_sections,
    result_text,
    shorten,
    with_sections,
    without_bytes,
)

__all__ = ["AdapterOfCall", "ToolExecutor", "same_adapter"]

_log = logging.getLogger(__name__)

_MAX_ARGUMENTS = 10_000  # characters of a call that its event has
_NO_VISIBILITY: Mapping[SectionPath, SectionVisibility] = {}

# Any: handlers and results of all tools.
type _Handler = ToolHandler[Any, Any]
type _Result = ToolResult[Any]

_NO_CHANGES: Changes = {}
type AdapterOfCall = Callable[[SessionProtocol, EventBus, Identity | None], Evaluator]
"""Returns the adapter for the evaluations of one call: its session, bus and identity are given."""


class ToolExecutor:
    """Runs the tool calls of one evaluation.

    It publishes events with `publish`. Handlers receive the bus of `operation`, and the adapter
    that `adapter` returns for their call, for runs that are parts of `run`. Each call that has an
    answer gets an entry in `log`. `call_history` has the calls of earlier evaluations of the run.
    """

    # Any: prompts of every output
    def __init__(
        self,
        *,
        prompt: Prompt[Any],
        rendered: RenderedPrompt[Any],
        adapter: AdapterOfCall,
        config: InnerLoopConfig,
        session: SessionProtocol,
        publish: Callable[[object], None],
        operation: Operation,
        call_history: CallHistory | None = None,
        clock: Clock = utc_now,
        run: RunToken | None = None,
    ) -> None:
        self.available = AvailableTools(rendered, session, publish)
        self.can_fork = isinstance(session, Forkable)
        self._prompt = prompt
        self._rendered = rendered
        self._adapter_of_call, self._run = adapter, run
        self._config = config
        self._session = session
        self._resources, self._publish = prompt.resources, publish
        self._operation = operation
        self._id = new_id()
        self._answered = 0
        self.log: RunLog = []
        self._commits = Commits(session, prompt.resources, self.log, operation)
        self._history = call_history or CallHistory()
        self._clock = clock
        self._record = self._history.replay()
        self._repeated: list[CallRecord] = []
        self._notes: dict[str, str] = {}  # for the model, by call

    def has_record(self, call: ToolCall, params: object) -> bool:
        """Whether an earlier evaluation of the run has made this call, which runs once only."""
        return self._record.is_next(call.name, call_key(call, params))

    def next_batch(self, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """Returns the first of `calls` that may run in parallel, or a single one."""
        if not self.can_fork or self._config.parallel_tool_calls != "isolated":
            return calls[:1]
        count = 0
        for call in calls:
            tool = self.available.get(call.name)
            if tool is None or tool.effect not in MAY_RUN_ON_FORKS:
                break
            if tool.approval is not None or call.name in RESERVED_TOOL_NAMES:
                break
            count += 1
        return calls[: max(count, 1)]

    def execute(
        self, call: ToolCall, identity: Identity | None = None
    ) -> Effects[ToolExecutionOutcome]:
        """Runs one call and returns its outcome; a journal passes the call's `identity`.

        Raises `ControlFlow` that an evaluation inside the handler raised.
        """
        if self._operation.observed:
            return self._run_observed(call, identity)
        return self._run_single(call, identity)

    def execute_parallel(
        self,
        calls: Sequence[ToolCall],
        identities: Sequence[Callable[[], Identity | None]],
    ) -> Effects[tuple[list[ToolExecutionOutcome], ControlFlow | UndecidedError | None]]:
        """Runs the calls of a batch in parallel and returns their outcomes.

        `identities` identify each execution of the calls. `ControlFlow` ends the batch: it comes
        with the outcomes of the calls before it; so does a call that waits for runs inside it.
        """
        first = [identify() for identify in identities]
        forks = [self._fork(call, n, first[n]) for n, call in enumerate(calls)]
        yield Parallel([effects for _, effects in filter(None, forks)])
        outcomes: list[ToolExecutionOutcome] = []
        for call, fork, identity, identify in zip(calls, forks, first, identities, strict=True):
            try:
                if isinstance(identity, CallLog):
                    identity.end()
                forked = fork[0] if fork else None
                outcomes.append((yield from self._merge_or_run(call, forked, identify)))
            except (ControlFlow, UndecidedError) as signal:
                if not outcomes:
                    raise
                return outcomes, signal
        return outcomes, None

    def recall(self, call: ToolCall, answer: ToolMessage | None) -> ToolExecutionOutcome:
        """Records a call that is answered already, so that later calls see it; returns its outcome.

        `answer` is `None` for a call that ended in `ControlFlow`.
        """
        message = answer or ToolMessage(call.call_id, "", success=False)
        outcome = ToolExecutionOutcome(call.call_id, message, message.success)
        try:
            tool, handler, params = self.admit(call)
        except ToolValidationError:
            return outcome
        if call.name in RESERVED_TOOL_NAMES:  # runs again, only to see what it opens or closes
            context = self._context(call, self._resources, self._session, self._operation.bus)
            try:
                result: Any = handler(params, context=context)
                self.available.note(result.value, params)
                outcome = with_sections(outcome, result.value, params)
            except VisibilityExpansionRequired as request:
                self.available.note(request, params)
            except PromptError:
                return outcome
        if tool.effect in NON_REPEATABLE:
            record, _ = self._record(call.name, call_key(call, params))
            self._repeated.append(record)
            if answer is not None:
                record.result = ToolResult(answer.content, None, answer.success, media=answer.media)
        return outcome

    def recall_unknown(self, calls: Sequence[ToolCall]) -> None:
        """Records calls that a stopped run has begun, so that none is run again in this run."""
        record = self._history.replay()
        for call in calls:
            try:
                tool, _, params = self.admit(call)
            except ToolValidationError:
                continue
            if tool.effect in NON_REPEATABLE:
                record(call.name, call_key(call, params))

    def unrepeated_calls(self) -> list[Message]:
        """Returns the calls of earlier evaluations of the run that this one has not repeated.

        They are messages for the end of its conversation, which else knows nothing of them. Later
        calls of this method return nothing.
        """
        repeated = {id(record) for record in self._repeated}
        records = [record for record in self._history.records if id(record) not in repeated]
        self._repeated += records
        return messages_of(records)

    def _fork(
        self, call: ToolCall, index: int, identity: Identity | None
    ) -> tuple[ForkedCall, Effects[None]] | None:
        """Returns the call on forks and its effects, or `None` if it is not admitted."""
        try:
            _, handler, params = self.admit(call)
        except ToolValidationError:
            return None
        forked, effects = self.fork(call, handler, params, index, identity=identity)
        return forked, self._in_time(effects)

    def fork(
        self,
        call: ToolCall,
        handler: _Handler,
        params: object,
        index: int = 0,
        *,
        makes: bool = False,
        identity: Identity | None = None,
    ) -> tuple[ForkedCall, Effects[None]]:
        """Returns an admitted call on forks, and the effects that run it; see `can_fork`.

        With `makes` the call may be the first to ask for a resource.
        """
        assert isinstance(self._session, Forkable)  # noqa: S101 - the callers have asked
        forked = ForkedCall(self._session, self._resources, makes=makes, run=self._run)
        bus = forked.session.bus_for(self._operation.bus)
        prompt = copy(self._prompt)  # a prompt with the forked resources
        prompt.resources = forked.resources.prompt_resources
        parts = call, forked.resources, forked.session, bus
        context = self._context(*parts, identity, unanswered=index)
        rendered = replace(self._rendered, prompt=prompt)
        context = replace(context, prompt=prompt, rendered_prompt=rendered)
        effects = forked.effects(partial(handler, params, context=context), self._part(call))
        return forked, _revoke_after(context, effects)

    def _merge_or_run(
        self,
        call: ToolCall,
        forked: ForkedCall | None,
        identify: Callable[[], Identity | None],
    ) -> Effects[ToolExecutionOutcome]:
        """Merges a call that ran on forks; runs it by itself if that is not possible."""
        if forked is not None:
            try:
                return (yield from self.merge(call, forked))
            except NotIsolatedError:
                if self._is_late():
                    return self.refuse(call, "Not run: the deadline has passed.")
        return (yield from self.execute(call, identify()))

    def _is_late(self) -> bool:
        deadline = self._config.deadline
        return deadline is not None and deadline.has_passed(self._clock())

    def _in_time(self, effects: Effects[None]) -> Effects[None]:
        """Runs a call on forks, unless the deadline passed while it waited for a thread."""
        if not self._is_late():
            yield from effects

    def context(self, call: ToolCall) -> ToolContext:
        """Returns the context of a call that has not begun; `revoke` it after use."""
        return self._context(call, self._resources, self._session, self._operation.bus)

    def read(self, call: ToolCall, result: _Result, error: Exception | None) -> tuple[str, bool]:
        """Returns what the model would read of a call that has run, and whether it succeeded."""
        try:
            if error is not None:
                raise error
            content, success = result_text(call.name, result), result.success
        except Exception as failure:
            content, success = failed(message_of(failure)).message, False
        return shorten(sendable(content), self._config.max_result_chars), success

    def merge(self, call: ToolCall, forked: ForkedCall) -> Effects[ToolExecutionOutcome]:
        """Applies a call that ran on forks, and returns its outcome.

        Raises `NotIsolatedError`, and changes nothing, when its preview is out of date.
        """
        return self._run_single(call, forked=forked)

    def refuse(self, call: ToolCall, reason: str) -> ToolExecutionOutcome:
        """Answers a call that does not run."""
        _, _, params = self.admit(call)
        return self._answer(call, perf_counter(), params, failed(reason))

    def replace_arguments(self, call: ToolCall, arguments: str) -> ToolCall:
        """Returns the call with other arguments, which the model reads with its answer."""
        self._notes[call.call_id] = f"The arguments were replaced by {arguments}\n\n"
        return replace(call, arguments=arguments)

    def _part(self, call: ToolCall) -> AbstractContextManager[Callable[[object], None]]:
        # Telemetry stores this name, which the model may have invented.
        name = call.name
        known = self.available.get(name) or name in self._rendered.registry.tool_paths
        return self._operation.part(
            "tool", name if known else "unknown", call_id=call.call_id, text=call.arguments
        )

    def _run_observed(
        self, call: ToolCall, identity: Identity | None
    ) -> Effects[ToolExecutionOutcome]:
        with self._part(call) as set_result:
            outcome = yield from self._run_single(call, identity)
            set_result(outcome)
        return outcome

    def _run_single(
        self,
        call: ToolCall,
        identity: Identity | None = None,
        forked: ForkedCall | None = None,
    ) -> Effects[ToolExecutionOutcome]:
        """Runs one call, or merges it if it ran on forks; parallel calls were announced earlier."""
        started = perf_counter() - (forked.seconds if forked else 0)
        try:
            tool, handler, params = self.admit(call)
        except ToolValidationError as error:
            return self._answer(call, started, None, failed(str(error)), error=error)
        record = None
        if tool.effect in NON_REPEATABLE:
            record, recorded = self._record(call.name, call_key(call, params))
            self._repeated.append(record)
            if not recorded:
                record.call = call
            if recorded or (identity is not None and identity.began):
                result, content = record.result, record.result.content()
                return self._answer(call, started, params, result, content, replayed=True)
        return (
            yield from self._invoke(
                call,
                handler,
                params,
                started=started,
                record=record,
                identity=identity,
                forked=forked,
            )
        )

    def _invoke(
        self,
        call: ToolCall,
        handler: _Handler,
        params: object,
        *,
        started: float,
        record: CallRecord | None,
        identity: Identity | None,
        forked: ForkedCall | None,
    ) -> Effects[ToolExecutionOutcome]:
        """Invokes the handler, commits what it did or undoes it, and answers."""
        is_disclosure = call.name in RESERVED_TOOL_NAMES
        visibility = self.available.visibility() if is_disclosure else _NO_VISIBILITY

        def read(result: _Result) -> tuple[str, bool]:
            content = result_text(call.name, result)
            for media in result.media:
                self._session.content.put(media)
            if result.success and not self._config.supports_dynamic_tools:
                check_restart(result.value, params)
            return content, result.success

        def answer(performed: Performed) -> tuple[ToolExecutionOutcome, _Result]:
            result, content, error, _ = performed
            if isinstance(error, ControlFlow):
                result, content = ToolResult(message=message_of(error)), ""
            elif error is not None:
                result, content = self._failed(call, error, record), ""
            if record is not None and not isinstance(error, ControlFlow):
                record.result = result
            return self._outcome(call, params, result, content, error), result

        invoke = forked.merge if forked else partial(handler, params)
        session, bus = self._session, self._operation.bus
        end = identity.end if isinstance(identity, CallLog) else None
        outcome, result, performed = yield from self._commits.run(
            call,
            lambda resources: self._context(call, resources, session, bus, identity),
            invoke,
            read=read,
            answer=answer,
            end=end,
        )
        self._publish_call(
            call,
            started,
            params,
            result,
            outcome,
            visibility=visibility,
            changes=performed[3],
        )
        signal = performed[2]
        if isinstance(signal, ControlFlow) and not (outcome.request and is_disclosure):
            try:
                raise signal  # from an evaluation inside the handler
            finally:
                del performed, signal  # an exception must not lead to itself by its traceback
        return outcome

    def _failed(self, call: ToolCall, failure: Exception, record: CallRecord | None) -> _Result:
        """Returns the result of a call that failed; raises if a run inside it waits."""
        if isinstance(failure, UndecidedError | ChangedRunError):  # the call does not count
            if record is not None:
                self._record.forget(record)
                self._repeated.pop()
            raise failure
        # a `ToolValidationError` is the model's mistake, and the model reads it
        if not isinstance(failure, ToolValidationError):
            fields = {"tool_name": call.name, "call_id": call.call_id}
            _log.error("Tool handler failed", exc_info=failure, extra=fields)
        return failed(message_of(failure))

    def check_output(
        self,
        call: ToolCall,
        accept: OutputCheck[Any],  # Any: outputs of all prompts
        output: object,
        identity: Identity | None = None,
    ) -> Effects[ToolExecutionOutcome]:
        """Runs a template's `accept` on an answer; a rejection undoes what it did.

        The outcome of a rejection has its reason. Raises what `accept` raises otherwise.
        """

        def answer(performed: Performed) -> tuple[ToolExecutionOutcome, None]:
            message, error = ToolMessage(call.call_id, ""), performed[2]
            if isinstance(error, OutputRejected | ToolValidationError):
                text = sendable(message_of(error))
                message = ToolMessage(call.call_id, text, success=False)
            elif error is not None:
                raise error
            return ToolExecutionOutcome(call.call_id, message, message.success), None

        session, bus = self._session, self._operation.bus
        context = partial(self._context, call, session=session, bus=bus, identity=identity)
        check = partial(accept, output)
        outcome, _, _ = yield from self._commits.run(
            call, context, check, read=_accepted, answer=answer
        )
        return outcome

    def admit(self, call: ToolCall) -> tuple[AnyTool, _Handler, object]:
        """Returns the tool, its handler and the parsed params of a call.

        Raises `ToolValidationError`, whose text the model reads.
        """
        return self.available.admit(call, self._config.max_argument_chars)

    def _answer(
        self,
        call: ToolCall,
        started: float,
        params: object,
        result: _Result,
        content: str = "",
        *,
        replayed: bool = False,
        error: Exception | None = None,
    ) -> ToolExecutionOutcome:
        """Answers a call that does not run."""
        outcome = self._outcome(call, params, result, content, error)
        self.log.append(Called(call, outcome))
        self._publish_call(call, started, params, result, outcome, replayed=replayed)
        return outcome

    def _outcome(
        self,
        call: ToolCall,
        params: object,
        result: _Result,
        content: str,
        error: Exception | None,
    ) -> ToolExecutionOutcome:
        """Returns the outcome of a call with the answer that the model reads."""
        content = self._notes.get(call.call_id, "") + sendable(content or result.message)
        is_disclosure = call.name in RESERVED_TOOL_NAMES
        if not is_disclosure:  # these return sections, which the prompt would show whole
            content = shorten(content, self._config.max_result_chars)
        media = tuple([media.reference for media in result.media])
        message = ToolMessage(call.call_id, content, result.success, media=media)
        request = error if isinstance(error, VisibilityExpansionRequired) else None
        kind = "" if error is None or request is not None else type(error).__qualname__
        outcome = ToolExecutionOutcome(
            call.call_id, message, result.success, error=kind, request=request
        )
        if not is_disclosure:
            return outcome
        outcome = with_sections(outcome, result.value, params)
        if outcome.closed:
            self.available.remember(outcome.closed, SectionVisibility.SUMMARY)
        return outcome

    def _publish_call(
        self,
        call: ToolCall,
        started: float,
        params: object,
        result: _Result,
        outcome: ToolExecutionOutcome,
        *,
        visibility: Mapping[SectionPath, SectionVisibility] = _NO_VISIBILITY,
        replayed: bool = False,
        changes: Changes = _NO_CHANGES,
    ) -> None:
        """Publishes a call that has its entry in the log."""
        self._answered += 1
        self._notes.pop(call.call_id, None)
        is_disclosure = call.name in RESERVED_TOOL_NAMES
        if is_disclosure:
            self.available.note(outcome.request or result.value, params)
        self._publish(
            ToolInvoked(
                name=call.name,
                call_id=call.call_id,
                params=params,
                result=without_bytes(result),
                content=outcome.message.content,
                seconds=perf_counter() - started,
                prompt_name=self._operation.name,
                replayed=replayed,
                requested_sections=requested_sections(params) if is_disclosure else (),
                reason=params.reason if isinstance(params, OpenSectionsParams) else "",
                current_visibility_state=visibility,
                arguments=call.arguments[:_MAX_ARGUMENTS],
                changes=changes,
                session_id=self._session.session_id,
            )
        )

    def _context(
        self,
        call: ToolCall,
        resources: Resources,
        session: SessionProtocol,
        bus: EventBus,
        identity: Identity | None = None,
        *,
        unanswered: int = 0,
    ) -> ToolContext:
        """Returns the context of a call; `unanswered` calls before it have no answer yet."""
        key = f"{self._id}:{self._answered + unanswered}"
        return ToolContext(
            prompt=self._prompt,
            rendered_prompt=self._rendered,
            adapter=self._adapter_of_call(session, bus, identity),
            session=session,
            event_bus=bus,
            deadline=self._config.deadline,
            call_id=call.call_id,
            resources=resources,
            idempotency_key=key if identity is None else identity.idempotency_key,
        )


def _revoke_after(context: ToolContext, effects: Effects[None]) -> Effects[None]:
    try:
        yield from effects
    finally:
        revoke(context)


def _accepted(_: object) -> tuple[str, bool]:
    return "", True


def same_adapter(adapter: Evaluator) -> AdapterOfCall:
    """Returns what gives all calls the same adapter, whose runs are no parts of them."""

    def for_call(*_: object) -> Evaluator:
        return adapter

    return for_call
