"""Recorded events keep their order and their types, and each is described in one line."""

from dataclasses import dataclass, field

import pytest

from weakincentives.limits import TokenUsage
from weakincentives.prompt import ToolResult
from weakincentives.runtime.events import (
    Event,
    InProcessEventBus,
    Operation,
    PromptExecuted,
    ProviderCalled,
    ToolInvoked,
    ToolsInjected,
)
from weakincentives.testing import Events, RecordedEvents
from weakincentives.testing.recorded_events import event_line


def called(turn: int, error: str | None = None) -> ProviderCalled:
    return ProviderCalled(adapter="a", turn=turn, seconds=0.5, usage=TokenUsage(1, 2), error=error)


def test_events_are_a_sequence_that_can_be_filtered_by_type_and_field() -> None:
    one, two, injected = called(1), called(2, "down"), ToolsInjected(("refund",), "refunds")
    events = Events([one, injected, two])
    assert list(events) == [one, injected, two]
    assert (events[0], events[-1], len(events)) == (one, two, 3)
    assert list(events[1:]) == [injected, two]
    assert list(events[ProviderCalled]) == [one, two]
    assert list(events[Event]) == [one, injected, two]
    assert list(events[ProviderCalled].where(turn=2, error="down")) == [two]
    assert list(events[ProviderCalled].where(lambda event: event.turn < 2)) == [one]
    assert not events[PromptExecuted]
    with pytest.raises(AttributeError, match="trun"):
        events[ProviderCalled].where(trun=1)


def test_recording_contains_each_published_event_once_until_it_is_stopped() -> None:
    events, bus, other = RecordedEvents(), InProcessEventBus(), InProcessEventBus()
    assert events.watch(bus) is bus
    events.watch(bus)
    events.watch(other)
    bus.publish("first")
    other.publish(called(1))
    bus.publish(Operation(bus=bus, kind="tool", name="t"))
    assert events.names() == ["str", "ProviderCalled"]
    events.stop()
    bus.publish("late")
    assert len(events) == 2


@dataclass(frozen=True)
class Noted:
    name: str
    secret: str = field(default="x", repr=False)
    items: tuple[int, ...] = ()


def test_event_line_contains_the_distinguishing_fields() -> None:
    assert event_line(Noted("a")) == "Noted name='a'"
    assert event_line(Noted("a", "hidden", (1, 2))) == "Noted name='a' items=(1, 2)"
    assert event_line(called(2, "down")) == "ProviderCalled turn=2 error='down'"
    assert event_line("text") == "str 'text'"
    long = event_line(Noted("\n".join("abc" * 100), items=tuple(range(1000))))
    assert long.startswith("Noted name='a\\nb")
    assert "\n" not in long
    assert len(long) < 120
    result = ToolResult[object](message="No.", value=None, success=False)
    failed = ToolInvoked(name="t", call_id="c", params=None, result=result, content="No.")
    assert event_line(failed) == "ToolInvoked failed name='t' content='No.'"


class Array:
    """Cannot be compared to a single boolean, like arrays."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth of an array is ambiguous")

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return "Array()"


@dataclass(frozen=True)
class Measured:
    values: Array
    late: str = field(init=False)


def test_event_line_supports_incomparable_values_and_unset_fields() -> None:
    assert event_line(Measured(Array())) == "Measured values=Array()"


def test_events_repr_lists_their_lines() -> None:
    assert repr(Events([Noted("a"), Noted("b")])) == "<2 events: Noted name='a'; Noted name='b'>"
