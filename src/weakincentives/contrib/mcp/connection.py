"""A prompt's connection to one MCP server, opened by the first call and closed with the prompt.

One task on the portal's event loop enters and leaves the client, as the SDK requires. Calls from
any thread or event loop run concurrently with this task. This module does not import the SDK.
"""

import asyncio
import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext, suppress
from contextvars import Context, copy_context
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import missing_extra
from ...event_loops import await_on, call_in_thread, portal, run_on
from ...prompt.context import ToolContext
from ...prompt.tool import ToolResult
from ...serde import Json
from .elicitation import Ask, Cancel, Elicit, Elicitation, ElicitationAnswer, check_answer
from .lock import ServerLock
from .server_errors import UNKNOWN_EFFECT, Notify, ServerEndedError, ServerError

if TYPE_CHECKING:  # this module imports the SDK
    from .client import OpenServer

__all__ = ["Connection"]

_MAX_EVENTS = 10_000  # per call
_END_SECONDS = 10.0  # the SDK waits 2 s for a server to stop, and kills it after another 2 s


@dataclass(frozen=True, slots=True)
class _Call:
    """A tool call, from its start to its end."""

    tool: str
    arguments: Mapping[str, Json]
    repeatable: bool
    seconds: float
    notify: Notify
    ask: Ask | None


class _ServerRun(NamedTuple):
    """One run of the server, from its start to its end."""

    ready: asyncio.Future["OpenServer"]
    task: asyncio.Task[None]


class Connection:
    """Calls the tools of one server for a prompt; `close` stops the server.

    The first call starts the server, and the first call after the server has stopped starts it
    again. If a server does not answer in time, or a call is cancelled, the server is stopped so
    that it cannot continue unnoticed.

    `elicit` answers the questions that the server asks the user. If it is given, calls run one at a
    time, because a server does not report which call a question belongs to.
    """

    def __init__(self, lock: ServerLock, elicit: Elicit | None = None) -> None:
        self._lock = lock
        self._elicit = elicit
        self._reset(None)

    def _reset(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop
        # Everything below is used only on this loop, which is the portal's.
        self._run: _ServerRun | None = None
        self._owners: set[asyncio.Task[None]] = set()  # tasks of current and stopping runs
        self._calls: dict[asyncio.Task[object], _Call] = {}  # in the order in which they run
        self._turn = nullcontext() if self._elicit is None else asyncio.Lock()

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Json],
        *,
        repeatable: bool,
        seconds: float,
        publish: Callable[[object], object],
        context: ToolContext | None = None,
    ) -> ToolResult[Json]:
        """Returns a call's result, or a failure if the tool differs from its lock.

        While the caller waits, `publish` is called in the caller's thread with up to 10,000
        progress and log messages. `elicit` receives `context` and is not called without it. If the
        server stops, a `repeatable` call is retried once on a new server. Raises `ServerError` if
        there is no result after `seconds`, which includes the server's start and the user's
        answers. An error raised by `elicit` is raised again after the server's result.
        """
        caller = asyncio.get_running_loop()
        numbers = iter(range(_MAX_EVENTS))

        def notify(event: object) -> None:
            if next(numbers, None) is None:
                return
            with suppress(RuntimeError):  # the caller's loop is closed, so nobody is waiting
                caller.call_soon_threadsafe(publish, event)

        async with _asking(self._elicit, context) as ask:
            call = _Call(tool, arguments, repeatable, seconds, notify, ask)
            return await await_on(portal.loop(), self._answer(call))

    def close(self) -> None:
        """Stops the server, waiting at most a few seconds."""
        self.end_calls(close=True)

    def end_calls(self, *, close: bool = False) -> None:
        """Cancels calls that nobody is waiting for, and waits until their servers have stopped."""
        if self._loop is not None and self._loop is portal.loop():
            run_on(self._loop, self._end_calls(close=close), _END_SECONDS)

    async def _end_calls(self, *, close: bool) -> None:
        for task in self._calls:
            task.cancel()
        if self._calls:
            await asyncio.wait(self._calls)
        if close:
            self._end(self._run)
        if ended := self._owners - {self._run.task if self._run else None}:
            await asyncio.wait(ended)

    async def _answer(self, call: _Call) -> ToolResult[Json]:
        loop, task, has_turn = asyncio.get_running_loop(), asyncio.current_task(), False
        assert task is not None  # this is a coroutine
        if loop is not self._loop:  # the first call, or a fork, whose parent keeps the server
            self._reset(loop)
        self._calls[task] = call
        try:
            async with asyncio.timeout(call.seconds), self._turn:
                has_turn = True
                try:
                    return await self._attempt(call)
                except ServerEndedError as error:
                    if error.sent and not call.repeatable:
                        raise
                return await self._attempt(call)
        except TimeoutError:
            limit = f"{call.seconds:.3g} seconds"
            problem = f"gave no answer within {limit} and was ended. {UNKNOWN_EFFECT}"
            if not has_turn:
                problem = f"was busy with other calls for {limit}; the call did not begin."
            raise ServerError(f"MCP server {self._lock.name!r} {problem}") from None
        finally:
            self._calls.pop(task, None)

    async def _attempt(self, call: _Call) -> ToolResult[Json]:
        """Makes a call during a server run, and ends the run if there is no result."""
        run = self._usable_run()
        try:
            server = await asyncio.shield(run.ready)
            return await server.call(call.tool, call.arguments, call.notify)
        except (ServerEndedError, asyncio.CancelledError):
            self._end(run)
            raise

    def _usable_run(self) -> _ServerRun:
        """Returns the current run, or starts a new one."""
        run = self._run
        if (
            run is None
            or run.task.done()
            or (run.ready.done() and run.ready.result().has_ended)  # a starting run is usable
        ):
            self._end(run)
            loop = asyncio.get_running_loop()
            ready: asyncio.Future[OpenServer] = loop.create_future()
            # Do not inherit this call's context, because the server outlives the call.
            owner = loop.create_task(self._own(ready), context=Context())
            self._owners.add(owner)
            owner.add_done_callback(self._owners.discard)
            run = self._run = _ServerRun(ready, owner)
        return run

    def _end(self, run: _ServerRun | None) -> None:
        """Ends the current run; an earlier run is already ending and must not be interrupted."""
        if run is not None and self._run is run:
            self._run = None
            run.task.cancel()

    async def _own(self, ready: asyncio.Future["OpenServer"]) -> None:
        """Starts the server, and stops it when this task is cancelled."""
        failure: Exception = ServerEndedError(self._lock.name, sent=False)
        try:
            # In a thread, because the import takes 0.7 s and the portal is shared.
            await asyncio.to_thread(import_module, ".client", __package__)
            from .client import open_server

            ask = None if self._elicit is None else self._ask
            async with open_server(self._lock, self._notify, ask) as server:
                ready.set_result(server)
                await asyncio.Event().wait()
        except ImportError:
            failure = ServerError(str(missing_extra("An MCP server", "mcp", "mcp")))
        except Exception as error:  # otherwise calls would wait until their timeout
            failure = error
        except asyncio.CancelledError:
            pass  # cancelled by `_end`
        if not ready.done():
            ready.set_exception(failure)
            ready.exception()  # marks the exception as retrieved if nobody is waiting

    @property
    def _oldest(self) -> _Call | None:
        """The oldest running call; without `elicit`, others may be running, but on the same bus."""
        return next(iter(self._calls.values()), None)

    def _notify(self, event: object) -> None:
        if self._oldest is not None:
            self._oldest.notify(event)

    async def _ask(self, request: Elicitation) -> ElicitationAnswer:
        if self._oldest is None or self._oldest.ask is None:
            return Cancel()
        return await self._oldest.ask(request)


@asynccontextmanager
async def _asking(elicit: Elicit | None, context: ToolContext | None) -> AsyncGenerator[Ask | None]:
    """Yields a function that passes a call's questions from any loop to `elicit` on this loop.

    Questions are asked one at a time. A question is cancelled if it is still open at the end of the
    block, or if `elicit` raises. Raises errors from `elicit` and `check_answer` at the end.
    """
    if elicit is None or context is None:
        yield None
        return
    loop, variables = asyncio.get_running_loop(), copy_context()
    turn, questions, errors = asyncio.Lock(), set[asyncio.Task[object]](), list[Exception]()
    is_open = True

    async def answer(request: Elicitation) -> ElicitationAnswer:
        task = asyncio.current_task()
        assert task is not None  # this is a coroutine
        questions.add(task)
        try:
            async with turn:
                if is_open:  # the block may have ended in the meantime
                    return check_answer(request, await _call_elicit(elicit, request, context))
        except Exception as error:  # raised by the call after the server's result
            errors.append(error)
        return Cancel()

    async def ask(request: Elicitation) -> ElicitationAnswer:
        future = variables.run(asyncio.run_coroutine_threadsafe, answer(request), loop)
        answered = asyncio.wrap_future(future)
        await asyncio.wait([answered])
        return Cancel() if answered.cancelled() else answered.result()

    try:
        yield ask
    except ServerError:
        if not errors:
            raise
    finally:
        is_open = False
        for question in questions:
            question.cancel()
        if questions:
            await asyncio.wait(questions)
    if errors:
        raise errors[0]


async def _call_elicit(elicit: Elicit, request: Elicitation, context: ToolContext) -> object:
    """Calls `elicit`; a plain function runs in a thread, which cancellation does not stop."""

    def call() -> Any:  # Any: the answer, or a coroutine that returns it
        return elicit(request, context=context)

    if inspect.iscoroutinefunction(elicit):
        return await call()
    returned = await call_in_thread(call, "weakincentives-elicit")
    return await returned if inspect.isawaitable(returned) else returned
