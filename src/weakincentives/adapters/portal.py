"""Lets a synchronous caller stop waiting for a coroutine or a thread.

A portal is an event loop in a thread: a request that is cancelled there closes its connection,
sleeps no further and sends nothing more. `yield_from_thread` is for clients without coroutines: it
leaves the thread behind.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine, Generator
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any

__all__ = ["Portal", "portal", "run_on", "start_on", "yield_from_thread"]

_EXIT_SECONDS = 1.0


class Portal:
    """An event loop in a thread for any number of callers; it starts with the first one."""

    def __init__(
        self, new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    ) -> None:
        self._new_loop = new_loop
        self.forget()

    def forget(self) -> None:
        """Starts anew, as a forked process must: it has its parent's portal, but not the thread."""
        self._lock = threading.Lock()
        self._inner: Portal | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        """Returns the running event loop.

        Code that runs on that loop, such as a callback of an SDK, gets another one: a loop cannot
        wait for its own work.
        """
        with self._lock:
            if threading.current_thread() is self._thread:
                self._inner = self._inner or Portal()
                return self._inner.loop()
            if self._loop is None:
                self._loop = self._new_loop()
                self._thread = threading.Thread(
                    target=_run, args=(self._loop,), name="weakincentives-portal", daemon=True
                )
                self._thread.start()
            return self._loop

    def close(self) -> None:
        """Ends the loop and waits until its clients are closed, a second at most."""
        if self._inner is not None:
            self._inner.close()
        with self._lock:
            loop, self._loop, thread = self._loop, None, self._thread
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_EXIT_SECONDS)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Runs and closes a loop like `asyncio.run`, which cannot start its thread at exit."""
    try:
        loop.run_forever()
        loop.run_until_complete(_cancel_tasks())
        loop.run_until_complete(loop.shutdown_asyncgens())  # closes the clients
    finally:
        loop.close()


async def _cancel_tasks() -> None:
    if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=_EXIT_SECONDS)


# Any: coroutines are typed by what they are sent, too, which is asyncio's own.
def run_on[T](
    loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], timeout: float | None = None, /
) -> T:
    """Runs a coroutine on the loop of another thread, with the caller's context variables.

    Raises `TimeoutError` when there is no result after `timeout` seconds. The coroutine is
    cancelled then, as it is when the caller is interrupted.
    """
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result(timeout)
    finally:
        future.cancel()  # without effect if it is done
        del future  # its exception has this frame in its traceback


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


portal = Portal()
"""The portal of this process."""

atexit.register(portal.close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=portal.forget)
