"""Tool calls of one turn side by side: each on forks of session and resources, then made real one after the other.

A call that cannot be isolated, or that read what an earlier one has changed since, is run again by itself, so the
outcome is that of running all in order.
"""

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from contextvars import copy_context
from time import perf_counter
from typing import Any

from ..ports import Forkable
from ..resources import NotIsolatedError, ResourceContext

__all__ = ["Isolated", "call_in_thread", "run_all", "run_all_async", "run_to_end"]

_MOST_AT_ONCE = 16

# Any below: handlers of every type pass through here.


class Isolated:
    """One call that runs beside others, as a `part` of the evaluation. Run it, then `replay` it in its turn."""

    __slots__ = ("_error", "_origin", "_part", "_result", "resources", "seconds", "session")

    def __init__(
        self, session: Forkable, resources: ResourceContext, part: AbstractContextManager[Callable[[object], None]]
    ) -> None:
        self._origin = session
        self._part = part
        self.session = session.fork()
        self.resources = resources.fork()
        self.seconds = 0.0
        self._result: object = None
        self._error: BaseException | None = NotIsolatedError("it was not run")

    def run(self, work: Callable[[], Any]) -> None:
        """Runs a handler in this thread and keeps what it gave or raised."""
        started = perf_counter()
        try:
            with self._part as gave, self.resources:
                result = work()
                self._result = run_to_end(result) if inspect.isawaitable(result) else result
                gave(self._result)
            self._error = None
        except BaseException as error:
            self._error = error
        self.seconds = perf_counter() - started

    async def run_async(self, work: Callable[[], Any], pool: Executor) -> None:
        """As `run`, without blocking the event loop."""
        started = perf_counter()
        try:
            with self._part as gave, self.resources:
                result, error = await call_in_thread(work, pool)
                if error is not None:
                    raise error
                self._result = await result if inspect.isawaitable(result) else result
                gave(self._result)
            self._error = None
        except BaseException as error:
            self._error = error
        self.seconds = perf_counter() - started

    def replay(self) -> object:
        """What the handler gave or raised, after its changes were made where it was forked from.

        Raises `NotIsolatedError` when it must be run again; a transaction around this then undoes half a replay.
        """
        if isinstance(self._error, NotIsolatedError) or self.resources.refused or self.session.refused:
            raise NotIsolatedError
        # The session comes last, for with it go the events that the call published.
        for origin, fork in (*self.resources.forks, (self._origin, self.session)):
            try:
                merged = origin.merge(fork)
            except Exception as error:
                raise NotIsolatedError from error
            if not merged:
                raise NotIsolatedError
        if self._error is not None:
            raise self._error
        return self._result


def run_all(calls: Iterable[Callable[[], None]]) -> None:
    """Runs all in threads of their own and waits for them, at most 16 at once; an interrupt begins no more of them."""
    pool = ThreadPoolExecutor(_MOST_AT_ONCE)
    try:
        for call in calls:
            pool.submit(copy_context().run, call)
        pool.shutdown()
    finally:
        pool.shutdown(cancel_futures=True)


async def run_all_async(calls: Iterable[Callable[[Executor], Coroutine[Any, Any, None]]]) -> None:
    """Runs all at once, handlers that need a thread at most 16 at once; a cancellation waits until each has ended."""
    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(call(pool))


def run_to_end(awaitable: Any) -> Any:
    """Runs a coroutine from synchronous code, in a thread of its own when this thread's loop is already running."""

    async def wait() -> Any:
        return await awaitable

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(copy_context().run, asyncio.run, wait()).result()


async def call_in_thread(attempt: Callable[[], Any], pool: Executor | None = None) -> tuple[Any, BaseException | None]:
    """What a plain handler, run beside the loop, gave or raised; a coroutine function gives its coroutine.

    A thread cannot be interrupted, so a cancellation waits until it is done.
    """
    if inspect.iscoroutinefunction(attempt):
        return attempt(), None
    context = copy_context()
    work = asyncio.get_running_loop().run_in_executor(pool, lambda: context.run(_caught, attempt))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        while not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])
        raise


def _caught(attempt: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """What `attempt` gave or raised. A future cannot carry every exception: StopIteration would never arrive."""
    try:
        return attempt(), None
    except BaseException as error:
        return None, error
