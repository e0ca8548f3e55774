"""Servers of the web chat on 127.0.0.1, and a model that waits in the middle of its answer."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from socket import create_server
from threading import Event, Thread
from typing import Any, ClassVar

import httpx
import uvicorn
from ag_ui import core as ag_ui

from examples.web_chat.server import make_app
from examples.web_chat.store import ChatStore
from support.ag_ui_front_end import FrontEnd
from weakincentives import MainLoop
from weakincentives.evaluation.inner_loop import ProviderRequest
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.evaluation.response import TextDelta
from weakincentives.testing import ScriptedAdapter

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 10


class WaitingAdapter(ScriptedAdapter):
    """Plays a script; of a text it sends the first word, then waits until `go` is set."""

    def __init__(self, replies: Any) -> None:
        super().__init__(replies)
        self.go = Event()
        self.go.set()

    async def ask_stream_async(
        self, request: ProviderRequest, /
    ) -> AsyncGenerator[TextDelta | AssistantMessage]:
        answer = self.ask(request)
        first, _, rest = answer.text.partition(" ")
        if first:
            yield TextDelta(first)
        if rest:
            await asyncio.to_thread(self.go.wait, SECONDS)
            yield TextDelta(f" {rest}")
        yield answer


@contextmanager
def serve(adapter: ScriptedAdapter, database: Path) -> Generator[str]:
    """Serves chats of `database` until the block ends; yields the address."""
    port = free_port()

    def run() -> None:
        store = ChatStore(database)  # SQLite wants one thread
        config = uvicorn.Config(
            make_app(store, MainLoop(adapter)),
            port=port,
            log_level="error",
            timeout_graceful_shutdown=1,
        )
        servers.append(uvicorn.Server(config))
        servers[0].run()
        store.close()

    servers: list[uvicorn.Server] = []
    thread = Thread(target=run)
    thread.start()
    try:
        yield wait_for(f"http://127.0.0.1:{port}")
    finally:
        servers[0].should_exit = True
        thread.join()


def start_process(database: Path, port: int, pace: float) -> subprocess.Popen[bytes]:
    """Starts `python -m examples.web_chat`, with a model that pauses after each word."""
    command = [sys.executable, "-m", "examples.web_chat", "--database", str(database)]
    command += ["--port", str(port), "--pace", str(pace)]
    environment = {name: os.environ[name] for name in ("PATH",)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    wait_for(f"http://127.0.0.1:{port}")
    return process


def free_port() -> int:
    with create_server(("127.0.0.1", 0)) as socket:
        port: int = socket.getsockname()[1]
        return port


def wait_for(url: str) -> str:
    for _ in range(2000):  # a process imports much
        try:
            httpx.get(url)
        except httpx.TransportError:
            time.sleep(0.02)
        else:
            return url
    raise AssertionError(f"{url} does not answer")


class Tab:
    """A browser tab: follows its chat, as `front_end` shows it."""

    open: ClassVar[dict[httpx.Client, list["Tab"]]] = {}

    def __init__(self, client: httpx.Client) -> None:
        self.front_end = FrontEnd()
        self._response = client.stream("GET", "/events", timeout=SECONDS)
        self._lines: Iterator[str] = self._response.__enter__().iter_lines()
        self.open.setdefault(client, []).append(self)

    def read(self, kind: str, count: int = 1) -> "Tab":
        """Reads up to the `count`th event of that kind."""
        end = time.monotonic() + SECONDS
        for line in self._lines:
            assert time.monotonic() < end, f"no {kind} came"  # comments come for ever
            if line.startswith("data: "):
                self.front_end.read(line.removeprefix("data: "))
                count -= json.loads(line.removeprefix("data: "))["type"] == kind
                if count == 0:
                    return self
        raise AssertionError(f"the stream ended before {kind}")

    def close(self) -> None:
        self._response.__exit__(None, None, None)


@contextmanager
def browser(url: str, cookies: httpx.Cookies | None = None) -> Generator[httpx.Client]:
    """A browser that has loaded the page, and so has its cookie; closes its tabs at the end."""
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
