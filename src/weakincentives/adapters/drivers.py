"""Carry out the steps of an `InnerLoop`. Asking providers and running tools happens here and nowhere else.

`drive` and `drive_async` give the end of a conversation, `stream` and `stream_async` tell what happens until then.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Protocol

from ..limits import Clock, utc_now
from .inner_loop import Finished, InnerLoop, ProviderRequest, Step, ToolCalls
from .streaming import TextDelta, ToolCallFinished, ToolCallStarted
from .tool_executor import ToolExecutor
from .transcript import AssistantMessage, ToolCall, ToolExecutionOutcome, ToolsAdded, ToolsRemoved

__all__ = ["Journal", "Progress", "Subject", "at_once", "drive", "drive_async", "stream", "stream_async"]

type Subject = ProviderRequest | Sequence[ToolCall]
"""What a piece of work is about: the request to the provider, or the tool calls."""


class Journal(Protocol):
    """Does each piece of a run's work, which is about `subject`, or answers from a record."""

    def __call__[T](self, subject: Subject, work: Callable[[], T], /) -> T: ...


def at_once[T](_: Subject, work: Callable[[], T], /) -> T:
    """The `Journal` that records nothing."""
    return work()


def drive(
    loop: InnerLoop,
    ask: Callable[[ProviderRequest], AssistantMessage],
    tools: ToolExecutor,
    *,
    journal: Journal = at_once,
    clock: Clock = utc_now,
) -> Finished:
    """Runs `loop` to its end. What `ask` and limits raise goes through."""
    step = _ready(loop.start(clock()), tools)
    while not isinstance(step, Finished):
        if isinstance(step, ProviderRequest):
            step = _next(loop, tools, clock, journal(step, partial(ask, step)))
        else:
            step = _next(loop, tools, clock, journal(step.calls, partial(tools.execute, step.calls)))
    return step


async def drive_async(
    loop: InnerLoop,
    ask: Callable[[ProviderRequest], Awaitable[AssistantMessage]],
    tools: ToolExecutor,
    *,
    clock: Clock = utc_now,
) -> Finished:
    """As `drive`, without blocking the event loop."""
    step = _ready(loop.start(clock()), tools)
    while not isinstance(step, Finished):
        came = await (ask(step) if isinstance(step, ProviderRequest) else tools.execute_async(step.calls))
        step = _next(loop, tools, clock, came)
    return step


type Progress = TextDelta | ToolCallStarted | ToolCallFinished | ToolsAdded | ToolsRemoved
"""What happens between the start and the end of a conversation."""


def stream(
    loop: InnerLoop,
    ask: Callable[[ProviderRequest], Iterator[TextDelta | AssistantMessage]],
    tools: ToolExecutor,
    *,
    clock: Clock = utc_now,
) -> Iterator[Progress | Finished]:
    """As `drive`, telling what happens; `ask` gives the pieces of the answer and then the whole."""
    step = _ready(loop.start(clock()), tools)
    while not isinstance(step, Finished):
        came: AssistantMessage | Sequence[ToolExecutionOutcome] | None = None
        yield from _before(step)
        if isinstance(step, ToolCalls):
            came = tools.execute(step.calls)
            yield from _after(step, came)
        else:
            for piece in ask(step):
                if isinstance(piece, TextDelta):
                    yield piece
                else:
                    came = piece
        step = _next(loop, tools, clock, came)
    yield step


async def stream_async(
    loop: InnerLoop,
    ask: Callable[[ProviderRequest], AsyncGenerator[TextDelta | AssistantMessage]],
    tools: ToolExecutor,
    *,
    clock: Clock = utc_now,
) -> AsyncGenerator[Progress | Finished]:
    """As `stream`, without blocking the event loop."""
    step = _ready(loop.start(clock()), tools)
    while not isinstance(step, Finished):
        came: AssistantMessage | Sequence[ToolExecutionOutcome] | None = None
        for told in _before(step):
            yield told
        if isinstance(step, ToolCalls):
            came = await tools.execute_async(step.calls)
            for told in _after(step, came):
                yield told
        else:
            async with aclosing(ask(step)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, TextDelta):
                        yield piece
                    else:
                        came = piece
        step = _next(loop, tools, clock, came)
    yield step


def _next(
    loop: InnerLoop, tools: ToolExecutor, clock: Clock, came: AssistantMessage | Sequence[ToolExecutionOutcome] | None
) -> Step:
    """The step after what `came` of the one before."""
    assert came is not None  # noqa: S101 - what asks for pieces ends with the whole
    now = clock()
    return _ready(loop.receive(came, now) if isinstance(came, AssistantMessage) else loop.submit(came, now), tools)


def _ready(step: Step, tools: ToolExecutor) -> Step:
    """`step`, after the changes that it needs; of tool calls those that may run at once."""
    if isinstance(step, ToolCalls):
        return ToolCalls(tools.together(step.calls))
    if isinstance(step, ProviderRequest):
        for change in step.changes:
            tools.apply(change)
    return step


def _before(step: ProviderRequest | ToolCalls) -> Sequence[Progress]:
    """The calls, or the changes of tools that a request makes known: these stand at the end of its transcript."""
    if isinstance(step, ToolCalls):
        return list(map(ToolCallStarted, step.calls))
    changed: list[Progress] = []
    for message in reversed(step.transcript):
        if not isinstance(message, ToolsAdded | ToolsRemoved):
            break
        changed.insert(0, message)
    return changed


def _after(step: ToolCalls, outcomes: Sequence[ToolExecutionOutcome]) -> Iterator[Progress]:
    """What came of the calls; those after one that ends the evaluation have no outcome."""
    return (ToolCallFinished(call, one.message) for call, one in zip(step.calls, outcomes, strict=False))
