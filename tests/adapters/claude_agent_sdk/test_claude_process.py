"""The CLI's process: what it and its tools can see of this process, its failures, and that nothing
is left behind.
"""

import asyncio
import gc
import logging
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import pytest

from support.agents import Args, answers, prompt, tool
from support.claude_cli import KEY, cli_pids, connect, mcp
from support.deadlines import SOON, with_growing_limit
from support.scripted_server import Call, Request, Say, ScriptedServer
from weakincentives.adapters.claude_agent_sdk import ClaudeAgentSDKAdapter
from weakincentives.adapters.claude_agent_sdk.process import CLIProcess
from weakincentives.evaluation.errors import DeadlineExceededError, PromptEvaluationError
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.limits import Deadline
from weakincentives.prompt import ToolContext, ToolResult
from weakincentives.runtime.events import ToolInvoked
from weakincentives.runtime.session import Session

TOKEN = "inherited-token-9876"  # noqa: S105 - not a real one


# Reads the pipe from which the CLI got its key.
DESCRIPTOR = """
number=$(tr '\\0' '\\n' < /proc/$PPID/environ | sed -n 's/^CLAUDE_CODE_API_KEY_FILE_DESCRIPTOR=//p')
echo number $number
timeout 1 cat /proc/$PPID/fd/$number; timeout 1 cat /proc/self/fd/$number; echo read
"""


@dataclass(frozen=True)
class Long:
    text: str


def script(folder: Path, text: str) -> Path:
    """A program that replaces the CLI."""
    path = folder / "claude-script"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def living(name: str) -> list[int]:
    """Returns the ids of all running processes whose command line contains `name`."""
    pids: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            if name in (folder / "cmdline").read_text(errors="replace"):
                pids.append(int(folder.name))
    return pids


# --- What the CLI's tools can see


def test_builtin_tools_see_neither_the_key_nor_inherited_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", TOKEN)
    monkeypatch.setenv("AN ODD NAME", TOKEN)
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    commands = "env; tr '\\0' '\\n' < /proc/$PPID/environ", DESCRIPTOR
    session = Session()
    script = [Say(calls=(Call("Bash", {"command": command}),)) for command in commands]
    with ScriptedServer(*script, Say("done")) as server:
        env = {"MINE": "for the tools", "no_proxy": "127.0.0.1"}
        response = connect(server, builtin_tools=["Bash"], env=env).evaluate(
            prompt(), session=session
        )
        assert [request.header("x-api-key") for request in server.requests] == [KEY] * 3
        bodies = b"".join(request.body for request in server.requests)
    variables, descriptor = [message.content for message in answers(response.transcript)]
    assert "MINE=for the tools" in variables
    assert "https_proxy=" in variables
    assert "WINK_KEY" not in variables
    assert re.search(r"number \d+\n(.*\n)?read", descriptor)
    for secret in (KEY, TOKEN):
        assert secret.encode() not in bodies
        assert secret not in repr(response)
        assert secret not in repr(session[ToolInvoked].all())


def test_key_in_the_output_of_a_builtin_tool_is_masked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = Session()
    with ScriptedServer(
        Say(calls=(Call("Bash", {"command": f"echo {KEY[:8]}'{KEY[8:]}'"}),)), Say("done")
    ) as server:
        response = connect(server, builtin_tools=["Bash"]).evaluate(prompt(), session=session)
    assert [message.content for message in answers(response.transcript)] == ["***"]
    assert KEY not in repr(session[ToolInvoked].all())


def test_isolated_cli_inherits_only_the_allowed_variables_and_env(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inherited = {"LC_ALL": "C", "NO_PROXY": "x", "SSL_CERT_FILE": "y"}
    others = {
        "AWS_SECRET_ACCESS_KEY": TOKEN,
        "MY_TOKEN": TOKEN,
        "BASH_FUNC_f%%": "() { :; }",
        "AN ODD*NAME": "b",
    }
    for name, value in {**inherited, **others}.items():
        monkeypatch.setenv(name, value)
    seen = variables_of(tmp_path, env={"MINE": "z"})
    assert (inherited | {"PATH": os.environ["PATH"], "MINE": "z"}).items() <= seen.items()
    assert not others.keys() & seen.keys()
    assert KEY not in seen.values()


def test_non_isolated_cli_inherits_all_variables_and_the_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    seen = variables_of(tmp_path, isolated=False)
    assert {"MY_TOKEN": TOKEN, "ANTHROPIC_API_KEY": KEY}.items() <= seen.items()


def variables_of(folder: Path, **changes: Any) -> dict[str, str]:
    """Returns the environment variables with which the CLI is started."""
    path = script(folder, f"env -0 > {folder}/seen; exit 1")
    with pytest.raises(PromptEvaluationError):
        connect(None, options={"cli_path": path}, **changes).evaluate(prompt(), session=Session())
    lines = (folder / "seen").read_text().split("\0")
    return dict(line.split("=", 1) for line in lines if line)


# --- Processes that outlive the CLI


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Path]:
    """A program with a unique name that sleeps for a given time; its processes are killed at the
    end.
    """
    path = tmp_path / f"left-behind-{uuid4().hex}"
    path.symlink_to(shutil.which("sleep") or "sleep")
    yield path
    for pid in living(path.name):
        os.kill(pid, signal.SIGKILL)


def test_background_processes_are_killed_with_the_evaluation(
    sleeper: Path,
) -> None:
    detached = f"(setsid {sleeper} 600 > /dev/null 2>&1 &) ; nohup {sleeper} 601 > /dev/null 2>&1 &"
    calls = (
        Call("Bash", {"command": f"{sleeper} 602", "run_in_background": True}),
        Call("Bash", {"command": f"{detached} until pgrep -f '{sleeper.name} 601'; do :; done"}),
    )
    seen: list[int] = []

    def last(request: Request) -> Say:
        seen.extend(living(f"{sleeper.name}"))
        return Say("done")

    with ScriptedServer(Say(calls=calls), last, strict=False) as server:
        assert (
            connect(server, builtin_tools=["Bash"]).evaluate(prompt(), session=Session()).text
            == "done"
        )
    assert len(seen) >= 3
    assert living(sleeper.name) == []


def test_processes_of_a_killed_cli_are_killed(sleeper: Path) -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        assert living(sleeper.name)
        os.kill(cli_pids()[0], signal.SIGKILL)
        return ToolResult("killed")

    started = f"until pgrep -f '{sleeper.name} 600'; do :; done"
    command = f"(setsid {sleeper} 600 > /dev/null 2>&1 &) ; {started}"
    calls = Call("Bash", {"command": command}), mcp("probe", {"a": 1})
    with (
        ScriptedServer(Say(calls=calls), strict=False) as server,
        pytest.raises(PromptEvaluationError, match="code -9"),
    ):
        connect(server, builtin_tools=["Bash"]).evaluate(prompt(tool(handler)), session=Session())
    assert living(sleeper.name) == []


def test_orphaned_processes_are_found_by_their_earlier_parent(sleeper: Path) -> None:
    """Simulates a platform where environments cannot be read: an orphaned process is found if it
    was found before.
    """
    process = CLIProcess({}, key=None, isolated=True)

    async def main() -> None:
        clear = f"/usr/bin/env -i /bin/sh -c '{sleeper} 600; :' > /dev/null & echo begun; wait"
        begun = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", clear, stdout=subprocess.PIPE, env={}
        )
        assert begun.stdout is not None
        await begun.stdout.readline()
        while len(pids := process.find()) < 3:  # noqa: ASYNC110 - other processes set no event
            await asyncio.sleep(0.01)
        begun.kill()
        await begun.wait()
        assert process.find() == pids - {begun.pid}
        while process.kill():  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
        process.close()

    with asyncio.Runner(loop_factory=process.loop) as runner:
        runner.run(asyncio.wait_for(main(), SOON))
    assert living(sleeper.name) == []


# --- A CLI that does not react


def ended_in_time(
    adapter: ClaudeAgentSDKAdapter, seconds: float, **changes: Any
) -> PromptEvaluationError:
    began = monotonic()
    with pytest.raises(PromptEvaluationError) as caught:
        adapter.evaluate(changes.pop("asked", prompt()), session=Session(), **changes)
    assert seconds - 0.1 < monotonic() - began < seconds + SOON
    return caught.value


def test_deadline_applies_to_a_cli_frozen_at_start(tmp_path: Path) -> None:
    path = script(tmp_path, "kill -STOP $$")
    adapter = connect(None, options={"cli_path": path})
    assert isinstance(ended_in_time(adapter, 1, deadline=Deadline.after(1)), DeadlineExceededError)
    assert living(path.name) == []


def test_start_timeout_applies_to_a_frozen_cli_without_a_deadline(tmp_path: Path) -> None:
    path = script(tmp_path, "kill -STOP $$")
    error = ended_in_time(connect(None, start_timeout=0.5, options={"cli_path": path}), 0.5)
    assert (error.phase, error.code) == ("request", "timeout")
    assert "raise start_timeout" in str(error)
    assert living(path.name) == []


def test_deadline_applies_to_a_cli_frozen_during_a_tool_call() -> None:
    frozen: list[int] = []

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        frozen.extend(cli_pids())
        os.kill(frozen[-1], signal.SIGSTOP)
        return ToolResult("x" * 90_000)  # more than its stdin holds

    def attempt(seconds: float) -> DeadlineExceededError | None:
        step = Say(calls=(mcp("probe", {"a": 1}),))
        with ScriptedServer(step, strict=False) as server:
            adapter, deadline = connect(server), Deadline.after(seconds)
            with pytest.raises(DeadlineExceededError) as caught:
                adapter.evaluate(prompt(tool(handler)), session=Session(), deadline=deadline)
        return caught.value if frozen else None

    with_growing_limit(attempt, 4)


# --- How it fails


def test_start_failure_reports_stderr_without_the_key(tmp_path: Path) -> None:
    path = script(
        tmp_path,
        "seq 1000 >&2; cat /dev/fd/$CLAUDE_CODE_API_KEY_FILE_DESCRIPTOR >&2; "
        "echo out of order >&2; exit 3",
    )
    lines: list[str] = []
    adapter = connect(None, options={"cli_path": path, "stderr": lines.append})
    with pytest.raises(PromptEvaluationError) as caught:
        adapter.evaluate(prompt(), session=Session())
    assert caught.value.code == "client_error"
    assert "1000\n***out of order" in str(caught.value)
    assert "Check stderr" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert lines[-1] == "***out of order"
    assert KEY not in "".join(lines)


def test_missing_cli_path_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(PromptEvaluationError, match="no-such-cli"):
        connect(None, options={"cli_path": tmp_path / "no-such-cli"}).evaluate(
            prompt(), session=Session()
        )


def test_killed_cli_logs_no_asyncio_warnings(caplog: pytest.LogCaptureFixture) -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        os.kill(cli_pids()[0], signal.SIGKILL)
        return ToolResult("killed")

    with ScriptedServer(Say(calls=(mcp("probe", {"a": 1}),)), strict=False) as server:
        with caplog.at_level(logging.DEBUG), pytest.raises(PromptEvaluationError, match="code -9"):
            connect(server).evaluate(prompt(tool(handler)), session=Session())
        gc.collect()
    assert [
        record.getMessage()
        for record in caplog.records
        if record.name == "asyncio" and record.levelno > logging.INFO
    ] == []


# --- How much it may say


def test_answers_and_arguments_of_megabytes_are_delivered() -> None:
    seen: list[int] = []

    def handler(params: Long, *, context: ToolContext) -> ToolResult[object]:
        seen.append(len(params.text))
        return ToolResult("ok")

    text = '"\\' * 350_000
    call = mcp("probe", {"text": text})
    with ScriptedServer(Say(calls=(call,)), Say("y" * 2_000_000)) as server:
        config = RunConfig(max_argument_chars=None)
        response = connect(server, config=config).evaluate(
            prompt(tool(handler, params=Long)), session=Session()
        )
    assert seen == [len(text)]
    assert response.text == "y" * 2_000_000


def test_oversized_result_is_truncated_for_the_cli_and_the_transcript() -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult("x" * 600_000)

    config = RunConfig(max_result_chars=None)
    with ScriptedServer(Say(calls=(mcp("probe", {"a": 1}),)), Say("done")) as server:
        response = connect(server, config=config).evaluate(prompt(tool(handler)), session=Session())
        sent = str(server.requests[1].json["messages"][-1])
    [answer] = answers(response.transcript)
    assert 490_000 < len(answer.content) <= 500_000
    assert answer.content[:490_000] in sent
    assert "persisted" not in sent.replace(answer.content, "").lower()


def test_answer_larger_than_max_reply_bytes_raises() -> None:
    with (
        ScriptedServer(Say("y" * 200_000), strict=False) as server,
        pytest.raises(PromptEvaluationError) as caught,
    ):
        connect(server, max_reply_bytes=100_000).evaluate(prompt(), session=Session())
    assert (caught.value.phase, caught.value.code) == ("response", "reply_too_large")
    assert "raise max_reply_bytes" in str(caught.value)
