"""One tool call from the model's text to the answer it gets: parse, run in a transaction, render, publish.

Whatever the model or the tool does wrong becomes a failed answer. Only control flow and what is no `Exception` leave
this module.
"""

import asyncio
import inspect
import logging
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from .. import serde
from ..errors import ControlFlow, SerdeError
from ..limits import Deadline
from ..ports import EventBus, SessionProtocol
from ..prompt.errors import ToolValidationError, VisibilityExpansionRequired
from ..prompt.progressive_disclosure import (
    CloseSectionParams,
    CloseSectionResult,
    OpenSectionsParams,
    ReadSectionParams,
    ReadSectionResult,
)
from ..prompt.tool import AnyTool, Evaluator, ToolContext, ToolHandler, ToolResult
from ..prompt.tool_journal import JournalEntry
from ..runtime.events import ToolInvoked, ToolsInjected, ToolsWithdrawn
from ..runtime.transactions import tool_transaction
from ..visibility import SectionVisibility, SetVisibilityOverride
from .tool_spec import without_nulls
from .transcript import ToolCall, ToolMessage, sendable

if TYPE_CHECKING:
    from ..prompt.prompt import Prompt
    from ..prompt.renderer import RenderedPrompt

__all__ = ["Injection", "ToolExecutionOutcome", "ToolExecutor", "Withdrawal"]

_log = logging.getLogger(__name__)

_MAX_FAILURE = 1_000
_NO_VISIBILITY: Mapping[tuple[str, ...], SectionVisibility] = {}

# Any below: results and tools of every type pass through here.
type _Attempt = Callable[[], Any]


@dataclass(slots=True, frozen=True)
class ToolExecutionOutcome:
    """What came of one tool call, and how it changes the tools of the conversation.

    `expanded_tools` are those of the section that was read, for which `opened` must be visible; `closed_tools` names
    those whose section was closed, and `opened_by` the tool that opens it again.
    """

    tool_call_id: str
    message: ToolMessage
    success: bool
    expanded_tools: tuple[AnyTool, ...] = ()
    section_key: str = ""
    opened: tuple[tuple[str, ...], ...] = ()
    closed_tools: tuple[str, ...] = ()
    opened_by: str = ""


@dataclass(frozen=True, slots=True)
class Injection:
    """Tools that became available because the model read a section; `duplicates` were there already."""

    section_key: str
    added: tuple[str, ...]
    duplicates: tuple[str, ...]
    outcome: ToolExecutionOutcome


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """Tools that went because the model closed their section; `opened_by` is the tool that brings them back."""

    section_key: str
    names: tuple[str, ...]
    opened_by: str


class ToolExecutor:
    """Runs the tool calls of one evaluation, one at a time, and knows which tools are available in it."""

    def __init__(
        self,
        *,
        prompt: "Prompt[Any]",
        rendered: "RenderedPrompt[Any]",
        adapter: Evaluator,
        supports_dynamic_tools: bool,
        session: SessionProtocol,
        bus: EventBus,
        publish: Callable[[object], None],
        deadline: Deadline | None = None,
    ) -> None:
        self._prompt = prompt
        self._rendered = rendered
        self._adapter = adapter
        self._session = session
        self._bus = bus
        self._publish = publish
        self._deadline = deadline
        self._dynamic = supports_dynamic_tools
        self._tools: dict[str, AnyTool] = {tool.name: tool for tool in rendered.tools}
        self._closed: dict[str, str] = {}  # by tool name, how to get it back

    def execute(self, call: ToolCall) -> ToolExecutionOutcome:
        """Runs `call`; an `async` handler runs to its end in an event loop of its own."""
        flow = self._flow(call)
        try:
            attempt = next(flow)
            while True:
                try:
                    result = attempt()
                    if inspect.isawaitable(result):
                        result = _run_to_end(result)
                except BaseException as error:
                    attempt = flow.throw(error)
                else:
                    attempt = flow.send(result)
        except StopIteration as done:
            outcome: ToolExecutionOutcome = done.value
            return outcome

    async def execute_async(self, call: ToolCall) -> ToolExecutionOutcome:
        """As `execute`; a plain handler runs in a thread, which a cancellation waits for before it undoes the call."""
        flow = self._flow(call)
        try:
            attempt = next(flow)
            while True:
                try:
                    result, error = await _run_in_thread(attempt)
                    if inspect.isawaitable(result):
                        result = await result
                except BaseException as raised:
                    result, error = None, raised
                attempt = flow.send(result) if error is None else flow.throw(error)
        except StopIteration as done:
            outcome: ToolExecutionOutcome = done.value
            return outcome

    def apply(self, change: Injection | Withdrawal) -> None:
        """Makes a change of the available tools effective, now that the turn is over."""
        if isinstance(change, Injection):
            self._inject(change)
            return
        for name in change.names:
            if self._tools.pop(name, None) is not None:
                self._closed[name] = f"call {change.opened_by} with key '{change.section_key}' first"
        if change.names:
            self._publish(ToolsWithdrawn(change.names, change.section_key, session_id=self._session.session_id))

    def _inject(self, injection: Injection) -> None:
        """Makes tools that the model unlocked available and writes the opened sections to the session."""
        outcome = injection.outcome
        for name in injection.duplicates:
            _log.warning("Skipping duplicate tool during injection", extra={"tool_name": name})
        for tool in outcome.expanded_tools:
            if tool.name in injection.added:
                self._tools[tool.name] = tool
                self._closed.pop(tool.name, None)
        for path in outcome.opened:
            self._session.dispatch(SetVisibilityOverride(path=path, visibility=SectionVisibility.FULL))
        if injection.added:
            _log.info(
                "Injected tools from section expansion",
                extra={
                    "section_key": injection.section_key,
                    "tool_count": len(injection.added),
                    "tool_names": list(injection.added),
                },
            )
            self._publish(ToolsInjected(injection.added, injection.section_key, session_id=self._session.session_id))

    def _flow(self, call: ToolCall) -> Generator[_Attempt, Any, ToolExecutionOutcome]:
        """The steps around the handler, which the caller runs where this yields."""
        started = perf_counter()
        try:
            tool, handler, params = self._admit(call)
        except ToolValidationError as error:
            return self._answer(call, started, None, _failure(str(error)))
        entry: JournalEntry | None = None
        if tool.effect == "at_most_once" and self._rendered.journal is not None:
            entry, again = self._rendered.journal.enter(call.name, _same_call(call, params))
            if again:
                return self._answer(call, started, params, entry.result, entry.result.content(), replayed=True)
        content, visibility = "", _NO_VISIBILITY
        try:
            visibility = self._visibility_before(params)
            with tool_transaction(self._session, (), call.name) as transaction:
                result = yield partial(handler, params, context=self._context(call))
                if not isinstance(result, ToolResult):
                    raise TypeError(f"the handler returned {type(result).__name__}, not a ToolResult")
                content = result.content()
                if not isinstance(content, str):
                    raise TypeError(f"ToolResult.message must be a string, got {type(content).__name__}")
                if not result.success:
                    transaction.rollback()
                elif isinstance(result.value, ReadSectionResult) and result.value.expanded_tools and not self._dynamic:
                    raise _restart(result.value, params)
        except ControlFlow as signal:
            self._answer(call, started, params, ToolResult(message=str(signal)), visibility=visibility)
            raise
        except ToolValidationError as error:  # the model's mistake, and it is told
            result, content = _failure(_text_of(error)), ""
        except Exception as error:  # a limit of a nested evaluation too: our own are checked before the next step
            _log.exception("Tool handler failed", extra={"tool_name": call.name, "call_id": call.call_id})
            result, content = _failure(_text_of(error)), ""
        if entry is not None:
            entry.result = result
        return self._answer(call, started, params, result, content, visibility=visibility)

    def _admit(self, call: ToolCall) -> tuple[AnyTool, ToolHandler[Any, Any], object]:
        """The tool that `call` means, its handler and the params; raises `ToolValidationError` to tell the model."""
        tool = self._tools.get(call.name)
        if tool is None and call.name in self._closed:
            raise ToolValidationError(f"Tool {call.name!r} is closed; {self._closed[call.name]}.")
        if tool is None:
            known = ", ".join(sorted(self._tools)) or "none"
            raise ToolValidationError(f"Unknown tool {call.name!r}. Available tools: {known}.")
        if tool.handler is None:
            raise ToolValidationError(f"Tool {call.name!r} cannot be called here.")
        try:
            return tool, tool.handler, _parse_arguments(tool, call.arguments)
        except SerdeError as error:
            faults = "; ".join(map(str, error.faults))
            raise ToolValidationError(f"Invalid arguments for {call.name!r}: {faults}") from error

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
    ) -> ToolExecutionOutcome:
        """Publishes the call and gives the answer that the model gets."""
        content = sendable(content or result.message)
        self._publish(
            ToolInvoked(
                name=call.name,
                call_id=call.call_id,
                params=params,
                result=result,
                content=content,
                seconds=perf_counter() - started,
                prompt_name=self._prompt.name,
                replayed=replayed,
                requested_sections=_requested_sections(params),
                reason=params.reason if isinstance(params, OpenSectionsParams) else "",
                current_visibility_state=visibility,
                session_id=self._session.session_id,
            )
        )
        message = ToolMessage(call.call_id, content, result.success)
        match result.value, params:
            case ReadSectionResult(_, tools, opened), ReadSectionParams(key):
                return ToolExecutionOutcome(call.call_id, message, result.success, tools, key, opened)
            case CloseSectionResult(key, names, opened_by), CloseSectionParams():
                return ToolExecutionOutcome(
                    call.call_id, message, result.success, (), key, closed_tools=names, opened_by=opened_by
                )
            case _:
                return ToolExecutionOutcome(call.call_id, message, result.success)

    def _visibility_before(self, params: object) -> Mapping[tuple[str, ...], SectionVisibility]:
        return self._rendered.visibility_now() if _requested_sections(params) else _NO_VISIBILITY

    def _context(self, call: ToolCall) -> ToolContext:
        return ToolContext(
            prompt=self._prompt,
            rendered_prompt=self._rendered,
            adapter=self._adapter,
            session=self._session,
            event_bus=self._bus,
            deadline=self._deadline,
            call_id=call.call_id,
        )


def _same_call(call: ToolCall, params: object) -> str:
    """What calls with the same arguments have in common: their params, or the model's own text where JSON fails."""
    try:
        return serde.dump_json(params)
    except SerdeError:
        return call.arguments


def _text_of(error: Exception) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # an exception of the user's that cannot even say what it is
        return type(error).__name__


def _restart(read: ReadSectionResult, params: object) -> VisibilityExpansionRequired:
    return VisibilityExpansionRequired(
        "Section expansion requires restart",
        requested_overrides=dict.fromkeys(read.opened, SectionVisibility.FULL),
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


def _parse_arguments(tool: AnyTool, arguments: str) -> object:
    """The params dataclass for the model's text; a null where none is allowed stands for leaving the field out."""
    text = arguments if arguments.strip() else "{}"
    try:
        return serde.parse_json(tool.params_type, text)
    except SerdeError as error:
        mended = without_nulls(text, error.faults)
        if mended is None:
            raise
    return serde.parse_json(tool.params_type, mended)


def _run_to_end(awaitable: Any) -> Any:
    """Runs a coroutine from synchronous code, in a thread of its own when this thread's loop is already running."""

    async def wait() -> Any:
        return await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(copy_context().run, asyncio.run, wait()).result()


async def _run_in_thread(attempt: _Attempt) -> tuple[Any, BaseException | None]:
    """What a plain handler, run beside the loop, gave or raised; a coroutine function gives its coroutine.

    A thread cannot be interrupted, so a cancellation waits until it is done.
    """
    if inspect.iscoroutinefunction(attempt):
        return attempt(), None
    work = asyncio.ensure_future(asyncio.to_thread(_caught, attempt))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        raise


def _caught(attempt: _Attempt) -> tuple[Any, BaseException | None]:
    """What `attempt` gave or raised. A future cannot carry every exception: StopIteration would never arrive."""
    try:
        return attempt(), None
    except BaseException as error:
        return None, error
