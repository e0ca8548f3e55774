"""`wink` asks for approval of tool calls, and stores suspended runs."""

import json
import re
from pathlib import Path

import pytest

from support.commands import Wink, process
from support.terminals import Terminal
from weakincentives.evaluation.suspension import Suspension

NOTES = '''
from dataclasses import dataclass

from weakincentives import MarkdownSection, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.testing import ScriptedAdapter, call, say


@dataclass(frozen=True)
class Note:
    text: str


def note(params: Note, *, context: ToolContext) -> ToolResult[Note]:
    """Write a note."""
    context.session.dispatch(params)
    return ToolResult(message=f"{len(context.session[Note])} notes.")


tool = Tool(name="note", handler=note, approval="effects", effect="repeatable")
task = MarkdownSection(title="Task", template="Help.", tools=[tool])
template = PromptTemplate(ns="notes", key="write", sections=[task])


def model():
    calls = call(("note", {"text": "\\x1b[2Jone"}), ("note", {"text": "two"}))
    return ScriptedAdapter([calls, say("done")])


def finishing():
    return ScriptedAdapter([say("done")])
'''
RUN = "run", "notes:template", "--adapter"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "notes.py").write_text(NOTES)
    return tmp_path


@pytest.fixture
def wink(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Wink:
    return Wink(folder, monkeypatch, capsys)


def test_user_decides_on_tool_calls_in_the_terminal(folder: Path) -> None:
    screen = Terminal(folder, *RUN, "notes:model", "--log", "log.jsonl")
    try:
        shown = screen.read_until("as JSON: ")
        assert '+ [0] = {"text": "\\u001b[2Jone"}' in shown
        for nothing in ("what", "y or n", '{"text": NaN}', "3", "[" * 3_000):
            screen.keys(f"{nothing}\n")
            screen.read_until("as JSON: ")
        screen.keys("y\n")
        assert '+ [1] = {"text": "two"}' in screen.read_until("as JSON: ")
        screen.keys("n one is enough\n")
        assert screen.read_until('"text":')
    finally:
        screen.close()
    log = (folder / "log.jsonl").read_text()
    assert "A person denied this call. one is enough" in log
    assert '"decision": "approve"' in log


def test_run_is_suspended_in_a_file_and_decided_by_another_process(
    folder: Path, wink: Wink
) -> None:
    done = process(folder, *RUN, "notes:model", "--suspend", "run.json")
    assert done.returncode == 3
    assert "pending approval of 2 calls: wink approve run.json" in done.stderr
    assert (folder / "run.json").stat().st_mode & 0o077 == 0
    done = wink("approve", "run.json")
    assert "call_1: note" in done.stderr
    assert "2 calls without a decision" in done.stderr
    done = wink("approve", "run.json", "--yes", "call_1", "--no", "call_2=not two")
    assert "0 calls without a decision; continue with wink run TARGET --resume run" in done.stderr
    kinds = {
        call_id: decision.kind
        for call_id, decision in Suspension.from_json(
            (folder / "run.json").read_text()
        ).decisions.items()
    }
    assert kinds == {"call_1": "approve", "call_2": "deny"}
    done = process(folder, *RUN, "notes:finishing", "--resume", "run.json")
    assert (done.returncode, json.loads(done.stdout)["text"]) == (0, "done")
    assert not (folder / "run.json").exists()
    assert re.search("note.*1 notes", done.stderr)
    done = wink(*RUN, "notes:finishing", "--resume", "run.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == ("wink: run.json does not exist; it is deleted when its run has ended\n")


def test_call_of_a_nested_run_is_decided_after_the_call_of_its_parent(
    folder: Path, wink: Wink
) -> None:
    (folder / "notes.py").write_text(
        NOTES
        + """

desk = Tool.from_prompt(template, name="desk", description="Writes.", approval="arguments")
boss = PromptTemplate(
    ns="notes", key="boss", sections=[MarkdownSection(title="Task", template="Lead.", tools=[desk])]
)


def delegating():
    return ScriptedAdapter([call(("desk", {"message": "Write."}))])


def writing():
    return ScriptedAdapter([call(("note", {"text": "one"}))])


def ending():
    return ScriptedAdapter([say("written"), say("done")])
"""
    )
    run = "run", "notes:boss", "--adapter"
    done = wink(*run, "notes:delegating", "--suspend", "run.json")
    assert "pending approval of 1 call: wink approve run.json" in done.stderr
    wink("approve", "run.json", "--yes", "call_1")
    options = "--resume", "run.json", "--suspend", "run.json"
    done = wink(*run, "notes:writing", *options)
    assert done.returncode == 3
    done = wink("approve", "run.json")
    assert "A call of note, inside desk, waits for approval of its effects." in done.stderr
    assert "1 call without a decision" in done.stderr
    shown = [line.strip() for line in wink("show", "run.json").stdout.splitlines()]
    assert [line.partition(":")[0] for line in shown] == [
        "notes/boss",
        "turn 1",
        "approval of desk",
        "notes/write",
        "turn 1",
        "suspended for approval after 1 turn",
        "suspended for approval after 1 turn",
    ]
    assert wink("report", "run.json").stdout == "run.html\n"
    done = wink("approve", "run.json", "--yes", "call_1/1/call_1")
    assert "0 calls without a decision" in done.stderr
    done = wink(*run, "notes:ending", "--resume", "run.json")
    assert (done.returncode, json.loads(done.stdout)["text"]) == (0, "done")


def test_run_without_suspend_option_explains_how_to_suspend(wink: Wink) -> None:
    done = wink(*RUN, "notes:model")
    assert done.returncode == 2
    assert "--suspend FILE, then wink approve FILE" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ["--yes", "call_9"],
            "call 'call_9' is not pending approval; the pending calls are call_1, call_2",
        ),
        ([], "is not a suspended run"),
    ],
)
def test_invalid_decision_or_file_is_rejected(
    folder: Path, wink: Wink, arguments: list[str], problem: str
) -> None:
    wink(*RUN, "notes:model", "--suspend", "run.json")
    if not arguments:
        (folder / "run.json").write_text("{}")
    done = wink("approve", "run.json", *arguments)
    assert done.returncode == 2
    assert problem in done.stderr
