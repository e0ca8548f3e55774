"""Reasoning over the real SDKs: how it is shown, and where it is sent back.

The ids in the tests' names are those of the acceptance cases. Each test that takes `run` holds
sync, async, streamed and async-streamed.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.agents import prompt, tool
from support.reasoning_streams import (
    MODEL,
    answer,
    chat_reply,
    events_of,
    message_item,
    messages_reply,
    responses_events,
    responses_reply,
    summary,
)
from support.scripted_server import ScriptedServer
from weakincentives.adapters import profiles
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.chat_completions import ChatCodec
from weakincentives.adapters.codec import Codec, CodecOptions, decode_reply
from weakincentives.adapters.fallback import FallbackAdapter
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.adapters.openai.responses import ResponsesCodec
from weakincentives.adapters.server_profile import ServerProfile
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.evaluation.response import (
    AnswerRejected,
    Completed,
    PromptResponse,
    ReasoningDelta,
    TextDelta,
)
from weakincentives.runtime.events import ProviderCalled
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, say

type Json = dict[str, Any]  # Any: JSON that tests index into
type Run = Callable[..., tuple[PromptResponse[Any], list[Any]]]


def evaluate(adapter: Any, **options: Any) -> tuple[PromptResponse[Any], list[Any]]:
    return adapter.evaluate(prompt(tool()), **options), []


def evaluate_async(adapter: Any, **options: Any) -> tuple[PromptResponse[Any], list[Any]]:
    return asyncio.run(adapter.evaluate_async(prompt(tool()), **options)), []


def stream(adapter: Any, **options: Any) -> tuple[PromptResponse[Any], list[Any]]:
    *events, last = adapter.stream(prompt(tool()), **options)
    assert isinstance(last, Completed)
    return last.response, events


def stream_async(adapter: Any, **options: Any) -> tuple[PromptResponse[Any], list[Any]]:
    async def main() -> list[Any]:
        return [event async for event in adapter.stream_async(prompt(tool()), **options)]

    *events, last = asyncio.run(main())
    return last.response, events


ways = pytest.mark.parametrize("run", [evaluate, evaluate_async, stream, stream_async])
streams = pytest.mark.parametrize("run", [stream, stream_async])


def openai(server: ScriptedServer, api: Any = "chat", **options: Any) -> OpenAIAdapter:
    url = server.openai_url
    options = {"profile": None, **options}
    return OpenAIAdapter("m", api=api, base_url=url, api_key="k", max_retries=0, **options)


def anthropic(server: ScriptedServer, model: str = MODEL) -> AnthropicAdapter:
    return AnthropicAdapter(model, base_url=server.url, api_key="k", max_retries=0)


def adapter_for(reply: Json, server: ScriptedServer, **options: Any) -> Any:
    if "content" in reply:
        return anthropic(server)
    return openai(server, "responses" if "output" in reply else "chat", **options)


def thoughts(events: list[Any]) -> list[str]:
    return [event.text for event in events if isinstance(event, ReasoningDelta)]


def stored(response: PromptResponse[Any]) -> str:
    assert response.conversation is not None
    return response.conversation.to_json()


def texts(events: list[Any]) -> str:
    return "".join([event.text for event in events if isinstance(event, TextDelta)])


def check(run: Run, reply: Json, reasoning: str, text: str, **options: Any) -> list[str]:
    """Checks the reasoning and the text of an answer; returns its deltas of reasoning."""
    with ScriptedServer(answer(reply)) as server:
        response, events = run(adapter_for(reply, server, **options))
    assert (response.reasoning, response.text) == (reasoning, text)
    deltas = thoughts(events)
    if events:
        assert "".join(deltas) == reasoning
        assert all(deltas)
        assert texts(events) == text
        kinds = [type(event) for event in events]
        assert sorted(kinds, key=lambda kind: kind is TextDelta) == kinds
    return deltas


# --- Shown


@ways
@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_either_field_of_a_compatible_server_is_reasoning(field: str, run: Run) -> None:
    message: Json = {"content": "Yes.", field: "Is it so? It is."}
    reply = chat_reply(**message)
    check(run, reply, "Is it so? It is.", "Yes.")


@ways
def test_equal_texts_in_both_fields_are_shown_once(run: Run) -> None:
    both: Json = {"content": "Yes.", "reasoning_content": "I think.", "reasoning": "I think."}
    check(run, chat_reply(**both), "I think.", "Yes.")


@ways
@pytest.mark.parametrize("field", [None, "reasoning_content", "reasoning"])
def test_of_different_texts_the_profiles_field_is_shown(field: Any, run: Run) -> None:
    both: Json = {"reasoning_content": "reasoning_content!", "reasoning": "reasoning!"}
    both["content"] = "Yes."
    profile = ServerProfile(api="chat", reasoning_field=field)
    expected = f"{field or 'reasoning_content'}!"
    check(run, chat_reply(**both), expected, "Yes.", profile=profile)


@ways
def test_parts_of_a_summary_are_separated_by_a_blank_line(run: Run) -> None:
    reply = responses_reply(summary("**A**", "**B**"), summary("C", number=2), message_item("Yes."))
    check(run, reply, "**A**\n\n**B**\n\nC", "Yes.")


@ways
def test_thinking_blocks_are_separated_by_a_blank_line(run: Run) -> None:
    blocks = [{"type": "thinking", "thinking": text, "signature": text} for text in "AB"]
    check(run, messages_reply(*blocks, {"type": "text", "text": "Yes."}), "A\n\nB", "Yes.")


@ways
def test_details_with_different_indexes_are_separated_by_a_blank_line(run: Run) -> None:
    details = [
        {"type": "reasoning.summary", "summary": text, "index": index, "format": "o"}
        for index, text in enumerate(["**A**", "**B**"])
    ]
    check(run, chat_reply(content="Yes.", reasoning_details=details), "**A**\n\n**B**", "Yes.")


PARTS = st.lists(st.text(st.sampled_from("ab \n🐈é<"), max_size=6), max_size=4)


@st.composite
def replies(draw: st.DrawFn) -> tuple[Codec, Json]:
    """Draws a reply of any API with reasoning in parts, and the codec that reads it."""
    options = CodecOptions(model="m")
    parts = draw(PARTS)
    match draw(st.sampled_from(["responses", "open", "details", "field", "tags"])):
        case "responses":
            cuts = draw(st.integers(0, len(parts)))
            items = [summary(*parts[:cuts]), summary(*parts[cuts:], number=2)]
            return ResponsesCodec(options, "p"), responses_reply(*items, message_item("Yes."))
        case "open":
            content = [{"type": "reasoning_text", "text": text} for text in parts]
            item = summary(content=content)
            return ResponsesCodec(options, "p"), responses_reply(item, message_item("Yes."))
        case "details":
            details = [
                {"type": "reasoning.text", "text": text, "index": index, "signature": "s"}
                for index, text in enumerate(parts)
            ]
            reply = chat_reply(content="Yes.", reasoning_details=details)
        case "field":
            reply = chat_reply(content="Yes.", reasoning="".join(parts) or None)
        case _:
            options = CodecOptions(model="m", profile=profiles.OLLAMA)
            reply = chat_reply(content=f"<think>{''.join(parts)}</think>Yes.")
    return ChatCodec(options, "p"), reply


@given(replies(), st.integers(1, 4))
def test_deltas_add_up_to_the_reasoning_of_the_whole_reply(
    drawn: tuple[Codec, Json], size: int
) -> None:
    codec, reply = drawn

    def cut(text: str) -> list[str]:
        return [text[at : at + size] for at in range(0, len(text), size)]

    events = events_of(reply, cut)
    reader = codec.delta_reader()
    deltas = [delta for event in events for delta in reader.read(event)]
    shown = [delta.text for delta in deltas if isinstance(delta, ReasoningDelta)]
    whole = decode_reply(codec, reply)
    streamed = decode_reply(codec, events, streamed=True)
    assert "".join(shown) == whole.reasoning == streamed.reasoning
    assert all(delta.text for delta in deltas)
    said = "".join([delta.text for delta in deltas if isinstance(delta, TextDelta)])
    assert said == whole.text == streamed.text == "Yes."


@streams
@pytest.mark.parametrize(
    "kinds",
    ["text.done", "part.done", "text.done part.done", "none", "text.delta text.done part.done"],
)
def test_summary_of_done_events_is_shown_once(kinds: str, run: Run) -> None:
    reply = responses_reply(summary("First.", "Second."), message_item("Yes."))
    events = [
        event
        for event in responses_events(reply)
        if "reasoning_" not in event["type"] or event["type"].endswith(tuple(kinds.split()))
    ]
    with ScriptedServer(answer(reply, events)) as server:
        response, seen = run(openai(server, "responses"))
    assert "".join(thoughts(seen)) == response.reasoning == "First.\n\nSecond."


@streams
def test_summary_of_the_last_event_is_shown(run: Run) -> None:
    reply = responses_reply(summary("First."), message_item("Yes."))
    *_, last = responses_events(reply)
    with ScriptedServer(answer(reply, [last])) as server:
        response, seen = run(openai(server, "responses"))
    assert (thoughts(seen), texts(seen), response.reasoning) == (["First."], "Yes.", "First.")


@ways
@pytest.mark.parametrize(
    "reply",
    [
        responses_reply(summary(), message_item("Yes.")),
        responses_reply(summary("", ""), message_item("Yes.")),
        chat_reply(content="Yes.", reasoning_content="", reasoning=""),
        chat_reply(content="Yes.", reasoning_content=None),
        messages_reply({"type": "thinking", "thinking": ""}, {"type": "text", "text": "Yes."}),
    ],
    ids=["no parts", "empty parts", "empty fields", "null", "empty thinking"],
)
def test_empty_reasoning_adds_no_delta(reply: Json, run: Run) -> None:
    assert check(run, reply, "", "Yes.") == []


@ways
def test_reasoning_in_think_tags_is_shown(run: Run) -> None:
    reply = chat_reply(content="<think>\nIs it so? It is.\n</think>\n\nYes.")
    check(run, reply, "Is it so? It is.", "Yes.", profile=profiles.OLLAMA)


@ways
def test_reasoning_in_content_parts_is_shown(run: Run) -> None:
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    parts = [thinking, {"type": "text", "text": "Yes."}]
    reply = chat_reply(content=parts)
    [choice] = reply["choices"]
    events = [
        {**reply, "choices": [{"index": 0, "delta": {"content": [part]}, "finish_reason": None}]}
        for part in parts
    ]
    events.append({**reply, "choices": [{**choice, "message": None, "delta": {}}]})
    with ScriptedServer(answer(reply, events)) as server:
        response, seen = run(openai(server))
    assert (response.reasoning, response.text) == ("Hm.", "Yes.")
    assert thoughts(seen) in ([], ["Hm."])


@streams
def test_reasoning_of_a_failed_answer_is_retracted_before_the_next_adapter_answers(
    run: Run,
) -> None:
    reply = responses_reply(summary("First."), message_item("Yes."))
    cut = [event for event in responses_events(reply) if "completed" not in event["type"]]
    cut = [event for event in cut if "output_text" not in event["type"]]
    good = responses_reply(summary("Second."), message_item("Yes."))
    session = Session()
    with ScriptedServer(answer(reply, cut)) as bad, ScriptedServer(answer(good)) as other:
        adapter = FallbackAdapter(openai(bad, "responses"), openai(other, "responses"))
        response, events = run(adapter, session=session)
    at = [type(event) for event in events].index(AnswerRejected)
    assert "".join(thoughts(events[:at])) == "First."
    assert "".join(thoughts(events[at:])) == response.reasoning == "Second."
    first, second = session[ProviderCalled].all()
    assert (first.reasoning, second.reasoning) == ("First.", "Second.")


# --- Sent back

CALL = {"type": "tool_use", "id": "toolu_1", "name": "probe", "input": {"a": 1}}
SIGNED = {"type": "thinking", "thinking": "Hm.", "signature": "sig=="}
EMPTY = {"type": "thinking", "thinking": "", "signature": "sealed=="}
REDACTED = {"type": "redacted_thinking", "data": "c2VjcmV0"}
SAY = {"type": "text", "text": "Yes."}
DONE = messages_reply(SAY)


def blocks_in(body: Json) -> list[Json]:
    """Returns the blocks of the model's messages in a request."""
    own = [message for message in body["messages"] if message["role"] == "assistant"]
    return [block for message in own for block in message["content"]]


@ways
def test_interrupted_thinking_is_not_sent_and_the_chat_continues(run: Run) -> None:
    unsigned = {**SIGNED, "signature": ""}
    first = messages_reply(unsigned, SAY)
    with ScriptedServer(answer(first), answer(DONE)) as server:
        adapter = anthropic(server)
        response, _ = run(adapter, message="One?")
        run(adapter, message="Two?", conversation=response.conversation)
        sent = server.requests[1].json
    assert response.reasoning == "Hm."
    assert [block["type"] for block in blocks_in(sent)] == ["text"]


@streams
def test_broken_stream_of_thinking_leaves_a_usable_chat(run: Run) -> None:
    events = events_of(messages_reply(SIGNED, SAY))[:3]
    with ScriptedServer(answer(DONE, events), answer(DONE)) as server:
        adapter, session = anthropic(server), Session()
        with pytest.raises(PromptEvaluationError) as caught:
            run(adapter, session=session, message="One?")
        conversation = caught.value.conversation
        response, _ = run(adapter, session=session, message="Two?", conversation=conversation)
        sent = server.requests[1].json
    assert response.text == "Yes."
    assert blocks_in(sent) == [] or [block["type"] for block in blocks_in(sent)] == ["text"]
    [failed, _] = session[ProviderCalled].all()
    assert failed.reasoning == "H"


@ways
def test_unsigned_details_of_claude_are_not_sent(run: Run) -> None:
    head = {"type": "reasoning.text", "text": "Hm.", "index": 0}
    details = [{**head, "format": "anthropic-claude-v1"}, {**head, "format": "unknown", "index": 1}]
    first = chat_reply(content="Yes.", reasoning_details=details)
    with ScriptedServer(answer(first), answer(chat_reply(content="Bye."))) as server:
        adapter = openai(server, profile=profiles.OPENROUTER)
        response, _ = run(adapter, message="One?")
        run(adapter, message="Two?", conversation=response.conversation)
        messages = server.requests[1].json["messages"]
    [own] = [message for message in messages if message["role"] == "assistant"]
    assert own["reasoning_details"] == details[1:]


@ways
def test_another_provider_gets_text_and_calls_and_the_first_its_own_items(run: Run) -> None:
    items = [
        summary("I look.", id="rs_1"),
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "c1",
            "name": "probe",
            "arguments": "{}",
        },
    ]
    final = [summary("So.", number=2), message_item("Yes.", number=2)]
    with ScriptedServer(
        answer(responses_reply(*items)),
        answer(responses_reply(*final)),
        answer(DONE),
        answer(responses_reply(message_item("Bye.", number=3))),
    ) as server:
        first, other = openai(server, "responses"), anthropic(server)
        response, _ = run(first, message="One?")
        response, _ = run(other, message="Two?", conversation=response.conversation)
        loaded = Conversation.from_json(stored(response))
        run(first, message="Three?", conversation=loaded)
        there, again = server.requests[2], server.requests[3].json
    assert [block["type"] for block in blocks_in(there.json)] == ["tool_use", "text"]
    assert b"sealed" not in there.body
    assert b"I look." not in there.body
    own = [
        item for item in again["input"] if "type" in item and item["type"] != "function_call_output"
    ]
    assert own == [*items, *final]


@ways
def test_signed_thinking_is_sent_only_to_its_own_model(run: Run) -> None:
    reply = messages_reply(SIGNED, REDACTED, SAY)
    called = messages_reply(SIGNED, CALL, stop="tool_use")
    steps = [answer(called), answer(reply), answer(DONE), answer(DONE)]
    with ScriptedServer(*steps) as server:
        first, second = anthropic(server, "claude-a"), anthropic(server, "claude-b")
        response, _ = run(first, message="One?")
        response, _ = run(second, message="Two?", conversation=response.conversation)
        loaded = Conversation.from_json(stored(response))
        run(first, message="Three?", conversation=loaded)
        _, within, other, back = [blocks_in(request.json) for request in server.requests]
    assert within == [SIGNED, CALL]
    assert other == [CALL, SAY]
    assert back == [SIGNED, CALL, SIGNED, REDACTED, SAY, SAY]


@ways
def test_fallback_to_another_model_within_a_turn_leaves_the_thinking_out(run: Run) -> None:
    called = messages_reply(SIGNED, CALL, stop="tool_use")
    broken = messages_reply(SIGNED)
    del broken["stop_reason"]
    with ScriptedServer(answer(called), answer(broken), answer(DONE)) as server:
        adapter = FallbackAdapter(anthropic(server, "claude-a"), anthropic(server, "claude-b"))
        response, _ = run(adapter, message="One?")
        sent = [blocks_in(request.json) for request in server.requests]
    assert response.text == "Yes."
    assert sent[1:] == [[SIGNED, CALL], [CALL]]


@pytest.mark.parametrize("reported", ["claude-a", "claude-a-20250929", ""])
def test_message_of_0_2_counts_as_the_models_own_by_its_reported_name(reported: str) -> None:
    old = AssistantMessage(
        text="Yes.",
        wire=({**SIGNED}, {**SAY}),
        wire_format="messages/anthropic",
        model=reported,
    )
    for model, expected in [("claude-a", [SIGNED, SAY]), ("claude-b", [SAY])]:
        with ScriptedServer(answer(DONE)) as server:
            adapter = anthropic(server, model)
            response, _ = evaluate(ScriptedAdapter([old]), message="One?")
            wire_format = adapter.codec(prompt().render()).wire_format
            text = stored(response).replace("messages/anthropic", wire_format)
            evaluate(adapter, message="Two?", conversation=Conversation.from_json(text))
            [request] = server.requests
        assert blocks_in(request.json) == (expected if reported else [SIGNED, SAY])


@ways
def test_encrypted_reasoning_of_responses_is_sent_only_to_its_own_model(run: Run) -> None:
    reply = responses_reply(summary("I think."), message_item("Yes."))
    last = responses_reply(message_item("Bye.", number=2))
    with ScriptedServer(answer(reply), answer(last)) as server:
        response, _ = run(openai(server, "responses"), message="One?")
        url = server.openai_url
        other = OpenAIAdapter("n", base_url=url, api_key="k", max_retries=0)
        run(other, message="Two?", conversation=response.conversation)
        items = server.requests[1].json["input"]
    own = [item for item in items if item.get("role") == "assistant"]
    assert [item["content"][0]["text"] for item in own] == ["Yes."]
    assert not [item for item in items if item.get("type") == "reasoning" or "id" in item]


@ways
@pytest.mark.parametrize(
    "blocks",
    [[REDACTED], [EMPTY], [EMPTY, REDACTED], [SIGNED, REDACTED]],
    ids=["redacted", "empty", "both", "shown and redacted"],
)
def test_hidden_thinking_is_sent_back_unchanged_and_shown_as_hidden(
    blocks: list[Json], run: Run
) -> None:
    reply = messages_reply(*blocks, CALL, stop="tool_use")
    session = Session()
    with ScriptedServer(answer(reply), answer(DONE)) as server:
        response, events = run(anthropic(server), session=session)
        sent = blocks_in(server.requests[1].json)
    assert sent == [*blocks, CALL]
    first = session[ProviderCalled].all()[0]
    shown = ["Hm." if block is SIGNED else "(hidden)" for block in blocks]
    assert first.reasoning == "\n\n".join(shown)
    assert not events or "".join(thoughts(events)) == first.reasoning
    assert response.reasoning == ""


@ways
@pytest.mark.parametrize("null", [False, True])
def test_thinking_blocks_of_a_compatible_server_are_sent_back_unchanged(
    run: Run, *, null: bool
) -> None:
    blocks = [SIGNED, REDACTED, {**SIGNED, "thinking": "So.", "signature": "t"}, EMPTY]
    function = {"name": "probe", "arguments": "{}"}
    calls = [{"id": "c1", "type": "function", "function": function}]
    first = chat_reply("tool_calls", content="", tool_calls=calls, thinking_blocks=blocks)
    events = events_of(first)
    for event in events if null else ():
        for block in event["choices"][0]["delta"].get("thinking_blocks", ()):
            if block["type"] == "thinking":
                block.setdefault("signature", None)
    session = Session()
    with ScriptedServer(answer(first, events), answer(chat_reply(content="Yes."))) as server:
        _, seen = run(openai(server), session=session)
        sent = server.requests[1].json["messages"][1]
    assert sent["thinking_blocks"] == blocks
    shown = session[ProviderCalled].all()[0].reasoning
    assert shown == "Hm.\n\n(hidden)\n\nSo.\n\n(hidden)"
    assert not seen or "".join(thoughts(seen)) == shown


def reasoning_pairs(items: list[Json]) -> None:
    """Checks that each reasoning item precedes another item of the model."""
    for item, after in zip(items, [*items[1:], {}], strict=True):
        if item.get("type") == "reasoning":
            assert after.get("type") in ("reasoning", "message", "function_call")


PLAIN = {"type": "reasoning", "id": "rs_9", "summary": []}
CALL_ITEM = {
    "type": "function_call",
    "id": "fc_9",
    "call_id": "c9",
    "name": "probe",
    "arguments": "{}",
}


@ways
def test_reasoning_item_goes_back_as_it_came_with_its_following_item(run: Run) -> None:
    last = responses_reply(message_item("Yes."))
    with ScriptedServer(answer(responses_reply(PLAIN, CALL_ITEM)), answer(last)) as server:
        run(openai(server, "responses"))
        items = server.requests[1].json["input"]
    assert items[1:3] == [PLAIN, CALL_ITEM]
    assert items[1]["summary"] == []


@ways
@pytest.mark.parametrize("case", ["limit", "rejected", "failed call", "compacted"])
def test_reasoning_and_its_following_item_are_sent_both_or_neither(case: str, run: Run) -> None:
    item = {**CALL_ITEM, "name": "missing"} if case == "failed call" else CALL_ITEM
    said = message_item(" " if case == "rejected" else "Yes.")
    cut: Json = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    reply = responses_reply(PLAIN, said if case == "rejected" else item)
    if case == "limit":
        reply |= cut
    done = responses_reply(message_item("Yes.", number=7))
    with ScriptedServer(answer(reply), *[answer(done)] * 2, strict=False) as server:
        adapter = openai(server, "responses")
        try:
            response, _ = run(adapter, message="One?")
            conversation = response.conversation
        except PromptEvaluationError as error:
            conversation = error.conversation
        assert conversation is not None
        if case == "compacted":
            conversation = conversation.restated(prompt(tool()), keep_turns=1)
        run(adapter, message="Two?", conversation=conversation)
        bodies = [request.json["input"] for request in server.requests]
    for items in bodies:
        reasoning_pairs(items)
    if case == "failed call":
        assert PLAIN in bodies[-1]


@ways
@pytest.mark.parametrize(
    ("profile", "missing"),
    [(profiles.DEEPSEEK, ""), (profiles.KIMI, "(no reasoning)"), (profiles.OLLAMA, None)],
    ids=["deepseek", "kimi", "ollama"],
)
@pytest.mark.parametrize("reasoning", [None, "I look."])
def test_profile_says_which_messages_need_reasoning(
    profile: ServerProfile, missing: str | None, reasoning: str | None, run: Run
) -> None:
    function = {"name": "probe", "arguments": "{}"}
    calls = [{"id": "c1", "type": "function", "function": function}]
    field: str = profile.reasoning_field or ""
    own: Json = {"content": "", "tool_calls": calls, field: reasoning}
    first = chat_reply("tool_calls", **own)
    final: Json = {"content": "Yes.", field: reasoning}
    last = chat_reply(**final)
    with ScriptedServer(answer(first), answer(last), answer(last)) as server:
        adapter = openai(server, profile=profile)
        response, _ = run(adapter, message="One?")
        run(adapter, message="Two?", conversation=response.conversation)
        messages = server.requests[2].json["messages"]
    called, said = [message for message in messages if message["role"] == "assistant"]
    assert called.get(field) == (reasoning or missing)
    if missing is None:
        assert said.get(field) == reasoning
    else:
        assert field not in said


DETAILS: dict[str, list[Json]] = {
    "text": [
        {"type": "reasoning.text", "text": "Hm, so.", "signature": "s", "format": "f", "index": 0}
    ],
    "no index": [{"type": "reasoning.text", "text": "Hm, so.", "signature": "s", "format": "f"}],
    "two without index": [
        {"type": "reasoning.text", "text": "Hm, so.", "signature": "s"},
        {"type": "reasoning.text", "text": "And so.", "signature": "t"},
    ],
    "types with one index": [
        {"type": "reasoning.summary", "summary": "Hm, so.", "format": "f", "index": 0},
        {"type": "reasoning.encrypted", "data": "xyz", "id": "rs_1", "format": "f", "index": 0},
    ],
    "two ids": [
        {"type": "reasoning.encrypted", "data": "xyz", "id": "rs_1", "index": 0},
        {"type": "reasoning.encrypted", "data": "abc", "id": "rs_2", "index": 0},
    ],
    "two indexes": [
        {"type": "reasoning.summary", "summary": "Hm, so.", "format": "f", "index": 0},
        {"type": "reasoning.summary", "summary": "And so.", "format": "f", "index": 1},
    ],
}


@streams
@pytest.mark.parametrize("name", DETAILS)
def test_streamed_details_go_back_as_the_whole_ones_do(name: str, run: Run) -> None:
    function = {"name": "probe", "arguments": "{}"}
    calls = [{"id": "c1", "type": "function", "function": function}]
    first = chat_reply("tool_calls", content="", tool_calls=calls, reasoning_details=DETAILS[name])
    done = chat_reply(content="Yes.")
    steps = [answer(first), answer(done), answer(first), answer(done)]
    with ScriptedServer(*steps) as server:
        adapter = openai(server, profile=profiles.OPENROUTER)
        evaluate(adapter)
        run(adapter)
        whole, streamed = [server.requests[number].json["messages"][1] for number in (1, 3)]
    assert whole["reasoning_details"] == streamed["reasoning_details"] == DETAILS[name]


@ways
def test_scripted_adapter_streams_the_reasoning_of_its_replies(run: Run) -> None:
    response, events = run(ScriptedAdapter([say("Yes.", reasoning="Hm.")]))
    assert response.reasoning == "Hm."
    assert not events or events == [ReasoningDelta("Hm."), TextDelta("Yes.")]


def test_reasoning_is_stored_in_a_conversation_and_loaded_again() -> None:
    response, _ = evaluate(ScriptedAdapter([say("Yes.", reasoning="Hm.\ud800")]))
    conversation = response.conversation
    assert conversation is not None
    loaded = Conversation.from_json(conversation.to_json())
    assert loaded == conversation
    assert json.loads(conversation.to_json())["messages"][-1]["reasoning"] == "Hm.?"
