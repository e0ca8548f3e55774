"""The bus delivers in order, by type, and lets no handler harm another; events are values with an
identity.
"""

import logging
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import FrozenInstanceError, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from weakincentives.limits import TokenUsage
from weakincentives.prompt import ToolResult
from weakincentives.protocols import EventBus
from weakincentives.runtime.events import (
    Event,
    InProcessEventBus,
    Operation,
    OverridesDropped,
    ParamsMissing,
    PromptExecuted,
    PromptRendered,
    ProviderCalled,
    ToolInvoked,
    ToolsInjected,
    VisibilityExpanded,
)


@dataclass(frozen=True)
class Note:
    text: str


@dataclass(frozen=True)
class Remark(Note):
    """A note of a kind."""


class Told:
    """Handlers that write down what they were given, and by what name they were asked."""

    def __init__(self) -> None:
        self.told: list[tuple[str, object]] = []

    def named(self, name: str) -> Callable[[object], None]:
        return lambda event: self.told.append((name, event))


def test_handlers_are_called_in_order_of_subscription_before_publish_returns() -> None:
    bus, told = InProcessEventBus(), Told()
    for name in ("first", "second", "third"):
        bus.subscribe(Note, told.named(name))
    note = Note("x")
    bus.publish(note)
    assert told.told == [("first", note), ("second", note), ("third", note)]


def test_a_subscription_to_a_base_is_told_of_every_kind_of_it_and_of_nothing_else() -> None:
    bus, told = InProcessEventBus(), Told()
    bus.subscribe(Remark, told.named("remarks"))
    bus.subscribe(Note, told.named("notes"))
    bus.subscribe(object, told.named("all"))
    for event in (Remark("r"), Note("n"), 1):
        bus.publish(event)
    assert [name for name, _ in told.told] == ["remarks", "notes", "all", "notes", "all", "all"]


def test_subscribing_counts_from_the_next_event_on() -> None:
    """Also for a type that was published before."""
    bus, told = InProcessEventBus(), Told()
    bus.publish(Note("before"))
    bus.subscribe(Note, told.named("late"))
    bus.publish(Note("after"))
    assert told.told == [("late", Note("after"))]


def test_ending_one_of_two_equal_subscriptions_leaves_the_other() -> None:
    bus, told = InProcessEventBus(), Told()
    handler = told.named("twice")
    end = bus.subscribe(Note, handler)
    bus.subscribe(Note, handler)
    bus.publish(Note("two"))
    end()
    end()
    bus.publish(Note("one"))
    assert [event for _, event in told.told] == [Note("two"), Note("two"), Note("one")]


def test_a_handler_may_subscribe_unsubscribe_and_publish() -> None:
    bus, told = InProcessEventBus(), Told()

    def once(note: Note) -> None:
        end()
        bus.subscribe(Note, told.named("next"))
        bus.publish(Remark(note.text + "!"))
        told.named("once")(note)

    end = bus.subscribe(Note, once)
    bus.subscribe(Note, told.named("after"))
    bus.publish(Note("x"))
    assert told.told == [
        ("after", Remark("x!")),
        ("next", Remark("x!")),
        ("once", Note("x")),
        ("after", Note("x")),
    ]


class Unprintable:
    """A handler that fails, and fails again when the log wants to name it."""

    def __call__(self, event: object) -> None:
        raise ValueError("no use")

    def __repr__(self) -> str:
        raise ValueError("no name")


def fail(event: object) -> None:
    raise ValueError("no use")


@pytest.mark.parametrize(("handler", "name"), [(fail, "fail"), (Unprintable(), "Unprintable")])
def test_a_failing_handler_is_logged_with_its_traceback_and_the_others_run(
    handler: Callable[[object], None], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    bus, told = InProcessEventBus(), Told()
    bus.subscribe(Note, told.named("before"))
    bus.subscribe(Note, handler)
    bus.subscribe(Note, told.named("after"))
    with caplog.at_level(logging.ERROR, logger="weakincentives.runtime.events"):
        bus.publish(Note("x"))
    assert [name for name, _ in told.told] == ["before", "after"]
    (record,) = caplog.records
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "no use"
    assert (record.__dict__["event_type"], record.__dict__["handler"]) == ("Note", name)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupt_in_a_handler_is_not_held_up(interrupt: type[BaseException]) -> None:
    def stop(event: object) -> None:
        raise interrupt

    bus = InProcessEventBus()
    bus.subscribe(Note, stop)
    with pytest.raises(interrupt):
        bus.publish(Note("x"))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            ("ToolInvoked", print),
            "subscribe got 'ToolInvoked'; give the class of events, such as ToolInvoked",
        ),
        (
            (Event, "print"),
            "subscribe got the handler 'print'; give a function that takes an event",
        ),
    ],
)
def test_what_can_hear_nothing_is_refused_when_it_subscribes_and_publishing_goes_on(
    given: Any, told: str
) -> None:
    bus = InProcessEventBus()
    with pytest.raises(TypeError, match=told):
        bus.subscribe(*given)
    heard: list[object] = []
    bus.subscribe(object, heard.append)
    bus.publish("an event")
    assert heard == ["an event"]


@pytest.mark.claim("C-14")
def test_an_in_process_bus_is_an_event_bus() -> None:
    bus: EventBus = InProcessEventBus()
    assert bus.publish(Note("nobody listens")) is None  # type: ignore[func-returns-value]


# ------------------------------------------------------------------------------------------------------
# the events

RESULT = ToolResult("Found.", Note("x"))
EVENTS = (
    PromptRendered(ns="n", key="k", name="p", adapter="a", text="t", tool_names=("one",)),
    ProviderCalled(adapter="a", turn=1, seconds=0.5),
    ToolInvoked(name="look", call_id="1", params=Note("q"), result=RESULT, content="Found.\n\n{}"),
    ToolsInjected(("one",), "section"),
    OverridesDropped(ns="n", key="k", tag="latest", texts=("body a",)),
    ParamsMissing(ns="n", key="k", sections=("a.b",), remedy="bind them: prompt.bind(Who(…))"),
    VisibilityExpanded(section_keys=("a",), reason="why"),
    PromptExecuted(
        prompt_name="p",
        adapter="a",
        text="t",
        output=None,
        usage=TokenUsage(),
        turns=1,
        seconds=0.1,
        session_id="s",
    ),
)


@pytest.mark.claim("DT-22")
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_has_an_id_of_its_own_and_an_aware_time(event: Event) -> None:
    twin = replace(event, event_id="other")
    assert event.event_id not in {"", "other"}
    assert twin != event
    assert event.created_at.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - event.created_at) < timedelta(hours=1)
    assert pickle.loads(pickle.dumps(event)) == event
    with pytest.raises(FrozenInstanceError):
        event.event_id = "mine"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


def test_no_two_events_share_an_id() -> None:
    assert len({VisibilityExpanded(section_keys=(), reason="").event_id for _ in range(100)}) == 100


def test_a_forked_process_counts_anew() -> None:
    source = """
import os
from weakincentives.runtime.events import Event
first = Event().event_id
inlet, outlet = os.pipe()
if os.fork() == 0:
    os.write(outlet, Event().event_id.encode())
    os._exit(0)
os.wait()
print(len({first, Event().event_id, os.read(inlet, 100).decode()}))
"""
    assert (
        subprocess.run(
            [sys.executable, "-c", source], capture_output=True, text=True, check=True
        ).stdout
        == "3\n"
    )


@pytest.mark.claim("DT-22", "U-05")
def test_tools_injected_takes_names_and_section_in_order_and_is_stamped_in_epoch_seconds() -> None:
    before = datetime.now(UTC).timestamp()
    event = ToolsInjected(("one", "two"), "section")
    assert (event.tool_names, event.section_key) == (("one", "two"), "section")
    assert before <= event.timestamp <= datetime.now(UTC).timestamp()
    assert ToolsInjected((), "section", timestamp=1.5).timestamp == 1.5
    assert not hasattr(event, "__dict__")


@pytest.mark.claim("TL-09")
@pytest.mark.parametrize(
    ("content", "rendered"),
    [("Found.\n\n{}", "{}"), ("Found.", ""), ("Found.\n\n\n spaced", "\n spaced")],
)
def test_a_tool_event_tells_the_value_as_the_model_saw_it(content: str, rendered: str) -> None:
    event = ToolInvoked(name="look", call_id="1", params=None, result=RESULT, content=content)
    assert event.rendered == rendered


def test_a_tool_event_succeeded_as_its_result_did() -> None:
    failed = replace(EVENTS[2], result=ToolResult[Note]("No.", success=False))
    assert isinstance(failed, ToolInvoked)
    assert not failed.success
    assert failed.result.value is None


# ----------------------------------------------------------------------------------------------------------
# work


def test_parts_of_a_work_are_published_only_if_somebody_wants_to_hear_of_the_end() -> None:
    bus, heard = InProcessEventBus(), list[Operation]()
    bus.subscribe(Operation, heard.append)
    with (whole := Operation(bus=bus, kind="evaluation", name="p", model="m", session_id="s")):
        with whole.part("tool", "unheard") as gave:
            gave("nobody keeps this")
        whole.on_end(lambda error: None)
        with whole.part("tool", "heard", call_id="1", text="{}") as gave:
            gave(7)
    assert [(work.name, work.parent, work.result) for work in heard] == [
        ("p", None, None),
        ("heard", whole, 7),
    ]
    part = heard[1]
    assert (part.kind, part.call_id, part.text, part.model, part.session_id) == (
        "tool",
        "1",
        "{}",
        "m",
        "s",
    )
    assert not part.observed


@pytest.mark.parametrize("raised", [None, ValueError("no"), KeyboardInterrupt()])
def test_the_end_of_a_work_is_told_newest_first_whatever_ends_it(
    raised: BaseException | None, caplog: pytest.LogCaptureFixture
) -> None:
    bus, told = InProcessEventBus(), Told()

    def listen(work: Operation) -> None:
        work.on_end(told.named("first"))
        work.on_end(fail)
        work.on_end(told.named("second"))

    bus.subscribe(Operation, listen)
    with suppress(ValueError, KeyboardInterrupt), Operation(bus=bus, kind="tool", name="look"):
        if raised is not None:
            raise raised
    assert told.told == [("second", raised), ("first", raised)]
    (record,) = caplog.records
    assert (record.__dict__["event_type"], record.__dict__["handler"]) == ("Operation", "fail")


def test_who_heard_of_a_work_hears_of_its_end_when_a_later_handler_is_interrupted() -> None:
    bus, told, interrupt = InProcessEventBus(), Told(), KeyboardInterrupt()

    def stop(work: Operation) -> None:
        raise interrupt

    bus.subscribe(Operation, lambda work: work.on_end(told.named("opened")))
    bus.subscribe(Operation, stop)
    with pytest.raises(KeyboardInterrupt), Operation(bus=bus, kind="tool", name="look"):
        raise AssertionError("it began")
    assert told.told == [("opened", interrupt)]
