"""How tool calls are run: in this thread, beside an event loop, or several of one turn side by
side.

Calls side by side each run on forks of session and resources, and are made real one after the
other. One that cannot be isolated, or that read what an earlier one has changed since, is run again
by itself, so the outcome is that of running all in order.
"""

import asyncio
import inspect
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from contextvars import copy_context
from time import perf_counter
from typing import Any

from ..protocols import Forkable
from ..resources import NotIsolatedError, ResourceContext

__all__ = ["Effects", "Isolated", "run", "run_async"]

_MOST_AT_ONCE = 16

# Any below: handlers of every type pass through here.
type Invoke = Callable[[], Any]
type Outcome = tuple[Any, BaseException | None]
"""What an attempt gave or raised.

A future cannot carry every exception: StopIteration would never arrive.
"""

type Effects[T] = Generator[Invoke | Sequence[Effects[None]], Outcome, T]
"""Yields an attempt and is sent what came of it, or yields flows to be run side by side."""


class Isolated:
    """One call that runs beside others. Run its `flow`, then `replay` it in its turn."""

    __slots__ = ("_came", "_origin", "resources", "seconds", "session")

    def __init__(self, session: Forkable, resources: ResourceContext) -> None:
        self._origin = session
        self._came: Outcome = None, NotIsolatedError("it was not run")
        self.session = session.fork()
        self.resources = resources.fork()
        self.seconds = 0.0

    def flow(
        self, work: Invoke, part: AbstractContextManager[Callable[[object], None]]
    ) -> Effects[None]:
        """Runs a handler, as a `part` of the evaluation, and keeps what it gave or raised."""
        started = perf_counter()
        try:
            with part as set_result, self.resources:
                result, error = yield work
                if error is not None:
                    raise error
                set_result(result)
            self._came = result, None
        except BaseException as raised:
            self._came = None, raised
        self.seconds = perf_counter() - started

    def replay(self) -> object:
        """What the handler gave or raised, after its changes were made where it was forked from.

        Raises `NotIsolatedError` when it must be run again; a transaction around this then undoes
        half a replay.
        """
        result, raised = self._came
        if isinstance(raised, NotIsolatedError) or self.resources.refused or self.session.refused:
            raise NotIsolatedError
        # The session comes last, for with it go the events that the call published.
        for origin, fork in (*self.resources.forks, (self._origin, self.session)):
            try:
                merged = origin.merge(fork)
            except Exception as error:
                raise NotIsolatedError from error
            if not merged:
                raise NotIsolatedError
        if raised is not None:
            raise raised
        return result


def run[T](flow: Effects[T]) -> T:
    """Runs attempts in this thread, and `async` ones to their end in an event loop of their own.

    Flows side by side run each in a thread of its own, at most 16 at once; an interrupt begins no
    more of them.
    """
    try:
        step = next(flow)
        while True:
            step = flow.send(_caught(step, to_end=True) if callable(step) else _side_by_side(step))
    except StopIteration as done:
        result: T = done.value
        return result
    finally:  # an interrupt may come between an attempt and its answer
        flow.close()


async def run_async[T](flow: Effects[T], pool: Executor | None = None) -> T:
    """As `run`, without blocking the event loop; a cancellation waits for attempts in threads, of
    `pool` if given.
    """
    try:
        step = next(flow)
        while True:
            came = _caught_async(step, pool) if callable(step) else _side_by_side_async(step)
            step = flow.send(await came)
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        flow.close()


def _side_by_side(flows: Sequence[Effects[None]]) -> Outcome:
    pool = ThreadPoolExecutor(_MOST_AT_ONCE)
    try:
        for flow in flows:
            pool.submit(copy_context().run, run, flow)
        pool.shutdown()
    finally:
        pool.shutdown(cancel_futures=True)
    return None, None


async def _side_by_side_async(flows: Sequence[Effects[None]]) -> Outcome:
    with ThreadPoolExecutor(_MOST_AT_ONCE) as pool:
        async with asyncio.TaskGroup() as group:
            for flow in flows:
                group.create_task(run_async(flow, pool))
    return None, None


def _caught(attempt: Invoke, *, to_end: bool = False) -> Outcome:
    try:
        result = attempt()
        return _run_to_end(result) if to_end and inspect.isawaitable(result) else (result, None)
    except BaseException as error:
        return None, error


async def _caught_async(attempt: Invoke, pool: Executor | None) -> Outcome:
    """A plain handler runs in a thread. That cannot be interrupted, so a cancellation waits until
    it is done.

    One that still waits for a thread does not begin any more.
    """
    stopped = False

    def begin() -> Outcome:
        return (None, asyncio.CancelledError()) if stopped else context.run(_caught, attempt)

    try:
        if inspect.iscoroutinefunction(attempt):
            return await attempt(), None
        context = copy_context()
        work = asyncio.get_running_loop().run_in_executor(pool, begin)
        try:
            result, error = await asyncio.shield(work)
        except asyncio.CancelledError:
            stopped = True
            while not work.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([work])
            raise
        return (await result if inspect.isawaitable(result) else result), error
    except BaseException as raised:
        return None, raised


def _run_to_end(awaitable: Any) -> Outcome:
    """Runs a coroutine from synchronous code, in a thread of its own when this thread's loop is
    already running.
    """
    outcome: list[Outcome] = []

    async def wait() -> None:
        # The task must hold no exception but a cancellation: `asyncio.run` takes the `repr` of the
        # task before it
        # puts the handler of SIGINT back, and the `repr` of a user's exception may raise.
        try:
            outcome.append((await awaitable, None))
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            outcome.append((None, error))

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(wait())
    else:
        with ThreadPoolExecutor(max_workers=1) as pool:
            pool.submit(copy_context().run, asyncio.run, wait()).result()
    return outcome.pop()  # and not a copy, which would tie the exception to its own traceback
