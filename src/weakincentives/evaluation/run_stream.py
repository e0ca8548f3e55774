"""`RunStream`: the events of a synchronous run as a generator that any thread can close."""

from _thread import allocate_lock, get_ident  # `threading` takes longer to import
from collections.abc import Callable, Generator
from functools import wraps
from types import TracebackType
from typing import Any, cast

__all__ = ["RunStream", "run_stream"]


class RunStream[Event](Generator[Event]):
    """The events of a run; closing it stops the run.

    Another thread than the reader's may call `close`. A request or a tool call cannot be
    interrupted: the run stops at its next event, `close` returns, and the reader gets no further
    event.
    """

    def __init__(self, events: Generator[Event]) -> None:
        self._events = events
        self._lock = allocate_lock()  # held while a thread waits for an event
        self._reader = 0
        self._closing = False

    def __next__(self) -> Event:
        if self._reader == get_ident():
            return next(self._events)  # Python raises: a run cannot read its own stream
        with self._lock:
            self._reader = get_ident()
            try:
                event = next(self._events)
            finally:
                self._reader = 0
            if self._closing:
                self._events.close()
                raise StopIteration
            return event

    def send(self, value: None, /) -> Event:
        """Returns the next event."""
        return next(self)

    # Any: the overloads of the base
    def throw(self, kind: Any, value: Any = None, trace: TracebackType | None = None, /) -> Event:
        """Stops the run, waits until it has ended and raises the exception."""
        self.close()
        raise kind if value is None else value

    def close(self) -> None:
        """Stops the run and waits until it has ended."""
        self._closing = True
        if self._reader != get_ident():  # else a handler of the run calls this
            with self._lock:
                self._events.close()


# Any: methods of all signatures that return a generator
def run_stream[F: Callable[..., Generator[Any]]](method: F) -> F:
    """Makes a generator function return a `RunStream`."""

    @wraps(method)
    def start(*args: object, **options: object) -> RunStream[Any]:
        return RunStream(method(*args, **options))

    return cast(F, start)
