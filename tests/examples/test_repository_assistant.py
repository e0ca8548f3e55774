"""The repository assistant: an external server's failed call leaves nothing behind."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import git
import pytest

from examples.repository_assistant.__main__ import main
from examples.repository_assistant.prompt import LOCK, Release, Repository, assistant
from examples.repository_assistant.sample import make_sample
from support.example_agents import run_example
from weakincentives.contrib.mcp.client import open_server
from weakincentives.contrib.mcp.lock import ServerLock, differences, read_lock
from weakincentives.inspection.analysis import analyze
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say


def test_example_runs_with_one_command_without_key_or_network(tmp_path: Path) -> None:
    done = run_example("repository_assistant", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "rolled back to the byte" in done.stdout
    assert "- feat: Taxes differ by country" in done.stdout


def test_changelog_is_committed_and_the_failed_attempt_leaves_no_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_sample(tmp_path / "sample")
    assert main([str(path), "--json"]) == 0
    assert "committed successfully" in capsys.readouterr().out
    with git.Repo(path) as repository:
        assert repository.head.commit.message == "docs: Changelog brought up to date"
        assert not repository.is_dirty()
    assert (path / "hook.log").read_text() == "checked: docs: Changelog brought up to date\n"
    assert main([str(path), "--json"]) == 0
    assert "nothing to do" in capsys.readouterr().out


def test_server_tools_are_hidden_until_the_section_is_opened(tmp_path: Path) -> None:
    path = make_sample(tmp_path / "sample")
    keys = ["git", "git.history"]
    script = [call(("read_section", {"section_key": key})) for key in keys]
    adapter = ScriptedAdapter([*script, say(Release([], ""))])
    adapter.evaluate(assistant(path).bind(Repository(str(path))), session=Session())
    offered = [{n for n in seen.tool_names if "git" in n} for seen in adapter.requests]
    assert offered[0] == set()
    assert {"git_diff", "git_branch"} < offered[1]
    assert offered[2] - offered[1] == {"git_log", "git_show", "git_status"}


def test_lock_matches_the_tools_that_the_server_offers() -> None:
    async def offered() -> ServerLock:
        command = (sys.executable, "-m", "mcp_server_git")
        async with open_server(replace(read_lock(LOCK), command=command), id) as server:
            return server.lock

    assert differences(read_lock(LOCK), asyncio.run(offered())) == ()


def test_prompt_has_no_findings(tmp_path: Path) -> None:
    path = make_sample(tmp_path / "sample")
    assert analyze(assistant(path)).findings == ()
