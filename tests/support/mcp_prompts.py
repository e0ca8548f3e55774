"""Prompts with MCP servers: locks, runs with a scripted model, and the processes left behind."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support import hostile_mcp_server
from support.deadlines import SOON
from support.plain_mcp_server import TOOLS
from weakincentives.contrib.mcp import MCPSection
from weakincentives.contrib.mcp.connection import Connection
from weakincentives.contrib.mcp.elicitation import Elicit
from weakincentives.contrib.mcp.lock import ServerLock, ToolLock
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.prompt import PromptTemplate, ToolResult
from weakincentives.runtime.events import InProcessEventBus, ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.serde import Json
from weakincentives.testing import ScriptedAdapter, call, say
from weakincentives.visibility import SectionVisibility

SERVER = Path(__file__).parent / "plain_mcp_server.py"
type Call = tuple[str, Mapping[str, object]]


def lock_of(folder: Path, tools: Sequence[dict[str, Any]] = TOOLS, **fields: Any) -> ServerLock:
    return ServerLock(
        name="plain",
        command=(sys.executable, str(SERVER), str(folder)),
        headers={},
        instructions="Costs are in $ and ${CREDITS}.",
        tools=tuple(ToolLock.from_listing(tool) for tool in tools),
        **fields,
    )


def hostile(folder: Path) -> ServerLock:
    """Returns the lock of the server that floods its client."""
    command = (sys.executable, str(Path(hostile_mcp_server.__file__)), str(folder))
    return replace(lock_of(folder, hostile_mcp_server.TOOLS), command=command)


def changed(name: str, **fields: object) -> list[dict[str, Any]]:
    """Returns the plain server's tools, one of them with changed fields."""
    return [tool | fields if tool["name"] == name else tool for tool in TOOLS]


def listed(lock: ServerLock) -> ServerLock:
    """Returns the tools of the server that a lock starts."""
    from weakincentives.contrib.mcp.client import open_server  # a slow import

    async def look() -> ServerLock:
        async with asyncio.timeout(SOON), open_server(lock, id) as server:
            return server.lock

    return asyncio.run(look())


@contextmanager
def connected(
    lock: ServerLock, elicit: Elicit | None = None
) -> Generator[Callable[..., ToolResult[Json]]]:
    """Yields a function that calls a tool of the server with a text; the block ends the server."""
    with closing(Connection(lock, elicit)) as connection:

        def call(tool: str, text: object = "", **options: Any) -> ToolResult[Json]:
            defaults: dict[str, Any] = {"repeatable": True, "seconds": SOON, "publish": id}
            return asyncio.run(connection.call(tool, {"text": str(text)}, **(defaults | options)))

        yield call


async def until(condition: Callable[[], bool]) -> None:
    """Waits until another process or thread makes the condition true."""
    async with asyncio.timeout(SOON):
        while not condition():  # noqa: ASYNC110 - it sets no event
            await asyncio.sleep(0.01)


def section_of(root: Path, /, **options: Any) -> MCPSection:
    options.setdefault("lock", lock_of(root))
    options.setdefault("visibility", SectionVisibility.FULL)
    return MCPSection("plain", **options)


def template_of(section: MCPSection) -> PromptTemplate[str]:
    return PromptTemplate(ns="tests", key="mcp", sections=[section])


class Watcher:
    """A bus that stores all events."""

    def __init__(self) -> None:
        self.bus = InProcessEventBus()
        self.events: list[object] = []
        self.threads: set[str] = set()
        self.bus.subscribe(object, self._keep)

    def _keep(self, event: object) -> None:
        self.events.append(event)
        self.threads.add(threading.current_thread().name)

    def of[E](self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]


def run_cancelled(section: MCPSection, made: Call, condition: Callable[[], bool]) -> None:
    """Lets a model make a call, and cancels the run during the call, once `condition` is true."""
    name, arguments = made
    loop = MainLoop(ScriptedAdapter([call((f"plain_{name}", arguments)), say("done")]))

    async def cancel() -> None:
        prompt = template_of(section).bind()
        task = asyncio.create_task(loop.execute_async(prompt, session=Session()))
        await until(condition)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())


def run(section: MCPSection, *calls: Call, mode: str = "sync", **options: Any) -> Watcher:
    """Lets a model make the calls, one per turn, and returns the events."""
    watcher = Watcher()
    loop = MainLoop(ScriptedAdapter([*[call((f"plain_{n}", a)) for n, a in calls], say("done")]))
    prompt = template_of(section).bind()
    options |= {"session": Session(bus=watcher.bus), "bus": watcher.bus}
    if mode == "async":
        assert asyncio.run(loop.execute_async(prompt, **options)).text == "done"
    else:
        assert loop.execute(prompt, **options).text == "done"
    return watcher


def answers(watcher: Watcher) -> list[tuple[bool, str]]:
    return [(event.success, event.content) for event in watcher.of(ToolInvoked)]


def children() -> list[str]:
    """Returns the commands of this process's children that run a server."""
    found: list[str] = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            parent = next(x for x in status.read_text().splitlines() if x.startswith("PPid:"))
            command = (status.parent / "cmdline").read_text()
        except (OSError, StopIteration):
            continue
        if int(parent.split()[1]) == os.getpid() and "mcp" in command:
            found.append(command)
    return found
