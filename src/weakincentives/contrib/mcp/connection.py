"""The connection of a prompt to one MCP server: started by the first call, closed with the prompt.

One task on the portal's event loop enters and leaves the client, as the SDK requires. Calls from
any thread or event loop run beside this task. Nothing here imports the SDK.
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

if TYPE_CHECKING:  # it imports the SDK
    from .client import OpenServer

__all__ = ["Connection"]

_MAX_EVENTS = 10_000  # of a call
_END_SECONDS = 10.0  # the SDK gives a server 2 s to end by itself, and kills it after 2 s more


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of a tool, from its start to its end."""

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
    """Calls the tools of one server for a prompt; `close` ends the server.

    The first call starts the server, and a call after its end starts it again. A server that does
    not answer in time, or whose call is cancelled, is ended, so that nothing goes on unseen.

    `elicit` answers what the server asks a person. Its calls then run one after the other, since a
    server does not say which of them a question belongs to.
    """

    def __init__(self, lock: ServerLock, elicit: Elicit | None = None) -> None:
        self._lock = lock
        self._elicit = elicit
        self._reset(None)

    def _reset(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop
        # All below is used on this loop, the portal's, alone.
        self._run: _ServerRun | None = None
        self._owners: set[asyncio.Task[None]] = set()  # of the run and of those that end
        self._calls: dict[asyncio.Task[object], _Call] = {}  # in the order of their turns
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
        """Returns the answer to a call; a failed one if the tool differs from its lock.

        `publish` receives up to 10,000 progress and log messages in the caller's thread, while the
        caller waits. `elicit` receives `context`, and is not asked without one. If the server ends,
        a `repeatable` call runs once more on a new one. Raises `ServerError` if there is no answer
        after `seconds`, the start of the server and the answers of a person included, and what
        `elicit` raises once the server has answered.
        """
        caller = asyncio.get_running_loop()
        numbers = iter(range(_MAX_EVENTS))

        def notify(event: object) -> None:
            if next(numbers, None) is None:
                return
            with suppress(RuntimeError):  # the caller's loop is closed: nobody waits any more
                caller.call_soon_threadsafe(publish, event)

        async with _asking(self._elicit, context) as ask:
            call = _Call(tool, arguments, repeatable, seconds, notify, ask)
            return await await_on(portal.loop(), self._answer(call))

    def close(self) -> None:
        """Ends the server and waits for its end, a few seconds at most."""
        self.end_calls(close=True)

    def end_calls(self, *, close: bool = False) -> None:
        """Ends calls that nobody waits for, and waits for the end of the servers they ran on."""
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
        if loop is not self._loop:  # the first call, or a fork, which leaves the server its parent
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
        """Makes a call on a run of the server, which ends with a call that has no answer."""
        run = self._usable_run()
        try:
            server = await asyncio.shield(run.ready)
            return await server.call(call.tool, call.arguments, call.notify)
        except (ServerEndedError, asyncio.CancelledError):
            self._end(run)
            raise

    def _usable_run(self) -> _ServerRun:
        """Returns the present run, or a new one that begins to start."""
        run = self._run
        if (
            run is None
            or run.task.done()
            or (run.ready.done() and run.ready.result().has_ended)  # one that starts is usable
        ):
            self._end(run)
            loop = asyncio.get_running_loop()
            ready: asyncio.Future[OpenServer] = loop.create_future()
            # without the context of this call, which ends before the server
            owner = loop.create_task(self._own(ready), context=Context())
            self._owners.add(owner)
            owner.add_done_callback(self._owners.discard)
            run = self._run = _ServerRun(ready, owner)
        return run

    def _end(self, run: _ServerRun | None) -> None:
        """Ends the present run; one that has been ended before would be interrupted at its end."""
        if run is not None and self._run is run:
            self._run = None
            run.task.cancel()

    async def _own(self, ready: asyncio.Future["OpenServer"]) -> None:
        """Starts the server, and ends it when this task is cancelled."""
        failure: Exception = ServerEndedError(self._lock.name, sent=False)
        try:
            # In a thread, since the import takes 0.7 s and the portal serves others too.
            await asyncio.to_thread(import_module, ".client", __package__)
            from .client import open_server

            ask = None if self._elicit is None else self._ask
            async with open_server(self._lock, self._notify, ask) as server:
                ready.set_result(server)
                await asyncio.Event().wait()
        except ImportError:
            failure = ServerError(str(missing_extra("An MCP server", "mcp", "mcp")))
        except Exception as error:  # else calls would wait for the server until their timeout
            failure = error
        except asyncio.CancelledError:
            pass  # by `_end`
        if not ready.done():
            ready.set_exception(failure)
            ready.exception()  # perhaps nobody waits any more

    @property
    def _oldest(self) -> _Call | None:
        """The call that runs; without `elicit` there may be others, which have the same bus."""
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
    """Yields what passes questions of one call from any loop to `elicit`, on the loop of the block.

    They are asked one after the other. A question that is open at the end of the block, or on which
    `elicit` raises, is cancelled. Raises at the end what `elicit` raised, and what `check_answer`
    did.
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
                if is_open:  # the block may have ended since the question was passed on
                    return check_answer(request, await _call_elicit(elicit, request, context))
        except Exception as error:  # the call raises it once the server has answered
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
    """Calls `elicit`; a plain function runs in a thread, which a cancellation leaves behind."""

    def call() -> Any:  # Any: the answer itself, or a coroutine that returns it
        return elicit(request, context=context)

    if inspect.iscoroutinefunction(elicit):
        return await call()
    returned = await call_in_thread(call, "weakincentives-elicit")
    return await returned if inspect.isawaitable(returned) else returned
