"""Chat Completions: converts neutral values to JSON and back, without a server."""

import json
from datetime import UTC, datetime
from time import process_time
from typing import Any

import pytest
from hypothesis import example, given

from support.agents import tool
from support.codecs import ANY_JSON, ANY_TEXT, Growth, Talk, broken, encoded, read_and_send_back
from support.sent_schemas import sent_spec
from weakincentives.adapters.chat_completions import ChatCodec
from weakincentives.adapters.codec import CodecOptions, decode_reply
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.messages import (
    AssistantMessage,
    Instructions,
    ToolCall,
    ToolMessage,
    ToolsAdded,
    UserMessage,
)
from weakincentives.evaluation.schemas import OutputSpec, tool_to_spec
from weakincentives.limits import TokenUsage

SPEC = tool_to_spec(tool())
LATE = tool_to_spec(tool(name="late"))
OUTPUT = OutputSpec("Answer", {"type": "object"})


# Any: JSON payloads.
def codec(**options: Any) -> ChatCodec:
    return ChatCodec(CodecOptions(model="m", **options), "openai")


def reply(message: object, finish: object = "stop", **rest: object) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], **rest}


def asks(*calls: object, finish: object = "tool_calls") -> dict[str, Any]:
    return reply({"role": "assistant", "content": None, "tool_calls": list(calls)}, finish)


CALL = {"id": "c1", "type": "function", "function": {"name": "probe", "arguments": "{}"}}


@pytest.mark.claim("TL-34")
def test_conversation_is_encoded_turn_by_turn() -> None:
    talk = Talk(codec(), "Go.", SPEC)
    first = encoded(talk.request())
    assert first == {
        "model": "m",
        "messages": [{"role": "user", "content": "Go."}],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "probe",
                    "description": "For tests.",
                    "parameters": sent_spec(SPEC).parameters,
                    "strict": True,
                },
            }
        ],
    }
    talk.hear(asks(CALL))
    talk.say(ToolMessage("c1", "ok"), ToolsAdded((LATE,)), UserMessage("More."))
    second = encoded(talk.request())
    assert second["messages"] == [
        *first["messages"],
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        {"role": "assistant", "content": "(Waiting for the next message.)"},
        {"role": "user", "content": "More."},
    ]
    assert [tool["function"]["name"] for tool in second["tools"]] == ["probe", "late"]
    assert second["tools"][:1] == first["tools"]


def test_request_without_tools_or_output_omits_both_fields() -> None:
    assert encoded(Talk(codec(), "Go.").request()).keys() == {"model", "messages"}


def test_extra_options_are_sent_and_override_other_fields() -> None:
    body = encoded(Talk(codec(extra={"temperature": 0, "model": "other"}), "Go.").request())
    assert (body["temperature"], body["model"]) == (0, "other")


def test_prompt_role_sets_the_role_of_the_prompt() -> None:
    talk = Talk(codec(prompt_role="system"), "Go.")
    talk.request()
    talk.hear(reply({"role": "assistant", "content": "?"}))
    talk.say(UserMessage("More."))
    assert [message["role"] for message in encoded(talk.request())["messages"]] == [
        "system",
        "assistant",
        "user",
    ]


def test_typed_output_is_requested_with_response_format() -> None:
    body = encoded(Talk(codec(), "Go.", output=OUTPUT).request())
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {
            "name": "Answer",
            "schema": {"type": "object", "properties": {}, "additionalProperties": True},
            "strict": False,
        },
    }


def test_prompted_output_puts_the_schema_into_the_prompt() -> None:
    body = encoded(Talk(codec(structured_output="prompted"), "Go.", output=OUTPUT).request())
    assert "response_format" not in body
    [message] = body["messages"]
    assert message["content"].startswith("Go.\n\n")
    assert message["content"].endswith('{"type": "object"}')


def test_answer_of_another_provider_is_encoded_with_new_call_ids() -> None:
    talk = Talk(codec(), "Go.")
    talk.say(
        AssistantMessage(text="t", tool_calls=(ToolCall("functions.probe:1", "probe", "{"),)),
        ToolMessage("functions.probe:1", "ok"),
        AssistantMessage(text="u"),
        UserMessage("v"),
    )
    function = {"name": "probe", "arguments": '{"INVALID_JSON": "{"}'}
    assert encoded(talk.request())["messages"][1:] == [
        {
            "role": "assistant",
            "content": "t",
            "tool_calls": [{"id": "c00000001", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c00000001", "content": "ok"},
        {"role": "assistant", "content": "u"},
        {"role": "user", "content": "v"},
    ]


def test_equal_call_ids_of_two_providers_do_not_collide() -> None:
    talk = Talk(codec(), "Go.")
    talk.say(AssistantMessage(tool_calls=(ToolCall("c1", "probe", "{}"),)), ToolMessage("c1", "a"))
    talk.request()
    talk.hear(asks(CALL))
    talk.say(ToolMessage("c1", "b"))
    answers = [item for item in encoded(talk.request())["messages"] if item["role"] == "tool"]
    assert [item["tool_call_id"] for item in answers] == ["c00000001", "c1"]


def test_changes_role_sets_the_role_of_changed_sections() -> None:
    talk = Talk(codec(instructions_role="developer", changes_role="user"), "")
    talk.transcript[:] = [Instructions("Go."), UserMessage("Hi"), Instructions("Stop.")]
    roles = [(item["role"], item["content"]) for item in encoded(talk.request())["messages"]]
    assert roles == [("developer", "Go."), ("user", "Hi\n\nStop.")]


# --- Reading


def test_text_calls_usage_and_finish_reason_are_decoded() -> None:
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "prompt_tokens_details": {"cached_tokens": 3},
    }
    answer = codec().decode({**asks(CALL), "usage": usage})
    assert answer.tool_calls == (ToolCall("c1", "probe", "{}"),)
    assert (answer.finish, answer.usage, answer.text) == ("tool_calls", TokenUsage(9, 4, 3), "")


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        [],
        {"prompt_tokens": None, "prompt_tokens_details": None},
        {
            "prompt_tokens": -9,
            "completion_tokens": -1.5,
            "prompt_tokens_details": {"cached_tokens": -3},
        },
    ],
)
def test_missing_or_invalid_usage_is_zero(usage: object) -> None:
    assert codec().decode(reply({"content": "x"}, usage=usage)).usage == TokenUsage()


@pytest.mark.parametrize(
    ("finish", "read"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("tool_calls", "tool_calls"),  # but there are none
        (None, "stop"),
        ("END_TURN", "stop"),
        ("model_length", "length"),
        ("SAFETY", "content_filter"),
    ],
)
def test_finish_reasons_of_many_servers_are_recognized(finish: object, read: str) -> None:
    assert codec().decode(reply({"content": "x"}, finish)).finish == read


@pytest.mark.parametrize(
    ("finish", "code"),
    [("new_reason", "provider_failed"), (["odd"], "malformed"), (7, "malformed")],
)
def test_unknown_finish_reason_raises(finish: object, code: str) -> None:
    with pytest.raises(PromptEvaluationError) as caught:
        codec().decode(reply({"content": "x"}, finish))
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("x", "x"),
        (None, ""),
        (
            [{"type": "text", "text": "a"}, {"type": "image"}, "odd", {"text": 3}, {"text": "b"}],
            "ab",
        ),
    ],
)
def test_content_can_be_text_null_or_parts(content: object, text: str) -> None:
    assert codec().decode(reply({"role": "assistant", "content": content})).text == text


@pytest.mark.parametrize("content", [{"odd": 1}, 5, True])
def test_content_of_another_type_is_malformed(content: object) -> None:
    with pytest.raises(PromptEvaluationError, match="malformed"):
        decode_reply(codec(), reply({"role": "assistant", "content": content}))


def test_refusal_has_its_own_finish_reason() -> None:
    answer = codec().decode(reply({"content": None, "refusal": "I will not."}))
    assert (answer.finish, answer.text) == ("refusal", "I will not.")


@pytest.mark.parametrize(
    ("item", "read"),
    [
        ({"function": {"name": "probe", "arguments": "{}"}}, ToolCall("c00001000", "probe", "{}")),
        (
            {"id": "", "function": {"name": "probe", "arguments": {"a": 1}}},
            ToolCall("c00001000", "probe", '{"a": 1}'),
        ),
        ({"id": None, "function": {"name": "probe"}}, ToolCall("c00001000", "probe", "{}")),
        ({"id": 7, "function": {"name": None, "arguments": ""}}, ToolCall("7", "", "")),
    ],
)
def test_incomplete_tool_calls_are_decoded_and_given_an_id(item: Any, read: ToolCall) -> None:
    talk = Talk(codec(), "Go.")
    talk.request()
    answer = talk.hear(asks(item))
    assert answer.tool_calls == (read,)
    talk.say(ToolMessage(read.call_id, "ok"))
    messages = encoded(talk.request())["messages"]
    assert messages[-2]["tool_calls"][0]["id"] == messages[-1]["tool_call_id"] == read.call_id


def test_unknown_fields_are_sent_back_unchanged() -> None:
    message = {
        "role": "assistant",
        "content": "x",
        "reasoning_content": "thought",
        "extra": {"signature": "abc", "n": [1, 2.5, None]},
        "tool_calls": [
            {
                **CALL,
                "function": {"name": "probe", "arguments": "{}", "x": 1},
                "extra_content": {"google": {"thought_signature": "s"}},
                "index": 0,
            }
        ],
    }
    talk = Talk(codec(), "Go.")
    talk.request()
    talk.hear(reply(message))
    talk.say(ToolMessage("c1", "ok"))
    assert encoded(talk.request())["messages"][1] == message


def test_empty_answer_is_sent_back_as_placeholder_text() -> None:
    talk = Talk(codec(), "Go.")
    talk.request()
    talk.hear(reply({"role": "assistant", "content": None, "tool_calls": []}))
    talk.say(UserMessage("Hi"))
    sent = encoded(talk.request())["messages"][1]
    assert sent == {"role": "assistant", "content": "(no text)"}


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        "text",
        {"choices": []},
        {"choices": None},
        {"choices": [None]},
        {"choices": [{"message": None}]},
        {"choices": {"0": {"message": {}}}},
        asks("odd"),
        asks({"id": "c1"}),
        asks({"function": "probe"}),
        reply({"tool_calls": "odd"}),
        reply({"tool_calls": 5}),
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


def test_error_with_status_200_raises() -> None:
    with pytest.raises(PromptEvaluationError, match="upstream is down") as caught:
        codec().decode({"error": {"message": "upstream is down", "code": 502}})
    assert (caught.value.phase, caught.value.code) == ("response", "server_error")


WHOLE: dict[str, Any] = {
    "choices": [
        {
            "message": {
                "role": "assistant",
                "content": [{"type": "text", "text": "x"}],
                "refusal": None,
                "tool_calls": [CALL],
            },
            "finish_reason": "stop",
        }
    ],
    "usage": {
        "prompt_tokens": 1,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 0},
    },
    "error": None,
}


@given(broken(WHOLE))
def test_arbitrary_reply_decodes_to_a_sendable_answer_or_is_malformed(value: Any) -> None:
    read_and_send_back(codec(), value)


@pytest.mark.claim("TL-34")
@example(name="\ud800", arguments={"\ud800": "\ud800"})
@given(name=ANY_TEXT, arguments=ANY_TEXT | ANY_JSON)
def test_arbitrary_tool_call_can_be_sent_back_with_its_result(name: str, arguments: Any) -> None:
    talk = Talk(codec(), "Go.")
    talk.request()
    answer = talk.hear(
        json.loads(
            json.dumps(asks({"id": "c1", "function": {"name": name, "arguments": arguments}}))
        )
    )
    talk.say(*[ToolMessage(call.call_id, "ok") for call in answer.tool_calls])
    assert len(encoded(talk.request())["messages"]) == 3


def test_reply_with_sdk_values_is_decoded_and_sent_back() -> None:
    talk = Talk(codec(), "Go.")
    talk.request()
    assert talk.hear(reply({"content": "x", "at": datetime(2025, 1, 1, tzinfo=UTC)})).text == "x"
    encoded(talk.request())


def test_usage_is_read_from_any_event_of_a_stream() -> None:
    event = {"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]}
    assert codec().join_events([{"usage": {"prompt_tokens": 3}, **event}, {"choices": []}]) == {
        "choices": [{"message": {"content": "x"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3},
        "model": None,
    }


def pieces_of(*pieces: dict[str, Any]) -> list[Any]:
    steps: list[Any] = [{"choices": [{"delta": {"tool_calls": [piece]}}]} for piece in pieces]
    return [*steps, {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}]


def begun(call_id: str, **more: Any) -> dict[str, Any]:
    return {**more, "id": call_id, "function": {"name": "probe", "arguments": "{"}}


def further(**more: Any) -> dict[str, Any]:
    return {**more, "function": {"arguments": "}"}}


def further_named(name: str, **more: Any) -> dict[str, Any]:
    return {**more, "id": "", "function": {"name": name, "arguments": "}"}}


@pytest.mark.parametrize(
    "pieces",
    [
        (begun("a", index=0), further(index=0), begun("b", index=1), further(index=1)),
        (begun("a", index=0), begun("b", index=1), further(index=0), further(index=1)),
        (begun("a", index=1), further(index=1), begun("b", index=2), further(index=2)),
        (begun("a", index=0), further(index=0), begun("b", index=0), further(index=0)),
        ({**CALL, "id": "a"}, {**CALL, "id": "b"}),
        (
            begun("a", index=0),
            {**further(index=0), "id": "a"},
            begun("b", index=1),
            further(index=1),
        ),
        (
            begun("a", index=0),
            further_named("probe", index=0),
            begun("b", index=1),
            further_named("", index=1),
        ),
    ],
    ids=["one by one", "woven", "from 1", "all 0", "whole", "the id in each piece", "empty ids"],
)
def test_streamed_calls_are_separated_for_every_index_scheme(
    pieces: tuple[dict[str, Any], ...],
) -> None:
    answer = decode_reply(codec(), pieces_of(*pieces), streamed=True)
    assert answer.tool_calls == (ToolCall("a", "probe", "{}"), ToolCall("b", "probe", "{}"))
    assert "index" not in str(answer.wire)


def test_call_id_that_changes_between_chunks_adds_no_calls() -> None:
    answer = decode_reply(
        codec(), pieces_of(begun("a", index=0), {**further(index=0), "id": "other"}), streamed=True
    )
    assert [call.arguments for call in answer.tool_calls] == ["{}"]


def test_streamed_calls_are_ordered_by_index() -> None:
    order = (begun("b", index=1), begun("a", index=0), further(index=0), further(index=1))
    answer = decode_reply(codec(), pieces_of(*order), streamed=True)
    assert answer.tool_calls == (ToolCall("a", "probe", "{}"), ToolCall("b", "probe", "{}"))
    sent_back = json.dumps(answer.wire)
    assert sent_back.index('"a"') < sent_back.index('"b"')


def test_repeated_index_with_another_id_starts_a_new_call() -> None:
    calls = [
        {**CALL, "id": name, "index": index}
        for name, index in (("a", 0), ("b", 1), ("c", 0), ("d", 1))
    ]
    answer = decode_reply(codec(), pieces_of(*calls), streamed=True)
    assert [call.call_id for call in answer.tool_calls] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("items", [["a", "b"], [{"url": "a"}, {"url": "b"}]])
def test_streamed_lists_without_indices_are_concatenated(items: list[Any]) -> None:
    events: list[Any] = [{"choices": [{"delta": {"annotations": [item]}}]} for item in items]
    answer = decode_reply(
        codec(), [*events, {"choices": [{"delta": {}, "finish_reason": "stop"}]}], streamed=True
    )
    assert answer.wire == ({"role": "assistant", "annotations": items},)


# --- More than one choice


def two_choices(*indexes: int | None, first: str = "Mine.") -> list[Any]:
    """A stream whose choice with index 0 says `first`, mixed with chunks of other choices."""
    texts = iter(first)
    events: list[Any] = []
    for index in indexes:
        choices: list[Any] = [
            {"index": 1, "delta": {"content": "x", "tool_calls": [{**CALL, "index": 0}]}}
        ]
        if index == 0 or index is None:
            choices.append({"index": index, "delta": {"content": next(texts, "")}})
        events.append({"choices": choices})
    ends: list[Any] = [{"index": index, "delta": {}, "finish_reason": "stop"} for index in (1, 0)]
    return [*events, {"choices": ends}]


def test_stream_is_decoded_from_the_choice_with_index_0() -> None:
    events = two_choices(1, 0, 0, 1, None, 0, 0, 1)
    answer = decode_reply(codec(), events, streamed=True)
    assert (answer.text, answer.tool_calls) == ("Mine.", ())
    assert "".join(codec().read_text(event) for event in events) == "Mine."


def test_reply_is_decoded_from_the_choice_with_index_0() -> None:
    other = {"index": 1, "message": {"content": "Other."}, "finish_reason": "stop"}
    mine = reply({"content": "Mine."})["choices"][0]
    assert codec().decode({"choices": [other, mine]}).text == "Mine."


@pytest.mark.parametrize("joined", [False, True])
def test_reply_without_the_choice_with_index_0_is_malformed(joined: bool) -> None:
    other = {
        "index": 1,
        "message": {"content": "x"},
        "delta": {"content": "x"},
        "finish_reason": "stop",
    }
    value: Any = {"choices": [other]}
    with pytest.raises(PromptEvaluationError, match="no choice of index 0"):
        decode_reply(codec(), [value] if joined else value, streamed=joined)


# --- What a turn costs


def seconds_to_join(pieces: int, text: str) -> float:
    more = [further(index=0) for _ in range(pieces)]
    for call in more:
        call["function"]["arguments"] = text
    events = pieces_of(begun("a", index=0), *more)
    started = process_time()
    [joined] = decode_reply(codec(), events, streamed=True).tool_calls
    took = process_time() - started
    assert len(joined.arguments) == 1 + pieces * len(text)
    return took


def test_joining_stream_chunks_takes_linear_time() -> None:
    """Joins 24 times as many chunks. Copying the text so far at each took 350 times as long."""
    few = min(seconds_to_join(2_500, "x" * 100) for _ in range(3))
    many = min(seconds_to_join(60_000, "x" * 100) for _ in range(2))
    assert many < 4 * 24 * few


def test_cost_of_encoding_a_turn_is_independent_of_history() -> None:
    growth = Growth(codec(), SPEC, lambda turn: asks({**CALL, "id": f"call_{turn:05}"}), "messages")
    assert growth.at(1_000) == growth.at(10)
    assert growth.at(10).objects == 2
