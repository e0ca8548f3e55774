"""Event loops and threads that belong to the process rather than to a run.

A `Portal` is an event loop in a thread, on which synchronous code runs coroutines. The `async`
functions of all synchronous runs share one portal's loop, so that a client with a connection pool
works in every run. The plain functions of asynchronous runs share a thread pool. When a request on
a portal is cancelled, it closes its connection and sends nothing more. A client without coroutines
runs in a separate thread instead, which is abandoned on cancellation.
"""

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from contextvars import copy_context
from queue import Empty, SimpleQueue
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from .cancellation import shielded

__all__ = [
    "Portal",
    "await_on",
    "call_in_thread",
    "closing_shielded",
    "portal",
    "run_on",
    "run_to_end",
    "start_on",
    "threads",
    "wait_for_all",
    "yield_from_thread",
]

# Any: a coroutine's type includes the values sent to it, which only asyncio needs to know.
type AnyCoroutine[T] = Coroutine[Any, Any, T]

_EXIT_SECONDS = 1.0
_MAX_THREADS = 64


class _Closable(Protocol):
    def aclose(self) -> Awaitable[object]: ...


class Portal:
    """An event loop in a thread for any number of callers, started by the first one.

    The loop ends with the process. A forked process starts its own loop.
    """

    def __init__(
        self, new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    ) -> None:
        self._new_loop = new_loop
        self.forget()

    def forget(self) -> None:
        """Resets the portal in a forked process, which does not inherit the parent's thread."""
        self._lock = threading.Lock()
        self._inner: Portal | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def loop(self) -> asyncio.AbstractEventLoop:
        """Returns the running event loop.

        Code that is running on that loop, such as an SDK's callback, gets a different loop, because
        a loop cannot wait for its own work.
        """
        with self._lock:
            if threading.current_thread() is self._thread:
                self._inner = self._inner or Portal()
                return self._inner.loop()
            if self._loop is None:
                loop = self._new_loop()
                thread = threading.Thread(
                    target=_run, args=(loop,), name="weakincentives-portal", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:  # the process cannot start any more threads
                    loop.close()
                    raise
                self._loop, self._thread = loop, thread
            return self._loop

    def close(self) -> None:
        """Ends the loop, and waits up to a second for its clients to close."""
        if self._inner is not None:
            self._inner.close()
        with self._lock:
            loop, self._loop, thread = self._loop, None, self._thread
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_EXIT_SECONDS)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Runs and closes a loop like `asyncio.run`, but without starting a thread at exit."""
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


def run_on[T](
    loop: asyncio.AbstractEventLoop, work: AnyCoroutine[T], timeout: float | None = None, /
) -> T:
    """Runs a coroutine on another thread's loop, with the caller's context variables.

    Raises `TimeoutError` if the result takes more than `timeout` seconds. After a timeout or an
    interrupt of the caller, the coroutine is cancelled.
    """
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result(timeout)
    finally:
        future.cancel()  # has no effect if the future is done
        del future  # the traceback of its exception refers to this frame


async def await_on[T](loop: asyncio.AbstractEventLoop, work: AnyCoroutine[T], /) -> T:
    """Awaits a coroutine on another thread's loop; a cancellation also cancels it there."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))


def start_on(loop: asyncio.AbstractEventLoop, work: AnyCoroutine[object], /) -> None:
    """Starts a coroutine from any thread without waiting; drops it if the loop is closed."""
    try:
        asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:
        work.close()


def run_to_end(work: AnyCoroutine[None], /) -> None:
    """Runs a coroutine, which must not raise, on the loop that all synchronous runs share.

    If the caller is interrupted, the coroutine is cancelled, and the caller waits for it to end. If
    no thread can be started, the coroutine runs on a new loop in the caller's thread.
    """
    try:
        loop = _calls.loop()
    except RuntimeError:
        with closing(work):  # if a loop is already running in this thread, `run` raises
            asyncio.run(work)
        return
    tasks, ended = list[asyncio.Task[None]](), threading.Event()

    def start() -> None:
        tasks.append(loop.create_task(work))
        tasks[0].add_done_callback(lambda _: ended.set())

    loop.call_soon_threadsafe(start)  # in a copy of the caller's context
    try:
        ended.wait()
    except BaseException:
        loop.call_soon_threadsafe(lambda: tasks[0].cancel())  # noqa: PLW0108 - made by then
        ended.wait()
        raise


async def wait_for_all[T](futures: Iterable[asyncio.Future[T]]) -> None:
    """Waits until all futures are done, no matter how often the waiting task is cancelled."""
    with shielded():
        while pending := [future for future in futures if not future.done()]:
            with suppress(asyncio.CancelledError):
                await asyncio.wait(pending)


class closing_shielded:  # noqa: N801 - used like `contextlib.aclosing`
    """Closes an object at the end of a block, even while anyio cancels the task at each `await`.

    If the task is not being cancelled, `aclose` is not shielded, because the block may have left
    scopes open.
    """

    def __init__(self, closed: _Closable) -> None:
        self._closed = closed

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None:
        task = asyncio.current_task()
        with shielded() if task and task.cancelling() else nullcontext():
            await self._closed.aclose()


async def call_in_thread[T](function: Callable[[], T], name: str) -> T:
    """Calls a function in a separate thread, which is abandoned on cancellation."""
    result = Future[T]()

    def call() -> None:
        try:
            result.set_result(function())
        except BaseException as error:  # raised where the result is awaited
            result.set_exception(error)

    result.set_running_or_notify_cancel()
    _start_thread(call, name)
    return await asyncio.wrap_future(result)


def yield_from_thread[T](
    make: Callable[[], Generator[T]], seconds_left: Callable[[], float]
) -> Generator[T]:
    """Yields the values of the generator that `make` creates, which runs in a separate thread.

    Raises `TimeoutError` if the next value does not arrive in time. The thread is then abandoned:
    it closes the generator and ends as soon as a value or an error arrives.
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

    _start_thread(work, "weakincentives-request")
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
        del item  # an exception's traceback refers to this frame


def _start_thread(work: Callable[[], None], name: str) -> None:
    """Starts a daemon thread with the caller's context variables."""
    threading.Thread(target=copy_context().run, args=(work,), name=name, daemon=True).start()


def threads() -> ThreadPoolExecutor:
    """Returns the thread pool that calls plain functions for the running event loop."""
    loop = asyncio.get_running_loop()
    if (pool := _pools.get(loop)) is None:
        pool = _pools[loop] = ThreadPoolExecutor(_MAX_THREADS, "weakincentives")
    return pool


# A pool's threads end with their loop.
_pools = WeakKeyDictionary[asyncio.AbstractEventLoop, ThreadPoolExecutor]()

portal = Portal()
"""The portal for requests and MCP servers, which a slow handler must not block."""

_calls = Portal()

for _portal in (_calls, portal):
    atexit.register(_portal.close)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_portal.forget)
