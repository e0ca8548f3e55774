"""Replies from broken or hostile servers of the Messages API, and the adapter's results."""

import asyncio
import json
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings

from support.agents import prompt, tool
from support.codecs import Talk, broken, encoded
from support.hostile_server import SSE, Connection, HostileServer
from support.scripted_server import Raw, ScriptedServer
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.anthropic.codec import MessagesCodec, MessagesOptions
from weakincentives.adapters.codec import decode_reply
from weakincentives.evaluation.errors import (
    PromptEvaluationError,
)
from weakincentives.evaluation.messages import ToolMessage, UserMessage
from weakincentives.evaluation.response import Completed
from weakincentives.limits import TokenUsage
from weakincentives.prompt import Prompt
from weakincentives.runtime.session import Session

KEY = "sk-ant-marked-0123456789-secret"
MODEL = "claude-opus-5-5"


@pytest.fixture(autouse=True)
def no_profiles(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The SDK also looks for credentials on the disk."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


# Any: options of all types, prompts with any output type.
def connect(url: str, **options: Any) -> AnthropicAdapter:
    arguments: dict[str, Any] = {"base_url": url, "api_key": KEY, "max_retries": 0, **options}
    return AnthropicAdapter(MODEL, **arguments)


def evaluate(adapter: AnthropicAdapter, asked: Prompt[Any], **options: Any) -> str:
    return adapter.evaluate(asked, session=Session(), **options).text


def evaluate_async(adapter: AnthropicAdapter, asked: Prompt[Any], **options: Any) -> str:
    response = asyncio.run(adapter.evaluate_async(asked, session=Session(), **options))
    return response.text


def stream(adapter: AnthropicAdapter, asked: Prompt[Any], **options: Any) -> str:
    *_, last = adapter.stream(asked, session=Session(), **options)
    assert isinstance(last, Completed)
    return last.response.text


def stream_async(adapter: AnthropicAdapter, asked: Prompt[Any], **options: Any) -> str:
    async def main() -> str:
        events = adapter.stream_async(asked, session=Session(), **options)
        *_, last = [event async for event in events]
        assert isinstance(last, Completed)
        return last.response.text

    return asyncio.run(main())


entry_points = pytest.mark.parametrize(
    "entry_point", [evaluate, evaluate_async, stream, stream_async]
)
streams = pytest.mark.parametrize("entry_point", [stream, stream_async])
type EntryPoint = Callable[..., str]


def failure(entry_point: EntryPoint, *steps: Any, **options: Any) -> PromptEvaluationError:
    with ScriptedServer(*steps) as server, pytest.raises(PromptEvaluationError) as caught:
        entry_point(connect(server.url, **options), prompt(tool()))
    assert KEY not in "".join(traceback.format_exception(caught.value))
    return caught.value


# --- Events of every shape


CALL = {"type": "tool_use", "id": "toolu_1", "name": "probe", "input": {"a": 1}}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
EVENTS: list[dict[str, Any]] = [
    {
        "type": "message_start",
        "message": {
            "type": "message",
            "model": "m",
            "content": [],
            "usage": {"input_tokens": 1, "cache_creation": {"ephemeral_1h_input_tokens": 1}},
        },
    },
    {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "thinking", "thinking": "", "signature": ""},
    },
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "signature_delta", "signature": "s"},
    },
    {"type": "content_block_stop", "index": 0},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
    {
        "type": "content_block_delta",
        "index": 1,
        "delta": {"type": "citations_delta", "citation": {"url": "x"}},
    },
    {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "x"}},
    {"type": "content_block_stop", "index": 1},
    {"type": "content_block_start", "index": 2, "content_block": {**CALL, "input": {}}},
    {
        "type": "content_block_delta",
        "index": 2,
        "delta": {"type": "input_json_delta", "partial_json": '{"a": 1}'},
    },
    {"type": "content_block_stop", "index": 2},
    {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_details": None},
        "usage": {"output_tokens": 1, "output_tokens_details": {"thinking_tokens": 1}},
    },
    {"type": "message_stop"},
]


def codec() -> MessagesCodec:
    options = MessagesOptions(
        model="m", max_tokens=9, tool_changes="inline", strict_tools=True, cache="5m"
    )
    return MessagesCodec(options, "anthropic")


def told(*events: Any) -> Any:
    return decode_reply(codec(), list(events), streamed=True)


@settings(max_examples=150)
@given(broken({"events": EVENTS}))
def test_arbitrary_events_decode_to_a_sendable_answer_or_raise(value: Any) -> None:
    events = value.get("events")
    events = events if isinstance(events, list) else [events]
    talk = Talk(codec(), "Go.")
    talk.request()
    try:
        texts = [talk.codec.read_text(event) for event in events]
        answer = decode_reply(talk.codec, events, streamed=True)
    except PromptEvaluationError as error:
        assert error.phase == "response"  # noqa: PT017 - either end will do
        return
    assert all(isinstance(text, str) for text in texts)
    assert min(vars_of(answer.usage)) >= 0
    talk.transcript.append(answer)
    talk.say(*[ToolMessage(call.call_id, "ok") for call in answer.tool_calls])
    talk.say(UserMessage("Go on."))
    encoded(talk.request())


def vars_of(usage: TokenUsage) -> list[int]:
    return [getattr(usage, name) for name in TokenUsage.__slots__]


@pytest.mark.parametrize("events", [EVENTS[::-1], EVENTS * 2], ids=["backwards", "twice"])
def test_reordered_or_repeated_events_are_decoded_or_malformed(
    events: list[Any],
) -> None:
    try:
        assert told(*events).finish == "tool_calls"
    except PromptEvaluationError as error:
        assert error.code == "malformed"  # noqa: PT017 - either end will do


def test_blocks_with_gaps_or_huge_indices_keep_their_order() -> None:
    changed = json.loads(json.dumps(EVENTS).replace('"index": 2', '"index": 1000000000000'))
    kinds = [block["type"] for block in told(*changed).wire]
    assert kinds == ["thinking", "text", "tool_use"]


def test_unknown_event_types_are_skipped() -> None:
    news = [
        {"type": "brand_new", "index": 1},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "new_delta", "new": "y"}},
    ]
    answer = told(*EVENTS[:5], *news, *EVENTS[5:])
    assert (answer.text, answer.wire[1]["new"]) == ("x", "y")


def test_unknown_delta_key_may_have_any_value() -> None:
    news = [
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "new": new}}
        for new in ({"a": 1}, {"a": 2}, None)
    ]
    answer = told(*EVENTS[:7], *news, *EVENTS[7:])
    assert (answer.text, answer.wire[1]["new"]) == ("x", {"a": 2})


@pytest.mark.parametrize("index", [None, "1", 0.5])
@pytest.mark.parametrize("place", [4, 6])
def test_chunk_without_a_valid_block_index_is_malformed(index: Any, place: int) -> None:
    events: list[Any] = [*EVENTS]
    events[place] = {**events[place], "index": index}
    with pytest.raises(PromptEvaluationError, match="a block has no index"):
        told(*events)


@pytest.mark.parametrize("usage", [7, "many", [7], None])
def test_usage_of_the_wrong_type_is_reported_as_zero(usage: Any) -> None:
    start = {**EVENTS[0], "message": {**EVENTS[0]["message"], "usage": usage}}
    answer = told(start, *EVENTS[1:11], {**EVENTS[11], "usage": usage}, EVENTS[12])
    assert (answer.text, answer.usage) == ("x", TokenUsage())


# --- Raw streams


def body(*events: dict[str, Any], end: str = "\n\n") -> bytes:
    newline = end[: len(end) // 2]
    return "".join(
        f"event: {event['type']}{newline}data: {json.dumps(event)}{end}" for event in events
    ).encode()


SAID = [*EVENTS[:1], *EVENTS[4:8], {**EVENTS[11], "delta": {"stop_reason": "end_turn"}}, EVENTS[12]]


@streams
@pytest.mark.parametrize(
    "sent",
    [
        body(*SAID, end="\r\n\r\n"),
        body(*SAID, end="\r\r"),
        b": hello\n\n" * 100 + body(*SAID),
        body(*SAID).replace(b"data: ", b"data:"),
        body(*SAID).replace(b"event: ", b"id: 7\nretry: 1\nevent: "),
        body(*SAID).rstrip(b"\n") + b"\n\n" + b"\n" * 100,
        body(*SAID, SAID[-1], SAID[-1]),
    ],
    ids=["CRLF", "CR", "comments", "no space", "fields", "blank lines", "many ends"],
)
def test_every_sse_line_format_is_accepted(entry_point: EntryPoint, sent: bytes) -> None:
    with ScriptedServer(Raw(sent, "text/event-stream")) as server:
        assert entry_point(connect(server.url), prompt()) == "x"


@streams
def test_stream_sent_byte_by_byte_is_decoded(entry_point: EntryPoint) -> None:
    said = json.loads(json.dumps(SAID).replace('"text": "x"', '"text": "äöü€🙂"'))
    sent = b"".join(
        f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n".encode()
        for event in said
    )
    assert "🙂".encode() in sent

    def trickle(connection: Connection) -> None:
        connection.send(SSE)
        for at in range(len(sent)):
            connection.send(sent[at : at + 1])

    with HostileServer(trickle) as server:
        assert entry_point(connect(server.url), prompt()) == "äöü€🙂"


@streams
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_truncated_stream_is_malformed(entry_point: EntryPoint, share: float) -> None:
    sent = body(*SAID[:-2])
    error = failure(entry_point, Raw(sent[: int(len(sent) * share)], "text/event-stream"))
    assert (error.phase, error.code) == ("response", "malformed")


@streams
@pytest.mark.parametrize(
    "error",
    [None, [], "text", {"type": None, "message": None}, {"message": {"deep": KEY}}, 5],
)
def test_malformed_error_event_does_not_leak_the_key(entry_point: EntryPoint, error: Any) -> None:
    event = {"type": "error", "error": error}
    assert (
        failure(entry_point, Raw(body(*SAID[:2], event), "text/event-stream")).code
        == "provider_failed"
    )


@streams
def test_stream_with_another_content_type_is_malformed(entry_point: EntryPoint) -> None:
    for kind in ("application/json", "text/html", "text/event-stream; charset=utf-16"):
        error = failure(entry_point, Raw(b'{"content": [], "type": "thing"}', kind))
        assert (error.phase, error.code) == ("response", "malformed")


@pytest.mark.parametrize("betas", ["mine-2026", [7], ["mine\r\nx-key: 7"], [""], None, 5])
def test_betas_must_be_a_list_of_valid_names(betas: Any) -> None:
    with pytest.raises(ValueError, match="must be a list of beta names, got"):
        AnthropicAdapter(MODEL, options={"betas": betas})


@streams
def test_adapter_serves_several_event_loops_and_closes_its_connections(
    entry_point: EntryPoint,
) -> None:
    with HostileServer(lambda connection: connection.send(SSE, body(*SAID))) as server:
        adapter = connect(server.url)
        assert [entry_point(adapter, prompt()) for _ in range(3)] == ["x"] * 3
        assert server.left()
