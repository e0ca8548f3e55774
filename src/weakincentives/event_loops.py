"""Event loops and threads that belong to the process rather than to a run.

A `Portal` is an event loop in a thread: synchronous code waits for coroutines there. All `async`
functions of synchronous runs share the loop of one portal, so that a client with a pool of
connections works in all of them. Plain functions of asynchronous runs share a pool of threads.
A request that is cancelled on a portal closes its connection and sends nothing more. A client
without coroutines runs in a thread of its own instead, which is left behind.
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

# Any: coroutines are typed by what they are sent, too, which is asyncio's own.
type AnyCoroutine[T] = Coroutine[Any, Any, T]

_EXIT_SECONDS = 1.0
_MAX_THREADS = 64


class _Closable(Protocol):
    def aclose(self) -> Awaitable[object]: ...


class Portal:
    """An event loop in a thread for any number of callers; it starts with the first one.

    It ends with the process. A forked process starts a loop of its own.
    """

    def __init__(
        self, new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    ) -> None:
        self._new_loop = new_loop
        self.forget()

    def forget(self) -> None:
        """Starts again in a forked process, which has its parent's portal but not the thread."""
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
                loop = self._new_loop()
                thread = threading.Thread(
                    target=_run, args=(loop,), name="weakincentives-portal", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:  # the process may start no more threads
                    loop.close()
                    raise
                self._loop, self._thread = loop, thread
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


def run_on[T](
    loop: asyncio.AbstractEventLoop, work: AnyCoroutine[T], timeout: float | None = None, /
) -> T:
    """Runs a coroutine on the loop of another thread, with the caller's context variables.

    Raises `TimeoutError` if the result takes more than `timeout` seconds. The coroutine is
    cancelled then, as it is when the caller is interrupted.
    """
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result(timeout)
    finally:
        future.cancel()  # without effect if it is done
        del future  # its exception has this frame in its traceback


async def await_on[T](loop: asyncio.AbstractEventLoop, work: AnyCoroutine[T], /) -> T:
    """Awaits a coroutine on the loop of another thread; a cancellation cancels it there."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))


def start_on(loop: asyncio.AbstractEventLoop, work: AnyCoroutine[object], /) -> None:
    """Starts a coroutine from any thread without waiting for it; drops it if the loop is closed."""
    try:
        asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:
        work.close()


def run_to_end(work: AnyCoroutine[None], /) -> None:
    """Runs a coroutine that raises nothing on the loop that all synchronous runs share.

    An interrupt of the caller cancels it, and the caller waits until it has ended. Where no thread
    can start, it runs on a loop of its own in the caller's thread.
    """
    try:
        loop = _calls.loop()
    except RuntimeError:
        with closing(work):  # if a loop runs in this thread already, it does not begin
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
    """Waits until all futures are done, however often the waiting task is cancelled meanwhile."""
    with shielded():
        while pending := [future for future in futures if not future.done()]:
            with suppress(asyncio.CancelledError):
                await asyncio.wait(pending)


class closing_shielded:  # noqa: N801 - used like `contextlib.aclosing`
    """Closes something at the end of a block, even while anyio cancels the task at each `await`.

    Without a cancellation it does not shield, since the block may have left scopes open.
    """

    def __init__(self, closed: _Closable) -> None:
        self._closed = closed

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, *_: object) -> None:
        task = asyncio.current_task()
        with shielded() if task and task.cancelling() else nullcontext():
            await self._closed.aclose()


async def call_in_thread[T](function: Callable[[], T], name: str) -> T:
    """Calls a function in a thread of its own, which a cancellation leaves behind."""
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
        del item  # an exception has this frame in its traceback


def _start_thread(work: Callable[[], None], name: str) -> None:
    """Starts a thread with the caller's context variables, which the process does not wait for."""
    threading.Thread(target=copy_context().run, args=(work,), name=name, daemon=True).start()


def threads() -> ThreadPoolExecutor:
    """Returns the threads that call plain functions for the running event loop."""
    loop = asyncio.get_running_loop()
    if (pool := _pools.get(loop)) is None:
        pool = _pools[loop] = ThreadPoolExecutor(_MAX_THREADS, "weakincentives")
    return pool


# The threads of a pool end with their loop.
_pools = WeakKeyDictionary[asyncio.AbstractEventLoop, ThreadPoolExecutor]()

portal = Portal()
"""The portal of requests and MCP servers, which a slow handler must not stop."""

_calls = Portal()

for _portal in (_calls, portal):
    atexit.register(_portal.close)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_portal.forget)
