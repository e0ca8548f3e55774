"""L10: after appends, seeds, clears, snapshots and restores, a slice equals its plain list."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from weakincentives.runtime.session import Append, Replace, Session, SessionSnapshot, Slice, SliceOp
from weakincentives.runtime.session.protocols import SliceView

KINDS: tuple[type, ...] = (int, str, float)

type Model = dict[type, list[Any]]  # Any: a model contains values of all types


def copied(model: Model) -> Model:
    return {kind: list(values) for kind, values in model.items()}


@dataclass(frozen=True)
class Both:
    """An event for two slices, one of which appends it, and the other one replaces its value."""

    text: str
    number: float


def append_text(view: SliceView[str], event: Both) -> SliceOp[str]:
    return Append(event.text)


def keep_two_numbers(view: SliceView[float], event: Both) -> SliceOp[float]:
    return Replace((*view.all()[-1:], event.number))


def refuse(view: SliceView[str], event: Both) -> SliceOp[str]:
    if event.text == "bad":
        raise ValueError(event.text)
    return append_text(view, event)


@dataclass
class Pair:
    """A session and the lists that it should equal."""

    session: Session = field(default_factory=Session)
    model: Model = field(default_factory=lambda: {kind: [] for kind in KINDS})

    def __post_init__(self) -> None:
        self.session[str].register(Both, append_text)
        self.session[float].register(Both, keep_two_numbers)
        self.session[str].register(Both, refuse)

    def check(self) -> None:
        for kind in KINDS:
            values = self.model[kind]
            stored: Slice[Any] = self.session[kind]  # Any: one of several kinds
            assert stored.all() == tuple(values) == tuple(stored)
            assert stored.latest() == (values[-1] if values else None)
            assert (len(stored), bool(stored)) == (len(values), bool(values))
            small = {kind(0), kind(1)}
            assert stored.where(small.__contains__) == tuple([v for v in values if v in small])


type Captured = tuple[SessionSnapshot, Model]


class SlicesEqualLists(RuleBasedStateMachine):
    """Several sessions, which may restore each other's snapshots; branches diverge and continue
    independently.
    """

    pairs = Bundle[Pair]("pairs")
    captures = Bundle[Captured]("captures")

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Pair] = []
        self.taken: list[Captured] = []

    @initialize(target=pairs)
    def start(self) -> Pair:
        return self.added()

    @rule(target=pairs)
    def another(self) -> Pair:
        return self.added()

    def added(self) -> Pair:
        self.all.append(Pair())
        return self.all[-1]

    @rule(
        pair=pairs,
        kind=st.sampled_from(KINDS),
        values=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    )
    def append(self, pair: Pair, kind: type, values: list[int]) -> None:
        for value in values:
            pair.session[kind].append(kind(value))
            pair.model[kind].append(kind(value))

    @rule(pair=pairs, value=st.integers(0, 9))
    def dispatch_without_reducers(self, pair: Pair, value: int) -> None:
        pair.session.dispatch(value)
        pair.model[int].append(value)

    @rule(pair=pairs, text=st.sampled_from(["x", "y"]), number=st.sampled_from([0.5, 1.5]))
    def dispatch_to_reducers(self, pair: Pair, text: str, number: float) -> None:
        pair.session.dispatch(Both(text, number))
        pair.model[str] += [text, text]
        pair.model[float] = [*pair.model[float][-1:], number]

    @rule(pair=pairs)
    def dispatch_in_vain(self, pair: Pair) -> None:
        """The third reducer raises, so that the changes of the first two must be undone."""
        with pytest.raises(ValueError, match="bad"):
            pair.session.dispatch(Both("bad", 2.5))

    @rule(pair=pairs, kind=st.sampled_from(KINDS), values=st.lists(st.integers(0, 9), max_size=3))
    def seed(self, pair: Pair, kind: type, values: list[int]) -> None:
        pair.session[kind].seed(*map(kind, values))
        pair.model[kind] = list(map(kind, values))

    @rule(pair=pairs, kind=st.sampled_from(KINDS))
    def clear(self, pair: Pair, kind: type) -> None:
        pair.session[kind].clear()
        pair.model[kind] = []

    @rule(pair=pairs, kind=st.sampled_from(KINDS), value=st.integers(0, 9))
    def clear_some(self, pair: Pair, kind: type, value: int) -> None:
        pair.session[kind].clear(lambda stored: stored == kind(value))
        pair.model[kind] = [stored for stored in pair.model[kind] if stored != kind(value)]

    @rule(pair=pairs, target=captures)
    def snapshot(self, pair: Pair) -> Captured:
        self.taken.append((pair.session.snapshot(), copied(pair.model)))
        return self.taken[-1]

    @rule(pair=pairs, captured=captures)
    def restore(self, pair: Pair, captured: Captured) -> None:
        snapshot, model = captured
        pair.session.restore(snapshot)
        pair.model = copied(model)

    @rule(captured=consumes(captures))
    def forget(self, captured: Captured) -> None:
        """Does not use a capture again, except at the end."""

    @invariant()
    def each_session_equals_its_lists(self) -> None:
        for pair in self.all:
            pair.check()

    def teardown(self) -> None:
        """Every capture, however old, still restores its content, in any session."""
        for snapshot, model in self.taken:
            for pair in (*self.all[:1], Pair()):
                pair.session.restore(snapshot)
                pair.model = copied(model)
                pair.check()


TestSlicesEqualLists = SlicesEqualLists.TestCase
TestSlicesEqualLists.settings = settings(max_examples=80, stateful_step_count=30)


def test_iteration_uses_the_values_at_its_start() -> None:
    session = Session()
    session[int].seed(1, 2)
    for value in session[int]:
        session[int].append(value * 10)
    assert session[int].all() == (1, 2, 10, 20)


def test_slice_repr_contains_its_size_but_not_its_values() -> None:
    session = Session()
    session[str].seed("secret")
    assert repr(session[str]) == "<Slice of 1 str>"
