"""Errors specific to the Messages API; `test_sdk_errors` covers those of all APIs."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from support.agents import prompt
from support.hostile_server import SSE, Connection, HostileServer
from support.scripted_server import Raw, ScriptedServer, Step
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.core import PromptEvaluationError
from weakincentives.runtime.session import Session

KEY = "sk-ant-marked-0123456789-secret"
MODEL = "claude-opus-5-5"


@pytest.fixture(autouse=True)
def no_profiles(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The SDK also looks for credentials on the disk."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


def connect(server: ScriptedServer | HostileServer) -> AnthropicAdapter:
    return AnthropicAdapter(MODEL, base_url=server.url, api_key=KEY, max_retries=0)


def evaluate(adapter: AnthropicAdapter) -> None:
    adapter.evaluate(prompt(), session=Session())


def stream(adapter: AnthropicAdapter) -> None:
    list(adapter.stream(prompt(), session=Session()))


def failure(run: Callable[[AnthropicAdapter], None], step: Step) -> PromptEvaluationError:
    with ScriptedServer(step) as server, pytest.raises(PromptEvaluationError) as caught:
        run(connect(server))
    return caught.value


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


START = event("message_start", message={"type": "message", "content": [], "usage": {}})
TEXT = event("content_block_start", index=0, content_block={"type": "text", "text": ""})


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("overloaded_error", "server_error"),
        ("rate_limit_error", "throttled"),
        ("invalid_request_error", "bad_request"),
        ("brand_new_error", "provider_failed"),
    ],
)
def test_error_event_in_a_stream_is_classified_by_its_type(kind: str, code: str) -> None:
    said = event("error", error={"type": kind, "message": f"no capacity for {KEY}"})
    error = failure(stream, Raw(START + TEXT + said, "text/event-stream"))
    assert (error.code, error.message) == (code, "no capacity for ***")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        START,
        START + TEXT,
        event("content_block_delta", index=0, delta={"type": "text_delta", "text": "x"}),
        START + b"event: content_block_start\ndata: {\n\n",
        START + event("content_block_start", index=0),
    ],
    ids=["nothing", "start", "half a block", "no start", "no json", "no block"],
)
def test_incomplete_stream_is_malformed(body: bytes) -> None:
    error = failure(stream, Raw(body, "text/event-stream"))
    assert (error.phase, error.code) == ("response", "malformed")


def test_connection_lost_during_a_stream_is_a_connection_error() -> None:
    def cut(connection: Connection) -> None:
        head = SSE.replace(b"connection: close\r\n", b"content-length: 100000\r\n")
        connection.send(head + START + TEXT)

    with HostileServer(cut) as server, pytest.raises(PromptEvaluationError) as caught:
        stream(connect(server))
    assert (caught.value.phase, caught.value.code) == ("request", "connection")


def test_block_without_a_type_is_malformed() -> None:
    error = failure(evaluate, Raw.json({"content": [{"text": "x"}], "stop_reason": "end_turn"}))
    assert (error.phase, error.code) == ("response", "malformed")
    assert "API" in error.remedy


def test_refusal_without_text_quotes_the_providers_explanation() -> None:
    reply = {
        "content": [],
        "stop_reason": "refusal",
        "stop_details": {"type": "refusal", "category": "cyber", "explanation": "Not this."},
    }
    assert "Not this." in str(failure(evaluate, Raw.json(reply)))
    assert failure(evaluate, Raw.json({**reply, "stop_details": None})).code == "refused"


def test_full_context_window_is_reported_as_truncated() -> None:
    reply: dict[str, Any] = {"content": [{"type": "text", "text": "x"}]}
    full = {**reply, "stop_reason": "model_context_window_exceeded"}
    assert failure(evaluate, Raw.json(full)).code == "truncated"
