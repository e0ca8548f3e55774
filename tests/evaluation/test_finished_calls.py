"""A tool's context works only during its call: code that is still running afterwards gets an error
and changes nothing.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import Event as Gate
from threading import Thread
from time import perf_counter
from typing import Any

import pytest

from support.agents import Args, Note, nested_adapter, prompt, tool
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.limits import Budget
from weakincentives.prompt import Prompt, ToolContext, ToolResult
from weakincentives.resources import Binding, ResourceRegistry, Scope
from weakincentives.runtime.events import ToolInvoked, ToolsInjected
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say

USES: Mapping[str, Callable[[ToolContext], object]] = {
    "session": lambda context: context.session.dispatch(Note("late")),
    "event_bus": lambda context: context.event_bus.publish(ToolsInjected((), "late")),
    "resources": lambda context: context.resources.get(dict),
}
ISOLATED = RunConfig(parallel_tool_calls="isolated")


class Lingering:
    """A thread that a handler starts, and that uses the context after the call has finished."""

    def __init__(self, use: Callable[[ToolContext], object]) -> None:
        self.use = use
        self.go = Gate()
        self.threads: list[Thread] = []
        self.raised: list[BaseException | None] = []

    def start(self, context: ToolContext) -> None:
        self.threads.append(Thread(target=self.run, args=[context]))
        self.threads[-1].start()

    def run(self, context: ToolContext) -> None:
        self.go.wait()
        try:
            self.use(context)
        except BaseException as error:
            self.raised.append(error)
        else:
            self.raised.append(None)

    def ended(self) -> list[BaseException | None]:
        self.go.set()
        for thread in self.threads:
            thread.join()
        return self.raised


def evaluate(
    asked: Prompt[Any], session: Session, count: int = 1, *, asynchronous: bool = False
) -> None:
    """Makes `count` calls in one turn, concurrently if there are several."""
    config = ISOLATED if count > 1 else RunConfig()
    adapter = ScriptedAdapter(
        [call(*[("probe", {"a": number}) for number in range(count)]), say("x")], config=config
    )
    asked.bind(resources={dict: {}})
    if asynchronous:
        asyncio.run(adapter.evaluate_async(asked, session=session))
    else:
        adapter.evaluate(asked, session=session)


@pytest.mark.parametrize("what", USES)
@pytest.mark.parametrize("ending", [True, False, ValueError])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_thread_that_outlives_its_call_cannot_use_the_context(
    what: str,
    ending: Any,
    count: int,
    asynchronous: bool,
) -> None:
    lingering = Lingering(USES[what])

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        USES[what](context)  # during the call, everything works
        lingering.start(context)
        if ending is ValueError:
            raise ValueError("no")
        return ToolResult("ok", success=ending)

    session = Session()
    evaluate(prompt(tool(handler)), session, count, asynchronous=asynchronous)
    before = session.snapshot().slices, session[ToolsInjected].all()
    raised = lingering.ended()
    assert len(raised) >= count
    for error in raised:
        assert isinstance(error, RuntimeError)
        assert f"context.{what} cannot be used because tool call" in str(error)
        assert "tool call 'call_" in str(error)
    assert (session.snapshot().slices, session[ToolsInjected].all()) == before


def test_task_that_outlives_its_call_cannot_use_the_context() -> None:
    session = Session()

    async def main() -> BaseException | None:
        over, tasks = asyncio.Event(), list[asyncio.Task[None]]()

        async def later(context: ToolContext) -> None:
            await over.wait()
            context.session.dispatch(Note("late"))

        async def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
            tasks.append(asyncio.create_task(later(context)))
            return ToolResult("ok")

        adapter = ScriptedAdapter([call(("probe", {})), say("x")])
        await adapter.evaluate_async(prompt(tool(handler)), session=session)
        over.set()
        await asyncio.wait(tasks)
        return tasks[0].exception()

    assert isinstance(asyncio.run(main()), RuntimeError)
    assert session[Note].all() == ()


@pytest.mark.parametrize("count", [1, 2])
def test_resources_kept_from_a_call_create_nothing_after_it(count: int) -> None:
    made: list[object] = []
    kept: list[Any] = []

    class Scratch:
        def __init__(self) -> None:
            made.append(self)

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        kept.append(context.resources)
        return ToolResult("ok")

    registry = ResourceRegistry.of(Binding(Scratch, lambda _: Scratch(), scope=Scope.TOOL_CALL))
    asked = prompt(tool(handler)).bind(resources=registry)
    with asked.resources:
        evaluate_open(asked, count)
        for resources in kept:
            with pytest.raises(
                RuntimeError, match="Scratch was asked for after the end of the tool call"
            ):
                resources.get(Scratch)
    assert made == []


def evaluate_open(asked: Prompt[Any], count: int) -> None:
    config = ISOLATED if count > 1 else RunConfig()
    adapter = ScriptedAdapter(
        [call(*[("probe", {"a": n}) for n in range(count)]), say("x")], config=config
    )
    adapter.evaluate(asked, session=Session())


def test_context_works_in_nested_evaluations_until_its_own_call_ends() -> None:
    session, contexts = Session(), list[ToolContext]()

    def inner(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note("inner"))
        contexts.append(context)
        return ToolResult("ok")

    def outer(params: Args, *, context: ToolContext) -> ToolResult[object]:
        contexts.append(context)
        for _ in range(2):
            agent = ScriptedAdapter([call(("inner", {})), say("y")])
            replace(nested_adapter(context), adapter=agent).evaluate(
                prompt(tool(inner, name="inner")),
                session=context.session,
                budget=Budget(max_calls=5),
            )
            context.session.dispatch(Note("outer"))
        return ToolResult("ok")

    evaluate(prompt(tool(outer)), session)
    assert [note.text for note in session[Note]] == ["inner", "outer"] * 2
    assert len(contexts) == 3
    for context in contexts:
        with pytest.raises(RuntimeError, match="has finished"):
            _ = context.session


def test_expired_context_still_returns_its_call_id_and_prompt() -> None:
    kept: list[ToolContext] = []

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        kept.append(context)
        return ToolResult("ok")

    asked = prompt(tool(handler))
    evaluate(asked, Session())
    [context] = kept
    unknown: Any = context
    assert (context.call_id, context.prompt.descriptor) == ("call_1", asked.descriptor)
    assert "call_1" in repr(context)
    with pytest.raises(AttributeError, match="'ToolContext' object has no attribute 'sesion'"):
        _ = unknown.sesion


def test_state_read_during_the_call_remains_readable_after_it() -> None:
    read: list[tuple[Note, ...]] = []

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note("written"))
        read.append(context.session[Note].all())
        return ToolResult("ok")

    session = Session()
    evaluate(prompt(tool(handler)), session)
    assert read == [(Note("written"),)]


@pytest.mark.parametrize("count", [1, 3])
def test_tool_invoked_event_contains_the_duration_of_the_call(count: int) -> None:
    def probe(_: Args, *, context: ToolContext) -> ToolResult[None]:
        return ToolResult("ok")

    session, started = Session(), perf_counter()
    evaluate(prompt(tool(probe)), session, count)
    seconds = [event.seconds for event in session[ToolInvoked].all()]
    assert len(seconds) == count
    assert all(0 <= each <= perf_counter() - started for each in seconds)
