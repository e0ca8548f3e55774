"""The user approves the arguments of a server's calls; denied calls do not reach the server."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.mcp_prompts import Call, answers, run, section_of, template_of
from weakincentives.evaluation.approval import (
    Approve,
    Decision,
    Deny,
    Preview,
    ReplaceArguments,
)
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.suspension import RunSuspended
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.prompt.errors import PromptValidationError
from weakincentives.protocols import StateView
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say
from weakincentives.visibility import SectionVisibility, VisibilityOverrides

pytestmark = pytest.mark.usefixtures("no_descriptor_left")


class Person:
    """Decides on calls, and records the previews."""

    def __init__(self, *decisions: Decision) -> None:
        self._decisions = [*decisions]
        self.previews: list[Preview] = []

    def __call__(self, preview: Preview) -> Decision:
        self.previews.append(preview)
        return self._decisions.pop(0)

    @property
    def asked(self) -> list[tuple[str, str, str]]:
        return [(shown.tool, shown.approval, shown.arguments) for shown in self.previews]


def texts_of(root: Path, person: Person, /, *calls: Call, **options: Any) -> list[str]:
    """Lets a model make the calls, and returns the answers that it gets."""
    groups = options.get("groups") or {}
    opened = {("plain", title.lower()): SectionVisibility.FULL for title in groups}
    section = section_of(root, **options)
    watcher = run(section, *calls, approver=person, visibility_overrides=opened)
    return [text for _, text in answers(watcher)]


def calls_of(folder: Path) -> list[str]:
    path = folder / "calls"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.parametrize("groups", [{}, {"Writing": ["append", "fail"]}])
def test_calls_require_approval_unless_their_tool_is_read_only(
    tmp_path: Path, groups: dict[str, list[str]]
) -> None:
    person = Person(Approve(), Deny("Not today."))
    calls: list[Call] = [
        ("echo", {"text": "a"}),
        ("append", {"text": "b"}),
        ("append", {"text": "c"}),
    ]
    texts = texts_of(tmp_path, person, *calls, approval="arguments", groups=groups)
    assert texts == ["a", "b\n", "A person denied this call. Not today."]
    assert calls_of(tmp_path) == ["echo a", "append b"]
    assert person.asked == [
        ("plain_append", "arguments", '{"text": "b"}'),
        ("plain_append", "arguments", '{"text": "c"}'),
    ]


def test_denied_call_does_not_start_the_server_or_touch_its_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    options: dict[str, Any] = {"approval": "arguments", "folder": tmp_path / "data"}
    (text,) = texts_of(tmp_path, Person(Deny()), ("append", {"text": "a"}), **options)
    assert text == "A person denied this call."
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_declared_effects_determine_which_calls_require_approval(tmp_path: Path) -> None:
    person = Person(Approve())
    calls: list[Call] = [("echo", {"text": "a"}), ("append", {"text": "b"})]
    effects = {"echo": "at_most_once", "append": "pure"}
    assert texts_of(tmp_path, person, *calls, approval="arguments", effects=effects) == ["a", "b\n"]
    assert [tool for tool, _, _ in person.asked] == ["plain_echo"]


def test_selector_decides_by_the_arguments_without_running_a_preview(
    tmp_path: Path,
) -> None:
    def select(params: dict[str, str], *, session: StateView) -> str | None:
        assert not session[VisibilityOverrides].all()
        return "effects" if "secret" in params["text"] else None

    person = Person(Deny())
    calls: list[Call] = [("append", {"text": "a"}), ("append", {"text": "secret"})]
    texts_of(tmp_path, person, *calls, approval=select, effects={"append": "repeatable"})
    assert calls_of(tmp_path) == ["append a"]
    assert person.asked == [("plain_append", "arguments", '{"text": "secret"}')]


def test_server_receives_the_replaced_arguments(tmp_path: Path) -> None:
    person = Person(ReplaceArguments({"text": "mine"}))
    texts_of(tmp_path, person, ("append", {"text": "yours"}), approval="arguments")
    assert calls_of(tmp_path) == ["append mine"]


def test_approved_call_that_fails_is_rolled_back(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    options: dict[str, Any] = {"approval": "arguments", "folder": tmp_path / "data"}
    texts = texts_of(tmp_path, Person(Approve()), ("fail", {"text": "a"}), **options)
    assert texts == ["a\n"]
    assert list((tmp_path / "data").iterdir()) == []


def test_suspended_run_makes_its_call_once_approved(tmp_path: Path) -> None:
    prompt = template_of(section_of(tmp_path, approval="arguments")).bind()
    session = Session()
    loop = MainLoop(ScriptedAdapter([call(("plain_append", {"text": "a"})), say("done")]))
    with pytest.raises(RunSuspended) as raised:
        loop.execute(prompt, session=session)
    assert calls_of(tmp_path) == []
    suspension = raised.value.suspension
    decisions: dict[str, Decision] = {shown.call_id: Approve() for shown in suspension.pending}
    assert loop.resume(prompt, suspension, decisions, session=session).text == "done"
    assert calls_of(tmp_path) == ["append a"]


@pytest.mark.parametrize(
    ("approval", "words"),
    [
        (
            "effects",
            r"^MCPSection\('plain'\): the effects of a server cannot be previewed; .*='arguments'",
        ),
        ("always", r"^MCPSection\('plain'\): approval must be .* or a function, got 'always'"),
        (
            lambda a, b: (a, b),
            r"^MCPSection\('plain'\): approval= must take .*, got a function that takes",
        ),
    ],
)
def test_unsupported_approval_is_rejected(
    tmp_path: Path, approval: str | Callable[..., object], words: str
) -> None:
    with pytest.raises(PromptValidationError, match=words):
        section_of(tmp_path, approval=approval)


def test_own_tools_of_a_section_inherit_its_approval(tmp_path: Path) -> None:
    def own(params: Approve, *, context: ToolContext) -> ToolResult[None]:
        raise AssertionError((params, context))

    tools = [
        Tool[Approve, None](name="own", handler=own),
        Tool[Approve, None](name="free", handler=own, approval=lambda: None),
    ]
    section = section_of(tmp_path, approval="arguments", tools=tools)
    approvals = {tool.name: tool.approval for tool in section.tools()}
    assert approvals["own"] == approvals["plain_append"] == "arguments"
    assert approvals["free"] is tools[1].approval
    assert approvals["plain_echo"] is None
