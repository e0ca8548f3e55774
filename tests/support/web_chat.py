"""Servers of the web chat on 127.0.0.1, and a model that waits in the middle of its answer."""

import asyncio
import json
import os
import queue
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import SystemRandom
from socket import create_server, socket
from threading import Event, Thread
from typing import Any, ClassVar

import httpx
import uvicorn
from ag_ui import core as ag_ui
from starlette.applications import Starlette

from examples.web_chat.prompt import clerk
from examples.web_chat.server import make_app
from examples.web_chat.store import ChatStore
from support.ag_ui_front_end import FrontEnd
from weakincentives import MainLoop
from weakincentives.evaluation.inner_loop import ProviderRequest
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.evaluation.response import TextDelta
from weakincentives.prompt.template import AnyPrompt
from weakincentives.testing import ScriptedAdapter

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120
"""The time limit for anything that ends by itself; only a failing test waits that long."""


class WaitingAdapter(ScriptedAdapter):
    """Plays a script; sends the first word of a text, then waits until `go` is set.

    At the end of the text, it sends the first word `pieces` more times.
    """

    def __init__(self, replies: Any) -> None:
        super().__init__(replies)
        self.go = Event()
        self.go.set()
        self.pieces = 0

    async def ask_stream_async(
        self, request: ProviderRequest, /
    ) -> AsyncGenerator[TextDelta | AssistantMessage]:
        answer = self.ask(request)
        first, _, rest = answer.text.partition(" ")
        if first:
            yield TextDelta(first)
        if rest:
            await asyncio.to_thread(self.go.wait)
            yield TextDelta(f" {rest}")
        for _ in range(self.pieces):
            yield TextDelta(f" {first}")
        text = answer.text + f" {first}" * self.pieces
        self.pieces = 0
        yield replace(answer, text=text)


@contextmanager
def serve(
    adapter: ScriptedAdapter, database: Path, prompt: Callable[[], AnyPrompt] = clerk
) -> Generator[str]:
    """Serves the chats in `database` until the block ends; yields the URL."""

    @contextmanager
    def app() -> Generator[Starlette]:
        with closing(ChatStore(database)) as store:
            yield make_app(store, MainLoop(adapter), prompt)

    with serve_app(app) as url:
        try:
            yield url
        finally:
            if isinstance(adapter, WaitingAdapter):
                adapter.go.set()  # otherwise its thread would wait forever


@contextmanager
def serve_app(make: Callable[[], AbstractContextManager[Starlette]]) -> Generator[str]:
    """Serves an application until the block ends; creates it in the thread that runs it."""
    servers: queue.Queue[uvicorn.Server] = queue.Queue()

    def run(listening: socket) -> None:
        with make() as app:
            config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
            server = uvicorn.Server(config)
            servers.put(server)
            server.run(sockets=[listening])

    with create_server(("127.0.0.1", 0)) as listening:
        thread = Thread(target=run, args=[listening])
        thread.start()
        server = servers.get(timeout=SECONDS)
        try:
            yield wait_for(f"http://127.0.0.1:{listening.getsockname()[1]}")
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def running_process(database: Path, port: int, pace: float) -> Generator[subprocess.Popen[bytes]]:
    """Runs `python -m examples.web_chat` with a model that pauses after each word; kills it."""
    command = [sys.executable, "-m", "examples.web_chat", "--database", str(database)]
    command += ["--port", str(port), "--pace", str(pace)]
    environment = {name: os.environ[name] for name in ("PATH",)}
    log = database.with_suffix(".log")
    with log.open("ab") as errors:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=errors)
    try:
        wait_for(f"http://127.0.0.1:{port}", process, log)
        yield process
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    """Returns a port below those that systems assign, so that it stays free for a while."""
    while True:
        port = SystemRandom().randrange(20_000, 32_000)
        with suppress(OSError), create_server(("127.0.0.1", port)):
            return port


def wait_for(
    url: str, process: subprocess.Popen[bytes] | None = None, log: Path | None = None
) -> str:
    """Returns the URL once its server answers; fails immediately if the process has ended."""
    for _ in range(50 * SECONDS):
        try:
            httpx.get(url)
        except httpx.TransportError:
            if process is not None and process.poll() is not None:
                break
            time.sleep(0.02)
        else:
            return url
    raise AssertionError(f"{url} does not answer: {log.read_text() if log else ''}")


class Tab:
    """A browser tab that follows its chat and shows it in `front_end`."""

    open: ClassVar[dict[httpx.Client, list["Tab"]]] = {}

    def __init__(self, client: httpx.Client) -> None:
        self.front_end = FrontEnd()
        self._kinds: list[str] = []
        self._response = client.stream("GET", "/events", timeout=SECONDS)
        self._lines = _lines(self._response.__enter__().iter_text())
        self.open.setdefault(client, []).append(self)

    def read(self, kind: str, count: int = 1) -> "Tab":
        """Reads up to the `count`th event of that type."""
        end = time.monotonic() + SECONDS
        for line in self._lines:
            # comments never end
            assert time.monotonic() < end, f"no {kind} came after {self._kinds}"
            if line.startswith("data: "):
                self.front_end.read(line.removeprefix("data: "))
                self._kinds.append(json.loads(line.removeprefix("data: "))["type"])
                count -= self._kinds[-1] == kind
                if count == 0:
                    return self
        raise AssertionError(f"the stream ended before {kind}, after {self._kinds}")

    def close(self) -> None:
        self._response.__exit__(None, None, None)


def _lines(pieces: Iterable[str]) -> Iterator[str]:
    """Yields lines as a browser splits them, which httpx also does at U+2028."""
    rest = ""
    for piece in pieces:
        *lines, rest = f"{rest}{piece}".split("\n")
        yield from lines


@contextmanager
def browser(url: str, cookies: httpx.Cookies | None = None) -> Generator[httpx.Client]:
    """Yields a browser that has loaded the page and has its cookie; closes its tabs at the end."""
    with httpx.Client(base_url=url, cookies=cookies, timeout=SECONDS) as client:
        client.get("/").raise_for_status()
        yield client
        for tab in Tab.open.pop(client, []):
            tab.close()


def body(text: str) -> str:
    message = ag_ui.UserMessage(id=f"m-{text}", content=text)
    request = ag_ui.RunAgentInput(thread_id="t", run_id=f"r-{text}", messages=[message])
    return request.model_dump_json(by_alias=True)


def post(client: httpx.Client, path: str, content: str = "null", **headers: str) -> httpx.Response:
    headers = {"content-type": "application/json", **headers}
    return client.post(path, content=content, headers=headers)
