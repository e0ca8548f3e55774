"""The adapter with the SDK's real CLI against a scripted server: its requests and their replies.

Each test starts its own process, which takes half a second.
"""

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event as Signal
from typing import Any

import pytest

from support.agents import Args, Note, answers, prompt, tool
from support.claude_cli import KEY, MODEL, cli_pids, connect, mcp, results
from support.deadlines import NEVER, SOON, with_growing_limit
from support.provider_formats import Ids, provider_format, render
from support.scripted_server import Call, Fail, Raw, Request, Say, ScriptedServer, Usage
from weakincentives.adapters.claude_agent_sdk import ClaudeAgentSDKAdapter
from weakincentives.adapters.core import PromptResponse
from weakincentives.evaluation.errors import (
    BudgetExceededError,
    DeadlineExceededError,
    PromptEvaluationError,
    ThrottleError,
)
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.filesystem import HostFilesystem
from weakincentives.limits import Budget, Deadline, TokenUsage, utc_now
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    ToolContext,
    ToolResult,
    VisibilityExpansionRequired,
)
from weakincentives.prompt.workspace import WorkspaceSection
from weakincentives.runtime.events import (
    PromptExecuted,
    PromptRendered,
    ProviderCalled,
    ToolInvoked,
    ToolsInjected,
)
from weakincentives.runtime.session import Session
from weakincentives.visibility import SectionVisibility

FORM: Any = provider_format("/messages")  # Any: it is one

type Run = Callable[..., PromptResponse[Any]]


def evaluate(
    adapter: ClaudeAgentSDKAdapter, asked: Prompt[Any], session: Session, **limits: Any
) -> PromptResponse[Any]:
    return adapter.evaluate(asked, session=session, **limits)


def evaluate_async(
    adapter: ClaudeAgentSDKAdapter, asked: Prompt[Any], session: Session, **limits: Any
) -> PromptResponse[Any]:
    return asyncio.run(adapter.evaluate_async(asked, session=session, **limits))


def evaluate_within_a_loop(
    adapter: ClaudeAgentSDKAdapter, asked: Prompt[Any], session: Session, **limits: Any
) -> PromptResponse[Any]:
    async def main() -> PromptResponse[Any]:
        return adapter.evaluate(asked, session=session, **limits)

    return asyncio.run(main())


@dataclass(frozen=True)
class Sum:
    total: int


def tool_names(request: Request) -> list[str]:
    return [tool["name"].rpartition("__")[2] for tool in request.json.get("tools", [])]


def layered() -> Prompt[Any]:
    def hidden(key: str) -> MarkdownSection[Any]:
        return MarkdownSection(
            title=key.title(),
            key=key,
            template=f"All of {key}.",
            summary="There is more.",
            visibility=SectionVisibility.SUMMARY,
            tools=[tool(name=f"{key}_tool")],
        )

    shown = MarkdownSection(title="Task", key="task", template="Go.", tools=[tool()])
    return Prompt(ns="tests", key="layers", sections=[shown, hidden("more"), hidden("most")])


def failure(
    *steps: Any, asked: Prompt[Any] | None = None, run: Run = evaluate, **changes: Any
) -> PromptEvaluationError:
    limits = {name: changes.pop(name) for name in ("deadline", "budget") if name in changes}
    with (
        ScriptedServer(*steps, strict=False) as server,
        pytest.raises(PromptEvaluationError) as caught,
    ):
        run(connect(server, **changes), asked or prompt(tool()), Session(), **limits)
    cause: BaseException | None = caught.value
    while cause is not None:
        assert KEY not in f"{cause} {cause!r}"
        cause = cause.__cause__
    return caught.value


# --- A conversation


@pytest.mark.parametrize("run", [evaluate, evaluate_async, evaluate_within_a_loop])
def test_run_executes_tools_and_returns_the_answer(run: Run) -> None:
    session = Session()
    calls = (mcp("probe", {"a": 1}), mcp("probe", {"a": 2}))
    seen: list[str] = []
    for kind in (PromptRendered, ProviderCalled, ToolInvoked, PromptExecuted):
        session.bus.subscribe(kind, lambda event: seen.append(type(event).__name__))
    with ScriptedServer(
        Say("Let me see.", calls, usage=Usage(20, 8, 5, 2, written=3, for_hour=1)),
        Say("Both done.", usage=Usage(10, 5, 0, 1, written=4, for_hour=4), model="another"),
    ) as server:
        response = run(connect(server), prompt(tool()), session)
        first, second = server.requests
    assert (response.text, response.turns, response.output) == ("Both done.", 2, None)
    assert response.usage == TokenUsage(30, 13, 5, 7, reasoning_tokens=3, cache_write_1h_tokens=5)
    assert [(event.usage, event.model) for event in session[ProviderCalled].all()] == [
        (TokenUsage(20, 8, 5, 3, 2, 1), MODEL),
        (TokenUsage(10, 5, 0, 4, 1, 4), "another"),
    ]
    assert [event.params for event in session[ToolInvoked].all()] == [Args(1), Args(2)]
    assert seen == [
        "PromptRendered",
        "ProviderCalled",
        "ToolInvoked",
        "ToolInvoked",
        "ProviderCalled",
        "PromptExecuted",
    ]
    assert [message.content for message in answers(response.transcript)] == ["ok", "ok"]
    assert first.header("x-api-key") == KEY
    assert tool_names(first) == ["probe"]
    assert first.json["model"] == MODEL
    assert first.json["messages"][-1]["content"][-1]["text"] == prompt(tool()).render().text
    assert [text.strip() for text in results(second)] == ["ok", "ok"]


def test_invalid_and_failing_calls_are_returned_to_the_model_as_errors() -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session[Note].append(Note("undone"))
        raise RuntimeError("no luck")

    session = Session()
    calls = (mcp("probe", {"a": "x"}), mcp("probe", "{"), mcp("probe"), Call("nonsense"))
    with ScriptedServer(Say(calls=calls), Say("done")) as server:
        response = evaluate(connect(server), prompt(tool(handler)), session)
        texts = results(server.requests[1])
    wrong, broken, failed, unknown = answers(response.transcript)
    assert (response.text, response.turns) == ("done", 2)
    assert "Invalid arguments for 'probe': a:" in wrong.content
    assert wrong.content in texts[0]
    assert "Invalid arguments for 'probe'" in broken.content
    assert "could not be parsed as JSON" in texts[1]
    assert failed.content == "no luck"
    assert "no luck" in texts[2]
    assert "Unknown tool 'nonsense'" in unknown.content
    assert "No such tool" in texts[3]
    assert len(session[ToolInvoked].all()) == 4
    assert session[Note].all() == ()


def test_prompt_text_is_not_parsed_as_cli_commands_or_file_names(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("do not send")
    with ScriptedServer(Say("done")) as server:
        evaluate(connect(server), prompt(text=f"/clear @{secret}"), Session())
        assert f"/clear @{secret}" in server.requests[0].json["messages"][-1]["content"][-1]["text"]
        assert b"do not send" not in server.requests[0].body


def test_non_streamed_fallback_reply_is_decoded() -> None:
    broken = Raw(b"event: message_start\ndata: {\n\n", "text/event-stream")
    calls = (mcp("probe", {"a": 1}), mcp("probe", {"a": 2}))
    session = Session()
    with ScriptedServer(broken, Say(calls=calls), Say("done")) as server:
        response = evaluate(connect(server), prompt(tool()), session)
        assert [text.strip() for text in results(server.requests[2])] == ["ok", "ok"]
    assert response.text == "done"
    assert [event.params for event in session[ToolInvoked].all()] == [Args(1), Args(2)]


def test_stream_interrupted_in_the_text_does_not_end_the_run() -> None:
    whole = render(Say("Let me see."), FORM, {"stream": True}, Ids())
    assert isinstance(whole, Raw)
    broken = Raw(whole.body.partition(b"event: content_block_stop")[0], "text/event-stream")
    session = Session()
    with ScriptedServer(broken, Say(calls=(mcp("probe"),)), Say("done")) as server:
        response = evaluate(connect(server), prompt(tool()), session)
    assert (response.text, len(session[ToolInvoked].all())) == ("done", 1)


# --- Disclosure


def test_adapter_without_main_loop_raises_visibility_expansion_required() -> None:
    read = mcp("read_section", {"section_key": "more"})
    with (
        ScriptedServer(Say(calls=(read,))) as server,
        pytest.raises(VisibilityExpansionRequired) as caught,
    ):
        evaluate(connect(server), layered(), Session())
    assert caught.value.section_keys == ("more",)
    assert caught.value.run_usage.calls == 1


@pytest.mark.claim("DT-04")
def test_dynamic_tools_are_sent_with_the_next_request() -> None:
    session = Session()
    script = (
        Say(calls=(mcp("probe"), mcp("read_section", {"section_key": "more"}), mcp("probe"))),
        Say(calls=(mcp("more_tool", server="wink2"), mcp("read_section", {"section_key": "most"}))),
        Say(calls=(mcp("most_tool", server="wink3"), mcp("more_tool", server="wink2"))),
        Say("done"),
    )
    with ScriptedServer(*script) as server:
        adapter = connect(server, dynamic_tools=True)
        assert adapter.supports_dynamic_tools
        response = evaluate(adapter, layered(), session)
        names = [sorted(tool_names(request)) for request in server.requests]
    assert names == [
        ["probe", "read_section"],
        ["more_tool", "probe", "read_section"],
        ["more_tool", "most_tool", "probe", "read_section"],
        ["more_tool", "most_tool", "probe", "read_section"],
    ]
    assert (response.text, response.turns) == ("done", 4)
    assert all(event.success for event in session[ToolInvoked].all())
    assert [event.tool_names for event in session[ToolsInjected].all()] == [
        ("more_tool",),
        ("most_tool",),
    ]


# --- Typed output


def test_typed_output_is_read_from_the_clis_structured_output_tool() -> None:
    give = Call("StructuredOutput", {"total": 3})
    with ScriptedServer(Say(calls=(mcp("probe"),)), Say(calls=(give,))) as server:
        response = evaluate(connect(server), prompt(tool(), output=Sum), Session())
    assert (response.output, response.text, response.turns) == (Sum(3), '{"total": 3}', 2)
    assert response.usage == TokenUsage(20, 10)


def test_cli_rejects_invalid_output_and_the_loop_rejects_plain_text() -> None:
    wrong, right = Call("StructuredOutput", {"total": "x"}), Call("StructuredOutput", {"total": 4})
    script = Say(calls=(wrong,)), Say("Four."), Say("Four!"), Say(calls=(right,))
    with ScriptedServer(*script) as server:
        response = evaluate(connect(server), prompt(output=Sum), Session())
        assert "does not fit the required JSON schema" in json.dumps(
            server.requests[3].json["messages"][-1]
        )
    assert (response.output, response.turns) == (Sum(4), 2)
    assert response.usage == TokenUsage(40, 20)


def test_output_that_never_fits_the_schema_is_an_error() -> None:
    wrong = Say(calls=(Call("StructuredOutput", {"total": "x"}),))
    error = failure(*[wrong] * 12, asked=prompt(output=Sum))
    assert (error.phase, error.code) == ("response", "output")


# --- Failures


@dataclass(frozen=True)
class Case:
    step: Any
    phase: str
    code: str
    status: int | None = None


CASES = [  # in addition to the conformance suite
    Case(
        Fail(400, "prompt is too long: 300000 tokens > 200000 maximum"),
        "request",
        "context_length",
        400,
    ),
    Case(Fail(401, f"bad key {KEY}"), "request", "authentication", 401),
    Case(Fail(429, f"Slow down, {KEY}"), "request", "throttled", 429),
    Case(Raw(b"event: message_start\ndata: {\n\n", "text/event-stream"), "response", "malformed"),
    Case(Say("half", finish="length"), "response", "truncated"),
    Case(Say(refusal="No."), "response", "refused"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.step)[:40])
def test_failure_is_classified_by_the_clis_report(case: Case) -> None:
    error = failure(Say(calls=(mcp("probe"),)), *[case.step] * 8)
    assert (error.phase, error.code, error.status) == (case.phase, case.code, case.status)
    spent_on_it = case.code in {"truncated", "refused"}
    # an answer that our loop rejects
    assert error.provider == ("" if spent_on_it else "claude_agent_sdk")
    assert (error.usage.total_tokens > 15) is spent_on_it
    assert isinstance(error, ThrottleError) is (case.code == "throttled")
    assert [message.content for message in answers(error.transcript)] == ["ok"]
    assert error.turns == 2


def test_max_retries_enables_the_clis_retries() -> None:
    with ScriptedServer(Fail(529, "Busy"), Say("done")) as server:
        assert evaluate(connect(server, max_retries=1), prompt(), Session()).text == "done"


# --- Limits


def test_exceeded_budget_ends_the_run_before_the_next_request() -> None:
    script = Say(calls=(mcp("probe"),), usage=Usage(90, 20))
    with ScriptedServer(script) as server, pytest.raises(BudgetExceededError) as caught:
        evaluate(connect(server), prompt(tool()), Session(), budget=Budget(max_tokens=100))
    assert (caught.value.usage.total_tokens, caught.value.turns) == (110, 1)


@pytest.mark.parametrize("run", [evaluate, evaluate_async])
def test_deadline_ends_a_request(run: Run) -> None:
    def attempt(seconds: float) -> DeadlineExceededError | None:
        with ScriptedServer(Raw(b"{}", delay=NEVER), strict=False) as server:
            adapter, deadline = connect(server), Deadline.after(seconds)
            with pytest.raises(DeadlineExceededError) as caught:
                run(adapter, prompt(tool()), Session(), deadline=deadline)
            assert deadline.has_passed(utc_now())
        return caught.value if server.requests else None

    with_growing_limit(attempt, 2.5)


@pytest.mark.parametrize("during", ["a request", "a tool"])
def test_cancelled_evaluation_ends_the_cli_process(during: str) -> None:
    begun = Signal()

    async def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        begun.set()
        await asyncio.Event().wait()
        return ToolResult("never")

    def slow(request: Request) -> Raw:
        begun.set()
        return Raw(b"{}", delay=NEVER)

    async def main(adapter: ClaudeAgentSDKAdapter) -> None:
        task = asyncio.create_task(adapter.evaluate_async(prompt(tool(handler)), session=Session()))
        await asyncio.to_thread(begun.wait, SOON)
        assert len(cli_pids()) == 1
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    with ScriptedServer(slow if during == "a request" else Say(calls=(mcp("probe"),))) as server:
        asyncio.run(main(connect(server)))
        assert cli_pids() == []


# --- Isolation


def test_isolated_cli_sends_no_settings_of_the_parent_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    marked = {
        "ANTHROPIC_AUTH_TOKEN": "bogus-token",
        "ANTHROPIC_CUSTOM_HEADERS": "x-bogus: bogus-header",
        "ANTHROPIC_BASE_URL": "http://127.0.0.1:9",
        "ANTHROPIC_MODEL": "bogus-model",
        "CLAUDE_CODE_EXTRA_BODY": '{"metadata": {"user_id": "bogus-body"}}',
        "CLAUDE_CODE_OAUTH_TOKEN": "bogus-oauth",
        "CLAUDE_CONFIG_DIR": str(tmp_path),
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
    }
    for name, value in marked.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "CLAUDE.md").write_text("bogus-memory")
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / "settings.json").write_text(
        '{"env": {"ANTHROPIC_CUSTOM_HEADERS": "x-bogus: bogus-setting"}}'
    )
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with ScriptedServer(Say("done")) as server:
        evaluate(connect(server), prompt(), Session())
        [request] = server.requests
    assert b"bogus" not in request.body
    assert "bogus" not in repr(request.headers)
    assert request.json.get("tools", []) == []
    assert sorted(tmp_path.rglob("*")) == before


def test_inherited_variables_do_not_change_the_clis_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MAX_THINKING_TOKENS", "4321")
    monkeypatch.setenv("DISABLE_PROMPT_CACHING", "1")
    with ScriptedServer(Say("done")) as server:
        evaluate(connect(server, options={"thinking": None}), prompt(), Session())
        [request] = server.requests
    assert b"4321" not in request.body
    assert b"cache_control" in request.body


def test_non_isolated_cli_inherits_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "x-mine: header")
    monkeypatch.chdir(tmp_path)
    with ScriptedServer(Say("done")) as server:
        evaluate(connect(server, isolated=False), prompt(), Session())
        assert server.requests[0].header("x-mine") == "header"


def test_api_key_defaults_to_the_environment_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-from-environment")
    with ScriptedServer(Say("done")) as server:
        evaluate(connect(server, api_key=None), prompt(), Session())
        assert server.requests[0].header("x-api-key") == "sk-ant-from-environment"


def test_concurrent_evaluations_do_not_interfere() -> None:
    def step(request: Request) -> Say:
        messages = json.dumps(request.json["messages"])
        return Say("one" if "Say one." in messages else "two")

    async def main(adapter: ClaudeAgentSDKAdapter) -> list[str]:
        both = [
            adapter.evaluate_async(prompt(text=f"Say {word}."), session=Session())
            for word in ("one", "two")
        ]
        return [response.text for response in await asyncio.gather(*both)]

    with ScriptedServer(step, step) as server:
        assert asyncio.run(main(connect(server))) == ["one", "two"]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another")
def test_cli_can_run_as_another_user() -> None:
    with (
        TemporaryDirectory(ignore_cleanup_errors=True) as home,
        ScriptedServer(Say("done")) as server,
    ):
        Path(home).chmod(0o777)
        env = {"HOME": home, "CLAUDE_CONFIG_DIR": f"{home}/config"}
        adapter = connect(server, cwd=home, env=env, options={"user": "nobody"})
        assert evaluate(adapter, prompt(), Session()).text == "done"
        assert {path.owner() for path in Path(home).iterdir()} == {"nobody"}


# --- The CLI's own tools


def test_builtin_tools_run_in_the_cli_and_publish_tool_invoked(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("in the folder")
    session = Session()
    calls = (
        Call("Bash", {"command": "cat note.txt"}),
        mcp("probe"),
        Call("Bash", {"command": "exit 3"}),
    )
    with ScriptedServer(Say(calls=calls), Say("done")) as server:
        adapter = connect(server, builtin_tools=["Bash"], cwd=tmp_path)
        response = evaluate(adapter, prompt(tool()), session)
        names = tool_names(server.requests[0])
        texts = results(server.requests[1])
    assert sorted(names) == ["Bash", "probe"]
    events = session[ToolInvoked].all()
    assert [(event.name, event.success) for event in events] == [
        ("bash", True),
        ("probe", True),
        ("bash", False),
    ]
    assert events[0].content == "in the folder"
    assert "in the folder" in texts[0]
    assert (response.turns, response.text) == (2, "done")


def test_builtin_tools_run_in_the_prompts_workspace_folder(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("in the workspace")
    files = WorkspaceSection(filesystem=lambda: HostFilesystem(tmp_path))
    with ScriptedServer(
        Say(calls=(Call("Bash", {"command": "cat note.txt"}),)), Say("done")
    ) as server:
        asked = Prompt(ns="tests", key="files", sections=[files])
        response = evaluate(connect(server, builtin_tools=["Bash"]), asked, Session())
    assert [message.content for message in answers(response.transcript)] == ["in the workspace"]


def test_builtin_tool_running_past_the_deadline_is_stopped(tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    def attempt(seconds: float) -> DeadlineExceededError | None:
        command = f"mkfifo pipe; touch {begun}; cat pipe"
        with ScriptedServer(
            Say(calls=(Call("Bash", {"command": command}),)), strict=False
        ) as server:
            adapter = connect(server, builtin_tools=["Bash"])
            deadline = Deadline.after(seconds)
            with pytest.raises(DeadlineExceededError) as caught:
                evaluate(adapter, prompt(), Session(), deadline=deadline)
        return caught.value if begun.exists() else None

    with_growing_limit(attempt, 2.5)


def test_builtin_tool_with_the_name_of_a_prompt_tool_is_rejected() -> None:
    adapter = ClaudeAgentSDKAdapter(MODEL, builtin_tools=["Probe"])
    with pytest.raises(
        ValueError, match=r"tools \['probe'\] of the prompt have the names of built-in tools"
    ):
        evaluate(adapter, prompt(tool()), Session())


def test_reserved_unknown_and_conflicting_options_are_rejected_early() -> None:
    with pytest.raises(
        ValueError, match=r"\['mcp_servers'\] cannot be passed because the adapter sets them"
    ):
        ClaudeAgentSDKAdapter(MODEL, options={"mcp_servers": {}})
    with pytest.raises(TypeError, match="unheard_of"):
        ClaudeAgentSDKAdapter(MODEL, options={"unheard_of": 1})
    with pytest.raises(ValueError, match="cannot be combined with built-in tools"):
        ClaudeAgentSDKAdapter(
            MODEL, builtin_tools=["Read"], config=RunConfig(parallel_tool_calls="isolated")
        )
