"""Messages rendered as Markdown name their author, whatever the kind of message."""

import pytest

from support.agents import Args, ok, tool
from weakincentives.evaluation.markdown import messages_markdown
from weakincentives.evaluation.messages import (
    AssistantMessage,
    Instructions,
    Message,
    ToolCall,
    ToolMessage,
    ToolsAdded,
    ToolsRemoved,
    UserMessage,
)
from weakincentives.evaluation.schemas import tool_to_spec

LOOK, PAY = [ToolCall(name, name, '{"a": 1}') for name in ("look", "pay")]


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (Instructions("Help."), "**Instructions**\n\n```text\nHelp.\n```"),
        (UserMessage("Hi."), "**User**\n\n```text\nHi.\n```"),
        (UserMessage("Wrong.", repair=True), "**Rejected**\n\n```text\nWrong.\n```"),
        (ToolMessage("1", "seen"), "**Tool**\n\n```text\nseen\n```"),
        (ToolMessage("1", "no", success=False), "**Tool, failed**\n\n```text\nno\n```"),
        (AssistantMessage(text="So."), "**Model**\n\n```text\nSo.\n```"),
        (AssistantMessage(), "**Model**\n\n```text\n\n```"),
        (
            AssistantMessage(text="So.", tool_calls=(LOOK, PAY)),
            (
                "**Model**\n\n```text\nSo.\n```\n\n"
                '**Model** calls ` look `\n\n```text\n{"a": 1}\n```\n\n'
                '**Model** calls ` pay `\n\n```text\n{"a": 1}\n```'
            ),
        ),
        (
            AssistantMessage(tool_calls=(LOOK,)),
            '**Model** calls ` look `\n\n```text\n{"a": 1}\n```',
        ),
        (
            ToolsAdded(tuple([tool_to_spec(tool(ok, name=name, params=Args)) for name in "ab"])),
            "**New tools**: ` a `, ` b `",
        ),
        (ToolsRemoved(("a", "b")), "**Tools withdrawn**: ` a `, ` b `"),
    ],
)
def test_each_message_kind_renders_as_markdown(message: Message, shown: str) -> None:
    assert messages_markdown([message]) == shown


@pytest.mark.parametrize("count", [0, 1, 49, 50, 51, 60])
def test_markdown_contains_the_instructions_and_the_last_fifty_messages(count: int) -> None:
    later = [UserMessage(f"Number {n}.") for n in range(count)]
    messages: list[Message] = [Instructions("Help."), *later]
    first, *rest = messages_markdown(messages).split("\n\n**User**\n\n")
    assert first == "**Instructions**\n\n```text\nHelp.\n```" + (
        f"\n\n… {count - 50} more messages" if count > 50 else ""
    )
    assert rest == [f"```text\nNumber {n}.\n```" for n in range(max(count - 50, 0), count)]
