"""Servers may repeat call ids, within a turn and across turns: each call keeps its answer."""

from typing import Any

import pytest

from support.agents import Args, answers, prompt, tool
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.errors import BudgetExceededError
from weakincentives.evaluation.messages import (
    AssistantMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
    answered_calls,
    unwrap_arguments,
)
from weakincentives.limits import Budget
from weakincentives.prompt import ToolContext, ToolResult
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, say


def twice(first: int = 1, second: int = 2) -> AssistantMessage:
    calls = [ToolCall("probe:0", "probe", f'{{"a": {number}}}') for number in (first, second)]
    return AssistantMessage(tool_calls=tuple(calls), finish="tool_calls")


def echo(params: Args, *, context: ToolContext) -> ToolResult[object]:
    return ToolResult(f"got {params.a}")


def pairs(conversation: Conversation) -> list[tuple[str, str]]:
    return [
        (call.arguments, answer.content) for call, answer in answered_calls(conversation.messages)
    ]


def test_limit_between_two_calls_with_one_id_leaves_an_answer_for_each() -> None:
    adapter = ScriptedAdapter([twice()])
    with pytest.raises(BudgetExceededError) as caught:
        adapter.evaluate(
            prompt(tool(echo)), session=Session(), budget=Budget(max_tool_calls=1), message="Go."
        )
    conversation = caught.value.conversation
    assert conversation is not None
    assert [(answer.call_id, answer.success) for answer in answers(conversation.messages)] == [
        ("probe:0", True),
        ("probe:0", False),
    ]
    assert Conversation.from_json(conversation.to_json()) == conversation


def test_restated_conversation_keeps_the_answers_of_calls_with_one_id() -> None:
    adapter, asked = ScriptedAdapter([twice(), twice(3, 4), say("done")]), prompt(tool(echo))
    response = adapter.evaluate(asked, session=Session(), message="Go.")
    assert response.conversation is not None
    expected = [(f'{{"a": {number}}}', f"got {number}") for number in (1, 2, 3, 4)]
    assert pairs(response.conversation) == expected
    assert pairs(response.conversation.restated(asked)) == expected


def test_unknown_calls_are_those_whose_own_answer_is_unknown() -> None:
    messages = (
        UserMessage("Go."),
        twice(),
        ToolMessage("probe:0", "got 1"),
        ToolMessage("probe:0", "?", success=False, unknown=True),
    )
    [call] = Conversation(ns="n", key="k", messages=messages).unknown_calls
    assert call.arguments == '{"a": 2}'


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ("", "{}"),
        (" \n", "{}"),
        ("null", "{}"),
        (r'"{\"a\": 1}"', '{"a": 1}'),
        (r'"\"{\\\"a\\\": 1}\""', '{"a": 1}'),
        ('""', "{}"),
        ('"null"', "{}"),
        ('"words"', '"words"'),
        ('"half', '"half'),
        ("[1]", "[1]"),
        ("{", "{"),
    ],
)
def test_arguments_encoded_twice_as_json_are_unwrapped(text: str, plain: str) -> None:
    assert unwrap_arguments(text) == plain


@pytest.mark.parametrize("text", ["null", r'"{\"a\": 7}"'])
def test_tool_gets_the_unwrapped_arguments(text: str) -> None:
    seen: list[Any] = []

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        seen.append(params.a)
        return ToolResult("ok")

    call = AssistantMessage(tool_calls=(ToolCall("c", "probe", text),), finish="tool_calls")
    adapter = ScriptedAdapter([call, say("done")])
    adapter.evaluate(prompt(tool(handler)), session=Session())
    assert seen == [3 if text == "null" else 7]
