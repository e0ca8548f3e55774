"""`RunStream` and `AsyncRunStream` yield the events of a run; `with` closes them."""

from _thread import allocate_lock, get_ident  # `threading` takes longer to import
from collections.abc import AsyncGenerator, Callable, Generator
from functools import wraps
from types import TracebackType
from typing import Self

__all__ = ["AsyncRunStream", "RunStream", "async_run_stream", "run_stream"]


class RunStream[Event](Generator[Event]):
    """The events of a run; closing it, or leaving its `with` block, stops the run.

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncRunStream[Event](AsyncGenerator[Event]):
    """The events of an asynchronous run; leaving its `async with` block stops the run."""

    def __init__(self, events: AsyncGenerator[Event]) -> None:
        self._events = events

    def __aiter__(self) -> AsyncGenerator[Event]:
        return self._events  # so that a loop does not pass each event through this object

    async def asend(self, value: None, /) -> Event:
        """Returns the next event."""
        return await anext(self._events)

    async def athrow(
        self,
        kind: type[BaseException] | BaseException,
        value: object = None,
        trace: TracebackType | None = None,
        /,
    ) -> Event:
        """Raises the exception where the run is, which ends it."""
        return await self._events.athrow(value if isinstance(value, BaseException) else kind)

    async def aclose(self) -> None:
        """Stops the run and waits until it has ended."""
        await self._events.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


def run_stream[**P, Event](method: Callable[P, Generator[Event]]) -> Callable[P, RunStream[Event]]:
    """Decorates a generator function so that it returns a `RunStream`."""

    @wraps(method)
    def start(*args: P.args, **options: P.kwargs) -> RunStream[Event]:
        return RunStream(method(*args, **options))

    return start


def async_run_stream[**P, Event](
    method: Callable[P, AsyncGenerator[Event]],
) -> Callable[P, AsyncRunStream[Event]]:
    """Decorates an asynchronous generator function so that it returns an `AsyncRunStream`."""

    @wraps(method)
    def start(*args: P.args, **options: P.kwargs) -> AsyncRunStream[Event]:
        return AsyncRunStream(method(*args, **options))

    return start
