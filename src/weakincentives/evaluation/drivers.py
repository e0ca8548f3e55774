"""Carry out the steps of an `InnerLoop` and tell what happens.

Providers are asked and tools run from here alone.
"""

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from datetime import datetime
from functools import partial
from typing import Protocol

from ..errors import WeakIncentivesError
from ..limits import Clock, utc_now
from .inner_loop import Finished, InnerLoop, ProviderRequest, Step, ToolCalls
from .messages import AssistantMessage, ToolCall, ToolExecutionOutcome, ToolsAdded, ToolsRemoved
from .response import TextDelta, ToolCallFinished, ToolCallStarted
from .tool_executor import CallIdentity, ToolExecutor

__all__ = ["Journal", "Progress", "drive", "drive_async"]


class Journal(Protocol):
    """Records what one evaluation asks and calls, or answers from its record instead."""

    def ask(
        self, request: ProviderRequest, ask: Callable[[], AssistantMessage], /
    ) -> AssistantMessage:
        """Returns the provider's answer, that of `ask` or a recorded one."""
        ...

    def execute(
        self,
        call: ToolCall,
        execute: Callable[[CallIdentity | None], ToolExecutionOutcome],
        /,
    ) -> ToolExecutionOutcome:
        """Returns the outcome of the call, that of `execute` or a recorded one."""
        ...


type Progress = TextDelta | ToolCallStarted | ToolCallFinished | ToolsAdded | ToolsRemoved
"""What happens between the start and the end of a conversation."""


def drive(
    loop: InnerLoop,
    ask: Callable[[ProviderRequest], Iterator[TextDelta | AssistantMessage]],
    tools: ToolExecutor,
    *,
    journal: Journal | None = None,
    clock: Clock = utc_now,
    calls_told: bool = True,
) -> Iterator[Progress | Finished]:
    """Runs `loop`, tells what happens and at last how it ended; what `ask` and limits raise goes
    through.

    `ask` gives the pieces of the answer and then the whole; a `journal` takes it whole. Without
    `calls_told` the tool calls are not among what is told, which saves two events for each.
    """
    step = loop.start(clock())
    while not isinstance(step, Finished):
        if isinstance(step, ToolCalls):
            calls = tools.next_batch(step.calls)
            if calls_told:
                yield from map(ToolCallStarted, calls)
            if journal is None:
                outcomes: Sequence[ToolExecutionOutcome] = tools.execute(calls)
            else:
                [call] = calls  # a journal records calls in order
                outcomes = [journal.execute(call, partial(_execute, tools, call))]
            if calls_told:
                yield from _finished(calls, outcomes)
            step = _submitted(loop, tools, outcomes, clock())
        else:
            yield from _changed(step, tools)
            for piece in (
                ask(step) if journal is None else [journal.ask(step, partial(_whole, ask, step))]
            ):
                if isinstance(piece, TextDelta):
                    yield piece
                else:
                    step = loop.receive(piece, clock())
    yield step


async def drive_async(
    loop: InnerLoop,
    ask: Callable[[ProviderRequest], AsyncGenerator[TextDelta | AssistantMessage]],
    tools: ToolExecutor,
    *,
    clock: Clock = utc_now,
    calls_told: bool = True,
) -> AsyncGenerator[Progress | Finished]:
    """As `drive`, without blocking the event loop."""
    step = loop.start(clock())
    while not isinstance(step, Finished):
        if isinstance(step, ToolCalls):
            calls = tools.next_batch(step.calls)
            for call in calls if calls_told else ():
                yield ToolCallStarted(call)
            outcomes = await tools.execute_async(calls)
            for finished in _finished(calls, outcomes) if calls_told else ():
                yield finished
            step = _submitted(loop, tools, outcomes, clock())
        else:
            for change in _changed(step, tools):
                yield change
            async with aclosing(ask(step)) as pieces:
                async for piece in pieces:
                    if isinstance(piece, TextDelta):
                        yield piece
                    else:
                        step = loop.receive(piece, clock())
    yield step


def _whole(
    ask: Callable[[ProviderRequest], Iterator[TextDelta | AssistantMessage]],
    request: ProviderRequest,
) -> AssistantMessage:
    *_, whole = ask(request)
    assert isinstance(whole, AssistantMessage)  # noqa: S101 - it comes last
    return whole


def _execute(
    tools: ToolExecutor, call: ToolCall, identity: CallIdentity | None
) -> ToolExecutionOutcome:
    [outcome] = tools.execute([call], identity)
    return outcome


def _submitted(
    loop: InnerLoop, tools: ToolExecutor, outcomes: Sequence[ToolExecutionOutcome], now: datetime
) -> Step:
    """The next step.

    Where there is none, what the turn opened and closed still counts: the model was answered so.
    """
    try:
        return loop.submit(outcomes, now)
    except WeakIncentivesError:  # a limit, or a request for sections
        for change in loop.changing:
            tools.apply(change)
        raise


def _finished(
    calls: Sequence[ToolCall], outcomes: Sequence[ToolExecutionOutcome]
) -> Iterator[ToolCallFinished]:
    """What came of the calls; those after one that ends the evaluation have no outcome."""
    return (ToolCallFinished(call, one.message) for call, one in zip(calls, outcomes, strict=False))


def _changed(request: ProviderRequest, tools: ToolExecutor) -> Sequence[ToolsAdded | ToolsRemoved]:
    """Makes changes of the tools effective, and gives what stands of them at the end of the
    transcript.
    """
    told: list[ToolsAdded | ToolsRemoved] = []
    if request.changes:
        for change in request.changes:
            tools.apply(change)
        for message in reversed(request.transcript):
            if not isinstance(message, ToolsAdded | ToolsRemoved):
                break
            told.insert(0, message)
    return told
