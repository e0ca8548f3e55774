"""Carry out the steps of an `InnerLoop`. Asking providers and running tools happens here and nowhere else.

Both drivers do each piece of work through a `Journal`, which may record it and answer from its record later.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, assert_never

from ..limits import Clock, utc_now
from .inner_loop import Finished, InnerLoop, ProviderRequest, ToolCalls
from .tool_executor import ToolExecutor
from .transcript import AssistantMessage

__all__ = ["INLINE", "InlineJournal", "Journal", "drive", "drive_async"]


class Journal(Protocol):
    """Where the work of a run is done."""

    def reserve[T](self, name: str, /) -> Callable[[Callable[[], T]], T]:
        """Fixes this work's position in the order of the loop; the result runs the work, or answers from a record.

        For an asynchronous driver the work gives an awaitable, and so does the result.
        """
        ...


class InlineJournal:
    """Runs all work at once and records nothing."""

    def reserve[T](self, name: str, /) -> Callable[[Callable[[], T]], T]:
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
                answer = journal.reserve("provider")(partial(ask, step))
                step = loop.receive(answer, clock())
            case ToolCalls(calls):
                run = journal.reserve(calls[0].name)
                step = loop.submit((run(partial(tools.execute, calls[0])),), clock())
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
                step = loop.receive(await journal.reserve("provider")(partial(ask, step)), clock())
            case ToolCalls(calls):
                run = journal.reserve(calls[0].name)
                step = loop.submit((await run(partial(tools.execute_async, calls[0])),), clock())
            case Finished():
                return step
            case never:
                assert_never(never)
