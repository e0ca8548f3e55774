"""Prompts over MCP servers: locks, runs of a scripted model, and the processes that are left."""

import asyncio
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from support.plain_mcp_server import TOOLS
from weakincentives.contrib.mcp import MCPSection
from weakincentives.contrib.mcp.lock import ServerLock, ToolLock
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.prompt import PromptTemplate
from weakincentives.runtime.events import InProcessEventBus, ToolInvoked
from weakincentives.runtime.session import Session
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


def section_of(root: Path, /, **options: Any) -> MCPSection:
    options.setdefault("lock", lock_of(root))
    options.setdefault("visibility", SectionVisibility.FULL)
    return MCPSection("plain", **options)


def template_of(section: MCPSection) -> PromptTemplate[str]:
    return PromptTemplate(ns="tests", key="mcp", sections=[section])


class Watcher:
    """A bus that keeps all events."""

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


def run(section: MCPSection, *calls: Call, mode: str = "sync", **options: Any) -> Watcher:
    """Lets a model make the calls, one a turn, and returns the events."""
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
