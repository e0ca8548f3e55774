"""Streams over the real LiteLLM: additions, omissions and rejections by its stream wrapper do not
reach the response.
"""

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from support.agents import answers, prompt, tool
from support.litellm_routes import ANTHROPIC, OPENAI, connect
from support.provider_formats import Ids, provider_format, render
from support.scripted_server import Call, Raw, Request, Say, ScriptedServer
from weakincentives.adapters.core import PromptResponse
from weakincentives.adapters.litellm import LiteLLMAdapter
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.response import TextDelta
from weakincentives.limits import TokenUsage
from weakincentives.runtime.events import ToolInvoked
from weakincentives.runtime.session import Session

# Any: events of all types, prompts with any output type.
type Stream = Callable[[LiteLLMAdapter, Session], list[Any]]


def stream(adapter: LiteLLMAdapter, session: Session) -> list[Any]:
    return list(adapter.stream(prompt(tool()), session=session))


def stream_async(adapter: LiteLLMAdapter, session: Session) -> list[Any]:
    async def events() -> list[Any]:
        return [event async for event in adapter.stream_async(prompt(tool()), session=session)]

    return asyncio.run(events())


drivers = pytest.mark.parametrize("run", [stream, stream_async])


def sse(events: Iterable[dict[str, Any]], *, named: bool = False) -> Raw:
    lines = [
        (f"event: {event['type']}\n" if named else "") + f"data: {json.dumps(event)}\n\n"
        for event in events
    ]
    return Raw(
        "".join(lines).encode() + (b"" if named else b"data: [DONE]\n\n"),
        content_type="text/event-stream",
    )


def chunk(delta: dict[str, Any], *, index: int = 0, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "finish_reason": finish}
    return {
        "id": "x",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "gpt-4o",
        "choices": [choice],
    }


def call(name: str, index: int) -> dict[str, Any]:
    function = {"name": "probe", "arguments": json.dumps({"a": index})}
    return chunk(
        {"tool_calls": [{"index": index, "id": name, "type": "function", "function": function}]}
    )


def response_of(events: list[Any]) -> PromptResponse[Any]:
    response: PromptResponse[Any] = events[-1].response
    return response


@drivers
def test_answer_of_many_equal_chunks_is_accepted(run: Stream) -> None:
    pieces = [chunk({"content": "| - | "}) for _ in range(150)]
    with ScriptedServer(sse([*pieces, chunk({}, finish="stop")])) as server:
        events = run(connect(server), Session())
    assert response_of(events).text == "| - | " * 150
    assert len([event for event in events if isinstance(event, TextDelta)]) == 150


@drivers
def test_unreported_usage_is_not_estimated(run: Stream) -> None:
    text = "A longer answer, of which an estimate would find some tokens."
    whole = {**chunk({}), "object": "chat.completion"}
    whole["choices"] = [
        {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    ]
    streamed = sse([chunk({"content": text}), chunk({}, finish="stop")])
    with ScriptedServer(streamed, Raw.json(whole)) as server:
        adapter = connect(server)
        response = response_of(run(adapter, Session()))
        assert (
            response.usage
            == adapter.evaluate(prompt(tool()), session=Session()).usage
            == TokenUsage()
        )
    assert response.text == text


@drivers
def test_only_the_choice_with_index_0_is_decoded(run: Stream) -> None:
    events = [
        chunk({"content": "O"}, index=1),
        chunk({"content": "Mi"}),
        chunk({"content": "ther."}, index=1),
        chunk({}, index=1, finish="stop"),
        chunk({"content": "ne."}),
        chunk({}, finish="stop"),
    ]
    with ScriptedServer(sse(events)) as server:
        streamed = run(connect(server), Session())
    assert response_of(streamed).text == "Mine."
    assert "".join(event.text for event in streamed if isinstance(event, TextDelta)) == "Mine."


@drivers
def test_tool_calls_run_in_index_order(run: Stream) -> None:
    session = Session()
    with ScriptedServer(
        sse([call("b", 1), call("a", 0), chunk({}, finish="tool_calls")]), Say("Done.")
    ) as server:
        run(connect(server), session)
        sent = server.requests[1].json["messages"]
    assert [event.call_id for event in session[ToolInvoked].all()] == ["a", "b"]
    assert [call["id"] for call in sent[1]["tool_calls"]] == ["a", "b"]


@drivers
@pytest.mark.parametrize("model", [OPENAI, ANTHROPIC])
@pytest.mark.parametrize("text", ['{"a":', "[1]", "[" * 20_000, '{"a": NaN}', '{"a": "\\ud800"}'])
def test_call_with_unparsable_arguments_is_answered_and_sent_back(
    run: Stream, model: str, text: str
) -> None:
    with ScriptedServer(Say(calls=(Call("probe", text),)), Say("Done.")) as server:
        response = response_of(run(connect(server, model), Session()))
        sent = server.requests[1].json["messages"]
    assert response.text == "Done."
    assert len(answers(response.transcript)) == 1
    assert len(sent) == 3


@drivers
@pytest.mark.parametrize("model", [OPENAI, ANTHROPIC])
def test_incomplete_stream_raises_malformed(run: Stream, model: str) -> None:
    def broken_off(request: Request) -> Raw:
        form: Any = provider_format(request.path)
        whole = render(Say("Half of the answer"), form, request.json, Ids())
        assert isinstance(whole, Raw)
        return replace(whole, body=whole.body[: whole.body.index(b"he answer")])

    with (
        ScriptedServer(broken_off) as server,
        pytest.raises(PromptEvaluationError, match="the stream ended early") as caught,
    ):
        run(connect(server, model), Session())
    assert (caught.value.code, caught.value.phase) == ("malformed", "response")


BLOCKS: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "First this, ", "signature": "one"},
    {"type": "redacted_thinking", "data": "hidden"},
    {"type": "thinking", "thinking": "then that.", "signature": "two"},
    {"type": "text", "text": "Let me see."},
    {"type": "tool_use", "id": "call_1", "name": "probe", "input": {"a": 1}},
]
MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "stop_sequence": None,
}
TURN: dict[str, Any] = {**MESSAGE, "content": BLOCKS, "stop_reason": "tool_use"}


def block_events(index: int, block: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns a block of an Anthropic answer as stream events, with its text in two chunks."""
    start = dict(block)
    deltas: list[dict[str, Any]] = []
    if block["type"] == "thinking":
        start |= {"thinking": "", "signature": ""}
        half = len(block["thinking"]) // 2
        deltas = [
            {"type": "thinking_delta", "thinking": part}
            for part in (block["thinking"][:half], block["thinking"][half:])
        ]
        deltas.append({"type": "signature_delta", "signature": block["signature"]})
    elif block["type"] == "text":
        start |= {"text": ""}
        deltas = [{"type": "text_delta", "text": block["text"]}]
    elif block["type"] == "tool_use":
        start |= {"input": {}}
        deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
    at = {"index": index}
    return [
        {"type": "content_block_start", **at, "content_block": start},
        *[{"type": "content_block_delta", **at, "delta": delta} for delta in deltas],
        {"type": "content_block_stop", **at},
    ]


@drivers
def test_streamed_thinking_blocks_are_sent_back_like_non_streamed_ones(
    run: Stream,
) -> None:
    usage = {"input_tokens": 20, "cache_read_input_tokens": 5, "output_tokens": 1}
    events = [
        {
            "type": "message_start",
            "message": {**TURN, "content": [], "stop_reason": None, "usage": usage},
        },
        *[event for index, block in enumerate(BLOCKS) for event in block_events(index, block)],
        {
            "type": "message_delta",
            "delta": {"stop_reason": "tool_use"},
            "usage": {"output_tokens": 8},
        },
        {"type": "message_stop"},
    ]
    whole = Raw.json({**TURN, "usage": {**usage, "output_tokens": 8}})
    with ScriptedServer(whole, Say("Done."), sse(events, named=True), Say("Done.")) as server:
        adapter = connect(server, ANTHROPIC)
        expected = adapter.evaluate(prompt(tool()), session=Session())
        response = response_of(run(adapter, Session()))
        sent = [request.json["messages"][1:] for request in server.requests]
    assert sent[3] == sent[1]
    assert [block["type"] for block in sent[3][0]["content"]] == [block["type"] for block in BLOCKS]
    assert (response.usage, response.text) == (expected.usage, expected.text)


@drivers
def test_event_of_ten_megabytes_is_decoded_quickly(run: Stream) -> None:
    text = "x" * 10_000_000
    with ScriptedServer(Say("Short."), Say(text)) as server:
        run(connect(server), Session())  # LiteLLM loads much with the first stream
        start = time.thread_time()
        events = run(connect(server), Session())
    assert len(events[-1].response.text) == len(text)
    assert time.thread_time() - start < 10  # copying the text so far would take a minute


def evaluate(adapter: LiteLLMAdapter) -> object:
    return adapter.evaluate(prompt(), session=Session())


def evaluate_async(adapter: LiteLLMAdapter) -> object:
    return asyncio.run(adapter.evaluate_async(prompt(), session=Session()))


@pytest.mark.parametrize("run", [evaluate, evaluate_async])
def test_refusal_in_a_non_streamed_reply_raises_refused(
    run: Callable[[LiteLLMAdapter], object],
) -> None:
    message = {"role": "assistant", "content": None, "refusal": "No."}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    reply = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "usage": usage}
    body = json.dumps({**reply, "choices": [choice]}).encode()
    with ScriptedServer(Raw(body)) as server, pytest.raises(PromptEvaluationError) as refused:
        run(connect(server))
    assert refused.value.code == "refused"
