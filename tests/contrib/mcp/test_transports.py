"""Servers over HTTP and of the newer protocol, and one connection for many threads and loops."""

import asyncio
import json
import multiprocessing
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from support import sdk_mcp_server
from support.mcp_prompts import Call, answers, lock_of, run, section_of, template_of
from support.plain_mcp_server import Server
from weakincentives.contrib.mcp import MCPLogMessage, MCPProgress, MCPSection
from weakincentives.contrib.mcp.client import open_server
from weakincentives.contrib.mcp.connection import Connection
from weakincentives.contrib.mcp.lock import ServerLock
from weakincentives.evaluation.inner_loop import InnerLoopConfig
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say
from weakincentives.testing.scripted import Reply, SeenRequest
from weakincentives.visibility import SectionVisibility

pytestmark = pytest.mark.usefixtures("no_descriptor_left")

SDK_SERVER = str(Path(sdk_mcp_server.__file__))


class PlainHttp:
    """The plain server over HTTP, with sessions that `restart` forgets."""

    def __init__(self, folder: Path) -> None:
        self.server = Server(folder)
        self.sessions: set[str] = set()
        self.forgetful = False
        self.headers: list[dict[str, str]] = []
        handler = type("Handler", (_Handler,), {"plain": self})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/mcp"

    def restart(self) -> None:
        self.sessions.clear()

    def has_forgotten(self, session: str | None, method: str) -> bool:
        if self.forgetful and method == "tools/call":
            self.restart()
        return session not in self.sessions and method != "server/discover"


class _Handler(BaseHTTPRequestHandler):
    plain: PlainHttp

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.plain.headers.append(dict(self.headers))
        session = self.headers.get("Mcp-Session-Id")
        if message["method"] == "initialize":
            session = f"s{len(self.plain.headers)}"
            self.plain.sessions.add(session)
        elif self.plain.has_forgotten(session, message["method"]):
            self.respond(404, None, session)
            return
        response = self.plain.server.respond(message)
        self.respond(202 if response is None else 200, response, session)

    def do_GET(self) -> None:
        self.respond(405, None, None)

    def do_DELETE(self) -> None:
        self.respond(200, None, None)

    def respond(self, status: int, body: Any, session: str | None) -> None:
        data = b"" if body is None else json.dumps({"jsonrpc": "2.0", **body}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if session is not None:
            self.send_header("Mcp-Session-Id", session)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - the base's name


@contextmanager
def served(folder: Path) -> Generator[PlainHttp]:
    plain = PlainHttp(folder)
    thread = threading.Thread(target=partial(plain.http.serve_forever, 0.01))
    thread.start()
    try:
        yield plain
    finally:
        plain.http.shutdown()
        thread.join()
        plain.http.server_close()


@contextmanager
def sdk_server(port: int) -> Generator[None]:
    process = subprocess.Popen(
        [sys.executable, SDK_SERVER, str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
            except OSError:
                time.sleep(0.05)
            else:
                break
        yield
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def modern() -> ServerLock:
    async def listed() -> ServerLock:
        command = (sys.executable, SDK_SERVER)
        async with open_server(ServerLock(name="plain", command=command, headers={}), id) as server:
            return server.lock

    return asyncio.run(listed())


def full(lock: ServerLock, **options: Any) -> MCPSection:
    return MCPSection("plain", lock=lock, visibility=SectionVisibility.FULL, **options)


def test_a_server_of_the_newer_protocol_works(modern: ServerLock) -> None:
    assert modern.protocol == "2026-07-28"
    calls: list[Call] = [("add", {"left": 1, "right": 2}), ("report", {}), ("delete_all", {})]
    watcher = run(full(modern), *calls)
    added, reported, asked = answers(watcher)
    assert added == (True, "3")
    assert reported[0]
    assert [event.message for event in watcher.of(MCPProgress)] == ["half"]
    assert [event.text for event in watcher.of(MCPLogMessage)] == ['{"cache": "cold"}']
    assert not asked[0]
    assert "did not declare the form elicitation capability" in asked[1]


def test_a_modern_server_over_http_may_be_restarted_between_calls(modern: ServerLock) -> None:
    port = free_port()
    lock = replace(modern, command=None, url=f"http://127.0.0.1:{port}/mcp")
    connection = Connection(lock)

    def add() -> str:
        work = connection.call(
            "add", {"left": 1, "right": 2}, repeatable=True, seconds=20, publish=id
        )
        return asyncio.run(work).message

    try:
        with sdk_server(port):
            assert add() == "3"
        with sdk_server(port):
            assert add() == "3"
    finally:
        connection.close()


def test_an_unreachable_server_is_an_answer(modern: ServerLock) -> None:
    lock = replace(modern, command=None, url=f"http://127.0.0.1:{free_port()}/mcp")
    ((success, text),) = answers(run(full(lock), ("pid", {})))
    assert not success
    assert text == "MCP server 'plain' failed: All connection attempts failed"


@pytest.mark.parametrize("tool", ["append", "echo"])
def test_a_session_that_an_http_server_has_forgotten_is_opened_again(
    tmp_path: Path, tool: str
) -> None:
    with served(tmp_path) as plain:
        lock = replace(lock_of(tmp_path), command=None, url=plain.url)
        prompt = template_of(section_of(tmp_path, lock=lock)).bind()

        def restart(_: SeenRequest) -> AssistantMessage:
            plain.restart()
            return call((f"plain_{tool}", {"text": "b"}))

        first = call((f"plain_{tool}", {"text": "a"}))
        script: list[Reply] = [first, restart, say("done")]
        MainLoop(ScriptedAdapter(script)).execute(prompt, session=Session())
    # the forgotten session's call was not carried out, so even `append` may be made again
    assert (tmp_path / "calls").read_text() == f"{tool} a\n{tool} b\n"


def test_a_server_that_forgets_its_session_twice_is_an_answer(tmp_path: Path) -> None:
    with served(tmp_path) as plain:
        plain.forgetful = True
        lock = replace(lock_of(tmp_path), command=None, url=plain.url)
        refused = answers(run(section_of(tmp_path, lock=lock), ("append", {"text": "a"})))
    assert refused == [(False, "MCP server 'plain' ended before it answered.")]
    assert (tmp_path / "starts").read_text() == "xx"


def test_headers_take_credentials_from_variables_and_errors_hide_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DOOR_TOKEN", "sesame-open-wide")
    caplog.set_level("DEBUG")
    with served(tmp_path) as plain:
        headers = {"Authorization": "Bearer ${DOOR_TOKEN}"}
        url = plain.url + "?key=${DOOR_TOKEN}"
        lock = replace(lock_of(tmp_path), command=None, url=url, headers=headers)
        assert answers(run(section_of(tmp_path, lock=lock), ("echo", {"text": "hi"})))[0][0]
        assert {sent["Authorization"] for sent in plain.headers} == {"Bearer sesame-open-wide"}
    lock = replace(lock, url="http://${DOOR_TOKEN}.localhost:1/mcp")
    ((success, text),) = answers(run(section_of(tmp_path, lock=lock), ("echo", {})))
    assert not success
    assert "sesame" not in text
    assert "/mcp?key=***" in caplog.text
    assert "sesame" not in caplog.text


def test_many_threads_and_loops_share_one_server(tmp_path: Path) -> None:
    connection = Connection(lock_of(tmp_path))

    async def calls(name: str) -> list[str]:
        works = [
            connection.call("echo", {"text": f"{name}{n}"}, repeatable=True, seconds=20, publish=id)
            for n in range(10)
        ]
        return [result.message for result in await asyncio.gather(*works)]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda name: asyncio.run(calls(name)), "abcdefgh"))
    connection.close()
    assert results == [[f"{name}{n}" for n in range(10)] for name in "abcdefgh"]
    assert (tmp_path / "starts").read_text() == "x"


def test_parallel_calls_of_a_turn_share_the_connection(tmp_path: Path) -> None:
    turn = call(*[("plain_echo", {"text": text}) for text in "abc"])
    adapter = ScriptedAdapter(
        [call(("plain_echo", {"text": "first"})), turn, say("done")],
        config=InnerLoopConfig(parallel_tool_calls="isolated"),
    )
    MainLoop(adapter).execute(template_of(section_of(tmp_path)).bind(), session=Session())
    assert sorted((tmp_path / "calls").read_text().split()) == [
        "a",
        "b",
        "c",
        *["echo"] * 4,
        "first",
    ]
    assert (tmp_path / "starts").read_text() == "x"


def child_calls(folder: Path, connection: Connection) -> None:
    work = connection.call("echo", {}, repeatable=True, seconds=20, publish=id)
    assert asyncio.run(work).success
    connection.close()


def test_a_forked_process_starts_a_server_of_its_own(tmp_path: Path) -> None:
    connection = Connection(lock_of(tmp_path))
    work = partial(connection.call, "echo", {}, repeatable=True, seconds=20, publish=id)
    asyncio.run(work())
    context = multiprocessing.get_context("fork")
    child = context.Process(target=child_calls, args=(tmp_path, connection))
    child.start()
    child.join(30)
    assert child.exitcode == 0
    assert asyncio.run(work()).success
    connection.close()
    assert (tmp_path / "starts").read_text() == "xx"
