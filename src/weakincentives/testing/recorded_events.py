"""Records a test's events in order, filters them by type, and describes each one in a line."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import MISSING, fields, is_dataclass
from reprlib import Repr
from threading import Lock
from typing import SupportsIndex, overload

from ..displays import cut
from ..prompt.renderer import AnyRenderedPrompt
from ..protocols import EventBus
from ..runtime.events import Event, Operation
from ..runtime.session.session import Session

__all__ = ["Events", "RecordedEvents", "event_line"]

_WIDTH = 118
_NOISE = {"adapter", "call_id", "prompt_name", "result", "seconds", "timestamp", "usage"}
_NOISE.update(field.name for field in fields(Event))
_short = Repr(maxlevel=3, maxstring=40, maxother=90)


def event_line(event: object) -> str:
    """Returns a one-line description of an event: its type and its non-default fields."""
    words = [type(event).__name__]
    if getattr(event, "success", True) is False:
        words.append("failed")
    if not is_dataclass(event):
        words.append(_short.repr(event))
    for field in fields(event) if is_dataclass(event) else ():
        factory = field.default_factory
        # Compared as text, because an array's == does not return a bool.
        default = _short.repr(field.default if factory is MISSING else factory())
        value = _short.repr(getattr(event, field.name, None))
        if field.repr and field.name not in _NOISE and value not in {"None", default}:
            words.append(f"{field.name}={value}")
    return cut(" ".join(words), _WIDTH - 1, counted=False)


class Events[E](Sequence[E]):
    """Events in the order in which they were published.

    Supports `events[0]`, `events[ToolInvoked]` and `len(events)`.
    """

    def __init__(self, events: Iterable[E] = ()) -> None:
        self._events = list(events)

    @overload
    def __getitem__(self, key: SupportsIndex, /) -> E: ...
    @overload
    def __getitem__(self, key: slice, /) -> "Events[E]": ...
    @overload
    def __getitem__[T](self, key: type[T], /) -> "Events[T]": ...
    def __getitem__[T](self, key: SupportsIndex | slice | type[T], /) -> object:
        if isinstance(key, type):
            return Events(event for event in self._events if isinstance(event, key))
        return Events(self._events[key]) if isinstance(key, slice) else self._events[key]

    def where(
        self, predicate: Callable[[E], bool] | None = None, /, **values: object
    ) -> "Events[E]":
        """Returns the events that match `predicate` and whose fields have these `values`."""
        accepted = [event for event in self._events if predicate is None or predicate(event)]
        for name, value in values.items():
            accepted = [event for event in accepted if getattr(event, name) == value]
        return Events(accepted)

    def names(self) -> list[str]:
        """Returns the name of each event's type."""
        return [type(event).__name__ for event in self._events]

    def __len__(self) -> int:
        return len(self._events)

    def __repr__(self) -> str:
        return f"<{len(self)} events: {'; '.join(map(event_line, self._events))}>"


class RecordedEvents(Events[object]):
    """Records every event on the buses that it watches, except `Operation`.

    An `Operation` is not a record of something that happened.
    """

    def __init__(self) -> None:
        super().__init__()
        self._buses: list[EventBus] = []
        self._subscriptions = ExitStack()
        self._lock = Lock()  # several threads can evaluate in one session

    def watch[B: EventBus](self, bus: B, /) -> B:
        """Records all future events on `bus`, and returns the bus."""
        with self._lock:
            if all(known is not bus for known in self._buses):
                self._buses.append(bus)
                self._subscriptions.callback(bus.subscribe(object, self._record))
        return bus

    def watch_run(self, rendered: AnyRenderedPrompt) -> None:
        """Records all future events of the session in which a prompt is evaluated."""
        if isinstance(session := rendered.view.session, Session):
            self.watch(session.bus)

    def stop(self) -> None:
        """Stops recording on all buses."""
        self._subscriptions.close()

    def _record(self, event: object) -> None:
        if not isinstance(event, Operation):
            self._events.append(event)
