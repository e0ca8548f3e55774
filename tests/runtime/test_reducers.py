"""Reducers: the built-in ones compared with plain loops, and those that a state class declares."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.runtime.session import (
    Reducer,
    Session,
    append_all,
    reducer,
    replace_latest,
    replace_latest_by,
    upsert_by,
)


@dataclass(frozen=True)
class Fact:
    about: str
    value: int


@dataclass(frozen=True)
class Tick:
    by: int = 1


@dataclass(frozen=True)
class Reset:
    pass


@dataclass(frozen=True)
class Counter:
    count: int = 0

    @reducer(on=Tick)
    def ticked(self, event: Tick) -> "Counter":
        return replace(self, count=self.count + event.by)

    @reducer(on=Reset)
    def reset(self, event: Reset) -> "Counter":
        return replace(self, count=0)


facts = st.lists(st.builds(Fact, st.sampled_from("abc"), st.integers(0, 3)), max_size=12)


def about(fact: Fact) -> str:
    return fact.about


def by_arrival(events: list[Fact]) -> list[Fact]:
    """Returns the newest value for each key, in the order of arrival."""
    return [
        event
        for index, event in enumerate(events)
        if all(about(late) != about(event) for late in events[index + 1 :])
    ]


def by_key(events: list[Fact]) -> list[Fact]:
    """Returns the newest value for each key, at the place of the first one with that key."""
    return list({about(event): event for event in events}.values())


BUILT_IN: dict[str, tuple[Reducer[Fact, Fact], Callable[[list[Fact]], list[Fact]]]] = {
    "append_all": (append_all, list),
    "replace_latest": (replace_latest, lambda events: events[-1:]),
    "replace_latest_by": (replace_latest_by(about), by_arrival),
    "upsert_by": (upsert_by(about), by_key),
}


@pytest.mark.parametrize("name", BUILT_IN)
@given(events=facts)
def test_built_in_reducer_matches_the_reference_fold(name: str, events: list[Fact]) -> None:
    reduce, fold = BUILT_IN[name]
    session = Session()
    session[Fact].register(Fact, reduce)
    for event in events:
        session.dispatch(event)
    assert session[Fact].all() == tuple(fold(events))


@given(events=facts)
def test_events_without_a_reducer_are_all_kept(events: list[Fact]) -> None:
    session = Session()
    for event in events:
        session.dispatch(event)
    assert session[Fact].all() == tuple(events)


# ---------------------------------------------------------------------------------------------
# declared reducers


def dispatched(state: type, *events: object) -> Session:
    session = Session()
    session.install(state)
    for event in events:
        session.dispatch(event)
    return session


def test_declared_reducers_fold_events_into_the_latest_state() -> None:
    assert dispatched(Counter, Tick(2), Tick(3))[Counter].all() == (Counter(5),)
    assert dispatched(Counter, Tick(2), Reset(), Tick(4))[Counter].all() == (Counter(4),)


def test_state_does_not_exist_before_its_first_event() -> None:
    assert dispatched(Counter)[Counter].latest() is None


def test_first_event_is_folded_into_the_seeded_state() -> None:
    session = Session()
    session.install(Counter)
    session[Counter].seed(Counter(7))
    session.dispatch(Tick())
    assert session[Counter].latest() == Counter(8)


@dataclass(frozen=True)
class Twice(Counter):
    """Overrides a reducer without marking it again, and adds one for the same event."""

    ticks: int = 0

    def ticked(self, event: Tick) -> "Twice":
        return replace(self, count=self.count + 2 * event.by)

    @reducer(on=Tick)
    def counted(self, event: Tick) -> "Twice":
        return replace(self, ticks=self.ticks + 1)


@dataclass(frozen=True, slots=True)
class OnReset(Counter):
    """Marks an inherited reducer for another event."""

    @reducer(on=Fact)
    def ticked(self, event: Fact) -> "OnReset":  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
        return replace(self, count=self.count + event.value)


def test_subclass_inherits_reducers_and_uses_its_overrides() -> None:
    session = dispatched(Twice, Tick(3), Reset(), Tick(5))
    assert session[Twice].all() == (Twice(count=10, ticks=2),)
    assert session[Counter].all() == ()


def test_two_reducers_for_the_same_event_both_apply() -> None:
    assert dispatched(Twice, Tick(1))[Twice].latest() == Twice(count=2, ticks=1)


def test_reducer_decorator_on_an_override_replaces_the_inherited_event() -> None:
    session = dispatched(OnReset, Fact("x", 4), Tick(1))
    assert session[OnReset].all() == (OnReset(4),)
    assert session[Tick].all() == (Tick(1),)


def test_base_and_subclass_can_both_be_installed() -> None:
    session = Session()
    session.install(Counter)
    session.install(Twice)
    session.dispatch(Tick(1))
    assert session[Counter].latest() == Counter(1)
    assert session[Twice].latest() == Twice(count=2, ticks=1)


def test_install_of_a_type_without_reducers_raises_type_error() -> None:
    with pytest.raises(TypeError, match=r"Fact declares no reducers; mark methods with @reducer"):
        Session().install(Fact)


@dataclass(frozen=True)
class Forgetful:
    """A class whose reducer forgets to return, which type checkers would report."""

    count: int = 0

    @reducer(on=Tick)
    def ticked(self, event: Tick) -> "Forgetful":
        replace(self, count=self.count + event.by)
        return None  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


@dataclass(frozen=True)
class Needy:
    count: int

    @reducer(on=Tick)
    def ticked(self, event: Tick) -> "Needy":
        return Needy(self.count + event.by)


def test_reducer_that_returns_none_raises_type_error_and_changes_nothing() -> None:
    session = Session()
    session.install(Forgetful)
    session[Forgetful].seed(Forgetful(3))
    with pytest.raises(
        TypeError, match=r"Forgetful\.ticked must return the next Forgetful, got None"
    ):
        session.dispatch(Tick())
    assert session[Forgetful].all() == (Forgetful(3),)


def test_state_without_defaults_must_be_seeded_before_its_first_event() -> None:
    session = Session()
    session.install(Needy)
    with pytest.raises(
        TypeError,
        match=r"no Needy has been seeded, .*; seed one with session\[Needy\]\.seed\(Needy\(…\)\)",
    ):
        session.dispatch(Tick())
    session[Needy].seed(Needy(4))
    session.dispatch(Tick())
    assert session[Needy].all() == (Needy(5),)


def test_installing_a_type_twice_raises_value_error() -> None:
    session = dispatched(Counter)
    with pytest.raises(ValueError, match="Counter is already installed in this session"):
        session.install(Counter)
    session.dispatch(Tick())
    assert session[Counter].latest() == Counter(1)


def test_method_can_be_decorated_with_reducer_only_once() -> None:
    with pytest.raises(TypeError, match=r"Counter\.ticked is already marked"):
        reducer(on=Tick)(Counter.ticked)


def test_state_that_cannot_be_created_leaves_the_session_unchanged() -> None:
    @dataclass(frozen=True)
    class Plan:
        goal: str

        @reducer(on=Tick)
        def ticked(self, event: Tick) -> "Plan":
            return self

    session = dispatched(Plan)
    with pytest.raises(TypeError, match="goal"):
        session.dispatch(Tick())
    assert (session[Plan].all(), session[Tick].all()) == ((), ())
