"""One tool call from the model's text to the answer it gets: parse, run in a transaction, render,
publish.

Whatever the model or the tool does wrong becomes a failed answer. Only control flow and what is no
`Exception` leave this module.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from .. import serde
from ..errors import ControlFlow, SerdeError, message_of, plain_text
from ..prompt.context import Evaluator, ToolContext, revoke
from ..prompt.errors import PromptError, ToolValidationError, VisibilityExpansionRequired
from ..prompt.model_json import read_without_nulls
from ..prompt.progressive_disclosure import (
    CloseSectionParams,
    CloseSectionResult,
    OpenSectionsParams,
    ReadSectionParams,
    ReadSectionResult,
    disclosure_handler,
    how_to_open,
)
from ..prompt.registry import RESERVED_TOOL_NAMES
from ..prompt.tool import (
    NON_REPEATABLE,
    AnyTool,
    Effect,
    ToolHandler,
    ToolResult,
)
from ..protocols import EventBus, Forkable, Resources, SessionProtocol
from ..resources import NotIsolatedError
from ..runtime.events import Operation, ToolInvoked, ToolsInjected, ToolsWithdrawn, new_id
from ..runtime.transactions import tool_transaction
from ..visibility import SectionDecisions, SectionPath, SectionVisibility, SetVisibilityOverride
from .call_history import CallHistory, CallRecord
from .inner_loop import InnerLoopConfig
from .isolation import Effects, Isolated, run, run_async
from .messages import ToolCall, ToolExecutionOutcome, ToolMessage, sendable

if TYPE_CHECKING:
    from ..prompt.prompt import Prompt
    from ..prompt.renderer import RenderedPrompt

__all__ = ["CallIdentity", "ToolExecutor"]

_log = logging.getLogger(__name__)

_MAX_FAILURE = 1_000
_MAX_REFUSED_ARGUMENTS = 10_000
_NO_VISIBILITY: Mapping[tuple[str, ...], SectionVisibility] = {}


@dataclass(frozen=True, slots=True)
class CallIdentity:
    """How a journal knows a call: by a key of its own, and by whether the call was begun before.

    A call that was `begun` before and must not run twice is answered as of unknown outcome.
    """

    idempotency_key: str
    begun: bool = False


class ToolExecutor:
    """Runs the tool calls of one evaluation, and knows which sections are open and which tools
    available in it.

    `publish` is for events, the bus of `work` for handlers, and `adapter` for the evaluations that
    they run themselves. `call_history` has the calls that earlier evaluations of the run made.
    """

    def __init__(
        self,
        *,
        prompt: "Prompt[Any]",
        rendered: "RenderedPrompt[Any]",
        adapter: Evaluator,
        config: InnerLoopConfig,
        session: SessionProtocol,
        publish: Callable[[object], None],
        work: Operation,
        call_history: CallHistory | None = None,
    ) -> None:
        isolated = config.parallel_tool_calls == "isolated"
        self._forkable = session if isolated and isinstance(session, Forkable) else None
        self._prompt = prompt
        self._resources = prompt.resources
        self._rendered = rendered
        self._deadline = config.deadline
        self._dynamic = config.supports_dynamic_tools
        self._max_argument_chars = config.max_argument_chars
        self._max_result_chars = config.max_result_chars
        self._adapter = adapter
        self._session = session
        self._publish = publish
        self._work = work
        self._tools: dict[str, AnyTool] = {tool.name: tool for tool in rendered.tools}
        self._view = rendered.view.copy()  # the same rendered prompt may be evaluated elsewhere
        self._arriving: set[str] = set()  # names of the tools of sections that this turn has read
        self._held: ControlFlow | None = None
        self._id = new_id()
        self._answered = 0
        self._record = (CallHistory() if call_history is None else call_history).replay()

    def next_batch(self, calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
        """The first of `calls` that may run at once; one of them, if they run in order; none if the
        evaluation ends.
        """
        if self._held is not None:  # the first of them has run and is not told again
            return ()
        if self._forkable is None:
            return calls[:1]
        count = 0
        for call in calls:
            tool = self._tools.get(call.name)
            if tool is None or tool.effect in NON_REPEATABLE or call.name in RESERVED_TOOL_NAMES:
                break
            count += 1
        return calls[: max(count, 1)]

    def execute(
        self, calls: Sequence[ToolCall], identity: CallIdentity | None = None
    ) -> tuple[ToolExecutionOutcome, ...]:
        """Runs the calls of `next_batch`, several each in a thread of its own.

        A journal gives a single call its `identity`.
        When one of several raises `ControlFlow`, those before it are answered first: the next time
        it is raised.
        """
        return run(self._calls(calls, identity))

    async def execute_async(self, calls: Sequence[ToolCall]) -> tuple[ToolExecutionOutcome, ...]:
        """As `execute`; a plain handler runs in a thread, which a cancellation waits for before it
        undoes the call.
        """
        return await run_async(self._calls(calls))

    def effect_of(self, call: ToolCall) -> Effect | None:
        """What it means to run this call again; `None` for an unknown tool."""
        tool = self._tools.get(call.name)
        return None if tool is None else tool.effect

    @property
    def decisions(self) -> SectionDecisions:
        """How the sections stand in this evaluation."""
        return self._view.decisions

    def recall(self, call: ToolCall, answer: ToolMessage | None) -> None:
        """Takes note of a call that was run elsewhere, and of its answer if there was one."""
        try:
            tool, handler, params = self._admit(call)
        except ToolValidationError:
            return
        if call.name in RESERVED_TOOL_NAMES:  # run again for what it decides; it changes nothing
            try:
                result: Any = handler(
                    params,
                    context=self._context(call, self._resources, self._session, self._work.bus),
                )
                self._note(result.value, params)
            except VisibilityExpansionRequired as request:
                self._note(request, params)
            except PromptError:
                return
        entry, _ = self._entry(call, params) if tool.effect in NON_REPEATABLE else (None, False)
        if entry is not None and answer is not None:
            entry.result = ToolResult(answer.content, success=answer.success)

    def named(self, names: Sequence[str]) -> tuple[AnyTool, ...]:
        """The tools of these names, open or not.

        Raises `LookupError` for one that the prompt does not have.
        """
        found = [self._rendered.view.registry.get_tool(name) for name in names]
        if None in found:
            raise LookupError(f"the prompt has no tool {names[found.index(None)]!r}")
        return tuple([tool for tool in found if tool is not None])

    def apply(self, change: ToolExecutionOutcome) -> None:
        """Makes a change of the available tools effective, now that the turn is over."""
        key, session_id = change.section_key, self._session.session_id
        gone = tuple(
            [name for name in change.closed_tools if self._tools.pop(name, None) is not None]
        )
        if gone:
            self._publish(ToolsWithdrawn(gone, key, session_id=session_id))
        self._arriving.clear()
        if change.opened:
            self._view = self._view.with_visibility(
                dict.fromkeys(change.opened, SectionVisibility.FULL)
            )
        added: list[str] = []
        for tool in change.expanded_tools:
            if tool.name in self._tools:
                _log.warning(
                    "Skipping duplicate tool during injection", extra={"tool_name": tool.name}
                )
                continue
            added.append(tool.name)
            self._tools[tool.name] = tool
        for path in change.opened:
            self._remember(path, SectionVisibility.FULL)
        if added:
            told = {"section_key": key, "tool_count": len(added), "tool_names": added}
            _log.info("Injected tools from section expansion", extra=told)
            self._publish(ToolsInjected(tuple(added), key, session_id=session_id))

    def _calls(
        self, calls: Sequence[ToolCall], identity: CallIdentity | None = None
    ) -> Effects[tuple[ToolExecutionOutcome, ...]]:
        if self._held is not None:
            raise self._held
        if len(calls) == 1:
            return ((yield from self._run_single(calls[0], identity)),)
        beside = [self._isolate(call, at) for at, call in enumerate(calls)]
        yield [flow for _, flow in filter(None, beside)]
        outcomes: list[ToolExecutionOutcome] = []
        for call, isolated in zip(calls, beside, strict=True):
            try:
                try:
                    replayed = (
                        self._steps(call, isolated[0]) if isolated else self._run_single(call)
                    )
                    outcomes.append((yield from replayed))
                except NotIsolatedError:
                    outcomes.append((yield from self._run_single(call)))
            except ControlFlow as signal:
                if not outcomes:
                    raise
                self._held = signal
                break
        return tuple(outcomes)

    def _isolate(self, call: ToolCall, at: int) -> tuple[Isolated, Effects[None]] | None:
        """A run of the call on forks, and how it goes; `None` where it is not admitted."""
        try:
            _, handler, params = self._admit(call)
        except ToolValidationError:
            return None
        assert self._forkable is not None  # noqa: S101 - else no calls run at once
        isolated = Isolated(self._forkable, self._resources)
        bus = isolated.session.bus_for(self._work.bus)
        prompt = copy(self._prompt)  # one whose resources are the forks too
        prompt.resources = isolated.resources.prompt_resources
        context = replace(
            self._context(call, isolated.resources, isolated.session, bus, after=at),
            prompt=prompt,
            rendered_prompt=replace(self._rendered, prompt=prompt),
        )
        flow = isolated.flow(partial(handler, params, context=context), self._part(call))
        return isolated, _revoking(context, flow)

    def _part(self, call: ToolCall) -> AbstractContextManager[Callable[[object], None]]:
        # A name that the model made up is its words, and telemetry keeps names.
        name = (
            call.name
            if call.name in self._tools or call.name in self._rendered.registry.tool_paths
            else "unknown"
        )
        return self._work.part("tool", name, call_id=call.call_id, text=call.arguments)

    def _run_single(
        self, call: ToolCall, identity: CallIdentity | None = None
    ) -> Effects[ToolExecutionOutcome]:
        """Runs one call and notifies listeners; parallel calls were announced earlier."""
        run_call = self._run_observed if self._work.observed else self._steps
        return run_call(call, None, identity)

    def _run_observed(
        self, call: ToolCall, isolated: None, identity: CallIdentity | None
    ) -> Effects[ToolExecutionOutcome]:
        with self._part(call) as set_result:
            outcome = yield from self._steps(call, isolated, identity)
            set_result(outcome)
        return outcome

    def _steps(
        self, call: ToolCall, isolated: Isolated | None, identity: CallIdentity | None = None
    ) -> Effects[ToolExecutionOutcome]:
        """From the model's text to the answer it gets."""
        started = perf_counter() - (isolated.seconds if isolated else 0)
        try:
            tool, handler, params = self._admit(call)
        except ToolValidationError as error:
            return self._answer(call, started, None, _failure(str(error)), error=error)
        entry, again = self._entry(call, params) if tool.effect in NON_REPEATABLE else (None, False)
        if entry is not None and (again or (identity is not None and identity.begun)):
            return self._answer(
                call, started, params, entry.result, entry.result.content(), replayed=True
            )
        visibility, content = _NO_VISIBILITY, ""
        raised: Exception | None = None
        try:  # all of it in this generator, since a StopIteration cannot leave one
            if call.name in RESERVED_TOOL_NAMES:
                visibility = {
                    node.path: shown for node, shown in self._view.visible_sections().items()
                }
            with (
                self._resources.for_call() as resources,
                tool_transaction(self._session, resources, call.name) as transaction,
            ):
                try:
                    context = self._context(
                        call, resources, self._session, self._work.bus, identity=identity
                    )
                    try:
                        result = _result_of(
                            (
                                yield isolated.replay
                                if isolated
                                else partial(handler, params, context=context)
                            )
                        )
                        content = _content(result)
                    finally:
                        revoke(context)
                    if not result.success:
                        transaction.rollback()
                    elif not self._dynamic:
                        _check_restart(result.value, params)
                    resources.close()  # what they do then is the call's doing
                    transaction.end()
                # here too, lest an interrupt at the block's exit leave things half done
                except BaseException as error:
                    transaction.end(error)
                    raise
        except ControlFlow as signal:
            told = ToolResult[Any](message=message_of(signal))
            outcome = self._answer(call, started, params, told, visibility=visibility, error=signal)
            if outcome.request is not None and call.name in RESERVED_TOOL_NAMES:
                return outcome
            raise  # from an evaluation inside the handler
        # a limit of a nested evaluation too: our own are checked before the next step
        except Exception as error:
            # that is the model's mistake, and it is told
            if not isinstance(error, ToolValidationError):
                _log.exception(
                    "Tool handler failed", extra={"tool_name": call.name, "call_id": call.call_id}
                )
            raised, result, content = error, _failure(message_of(error)), ""
        if entry is not None:
            entry.result = result
        return self._answer(
            call, started, params, result, content, visibility=visibility, error=raised
        )

    def _entry(self, call: ToolCall, params: object) -> tuple[CallRecord, bool]:
        """Returns the record of a call that must not run twice, and whether it was made before."""
        try:
            same = serde.dump_json_lossless(type(params), params)
        except SerdeError:  # JSON does not tell such params apart; what the model wrote does
            same = _normalized(call.arguments)
        return self._record(call.name, same)

    def _admit(self, call: ToolCall) -> tuple[AnyTool, ToolHandler[Any, Any], object]:
        """The tool that `call` means, its handler and the params; raises `ToolValidationError` to
        tell the model.
        """
        tool = self._tools.get(call.name)
        if tool is None:
            raise ToolValidationError(self._unavailable(call.name))
        handler = tool.handler
        if handler is None:
            raise ToolValidationError(f"Tool {call.name!r} cannot be called here.")
        size, most = len(call.arguments), self._max_argument_chars
        if most is not None and size > most:
            told = f"{size:,} characters, and at most {most:,} are read. Send less at once."
            raise ToolValidationError(f"Invalid arguments for {call.name!r}: {told}")
        if call.name in RESERVED_TOOL_NAMES:
            handler = disclosure_handler(call.name, self._view)
        try:
            read = partial(serde.parse_json, tool.params_type)
            return (
                tool,
                handler,
                read_without_nulls(read, call.arguments if call.arguments.strip() else "{}")[0],
            )
        except SerdeError as error:
            issues = "; ".join(map(str, error.issues))
            raise ToolValidationError(f"Invalid arguments for {call.name!r}: {issues}") from error

    def _unavailable(self, name: str) -> str:
        """What the model is told when it calls a tool that is not available."""
        if name in self._arriving:
            return f"Unknown tool {name!r}. It is available from the next turn on."
        try:
            how = how_to_open(self._view, name)
        except PromptError:  # a condition fails, so the section cannot be opened
            how = None
        if how is not None:
            return f"Tool {name!r} is closed; {how}."
        return (
            f"Unknown tool {name!r}. Available tools: {', '.join(sorted(self._tools)) or 'none'}."
        )

    def _note(self, came: object, params: object) -> None:
        """Takes note of what a disclosure tool has answered or asked for; what was read opens when
        the turn is over.
        """
        match came, params:
            case ReadSectionResult(expanded_tools=tools), _:
                self._arriving.update([tool.name for tool in tools])
            case CloseSectionResult(closed=path), _:
                self._view = self._view.with_visibility({path: SectionVisibility.SUMMARY})
            case VisibilityExpansionRequired(requested_overrides=requested), OpenSectionsParams():
                self._view = self._view.with_visibility(requested)
            case _:
                pass

    def _remember(self, path: SectionPath, visibility: SectionVisibility) -> None:
        """Has the session remember what the model opened or closed, for later conversations."""
        self._session.dispatch(SetVisibilityOverride(path=path, visibility=visibility))

    def _answer(
        self,
        call: ToolCall,
        started: float,
        params: object,
        result: ToolResult[Any],
        content: str = "",
        *,
        visibility: Mapping[tuple[str, ...], SectionVisibility] = _NO_VISIBILITY,
        replayed: bool = False,
        error: Exception | None = None,
    ) -> ToolExecutionOutcome:
        """Publishes the call and gives the answer that the model gets."""
        self._answered += 1
        content = sendable(content or result.message)
        # those give sections, which the prompt would show whole
        if call.name not in RESERVED_TOOL_NAMES:
            content = _shortened(content, self._max_result_chars)
        self._publish(
            ToolInvoked(
                name=call.name,
                call_id=call.call_id,
                params=params,
                result=result,
                content=content,
                seconds=perf_counter() - started,
                prompt_name=self._work.name,
                replayed=replayed,
                requested_sections=_requested_sections(params),
                reason=params.reason if isinstance(params, OpenSectionsParams) else "",
                current_visibility_state=visibility,
                arguments=call.arguments[:_MAX_REFUSED_ARGUMENTS] if params is None else "",
                session_id=self._session.session_id,
            )
        )
        message = ToolMessage(call.call_id, content, result.success)
        request = error if isinstance(error, VisibilityExpansionRequired) else None
        self._note(request or result.value, params)
        match result.value, params:
            case ReadSectionResult(_, tools, opened), ReadSectionParams(key):
                return ToolExecutionOutcome(
                    call.call_id, message, result.success, tools, key, opened
                )
            case CloseSectionResult(key, names, closed), CloseSectionParams():
                self._remember(closed, SectionVisibility.SUMMARY)
                return ToolExecutionOutcome(
                    call.call_id, message, result.success, (), key, closed_tools=names
                )
            case _:
                name = "" if error is None or request is not None else type(error).__qualname__
                return ToolExecutionOutcome(
                    call.call_id, message, result.success, error=name, request=request
                )

    def _context(
        self,
        call: ToolCall,
        resources: Resources,
        session: SessionProtocol,
        bus: EventBus,
        *,
        after: int = 0,
        identity: CallIdentity | None = None,
    ) -> ToolContext:
        """`after` is how many calls before this one are still to be answered."""
        return ToolContext(
            prompt=self._prompt,
            rendered_prompt=self._rendered,
            adapter=self._adapter,
            session=session,
            event_bus=bus,
            deadline=self._deadline,
            call_id=call.call_id,
            resources=resources,
            idempotency_key=(
                f"{self._id}:{self._answered + after}"
                if identity is None
                else identity.idempotency_key
            ),
        )


def _revoking(context: ToolContext, flow: Effects[None]) -> Effects[None]:
    try:
        yield from flow
    finally:
        revoke(context)


def _normalized(arguments: str) -> str:
    """The same text for arguments that are the same JSON."""
    try:
        return json.dumps(json.loads(arguments.strip() or "{}"), sort_keys=True)
    except ValueError:
        return arguments


def _content(result: object) -> str:
    """What the model is sent of a handler's answer. Raises `TypeError` for what is none."""
    if not isinstance(result, ToolResult):
        raise TypeError(f"the handler returned {type(result).__name__}, not a ToolResult")
    message: object = result.message
    if not isinstance(message, str):
        raise TypeError(f"ToolResult.message must be a string, got {type(message).__name__}")
    return plain_text(result.content())


def _shortened(content: str, most: int | None) -> str:
    """`content` in at most `most` characters; a note at the end says how much was cut."""
    total = len(content)
    if most is None or total <= most:
        return content
    note = (
        f"\n\n[Cut here: the result has {total:,} characters, of which {{:,}} are not shown. "
        "Ask for less at once, or for another part, to see the rest.]"
    )
    # the number of missing characters has no more digits than the total
    shown = most - len(note.format(total))
    return content[:shown] + note.format(total - shown)


def _result_of(outcome: tuple[Any, BaseException | None]) -> Any:  # Any: results of every type
    result, failure = outcome
    if failure is not None:
        raise failure
    return result


def _check_restart(value: object, params: object) -> None:
    """Raises `VisibilityExpansionRequired` for a section whose tools cannot be added to a running
    conversation.
    """
    if isinstance(value, ReadSectionResult) and value.expanded_tools:
        raise VisibilityExpansionRequired(
            "Section expansion requires restart",
            requested_overrides=dict.fromkeys(value.opened, SectionVisibility.FULL),
            reason="Adapter does not support dynamic tools",
            section_keys=(params.section_key,) if isinstance(params, ReadSectionParams) else (),
        )


def _failure(message: str) -> ToolResult[Any]:
    return ToolResult(message=message[:_MAX_FAILURE], success=False)


def _requested_sections(params: object) -> tuple[str, ...]:
    match params:
        case OpenSectionsParams(section_keys=keys):
            return keys
        case ReadSectionParams(section_key=key) | CloseSectionParams(section_key=key):
            return (key,)
        case _:
            return ()
