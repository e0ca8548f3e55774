"""Values are displayed in one line, and in notebooks as Markdown in which all text is inert."""

import json
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from nbclient import NotebookClient

from weakincentives import (
    Chat,
    MainLoop,
    MarkdownSection,
    PromptTemplate,
    Session,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.cli.printing import printable
from weakincentives.displays import (
    HIDDEN,
    code_block,
    code_span,
    cut,
    escape_hidden,
    one_line,
    visible,
)
from weakincentives.evaluation.approval import Approve, Deny, Preview, ReplaceArguments
from weakincentives.evaluation.messages import (
    AssistantMessage,
    Instructions,
    ToolMessage,
    ToolsAdded,
    ToolsRemoved,
    UserMessage,
)
from weakincentives.evaluation.suspension import RunSuspended
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.inspection.report import readable
from weakincentives.inspection.secrets import mask_secrets
from weakincentives.limits import TokenUsage
from weakincentives.prompt import Prompt
from weakincentives.redaction import SECRET_NAMES, credentials_in
from weakincentives.testing import ScriptedAdapter, call, say

SECRET = "hunter2"  # noqa: S105 - an example
HOSTILE = (
    f"{SECRET}</pre><script>alert(1)</script>\n```\n<img src=x onerror=alert(1)>\n"
    "~~~\n# Heading\n[link](javascript:alert(1)) $x$ `````` `code`\r```\r<b>\ud800"
)
ACTIVE = {"html_block", "html_inline", "link_open", "image", "heading_open"}


@dataclass(frozen=True)
class Note:
    text: str


def note(params: Note, *, context: ToolContext) -> ToolResult[Note]:
    """Write a note."""
    return ToolResult(params.text, params, success=params.text != "no")


def hostile_chat() -> Chat[None]:
    section = MarkdownSection[Note](
        title="Task", template="$text", tools=[Tool(name="note", handler=note)]
    )
    template = PromptTemplate(ns="n<b>`" * 900, key="k\n`<i>", sections=[section])
    writing = call(("note", {"text": HOSTILE}), ("note", {"text": "no"}))
    adapter = ScriptedAdapter([writing, say(HOSTILE, usage=TokenUsage(7, 3))])
    return Chat(MainLoop(adapter), template.bind(Note(HOSTILE)), session=Session())


def tokens(markdown: str) -> list[str]:
    """Returns the types of all tokens that a CommonMark parser with HTML finds."""
    parsed = MarkdownIt("commonmark", {"html": True}).parse(markdown)
    return [child.type for token in parsed for child in (token, *(token.children or ()))]


def test_repr_is_one_bounded_line_without_message_texts() -> None:
    chat = hostile_chat()
    execution = chat.send(HOSTILE)
    values = [chat, chat.prompt.render(), chat.conversation, execution, execution.response]
    for value in values:
        assert len(repr(value)) < 600
        assert "\n" not in repr(value)
        assert SECRET not in repr(value)


def test_repr_of_a_suspension_contains_its_ids_and_no_text_of_its_run() -> None:
    paying = Tool[Note, Note](
        name="pay", description="Pays.", handler=note, approval="arguments", effect="repeatable"
    )
    section = MarkdownSection(title="Task", template="Go.", tools=[paying])
    asked = PromptTemplate[None](ns="shop", key="support", sections=[section]).bind()
    loop = MainLoop(ScriptedAdapter([call(("pay", {"text": SECRET}))]))
    with pytest.raises(RunSuspended) as waiting:
        loop.execute(asked, session=Session(), message=SECRET)
    suspension = waiting.value.suspension
    ids = f"run_id={suspension.run_id!r}, ns='shop', key='support'"
    assert repr(suspension) == f"Suspension({ids})"


def test_repr_summarizes_prompt_response_execution_and_conversation() -> None:
    template = PromptTemplate[Note](
        ns="shop",
        key="support",
        sections=[
            MarkdownSection(title="Task", template="Go.", tools=[Tool(name="note", handler=note)])
        ],
    )
    adapter = ScriptedAdapter([say(Note("x"), usage=TokenUsage(7, 3))])
    execution = MainLoop(adapter).execute(template.bind(), session=Session(), message="Hi")
    response = "<PromptResponse support output=Note characters=12 turns=1 tokens=10>"
    assert repr(template.bind().render()) == (
        "<RenderedPrompt shop/support characters=15 tools=['note']>"
    )
    assert repr(execution.response) == response
    assert repr(execution) == f"<Execution restarts=0 tokens=10 response={response}>"
    assert repr(execution.conversation) == "<Conversation shop/support messages=3 tokens=10>"


def test_str_of_an_execution_and_its_response_is_the_text_of_the_answer() -> None:
    execution = MainLoop(ScriptedAdapter([say("It is open.")])).execute(
        PromptTemplate(ns="shop", key="support"), "Is it open?"
    )
    assert str(execution) == str(execution.response) == "It is open."


@pytest.mark.parametrize(
    "value",
    [
        Instructions("Go."),
        UserMessage("Hi"),
        AssistantMessage(text="Hello"),
        ToolMessage("call_1", "ok"),
        ToolsAdded(()),
        ToolsRemoved(()),
        Approve(),
        Deny("no"),
        ReplaceArguments({}),
    ],
)
def test_repr_of_a_message_or_a_decision_omits_its_kind(value: object) -> None:
    assert repr(value).startswith(f"{type(value).__name__}(")
    assert "kind=" not in repr(value)


def test_hostile_text_is_inert_in_a_notebook() -> None:
    chat = hostile_chat()
    assert chat._repr_markdown_() == "No messages yet."
    execution = chat.send(HOSTILE)
    conversation = chat.conversation
    assert conversation is not None
    values = (chat.prompt, chat.prompt.render(), conversation, chat, execution, execution.response)
    for value in values:
        shown = value._repr_markdown_()
        assert ACTIVE.isdisjoint(tokens(shown))
        assert "fence" in tokens(shown)
        shown.encode()


def test_hostile_preview_is_inert_in_a_notebook() -> None:
    @dataclass(frozen=True)
    class Published:
        text: str

    def write(params: Note, *, context: ToolContext) -> ToolResult[None]:
        name = HOSTILE.replace("/", "_").encode("utf-8", "replace").decode()
        files = context.resources.get(Filesystem)
        files.write_text(name, HOSTILE.encode("utf-8", "replace").decode() * 300)
        files.write_bytes(f"{name}2", b"\0")
        context.event_bus.publish(Published(HOSTILE[:-1]))
        return ToolResult(HOSTILE)

    section = MarkdownSection(
        title="Task",
        template="Go.",
        tools=[Tool(name="write", handler=write, approval="effects", effect="repeatable")],
    )
    asked = PromptTemplate(ns="n", key="k", sections=[section]).bind(
        resources={Filesystem: InMemoryFilesystem()}
    )
    shown: list[Preview] = []
    adapter = ScriptedAdapter([call(("write", {"text": HOSTILE[:-1]})), say("done")])

    def decide(preview: Preview) -> Deny:
        shown.append(preview)
        return Deny()

    adapter.evaluate(asked, session=Session(), approver=decide)
    [preview] = shown
    preview = replace(preview, reason=HOSTILE, tool=HOSTILE, inside=(HOSTILE,))
    markdown = preview._repr_markdown_()
    assert preview.omitted
    assert preview.events
    assert ACTIVE.isdisjoint(tokens(markdown))
    markdown.encode()


@given(st.text(alphabet=st.sampled_from("`~<>a &\n\r\\$#\u2028\ud800"), max_size=60) | st.text())
def test_text_cannot_escape_its_code_block(text: str) -> None:
    [block, *rest] = MarkdownIt("commonmark", {"html": True}).parse(f"{code_block(text)}\n\nend")
    assert block.type == "fence"
    sent = f"{text}\n".encode("utf-8", "replace").decode()
    lines = sent.replace("\r\n", "\n").replace("\r", "\n")
    assert block.content == lines.replace("\0", "\ufffd")
    assert [token.content for token in rest] == ["", "end", ""]


@given(st.text(alphabet=st.sampled_from("`<>a *\n\r\\$[]()!"), max_size=60) | st.text())
def test_text_cannot_escape_its_code_span(text: str) -> None:
    [_, line, _] = MarkdownIt("commonmark", {"html": True}).parse(f"name {code_span(text)} end")
    before, span, after = line.children or []
    assert (before.content, span.type, after.content) == ("name ", "code_inline", " end")
    shown = one_line(text).encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    assert span.content.strip() == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [("", ""), ("abc", "abc"), ("abcd", "abc… (1 more characters)")],
)
def test_text_is_truncated_only_beyond_its_limit_with_a_count(text: str, shown: str) -> None:
    assert cut(text, 3) == shown
    assert cut(text, 3, counted=False) == shown.partition(" (")[0]
    assert cut("x" * 2_000, 1).endswith("(1,999 more characters)")


def test_long_code_block_reports_the_omitted_characters() -> None:
    assert code_block("x" * 10_005).endswith("```\n\n… 5 more characters")


def test_prompt_that_cannot_be_rendered_shows_the_error() -> None:
    prompt = Prompt(ns="n", key="k", sections=[MarkdownSection[Note](title="A", template="$text")])
    assert "PromptRenderError" in prompt._repr_markdown_()
    assert "Note" in prompt._repr_markdown_()


NOTEBOOK = """
from weakincentives import Chat, MainLoop, MarkdownSection, PromptTemplate, Session
from weakincentives.testing import ScriptedAdapter, say

task = MarkdownSection(title="Task", template="Advise. <b>Kindly.</b>")
template = PromptTemplate(ns="shop", key="support", sections=[task])
chat = Chat(MainLoop(ScriptedAdapter([say("Hello.")])), template.bind(), session=Session())
"""


def test_notebook_displays_prompts_conversations_and_responses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    cells = [NOTEBOOK, "chat.prompt", "chat.send('Hi')", "chat.conversation", "chat.session"]
    code = [{"cell_type": "code", "source": cell, "metadata": {}, "outputs": []} for cell in cells]
    content = {"cells": code, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}
    read: Callable[..., Any] = nbformat.reads  # Any: it has no annotations
    notebook = read(json.dumps(content), as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    _, *shown = notebook.cells
    prompt, answer, conversation, session = [cell.outputs[0].data for cell in shown]
    assert "```text\n## 1. Task\n\nAdvise. <b>Kindly.</b>\n```" in prompt["text/markdown"]
    assert "```text\nHello.\n```" in answer["text/markdown"]
    assert "**User**\n\n```text\nHi\n```" in conversation["text/markdown"]
    assert session["text/plain"].startswith("<Session ")


# --- Hidden characters

CATEGORIES = {"Cc", "Cf", "Cs", "Zl", "Zp"}
IGNORED = "\u034f\u115f\u3164\ufe00\uffa0\U000e0001\U000e0041\U000e0100\U000e01ef\u2065"


def test_every_control_and_format_character_is_hidden() -> None:
    codes = [chr(code) for code in range(0x110000)]
    controls = {char for char in codes if unicodedata.category(char) in CATEGORIES} - {*"\t\n"}
    assert {*HIDDEN.findall("".join(codes))} >= {*controls, *IGNORED}
    assert not [char for char in controls if visible(char) == char]


def test_readable_characters_are_kept() -> None:
    text = "ünï 漢字 🙂 ❤️ £\t'\"\\ ` ½"
    assert (visible(text), escape_hidden(text)) == (text, text)
    assert escape_hidden("a\u3000b\u00a0c\n") == "a\u3000b\u00a0c\n"


@pytest.mark.parametrize("char", ["\x1b", "\u061c", "\u200e", "\ufeff", "\u202e", "\U000e0041"])
def test_terminal_report_and_approval_agree_on_hidden_characters(char: str) -> None:
    assert printable(f"a{char}b") == "a?b"
    escaped = readable(f"a{char}b")
    assert escaped == escape_hidden(f"a{char}b")
    assert json.loads(f'"{escaped}"') == f"a{char}b"
    assert char not in visible(f"a{char}b")
    assert visible(f"a{char}b").isprintable()


def test_names_of_secrets_are_the_same_in_settings_and_logs() -> None:
    for name in SECRET_NAMES:
        value = f"sesame-{name}"
        assert [*credentials_in({f"X_{name}": value})] == [value]
        assert mask_secrets(value, f"x_{name}") == "***"
