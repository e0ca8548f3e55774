"""OpenAI's Responses: converts neutral values to items and back, without a server."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given

from support.agents import tool
from support.codecs import ANY_JSON, ANY_TEXT, Growth, Talk, broken, encoded, read_and_send_back
from support.sent_schemas import sent_spec
from weakincentives.adapters.codec import CodecOptions, decode_reply
from weakincentives.adapters.openai.responses import ResponsesCodec
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.messages import (
    AssistantMessage,
    ToolCall,
    ToolMessage,
    ToolsAdded,
    ToolsRemoved,
    UserMessage,
)
from weakincentives.evaluation.schemas import OutputSpec, tool_to_spec
from weakincentives.limits import TokenUsage

SPEC = tool_to_spec(tool())
LATE = tool_to_spec(tool(name="late"))
OUTPUT = OutputSpec("Answer", {"type": "object"})
WIRE_TOOL = {
    "type": "function",
    "name": "probe",
    "description": "For tests.",
    "parameters": sent_spec(SPEC).parameters,
    "strict": True,
}
CALL = {
    "type": "function_call",
    "id": "fc1",
    "call_id": "c1",
    "name": "probe",
    "arguments": "{}",
    "status": "completed",
}
REASONING = {
    "type": "reasoning",
    "id": "rs1",
    "summary": [],
    "encrypted_content": "xyz",
    "new_field": [1, None],
}


# Any: JSON payloads.
def codec(**options: Any) -> ResponsesCodec:
    return ResponsesCodec(CodecOptions(model="m", **options), "openai")


def text_item(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {
        "type": "message",
        "id": "m1",
        "role": "assistant",
        "phase": "final_answer",
        "content": [part],
    }


def reply(*items: object, status: str = "completed", **rest: object) -> dict[str, Any]:
    return {
        "id": "r1",
        "status": status,
        "error": None,
        "incomplete_details": None,
        "output": list(items),
        **rest,
    }


def test_conversation_is_encoded_turn_by_turn_with_items_unchanged() -> None:
    talk = Talk(codec(), "Go.", SPEC)
    first = encoded(talk.request())
    assert first == {
        "model": "m",
        "input": [{"role": "user", "content": "Go."}],
        "tools": [WIRE_TOOL],
    }
    unknown = {"type": "brand_new_item", "payload": {"a": [1]}}
    talk.hear(reply(REASONING, unknown, text_item("wait"), CALL))
    talk.say(ToolMessage("c1", "ok"), UserMessage("More."))
    second = encoded(talk.request())
    assert second["input"] == [
        *first["input"],
        REASONING,
        unknown,
        text_item("wait"),
        CALL,
        {"type": "function_call_output", "call_id": "c1", "output": "ok"},
        {"role": "user", "content": "More."},
    ]


def test_later_tools_are_added_to_the_tools_list_by_default() -> None:
    talk = Talk(codec(), "Go.", SPEC)
    first = encoded(talk.request())
    talk.say(ToolsAdded((LATE,)))
    second = encoded(talk.request())
    assert second["input"] == first["input"]
    assert [tool["name"] for tool in second["tools"]] == ["probe", "late"]


def test_tools_in_conversation_adds_later_tools_as_items() -> None:
    talk = Talk(codec(tools_in_conversation=True), "Go.", SPEC)
    talk.request()
    talk.say(ToolsAdded((LATE,)), UserMessage("More."))
    body = encoded(talk.request())
    assert body["tools"] == [WIRE_TOOL]
    assert body["input"][1:] == [
        {"type": "additional_tools", "role": "developer", "tools": [{**WIRE_TOOL, "name": "late"}]},
        {"role": "user", "content": "More."},
    ]


def test_removed_tools_leave_their_item_and_an_empty_item_is_dropped() -> None:
    talk = Talk(codec(tools_in_conversation=True), "Go.", SPEC)
    other = replace(LATE, name="other")
    talk.say(ToolsAdded((LATE, other)), ToolsAdded((replace(LATE, name="single"),)))
    talk.request()
    talk.say(ToolsRemoved(("late", "single", "probe")))
    body = encoded(talk.request())
    assert "tools" not in body
    assert body["input"][1:] == [
        {"type": "additional_tools", "role": "developer", "tools": [{**WIRE_TOOL, "name": "other"}]}
    ]


def test_typed_output_is_requested_natively_or_in_the_prompt() -> None:
    native = encoded(Talk(codec(), "Go.", output=OUTPUT).request())
    assert native["text"] == {
        "format": {
            "type": "json_schema",
            "name": "Answer",
            "schema": {"type": "object", "properties": {}, "additionalProperties": True},
            "strict": False,
        }
    }
    prompted = encoded(Talk(codec(structured_output="prompted"), "Go.", output=OUTPUT).request())
    assert "text" not in prompted
    assert '{"type": "object"}' in prompted["input"][0]["content"]


def test_prompt_role_and_extra_options_are_sent() -> None:
    body = encoded(Talk(codec(prompt_role="developer", extra={"store": False}), "Go.").request())
    assert body["input"][0]["role"] == "developer"
    assert body["store"] is False
    assert "tools" not in body


def test_answer_of_another_provider_is_encoded_as_plain_items() -> None:
    talk = Talk(codec(), "Go.")
    talk.say(
        AssistantMessage(text="t", tool_calls=(ToolCall("c1", "probe", "{"),)),
        ToolMessage("c1", "ok"),
        AssistantMessage(),
        UserMessage("v"),
    )
    arguments = '{"INVALID_JSON": "{"}'
    called = {"call_id": "c00000001", "name": "probe", "arguments": arguments}
    assert encoded(talk.request())["input"][1:] == [
        {"role": "assistant", "content": "t"},
        {"type": "function_call", **called},
        {"type": "function_call_output", "call_id": "c00000001", "output": "ok"},
        {"role": "assistant", "content": "(no text)"},
        {"role": "user", "content": "v"},
    ]


# --- Reading


def test_text_calls_and_usage_are_decoded() -> None:
    usage = {"input_tokens": 9, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 3}}
    answer = codec().decode(reply(REASONING, text_item("a"), text_item("b"), CALL, usage=usage))
    assert (answer.text, answer.finish, answer.usage) == ("ab", "tool_calls", TokenUsage(9, 4, 3))
    assert answer.tool_calls == (ToolCall("c1", "probe", "{}"),)
    assert codec().decode(reply(text_item("a"))).finish == "stop"


@pytest.mark.parametrize(
    ("details", "finish"),
    [
        ({"reason": "max_output_tokens"}, "length"),
        ({"reason": "content_filter"}, "content_filter"),
        ({"reason": "max_messages"}, "length"),
        ({}, "length"),
        (None, "length"),
    ],
)
def test_incomplete_response_has_the_finish_reason_of_its_details(
    details: object, finish: str
) -> None:
    answer = codec().decode(reply(text_item("a"), status="incomplete", incomplete_details=details))
    assert answer.finish == finish


def test_refusal_has_its_own_finish_reason() -> None:
    refusal = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "refusal", "refusal": "I will not."}],
    }
    answer = codec().decode(reply(refusal))
    assert (answer.finish, answer.text) == ("refusal", "I will not.")


@pytest.mark.parametrize("status", ["failed", "cancelled", "queued", "in_progress"])
def test_uncompleted_response_raises_provider_failed(status: str) -> None:
    with pytest.raises(PromptEvaluationError, match=status) as caught:
        codec().decode(reply(status=status))
    assert (caught.value.phase, caught.value.code, caught.value.provider) == (
        "response",
        "provider_failed",
        "openai",
    )


def test_failed_response_raises_with_the_providers_message() -> None:
    error = {"code": "server_error", "message": "The model broke"}
    with pytest.raises(PromptEvaluationError, match="The model broke") as caught:
        codec().decode(reply(status="failed", error=error))
    assert (caught.value.phase, caught.value.code) == ("response", "server_error")


@pytest.mark.parametrize(
    ("item", "read"),
    [
        (
            {"type": "function_call", "name": "probe", "arguments": {"a": 1}},
            ToolCall("c00001000", "probe", '{"a": 1}'),
        ),
        ({"type": "function_call", "call_id": "", "name": None}, ToolCall("c00001000", "", "{}")),
    ],
)
def test_incomplete_tool_calls_are_decoded_and_given_an_id(item: Any, read: ToolCall) -> None:
    talk = Talk(codec(), "Go.")
    talk.request()
    assert talk.hear(reply(item)).tool_calls == (read,)
    talk.say(ToolMessage(read.call_id, "ok"))
    call, output = encoded(talk.request())["input"][-2:]
    assert call["call_id"] == output["call_id"] == read.call_id


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        "text",
        {"output": None},
        {"output": {}},
        {"choices": []},
        reply(None),
        reply("text"),
        reply({}),
    ],
    ids=repr,
)
def test_reply_of_the_wrong_shape_is_malformed(value: object) -> None:
    with pytest.raises(PromptEvaluationError) as caught:
        decode_reply(codec(), value)
    assert (caught.value.phase, caught.value.code, caught.value.provider) == (
        "response",
        "malformed",
        "openai",
    )


WHOLE: dict[str, Any] = reply(
    REASONING,
    text_item("x"),
    {"type": "message", "content": [{"type": "refusal", "refusal": None}]},
    CALL,
    usage={"input_tokens": 1, "output_tokens": 1, "input_tokens_details": {"cached_tokens": 0}},
)


@given(broken(WHOLE))
def test_arbitrary_reply_decodes_to_a_sendable_answer_or_is_malformed(value: Any) -> None:
    read_and_send_back(codec(), value)


@example(name="\ud800", arguments={"\ud800": "\ud800"})
@given(name=ANY_TEXT, arguments=ANY_TEXT | ANY_JSON)
def test_arbitrary_tool_call_can_be_sent_back_with_its_result(name: str, arguments: Any) -> None:
    talk = Talk(codec(), "Go.")
    talk.request()
    answer = talk.hear(
        json.loads(json.dumps(reply({**CALL, "name": name, "arguments": arguments})))
    )
    talk.say(*[ToolMessage(call.call_id, "ok") for call in answer.tool_calls])
    assert len(encoded(talk.request())["input"]) == 3


# --- What a turn costs


def test_cost_of_encoding_a_turn_is_independent_of_history() -> None:
    growth = Growth(
        codec(),
        SPEC,
        lambda turn: reply(
            {**REASONING, "id": f"rs_{turn:05}"},
            {**CALL, "id": f"fc_{turn:05}", "call_id": f"call_{turn:05}"},
        ),
        "input",
    )
    assert growth.at(1_000) == growth.at(10)
    assert growth.at(10).objects == 3


def reasoning(number: int) -> dict[str, Any]:
    return {"type": "reasoning", "id": f"rs_{number}", "summary": []}


def sent_back(*items: object) -> list[Any]:
    """Returns the items of an answer as they appear in the next request."""
    talk = Talk(codec(), "Go.", SPEC)
    encoded(talk.request())
    talk.hear(reply(*items))
    talk.say(UserMessage("More."))
    sent: list[Any] = encoded(talk.request())["input"][1:-1]
    return sent


def test_reasoning_of_a_blank_message_is_dropped_with_it() -> None:
    call = {"type": "function_call", "id": "fc", "call_id": "c1", "name": "t", "arguments": "{}"}
    items = sent_back(reasoning(1), text_item("  "), reasoning(2), call)
    assert [item["id"] for item in items if item["type"] == "reasoning"] == ["rs_2"]


def test_unreadable_content_parts_are_not_sent_back() -> None:
    good = {"type": "output_text", "text": "Hi", "annotations": []}
    odd = {**text_item(""), "content": [{"type": "output_text", "text": None}, good]}
    plain = {**text_item(""), "id": "m2", "content": [{"type": "text", "text": "there"}]}
    assert codec().decode(reply(odd, plain)).text == "Hithere"
    first, second = sent_back(odd, plain)
    assert first["content"] == [good]
    assert second["content"] == [{"type": "output_text", "text": "there"}]


@pytest.mark.parametrize("kind", ["custom_tool_call", "mcp_approval_request", "computer_call"])
def test_item_that_requires_a_client_raises_and_is_named(kind: str) -> None:
    with pytest.raises(PromptEvaluationError, match=kind) as caught:
        codec().decode(reply({"type": kind, "id": "x", "call_id": "c"}))
    assert caught.value.remedy == "leave the tool that it belongs to out of options"
