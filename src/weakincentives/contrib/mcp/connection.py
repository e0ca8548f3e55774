"""The connection of a prompt to one MCP server: started by the first call, closed with the prompt.

One task on the portal's event loop enters and leaves the client, as the SDK requires. Calls from
any thread or event loop run beside this task. Nothing here imports the SDK.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from contextvars import Context
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

from ...errors import missing_extra
from ...event_loops import await_on, portal, run_on
from ...prompt.context import ToolContext
from ...prompt.tool import ToolResult
from ...serde import Json
from .differences import ToolDifference, differences
from .elicitation import Ask, Cancel, Elicit, Elicitation, ElicitationAnswer, asking
from .events import MCPServerChanged
from .lock import ServerLock
from .server_errors import UNKNOWN_EFFECT, Notify, ServerEndedError, ServerError

if TYPE_CHECKING:  # it imports the SDK
    from .client import OpenServer

__all__ = ["Connection", "ServerKey"]

_MAX_EVENTS = 10_000  # of a call
_END_SECONDS = 10.0  # the SDK gives a server 2 s to end by itself, and kills it after 2 s more


@dataclass(frozen=True, slots=True)
class ServerKey:
    """The key by which a prompt's resources hold the connection to a server.

    Sections whose locks and `elicit` are equal share it.
    """

    name: str
    lock: ServerLock = field(repr=False, hash=False)
    elicit: Elicit | None = field(repr=False, hash=False)

    def __call__(self) -> "Connection":
        return Connection(self.lock, self.elicit)


@dataclass(eq=False, slots=True)
class _ServerRun:
    """One run of the server, from its start to its end."""

    ready: asyncio.Future["OpenServer"]
    task: asyncio.Task[None] = field(init=False)
    ended: bool = False
    differences: Mapping[str | None, ToolDifference] = field(default_factory=dict)

    @property
    def is_usable(self) -> bool:
        """Whether a new call may use this run; one that still starts counts."""
        if self.task.done():
            return False
        return not self.ready.done() or not self.ready.result().has_ended


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
        self._tasks: set[asyncio.Task[None]] = set()  # the owners of the run and of ended ones
        self._calls: set[asyncio.Task[object]] = set()
        self._listeners: list[Notify] = []
        self._turn = nullcontext() if self._elicit is None else asyncio.Lock()
        self._ask: Ask | None = None

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

        async with asking(self._elicit, context) as ask:
            call = self._call(tool, arguments, notify, ask, repeatable=repeatable, seconds=seconds)
            return await await_on(portal.loop(), call)
        raise AssertionError("the block returns or raises")

    def close(self) -> None:
        """Ends the server and waits for its end, a few seconds at most."""
        self.end_calls(close=True)

    def end_calls(self, *, close: bool = False) -> None:
        """Ends calls that nobody waits for, and waits for the end of the servers they ran on."""
        if self._loop is not None and self._loop is portal.loop():
            run_on(self._loop, self._end_calls(close=close), _END_SECONDS)

    async def _end_calls(self, *, close: bool) -> None:
        for call in self._calls:
            call.cancel()
        if self._calls:
            await asyncio.wait(self._calls)
        if close and self._run is not None:
            self._end(self._run)
        if ended := self._tasks - {self._run.task if self._run else None}:
            await asyncio.wait(ended)

    async def _call(
        self,
        tool: str,
        arguments: Mapping[str, Json],
        notify: Notify,
        ask: Ask | None,
        *,
        repeatable: bool,
        seconds: float,
    ) -> ToolResult[Json]:
        loop, task, run = asyncio.get_running_loop(), asyncio.current_task(), None
        assert task is not None  # noqa: S101 - this is a coroutine
        if loop is not self._loop:  # the first call, or a fork, which leaves the server its parent
            self._reset(loop)
        self._calls.add(task)
        self._listeners.append(notify)
        try:
            async with asyncio.timeout(seconds), self._turn:
                self._ask = ask
                for last in (False, True):
                    run = self._usable_run(loop)
                    try:
                        server = await asyncio.shield(run.ready)
                        if await server.refresh():
                            self._compare(run, server)
                        if tool in run.differences:
                            return ToolResult(self._refusal(run.differences[tool]), success=False)
                        return await server.call(tool, arguments, notify)
                    except ServerEndedError as error:
                        self._end(run)
                        if last or (error.sent and not repeatable):
                            raise
            raise AssertionError("the last round returns or raises")
        except TimeoutError:
            if run is None:
                raise ServerError(
                    f"MCP server {self._lock.name!r} was busy with other calls for {seconds:.3g} "
                    "seconds; the call did not begin."
                ) from None
            self._end(run)
            raise ServerError(
                f"MCP server {self._lock.name!r} gave no answer within {seconds:.3g} seconds and "
                f"was ended. {UNKNOWN_EFFECT}"
            ) from None
        except asyncio.CancelledError:
            self._end(run)
            raise
        finally:
            self._calls.discard(task)
            self._listeners.remove(notify)
            if self._ask is ask:  # else a call that waited in vain: another one runs
                self._ask = None

    def _usable_run(self, loop: asyncio.AbstractEventLoop) -> _ServerRun:
        """Returns the present run, or a new one that begins to start."""
        if self._run is not None:
            if self._run.is_usable:
                return self._run
            self._end(self._run)
        run = self._run = _ServerRun(loop.create_future())
        # without the context of this call, which ends before the server
        run.task = loop.create_task(self._own(run), context=Context())
        self._tasks.add(run.task)
        run.task.add_done_callback(self._tasks.discard)
        return run

    def _end(self, run: _ServerRun | None) -> None:
        if self._run is run:
            self._run = None
        if run is not None and not run.ended:
            run.ended = True
            run.task.cancel()  # once: a second one would interrupt the server's end

    async def _own(self, run: _ServerRun) -> None:
        """Starts the server, and ends it when this task is cancelled."""
        failure: Exception = ServerEndedError(self._lock.name, sent=False)
        try:
            # In a thread, since the import takes 0.7 s and the portal serves others too.
            await asyncio.to_thread(import_module, ".client", __package__)
            from .client import open_server

            ask = None if self._elicit is None else self._ask_newest
            async with open_server(self._lock, self._notify, ask) as server:
                self._compare(run, server)
                run.ready.set_result(server)
                await asyncio.Event().wait()
        except ImportError:
            failure = ServerError(str(missing_extra("An MCP server", "mcp", "mcp")))
        except Exception as error:  # else calls would wait for the server until their timeout
            failure = error
        except asyncio.CancelledError:
            pass  # by `_end`
        if not run.ready.done():
            run.ready.set_exception(failure)
            run.ready.exception()  # perhaps nobody waits any more

    def _compare(self, run: _ServerRun, server: "OpenServer") -> None:
        """Stores how the tools differ from their locks, and publishes it."""
        changes = differences(self._lock, server.lock)
        run.differences = {difference.tool: difference for difference in changes}
        if changes:
            self._notify(MCPServerChanged(server=self._lock.name, differences=changes))

    def _notify(self, event: object) -> None:
        """Passes what the server says on to the newest call; the others have the same bus."""
        for listener in self._listeners[-1:]:
            listener(event)

    async def _ask_newest(self, request: Elicitation) -> ElicitationAnswer:
        """Passes a question on to the call that runs."""
        return Cancel() if self._ask is None else await self._ask(request)

    def _refusal(self, difference: ToolDifference) -> str:
        # Where the tool differs, not how: nobody has reviewed the new text, so no model reads it.
        places = [line.partition(":")[0] for line in difference.details if not line.startswith(" ")]
        where = f" ({', '.join(places)[:300]})" if places else ""
        change = "removed" if difference.kind == "vanished" else "changed"
        return (
            f"Tool {difference.tool!r} is refused: MCP server {self._lock.name!r} has {change} it "
            f"since a person reviewed it{where}. Do without it."
        )
