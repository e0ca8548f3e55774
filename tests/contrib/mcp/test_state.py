"""A rollback restores a server's changes to its folder, whatever happens to the server."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import git
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.commands import environment
from support.deadlines import with_growing_limit
from support.external_tools import EXTERNAL_SERVERS
from support.files import PLACE
from support.mcp_prompts import (
    Call,
    answers,
    listed,
    lock_of,
    run,
    run_cancelled,
    section_of,
    until,
)
from weakincentives.contrib.mcp import MCPSection
from weakincentives.contrib.mcp.lock import ServerLock
from weakincentives.contrib.mcp.state import probe_undo
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.prompt import MarkdownSection, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.resources import ResourceError
from weakincentives.runtime.events import ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say
from weakincentives.visibility import SectionVisibility

pytestmark = pytest.mark.usefixtures("no_descriptor_left")

CALLS = st.tuples(st.sampled_from(["append", "fail", "die", "hang"]), st.sampled_from("abc"))


def lines(folder: Path) -> str:
    path = folder / "data/lines"
    return path.read_text().replace("\n", "") if path.exists() else ""


def stateful(folder: Path, **options: Any) -> MCPSection:
    (folder / "data").mkdir(exist_ok=True)
    return section_of(folder, folder=folder / "data", **options)


@pytest.mark.parametrize("mode", ["sync", "async"])
@settings(max_examples=10)
@given(st.lists(CALLS.filter(lambda pair: pair[0] != "hang"), min_size=1, max_size=6))
def test_folder_contains_only_the_writes_of_successful_calls(
    mode: str, calls: list[tuple[str, str]]
) -> None:
    with tempfile.TemporaryDirectory(dir=PLACE) as place:
        steps: list[Call] = [(name, {"text": text}) for name, text in calls]
        watcher = run(stateful(Path(place)), *steps, mode=mode)
        written = "".join(text for name, text in calls if name == "append")
        assert lines(Path(place)) == written
        assert [success for success, _ in answers(watcher)] == [n == "append" for n, _ in calls]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_writing_server_is_stopped_before_its_folder_is_restored(tmp_path: Path, mode: str) -> None:
    def attempt(seconds: float) -> str | None:
        folder = tmp_path / str(seconds)
        folder.mkdir()
        calls: list[Call] = [("append", {"text": "a"}), ("hang", {"text": "b"})]
        run(stateful(folder, timeout=seconds), *calls, mode=mode)
        return lines(folder) if (folder / "hangs").exists() else None

    assert with_growing_limit(attempt, 2) == "a"


def test_cancelled_call_leaves_no_trace(tmp_path: Path) -> None:
    run_cancelled(stateful(tmp_path), ("hang", {"text": "b"}), lambda: bool(lines(tmp_path)))
    assert lines(tmp_path) == ""


KILLED = """
import sys
from pathlib import Path
from support.mcp_prompts import run, section_of
folder = Path(sys.argv[1])
section = section_of(folder, folder=folder / "data")
run(section, ("append", {"text": "a"}), ("hang", {"text": "b"}))
"""


def test_call_interrupted_by_a_process_kill_is_undone_at_the_next_start(
    tmp_path: Path,
) -> None:
    (tmp_path / "data").mkdir()
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    agent = subprocess.Popen(command, env=environment())
    asyncio.run(until(lambda: "b" in lines(tmp_path)))
    agent.kill()
    agent.wait()
    os.kill(int((tmp_path / "hangs").read_text()), signal.SIGKILL)  # it does not read its input
    assert lines(tmp_path).startswith("ab")
    watcher = run(stateful(tmp_path), ("lines", {}))
    assert answers(watcher) == [(True, "a\n")]
    assert lines(tmp_path) == "a"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_rollback_keeps_the_server_running(tmp_path: Path) -> None:
    watcher = run(stateful(tmp_path), ("fail", {"text": "a"}), ("lines", {}))
    assert answers(watcher) == [(False, "a\n"), (True, "The tool answered without content.")]
    assert (tmp_path / "starts").read_text() == "x"


def test_unreadable_undo_copies_of_a_killed_process_raise_resource_error(tmp_path: Path) -> None:
    copies = tmp_path / ".data.undo-x"
    copies.mkdir()
    (copies / "entries.json").write_text("{")
    words = rf"^cannot open the folder of MCP server 'plain': .*{copies}"
    with pytest.raises(ResourceError, match=words) as raised:
        run(stateful(tmp_path))
    assert "create it" not in str(raised.value)
    assert copies.exists()


def test_folder_too_large_to_copy_fails_the_call_before_it_is_sent(
    tmp_path: Path,
) -> None:
    section = stateful(tmp_path)
    (tmp_path / "data/large").touch()
    os.truncate(tmp_path / "data/large", 2_000_000_000)  # without using that much disk space
    reads, (success, text) = answers(run(section, ("echo", {}), ("append", {"text": "a"})))
    assert reads[0], "what only reads copies nothing"
    assert not success
    assert "it has 2,000,000,000 bytes, the limit is 1,000,000,000" in text
    assert (tmp_path / "calls").read_text() == "echo \n"


def test_probe_undo_distinguishes_caching_servers(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    lock = lock_of(tmp_path)

    def probe(change: str, read: str, text: str = "") -> str:
        steps = {"change": (change, {"text": "x"}), "read": (read, {"text": text})}
        return probe_undo(lock, tmp_path / "data", **steps)

    assert probe("append", "lines") == "undone"
    assert probe("remember", "recall") == "cached"
    assert probe("append", "echo") == "unseen"
    assert lines(tmp_path) == ""


# --- Servers that others wrote: what a tool of ours has them do is undone when it fails


@dataclass(frozen=True, slots=True)
class Attempt:
    pass


def attempt_of(section: MCPSection, *calls: Call) -> PromptTemplate[str]:
    """Returns a prompt with a tool that makes `calls` of the section's tools, and then fails."""
    # Any: the tools' handlers are asynchronous, but not their type
    handlers: dict[str, Any] = {tool.name: tool.handler for tool in section.tools()}

    async def attempt(_: Attempt, *, context: ToolContext) -> ToolResult[None]:
        for name, arguments in calls:
            result = await handlers[name](arguments, context=context)
            assert result.success, result.message
        return ToolResult("Undo it.", success=False)

    tool = Tool[Attempt, None](name="attempt", handler=attempt, effect="at_most_once")
    own = MarkdownSection(title="Own", template="", tools=[tool])
    return PromptTemplate(ns="tests", key="undo", sections=[section, own])


def undone(section: MCPSection, calls: Sequence[Call], read: Call) -> list[str]:
    """Returns the results of `read` before and after `calls` that are undone."""
    script = [call(read), call(("attempt", {})), call(read), say("done")]
    session, events = Session(), list[ToolInvoked]()
    session.bus.subscribe(ToolInvoked, events.append)
    prompt = attempt_of(section, *calls).bind()
    MainLoop(ScriptedAdapter(script)).execute(prompt, session=session)
    assert events[1].content == "Undo it."
    return [events[0].content, events[2].content]


def server_section(name: str, *command: str, folder: Path, env: tuple[str, ...] = ()) -> MCPSection:
    lock = listed(ServerLock(name=name, command=command, headers={}, env=env))
    return MCPSection(name, lock=lock, folder=folder, visibility=SectionVisibility.FULL)


def test_rollback_undoes_commits_of_the_git_server(tmp_path: Path) -> None:
    repository = git.Repo.init(tmp_path)
    with repository.config_writer() as config:
        config.set_value("user", "name", "Somebody").set_value("user", "email", "a@example.com")
    (tmp_path / "a.txt").write_text("one")
    repository.index.add(["a.txt"])
    repository.index.commit("first")
    (tmp_path / "b.txt").write_text("two")
    path = {"repo_path": str(tmp_path)}
    section = server_section("git", sys.executable, "-m", "mcp_server_git", folder=tmp_path)
    steps: list[Call] = [
        ("git_add", {**path, "files": ["b.txt"]}),
        ("git_commit", {**path, "message": "second"}),
        ("git_create_branch", {**path, "branch_name": "other"}),
        ("git_checkout", {**path, "branch_name": "other"}),
    ]
    before, after = undone(section, steps, ("git_log", path))
    assert before == after
    assert "first" in after
    assert "second" not in after
    assert [head.name for head in repository.heads] == [repository.active_branch.name]
    assert repository.untracked_files == ["b.txt"]
    repository.close()


@dataclass(frozen=True, slots=True)
class ExternalServer:
    """A server that is not among the test dependencies: `make test-mcp` installs it."""

    name: str
    program: str
    arguments: tuple[str, ...]
    calls: tuple[Call, ...]
    read: Call
    environment: str = ""


def entity(name: str) -> dict[str, object]:
    return {"name": name, "entityType": "letter", "observations": []}


EXTERNAL = [
    ExternalServer(
        "sqlite",
        "mcp1/bin/mcp-server-sqlite",
        ("--db-path", "{folder}/data.db"),
        (
            ("sqlite_write_query", {"query": "INSERT INTO notes VALUES ('two')"}),
            ("sqlite_create_table", {"query": "CREATE TABLE more (text)"}),
        ),
        ("sqlite_read_query", {"query": "SELECT * FROM notes, sqlite_master"}),
    ),
    ExternalServer(
        "memory",
        "node_modules/.bin/mcp-server-memory",
        (),
        (("memory_create_entities", {"entities": [entity("b")]}),),
        ("memory_read_graph", {}),
        environment="MEMORY_FILE_PATH",
    ),
    ExternalServer(
        "filesystem",
        "node_modules/.bin/mcp-server-filesystem",
        ("{folder}",),
        (
            ("filesystem_write_file", {"path": "{folder}/new", "content": "two"}),
            ("filesystem_move_file", {"source": "{folder}/new", "destination": "{folder}/x"}),
            ("filesystem_create_directory", {"path": "{folder}/deep/er"}),
        ),
        ("filesystem_directory_tree", {"path": "{folder}"}),
    ),
]


def at[T](folder: Path, value: T) -> T:
    """Returns JSON with `{folder}` replaced."""
    result: T = json.loads(json.dumps(value).replace("{folder}", str(folder)))
    return result


@pytest.mark.skipif(not EXTERNAL_SERVERS.is_dir(), reason="not installed, see `make test-mcp`")
@pytest.mark.parametrize("external", EXTERNAL, ids=lambda external: external.name)
def test_rollback_undoes_changes_of_an_external_server(
    external: ExternalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if external.environment:
        monkeypatch.setenv(external.environment, str(tmp_path / "memory.json"))
    with closing(sqlite3.connect(tmp_path / "data.db")) as database:
        database.execute("CREATE TABLE notes (text)")
        database.execute("INSERT INTO notes VALUES ('one')")
        database.commit()
    command = (str(EXTERNAL_SERVERS / external.program), *at(tmp_path, external.arguments))
    environment = (external.environment,) if external.environment else ()
    section = server_section(external.name, *command, folder=tmp_path, env=environment)
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    before, after = undone(section, at(tmp_path, external.calls), at(tmp_path, external.read))
    assert before == after
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files
