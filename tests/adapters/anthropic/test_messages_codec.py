"""Laws of the Messages codec, without a server: requests only grow, schemas fit the API's profile,
and any reply is read or malformed.
"""

import json
from copy import deepcopy
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.agents import Args, tool
from support.codecs import ANY_JSON, ANY_TEXT, Growth, Talk, broken, encoded, read_and_send_back
from support.messages_api import check_marks, check_messages, check_strict, without_marks
from support.typed_values import Kind, Tree, dataclass_kinds
from weakincentives import serde
from weakincentives.adapters.anthropic.codec import MessagesCodec, MessagesOptions, ToolChanges
from weakincentives.adapters.anthropic.strict_schemas import StrictLimits
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
from weakincentives.evaluation.schemas import ToolSpec, tool_to_spec

# Any: JSON payloads, which tests index into.

WAYS: list[ToolChanges] = ["inline", "deferred", "list"]
ways = pytest.mark.parametrize("way", WAYS)


def spec(name: str, params: Any = Args) -> ToolSpec:
    return tool_to_spec(tool(name=name, params=params))


LATE = [spec(f"late{number}") for number in range(3)]
READ = ToolSpec("read_section", "Reads.", {"type": "object", "properties": {}})


def codec(way: ToolChanges = "inline") -> MessagesCodec:
    options = MessagesOptions(
        model="claude-opus-5-5",
        max_tokens=9,
        tool_changes=way,
        strict_tools=True,
        cache="5m",
    )
    return MessagesCodec(options, "anthropic", LATE)


def reply(*blocks: Any, reason: str = "tool_use", **fields: Any) -> dict[str, Any]:
    return {"type": "message", "content": list(blocks), "stop_reason": reason, **fields}


def use(call_id: str, name: str = "probe", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


THINKING = {"type": "thinking", "thinking": "hm", "signature": "s"}


# --- Requests only grow


@st.composite
def conversations(draw: st.DrawFn) -> list[list[Message]]:
    """Draws the additions before each request: turns with calls, changed tools, user messages."""
    turns: list[list[Message]] = [[]]
    opened: set[int] = set()
    for turn in range(draw(st.integers(1, 5))):
        calls = tuple(
            ToolCall(f"toolu_{turn}_{at}", draw(st.sampled_from(["probe", "read_section"])), "{}")
            for at in range(draw(st.integers(0, 4)))
        )
        new: list[Message] = [
            AssistantMessage(text=draw(st.sampled_from(["", "x"])), tool_calls=calls)
        ]
        new += [
            ToolMessage(call.call_id, draw(st.sampled_from(["", "ok"])), draw(st.booleans()))
            for call in calls
        ]
        closed = {late for late in sorted(opened) if draw(st.booleans())}
        added = (
            {late for late in {0, 1, 2} - opened if draw(st.booleans())} if calls else set[int]()
        )
        if closed:
            new.append(ToolsRemoved(tuple([LATE[late].name for late in sorted(closed)])))
        if added:
            new.append(ToolsAdded(tuple([LATE[late] for late in sorted(added)])))
        opened = opened - closed | added
        if draw(st.booleans()):
            new.append(Instructions("Changed."))
        if draw(st.booleans()) or not calls:
            new.append(UserMessage("Go on."))
        turns.append(new)
    return turns


@settings(max_examples=200)
@given(st.sampled_from(WAYS), conversations(), st.booleans())
def test_requests_are_valid_and_only_grow_for_any_conversation(
    way: ToolChanges, turns: list[list[Message]], with_instructions: bool
) -> None:
    talk = Talk(codec(way), "Go.", spec("probe"), READ)
    if with_instructions:
        talk.transcript.insert(0, Instructions("Be kind."))
    before: dict[str, Any] = {}
    for new in turns:
        talk.say(*new)
        body = encoded(talk.request())
        check_messages(body["messages"], body["tools"], inline=True)
        check_marks(body)
        check_strict(body)
        plain = without_marks(body)
        if before:
            assert plain["messages"][: len(before["messages"])] == before["messages"]
            assert plain.get("system") == before.get("system")
            grown = way == "list" or (way == "deferred" and not _loads_by_reference(new))
            assert grown or plain["tools"] == before["tools"]
        before = plain
    # another process encodes the whole conversation in one step, with the same result
    other = Talk(codec(way), "Go.", spec("probe"), READ)
    other.transcript[:] = talk.transcript
    again = without_marks(encoded(other.request()))
    assert again["messages"] == before["messages"]
    assert again["tools"] == before["tools"]


def _loads_by_reference(new: list[Message]) -> bool:
    """Returns whether a call that reads a section has an answer that can contain references."""
    calls = [
        call
        for message in new
        if isinstance(message, AssistantMessage)
        for call in message.tool_calls
    ]
    reading = {call.call_id for call in calls if call.name == "read_section"}
    return any(
        isinstance(message, ToolMessage)
        and message.call_id in reading
        and message.success
        and message.content != ""
        for message in new
    )


@ways
def test_cost_of_encoding_a_turn_is_independent_of_history(way: ToolChanges) -> None:
    growth = Growth(
        codec(way),
        spec("probe"),
        lambda turn: reply(THINKING, use(f"toolu_{turn:05}")),
        "messages",
    )
    assert growth.at(1_000) == growth.at(10)
    assert growth.at(10).objects == 2


def test_empty_prompt_is_sent_as_placeholder_text() -> None:
    [message] = Talk(codec(), "").request()["messages"]
    assert [block["text"] for block in message["content"]] == ["(no text)"]


def test_tool_with_a_changed_description_is_declared_again() -> None:
    changed = ToolSpec("late0", "Other words.", LATE[0].parameters)
    for way in WAYS:
        talk = Talk(codec(way), "Go.", spec("probe"), READ)
        talk.request()
        call = ToolCall("toolu_1", "read_section", "{}")
        talk.say(AssistantMessage(tool_calls=(call,)), ToolMessage("toolu_1", "Text."))
        talk.say(ToolsAdded((changed,)))
        assert "Other words." in json.dumps(talk.request())


# --- Schemas


@given(dataclass_kinds(depth=2), st.data())
def test_strict_schema_fits_the_api_profile_and_accepts_every_value(
    kind: Kind, data: st.DataObject
) -> None:
    schema = serde.json_schema(kind.of)
    strict = StrictLimits().fit(deepcopy(schema), tool=True)
    if strict is None:
        return
    check_strict({"tools": [{"name": "t", "strict": True, "input_schema": strict}], "messages": []})
    jsonschema_rs.validate(strict, serde.dump(data.draw(kind.values)))


@given(st.lists(dataclass_kinds(depth=1), max_size=30))
@settings(max_examples=30)
def test_strict_limits_apply_across_all_schemas(kinds: list[Kind]) -> None:
    limits = StrictLimits()
    schemas = [limits.fit(serde.json_schema(kind.of), tool=True) for kind in kinds]
    tools = [
        {"name": f"t{number}", "strict": True, "input_schema": schema}
        for number, schema in enumerate(schemas)
        if schema is not None
    ]
    check_strict({"tools": tools, "messages": []})


@pytest.mark.parametrize(
    "schema",
    [
        serde.json_schema(Tree),
        {"type": "object", "properties": {"a": {}}},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "object", "properties": {"a": {"type": "array"}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"enum": [{"b": 1}]}}, "required": ["a"]},
        {"type": "object", "properties": {"a": {"$ref": "https://x"}}, "required": ["a"]},
        {"type": "string"},
    ],
)
def test_schema_that_cannot_be_strict_does_not_use_the_limits(schema: Any) -> None:
    limits = StrictLimits()
    assert limits.fit(schema, tool=True) is None
    assert limits == StrictLimits()


# --- Replies


WHOLE = reply(
    THINKING,
    {"type": "text", "text": "x"},
    use("toolu_1", a=1),
    usage={"input_tokens": 1, "output_tokens": 1, "output_tokens_details": {"thinking_tokens": 1}},
    model="m",
    stop_details=None,
)


@given(broken(WHOLE))
def test_arbitrary_reply_decodes_to_a_sendable_answer_or_is_malformed(value: Any) -> None:
    read_and_send_back(codec(), value)


@example(name="\ud800", arguments={"\ud800": "\ud800"})
@given(name=ANY_TEXT, arguments=ANY_TEXT | ANY_JSON)
def test_arbitrary_tool_call_can_be_sent_back_with_its_result(name: str, arguments: Any) -> None:
    talk = Talk(codec(), "Go.")
    talk.request()
    block = {**use("toolu_1"), "name": name, "input": arguments}
    answer = talk.hear(json.loads(json.dumps(reply(block))))
    talk.say(*[ToolMessage(call.call_id, "ok") for call in answer.tool_calls])
    _, said, answered = encoded(talk.request())["messages"]
    assert isinstance(said["content"][0]["input"], dict)
    assert answered["content"][0]["tool_use_id"] == "toolu_1"
