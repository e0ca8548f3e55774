"""The bus delivers in order, by type, and isolates handlers from each other; events are values with
an identity.
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
    """A kind of note."""


class Recorder:
    """Creates handlers that record each event under their own name."""

    def __init__(self) -> None:
        self.events: list[tuple[str, object]] = []

    def named(self, name: str) -> Callable[[object], None]:
        return lambda event: self.events.append((name, event))


def test_handlers_are_called_in_order_of_subscription_before_publish_returns() -> None:
    bus, recorder = InProcessEventBus(), Recorder()
    for name in ("first", "second", "third"):
        bus.subscribe(Note, recorder.named(name))
    note = Note("x")
    bus.publish(note)
    assert recorder.events == [("first", note), ("second", note), ("third", note)]


def test_subscription_to_a_base_class_also_receives_subclass_events() -> None:
    bus, recorder = InProcessEventBus(), Recorder()
    bus.subscribe(Remark, recorder.named("remarks"))
    bus.subscribe(Note, recorder.named("notes"))
    bus.subscribe(object, recorder.named("all"))
    for event in (Remark("r"), Note("n"), 1):
        bus.publish(event)
    names = [name for name, _ in recorder.events]
    assert names == ["remarks", "notes", "all", "notes", "all", "all"]


def test_subscription_receives_only_later_events() -> None:
    """This also applies to a type that was published before."""
    bus, recorder = InProcessEventBus(), Recorder()
    bus.publish(Note("before"))
    bus.subscribe(Note, recorder.named("late"))
    bus.publish(Note("after"))
    assert recorder.events == [("late", Note("after"))]


def test_unsubscribing_one_of_two_equal_subscriptions_keeps_the_other() -> None:
    bus, recorder = InProcessEventBus(), Recorder()
    handler = recorder.named("twice")
    end = bus.subscribe(Note, handler)
    bus.subscribe(Note, handler)
    bus.publish(Note("two"))
    end()
    end()
    bus.publish(Note("one"))
    assert [event for _, event in recorder.events] == [Note("two"), Note("two"), Note("one")]


def test_handler_may_subscribe_unsubscribe_and_publish() -> None:
    bus, recorder = InProcessEventBus(), Recorder()

    def once(note: Note) -> None:
        end()
        bus.subscribe(Note, recorder.named("next"))
        bus.publish(Remark(note.text + "!"))
        recorder.named("once")(note)

    end = bus.subscribe(Note, once)
    bus.subscribe(Note, recorder.named("after"))
    bus.publish(Note("x"))
    assert recorder.events == [
        ("after", Remark("x!")),
        ("next", Remark("x!")),
        ("once", Note("x")),
        ("after", Note("x")),
    ]


class Unprintable:
    """A handler that fails, and fails again when the log formats its name."""

    def __call__(self, event: object) -> None:
        raise ValueError("no use")

    def __repr__(self) -> str:
        raise ValueError("no name")


def fail(event: object) -> None:
    raise ValueError("no use")


@pytest.mark.parametrize(("handler", "name"), [(fail, "fail"), (Unprintable(), "Unprintable")])
def test_failing_handler_is_logged_and_the_other_handlers_run(
    handler: Callable[[object], None], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    bus, recorder = InProcessEventBus(), Recorder()
    bus.subscribe(Note, recorder.named("before"))
    bus.subscribe(Note, handler)
    bus.subscribe(Note, recorder.named("after"))
    with caplog.at_level(logging.ERROR, logger="weakincentives.runtime.events"):
        bus.publish(Note("x"))
    assert [name for name, _ in recorder.events] == ["before", "after"]
    (record,) = caplog.records
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "no use"
    assert (record.__dict__["event_type"], record.__dict__["handler"]) == ("Note", name)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_interrupt_in_a_handler_reaches_the_publisher(interrupt: type[BaseException]) -> None:
    def stop(event: object) -> None:
        raise interrupt

    bus = InProcessEventBus()
    bus.subscribe(Note, stop)
    with pytest.raises(interrupt):
        bus.publish(Note("x"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("ToolInvoked", print),
            "the event type for subscribe must be a class, such as ToolInvoked, got 'ToolInvoked'",
        ),
        (
            (Event, "print"),
            "the handler for subscribe must be a function that takes an event, got 'print'",
        ),
    ],
)
def test_subscribe_requires_a_class_and_a_callable(arguments: Any, message: str) -> None:
    bus = InProcessEventBus()
    with pytest.raises(TypeError, match=message):
        bus.subscribe(*arguments)
    events: list[object] = []
    bus.subscribe(object, events.append)
    bus.publish("an event")
    assert events == ["an event"]


@pytest.mark.claim("C-14")
def test_in_process_event_bus_implements_event_bus() -> None:
    bus: EventBus = InProcessEventBus()
    assert bus.publish(Note("nobody listens")) is None  # type: ignore[func-returns-value]


# ---------------------------------------------------------------------------------------------
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
def test_event_is_frozen_and_has_its_own_id_and_an_aware_time(event: Event) -> None:
    twin = replace(event, event_id="other")
    assert event.event_id not in {"", "other"}
    assert twin != event
    assert event.created_at.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - event.created_at) < timedelta(hours=1)
    assert pickle.loads(pickle.dumps(event)) == event
    with pytest.raises(FrozenInstanceError):
        event.event_id = "mine"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


def test_event_ids_are_unique() -> None:
    assert len({VisibilityExpanded(section_keys=(), reason="").event_id for _ in range(100)}) == 100


def test_event_ids_differ_in_a_forked_process() -> None:
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
def test_tools_injected_takes_names_and_section_and_has_an_epoch_timestamp() -> None:
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
def test_tool_invoked_rendered_is_the_value_as_sent_to_the_model(
    content: str, rendered: str
) -> None:
    event = ToolInvoked(name="look", call_id="1", params=None, result=RESULT, content=content)
    assert event.rendered == rendered


def test_tool_invoked_success_matches_its_result() -> None:
    failed = replace(EVENTS[2], result=ToolResult[Note]("No.", success=False))
    assert isinstance(failed, ToolInvoked)
    assert not failed.success
    assert failed.result.value is None


# ---------------------------------------------------------------------------------------------
# operations


def test_operation_publishes_parts_only_if_a_handler_observes_its_end() -> None:
    bus, operations = InProcessEventBus(), list[Operation]()
    bus.subscribe(Operation, operations.append)
    with (parent := Operation(bus=bus, kind="evaluation", name="p", model="m", session_id="s")):
        with parent.part("tool", "unheard") as set_result:
            set_result("nobody keeps this")
        parent.on_end(lambda error: None)
        with parent.part("tool", "heard", call_id="1", text="{}") as set_result:
            set_result(7)
    assert [(operation.name, operation.parent, operation.result) for operation in operations] == [
        ("p", None, None),
        ("heard", parent, 7),
    ]
    part = operations[1]
    assert (part.kind, part.call_id, part.text) == ("tool", "1", "{}")
    assert (part.model, part.session_id) == ("m", "s")
    assert not part.observed


@pytest.mark.parametrize("raised", [None, ValueError("no"), KeyboardInterrupt()])
def test_on_end_handlers_run_newest_first_however_the_operation_ends(
    raised: BaseException | None, caplog: pytest.LogCaptureFixture
) -> None:
    bus, recorder = InProcessEventBus(), Recorder()

    def listen(operation: Operation) -> None:
        operation.on_end(recorder.named("first"))
        operation.on_end(fail)
        operation.on_end(recorder.named("second"))

    bus.subscribe(Operation, listen)
    with suppress(ValueError, KeyboardInterrupt), Operation(bus=bus, kind="tool", name="look"):
        if raised is not None:
            raise raised
    assert recorder.events == [("second", raised), ("first", raised)]
    (record,) = caplog.records
    assert (record.__dict__["event_type"], record.__dict__["handler"]) == ("Operation", "fail")


def test_interrupt_in_a_subscriber_still_ends_the_operation_for_the_others() -> None:
    bus, recorder, interrupt = InProcessEventBus(), Recorder(), KeyboardInterrupt()

    def stop(operation: Operation) -> None:
        raise interrupt

    bus.subscribe(Operation, lambda operation: operation.on_end(recorder.named("opened")))
    bus.subscribe(Operation, stop)
    with pytest.raises(KeyboardInterrupt), Operation(bus=bus, kind="tool", name="look"):
        raise AssertionError("it began")
    assert recorder.events == [("opened", interrupt)]
