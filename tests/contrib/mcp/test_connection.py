"""The connection to a server: its start, listing, errors and turns, and their limits."""

import asyncio
import gc
import json
import logging
import sys
import threading
from contextlib import closing
from contextvars import ContextVar, copy_context
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support import plain_mcp_server
from support.mcp_prompts import (
    Call,
    answers,
    changed,
    children,
    connected,
    listed,
    lock_of,
    run,
    section_of,
    until,
)
from support.plain_mcp_server import TOOLS
from weakincentives.contrib.mcp import Accept, Elicitation, MCPLogMessage, MCPProgress
from weakincentives.contrib.mcp.client import open_server
from weakincentives.contrib.mcp.connection import Connection
from weakincentives.contrib.mcp.lock import ServerLock
from weakincentives.contrib.mcp.section import ServerKey, StateKey
from weakincentives.contrib.mcp.server_errors import ServerError
from weakincentives.prompt import ToolContext
from weakincentives.serde import Json
from weakincentives.version import __version__

pytestmark = pytest.mark.usefixtures("no_descriptor_left")


# --- Start


def test_server_starts_in_its_folder_with_variables_expanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLACE", "data")
    (tmp_path / "data").mkdir()
    server = str(Path(plain_mcp_server.__file__))
    lock = replace(
        lock_of(tmp_path), command=(sys.executable, server, "${PLACE}"), cwd=str(tmp_path)
    )
    assert answers(run(section_of(tmp_path, lock=lock), ("echo", {"text": "hi"}))) == [(True, "hi")]
    assert (tmp_path / "data" / "calls").read_text() == "echo hi\n"


def test_server_failure_reports_the_last_three_lines_of_stderr(tmp_path: Path) -> None:
    program = "import sys; sys.exit('one\\ntwo\\nthree\\n\\n' + 'x' * 301)"
    lock = replace(lock_of(tmp_path), command=(sys.executable, "-c", program))
    ((_, text),) = answers(run(section_of(tmp_path, lock=lock), ("echo", {})))
    assert text.split("\n") == [
        "MCP server 'plain' failed: Connection closed",
        "three",
        "x" * 300,
        "x",
    ]


def test_invalid_utf8_on_stderr_is_replaced(tmp_path: Path) -> None:
    program = "import os; os.write(2, b'no \\xff text')"
    lock = replace(lock_of(tmp_path), command=(sys.executable, "-c", program))
    ((_, text),) = answers(run(section_of(tmp_path, lock=lock), ("echo", {})))
    assert text == "MCP server 'plain' failed: Connection closed\nno \ufffd text"


def test_tools_are_listed_from_all_pages(tmp_path: Path) -> None:
    (tmp_path / "pages").write_text("4")
    live = listed(lock_of(tmp_path))
    assert [tool.name for tool in live.tools] == sorted(str(tool["name"]) for tool in TOOLS[:4])
    assert (live.server_name, live.server_version) == ("plain", "1")
    assert (live.protocol, live.instructions) == ("2025-11-25", "Costs are in $ and ${CREDITS}.")


@pytest.mark.parametrize("pages", [100, 101])
def test_tool_list_is_limited_to_100_pages(tmp_path: Path, pages: int) -> None:
    (tmp_path / "pages").write_text(f"{pages}")
    if pages == 100:
        assert len(listed(lock_of(tmp_path)).tools) == len(TOOLS)
    else:
        with pytest.raises(ServerError, match=r"^MCP server 'plain' lists more than 100 pages"):
            listed(lock_of(tmp_path))


def test_abandoned_server_start_ends_without_asyncio_warnings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lock = replace(
        lock_of(tmp_path), command=(sys.executable, "-c", "import sys; sys.stdin.read()")
    )
    connection = Connection(lock)
    work = connection.call("echo", {}, repeatable=True, seconds=0.5, publish=id)
    with pytest.raises(ServerError, match=r"gave no answer within 0\.5 seconds"):
        asyncio.run(work)
    connection.close()
    del connection, work
    gc.collect()  # so that asyncio reports an answer that was never awaited
    assert not [record for record in caplog.records if record.name == "asyncio"]


ANONYMOUS = """
import json, sys
discovered = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
results = {"server/discover": discovered, "tools/list": {"tools": []}}
for line in sys.stdin:
    request = json.loads(line)
    result = {"ttlMs": 0, "cacheScope": "public", "resultType": "complete"}
    result |= results[request["method"]]
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""


def test_server_without_name_and_version_is_accepted(tmp_path: Path) -> None:
    live = listed(replace(lock_of(tmp_path), command=(sys.executable, "-c", ANONYMOUS)))
    assert live.protocol == "2026-07-28"
    assert (live.server_name, live.server_version, live.instructions) == ("", "", "")


def test_sdk_log_tracebacks_mask_credentials_while_the_server_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DOOR_TOKEN", "sesame-open-wide")

    def log() -> str:
        caplog.clear()
        try:
            raise ValueError("sesame-open-wide")
        except ValueError:
            logging.getLogger("mcp.client.stdio").exception("failed at %s", "sesame-open-wide")
        return caplog.text

    async def look() -> str:
        async with open_server(lock_of(tmp_path, env=("DOOR_TOKEN",)), id):
            text = log()
        (record,) = caplog.records
        assert record.exc_info is None, "which other handlers would write"
        return text

    meanwhile, afterwards = asyncio.run(look()), log()
    assert "failed at ***" in meanwhile
    assert "ValueError: ***" in meanwhile
    assert "sesame" not in meanwhile
    assert afterwards.count("sesame-open-wide") >= 2


def test_server_receives_the_name_and_version_of_the_library(tmp_path: Path) -> None:
    listed(lock_of(tmp_path))
    client = json.loads((tmp_path / "client").read_text())
    assert client == {"name": "weakincentives", "version": __version__}


# --- Calls


def test_call_rejected_by_the_server_is_answered_with_masked_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOOR_TOKEN", "sesame-open-wide")
    lock = lock_of(tmp_path, env=("DOOR_TOKEN",))
    calls: list[Call] = [("refuse", {"text": "no sesame-open-wide"}), ("echo", {"text": "hi"})]
    refused, after = answers(run(section_of(tmp_path, lock=lock), *calls))
    assert refused == (False, "MCP server 'plain' refused the call: no ***.")
    assert after == (True, "hi")
    assert (tmp_path / "starts").read_text() == "x"


def test_progress_and_log_messages_mask_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOOR_TOKEN", "sesame-open-wide")
    section = section_of(tmp_path, lock=lock_of(tmp_path, env=("DOOR_TOKEN",)))
    watcher = run(section, ("progress", {"text": "with sesame-open-wide"}))
    assert [event.message for event in watcher.of(MCPProgress)] == ["with ***"]
    assert [event.text for event in watcher.of(MCPLogMessage)] == ["with ***"]


def test_server_that_dies_while_listing_is_restarted_for_any_call(tmp_path: Path) -> None:
    """In that case, the call has not been sent."""
    with connected(lock_of(tmp_path)) as call:
        call("mutate", "Does echo.")
        (tmp_path / "dies-listing").touch()
        assert call("append", "a", repeatable=False).message == "a\n"
    assert (tmp_path / "calls").read_text() == "mutate Does echo.\nappend a\n"
    assert (tmp_path / "starts").read_text() == "xx"


def test_changed_tool_error_lists_at_most_300_characters_of_differences(tmp_path: Path) -> None:
    properties: dict[str, Json] = {f"property-{index:02}": {} for index in range(19)}
    schema = {"type": "object", "properties": properties}
    (tmp_path / "tools.json").write_text(json.dumps(changed("echo", inputSchema=schema)))
    ((_, text),) = answers(run(section_of(tmp_path), ("echo", {})))
    places = [f"input schema /properties/property-{index:02}" for index in range(19)]
    assert text == (
        "Tool 'echo' is refused: MCP server 'plain' has changed it since a person reviewed it "
        f"({', '.join(places)[:300]}). Do without it."
    )


# --- Start and end

LATE = """
import os, runpy, sys, time
folder = sys.argv[1]
open(f"{folder}/waits", "a").write("x")
while not os.path.exists(f"{folder}/go"):
    time.sleep(0.01)
if os.path.exists(f"{folder}/fails"):
    os.remove(f"{folder}/fails")
    sys.exit("not yet")
sys.argv[0] = sys.argv.pop(2)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def late(folder: Path) -> ServerLock:
    """Returns the lock of a server that starts once a file `go` exists."""
    server = str(Path(plain_mcp_server.__file__))
    command = (sys.executable, "-c", LATE, str(folder), server)
    return replace(lock_of(folder), command=command)


def test_server_that_failed_to_start_is_started_again_by_the_next_call(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    (tmp_path / "fails").touch()
    with connected(late(tmp_path)) as call:
        with pytest.raises(ServerError, match="not yet"):
            call("append", "a", repeatable=False)
        assert call("append", "b", repeatable=False).message == "b\n"


def test_server_start_cancelled_by_one_call_is_repeated_for_the_other(tmp_path: Path) -> None:
    waits = tmp_path / "waits"

    async def both(connection: Connection) -> str:
        call = partial(connection.call, "append", repeatable=False, seconds=60, publish=id)
        first = asyncio.create_task(call({"text": "a"}))
        second = asyncio.create_task(call({"text": "b"}))
        await until(waits.exists)
        first.cancel()
        await until(lambda: waits.read_text() == "xx")
        (tmp_path / "go").touch()
        return (await second).message

    with closing(Connection(late(tmp_path))) as connection:
        assert asyncio.run(both(connection)) == "b\n"


def test_closing_a_connection_cancels_its_running_calls(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    connection = Connection(lock_of(tmp_path))

    async def close_meanwhile() -> None:
        hang = connection.call("hang", {}, repeatable=False, seconds=60, publish=id)
        call = asyncio.create_task(hang)
        await until((tmp_path / "hangs").exists)
        await asyncio.to_thread(connection.close)
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(close_meanwhile())
    gc.collect()
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_successive_cancelled_calls_stop_the_server_once(tmp_path: Path) -> None:
    connection = Connection(lock_of(tmp_path))
    hang = partial(
        connection.call, "hang", {"text": "stubborn"}, repeatable=False, seconds=60, publish=id
    )

    async def both() -> None:
        calls = [asyncio.create_task(hang()) for _ in range(2)]
        await until((tmp_path / "hangs").exists)
        for call in calls:
            call.cancel()
            await asyncio.sleep(0.5)  # the server takes longer to end, because it ignores SIGTERM
        await asyncio.wait(calls)

    asyncio.run(both())
    connection.close()
    assert children() == []


def test_events_of_a_later_call_use_its_own_context_variables(tmp_path: Path) -> None:
    variable = ContextVar("variable", default="")
    seen: list[tuple[str, str]] = []

    def publish(event: object) -> None:
        seen.append((type(event).__name__, variable.get()))

    with connected(lock_of(tmp_path)) as call:

        def progress(value: str) -> None:
            variable.set(value)
            call("progress", publish=publish)

        copy_context().run(progress, "first")
        seen.clear()
        copy_context().run(progress, "second")
    assert {kind for kind, _ in seen} == {"MCPProgress", "MCPLogMessage"}
    assert "first" not in {value for _, value in seen}


def test_server_event_is_published_to_only_one_running_call(tmp_path: Path) -> None:
    events: list[object] = []

    async def both(connection: Connection) -> None:
        call = partial(connection.call, repeatable=False, seconds=20, publish=events.append)
        await asyncio.gather(call("progress", {}), call("echo", {}))

    with closing(Connection(lock_of(tmp_path))) as connection:
        asyncio.run(both(connection))
    assert [event.text for event in events if isinstance(event, MCPLogMessage)] == [
        '{"cache": "cold"}'
    ]


# --- Turns


QUESTION = json.dumps(
    {
        "message": "Why?",
        "requestedSchema": {"type": "object", "properties": {"why": {"type": "string"}}},
    }
)


@pytest.mark.parametrize("ended_by", ["timeout", "cancellation"])
def test_queued_call_that_times_out_or_is_cancelled_does_not_reach_the_server(
    tmp_path: Path, ended_by: str
) -> None:
    asked, answered = asyncio.Event(), asyncio.Event()

    async def elicit(request: Elicitation, *, context: ToolContext) -> Accept:
        del request, context
        asked.set()
        await answered.wait()
        return Accept({"why": "because"})

    async def both(connection: Connection) -> str:
        context: Any = object()  # Any: an unused context
        call = partial(connection.call, repeatable=True, publish=id, context=context)
        first = asyncio.create_task(call("elicit", {"text": QUESTION}, seconds=30))
        await asked.wait()
        if ended_by == "timeout":
            words = r"was busy with other calls for 0\.1 seconds; the call did not begin\.$"
            with pytest.raises(ServerError, match=words):
                await call("echo", {}, seconds=0.1)
        else:
            second = asyncio.create_task(call("echo", {}, seconds=30))
            await asyncio.sleep(0)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
        answered.set()
        return (await first).message

    with closing(Connection(lock_of(tmp_path), elicit)) as connection:
        assert "because" in asyncio.run(both(connection))
    assert (tmp_path / "calls").read_text().splitlines() == [f"elicit {QUESTION}"]
    assert (tmp_path / "starts").read_text() == "x"


def test_elicitation_of_a_call_without_context_is_cancelled(tmp_path: Path) -> None:
    with connected(lock_of(tmp_path), _never) as call:
        answer = json.loads(call("elicit", QUESTION).message)
    assert answer["result"] == {"action": "cancel"}


def test_elicitation_outside_a_call_is_cancelled(tmp_path: Path) -> None:
    context, asked = object(), tmp_path / "asked-later"
    with connected(lock_of(tmp_path), _never) as call:
        assert call("elicit_later", QUESTION, context=context).message == "later"
        (tmp_path / "ended").touch()
        asyncio.run(until(lambda: asked.exists() and bool(asked.read_text())))
        assert json.loads(asked.read_text())["result"] == {"action": "cancel"}
        assert call("echo", "hi", context=context).message == "hi"


def test_server_and_state_keys_compare_by_value(tmp_path: Path) -> None:
    key = ServerKey("plain", lock_of(tmp_path), None)
    assert len(repr(StateKey(key, "data"))) < 100
    assert key == ServerKey("plain", lock_of(tmp_path), None)
    assert hash(key) == hash(ServerKey("plain", lock_of(tmp_path), None))
    assert key != ServerKey("plain", lock_of(tmp_path / "other"), None)
    assert key != ServerKey("plain", lock_of(tmp_path), _never)
    assert StateKey(key, "data") != StateKey(key, "other")


def _never(request: Elicitation, /, *, context: ToolContext) -> Accept:
    raise AssertionError((request, context, threading.current_thread()))
