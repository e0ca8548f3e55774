"""L3: a block that raises leaves state and resources unchanged, and keeps the LOG."""

import asyncio
import gc
import logging
import signal
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.errors import ControlFlow
from weakincentives.prompt.errors import VisibilityExpansionRequired
from weakincentives.protocols import Resources
from weakincentives.resources import Binding, ResourceContext, ResourceRegistry
from weakincentives.runtime.events import ToolsInjected
from weakincentives.runtime.session import Session
from weakincentives.runtime.transactions import (
    CompositeSnapshot,
    create_snapshot,
    restore_snapshot,
    tool_transaction,
)


class Redirect(ControlFlow):
    """A test's own control flow."""


class Cell:
    """A resource that can be restored, and that can be told to fail to restore."""

    def __init__(
        self, name: str, undone: list[str], failure: type[BaseException] | None = None
    ) -> None:
        self.name = name
        self.value = 0
        self.undone = undone
        self.failure = failure

    def snapshot(self) -> int:
        return self.value

    def restore(self, snapshot: int, /) -> None:
        self.undone.append(self.name)
        if self.failure is not None:
            raise self.failure(f"{self.name} is stuck")
        self.value = snapshot


FAILURES = (
    ValueError,
    KeyboardInterrupt,
    SystemExit,
    GeneratorExit,
    asyncio.CancelledError,
    ExceptionGroup,
)


def raised(kind: type[BaseException]) -> BaseException:
    return ExceptionGroup("several", [ValueError()]) if kind is ExceptionGroup else kind()


# --- L3: a failing call leaves no trace
# over nested blocks


@dataclass(frozen=True)
class Block:
    """A planned transaction: its steps, how it ends, and whether its end propagates."""

    steps: tuple["int | str | Block", ...]
    ending: type[BaseException] | None
    caught: bool


# An int is dispatched, "log" is published; "roll back" and "clear" are literal.
_STEPS = st.integers(0, 9) | st.sampled_from(["log", "roll back", "clear"])
_ENDINGS = st.none() | st.sampled_from([*FAILURES, Redirect])
blocks: st.SearchStrategy[Block] = st.recursive(
    st.builds(Block, st.lists(_STEPS, max_size=4).map(tuple), _ENDINGS, st.booleans()),
    lambda inner: st.builds(
        Block, st.lists(_STEPS | inner, min_size=1, max_size=4).map(tuple), _ENDINGS, st.booleans()
    ),
    max_leaves=12,
)


@dataclass
class Model:
    """The expected content of a session and a cell, in plain lists."""

    state: list[int] = field(default_factory=list[int])
    cell: int = 0
    logged: int = 0

    def run(self, block: Block) -> None:
        before = (list(self.state), self.cell)
        try:
            for step in block.steps:
                match step:
                    case Block():
                        self.run(step)
                    case int():
                        self.state.append(step)
                        self.cell += step
                    case "log":
                        self.logged += 1
                    case "clear":
                        self.state = []
                    case _:
                        self.state, self.cell = list(before[0]), before[1]
            if block.ending is not None:
                raise raised(block.ending)
        except BaseException as error:
            if not isinstance(error, ControlFlow):
                self.state, self.cell = before
            if not block.caught:
                raise


@dataclass
class Real:
    """The same with a session, a cell and transactions."""

    session: Session = field(default_factory=Session)
    cell: Cell = field(default_factory=lambda: Cell("cell", []))

    def run(self, block: Block) -> None:
        try:
            with tool_transaction(self.session, (self.cell,), "block") as transaction:
                for step in block.steps:
                    match step:
                        case Block():
                            self.run(step)
                        case int():
                            self.session.dispatch(step)
                            self.cell.value += step
                        case "log":
                            self.session.bus.publish(ToolsInjected((), "x"))
                        case "clear":
                            self.session[int].clear()
                        case _:
                            transaction.rollback()
                if block.ending is not None:
                    raise raised(block.ending)
        except BaseException:
            if not block.caught:
                raise


@given(blocks)
def test_nested_transactions_match_the_reference_model(block: Block) -> None:
    model, real = Model(), Real()
    endings: list[type[BaseException] | None] = []
    for subject in (model, real):
        try:
            subject.run(block)
        except BaseException as error:  # any way to end a block
            endings.append(type(error))
        else:
            endings.append(None)
    assert endings[0] == endings[1]
    assert real.session[int].all() == tuple(model.state)
    assert real.cell.value == model.cell
    assert len(real.session[ToolsInjected]) == model.logged


# ---------------------------------------------------------------------------------------------
# case by case


@pytest.mark.claim("TL-41", "PS-16")
@pytest.mark.parametrize("failure", FAILURES)
def test_transaction_that_raises_rolls_back_everything_but_recorded_events(
    failure: type[BaseException],
) -> None:
    session, cell = Session(), Cell("cell", [])
    session.dispatch("kept")
    error = raised(failure)

    def work() -> None:
        with tool_transaction(session, (cell,), "tool"):
            session.dispatch("dropped")
            session[int].seed(1, 2)
            cell.value = 9
            session.bus.publish(ToolsInjected((), "x"))
            raise error

    with pytest.raises(failure) as caught:
        work()
    assert caught.value is error
    assert (session[str].all(), session[int].all(), cell.value) == (("kept",), (), 0)
    assert len(session[ToolsInjected]) == 1


def dispatch_and_raise(session: Session, event: str, error: BaseException, *cells: Cell) -> None:
    with tool_transaction(session, cells, "tool"):
        session.dispatch(event)
        raise error


@pytest.mark.claim("C-13", "PS-16")
@pytest.mark.parametrize(
    "redirect",
    [Redirect(), VisibilityExpansionRequired(requested_overrides={}, reason="", section_keys=())],
    ids=lambda redirect: type(redirect).__name__,
)
def test_control_flow_does_not_roll_back_a_transaction(redirect: ControlFlow) -> None:
    session = Session()
    with pytest.raises(type(redirect)):
        dispatch_and_raise(session, "kept", redirect)
    assert session[str].all() == ("kept",)


def test_rollback_after_the_transaction_does_nothing() -> None:
    session = Session()
    with tool_transaction(session) as transaction:
        session.dispatch("kept")
    transaction.rollback()
    assert session[str].all() == ("kept",)


def test_sigint_rolls_back_the_transaction() -> None:
    session = Session()

    def work() -> None:
        with tool_transaction(session):
            session.dispatch("dropped")
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
    finally:
        signal.signal(signal.SIGINT, before)
    assert session[str].all() == ()


# ---------------------------------------------------------------------------------------------
# undo that fails


def stuck(
    failure: type[BaseException], session: Session
) -> tuple[tuple[Cell, Cell, Cell], list[str], CompositeSnapshot]:
    """Returns three cells, of which the middle one fails to restore; a changed session; and the
    function that rolls back.
    """
    undone: list[str] = []
    cells = (Cell("first", undone), Cell("second", undone, failure), Cell("third", undone))
    snapshot = create_snapshot(session, cells, "by hand")
    session.dispatch("dropped")
    for cell in cells:
        cell.value = 9
    return cells, undone, snapshot


@pytest.mark.claim("PS-17")
def test_restore_snapshot_restores_newest_first() -> None:
    session, undone = Session(), list[str]()
    cells = (Cell("first", undone), Cell("second", undone))
    snapshot = create_snapshot(session, cells)
    session.dispatch("dropped")
    cells[0].value = cells[1].value = 9
    restore_snapshot(snapshot)
    assert undone == ["second", "first"]
    assert (session[str].all(), cells[0].value, cells[1].value) == ((), 0, 0)


def test_failing_restore_is_reported_and_the_other_parts_are_restored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = Session()
    cells, undone, snapshot = stuck(ValueError, session)
    with (
        caplog.at_level(logging.ERROR, logger="weakincentives.runtime.transactions"),
        pytest.raises(ExceptionGroup, match=r"1 of 4 parts could not be restored") as caught,
    ):
        restore_snapshot(snapshot)
    assert [str(error) for error in caught.value.exceptions] == ["second is stuck"]
    assert undone == ["third", "second", "first"]
    assert (session[str].all(), [cell.value for cell in cells]) == ((), [0, 9, 0])
    (record,) = caplog.records
    assert record.exc_info is not None
    assert (record.__dict__["part"], record.__dict__["tag"]) == ("Cell", "by hand")


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, asyncio.CancelledError, SystemExit])
def test_interrupt_during_a_restore_is_raised_after_restoring_the_other_parts(
    interrupt: type[BaseException],
) -> None:
    session = Session()
    cells, undone, snapshot = stuck(interrupt, session)
    with pytest.raises(interrupt):
        restore_snapshot(snapshot)
    assert undone == ["third", "second", "first"] * 2, "all is done once more"
    assert (session[str].all(), [cell.value for cell in cells]) == ((), [0, 9, 0])


@pytest.mark.parametrize("failure", FAILURES)
def test_failing_rollback_does_not_replace_the_original_error(
    failure: type[BaseException],
) -> None:
    """Otherwise, a cancellation would be treated as an ordinary error."""
    session, undone = Session(), list[str]()
    cells = (Cell("first", undone), Cell("second", undone, ValueError))
    error = raised(failure)
    with pytest.raises(failure) as caught:
        dispatch_and_raise(session, "dropped", error, *cells)
    assert caught.value is error
    assert error.__notes__ == [
        "While undoing 'tool', 1 of 3 parts could not be restored (1 sub-exception)"
    ]
    assert (undone, session[str].all()) == (["second", "first"], ())


def test_interrupt_during_the_rollback_of_an_error_is_raised() -> None:
    session = Session()
    with pytest.raises(KeyboardInterrupt) as caught:
        dispatch_and_raise(
            session, "dropped", ValueError("why it was undone"), Cell("cell", [], KeyboardInterrupt)
        )
    assert str(caught.value.__context__) == "why it was undone"
    assert session[str].all() == ()


def test_transaction_that_fails_to_start_changes_nothing() -> None:
    class Shy:
        def snapshot(self) -> Any:
            raise ValueError("not now")

        def restore(self, snapshot: Any, /) -> None:
            raise AssertionError("nothing to put back")

    session = Session()
    session.dispatch("kept")
    with pytest.raises(ValueError, match="not now"), tool_transaction(session, (Shy(),)):
        session.dispatch("never")
    assert session[str].all() == ("kept",)


# --------------------------------------------------------------------------------- with the
# resources of a context


class Handle:
    """A resource that records how it was closed."""

    def __init__(self, name: str, log: list[object]) -> None:
        self.name = name
        self.log = log

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.log.append((self.name, kind))


class Second(Handle):
    """Another type, which depends on the first."""


class Late(Cell):
    """A cell that is created on request, and closed."""

    def close(self) -> None:
        self.undone.append(f"{self.name} closed at {self.value}")


def context_of(log: list[Any], late: Late | None = None) -> ResourceContext:
    def second(resources: Resources) -> Second:
        resources.get(Handle)
        return Second("second", log)

    bindings: list[Binding[Any]] = [
        Binding(Handle, lambda _: Handle("first", log)),
        Binding(Second, second),
    ]
    if late is not None:
        bindings.append(Binding(Late, lambda _: late))
    return ResourceContext(ResourceRegistry.of(*bindings))


def failing(
    error: BaseException,
    resources: ResourceContext,
    *work: Callable[[], object],
    session: Session | None = None,
) -> None:
    """A block that does all this and then raises."""
    with tool_transaction(session or Session(), resources, "tool"):
        for step in work:
            step()
        raise error


@pytest.mark.parametrize("failure", FAILURES)
def test_resources_created_in_a_failing_transaction_are_closed_newest_first(
    failure: type[BaseException],
) -> None:
    log: list[Any] = []
    with context_of(log) as resources:
        with pytest.raises(failure):
            failing(raised(failure), resources, lambda: resources.get(Second))
        assert [name for name, _ in log] == ["second", "first"]
        assert all(kind is not None for _, kind in log)
        resources.get(Second)
    assert log[2:] == [("second", None), ("first", None)]


def test_resources_created_before_a_failing_transaction_stay_open() -> None:
    log: list[Any] = []
    with context_of(log) as resources:
        first = resources.get(Handle)
        with pytest.raises(ValueError, match="no"):
            failing(ValueError("no"), resources, lambda: resources.get(Second))
        assert [name for name, _ in log] == ["second"]
        assert resources.get(Handle) is first


def test_outer_rollback_restores_and_closes_resources_of_an_inner_transaction() -> None:
    log: list[str] = []
    late = Late("late", log)
    with context_of([], late) as resources:

        def inner() -> None:
            with tool_transaction(Session(), resources):
                resources.get(Late).value = 5

        with pytest.raises(ValueError, match="outer"):
            failing(
                ValueError("outer"),
                resources,
                inner,
                lambda: setattr(resources.get(Late), "value", 6),
            )
        assert log == ["late", "late closed at 0"]
        assert late.value == 0


def test_outer_rollback_inside_an_inner_transaction_leaves_nothing_to_commit() -> None:
    log: list[str] = []
    late = Late("late", log)
    with context_of([], late) as resources, tool_transaction(Session(), resources) as outer:
        with pytest.raises(ValueError, match="inner"):
            failing(
                ValueError("inner"),
                resources,
                outer.rollback,
                lambda: setattr(resources.get(Late), "value", 5),
            )
        assert late.value == 0
        assert log == ["late", "late closed at 0"]


def test_resource_that_fails_to_restore_is_reported_and_others_are_restored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log: list[Any] = []
    session = Session()
    with context_of(log, Late("late", log, OSError)) as resources:
        work = (
            lambda: session.dispatch("dropped"),
            lambda: resources.get(Handle),
            lambda: resources.get(Late),
        )
        with pytest.raises(ValueError, match="no") as caught:
            failing(ValueError("no"), resources, *work, session=session)
        assert caught.value.__notes__ == [
            "While undoing 'tool', 1 of 2 parts could not be restored (1 sub-exception)"
        ]
        assert log[:2] == ["late", "late closed at 0"]
        assert log[2][0] == "first"
    assert session[str].all() == ()
    assert "Undo failed" in caplog.text


def test_resource_whose_first_snapshot_fails_is_closed() -> None:
    class Shy(Late):
        def snapshot(self) -> int:
            raise ValueError("not now")

    log: list[Any] = []
    with context_of([], Shy("shy", log)) as resources:
        with tool_transaction(Session(), resources), pytest.raises(ValueError, match="not now"):
            resources.get(Late)
        assert log == ["shy closed at 0"]


def test_transaction_releases_initial_snapshots_at_its_end() -> None:
    class State:
        """The content of a snapshot."""

    class Big(Late):
        def snapshot(self) -> Any:
            states.append(weakref.ref(state := State()))
            return state

    states: list[weakref.ref[State]] = []
    with context_of([], Big("big", [])) as resources:
        with tool_transaction(Session(), resources), tool_transaction(Session(), resources):
            resources.get(Late)
        assert len(states) == 1
        for _ in range(10):
            with tool_transaction(Session(), resources):
                pass
        gc.collect()
        assert [state for state in states if state() is not None] == []


def test_control_flow_keeps_resources_created_in_the_transaction() -> None:
    log: list[Any] = []
    with context_of(log) as resources:
        built: list[Handle] = []
        with pytest.raises(Redirect):
            failing(Redirect(), resources, lambda: built.append(resources.get(Handle)))
        assert (resources.get(Handle) is built[0], log) == (True, [])


def test_transaction_in_async_code_rolls_back_like_in_sync_code() -> None:
    session, log = Session(), list[Any]()

    async def work(error: BaseException) -> None:
        async with resources, tool_transaction(session, resources, "tool"):
            session.dispatch("x")
            resources.get(Handle)
            await asyncio.sleep(0)
            raise error

    resources = context_of(log)
    for error in (ValueError("no"), asyncio.CancelledError(), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            asyncio.run(work(error))
    assert session[str].all() == ()
    with pytest.raises(Redirect):
        asyncio.run(work(Redirect()))
    assert session[str].all() == ("x",)
    assert [name for name, _ in log] == ["first"] * 4


def test_transaction_cannot_be_entered_while_it_is_active() -> None:
    session = Session()
    block = tool_transaction(session, tag="once")
    with block, pytest.raises(RuntimeError, match="'once' has already been entered"), block:
        raise AssertionError("entered")
    with block:  # afterwards, it can be entered again
        session.dispatch("kept")
    assert session[str].all() == ("kept",)
