"""Servers over HTTP and of the newer protocol, and one connection for many threads and loops."""

import asyncio
import multiprocessing
import socket
import subprocess
import sys
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from support import sdk_mcp_server
from support.mcp_http import served
from support.mcp_prompts import Call, answers, lock_of, run, section_of, template_of
from weakincentives.contrib.mcp import MCPLogMessage, MCPProgress
from weakincentives.contrib.mcp.connection import Connection
from weakincentives.contrib.mcp.lock import ServerLock
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say
from weakincentives.testing.scripted import Reply, SeenRequest

pytestmark = pytest.mark.usefixtures("no_descriptor_left")

SDK_SERVER = str(Path(sdk_mcp_server.__file__))


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


def test_server_of_the_newer_protocol_is_supported(tmp_path: Path, modern: ServerLock) -> None:
    assert modern.protocol == "2026-07-28"
    calls: list[Call] = [("add", {"left": 1, "right": 2}), ("report", {}), ("delete_all", {})]
    watcher = run(section_of(tmp_path, lock=modern), *calls)
    added, reported, asked = answers(watcher)
    assert added == (True, "3")
    assert reported[0]
    assert [event.message for event in watcher.of(MCPProgress)] == ["half"]
    assert [event.text for event in watcher.of(MCPLogMessage)] == ['{"cache": "cold"}']
    assert not asked[0]
    assert "did not declare the form elicitation capability" in asked[1]


def test_modern_http_server_can_be_restarted_between_calls(modern: ServerLock) -> None:
    port = free_port()
    lock = replace(modern, command=None, url=f"http://127.0.0.1:{port}/mcp")
    with closing(Connection(lock)) as connection:
        for _ in range(2):
            with sdk_server(port):
                work = connection.call(
                    "add", {"left": 1, "right": 2}, repeatable=True, seconds=20, publish=id
                )
                assert asyncio.run(work).message == "3"


def test_unreachable_server_is_answered_with_an_error(tmp_path: Path, modern: ServerLock) -> None:
    lock = replace(modern, command=None, url=f"http://127.0.0.1:{free_port()}/mcp")
    refused = answers(run(section_of(tmp_path, lock=lock), ("pid", {})))
    assert refused == [(False, "MCP server 'plain' failed: All connection attempts failed")]


@pytest.mark.parametrize("tool", ["append", "echo"])
def test_lost_http_session_is_reopened(tmp_path: Path, tool: str) -> None:
    with served(tmp_path) as plain:
        prompt = template_of(section_of(tmp_path, lock=plain.lock)).bind()

        def restart(_: SeenRequest) -> AssistantMessage:
            plain.sessions.clear()
            return call((f"plain_{tool}", {"text": "b"}))

        first = call((f"plain_{tool}", {"text": "a"}))
        script: list[Reply] = [first, restart, say("done")]
        MainLoop(ScriptedAdapter(script)).execute(prompt, session=Session())
    # the call in the forgotten session was not executed, so even `append` may be called again
    assert (tmp_path / "calls").read_text() == f"{tool} a\n{tool} b\n"


def test_http_session_lost_twice_is_answered_with_an_error(tmp_path: Path) -> None:
    with served(tmp_path) as plain:
        plain.forgetful = True
        refused = answers(run(section_of(tmp_path, lock=plain.lock), ("append", {"text": "a"})))
    assert refused == [(False, "MCP server 'plain' ended before it answered.")]
    assert (tmp_path / "starts").read_text() == "xx"


def test_headers_expand_credential_variables_and_errors_mask_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DOOR_TOKEN", "sesame-open-wide")
    caplog.set_level("DEBUG")
    with served(tmp_path) as plain:
        headers = {"Authorization": "Bearer ${DOOR_TOKEN}"}
        lock = replace(plain.lock, url=f"{plain.lock.url}?key=${{DOOR_TOKEN}}", headers=headers)
        assert answers(run(section_of(tmp_path, lock=lock), ("echo", {"text": "hi"})))[0][0]
        assert {sent["Authorization"] for sent in plain.received} == {"Bearer sesame-open-wide"}
    lock = replace(lock, url="http://${DOOR_TOKEN}.localhost:1/mcp")
    ((success, text),) = answers(run(section_of(tmp_path, lock=lock), ("echo", {})))
    assert not success
    assert "sesame" not in text
    assert "/mcp?key=***" in caplog.text
    assert "sesame" not in caplog.text


def test_threads_and_event_loops_share_one_server(tmp_path: Path) -> None:
    async def calls(connection: Connection, name: str) -> list[str]:
        works = [
            connection.call("echo", {"text": f"{name}{n}"}, repeatable=True, seconds=20, publish=id)
            for n in range(10)
        ]
        return [result.message for result in await asyncio.gather(*works)]

    with closing(Connection(lock_of(tmp_path))) as connection, ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda name: asyncio.run(calls(connection, name)), "abcdefgh"))
    assert results == [[f"{name}{n}" for n in range(10)] for name in "abcdefgh"]
    assert (tmp_path / "starts").read_text() == "x"


def test_parallel_calls_of_a_turn_share_the_connection(tmp_path: Path) -> None:
    turn = call(*[("plain_echo", {"text": text}) for text in "abc"])
    adapter = ScriptedAdapter(
        [call(("plain_echo", {"text": "first"})), turn, say("done")],
        config=RunConfig(parallel_tool_calls="isolated"),
    )
    MainLoop(adapter).execute(template_of(section_of(tmp_path)).bind(), session=Session())
    calls = (tmp_path / "calls").read_text().splitlines()
    assert sorted(calls) == ["echo a", "echo b", "echo c", "echo first"]
    assert (tmp_path / "starts").read_text() == "x"


def test_forked_process_starts_its_own_server(tmp_path: Path) -> None:
    with closing(Connection(lock_of(tmp_path))) as connection:

        def echo() -> None:
            work = connection.call("echo", {}, repeatable=True, seconds=20, publish=id)
            assert asyncio.run(work).success

        def echo_in_child() -> None:
            echo()
            connection.close()

        echo()
        child = multiprocessing.get_context("fork").Process(target=echo_in_child)
        child.start()
        child.join(30)
        assert child.exitcode == 0
        echo()
    assert (tmp_path / "starts").read_text() == "xx"
