"""C4: after an interrupt at any moment, a call is completely done or undone, and resources are
closed.
"""

import gc
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any, Self

import pytest

from support.agents import Args, Note, prompt, tool
from support.own_thread import in_own_thread
from support.sizes import FULL
from weakincentives.evaluation.effects import run
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.messages import ToolCall
from weakincentives.evaluation.tool_executor import ToolExecutor, same_adapter
from weakincentives.filesystem import Filesystem, HostFilesystem, InMemoryFilesystem
from weakincentives.prompt import ToolContext, ToolResult
from weakincentives.resources import Binding, ResourceRegistry, Scope
from weakincentives.runtime.events import Operation
from weakincentives.runtime.session import Session
from weakincentives.runtime.transactions import tool_transaction
from weakincentives.testing import ScriptedAdapter

LIBRARY = str(Path(sys.modules["weakincentives"].__file__ or "").parent)
# An interrupt can arrive between the creation of a coroutine and its first step.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::RuntimeWarning"
)
TOOL_ID = 4  # of sys.monitoring: none of those that debuggers, coverage and profilers use


class Interrupt(KeyboardInterrupt):
    """The interrupt that a test raises."""


@dataclass
class Interrupter:
    """Raises an interrupt at the `at`th event of the library's code, and counts the events."""

    at: int
    count: int = 0
    armed: bool = True
    where: str = "nowhere"
    before_exit: bool = False  # it arrived before the `try` of an `__exit__`

    def event(self, code: CodeType, *_: object) -> object:
        if not code.co_filename.startswith(LIBRARY):
            return sys.monitoring.DISABLE
        if self.armed:
            self.count += 1
            if self.count == self.at:
                frame = sys._getframe(1)
                self.before_exit = (
                    code.co_name == "__exit__" and frame.f_lineno <= code.co_firstlineno + 2
                )
                self.where = f"{frame.f_code.co_qualname}, line {frame.f_lineno}"
                raise Interrupt
        return None

    def __enter__(self) -> Self:
        monitoring = sys.monitoring
        monitoring.use_tool_id(TOOL_ID, "interrupts")
        for event in (
            monitoring.events.PY_START,
            monitoring.events.LINE,
            monitoring.events.PY_RESUME,
        ):
            monitoring.register_callback(TOOL_ID, event, self.event)
        monitoring.set_events(
            TOOL_ID,
            monitoring.events.PY_START | monitoring.events.LINE | monitoring.events.PY_RESUME,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.armed = False
        sys.monitoring.set_events(TOOL_ID, 0)
        sys.monitoring.free_tool_id(TOOL_ID)
        sys.monitoring.restart_events()


def at_every_event(test: Callable[[Interrupter], object], most: int = 20_000) -> int:
    """Runs with an interrupt at each event in turn until none is left; returns the number of
    events. A partial run interrupts at every third event.
    """
    try:
        for at in range(1, most, 1 if FULL else 3):
            interrupter = Interrupter(at)
            in_own_thread(partial(test, interrupter))
            if interrupter.count < at:
                return interrupter.count
        raise AssertionError("it never ends")
    finally:
        gc.collect()  # here, where its warnings are ignored, and not in another test


@dataclass
class Tracked:
    """A resource for one call that knows whether it is open, and whose state can be restored."""

    opened: list["Tracked"]
    open: bool = True
    savepoints: list[int] = field(default_factory=list[int])

    def __post_init__(self) -> None:
        self.opened.append(self)

    def close(self) -> None:
        self.open = False

    def snapshot(self) -> int:
        self.savepoints.append(len(self.savepoints))
        return self.savepoints[-1]

    def restore(self, snapshot: int, /) -> None:
        assert snapshot in self.savepoints

    def release(self, snapshot: int, /) -> None:
        if snapshot in self.savepoints:
            self.savepoints.remove(snapshot)


class Late(Tracked):
    """A resource that is first created during the call."""


class Manager(Tracked):
    """A resource that is entered, and open until it is exited."""

    close = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType] - so that it is entered

    def __post_init__(self) -> None:
        super().__post_init__()
        self.open = False

    def __enter__(self) -> Self:
        self.open = True
        return self

    def __exit__(self, *_: object) -> None:
        self.open = False


def files_of(files: Filesystem) -> list[tuple[str, bytes]]:
    return [
        (entry.path, files.read_bytes(entry.path)) for entry in files.walk() if entry.kind == "file"
    ]


BEFORE = [("a", b"1"), ("b/c", b"2")]
AFTER = [("b/c", b"changed"), ("d/e", b"new")]


@pytest.mark.parametrize(
    ("sort", "ending"),
    [("memory", ValueError), ("memory", False), ("memory", True), ("host", ValueError)],
)
def test_interrupt_at_any_event_of_a_call_commits_it_or_rolls_it_back(
    sort: str, ending: Any, tmp_path: Path
) -> None:
    runs = 0

    def once(interrupter: Interrupter) -> None:
        nonlocal runs
        runs += 1
        opened: list[Tracked] = []
        root = tmp_path / str(runs)
        root.mkdir()
        files = InMemoryFilesystem() if sort == "memory" else HostFilesystem(root)
        for path, data in BEFORE:
            files.write_bytes(path, data)

        def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
            context.resources.get(Late)
            mine = context.resources.get(Filesystem)
            mine.delete("a")
            mine.write_text("b/c", "changed")
            mine.write_text("d/e", "new")
            context.session.dispatch(Note("written"))
            if ending is ValueError:
                raise ValueError("no")
            return ToolResult("ok", success=ending)

        registry = ResourceRegistry.of(
            Binding(Tracked, lambda _: Tracked(opened), eager=True),
            Binding(Late, lambda _: Late(opened), scope=Scope.TOOL_CALL),
        )
        asked = prompt(tool(handler)).bind(resources=registry | {Filesystem: files})
        session = Session()
        with asked.resources:
            executor = ToolExecutor(
                prompt=asked,
                rendered=asked.render(session=session),
                adapter=same_adapter(ScriptedAdapter([])),
                config=RunConfig(),
                session=session,
                publish=lambda _: None,
                operation=Operation(bus=session.bus, kind="evaluation", name="n"),
            )
            committed = False
            try:
                with interrupter:
                    outcome = run(executor.execute(ToolCall("1", "probe", "{}")))
                committed = outcome.success
            except Interrupt:
                pass
            where = f"interrupted in {interrupter.where}"
            notes, found = session[Note].all(), sorted(files_of(files))
            whole = {((), str(sorted(BEFORE))), ((Note("written"),), str(sorted(AFTER)))}
            assert (notes, str(found)) in whole, where
            if ending is not True:
                assert notes == (), where
            if committed:
                assert notes == (Note("written"),)
            assert [
                resource for resource in opened if resource.open and isinstance(resource, Late)
            ] == [], where
            # at the line of a `with`, no signal arrives between entry and block
            if "_transact" not in interrupter.where:
                assert [resource.savepoints for resource in opened if resource.savepoints] == [], (
                    where
                )
        assert [resource for resource in opened if resource.open] == []
        if isinstance(files, HostFilesystem):
            files.close()

    assert at_every_event(once) > 300


@pytest.mark.parametrize("fails", [False, True])
def test_interrupt_while_entering_or_exiting_resources_leaves_none_open(*, fails: bool) -> None:
    def once(interrupter: Interrupter) -> None:
        opened: list[Tracked] = []
        registry = ResourceRegistry.of(
            Binding(Tracked, lambda _: Tracked(opened), eager=True),
            Binding(Manager, lambda _: Manager(opened), eager=True),
            Binding(Late, lambda _: Late(opened)),
        )
        asked = prompt().bind(resources=registry)
        try:
            with interrupter, asked.resources as resources:
                resources.get(Late)
                if fails:
                    raise ValueError("no")
        except (Interrupt, ValueError):
            pass
        where = f"interrupted in {interrupter.where}"
        if interrupter.before_exit or interrupter.where.startswith(
            ("run_now", "ResourceContext.__enter__")
        ):
            # once the context has been entered, no signal arrives between these lines and the block
            return
        assert [resource for resource in opened if resource.open] == [], where
        assert not asked.resources.is_open, where

    assert at_every_event(once) > 100


@pytest.mark.parametrize("fails", [False, True])
def test_interrupt_at_any_event_of_a_transaction_commits_it_or_rolls_it_back(
    *, fails: bool
) -> None:
    def once(interrupter: Interrupter) -> None:
        opened: list[Tracked] = []
        session, files, tracked = Session(), InMemoryFilesystem(dict(BEFORE)), Tracked(opened)
        ended = False
        try:
            with interrupter:
                with tool_transaction(session, (files, tracked)):
                    files.delete("a")
                    files.write_text("b/c", "changed")
                    files.write_text("d/e", "new")
                    session.dispatch(Note("written"))
                    if fails:
                        raise ValueError("no")
                ended = True
        except (Interrupt, ValueError):
            pass
        where = f"interrupted in {interrupter.where}"
        if interrupter.before_exit:
            return
        left = (session[Note].all(), sorted(files_of(files)))
        done = ((Note("written"),), AFTER)
        assert left in ([done] if ended else [((), BEFORE), done][: 2 - fails]), where
        assert tracked.savepoints == [], where

    assert at_every_event(once) > 100


@pytest.mark.parametrize("seed", [1, 2])
def test_ctrl_c_at_any_time_in_a_call_leaves_state_and_files_consistent(
    seed: int, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "support.interrupted_calls", str(tmp_path), str(seed)],
        cwd=Path(__file__).parents[1],
        env={"PYTHONPATH": str(Path(LIBRARY).parent), "PATH": "", "FULL": "yes" * FULL},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20
