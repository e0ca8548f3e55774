"""What was published during a test, in order: filtered with types, and told in one short line an
event.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import MISSING, fields, is_dataclass
from reprlib import Repr
from threading import Lock
from typing import SupportsIndex, overload

from ..protocols import EventBus
from ..runtime.events import Event, Operation

__all__ = ["Events", "RecordedEvents", "line"]

_WIDTH = 118
_NOISE = {"adapter", "call_id", "prompt_name", "result", "seconds", "timestamp", "usage"}
_NOISE.update(one.name for one in fields(Event))
_short = Repr(maxlevel=3, maxstring=40, maxother=90)


def line(event: object) -> str:
    """The event's type and those of its fields that tell something, cut to one line."""
    told = [type(event).__name__, *(["failed"] if getattr(event, "success", True) is False else [])]
    for one in fields(event) if is_dataclass(event) else ():
        # to compare with as well: an array's == tells no truth
        value = _short.repr(getattr(event, one.name, None))
        default = _short.repr(
            one.default if one.default_factory is MISSING else one.default_factory()
        )
        if one.repr and one.name not in _NOISE and value not in {"None", default}:
            told.append(f"{one.name}={value}")
    text = " ".join(told if is_dataclass(event) else [*told, _short.repr(event)])
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"


class Events[E](Sequence[E]):
    """Events in the order in which they were published: `events[0]`, `events[ToolInvoked]`,
    `len(events)`.
    """

    def __init__(self, events: Iterable[E] = ()) -> None:
        self._events = list(events)

    @overload
    def __getitem__(self, at: SupportsIndex, /) -> E: ...
    @overload
    def __getitem__(self, at: slice, /) -> "Events[E]": ...
    @overload
    def __getitem__[T](self, at: type[T], /) -> "Events[T]": ...
    def __getitem__[T](self, at: SupportsIndex | slice | type[T], /) -> "E | Events[E] | Events[T]":
        if isinstance(at, type):
            return Events([event for event in self._events if isinstance(event, at)])
        return Events(self._events[at]) if isinstance(at, slice) else self._events[at]

    def where(
        self, predicate: Callable[[E], bool] | None = None, /, **values: object
    ) -> "Events[E]":
        """Those that `predicate` accepts and whose fields have these `values`."""
        found = [event for event in self._events if predicate is None or predicate(event)]
        return Events(
            [
                one
                for one in found
                if all(getattr(one, name) == value for name, value in values.items())
            ]
        )

    def names(self) -> list[str]:
        """The name of each one's type."""
        return [type(event).__name__ for event in self._events]

    def __len__(self) -> int:
        return len(self._events)

    def __repr__(self) -> str:
        return f"<{len(self)} events: {'; '.join(map(line, self._events))}>"


class RecordedEvents(Events[object]):
    """Everything published on the buses that it watches, but for `Operation`, which is no record."""

    def __init__(self) -> None:
        super().__init__()
        self._buses: list[EventBus] = []
        self._subscriptions = ExitStack()
        self._lock = Lock()  # threads may evaluate with one session

    def watch[B: EventBus](self, bus: B, /) -> B:
        """Records what is published on `bus` from now on, and gives the bus back."""
        with self._lock:
            if not any(known is bus for known in self._buses):
                self._buses.append(bus)
                self._subscriptions.callback(bus.subscribe(object, self._hear))
        return bus

    def stop(self) -> None:
        """Ends all watching."""
        self._subscriptions.close()

    def _hear(self, event: object) -> None:
        if not isinstance(event, Operation):
            self._events.append(event)
