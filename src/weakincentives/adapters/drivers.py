"""Carry out the steps of an `InnerLoop`. Asking providers and running tools happens here and nowhere else.

`drive` and `drive_async` do each piece of work through a `Journal`, which may record it and answer from its record
later; `stream` and `stream_async` tell what happens while it does.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Protocol, assert_never

from ..limits import Clock, utc_now
from .inner_loop import Finished, InnerLoop, ProviderRequest, ToolCalls
from .streaming import TextDelta, ToolCallFinished, ToolCallStarted
from .tool_executor import ToolExecutor
from .transcript import AssistantMessage, ToolCall, ToolsAdded, ToolsRemoved

__all__ = [
    "INLINE",
    "InlineJournal",
    "Journal",
    "Progress",
    "Subject",
    "drive",
    "drive_async",
    "stream",
    "stream_async",
]


type Subject = ProviderRequest | Sequence[ToolCall]
"""What a piece of work is about: the request to the provider, or the tool calls."""


class Journal(Protocol):
    """Where the work of a run is done."""

    def reserve[T](self, name: str, subject: Subject, /) -> Callable[[Callable[[], T]], T]:
        """Fixes this work's position in the order of the loop; the result runs the work, or answers from a record.

        `subject` is what the work is about. For an asynchronous driver the work gives an awaitable, and so does the
        result.
        """
        ...


class InlineJournal:
    """Runs all work at once and records nothing."""

    def reserve[T](self, name: str, subject: Subject, /) -> Callable[[Callable[[], T]], T]:
        return _run


def _run[T](work: Callable[[], T]) -> T:
    return work()


INLINE = InlineJournal()


def drive(
    loop: InnerLoop,
    ask: Callable[[ProviderRequest], AssistantMessage],
    tools: ToolExecutor,
    *,
    journal: Journal = INLINE,
    clock: Clock = utc_now,
) -> Finished:
    """Runs `loop` to its end. What `ask` and limits raise goes through."""
    step = loop.start(clock())
    while True:
        match step:
            case ProviderRequest():
                for change in step.changes:
                    tools.apply(change)
                answer = journal.reserve("provider", step)(partial(ask, step))
                step = loop.receive(answer, clock())
            case ToolCalls(calls):
                together = tools.together(calls)
                run = journal.reserve(together[0].name, together)
                step = loop.submit(run(partial(tools.execute_together, together)), clock())
            case Finished():
                return step
            case never:
                assert_never(never)


async def drive_async(
    loop: InnerLoop,
    ask: Callable[[ProviderRequest], Awaitable[AssistantMessage]],
    tools: ToolExecutor,
    *,
    journal: Journal = INLINE,
    clock: Clock = utc_now,
) -> Finished:
    """As `drive`, without blocking the event loop."""
    step = loop.start(clock())
    while True:
        match step:
            case ProviderRequest():
                for change in step.changes:
                    tools.apply(change)
                step = loop.receive(await journal.reserve("provider", step)(partial(ask, step)), clock())
            case ToolCalls(calls):
                together = tools.together(calls)
                run = journal.reserve(together[0].name, together)
                step = loop.submit(await run(partial(tools.execute_together_async, together)), clock())
            case Finished():
                return step
            case never:
                assert_never(never)


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
    step = loop.start(clock())
    while True:
        match step:
            case ProviderRequest():
                for change in step.changes:
                    tools.apply(change)
                yield from _changed_tools(step)
                answer: AssistantMessage | None = None
                for piece in ask(step):
                    if isinstance(piece, AssistantMessage):
                        answer = piece
                    else:
                        yield piece
                assert answer is not None  # noqa: S101 - `ask` ends with the whole
                step = loop.receive(answer, clock())
            case ToolCalls(calls):
                together = tools.together(calls)
                yield from map(ToolCallStarted, together)
                outcomes = tools.execute_together(together)
                yield from [ToolCallFinished(call, one.message) for call, one in zip(together, outcomes, strict=False)]
                step = loop.submit(outcomes, clock())
            case Finished():
                yield step
                return
            case never:
                assert_never(never)


async def stream_async(
    loop: InnerLoop,
    ask: Callable[[ProviderRequest], AsyncGenerator[TextDelta | AssistantMessage]],
    tools: ToolExecutor,
    *,
    clock: Clock = utc_now,
) -> AsyncGenerator[Progress | Finished]:
    """As `stream`, without blocking the event loop."""
    step = loop.start(clock())
    while True:
        match step:
            case ProviderRequest():
                for change in step.changes:
                    tools.apply(change)
                for added in _changed_tools(step):
                    yield added
                answer: AssistantMessage | None = None
                async with aclosing(ask(step)) as pieces:
                    async for piece in pieces:
                        if isinstance(piece, AssistantMessage):
                            answer = piece
                        else:
                            yield piece
                assert answer is not None  # noqa: S101 - `ask` ends with the whole
                step = loop.receive(answer, clock())
            case ToolCalls(calls):
                together = tools.together(calls)
                for call in together:
                    yield ToolCallStarted(call)
                outcomes = await tools.execute_together_async(together)
                for call, one in zip(together, outcomes, strict=False):
                    yield ToolCallFinished(call, one.message)
                step = loop.submit(outcomes, clock())
            case Finished():
                yield step
                return
            case never:
                assert_never(never)


def _changed_tools(request: ProviderRequest) -> list[ToolsAdded | ToolsRemoved]:
    """The changes that this request makes known, which stand at the end of its transcript."""
    changed: list[ToolsAdded | ToolsRemoved] = []
    for message in reversed(request.transcript):
        if not isinstance(message, ToolsAdded | ToolsRemoved):
            break
        changed.insert(0, message)
    return changed
