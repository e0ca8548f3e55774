"""One template for many threads, sessions and event loops, and cancellation during a tool call."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Barrier, Event, Thread
from typing import Any

import pytest

from support.agents import Args, Note
from support.programs import Cell
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.filesystem import Filesystem, HostFilesystem
from weakincentives.prompt import (
    MarkdownSection,
    PromptTemplate,
    Tool,
    ToolContext,
    ToolResult,
    WorkspaceSection,
)
from weakincentives.resources import Binding, ResourceRegistry
from weakincentives.runtime.events import InProcessEventBus, ToolInvoked
from weakincentives.runtime.session import Replace, Session
from weakincentives.testing.scripted import ScriptedAdapter, call, say
from weakincentives.visibility import SectionVisibility, VisibilityOverrides

THREADS = 32
TIMEOUT = 60  # seconds; no test takes them


@dataclass(frozen=True)
class Name:
    name: str


@dataclass(frozen=True)
class Sum:
    total: int = 0


def add(params: Args, *, context: ToolContext) -> ToolResult[object]:
    context.session.dispatch(Note(str(params.a)))
    context.resources.get(Cell).add(params.a)
    return ToolResult(f"{params.a}", success=params.a % 3 != 0)


TEMPLATE: PromptTemplate[Any] = PromptTemplate(
    ns="tests",
    key="shared",
    sections=[
        MarkdownSection(
            title="Task",
            key="task",
            template="You are ${name}.",
            params_type=Name,
            tools=[Tool[Args, object](name="add", handler=add, effect="repeatable")],
        ),
        MarkdownSection(
            title="More",
            key="more",
            template="More.",
            summary="Little.",
            visibility=SectionVisibility.SUMMARY,
            tools=[Tool[Args, object](name="more", handler=add, effect="repeatable")],
        ),
    ],
    resources=ResourceRegistry.of(Binding(Cell, lambda _: Cell(), eager=True)),
)


def at_once(*operations: Callable[[], object]) -> None:
    """Runs each function in its own thread, all starting together; raises the error of a thread."""
    together, failures = Barrier(len(operations)), list[BaseException]()

    def running(operation: Callable[[], object]) -> None:
        together.wait(TIMEOUT)
        try:
            operation()
        except BaseException as error:
            failures.append(error)

    threads = [Thread(target=running, args=(operation,)) for operation in operations]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert not any(thread.is_alive() for thread in threads)
    if failures:
        raise BaseExceptionGroup("in threads", failures)


def script(number: int) -> list[Any]:
    """Adds, fails, opens a section, adds there, and gives its name."""
    return [
        call(("add", {"a": number * 3 + 1}), ("add", {"a": number * 3})),
        call(("read_section", {"section_key": "more"})),
        call(("more", {"a": number * 3 + 2})),
        lambda request: say(request.messages[0].content.partition("\n\n")[2].partition("\n")[0]),
    ]


def agent(number: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """Returns functions that evaluate the shared template in some way, and check the result."""
    session, asked = Session(), TEMPLATE.bind(Name(f"agent {number}"))
    texts: list[str] = []
    cells: list[Cell] = []
    config = RunConfig(parallel_tool_calls="isolated" if number % 2 else "in_order")
    loop = MainLoop(ScriptedAdapter(script(number), dynamic_tools=number % 4 < 2, config=config))

    def run() -> None:
        with asked.resources as resources:
            cells.append(resources.get(Cell))
            texts.append(loop.execute(asked, session=session).text)

    async def run_async() -> None:
        async with asked.resources as resources:
            cells.append(resources.get(Cell))
            texts.append((await loop.execute_async(asked, session=session)).text)

    def check() -> None:
        wanted = [number * 3 + 1, number * 3 + 2]
        assert texts == [f"You are agent {number}."]
        assert [note.text for note in session[Note].all()] == [str(item) for item in wanted]
        assert [cell.numbers for cell in cells] == [wanted]
        opened = session[VisibilityOverrides].latest()
        assert opened is not None
        assert opened.overrides == {("more",): SectionVisibility.FULL}

    return (lambda: asyncio.run(run_async())) if number % 8 < 4 else run, check


@pytest.mark.claim("U-03")
def test_threads_with_their_own_loops_and_sessions_can_share_a_template() -> None:
    agents = [agent(number) for number in range(THREADS)]
    at_once(*[run for run, _ in agents])
    for _, check in agents:
        check()


def test_tasks_of_one_event_loop_can_share_a_template() -> None:
    async def evaluate(number: int) -> str:
        asked = TEMPLATE.bind(Name(f"agent {number}"))
        adapter = ScriptedAdapter(script(number))
        return (await adapter.evaluate_async(asked, session=Session())).text

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*map(evaluate, range(THREADS)))

    assert asyncio.run(all_of_them()) == [f"You are agent {number}." for number in range(THREADS)]


def test_concurrent_agents_in_one_folder_undo_only_their_own_changes(tmp_path: Path) -> None:
    def write(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.resources.get(Filesystem).write_text(str(params.a), "by one of them")
        return ToolResult("", success=params.a % 3 != 0)

    section = WorkspaceSection(
        filesystem=lambda: HostFilesystem(tmp_path),
        tools=[Tool[Args, object](name="write", handler=write)],
    )
    template: PromptTemplate[Any] = PromptTemplate(ns="tests", key="folder", sections=[section])

    def run(number: int) -> None:
        calls = [("write", {"a": a}) for a in range(number * 9, number * 9 + 9)]
        ScriptedAdapter([call(*calls), say("done")]).evaluate(template.bind(), session=Session())

    at_once(*[partial(run, number) for number in range(THREADS)])
    assert {int(path.name) for path in tmp_path.iterdir()} == {
        a for a in range(THREADS * 9) if a % 3
    }


def test_threads_that_share_a_session_lose_no_events() -> None:
    """Dispatch is serialized: each event is reduced into the state after the preceding one."""
    session = Session()
    session[Sum].register(
        Note, lambda view, event: Replace((Sum((view.latest() or Sum()).total + int(event.text)),))
    )

    def dispatch() -> None:
        for _ in range(100):
            session.dispatch(Note("1"))

    at_once(*[dispatch] * THREADS)
    assert session[Sum].all() == (Sum(THREADS * 100),)


def test_agents_that_share_a_bus_lose_no_events() -> None:
    bus = InProcessEventBus()
    published = list[ToolInvoked]()
    bus.subscribe(ToolInvoked, published.append)

    def run() -> None:
        adapter = ScriptedAdapter([call(*[("add", {"a": 1})] * 10), say("done")])
        adapter.evaluate(TEMPLATE.bind(Name("Ann")), session=Session(bus=bus))

    at_once(*[run] * THREADS)
    assert len(published) == THREADS * 10
    assert len({event.session_id for event in published}) == THREADS


# --------------------------------------------------------------------------------------------------
# cancellation


def cancelled(handler: Callable[..., Any], started: Event, release: Event) -> tuple[Session, Cell]:
    """Returns session and resource after an evaluation was cancelled during the handler's call."""
    session, cell = Session(), Cell()
    section = MarkdownSection(
        title="Task",
        key="task",
        template="Go.",
        tools=[
            Tool[Args, object](name="add", handler=add),
            Tool[Args, object](name="slow", handler=handler),
        ],
    )
    asked = PromptTemplate(ns="tests", key="slow", sections=[section]).bind(resources={Cell: cell})

    async def cancel() -> None:
        adapter = ScriptedAdapter([call(("add", {"a": 1}), ("slow", {}))])
        task = asyncio.create_task(adapter.evaluate_async(asked, session=session))
        assert await asyncio.to_thread(started.wait, TIMEOUT)
        task.cancel()
        await asyncio.sleep(0)
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert not asked.resources.is_open
    return session, cell


@pytest.mark.parametrize("asynchronous", [False, True])
def test_cancelled_tool_call_is_rolled_back_and_earlier_calls_are_kept(
    asynchronous: bool,
) -> None:
    started, release, ended = Event(), Event(), list[str]()

    def change(context: ToolContext) -> None:
        context.session.dispatch(Note("slow"))
        context.resources.get(Cell).add(99)
        started.set()

    def slow(params: Args, *, context: ToolContext) -> ToolResult[object]:
        change(context)
        assert release.wait(TIMEOUT)
        context.session.dispatch(Note("after the cancellation"))
        ended.append("thread")
        return ToolResult("too late")

    async def slow_async(params: Args, *, context: ToolContext) -> ToolResult[object]:
        change(context)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("loop")
        return ToolResult("too late")

    session, cell = cancelled(slow_async if asynchronous else slow, started, release)
    assert ended == ["loop" if asynchronous else "thread"]
    assert session[Note].all() == (Note("1"),)
    assert cell.numbers == [1]
    assert [event.name for event in session[ToolInvoked].all()] == ["add"]
