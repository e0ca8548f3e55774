"""Law L10 for forks (a slice equals its list), and when a session can merge one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.limits import TokenUsage
from weakincentives.protocols import Forkable, SessionProtocol
from weakincentives.resources import NotIsolatedError
from weakincentives.runtime.events import Event, InProcessEventBus, ProviderCalled
from weakincentives.runtime.session import Append, Session
from weakincentives.runtime.session.fork import SessionFork


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping(Event):
    number: int = 0


def forked(*values: int) -> tuple[Session, SessionFork]:
    session = Session()
    session[int].seed(*values)
    return session, session.fork()


def test_fork_has_the_session_id_of_its_session() -> None:
    session, fork = forked()
    assert fork.session_id == session.session_id


# ---------------------------------------------------------------------------------------------
# L10: a slice equals its list


# Operations on a slice of a fork, and on a list.
_WRITES: dict[
    str, tuple[Callable[[SessionProtocol, int], object], Callable[[list[int], int], list[int]]]
] = {
    "append": (
        lambda session, number: session[int].append(number),
        lambda model, number: [*model, number],
    ),
    "dispatch": (
        lambda session, number: session.dispatch(number),
        lambda model, number: [*model, number],
    ),
    "seed": (
        lambda session, number: session[int].seed(number, number),
        lambda model, number: [number, number],
    ),
    "clear": (lambda session, number: session[int].clear(), lambda model, number: []),
    "clear some": (
        lambda session, number: session[int].clear(lambda value: value == number),
        lambda model, number: [value for value in model if value != number],
    ),
}
_STEPS = st.tuples(st.sampled_from([*_WRITES, "snapshot", "restore", "read"]), st.integers(0, 3))


@given(
    start=st.lists(st.integers(0, 3), max_size=3),
    elsewhere=st.booleans(),
    steps=st.lists(_STEPS, max_size=20),
)
def test_fork_matches_the_reference_list_and_merge_applies_it(
    start: list[int], elsewhere: bool, steps: list[tuple[str, int]]
) -> None:
    """This holds whatever is snapshotted and restored in between, in any order."""
    session, fork = forked(*start)
    model, read = list(start), False
    snapshots = [(fork.snapshot(), list(model))]
    for what, number in steps:
        match what:
            case "snapshot":
                snapshots.append((fork.snapshot(), list(model)))
            case "restore":
                captured, then = snapshots[number % len(snapshots)]
                fork.restore(captured)
                model = list(then)
            case "read":
                read = True
                values = fork[int]
                assert values.all() == tuple(model) == tuple(values)
                assert values.latest() == (model[-1] if model else None)
                assert (len(values), bool(values)) == (len(model), bool(model))
                large = [value for value in model if value > 1]
                assert list(values.where(lambda value: value > 1)) == large
            case _:
                on_slice, on_list = _WRITES[what]
                on_slice(fork, number)
                model = on_list(model, number)
                read |= what == "clear some"
    assert session[int].all() == tuple(start)
    if elsewhere:
        session[int].append(9)
        assert session.merge(fork) is not read
        assert not read or session[int].all() == (*start, 9)
    else:
        assert session.merge(fork)
        assert session[int].all() == tuple(model)


# ---------------------------------------------------------------------------------------------
# merging


def test_session_is_forkable_and_a_fork_is_not() -> None:
    session, fork = forked()
    assert isinstance(session, Forkable)
    assert not isinstance(fork, Forkable)


@pytest.mark.parametrize(
    "change",
    [
        lambda session: session[str].append("x"),
        lambda session: session[float].clear(),
        lambda session: session.restore(session.snapshot()),
        lambda session: session[str].seed(),
    ],
    ids=["another slice", "an empty slice", "a restore", "nothing"],
)
def test_merge_succeeds_if_the_slices_that_were_read_have_not_changed(
    change: Callable[[Session], object],
) -> None:
    session, fork = forked(1)
    assert fork[int].all() == (1,)
    assert fork[float].latest() is None
    change(session)
    assert session.merge(fork)


def test_merge_fails_if_a_slice_that_was_read_empty_has_a_value() -> None:
    session, fork = forked()
    assert not fork[str]
    session.dispatch("new")
    assert not session.merge(fork)


@pytest.mark.parametrize(
    "change",
    [
        lambda fork: fork[int].append(1),
        lambda fork: fork[int].clear(),
        lambda fork: fork.dispatch("folded into a number"),
    ],
    ids=["written", "cleared", "dispatched"],
)
@pytest.mark.parametrize("previewed", [True, False])
def test_previewed_changes_are_merged_only_if_their_slices_have_not_changed(
    change: Callable[[SessionFork], object], *, previewed: bool
) -> None:
    session = Session()
    session[int].register(str, lambda view, event: Append(1))
    fork = session.fork()
    change(fork)
    if previewed:
        fork.state_changes()
    session[int].append(9)
    assert session.merge(fork) is not previewed


def test_merge_folds_dispatched_events_again() -> None:
    session = Session()
    session[int].register(str, lambda view, event: Append(len(view)))
    first, second = session.fork(), session.fork()
    first.dispatch("a")
    second.dispatch("b")
    assert session.merge(first)
    assert session.merge(second)
    assert session[int].all() == (0, 1)


def test_fork_created_before_a_new_reducer_is_not_merged() -> None:
    session, fork = forked()
    fork.dispatch(1)
    session[str].register(int, lambda view, event: Append("x"))
    assert not session.merge(fork)
    assert session.merge(session.fork())


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_failed_merge_changes_nothing_and_publishes_nothing(
    failure: type[BaseException],
) -> None:
    session = Session()
    pings: list[Ping] = []
    session.bus.subscribe(Ping, pings.append)

    def only_once(view: Any, event: str) -> Append[int]:
        if len(view):
            raise failure
        return Append(1)

    session[int].register(str, only_once)
    fork = session.fork()
    fork[float].append(1.0)
    fork.bus.publish(Ping())
    fork.dispatch("x")
    session.dispatch("x")
    if issubclass(failure, Exception):
        assert not session.merge(fork)
    else:
        with pytest.raises(failure):
            session.merge(fork)
    assert (session[float].all(), session[int].all(), pings) == ((), (1,), [])


# ---------------------------------------------------------------------------------------------
# events


def test_fork_can_be_merged_only_once_and_only_into_its_session() -> None:
    session, fork = forked(1)
    fork.dispatch(2)
    other = Session()
    with pytest.raises(
        ValueError, match="belongs to another session; merge it into the session that created it"
    ):
        other.merge(fork)
    assert session.merge(fork)
    with pytest.raises(ValueError, match="has already been merged; fork the session again"):
        session.merge(fork)
    assert (session[int].all(), other[int].all()) == ((1, 2), ())


def test_fork_with_a_conflict_can_be_merged_later() -> None:
    session, fork = forked(1)
    fork[int].append(len(fork[int]))
    before = session.snapshot()
    session.dispatch(2)
    assert not session.merge(fork)
    session.restore(before)
    assert session.merge(fork)
    assert session[int].all() == (1, 1)


def test_fork_events_are_published_on_merge_and_survive_a_restore() -> None:
    session, fork = forked()
    other = InProcessEventBus()
    events: list[tuple[str, int]] = []
    session.bus.subscribe(Ping, lambda ping: events.append(("own", ping.number)))
    other.subscribe(Ping, lambda ping: events.append(("other", ping.number)))
    before = fork.snapshot()
    fork.bus.publish(Ping(number=1))
    fork.bus_for(other).publish(Ping(number=2))
    fork.dispatch(Ping(number=3))
    fork[int].append(1)
    fork.restore(before)
    assert (events, session[Ping].all()) == ([], ())
    assert session.merge(fork)
    assert events == [("own", 1), ("other", 2)]
    assert [ping.number for ping in session[Ping].all()] == [1, 3]
    assert session[int].all() == ()


def test_discarded_fork_publishes_its_requests_once_and_no_other_events() -> None:
    session, fork = forked()
    fork.bus.publish(Ping())
    fork.bus.publish(ProviderCalled(adapter="scripted", turn=1, seconds=0.0, usage=TokenUsage()))
    for _ in range(2):
        fork.discard()
    assert (len(session[ProviderCalled]), len(session[Ping])) == (1, 0)
    with pytest.raises(ValueError, match="already been merged"):
        session.merge(fork)


def test_bus_for_the_session_bus_is_the_bus_of_the_fork() -> None:
    session, fork = forked()
    assert fork.bus_for(session.bus) is fork.bus


# ---------------------------------------------------------------------------------------------
# rejections


class Silent(InProcessEventBus):
    """Another bus."""


# Any: the requested attributes are not in the protocols.
ASKED: dict[str, Callable[[Any], object]] = {
    "telemetry": lambda fork: fork[Ping],
    "subscribing": lambda fork: fork.bus.subscribe(Ping, print),
    "subscribing elsewhere": lambda fork: fork.bus_for(Silent()).subscribe(Ping, print),
    "registering": lambda fork: fork[int].register(str, print),
    "installing": lambda fork: fork.install(int),
    "declaring": lambda fork: fork.declare(float),
    "forking": lambda fork: fork.fork(),
    "a bus of its own kind": lambda fork: fork.bus.handlers,
    "what is folded, published": lambda fork: fork.bus.publish(Ping()),
    "what is folded, dispatched": lambda fork: fork.dispatch(Ping()),
    "another snapshot": lambda fork: fork.restore(Session().snapshot()),
    "another fork's snapshot": lambda fork: fork.restore(Session().fork().snapshot()),
}


@pytest.mark.parametrize("what", ASKED)
def test_fork_raises_not_isolated_error_for_operations_it_cannot_isolate(what: str) -> None:
    session = Session()
    session[int].register(Ping, lambda view, event: Append(event.number))
    fork = session.fork()
    assert not fork.refused
    with pytest.raises(NotIsolatedError):
        ASKED[what](fork)
    assert fork.refused


def test_failed_dispatch_marks_the_fork_as_refused() -> None:
    _, fork = forked()
    with pytest.raises(TypeError):
        fork.dispatch(int)
    assert fork.refused


def test_private_attribute_access_does_not_mark_the_fork_as_refused() -> None:
    """This way, copying, printing and probing a fork work as they do for other objects."""
    _, fork = forked()
    assert not hasattr(fork, "_nothing")
    assert repr(fork[int]) == "<Slice of 0 int>"
    assert fork.reads == {int}
    assert not fork.refused
