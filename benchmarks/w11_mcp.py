"""W11: ten real MCP servers with 138 tools behind a prompt, until its first request arrives.

A fresh process builds the prompt from the servers' locks and evaluates it with OpenAI's SDK over
127.0.0.1; the floor is the same process with ten summarized sections without tools. When the
request arrives, its tools are measured as JSON, and the processes that the sender has started are
counted.
"""

import json
import os
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Any, NamedTuple

from benchmarks.measure import SINGLE_ROUND, Row

ROOT = Path(__file__).parent.parent
ROUNDS = 1 if SINGLE_ROUND else 15
CODE = """
import sys
from pathlib import Path

from weakincentives import MarkdownSection, PromptTemplate, SectionVisibility
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.runtime.session import Session

_, url, kind, visibility, locks = sys.argv
visibility = SectionVisibility[visibility]
sections = [MarkdownSection(title="Task", key="task", template="Help.")]
for path in sorted(Path(locks).glob("*.json")):
    if kind == "mcp":
        from weakincentives.contrib.mcp import MCPSection

        section = MCPSection(path.stem, lock=path, visibility=visibility)
    else:
        section = MarkdownSection(
            title=path.stem, template="Text.", summary="Words.", visibility=visibility
        )
    sections.append(section)
template = PromptTemplate(ns="benchmarks", key="mcp", sections=sections)
adapter = OpenAIAdapter("m", api="chat", base_url=url, api_key="k", max_retries=0)
adapter.evaluate(template.bind(), session=Session())
"""
REPLY = {
    "id": "1",
    "object": "chat.completion",
    "created": 0,
    "model": "m",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "ok"}, "finish_reason": "stop"}
    ],
}


class Arrival(NamedTuple):
    """A first request: its tools' characters, and the processes that its sender has started."""

    tools: int
    processes: int


class Server(BaseHTTPRequestHandler):
    """Answers every request and records its arrival."""

    def __init__(self, arrivals: list[Arrival], *args: Any) -> None:  # Any: as in typeshed
        self.arrivals = arrivals
        super().__init__(*args)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        tools = sum(len(json.dumps(tool)) for tool in body.get("tools", ()))
        # this process has one child, the sender
        senders = [pid for pid, parent in parents() if parent == os.getpid()]
        self.arrivals.append(Arrival(tools, sum(parent in senders for _, parent in parents())))
        reply = json.dumps(REPLY).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the base
        """Prints nothing."""


def parents() -> Iterator[tuple[int, int]]:
    """Yields each process with its parent; nothing on systems without /proc."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            yield int(path.parent.name), int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue


@contextmanager
def serve() -> Generator[tuple[str, list[Arrival]]]:
    arrivals: list[Arrival] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Server, arrivals))
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", arrivals
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def run(url: str, kind: str, visibility: str = "SUMMARY") -> float:
    """Returns the CPU milliseconds of a fresh process that evaluates the prompt."""
    child = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", CODE, url, kind, visibility, str(ROOT / "tests/data/mcp")],
        {"PYTHONPATH": str(ROOT / "src")},
    )
    _, status, usage = os.wait4(child, 0)
    assert status == 0
    return (usage.ru_utime + usage.ru_stime) * 1e3


def rows() -> Iterator[Row]:
    with serve() as (url, arrivals):
        run(url, "mcp", "FULL")
        run(url, "plain")  # like the run before, it writes bytecode
        times = [(run(url, "plain"), run(url, "mcp")) for _ in range(ROUNDS)]
    whole, first = arrivals[0], arrivals[-1]
    assert whole.tools > first.tools
    floor = median(plain for plain, _ in times)
    more = median(mcp - plain for plain, mcp in times)  # of adjacent runs
    yield Row("W11", "processes", "processes", {"ours": first.processes}, 0, "value")
    characters = {"floor": whole.tools / 1e3, "ours": first.tools / 1e3}
    yield Row("W11", "tools (floor: all 138)", "k chars", characters, 0.03)
    time = {"floor": floor, "ours": floor + more}
    yield Row("W11", "evaluation (floor: without MCP)", "ms", time, 50, "difference")
