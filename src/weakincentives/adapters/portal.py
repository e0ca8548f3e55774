"""Lets a synchronous caller stop waiting for a coroutine or a thread.

A request that is cancelled on the portal closes its connection, sleeps no further and sends nothing
more. `yield_from_thread` is for clients without coroutines: it leaves the thread behind.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any

from ..event_loops import Portal, portal, run_on

__all__ = ["Portal", "portal", "run_on", "start_on", "yield_from_thread"]


def start_on(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, object], /) -> None:
    """Starts a coroutine from any thread without waiting for it; drops it if the loop is closed."""
    try:
        asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:
        work.close()


def yield_from_thread[T](
    make: Callable[[], Generator[T]], seconds_left: Callable[[], float]
) -> Generator[T]:
    """Yields what the generator of `make` yields in a thread of its own.

    Raises `TimeoutError` when the next value does not come in time. The thread is left behind
    then: it closes the generator and ends as soon as a value or an error comes.
    """
    queue: SimpleQueue[tuple[T] | BaseException | None] = SimpleQueue()
    abandoned = threading.Event()

    def work() -> None:
        try:
            generator = make()
            try:
                for value in generator:
                    queue.put((value,))
                    if abandoned.is_set():
                        return
            finally:
                generator.close()
            queue.put(None)
        except BaseException as error:  # the caller raises it
            queue.put(error)

    context = copy_context()
    threading.Thread(
        target=context.run, args=(work,), name="weakincentives-request", daemon=True
    ).start()
    item = None
    try:
        while True:
            try:
                item = queue.get(timeout=seconds_left())
            except Empty:
                raise TimeoutError from None
            if item is None:
                return
            if isinstance(item, BaseException):
                raise item
            yield item[0]
    finally:
        abandoned.set()
        del item  # an exception has this frame in its traceback
