"""Effects describe the I/O of an evaluation, and two performers carry them out.

The logic is written once, as generators of type `Effects`. A generator yields one effect at a time
and is sent its outcome, `(result, exception)`. It does not do I/O or start threads itself. An
effect is one of the following:

- a callable: run a tool's handler, which may be `async`;
- `Ask`: send a request to the provider;
- `Close`: close a connection to the provider;
- `Wait`: wait for an approver, at most until the deadline;
- `Parallel`: run several generators concurrently;
- a `Progress` event: pass it to the stream's reader.

`perform` performs effects in the calling thread, and `perform_async` performs them without blocking
the event loop. Both close the generator when they end early, so that its `finally` blocks undo
unfinished steps.

A handler may raise a cancellation that was not aimed at the run, for example if it awaits a
cancelled task. Like any other error, such a cancellation makes only the handler fail.
"""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from ..cancellation import foreign_failure, is_foreign
from ..event_loops import call_in_thread, closing_shielded, run_to_end, threads, wait_for_all
from .adapter import Connection
from .messages import AssistantMessage
from .partial_answer import PartialAnswer
from .response import Completed, OutputDelta, Progress, ReasoningDelta, TextDelta

__all__ = [
    "Ask",
    "Asked",
    "Close",
    "Effects",
    "Invoke",
    "Outcome",
    "Parallel",
    "Wait",
    "perform",
    "perform_async",
    "run",
]

_MAX_THREADS = 16

type Invoke = Callable[[], object]

# Any: handlers and providers return values of every type. The outcome is a tuple, because a future
# cannot carry every exception: StopIteration would never arrive.
type Outcome = tuple[Any, BaseException | None]


type _Piece = Progress | AssistantMessage | Completed[object]


class Asked[Request](Protocol):
    """An object that accepts requests: a `Connection`, or an adapter with its own loop."""

    def ask(self, request: Request, /) -> object: ...
    async def ask_async(self, request: Request, /) -> object: ...
    def ask_stream(self, request: Request, /) -> Iterator[_Piece]: ...
    def ask_stream_async(self, request: Request, /) -> AsyncGenerator[_Piece]: ...


@dataclass(slots=True)
class Ask[Request]:
    """Sends `request` to the provider; the result is the model's message, or `None`.

    If `streamed` is true, the performer yields the message's chunks as progress, and adds the text
    that readers see to `shown`. For a typed answer, it also yields the changes of `partial`. An
    adapter with its own loop is asked in the same way: its request
    is a prompt, and its last event is `Completed`.
    """

    connection: Asked[Request]
    request: Request
    streamed: bool = False
    shown: list[str] | None = None
    partial: PartialAnswer | None = None

    def note(self, piece: object) -> OutputDelta | None:
        """Records the text of a chunk, and returns how it changes a typed answer.

        A rejection discards the earlier texts.
        """
        if self.shown is not None:
            if isinstance(piece, TextDelta):
                self.shown.append(piece.text)
            elif not isinstance(piece, ReasoningDelta):
                self.shown.clear()
        return None if self.partial is None else self.partial.read(piece)


@dataclass(frozen=True, slots=True)
class Close:
    """Closes a connection to the provider."""

    connection: Connection


@dataclass(frozen=True, slots=True)
class Wait:
    """Calls a function that may wait for an approver, and stops waiting after `seconds`.

    After a timeout, the outcome is a `TimeoutError`. `perform` cannot interrupt a plain function,
    so it waits until the function returns.
    """

    invoke: Invoke
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Parallel:
    """Runs generators concurrently, each in its own thread or task; they must not raise."""

    branches: "Sequence[Effects[None]]"


type AnyAsk = Ask[Any]  # Any: a request of the engine, or a prompt
type Effects[T] = Generator[Invoke | AnyAsk | Close | Wait | Parallel | Progress, Outcome, T]

_DONE: Outcome = None, None
_CREATED = inspect.CORO_CREATED


def perform[T](effects: Effects[T]) -> Generator[Progress, None, T]:
    """Performs effects in this thread, yields progress and returns the result.

    `async` handlers run to completion in an event loop that all synchronous runs share. Parallel
    branches run in at most 16 threads; after an interrupt, branches that are waiting for a thread
    do not start.
    """
    try:
        effect = next(effects)
        while True:
            if callable(effect):
                effect = effects.send(_run_handler(effect, to_end=True))
            elif isinstance(effect, Ask):
                effect = effects.send((yield from _ask(effect)))
            elif isinstance(effect, Wait):
                effect = effects.send(_wait(effect))
            elif isinstance(effect, Close):
                effect.connection.close()
                effect = effects.send(_DONE)
            elif isinstance(effect, Parallel):
                effect = effects.send(_run_parallel(effect))
            else:
                yield effect
                effect = effects.send(_DONE)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:  # an interrupt may come between an effect and its outcome
        effects.close()


async def perform_async(
    effects: Effects[object], pool: Executor | None = None
) -> AsyncGenerator[Progress]:
    """Performs effects without blocking the event loop and yields progress.

    Plain handlers run in the threads of `pool` if given, otherwise in at most 64 threads of the
    event loop. A cancellation waits for running handlers to finish.
    """
    try:
        effect = next(effects)
        while True:
            if callable(effect):
                effect = effects.send(await _run_handler_async(effect, pool))
            elif isinstance(effect, Ask) and not effect.streamed:
                effect = effects.send(await _ask_async(effect))
            elif isinstance(effect, Ask):
                outcome = _DONE
                pieces = _ask_stream_async(effect)
                async with closing_shielded(pieces):
                    async for piece in pieces:
                        if isinstance(piece, tuple):
                            outcome = piece
                        else:
                            yield piece
                effect = effects.send(outcome)
            elif isinstance(effect, Wait):
                effect = effects.send(await _wait_async(effect))
            elif isinstance(effect, Close):
                async with closing_shielded(effect.connection):
                    pass
                effect = effects.send(_DONE)
            elif isinstance(effect, Parallel):
                effect = effects.send(await _run_parallel_async(effect))
            else:
                yield effect
                effect = effects.send(_DONE)
    except StopIteration:
        return
    finally:
        effects.close()


def run[T](effects: Effects[T]) -> T:
    """Performs effects in this thread, discards their progress and returns the result."""
    performance = perform(effects)
    try:
        while True:
            next(performance)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        performance.close()


def _ask[Request](ask: Ask[Request]) -> Generator[Progress, None, Outcome]:
    answer = None
    try:
        if not ask.streamed:
            return ask.connection.ask(ask.request), None
        for piece in ask.connection.ask_stream(ask.request):
            if isinstance(piece, AssistantMessage | Completed):
                answer = piece
            else:
                delta = ask.note(piece)
                yield piece
                if delta is not None:
                    yield delta
    except BaseException as error:
        return None, error
    return answer, None


async def _ask_async[Request](ask: Ask[Request]) -> Outcome:
    try:
        return await ask.connection.ask_async(ask.request), None
    except BaseException as error:
        return None, error


async def _ask_stream_async[Request](ask: Ask[Request]) -> AsyncGenerator[Progress | Outcome]:
    """Yields the chunks of the message, and the outcome last."""
    outcome: Outcome = _DONE
    try:
        pieces = ask.connection.ask_stream_async(ask.request)
        async with closing_shielded(pieces):
            async for piece in pieces:
                if isinstance(piece, AssistantMessage | Completed):
                    outcome = piece, None
                else:
                    delta = ask.note(piece)
                    yield piece
                    if delta is not None:
                        yield delta
    except GeneratorExit:
        raise
    except BaseException as error:
        outcome = None, error
    yield outcome


def _wait(wait: Wait) -> Outcome:
    async def bounded(result: Awaitable[object]) -> object:
        async with asyncio.timeout(wait.seconds):
            return await result

    def invoke() -> object:
        result = wait.invoke()
        return bounded(result) if inspect.isawaitable(result) else result

    return _run_handler(invoke, to_end=True)


async def _wait_async(wait: Wait) -> Outcome:
    """Calls a plain function in its own thread, which is abandoned after the timeout."""
    try:
        async with asyncio.timeout(wait.seconds):
            if inspect.iscoroutinefunction(wait.invoke):
                return await wait.invoke(), None
            result, error = await call_in_thread(partial(_run_handler, wait.invoke), "approver")
            return (await result if inspect.isawaitable(result) else result), error
    except BaseException as error:
        return None, foreign_failure(error) if is_foreign(error) else error


def _run_parallel(parallel: Parallel) -> Outcome:
    pool = ThreadPoolExecutor(_MAX_THREADS)
    try:
        for branch in parallel.branches:
            pool.submit(copy_context().run, run, branch)
        pool.shutdown()
    finally:
        pool.shutdown(cancel_futures=True)
    return _DONE


async def _run_parallel_async(parallel: Parallel) -> Outcome:
    async def run_branch(branch: Effects[None]) -> None:
        async for _ in perform_async(branch, pool):
            pass

    with ThreadPoolExecutor(_MAX_THREADS) as pool:
        tasks = [asyncio.create_task(run_branch(branch)) for branch in parallel.branches]
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await wait_for_all(tasks)
            raise
    return _DONE


def _run_handler(invoke: Invoke, *, to_end: bool = False) -> Outcome:
    try:
        result = invoke()
        # a dataclass is not awaitable, and skipping the check saves time
        if to_end and not hasattr(result, "__dataclass_fields__") and inspect.isawaitable(result):
            return _run_to_end(result)
        return result, None
    except asyncio.CancelledError as error:  # nobody can cancel a plain function
        return None, foreign_failure(error)
    except BaseException as error:
        return None, error


async def _run_handler_async(invoke: Invoke, pool: Executor | None) -> Outcome:
    """Runs a plain handler in a thread; it cannot be interrupted, so a cancellation waits for it.

    After a cancellation, a handler that is still waiting for a thread does not start.
    """
    cancelled = False

    def start() -> Outcome:
        return (None, asyncio.CancelledError()) if cancelled else context.run(_run_handler, invoke)

    try:
        if inspect.iscoroutinefunction(invoke):
            return await invoke(), None
        context = copy_context()
        future = asyncio.get_running_loop().run_in_executor(pool or threads(), start)
        try:
            result, error = await asyncio.shield(future)
        except asyncio.CancelledError:
            cancelled = True
            await wait_for_all([future])
            raise
        if inspect.isawaitable(result):
            result = await result
        return result, error
    except BaseException as error:
        return None, foreign_failure(error) if is_foreign(error) else error


def _run_to_end(awaitable: Awaitable[object]) -> Outcome:
    """Waits for a coroutine from synchronous code."""
    outcome: list[Outcome] = []

    async def wait() -> None:
        try:
            outcome.append((await awaitable, None))
        except BaseException as error:
            outcome.append((None, foreign_failure(error) if is_foreign(error) else error))

    try:
        run_to_end(wait())
    finally:
        if inspect.iscoroutine(awaitable) and inspect.getcoroutinestate(awaitable) == _CREATED:
            awaitable.close()  # there was no event loop to run it
    return outcome.pop()  # a copy would make the exception's traceback refer to the exception
