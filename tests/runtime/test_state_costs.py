"""The costs of state, checked by counting references, calls and memory: none grows with the
history. W4 and W5.

Each value in a long history is the same object, so its reference count shows how many copies of the
history exist, and tracemalloc's peak shows whether there was one for a moment.
"""

import gc
import sys
import tracemalloc
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import pytest

from weakincentives.protocols import SliceView
from weakincentives.runtime.events import Event
from weakincentives.runtime.session import Append, Session, SliceOp
from weakincentives.runtime.transactions import tool_transaction

LONG = 100_000
ONE_COPY = LONG * 8  # a list of that many references, in bytes


@dataclass(frozen=True, slots=True)
class Entry:
    text: str


def long_session(entry: Entry, length: int = LONG) -> Session:
    session = Session()
    session[Entry].seed(*[entry] * length)
    return session


def commit(session: Session, entry: Entry) -> None:
    with tool_transaction(session, tag="tool"):
        session.dispatch(entry)


def roll_back(session: Session, entry: Entry) -> None:
    with tool_transaction(session, tag="tool") as transaction:
        session.dispatch(entry)
        transaction.rollback()


def raise_inside(session: Session, entry: Entry) -> None:
    try:
        with tool_transaction(session, tag="tool"):
            session.dispatch(entry)
            raise ValueError
    except ValueError:
        pass


def nest(session: Session, entry: Entry) -> None:
    """Makes the session leave a branch that a snapshot keeps, and continue on another one."""
    with tool_transaction(session, tag="outer"):
        session.dispatch(entry)
        with tool_transaction(session, tag="inner") as inner:
            session.dispatch(entry)
            session.snapshot()
            inner.rollback()
        session.dispatch(entry)


STEPS: dict[str, Callable[[Session, Entry], object]] = {
    "append": lambda session, entry: session[Entry].append(entry),
    "dispatch": lambda session, entry: session.dispatch(entry),
    "latest": lambda session, _entry: session[Entry].latest(),
    "length": lambda session, _entry: len(session[Entry]),
    "snapshot": lambda session, _entry: session.snapshot(),
    "restore": lambda session, _entry: session.restore(session.snapshot()),
    "commit": commit,
    "roll back": roll_back,
    "raise": raise_inside,
    "nest": nest,
}


@contextmanager
def memory() -> Generator[Callable[[], int]]:
    """Yields a function that returns the peak memory use beyond the use at the start."""
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def calls_during(run: Callable[[], object]) -> int:
    """Returns how many functions, in Python and C, are entered during `run`."""
    entered = 0

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal entered
        entered += event in {"call", "c_call"}

    before = sys.getprofile()
    gc.disable()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
        gc.enable()
    return entered


@pytest.mark.claim("U-13")
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_step_cost_does_not_depend_on_the_history_length(
    step: Callable[[Session, Entry], object],
) -> None:
    entry = Entry("x")
    sessions = [long_session(entry, length) for length in (10, 1_000, LONG)]
    for session in sessions:
        step(session, entry)
    assert len({calls_during(partial(step, session, entry)) for session in sessions}) == 1


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_repeated_steps_do_not_copy_the_history(
    step: Callable[[Session, Entry], object],
) -> None:
    entry = Entry("x")
    session = long_session(entry)
    step(session, entry)  # the list grows
    references = sys.getrefcount(entry)
    with memory() as peak:
        for _ in range(1_000):
            step(session, entry)
        used = peak()
    assert used < ONE_COPY // 2
    assert sys.getrefcount(entry) - references <= 3_000
    assert session[Entry].latest() is entry


def test_reading_all_values_copies_the_history() -> None:
    """Checks that the measures above would detect a copy."""
    entry = Entry("x")
    session = long_session(entry)
    references = sys.getrefcount(entry)
    with memory() as peak:
        everything = session[Entry].all()
        used = peak()
    assert used >= ONE_COPY
    assert sys.getrefcount(entry) - references == len(everything) == LONG


def test_rolled_back_values_are_freed() -> None:
    """Otherwise, each tool that fails before another one succeeds would leave a branch behind."""
    session, dropped = long_session(Entry("x"), 10), Entry("dropped")
    references = sys.getrefcount(dropped)
    for _ in range(100):
        roll_back(session, dropped)
        commit(session, Entry("kept"))
    assert sys.getrefcount(dropped) == references
    assert len(session[Entry]) == 110


def test_snapshots_share_the_history() -> None:
    entry = Entry("x")
    session = long_session(entry)
    references = sys.getrefcount(entry)
    snapshots = [session.snapshot() for _ in range(1_000)]
    assert sys.getrefcount(entry) == references
    for snapshot in snapshots:
        session.restore(snapshot)
    assert sys.getrefcount(entry) == references


def test_branches_share_their_common_history() -> None:
    entry, other = Entry("x"), Entry("y")
    session = long_session(entry)
    root = session.snapshot()
    references = sys.getrefcount(entry)
    branches = []
    for _ in range(100):
        session.restore(root)
        session.dispatch(other)
        branches.append(session.snapshot())
    assert sys.getrefcount(entry) == references
    for branch in branches:
        session.restore(branch)
        assert (len(session[Entry]), session[Entry].latest()) == (LONG + 1, other)


def test_restored_session_shares_the_history() -> None:
    entry = Entry("x")
    session, other = long_session(entry), Session()
    references = sys.getrefcount(entry)
    other.restore(session.snapshot())
    other.dispatch(Entry("y"))
    assert sys.getrefcount(entry) == references
    assert (len(other[Entry]), len(session[Entry])) == (LONG + 1, LONG)


def test_long_chain_of_branches_is_read_as_cheaply_as_a_short_one() -> None:
    """Each branch builds on the previous one; nothing may recurse from one to the next."""
    session = Session()
    for number in range(20_000):
        before = session.snapshot()
        session.dispatch(-1)
        session.snapshot()
        session.restore(before)
        session.dispatch(number)
    latest = calls_during(session[int].latest)
    assert session[int].all() == tuple(range(20_000))
    session[int].seed(0)
    assert calls_during(session[int].latest) == latest


@pytest.mark.claim("U-13")
def test_snapshot_cost_is_linear_in_the_number_of_slices() -> None:
    def cost(slices: int) -> int:
        session = Session()
        for number in range(slices):
            state: Any = type(f"State{number}", (), {})  # Any: classes created here
            telemetry: Any = type(f"Telemetry{number}", (Event,), {})
            session[state].append(1)
            session[telemetry].append(1)
        return calls_during(session.snapshot)

    assert cost(30) - cost(20) == cost(20) - cost(10)


def test_failing_reducer_is_rolled_back_without_copying_the_history() -> None:
    def keep(view: SliceView[Entry], event: str) -> SliceOp[Entry]:
        return Append(entry)

    def fail(view: SliceView[int], event: str) -> SliceOp[int]:
        raise ValueError

    entry = Entry("x")
    session = long_session(entry)
    session[Entry].register(str, keep)
    session[int].register(str, fail)
    session[Entry].append(entry)  # the list grows
    with memory() as peak:
        for _ in range(100):
            with pytest.raises(ValueError, match=r"^$"):
                session.dispatch("event")
        used = peak()
    assert used < ONE_COPY // 2
    assert len(session[Entry]) == LONG + 1
