"""Conversations over the real CLI: a user message, and the messages of earlier runs."""

from dataclasses import replace
from typing import Any

import pytest

from support.agents import Args, prompt, tool
from support.claude_cli import connect
from support.scripted_server import Call, Request, Say, ScriptedServer
from weakincentives.adapters.core import PromptEvaluationError, PromptResponse
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.messages import (
    AssistantMessage,
    Instructions,
    Message,
    ToolMessage,
)
from weakincentives.limits import Budget
from weakincentives.prompt import Prompt, ToolContext, ToolResult
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say

# Any: JSON of requests, prompts with any output type
type Blocks = list[Any]


def chat(
    *steps: Any,
    asked: Prompt[Any] | None = None,
    conversation: Conversation | None = None,
    message: str | None = "So?",
    budget: Budget | None = None,
    **changes: Any,
) -> tuple[PromptResponse[Any], Request]:
    """Evaluates with the CLI; returns the response and the first request."""
    with ScriptedServer(*steps) as server:
        response = connect(server, **changes).evaluate(
            asked or prompt(tool()),
            session=Session(),
            message=message,
            conversation=conversation,
            budget=budget,
        )
        return response, server.requests[0]


def scripted(
    *replies: Any,
    asked: Prompt[Any] | None = None,
    conversation: Conversation | None = None,
    message: str = "Hi",
    budget: Budget | None = None,
) -> Conversation:
    response = ScriptedAdapter([*replies]).evaluate(
        asked or prompt(tool()),
        session=Session(),
        message=message,
        conversation=conversation,
        budget=budget,
    )
    assert response.conversation is not None
    return response.conversation


def system(request: Request) -> str:
    return str(request.json["system"][-1]["text"])


def said(request: Request) -> list[tuple[str, Blocks]]:
    """Returns the messages without the CLI's reminders and without cache marks."""
    return [
        (message["role"], list(map(_plain, _blocks(message))))
        for message in request.json["messages"]
    ]


def content(message: Message) -> str:
    assert isinstance(message, ToolMessage | Instructions)
    return message.content


def _blocks(message: Any) -> Blocks:
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [block for block in blocks if not _is_of_the_cli(block)]


def _is_of_the_cli(block: Any) -> bool:
    text = block.get("text", "")
    return text.startswith("<system-reminder>\n") and "RULES" not in text and "Go on" not in text


def _plain(block: Any) -> Any:
    match block:
        case {"type": "text", "text": text}:
            return text
        case {"type": "tool_use", "id": call_id, "name": name, "input": arguments}:
            return call_id, name, arguments
        case {"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": bad}:
            return call_id, content.partition("\n\n<system-reminder>")[0], not bad
        case _:
            raise AssertionError(block)


def test_prompt_is_sent_as_system_prompt_and_message_as_user_turn() -> None:
    response, request = chat(Say("Hello."), message="/help me")
    assert system(request).endswith(f"\n\n{prompt(tool()).render().text}")
    assert said(request) == [("user", ["/help me"])]
    assert [message.kind for message in response.transcript] == [
        *("instructions", "user", "assistant")
    ]


def test_instructions_may_exceed_the_process_argument_limit() -> None:
    long = prompt(text="x" * 200_000)
    _, request = chat(Say("Hello."), asked=long)
    assert "x" * 200_000 in system(request)


def test_conversation_continues_with_all_texts_calls_and_results() -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult(f"got {params.a}", success=params.a > 0)

    asked = prompt(tool(handler))
    calls = replace(call(("probe", {"a": 1}), ("probe", {"a": -1}), ("probe", "{")), text="See:")
    odd_ids = [
        replace(each, call_id=f"functions.probe:{each.arguments}") for each in calls.tool_calls
    ]
    earlier = scripted(replace(calls, tool_calls=tuple(odd_ids)), say("Noted."), asked=asked)
    response, request = chat(Say("one"), asked=asked, conversation=earlier)
    assert said(request)[:3] == [
        ("user", ["Hi"]),
        (
            "assistant",
            [
                "See:",
                ("c00000001", "mcp__wink__probe", {"a": 1}),
                ("c00000002", "mcp__wink__probe", {"a": -1}),
                ("c00000003", "mcp__wink__probe", {"INVALID_JSON": "{"}),
            ],
        ),
        (
            "user",
            [
                ("c00000001", "got 1", True),
                ("c00000002", "got -1", False),
                ("c00000003", content(earlier.messages[5]), False),
            ],
        ),
    ]
    assert said(request)[-1] == ("user", ["So?"])
    assert response.transcript[: len(earlier.messages)] == earlier.messages


def test_prompt_changes_are_sent_as_reminders_with_the_current_tools() -> None:
    earlier = scripted(say("one"), asked=prompt(tool(name="old"), text="Go."))
    asked = prompt(tool(name="new"), text="RULES: stop.")
    response, request = chat(Say("two"), asked=asked, conversation=earlier)
    assert system(request).endswith("\n\n## 1. Task\n\nGo.")
    reminder = content(response.transcript[3])
    assert said(request)[-1] == (
        "user",
        [f"<system-reminder>\n{reminder}\n</system-reminder>", "So?"],
    )
    assert "RULES: stop." in reminder
    assert [each["name"] for each in request.json["tools"]] == ["mcp__wink__new"]


def test_conversation_of_the_cli_continues_here_and_in_another_adapter() -> None:
    bash = Call("Bash", {"command": "echo hi"})
    steps = Say(calls=(bash,)), Say(calls=(Call("mcp__wink__probe", {"a": 1}),)), Say("one")
    first, _ = chat(*steps, message="Hi", builtin_tools=["Bash"])
    assert first.conversation is not None
    text = first.conversation.to_json()
    second, request = chat(
        Say("two"), conversation=Conversation.from_json(text), builtin_tools=["Bash"]
    )
    assert said(request)[1:4:2] == [
        ("assistant", [("c00000001", "Bash", {"command": "echo hi"})]),
        ("assistant", [("c00000002", "mcp__wink__probe", {"a": 1})]),
    ]
    assert second.conversation is not None
    third = scripted(say("three"), conversation=second.conversation, message="And?")
    texts = [each.text for each in third.messages if isinstance(each, AssistantMessage)]
    assert texts == ["", "", "one", "two", "three"]


def test_conversation_stopped_after_a_call_continues_without_a_message() -> None:
    with pytest.raises(PromptEvaluationError) as caught:
        scripted(call(("probe", {"a": 1})), budget=Budget(max_calls=1))
    response, request = chat(Say("done"), conversation=caught.value.conversation, message=None)
    assert response.text == "done"
    assert said(request)[2] == ("user", [("c00000001", "ok", True)])
    assert "Go on." in said(request)[-1][1][0]


def test_system_prompt_option_is_kept_and_the_prompt_sent_as_a_reminder() -> None:
    own = {"system_prompt": "Mine."}
    first, request = chat(Say("one"), asked=prompt(text="RULES"), options=own)
    assert system(request) == "Mine."
    assert said(request) == [
        ("user", ["<system-reminder>\n## 1. Task\n\nRULES\n</system-reminder>", "So?"])
    ]
    _, request = chat(
        Say("two"), asked=prompt(text="RULES"), options=own, conversation=first.conversation
    )
    assert "RULES" in said(request)[0][1][0]
    assert said(request)[1:] == [("assistant", ["one"]), ("user", ["So?"])]
