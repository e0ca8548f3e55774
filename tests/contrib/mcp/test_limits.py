"""Limits on a server's messages, and processes that do not outlive their client."""

import asyncio
import gc
import gzip
import json
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import pytest

from support.deadlines import SOON
from support.mcp_http import served
from support.mcp_prompts import answers, connected, hostile, run, section_of
from weakincentives.contrib.mcp import Elicitation, MCPLogMessage
from weakincentives.contrib.mcp.server_errors import ServerError
from weakincentives.prompt import ToolContext

pytestmark = pytest.mark.usefixtures("no_descriptor_left")

MEGABYTE = 1024  # kB, as /proc counts
LATE = 10  # seconds; ending a server that does not read its input takes six


def peak() -> int:
    """Returns this process's peak memory since `forget_peak`, in kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


@contextmanager
def at_most(kilobytes: int) -> Generator[None]:
    """Checks that the block does not need more memory than this."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    yield
    assert peak() - before < kilobytes


@pytest.mark.claim("N-29")
@pytest.mark.parametrize(
    ("tool", "text", "problem"),
    [
        ("blocks", 300_000, "with more than 200,000 JSON tokens"),
        ("nested", 1_000_000, "with more than 200,000 JSON tokens"),
        ("deep", 101, "with more than 100 levels of nesting"),
        ("deep", 500_000, "with more than 100 levels of nesting"),
        ("huge", 17_000_000, "with more than 16 MiB"),
        ("huge", 200_000_000, "with more than 16 MiB"),
    ],
)
def test_message_over_a_limit_ends_the_server_before_it_is_parsed(
    tmp_path: Path, tool: str, text: int, problem: str
) -> None:
    with connected(hostile(tmp_path)) as call:
        assert call("echo", "a").message == "a"
        with (
            at_most(150 * MEGABYTE),
            pytest.raises(ServerError, match=f"sent a message {problem}"),
        ):
            call(tool, text)
        assert call("echo", "b").message == "b"
    assert (tmp_path / "starts").read_text() == "xx"
    assert (tmp_path / "calls").read_text().count(tool) == 1, "it is not called again"


@pytest.mark.parametrize(
    ("tool", "text"), [("blocks", 20_000), ("table", 25_000), ("deep", 90), ("huge", 15_000_000)]
)
def test_large_results_within_the_limits_are_accepted(tmp_path: Path, tool: str, text: int) -> None:
    with connected(hostile(tmp_path)) as call:
        assert call(tool, text).success


@pytest.mark.parametrize("tool", ["pings", "mute_pings", "same_ping", "newlines"])
def test_flood_of_messages_does_not_delay_the_timeout_or_use_memory(
    tmp_path: Path, tool: str
) -> None:
    with connected(hostile(tmp_path)) as call:
        call("echo")  # before memory is measured, so that everything is imported
        with at_most(150 * MEGABYTE):
            began = time.monotonic()
            with pytest.raises(ServerError, match=r"gave no answer within 0\.5 seconds"):
                call(tool, seconds=0.5)
            assert time.monotonic() - began < LATE
    assert time.monotonic() - began < 2 * LATE


def test_flood_of_elicitations_does_not_use_memory_while_one_is_open(tmp_path: Path) -> None:
    async def elicit(_: Elicitation, *, context: ToolContext) -> NoReturn:
        await asyncio.sleep(600)
        raise AssertionError("the call ends before")

    lock = hostile(tmp_path)
    with at_most(150 * MEGABYTE):
        section = section_of(tmp_path, lock=lock, elicit=elicit, timeout=3)
        ((success, text),) = answers(run(section, ("questions", {"text": ""})))
    assert not success
    assert "gave no answer within 3 seconds" in text


def test_call_publishes_at_most_10000_truncated_log_events(tmp_path: Path) -> None:
    logged: list[MCPLogMessage] = []
    with connected(hostile(tmp_path)) as call:
        assert call("log", 10_100, seconds=60, publish=logged.append).message == "logged"
        assert len(logged) == 10_000
        assert call("log", 1, publish=logged.append).message == "logged"
    assert len(logged) == 10_001
    assert len(logged[0].text) < 4_100


# --- Processes


def is_running(pid: int) -> bool:
    with suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + SOON
    while is_running(pid):
        assert time.monotonic() < deadline, "it still runs"
        time.sleep(0.02)


@pytest.mark.parametrize("text", ["", "ignore"])
def test_child_processes_of_a_server_end_with_it(tmp_path: Path, text: str) -> None:
    with connected(hostile(tmp_path)) as call:
        pid = int(call("child", text).message)
        assert is_running(pid)
    wait_for_end(pid)  # the signal has been sent, but the kernel may need a moment


CLIENT = """
import asyncio, sys, time
sys.path.insert(0, {tests!r})
from support.mcp_prompts import connected, hostile
from pathlib import Path
with connected(hostile(Path({folder!r}))) as call:
    print(call("child", "ignore").message, flush=True)
    time.sleep(600)
"""


def test_child_processes_of_a_server_end_when_the_client_is_killed(tmp_path: Path) -> None:
    tests = str(Path(__file__).parents[2])
    started: list[int] = []
    for number in (
        signal.SIGTERM,
        signal.SIGKILL,
    ):  # both together, because each takes two seconds to end
        (folder := tmp_path / number.name).mkdir()
        program = CLIENT.format(tests=tests, folder=str(folder))
        client = subprocess.Popen(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
        )
        assert client.stdout
        pid = int(client.stdout.readline())
        assert is_running(pid)
        client.send_signal(number)
        assert client.wait() == -number
        client.stdout.close()
        started.append(pid)
    for pid in started:
        wait_for_end(pid)


# --- HTTP


def answer(request: object, blocks: int = 1, text: str = "hi") -> bytes:
    result = {"content": [{"type": "text", "text": text}] * blocks}
    return json.dumps({"jsonrpc": "2.0", "id": request, "result": result}).encode()


JSON = {"Content-Type": "application/json"}
EVENTS = {"Content-Type": "text/event-stream"}
GZIP = {"Content-Encoding": "gzip"}


def bomb(megabytes: int) -> bytes:
    """Returns that many megabytes of blanks, compressed."""
    compressor = zlib.compressobj(wbits=31)
    pieces = [compressor.compress(b" " * 1_000_000) for _ in range(megabytes)]
    return b"".join([*pieces, compressor.flush()])


def event(data: bytes) -> bytes:
    return b"event: message\r\ndata: " + data + b"\r\n\r\n"


@pytest.mark.parametrize(
    ("headers", "body", "problem"),
    [
        (JSON, lambda i: [answer(i, 300_000)], "with more than 200,000 JSON tokens"),
        (JSON | GZIP, lambda i: [gzip.compress(answer(i, 300_000))], "200,000 JSON tokens"),
        (JSON | GZIP, lambda _: [bomb(200)], "more than 16 MiB"),
        (JSON | {"Content-Encoding": "br"}, lambda _: [b"x"], "cannot be decompressed: .*'br'"),
        (JSON | GZIP, lambda _: [b"no gzip"], "cannot be decompressed"),
        (EVENTS, lambda i: [event(answer(i, 300_000))], "with more than 200,000 JSON tokens"),
        (EVENTS, lambda _: [b"data: "] + [b"x" * 1_000_000] * 200, "more than 16 MiB"),
        (EVENTS | GZIP, lambda i: [gzip.compress(event(answer(i, 300_000)))], "JSON tokens"),
    ],
)
def test_http_message_over_a_limit_is_not_parsed(
    tmp_path: Path, headers: dict[str, str], body: Any, problem: str
) -> None:
    with served(tmp_path) as plain, connected(plain.lock) as call:
        plain.answer = lambda request: (headers, body(request))
        with at_most(150 * MEGABYTE), pytest.raises(ServerError, match=problem):
            call("echo")
        plain.answer = lambda request: (JSON, [answer(request)])
        assert call("echo").message == "hi"


@pytest.mark.parametrize("encoding", [{}, GZIP])
@pytest.mark.parametrize("kind", [JSON, EVENTS])
def test_http_answers_within_the_limits_are_accepted(
    tmp_path: Path, kind: dict[str, str], encoding: dict[str, str]
) -> None:
    def body(request: object) -> tuple[dict[str, str], list[bytes]]:
        text = answer(request, text="x" * 5_000_000)
        sent = text if kind is JSON else event(b'{"jsonrpc":"2.0","method":"a"}') + event(text)
        return kind | encoding, [gzip.compress(sent) if encoding else sent]

    with served(tmp_path) as plain, connected(plain.lock) as call:
        plain.answer = body
        assert call("echo").message == "x" * 5_000_000


def test_http_flood_of_pings_does_not_delay_the_timeout_or_use_memory(tmp_path: Path) -> None:
    def pings() -> Iterator[bytes]:
        for number in count():
            yield event(json.dumps({"jsonrpc": "2.0", "id": number, "method": "ping"}).encode())

    with served(tmp_path, hangs=True) as plain:
        plain.answer = lambda _: (EVENTS, pings())
        with at_most(150 * MEGABYTE):
            with connected(plain.lock) as call:
                began = time.monotonic()
                with pytest.raises(ServerError, match=r"gave no answer within 1 seconds"):
                    call("echo", seconds=1)
                assert time.monotonic() - began < LATE
            assert time.monotonic() - began < 2 * LATE
