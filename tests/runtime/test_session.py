"""Events are reduced into all of their slices in a session, or into none, from many threads."""

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Barrier
from time import sleep
from typing import Any

import pytest

from weakincentives.prompt import MarkdownSection, PromptTemplate, ToolResult
from weakincentives.protocols import EventBus, SessionProtocol, Snapshotable, StateView
from weakincentives.runtime.events import Event, InProcessEventBus, ToolInvoked, ToolsInjected
from weakincentives.runtime.session import (
    Append,
    Reducer,
    Replace,
    Session,
    SliceOp,
    append_all,
    reducer,
    replace_latest,
)
from weakincentives.runtime.session.protocols import SliceView
from weakincentives.testing import ScriptedAdapter, say
from weakincentives.visibility import SectionVisibility, SetVisibilityOverride, VisibilityOverrides

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY


@dataclass(frozen=True)
class Added:
    value: int


@dataclass(frozen=True)
class Total:
    value: int = 0

    @reducer(on=Added)
    def added(self, event: Added) -> "Total":
        return replace(self, value=self.value + event.value)


def count(view: SliceView[int], event: Added) -> SliceOp[int]:
    return Replace(((view.latest() or 0) + 1,))


def invoked(success: bool = True) -> ToolInvoked:  # noqa: FBT002 - it is the only argument
    result = ToolResult("Found." if success else "No.", 1 if success else None, success=success)
    return ToolInvoked(name="look", call_id="1", params=None, result=result, content=result.message)


# ---------------------------------------------------------------------------------------------
# dispatching


def test_session_repr_summarizes_its_slices_in_one_bounded_line() -> None:
    session = Session(session_id="mine")
    assert repr(session) == "<Session 'mine' holds []>"
    session[str].append("secret")
    session[int].seed(1, 2)
    assert repr(session) == "<Session 'mine' holds ['1 str', '2 int']>"
    many = Session(session_id="s\n" * 9_000)
    for at in range(100):
        state: type[Any] = type(f"State{at}" * 90, (), {})  # Any: a class created at run time
        many[state].append(state())
    assert len(repr(many)) < 300
    assert "\n" not in repr(many)


def test_reducers_of_one_event_run_in_order_on_the_previous_result() -> None:
    session = Session()
    for factor in (2, 3):

        def multiply(view: SliceView[int], event: Added, factor: int = factor) -> SliceOp[int]:
            return Replace(tuple(value * factor + event.value for value in view))

        session[int].register(Added, multiply)
    session[int].seed(1)
    session.dispatch(Added(10))
    assert session[int].all() == ((1 * 2 + 10) * 3 + 10,)


def test_event_with_reducers_is_kept_only_if_a_reducer_keeps_it() -> None:
    session = Session()
    session.install(Total)
    session.dispatch(Added(1))
    assert session[Added].all() == ()
    session[Added].register(Added, append_all)
    session.dispatch(Added(2))
    assert session[Added].all() == (Added(2),)
    assert session[Total].latest() == Total(3)


def test_reducers_match_the_exact_event_type() -> None:
    @dataclass(frozen=True)
    class AddedLoudly(Added):
        pass

    session = Session()
    session.install(Total)
    session.dispatch(AddedLoudly(1))
    assert session[Total].all() == ()
    assert session[AddedLoudly].all() == (AddedLoudly(1),)


BROKEN: dict[str, Any] = {  # Any: results that reducers must not return
    "nothing": None,
    "a bare value": 1,
    "a replacement by no tuple": Replace(None),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    "a type": Append,
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_reducer_with_an_invalid_result_changes_nothing(answer: Any, place: int) -> None:
    session = Session()
    session[Added].seed(Added(0))
    session[int].seed(5)
    folds: list[Callable[[], None]] = [
        lambda: session.install(Total),
        lambda: session[int].register(Added, count),
        lambda: session[Added].register(Added, append_all),
    ]
    folds.insert(place, lambda: session[str].register(Added, lambda _view, _event: answer))
    for fold in folds:
        fold()
    with pytest.raises(TypeError):
        session.dispatch(Added(1))
    assert (session[Added].all(), session[int].all(), session[Total].all(), session[str].all()) == (
        (Added(0),),
        (5,),
        (),
        (),
    )


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("others", [False, True])
def test_reducer_that_raises_changes_nothing(error: type[BaseException], *, others: bool) -> None:
    def fail(view: SliceView[int], event: Added) -> SliceOp[int]:
        raise error

    session = Session()
    if others:
        session.install(Total)
        session[Added].register(Added, append_all)
    session[int].seed(5)
    session[int].register(Added, fail)
    before = session.snapshot()
    with pytest.raises(error):
        session.dispatch(Added(1))
    assert (session[Added].all(), session[int].all(), session[Total].all()) == ((), (5,), ())
    session[int].append(6)
    session.restore(before)
    assert session[int].all() == (5,)


# ---------------------------------------------------------------------------------------------
# telemetry


@pytest.mark.claim("C-14")
def test_session_creates_its_own_bus_or_uses_the_given_one() -> None:
    bus = InProcessEventBus()
    assert Session(bus=bus).bus is bus
    assert isinstance(Session().bus, InProcessEventBus)
    assert Session().bus is not Session().bus


def evaluated(bus: EventBus) -> weakref.ref[Session]:
    """Evaluates with a new session on `bus`; returns a weak reference to the unused session."""
    session = Session(bus=bus)
    template = PromptTemplate(ns="n", key="k", sections=[MarkdownSection(title="A", template="x")])
    ScriptedAdapter([say("x")]).evaluate(template.bind(), session=session)
    return weakref.ref(session)


class Counting(EventBus):
    """An application's own bus, which counts its subscriptions."""

    def __init__(self) -> None:
        self.handlers: list[tuple[type, Callable[..., object]]] = []

    def subscribe[E](
        self, event_type: type[E], handler: Callable[[E], object], /
    ) -> Callable[[], None]:
        self.handlers.append((event_type, handler))
        return lambda: self.handlers.remove((event_type, handler))

    def publish(self, event: object, /) -> None:
        for kind, handler in list(self.handlers):
            if isinstance(event, kind):
                handler(event)


def test_shared_bus_keeps_no_session_alive() -> None:
    bus, shared = Counting(), InProcessEventBus()
    released = [evaluated(bus) for _ in range(20)] + [evaluated(shared) for _ in range(20)]
    gc.collect()
    assert [session for session in released if session() is not None] == []
    assert bus.handlers == []


def test_slice_keeps_its_values_but_does_not_keep_its_session_alive() -> None:
    bus = Counting()
    session = Session(bus=bus)
    injected, texts, weak = session[ToolsInjected], session[str], weakref.ref(session)
    bus.publish(ToolsInjected((), "x"))
    del session
    assert weak() is None
    assert bus.handlers == []
    texts.register(ToolsInjected, lambda _view, event: Append(event.section_key))
    bus.publish(ToolsInjected((), "y"))
    texts.append("a note")
    assert [event.section_key for event in injected] == ["x"]
    assert texts.all() == ("a note",)


def test_published_events_are_kept_in_log_slices_that_survive_a_restore() -> None:
    session = Session()
    before = session.snapshot()
    session.bus.publish(invoked())
    session.dispatch("state")
    session.restore(before)
    assert len(session[ToolInvoked]) == 1
    assert session[str].all() == ()


def test_session_records_events_with_its_own_session_id_or_none() -> None:
    bus = InProcessEventBus()
    first, other = Session(bus=bus, session_id="one"), Session(bus=bus, session_id="other")
    for session_id in ("one", "other", None):
        bus.publish(ToolsInjected((), "x", session_id=session_id))
    assert [event.session_id for event in first[ToolsInjected]] == ["one", None]
    assert [event.session_id for event in other[ToolsInjected]] == ["other", None]


def test_session_ignores_published_objects_that_are_not_events() -> None:
    session = Session()
    session.bus.publish(Added(1))
    assert session[Added].all() == ()


@pytest.mark.claim("TL-39")
def test_failed_tool_results_without_a_value_are_recorded() -> None:
    session = Session()
    events = [invoked(success=success) for success in (False, True, False)]
    for event in events:
        session.bus.publish(event)
    assert session[ToolInvoked].all() == tuple(events)
    assert [event.result.value for event in session[ToolInvoked]] == [None, 1, None]


@dataclass(frozen=True)
class Failures:
    count: int = 0

    @reducer(on=ToolInvoked)
    def saw(self, event: ToolInvoked) -> "Failures":
        return self if event.success else replace(self, count=self.count + 1)


def test_session_records_events_that_a_reducer_folds() -> None:
    session = Session()
    session.install(Failures)
    session[str].register(ToolInvoked, lambda _view, event: Append(event.name))
    session.dispatch(invoked(success=False))
    session.bus.publish(invoked(success=True))
    assert session[Failures].latest() == Failures(1)
    assert len(session[ToolInvoked]) == 2


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(("reduce", "count"), [(replace_latest, 1), (append_all, 3)])
def test_reducer_of_a_log_slice_determines_which_events_are_kept(
    reduce: Reducer[ToolInvoked, ToolInvoked], count: int, place: int
) -> None:
    session = Session()
    folds: list[Callable[[], None]] = [
        lambda: session.install(Failures),
        lambda: session[str].register(ToolInvoked, lambda _view, event: Append(event.name)),
    ]
    folds.insert(place, lambda: session[ToolInvoked].register(ToolInvoked, reduce))
    for fold in folds:
        fold()
    events = [invoked(success=False) for _ in range(3)]
    for event in events:
        session.bus.publish(event)
    assert session[ToolInvoked].all() == tuple(events[-count:])
    assert session[Failures].latest() == Failures(3)
    assert len(session[str]) == 3


def test_reducer_error_on_a_published_event_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fail(view: SliceView[int], event: ToolInvoked) -> SliceOp[int]:
        raise ValueError("no use")

    session, events = Session(), list[object]()
    session[int].register(ToolInvoked, fail)
    session.bus.subscribe(Event, events.append)
    session.bus.publish(invoked())
    assert len(events) == 1
    assert [record.exc_info is not None for record in caplog.records] == [True]


# ----------------------------------------------------------------------------------------------
# snapshots, visibility


def test_snapshot_with_unknown_slices_can_be_restored_in_another_session() -> None:
    first, other = Session(), Session()
    first.dispatch("text")
    first.bus.publish(invoked())
    other.dispatch(1.5)
    other.restore(first.snapshot())
    assert other[str].all() == ("text",)
    assert (other[float].all(), other[ToolInvoked].all()) == ((), ())


def test_visibility_overrides_are_folded_into_one_value() -> None:
    session = Session()
    session[VisibilityOverrides].seed(
        VisibilityOverrides(overrides={("a",): SUMMARY, ("b",): FULL})
    )
    session.dispatch(SetVisibilityOverride(path=("a",), visibility=FULL))
    session.dispatch(SetVisibilityOverride(path=("c", "d"), visibility=SUMMARY))
    assert session[VisibilityOverrides].all() == (
        VisibilityOverrides({("a",): FULL, ("b",): FULL, ("c", "d"): SUMMARY}),
    )
    assert session[SetVisibilityOverride].all() == ()


def test_session_implements_its_protocols() -> None:
    session = Session(session_id="mine")
    as_session: SessionProtocol = session
    as_state: StateView = session
    bus: EventBus = as_session.bus
    assert isinstance(session, Snapshotable)
    assert (as_session.session_id, as_state[int].all(), bus) == ("mine", (), session.bus)
    assert Session().session_id != Session().session_id


# ---------------------------------------------------------------------------------------------
# threads

THREADS, EACH = 32, 60


@pytest.fixture(name="restless")
def _restless() -> Iterator[None]:
    """Makes threads switch as often as the interpreter allows."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def count_slowly(view: SliceView[int], event: Added) -> SliceOp[int]:
    sleep(0)  # lets other threads run in the middle of a dispatch
    return count(view, event)


def counting() -> Session:
    session = Session()
    session.install(Total)
    session[int].register(Added, count_slowly)
    session[Added].register(Added, append_all)
    return session


@pytest.mark.claim("U-03")
@pytest.mark.usefixtures("restless")
def test_concurrent_dispatches_lose_no_event_and_reach_all_slices() -> None:
    session, start = counting(), Barrier(THREADS)

    def work(thread: int) -> list[tuple[int, int, int]]:
        start.wait()
        seen: list[tuple[int, int, int]] = []
        for step in range(EACH):
            session.dispatch(Added(1))
            session.dispatch(f"{thread}.{step}")
            session.bus.publish(ToolsInjected((f"{thread}.{step}",), "x"))
            copy = Session()
            copy.restore(session.snapshot())
            total = copy[Total].latest() or Total()
            seen.append((total.value, copy[int].latest() or 0, len(copy[Added])))
        return seen

    with ThreadPoolExecutor(THREADS) as pool:
        seen = [moment for moments in pool.map(work, range(THREADS)) for moment in moments]
    assert session[Total].all() == (Total(THREADS * EACH),)
    assert session[int].all() == (THREADS * EACH,)
    assert len(session[Added]) == THREADS * EACH
    for log in (session[str].all(), [event.tool_names[0] for event in session[ToolsInjected]]):
        by_thread = [
            [text for text in log if text.startswith(f"{thread}.")] for thread in range(THREADS)
        ]
        assert by_thread == [
            [f"{thread}.{step}" for step in range(EACH)] for thread in range(THREADS)
        ]
    assert len(seen) == THREADS * EACH
    assert all(total == folded == kept for total, folded, kept in seen)


@pytest.mark.usefixtures("restless")
def test_concurrent_subscriptions_and_registrations_lose_nothing() -> None:
    session, start, events = Session(), Barrier(THREADS), list[object]()
    kinds: list[Any] = [type(f"Kind{number}", (), {}) for number in range(100)]

    def work(thread: int) -> None:
        for kind in kinds:
            start.wait()
            session.bus.subscribe(kind, events.append)
            session[kind].register(Added, append_all)
            session[kind].append(thread)
        session.bus.publish(kinds[-1]())

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
    assert [sorted(session[kind].all()) for kind in kinds] == [list(range(THREADS))] * len(kinds)
    events.clear()
    session.bus.publish(kinds[0]())
    assert len(events) == THREADS
    session.dispatch(Added(1))
    assert [len(session[kind]) for kind in kinds] == [2 * THREADS] * len(kinds)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (Added, "append"),
            "the reducer for register must be a function of slice and event, such as",
        ),
        (("Added", append_all), "the event type for register must be a class, got 'Added'"),
    ],
)
def test_register_requires_an_event_class_and_a_callable(arguments: Any, message: str) -> None:
    session = Session()
    with pytest.raises(TypeError, match=message):
        session[Added].register(*arguments)
    session.dispatch(Added(1))
    assert session[Added].all() == (Added(1),)


def test_dispatching_a_class_raises_type_error() -> None:
    session = Session()
    with pytest.raises(TypeError, match="dispatch takes an instance of an event, got"):
        session.dispatch(Session)


# Any: type checkers reject these, too.
@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda session: session["Plan"],
            "takes a class, such as session\\[Plan\\], got 'Plan'",
        ),
        (
            lambda session: SetVisibilityOverride(path="guide", visibility=FULL),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            "path must be a tuple of section keys, such as \\('guide', 'details'\\)",
        ),
        (lambda session: session.restore("{}"), "restore takes a snapshot, such as"),
    ],
)
def test_name_path_or_snapshot_of_the_wrong_type_raises_type_error(
    use: Callable[[Any], object], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        use(Session())
