"""`RunStream` yields the events of a synchronous run; any thread can close it."""

from _thread import allocate_lock, get_ident  # `threading` takes longer to import
from collections.abc import Callable, Generator
from functools import wraps
from types import TracebackType

__all__ = ["RunStream", "run_stream"]


class RunStream[Event](Generator[Event]):
    """The events of a run; closing it stops the run.

    Any thread may call `close`, not only the reader's. A request or a tool call cannot be
    interrupted: the run stops at its next event. Then `close` returns, and the reader does not
    receive any further events.
    """

    def __init__(self, events: Generator[Event]) -> None:
        self._events = events
        self._lock = allocate_lock()  # held while a thread waits for an event
        self._reader = 0
        self._closing = False

    def __next__(self) -> Event:
        if self._reader == get_ident():
            return next(self._events)  # raises an error, because a run cannot read its own stream
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

    def throw(
        self,
        kind: type[BaseException] | BaseException,
        value: object = None,
        trace: TracebackType | None = None,
        /,
    ) -> Event:
        """Stops the run, waits until it has ended and raises the exception."""
        self.close()
        raise value if isinstance(value, BaseException) else kind

    def close(self) -> None:
        """Stops the run and waits until it has ended."""
        self._closing = True
        if self._reader != get_ident():  # otherwise, the run's own handler is calling
            with self._lock:
                self._events.close()


def run_stream[**P, Event](method: Callable[P, Generator[Event]]) -> Callable[P, Generator[Event]]:
    """Decorates a generator function so that it returns a `RunStream`."""

    @wraps(method)
    def start(*args: P.args, **options: P.kwargs) -> RunStream[Event]:
        return RunStream(method(*args, **options))

    return start
