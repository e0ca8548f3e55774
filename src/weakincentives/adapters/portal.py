"""Lets a synchronous caller stop waiting: for a coroutine, which is cancelled, or for a thread,
which is left behind.

A portal runs coroutines on an event loop in a thread of its own: a cancelled request closes its
connection, sleeps no further and sends nothing more. `pieces_from_thread` is for clients that have
no coroutines.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

__all__ = ["Caller", "Portal", "pieces_from_thread", "portal"]

_IDLE_SECONDS = 5.0  # as long as HTTP clients keep an idle connection
_EXIT_SECONDS = 1.0


class Caller:
    """Runs coroutines on a portal's loop for one of its users."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def __call__[T](self, work: Coroutine[Any, Any, T], timeout: float, /) -> T:
        """Runs a coroutine and returns its result. Its context variables are the caller's.

        Raises `TimeoutError` when there is no result after `timeout` seconds. The coroutine is
        cancelled then, as it is when the caller is interrupted.
        """
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout)
        finally:
            future.cancel()  # without effect if it is done
            del future  # its exception has this frame in its traceback

    def start(self, work: Coroutine[Any, Any, object], /) -> None:
        """Starts a coroutine without waiting for it, from any thread; drops it once the loop has
        ended.
        """
        try:
            asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()


class Portal:
    """Runs coroutines for any number of threads at once.

    The loop starts with its first user, ends after it had none for `idle` seconds, and starts anew
    when needed.
    """

    def __init__(self, idle: float = _IDLE_SECONDS) -> None:
        self._idle = idle
        self.forget()

    def forget(self) -> None:
        """Starts from nothing, as a child process must: it has its parent's portal, but not the
        thread.
        """
        self._lock = threading.Lock()
        self._users: set[object] = set()
        self._used_at = 0.0
        self._inner: Portal | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closing: asyncio.Event | None = None

    @contextmanager
    def open(self) -> Generator[Caller]:
        """Keeps the loop while the block runs, and gives what runs coroutines there.

        Code that runs on the loop itself, such as a callback of an SDK, gets another portal's: a
        loop cannot wait for its own work.
        """
        if threading.current_thread() is self._thread:
            self._inner = self._inner or Portal(self._idle)
            with self._inner.open() as caller:
                yield caller
            return
        user = object()
        with self._lock:
            loop = self._loop or self._start()
            self._users.add(user)
        try:
            yield Caller(loop)
        # without the lock: the garbage collector may end the block at any place, in any thread
        finally:
            self._used_at = monotonic()
            self._users.discard(user)

    def close(self) -> None:
        """Ends the loop, whoever uses it, and waits until its connections are closed, a second at
        most.
        """
        if self._inner is not None:
            self._inner.close()
        with self._lock:
            loop, thread, closing = self._loop, self._thread, self._closing
            self._loop = None
        if loop is not None and thread is not None and closing is not None:
            with suppress(RuntimeError):  # it has ended meanwhile
                loop.call_soon_threadsafe(closing.set)
            thread.join(_EXIT_SECONDS)

    def _start(self) -> asyncio.AbstractEventLoop:
        ready: SimpleQueue[asyncio.AbstractEventLoop] = SimpleQueue()
        self._thread = threading.Thread(
            target=self._run_loop, args=(ready,), name="weakincentives-portal", daemon=True
        )
        self._thread.start()
        self._loop = ready.get()
        return self._loop

    def _run_loop(self, ready: "SimpleQueue[asyncio.AbstractEventLoop]") -> None:
        """As `asyncio.run`, which cannot end a loop at interpreter exit: it starts a thread to do
        so.
        """
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(self._serve(ready))
            loop.run_until_complete(_cancel_tasks())
            loop.run_until_complete(loop.shutdown_asyncgens())  # closes the clients
        finally:
            loop.close()

    async def _serve(self, ready: "SimpleQueue[asyncio.AbstractEventLoop]") -> None:
        """Waits until nobody needs the loop."""
        closing = self._closing = asyncio.Event()
        loop = asyncio.get_running_loop()
        ready.put(loop)
        while not closing.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._idle):
                    await closing.wait()
            with self._lock:
                if (
                    self._loop is loop
                    and not self._users
                    and monotonic() - self._used_at >= self._idle
                ):
                    self._loop = None
                    return


async def _cancel_tasks() -> None:
    if tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=_EXIT_SECONDS)


def pieces_from_thread[T](
    pieces: Callable[[], Generator[T]], seconds_left: Callable[[], float]
) -> Generator[T]:
    """Yields what `pieces()` yields in a thread; raises `TimeoutError` when the next piece does not
    come in time.

    The thread is left behind then: it closes the generator and ends as soon as a piece comes or is
    refused.
    """
    queue: SimpleQueue[tuple[T] | BaseException | None] = SimpleQueue()
    abandoned = threading.Event()

    def work() -> None:
        try:
            generator = pieces()
            try:
                for piece in generator:
                    queue.put((piece,))
                    if abandoned.is_set():
                        return
            finally:
                generator.close()
            queue.put(None)
        except BaseException as error:  # the caller raises it
            queue.put(error)

    threading.Thread(
        target=copy_context().run, args=(work,), name="weakincentives-request", daemon=True
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
