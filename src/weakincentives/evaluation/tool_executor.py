"""Runs the model's tool calls and creates the answers to them.

A call is processed as follows. An `Evaluation` receives it in the provider's answer and asks
`next_batch` which calls run together. `execute` admits the call: it finds the tool and parses the
arguments. Then it opens a transaction over the session and the resources and yields the handler,
which `effects.perform` invokes. If the handler fails, its changes are undone. The call is committed
by its entry in the run's log. Then the executor publishes `ToolInvoked` and returns a
`ToolExecutionOutcome`, which the evaluation submits to the inner loop.

Every mistake by the model or the tool becomes a failed answer. Only `ControlFlow` and exceptions
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
from ..locks import RunToken
from ..prompt.context import AnyEvaluator, OutputCheck, ToolContext, revoke
from ..prompt.errors import (
    OutputRejected,
    PromptError,
    ToolError,
    ToolValidationError,
    VisibilityExpansionRequired,
)
from ..prompt.progressive_disclosure import OpenSectionsParams
from ..prompt.registry import RESERVED_TOOL_NAMES
from ..prompt.renderer import AnyRenderedPrompt
from ..prompt.template import AnyPrompt
from ..prompt.tool import (
    MAY_RUN_ON_FORKS,
    NON_REPEATABLE,
    AnyTool,
    AnyToolHandler,
    PromptHandler,
    ToolResult,
)
from ..protocols import EventBus, Forkable, Resources, SessionProtocol
from ..resources import NotIsolatedError
from ..runtime.events import Operation, ToolInvoked, new_id
from ..signatures import AnyFunction
from ..visibility import SectionPath, SectionVisibility
from .available_tools import AvailableTools
from .call_fork import ForkedCall
from .commits import Changes, Commits, Performed, stored
from .earlier_calls import UNKNOWN, EarlierCalls
from .effects import Effects, Parallel, run
from .errors import ChangedRunError
from .inner_loop import RunConfig
from .logged_run import Began, CallKey
from .messages import ToolCall, ToolExecutionOutcome, ToolMessage, sendable
from .run_log import Called, LogSink, OpenCall, RunLog, UndecidedError
from .tool_answers import (
    check_restart,
    failed,
    requested_sections,
    result_text,
    shorten,
    with_sections,
    without_bytes,
)

__all__ = ["AdapterOfCall", "ToolExecutor", "runs_again", "same_adapter"]

_log = logging.getLogger(__name__)

_MAX_ARGUMENTS = 10_000  # characters of a call's arguments in its event
_NO_VISIBILITY: Mapping[SectionPath, SectionVisibility] = {}

type _Result = ToolResult[object]

_NO_CHANGES: Changes = {}
# Any: a `ProviderAdapter`; its methods take prompts, whose type an `Evaluator` cannot name
type AdapterOfCall = Callable[[SessionProtocol, EventBus, OpenCall], Any]
"""Returns the adapter for runs nested in one call, given the call's session and bus."""


class ToolExecutor:
    """Runs the tool calls of one evaluation.

    Events are published with `publish`. Handlers receive the bus of `operation`, and the adapter
    that `adapter` returns for their call, for runs nested in `run`. Each answered call is recorded
    in `log`. A call that must not run twice does not run again when the model repeats it after a
    restart or an interrupt.
    """

    def __init__(
        self,
        *,
        prompt: AnyPrompt,
        rendered: AnyRenderedPrompt,
        adapter: AdapterOfCall,
        config: RunConfig,
        session: SessionProtocol,
        publish: Callable[[object], None],
        operation: Operation,
        log: RunLog | None = None,
        clock: Clock = utc_now,
        run: RunToken | None = None,
    ) -> None:
        self.log = log or RunLog(new_id())
        ids = self.log.ids(session.session_id)
        self.available = AvailableTools(rendered, session, publish, ids)
        self.can_fork = isinstance(session, Forkable)
        self._prompt = prompt
        self._rendered = rendered
        self._adapter_of_call, self._run = adapter, run
        self._config = config
        self._session = session
        self._resources, self._publish = prompt.resources, publish
        self._operation = operation
        self._commits = Commits(session, prompt.resources, self.log, operation)
        self._clock = clock
        registry = rendered.registry
        entries, unknown = self.log.earlier if registry.has_non_repeatable_tools else ((), ())
        self.earlier = EarlierCalls(entries, unknown, registry.get_tool)
        self._notes: dict[str, str] = {}  # notes for the model, by call

    def next_batch(self, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """Returns the calls at the start of `calls` that may run in parallel, or only the first."""
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
        self, call: ToolCall, inside: OpenCall | None = None
    ) -> Effects[ToolExecutionOutcome]:
        """Runs one call and returns its outcome; `inside` keeps the handler's nested runs.

        Raises the `ControlFlow` that a nested evaluation raised.
        """
        inside = inside or self.log.begin_call(f"{self.log.turn}/{call.call_id}", call)
        if self._operation.observed:
            return self._run_observed(call, inside)
        return self._run_single(call, inside)

    def execute_parallel(
        self, calls: Sequence[ToolCall], begin: Sequence[Callable[[], OpenCall]]
    ) -> Effects[tuple[list[ToolExecutionOutcome], ControlFlow | UndecidedError | None]]:
        """Runs the calls of a batch in parallel and returns their outcomes.

        `begin` contains a function for each call, which starts an execution of the call.
        `ControlFlow` ends the batch, and so does a call whose nested runs are suspended; the signal
        is returned with the outcomes of the preceding calls.
        """
        opened = [begin_call() for begin_call in begin]
        forks = [self._fork(call, inside) for call, inside in zip(calls, opened, strict=True)]
        yield Parallel([effects for _, effects in filter(None, forks)])
        outcomes: list[ToolExecutionOutcome] = []
        for fork, inside, begin_call in zip(forks, opened, begin, strict=True):
            try:
                inside.end()
                forked = fork[0] if fork else None
                outcomes.append((yield from self._merge_or_run(inside, forked, begin_call)))
            except (ControlFlow, UndecidedError) as signal:
                for dropped in filter(None, forks[len(outcomes) :]):
                    dropped[0].discard()
                if not outcomes:
                    raise
                return outcomes, signal
        return outcomes, None

    def recall(self, called: Called, *, in_turn: bool = True) -> None:
        """Remembers a call that was already answered, for later calls.

        `in_turn` means that the call belongs to the current turn.
        """
        call, outcome = called.call, called.outcome
        if not called.has_run:
            self.earlier.repeat(call)
        if not in_turn or call.name not in RESERVED_TOOL_NAMES:
            return
        try:
            _, handler, params = self.admit(call)
        except ToolValidationError:
            return
        try:  # run it again, only to find the sections that it opens or closes
            result = handler(params, context=self.context(call))
            if isinstance(result, ToolResult):
                self.available.note(result.value, params)
        except VisibilityExpansionRequired:
            self.available.note(outcome.request, params)
        except PromptError:
            return

    def _fork(self, call: ToolCall, inside: OpenCall) -> tuple[ForkedCall, Effects[None]] | None:
        """Returns the call on forks and its effects, or `None` if the call is not admitted."""
        try:
            _, handler, params = self.admit(call)
        except ToolValidationError:
            return None
        forked, effects = self.fork(inside, handler, params)
        return forked, self._within_deadline(effects)

    def fork(
        self, inside: OpenCall, handler: AnyToolHandler, params: object, *, makes: bool = False
    ) -> tuple[ForkedCall, Effects[None]]:
        """Returns an admitted call on forks, and the effects that run it; see `can_fork`.

        `makes` means that the call may create a resource by being the first to use it.
        """
        assert isinstance(self._session, Forkable)  # the callers have checked
        inside.keeps_changes = True  # the call may have to run again
        forked = ForkedCall(self._session, self._resources, makes=makes, run=self._run)
        bus = forked.session.bus_for(self._operation.bus)
        prompt = copy(self._prompt)  # a prompt with the forked resources
        prompt.resources = forked.resources
        context = self._context(inside, forked.resources, forked.session, bus)
        rendered = replace(self._rendered, prompt=prompt)
        context = replace(context, prompt=prompt, rendered_prompt=rendered)
        effects = forked.effects(partial(handler, params, context=context), self._part(inside.call))
        return forked, _revoke_after(context, effects)

    def _merge_or_run(
        self, inside: OpenCall, forked: ForkedCall | None, begin: Callable[[], OpenCall]
    ) -> Effects[ToolExecutionOutcome]:
        """Merges a call that ran on forks; if that is not possible, runs it again on its own."""
        if forked is None:
            return (yield from self.execute(inside.call, begin()))
        try:
            return (yield from self.merge(inside, forked))
        except NotIsolatedError:
            forked.discard()
            if self._is_late():
                return self.refuse(inside.call, inside.key, "Not run: the deadline has passed.")
        again = begin()
        if forked.is_isolated:
            again.repeat(inside)
        return (yield from self.execute(inside.call, again))

    def _is_late(self) -> bool:
        deadline = self._config.deadline
        return deadline is not None and deadline.has_passed(self._clock())

    def _within_deadline(self, effects: Effects[None]) -> Effects[None]:
        """Runs a call on forks, unless the deadline passed while it was waiting for a thread."""
        if not self._is_late():
            yield from effects

    def context(self, call: ToolCall) -> ToolContext:
        """Returns the context of a call that has not started; `revoke` it after use."""
        inside = self.log.begin_call("", call)
        return self._context(inside, self._resources, self._session, self._operation.bus)

    def read(self, call: ToolCall, result: _Result, error: Exception | None) -> tuple[str, bool]:
        """Returns a finished call's answer to the model, and whether the call succeeded."""
        try:
            if error is not None:
                raise error
            content, success = result_text(call.name, result), result.success
        except Exception as failure:
            content, success = failed(_failure_text(call.name, failure)).message, False
        return shorten(sendable(content), self._config.max_result_chars), success

    def merge(self, inside: OpenCall, forked: ForkedCall) -> Effects[ToolExecutionOutcome]:
        """Applies a call that ran on forks, and returns its outcome.

        Raises `NotIsolatedError`, without changing anything, if its preview is out of date.
        """
        return self._run_single(inside.call, inside, forked)

    def refuse(self, call: ToolCall, key: CallKey, reason: str) -> ToolExecutionOutcome:
        """Answers a call that does not run."""
        _, _, params = self.admit(call)
        return self._answer(call, key, perf_counter(), params, failed(reason))

    def replace_arguments(self, call: ToolCall, arguments: str) -> ToolCall:
        """Returns the call with other arguments, which are added to its answer to the model."""
        self._notes[call.call_id] = f"The arguments were replaced by {arguments}\n\n"
        return replace(call, arguments=arguments)

    def _part(self, call: ToolCall) -> AbstractContextManager[Callable[[object], None]]:
        # Telemetry records this name, even though the model may have invented it.
        name = call.name
        known = self.available.get(name) or name in self._rendered.registry.tool_paths
        return self._operation.part(
            "tool", name if known else "unknown", call_id=call.call_id, text=call.arguments
        )

    def _run_observed(self, call: ToolCall, inside: OpenCall) -> Effects[ToolExecutionOutcome]:
        with self._part(call) as set_result:
            outcome = yield from self._run_single(call, inside)
            set_result(outcome)
        return outcome

    def _run_single(
        self, call: ToolCall, inside: OpenCall, forked: ForkedCall | None = None
    ) -> Effects[ToolExecutionOutcome]:
        """Runs one call, or merges it if it ran on forks; parallel calls were announced earlier."""
        started, key = perf_counter() - (forked.seconds if forked else 0), inside.key
        try:
            tool, handler, params = self.admit(call)
        except ToolValidationError as error:
            if self.log.has_begun(key):
                return self._answer(call, key, started, None, UNKNOWN, replayed=True, began=True)
            return self._answer(call, key, started, None, failed(str(error)), error=error)
        if tool.effect in NON_REPEATABLE:
            if (result := self.earlier.take(call, params)) is not None:
                return self._answer(call, key, started, params, result, replayed=True)
            if self.log.has_begun(key):
                self.earlier.add_unknown(call)
                return self._answer(call, key, started, params, UNKNOWN, replayed=True, began=True)
            if tool.effect == "transactional" and (sink := self.log.sink) is not None:
                begin = partial(
                    self._invoke, partial(handler, params), params, started=started, inside=inside
                )
                return (yield from self._transact(sink, tool.name, begin))
            if not runs_again(tool):
                self.log.entries.append(Began(key))
                yield from stored(self.log)
        invoke = forked.merge if forked else partial(handler, params)
        outcome, result = yield from self._invoke(invoke, params, started=started, inside=inside)
        if tool.effect in NON_REPEATABLE and isinstance(entry := self.log.entries[-1], Called):
            self.log.entries[-1] = entry._replace(result=result)
        return outcome

    def _transact(
        self,
        sink: LogSink,
        name: str,
        begin: Callable[[], Effects[tuple[ToolExecutionOutcome, _Result]]],
    ) -> Effects[ToolExecutionOutcome]:
        """Runs a call whose database writes are committed together with its entry."""
        entries, before = self.log.entries, self._session.snapshot()
        size, ends = len(entries), list[ToolExecutionOutcome | ControlFlow]()

        def perform() -> bool:
            if ends:  # the database is retrying the transaction
                del entries[size:]
                self._session.restore(before)
            try:
                outcome, result = run(begin())
            except ControlFlow as signal:
                ends.append(signal)
                return True
            if isinstance(entry := entries[-1], Called):
                entries[-1] = entry._replace(result=result)
            ends.append(outcome)
            return outcome.success

        _, error = yield partial(sink.transact, self.log, name, perform)
        if error is not None:
            self.log.refusal = error
            raise error
        if isinstance(end := ends[-1], ControlFlow):
            raise end
        return end

    def _invoke(
        self, invoke: AnyFunction, params: object, *, started: float, inside: OpenCall
    ) -> Effects[tuple[ToolExecutionOutcome, _Result]]:
        """Invokes the handler, commits or undoes its changes, and returns the answer."""
        call = inside.call
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
                result, content = self._failed(inside, error), ""
            return self._outcome(call, params, result, content, error), result

        session, bus = self._session, self._operation.bus
        outcome, result, performed = yield from self._commits.run(
            inside,
            lambda resources: self._context(inside, resources, session, bus),
            invoke,
            read=read,
            answer=answer,
        )
        self._publish_call(
            call, started, params, result, outcome, visibility=visibility, changes=performed[3]
        )
        signal = performed[2]
        try:
            if isinstance(signal, ControlFlow) and not (outcome.request and is_disclosure):
                raise signal  # raised by a nested evaluation
            return outcome, result
        finally:
            del performed, signal  # an exception's traceback must not refer to the exception

    def _failed(self, inside: OpenCall, failure: Exception) -> _Result:
        """Returns the result of a failed call; raises if a nested run is suspended or changed."""
        if isinstance(failure, UndecidedError | ChangedRunError):  # the call has no effect
            raise failure
        if failure is inside.refusal:
            self.log.refusal = failure
            raise failure
        call = inside.call
        if not isinstance(failure, ToolError):  # whose text is for the model
            if self._config.raise_handler_errors:
                raise failure
            fields = {"tool_name": call.name, "call_id": call.call_id}
            _log.error("Tool handler failed: %s", call.name, exc_info=failure, extra=fields)
        return failed(_failure_text(call.name, failure))

    def check_output(
        self,
        inside: OpenCall,
        accept: OutputCheck[Any],  # Any: outputs of every type
        output: object,
    ) -> Effects[ToolExecutionOutcome]:
        """Runs a template's `accept` on an answer; a rejection undoes its changes.

        The outcome of a rejection contains the reason. Any other error in `accept` is raised.
        """
        call = inside.call

        def answer(performed: Performed) -> tuple[ToolExecutionOutcome, None]:
            message, error = ToolMessage(call.call_id, ""), performed[2]
            if isinstance(error, OutputRejected | ToolError):
                text = sendable(message_of(error))
                message = ToolMessage(call.call_id, text, success=False)
            elif error is not None:
                raise error
            return ToolExecutionOutcome(call.call_id, message, message.success), None

        session, bus = self._session, self._operation.bus
        outcome, _, _ = yield from self._commits.run(
            inside,
            lambda resources: self._context(inside, resources, session, bus),
            partial(accept, output),
            read=_accepted,
            answer=answer,
        )
        return outcome

    def admit(self, call: ToolCall) -> tuple[AnyTool, AnyToolHandler, object]:
        """Returns the tool, its handler and the parsed params of a call.

        Raises `ToolValidationError`, whose message is for the model, if the call is invalid.
        """
        return self.available.admit(call, self._config.max_argument_chars)

    def _answer(
        self,
        call: ToolCall,
        key: CallKey,
        started: float,
        params: object,
        result: _Result,
        *,
        replayed: bool = False,
        began: bool = False,
        error: Exception | None = None,
    ) -> ToolExecutionOutcome:
        """Answers a call that does not run."""
        content = result.content() if replayed else ""
        outcome = self._outcome(call, params, result, content, error)
        self.log.entries.append(Called(key, call, outcome, began))
        self._publish_call(call, started, params, result, outcome, replayed=replayed)
        return outcome

    def _outcome(
        self, call: ToolCall, params: object, result: _Result, content: str, error: Exception | None
    ) -> ToolExecutionOutcome:
        """Returns the outcome of a call with its answer to the model."""
        content = self._notes.get(call.call_id, "") + sendable(content or result.message)
        is_disclosure = call.name in RESERVED_TOOL_NAMES
        if not is_disclosure:  # disclosure tools return sections, which must not be shortened
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
        """Publishes a call whose entry is in the log."""
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
                run_id=self.log.run_id,
                run_path=self.log.path,
            )
        )

    def _context(
        self, inside: OpenCall, resources: Resources, session: SessionProtocol, bus: EventBus
    ) -> ToolContext:
        return ToolContext(
            prompt=self._prompt,
            rendered_prompt=self._rendered,
            adapter=self._adapter_of_call(session, bus, inside),
            session=session,
            event_bus=bus,
            deadline=self._config.deadline,
            call_id=inside.call.call_id,
            resources=resources,
            idempotency_key=inside.idempotency_key,
        )


def runs_again(tool: AnyTool) -> bool:
    """Whether the tool's handler can run again after its call was undone."""
    return tool.effect not in NON_REPEATABLE or isinstance(tool.handler, PromptHandler)


def _revoke_after(context: ToolContext, effects: Effects[None]) -> Effects[None]:
    try:
        yield from effects
    finally:
        revoke(context)


def _failure_text(tool: str, failure: Exception) -> str:
    """Returns the model's text for an error of a tool; an error without a text is named."""
    text = message_of(failure)
    return f"Tool {tool!r} failed: {text}" if text == type(failure).__name__ else text


def _accepted(_: object) -> tuple[str, bool]:
    return "", True


def same_adapter(adapter: AnyEvaluator) -> AdapterOfCall:
    """Returns a function that gives all calls the same adapter; no runs are nested in them."""

    def for_call(*_: object) -> AnyEvaluator:
        return adapter

    return for_call
