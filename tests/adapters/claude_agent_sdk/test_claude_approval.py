"""Approval for calls of the CLI's own tools: over the real CLI, against a scripted server."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from support import claude_cli
from support.agents import Args, answers, prompt, tool
from support.claude_cli import MODEL, cli_pids, mcp, results
from support.scripted_server import Call, Raw, Request, Say, ScriptedServer
from weakincentives.adapters.claude_agent_sdk import ClaudeAgentSDKAdapter
from weakincentives.adapters.core import PromptResponse
from weakincentives.evaluation.approval import (
    Approve,
    Approver,
    Decision,
    Deny,
    Preview,
    ReplaceArguments,
)
from weakincentives.evaluation.errors import DeadlineExceededError
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.suspension import RunSuspended
from weakincentives.limits import Deadline, utc_now
from weakincentives.prompt import PromptValidationError, Tool
from weakincentives.protocols import StateView
from weakincentives.runtime.events import ApprovalDecided, ToolInvoked
from weakincentives.runtime.session import Session


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "folder"
    path.mkdir()
    return path


# Any: options of all types
def connect(server: ScriptedServer, folder: Path, **changes: Any) -> ClaudeAgentSDKAdapter:
    options = {"builtin_tools": ["Bash"], "approval": {"Bash": "arguments"}, "cwd": folder}
    return claude_cli.connect(server, **options | changes)


def bash(command: str) -> Call:
    return Call("Bash", {"command": command})


def deciding(shown: list[Preview], *decisions: Decision) -> Approver:
    """Returns an approver that makes these decisions, and the last one for all further calls."""

    def approver(preview: Preview) -> Decision:
        shown.append(preview)
        return decisions[min(len(shown), len(decisions)) - 1]

    return approver


# --- Decisions


def evaluate(
    adapter: ClaudeAgentSDKAdapter, session: Session, approver: Approver
) -> PromptResponse[Any]:
    return adapter.evaluate(prompt(tool()), session=session, approver=approver)


def evaluate_async(
    adapter: ClaudeAgentSDKAdapter, session: Session, approver: Approver
) -> PromptResponse[Any]:
    async def later(preview: Preview) -> Decision:
        await asyncio.sleep(0)
        decision = approver(preview)
        assert isinstance(decision, Approve | Deny | ReplaceArguments)
        return decision

    return asyncio.run(adapter.evaluate_async(prompt(tool()), session=session, approver=later))


@pytest.mark.parametrize("run", [evaluate, evaluate_async])
def test_approver_decides_on_every_call_of_a_builtin_tool(
    run: Callable[..., PromptResponse[Any]], folder: Path
) -> None:
    (folder / "note.txt").write_text("as it was")
    commands = ["ls", "echo new > note.txt", "rm note.txt"]
    calls = (*map(bash, commands), mcp("probe", {"a": 1}))
    shown: list[Preview] = []
    other = ReplaceArguments({"command": "cat note.txt; echo replaced > other.txt"})
    approver = deciding(shown, Approve(), Deny("Not today."), other)
    session = Session()
    with ScriptedServer(Say(calls=calls), Say("done")) as server:
        response = run(connect(server, folder), session, approver)
        listed, denied, replaced, _ = results(server.requests[1])
        everything = json.dumps(server.requests[1].json["messages"])
    assert [json.loads(preview.arguments) for preview in shown] == [
        {"command": command} for command in commands
    ]
    assert {(preview.tool, preview.approval) for preview in shown} == {("bash", "arguments")}
    assert listed == "note.txt"  # the CLI does not require approval for `ls`
    assert denied == "A person denied this call. Not today."
    assert replaced.startswith("as it was")
    assert "The arguments were replaced by" in everything
    assert (folder / "other.txt").read_text() == "replaced\n"
    assert [(event.name, event.success) for event in session[ToolInvoked].all()] == [
        ("bash", True),
        ("bash", False),
        ("bash", True),
        ("probe", True),
    ]
    assert [(event.decision, event.reason) for event in session[ApprovalDecided].all()] == [
        ("approve", ""),
        ("deny", "Not today."),
        ("replace", ""),
    ]
    _, _, last, _ = answers(response.transcript)
    assert last.content.startswith(f"The arguments were replaced by {json.dumps(other.arguments)}")
    assert last.content.endswith("as it was")
    assert response.text == "done"


def test_files_change_only_after_approval(folder: Path) -> None:
    calls = (
        Call("Write", {"file_path": "a.txt", "content": "one\n"}),
        Call("Write", {"file_path": "b.txt", "content": "two\n"}),
        Call("Edit", {"file_path": "a.txt", "old_string": "one", "new_string": "three"}),
    )
    before: list[list[str]] = []

    def approver(preview: Preview) -> Decision:
        before.append([path.read_text() for path in sorted(folder.iterdir())])
        return Deny() if "b.txt" in preview.arguments else Approve()

    with ScriptedServer(Say(calls=calls), Say("done")) as server:
        adapter = connect(
            server,
            folder,
            builtin_tools=["Write", "Edit"],
            approval={"Write": "arguments", "Edit": "arguments"},
        )
        adapter.evaluate(prompt(), session=Session(), approver=approver)
    assert before == [[], ["one\n"], ["one\n"]]
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"a.txt": "three\n"}


def test_approval_selector_receives_the_arguments_and_the_session(folder: Path) -> None:
    def selector(arguments: Mapping[str, Any], *, session: StateView) -> str | None:
        seen.append(len(session[ToolInvoked].all()))
        return {">": "arguments", "&": "effects"}.get(arguments["command"][-1])

    seen: list[int] = []
    shown: list[Preview] = []
    calls = bash("echo 1"), bash("echo 2 >"), bash("echo 3 > a.txt &")
    session = Session()
    with ScriptedServer(Say(calls=calls), Say("done")) as server:
        adapter = connect(server, folder, approval={"Bash": selector})
        response = adapter.evaluate(prompt(), session=session, approver=deciding(shown, Deny()))
        sent = results(server.requests[1])
    assert seen == [0, 1, 2]
    assert [preview.arguments for preview in shown] == ['{"command": "echo 2 >"}']
    contents = [message.content for message in answers(response.transcript)]
    refusal = "cannot preview the effects of a built-in tool; return 'arguments'"
    assert contents == [
        "1",
        "A person denied this call.",
        f"The call was not approved: {refusal}",
    ]
    assert [text.partition("\n")[0] for text in sent] == contents
    assert list(folder.iterdir()) == []


def test_tools_without_approval_and_typed_output_need_no_decision(folder: Path) -> None:
    (folder / "note.txt").write_text("in the folder")
    outside = folder.parent / "outside.txt"
    outside.write_text("elsewhere")
    calls = [Call("Read", {"file_path": str(path)}) for path in (folder / "note.txt", outside)]
    output = Call("StructuredOutput", {"a": 7})
    with ScriptedServer(Say(calls=tuple(calls)), Say(calls=(output,))) as server:
        adapter = connect(server, folder, builtin_tools=["Read", "Bash"])
        asked = prompt(tool(), output=Args)
        response = adapter.evaluate(asked, session=Session(), approver=never)
    texts = [message.content for message in answers(response.transcript)]
    assert ["in the folder" in texts[0], "elsewhere" in texts[1]] == [True, True]
    assert response.output == Args(7)


def never(preview: Preview) -> Decision:
    raise AssertionError(f"nobody should be asked about {preview.tool}")


def test_tool_call_in_a_non_streamed_reply_requires_approval(folder: Path) -> None:
    broken = Raw(b"event: message_start\ndata: {\n\n", "text/event-stream")
    with ScriptedServer(broken, Say(calls=(bash("echo 1"),)), Say("done")) as server:
        adapter = connect(server, folder)
        response = adapter.evaluate(prompt(), session=Session(), approver=deciding([], Approve()))
    assert [message.content for message in answers(response.transcript)] == ["1"]


def test_prompt_and_builtin_tools_are_approved_in_call_order(folder: Path) -> None:
    ours = replace(tool(), name="ours", approval="effects")
    calls = bash("echo 1"), mcp("ours", {"a": 1}), bash("echo 2")
    shown: list[Preview] = []
    with ScriptedServer(Say(calls=calls), Say("done")) as server:
        adapter = connect(server, folder)
        response = adapter.evaluate(
            prompt(ours), session=Session(), approver=deciding(shown, Deny(), Approve())
        )
    assert [(preview.tool, preview.approval) for preview in shown] == [
        ("bash", "arguments"),
        ("ours", "effects"),
        ("bash", "arguments"),
    ]
    contents = [message.content for message in answers(response.transcript)]
    assert contents == ["A person denied this call.", "ok", "2"]


def test_stream_yields_approval_requested(folder: Path) -> None:
    with ScriptedServer(Say(calls=(bash("echo 1"),)), Say("done")) as server:
        adapter = connect(server, folder)
        approver = deciding([], Approve())
        events = list(adapter.stream(prompt(), session=Session(), approver=approver))
    assert [type(event).__name__ for event in events] == [
        "ToolCallStarted",
        "ApprovalRequested",
        "ToolCallFinished",
        "TextDelta",
        "Completed",
    ]


# --- Nobody decides


@pytest.mark.parametrize(
    "run",
    [
        lambda adapter: adapter.evaluate(prompt(), session=Session()),
        lambda adapter: list(adapter.stream(prompt(), session=Session())),
        lambda adapter: MainLoop(adapter).execute(prompt(), session=Session()),
    ],
    ids=["evaluate", "stream", "main loop"],
)
def test_run_without_an_approver_is_rejected_before_the_first_request(
    run: Callable[[ClaudeAgentSDKAdapter], object], folder: Path
) -> None:
    with ScriptedServer() as server:
        adapter = connect(server, folder)
        with pytest.raises(
            ValueError, match=r"the provider itself runs \['bash'\].*pass approver="
        ):
            run(adapter)
        assert len(server.requests) == 0


def test_cancelled_evaluation_leaves_neither_process_nor_effect(folder: Path) -> None:
    async def main(adapter: ClaudeAgentSDKAdapter) -> None:
        asked = asyncio.Event()

        async def approver(preview: Preview) -> Decision:
            asked.set()
            await asyncio.Event().wait()
            return Approve()

        run = adapter.evaluate_async(prompt(), session=Session(), approver=approver)
        task = asyncio.create_task(run)
        await asked.wait()
        assert len(cli_pids()) == 1
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    with ScriptedServer(Say(calls=(bash("echo 1 > a.txt"),))) as server:
        asyncio.run(main(connect(server, folder)))
    assert cli_pids() == []
    assert list(folder.iterdir()) == []


def test_call_approved_after_the_deadline_does_not_run(folder: Path) -> None:
    late = timedelta()

    def approver(preview: Preview) -> Decision:
        nonlocal late
        late = timedelta(hours=1)
        return Approve()

    with ScriptedServer(Say(calls=(bash("echo 1 > a.txt"),))) as server:
        adapter = connect(server, folder, clock=lambda: utc_now() + late)
        with pytest.raises(DeadlineExceededError) as caught:
            adapter.evaluate(
                prompt(), session=Session(), approver=approver, deadline=Deadline.after(600)
            )
    [answer] = answers(caught.value.transcript)
    assert (answer.content, answer.success) == ("Not run: the evaluation ended.", False)
    assert cli_pids() == []
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("returns", [None, True])
def test_failing_approver_ends_the_run_and_the_cli(returns: Any, folder: Path) -> None:
    def approver(preview: Preview) -> Any:  # Any: deliberately not a decision
        if returns is None:
            raise ZeroDivisionError
        return returns

    with ScriptedServer(Say(calls=(bash("echo 1 > a.txt"),))) as server:
        adapter = connect(server, folder)
        with pytest.raises(ZeroDivisionError if returns is None else TypeError):
            adapter.evaluate(prompt(), session=Session(), approver=approver)
    assert cli_pids() == []
    assert list(folder.iterdir()) == []


def test_builtin_call_of_a_suspended_turn_is_not_run_after_resuming(folder: Path) -> None:
    ours = Tool(name="ours", handler=tool().handler, params_type=Args, approval="arguments")
    calls = mcp("ours", {"a": 1}), bash("echo 1 > a.txt")
    with ScriptedServer(Say(calls=calls), Say("done")) as server:
        loop, session = MainLoop(connect(server, folder, approval={})), Session()
        with pytest.raises(RunSuspended) as waiting:
            loop.execute(prompt(ours), session=session)
        suspension = waiting.value.suspension
        decisions = {preview.call_id: Approve() for preview in suspension.pending}
        done = loop.resume(prompt(ours), suspension, decisions, session=session)
    contents = [message.content for message in answers(done.response.transcript)]
    assert contents == ["ok", "Not run: its CLI has ended. Call it again."]
    assert (done.response.text, list(folder.iterdir())) == ("done", [])


# --- Ways past the approval


def test_subagents_cannot_call_tools_that_require_approval(folder: Path) -> None:
    launch = {
        "description": "d",
        "prompt": "Say hello.",
        "subagent_type": "general-purpose",
        "run_in_background": False,
    }
    seen: list[str] = []

    def step(request: Request) -> Say:
        texts = json.dumps(request.json["messages"])
        if "Say hello." in texts.partition("tool_use")[0]:  # the subagent
            if "toolu" in texts:
                seen.extend(results(request))
                return Say("hello")
            return Say(calls=(bash("echo 1 > a.txt"),))
        return Say("done") if "toolu" in texts else Say(calls=(Call("Agent", launch),))

    with ScriptedServer(*[step] * 6, strict=False) as server:
        adapter = connect(server, folder, builtin_tools=["Agent", "Bash"])
        adapter.evaluate(prompt(), session=Session(), approver=never)
    assert len(seen) == 1
    assert "Not available to subagents: a person has to approve it." in seen[0]
    assert list(folder.iterdir()) == []


def test_builtin_tool_called_by_its_old_name_is_not_available(folder: Path) -> None:
    launch = {"description": "d", "prompt": "p", "subagent_type": "general-purpose"}
    with ScriptedServer(Say(calls=(Call("Task", launch),)), Say("done")) as server:
        adapter = connect(server, folder, builtin_tools=["Task"], approval={"Task": "arguments"})
        adapter.evaluate(prompt(), session=Session(), approver=deciding([], Approve()))
        [text] = results(server.requests[1])
    assert "Not available." in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"approval": {"Write": "arguments"}},
            r"approval= must name built-in tools from .*, got \['Write'\]",
        ),
        ({"approval": {"Bash": "effects"}}, "cannot preview the effects of 'Bash'"),
        (
            {"options": {"permission_mode": "bypassPermissions"}},
            r"\['permission_mode'\] cannot be combined with approval=",
        ),
        (
            {"options": {"hooks": {}, "can_use_tool": None}},
            r"\['can_use_tool', 'hooks'\] cannot be combined with approval=",
        ),
    ],
)
def test_invalid_approval_options_are_rejected_early(
    changes: dict[str, Any], message: str, folder: Path
) -> None:
    arguments: dict[str, Any] = {
        "builtin_tools": ["Bash"],
        "approval": {"Bash": "arguments"},
        **changes,
    }
    with pytest.raises(ValueError, match=message):
        ClaudeAgentSDKAdapter(MODEL, **arguments)
    wrong: Any = {"Bash": "maybe"}
    with pytest.raises(
        PromptValidationError, match=r"the built-in tool 'Bash': approval must be .*, got 'maybe'"
    ):
        ClaudeAgentSDKAdapter(
            MODEL,
            builtin_tools=["Bash"],
            approval=wrong,
        )
