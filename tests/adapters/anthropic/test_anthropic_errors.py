"""What goes wrong on Anthropic's side, as the library's errors; and what no error may tell."""

import asyncio
import json
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from anthropic import Anthropic

from support.agents import answers, prompt, tool
from support.hostile_server import SSE, Connection, HostileServer
from support.scripted_server import Call, Drop, Fail, Raw, Say, ScriptedServer, Step
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.core import PromptEvaluationError, PromptResponse, ThrottleError
from weakincentives.limits import TokenUsage
from weakincentives.prompt import Prompt
from weakincentives.runtime.events import Event
from weakincentives.runtime.session import Session

KEY = "sk-ant-marked-0123456789-secret"
MODEL = "claude-opus-5-5"


@pytest.fixture(autouse=True)
def no_profiles(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The SDK also looks for credentials on the disk."""
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


# Any: options of every kind, prompts of every output.
def connect(server: ScriptedServer | HostileServer, **options: Any) -> AnthropicAdapter:
    arguments: dict[str, Any] = {
        "base_url": server.url,
        "api_key": KEY,
        "max_retries": 0,
        **options,
    }
    return AnthropicAdapter(MODEL, **arguments)


def evaluate(
    adapter: AnthropicAdapter, asked: Prompt[Any], session: Session
) -> PromptResponse[Any]:
    return adapter.evaluate(asked, session=session)


def evaluate_async(
    adapter: AnthropicAdapter, asked: Prompt[Any], session: Session
) -> PromptResponse[Any]:
    return asyncio.run(adapter.evaluate_async(asked, session=session))


def stream(adapter: AnthropicAdapter, asked: Prompt[Any], session: Session) -> None:
    for _ in adapter.stream(asked, session=session):
        pass


drivers = pytest.mark.parametrize("run", [evaluate, evaluate_async, stream])
type Run = Callable[..., object]


def failure(run: Run, step: Step, **options: Any) -> PromptEvaluationError:
    with ScriptedServer(step) as server, pytest.raises(PromptEvaluationError) as caught:
        run(connect(server, **options), prompt(tool()), Session())
    return caught.value


@drivers
@pytest.mark.parametrize(
    ("step", "phase", "code", "status"),
    [
        (Fail(400), "request", "bad_request", 400),
        (Fail(400, "prompt is too long: 2 > 1 maximum"), "request", "context_length", 400),
        (Fail(400, "Your credit balance is too low"), "request", "quota", 400),
        (Fail(402, kind="billing_error"), "request", "quota", 402),
        (Fail(401), "request", "authentication", 401),
        (Fail(403), "request", "permission", 403),
        (Fail(404), "request", "not_found", 404),
        (Fail(413), "request", "too_large", 413),
        (Fail(429), "request", "throttled", 429),
        (Fail(500), "request", "server_error", 500),
        (Fail(529), "request", "server_error", 529),
        (Raw(b"<html>Bad</html>", "text/html", status=502), "request", "server_error", 502),
        (Raw.json([1], status=404), "request", "not_found", 404),
        (Raw.json({"error": "no"}, status=404), "request", "not_found", 404),
        (Drop(), "request", "connection", None),
    ],
)
def test_a_failure_has_its_code(
    run: Run, step: Step, phase: str, code: str, status: int | None
) -> None:
    error = failure(run, step)
    assert (error.phase, error.code, error.status) == (phase, code, status)
    assert error.provider == "anthropic"
    assert error.remedy


def test_a_throttled_request_says_how_long_to_wait() -> None:
    error = failure(evaluate, Fail(429, retry_after=7))
    assert isinstance(error, ThrottleError)
    assert error.retry_after == timedelta(seconds=7)


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
def test_an_error_in_a_stream_has_the_code_of_its_type(kind: str, code: str) -> None:
    said = event("error", error={"type": kind, "message": f"no room for {KEY}"})
    error = failure(stream, Raw(START + TEXT + said, "text/event-stream"))
    assert (error.code, error.message) == (code, "no room for ***")


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
def test_a_stream_without_an_end_is_malformed(body: bytes) -> None:
    error = failure(stream, Raw(body, "text/event-stream"))
    assert (error.phase, error.code) == ("response", "malformed")


def test_a_connection_that_breaks_in_a_stream_is_a_connection_error() -> None:
    def cut(connection: Connection) -> None:
        head = SSE.replace(b"connection: close\r\n", b"content-length: 100000\r\n")
        connection.send(head + START + TEXT)

    with HostileServer(cut) as server, pytest.raises(PromptEvaluationError) as caught:
        stream(connect(server), prompt(), Session())
    assert (caught.value.phase, caught.value.code) == ("request", "connection")


@drivers
@pytest.mark.parametrize(
    "step",
    [
        Raw(b"<html>Welcome</html>", "text/html"),
        Raw(b""),
        Raw(b'{"content": ['),
        Raw.json({}),
        Raw.json(None),
        Raw.json([]),
        Raw.json({"content": [], "stop_reason": None}),
        Raw.json({"content": [{"text": "x"}], "stop_reason": "end_turn"}),
        Raw.json({"content": "x", "stop_reason": "end_turn"}),
        Raw(b"[" * 100_000),
    ],
)
def test_status_200_with_no_answer_is_malformed(run: Run, step: Step) -> None:
    error = failure(run, step)
    assert (error.phase, error.code) == ("response", "malformed")
    assert "API" in error.remedy


@drivers
@pytest.mark.parametrize(
    ("step", "code", "text"),
    [
        (Say("cut", finish="length"), "truncated", "allow more output tokens"),
        (Say(calls=(Call("probe", '{"a'),), finish="length"), "truncated", "allow more"),
        (Say(refusal="I will not."), "refused", "I will not."),
    ],
)
def test_a_turn_that_broke_off_is_typed(run: Run, step: Say, code: str, text: str) -> None:
    error = failure(run, step)
    assert (error.phase, error.code, error.turns) == ("response", code, 1)
    assert error.usage == TokenUsage(10, 5)
    assert text in str(error)
    assert [answer.success for answer in answers(error.transcript)] == [False] * len(step.calls)


def test_a_refusal_without_text_quotes_the_provider_s_explanation() -> None:
    reply = {
        "content": [],
        "stop_reason": "refusal",
        "stop_details": {"type": "refusal", "category": "cyber", "explanation": "Not this."},
    }
    assert "Not this." in str(failure(evaluate, Raw.json(reply)))
    assert failure(evaluate, Raw.json({**reply, "stop_details": None})).code == "refused"


def test_a_window_that_is_full_is_a_cut_answer() -> None:
    reply: dict[str, Any] = {"content": [{"type": "text", "text": "x"}]}
    full = {**reply, "stop_reason": "model_context_window_exceeded"}
    assert failure(evaluate, Raw.json(full)).code == "truncated"


# --- Secrets

QUOTING = f"Incorrect key {KEY} or 'Bearer {KEY}'"


@drivers
@pytest.mark.parametrize(
    "step",
    [
        Fail(401, QUOTING),
        Fail(400, QUOTING),
        Fail(429, QUOTING),
        Fail(500, QUOTING),
        Raw(QUOTING.encode(), "text/html", status=502),
        Raw.json({"error": {"message": QUOTING}}),
        Drop(),
        Raw(b"{"),
    ],
)
@pytest.mark.parametrize("source", ["api_key", "environment", "auth_token"])
def test_only_the_provider_gets_the_key(
    run: Run, step: Step, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session()
    events: list[Event] = []
    session.bus.subscribe(Event, events.append)
    options: dict[str, Any] = {"api_key": KEY if source == "api_key" else None}
    if source == "environment":
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    elif source == "auth_token":
        monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", KEY)
    with ScriptedServer(step) as server, pytest.raises(PromptEvaluationError) as caught:
        run(connect(server, **options), prompt(), session)
    [request] = server.requests
    assert KEY in "".join([value for _, value in request.headers])
    error = caught.value
    texts = [str(error), repr(error), *traceback.format_exception(error), repr(events)]
    assert KEY not in "".join(texts)


@drivers
@pytest.mark.parametrize("key", [f"{KEY}\n", "sk-münchen", "sk two"])
def test_a_key_that_no_header_can_hold_is_refused_before_anything_is_sent(
    run: Run, key: str
) -> None:
    with ScriptedServer() as server, pytest.raises(PromptEvaluationError) as caught:
        run(connect(server, api_key=key), prompt(), Session())
    assert (caught.value.code, caught.value.__cause__) == ("authentication", None)
    assert key.strip() not in "".join(traceback.format_exception(caught.value))


@drivers
def test_no_key_at_all_is_named_with_where_to_put_one(run: Run) -> None:
    with (
        ScriptedServer() as server,
        pytest.raises(PromptEvaluationError, match="ANTHROPIC_API_KEY") as caught,
    ):
        run(connect(server, api_key=None), prompt(), Session())
    assert (caught.value.phase, caught.value.code) == ("request", "authentication")


def test_a_ready_client_s_key_is_masked_too() -> None:
    with ScriptedServer(Fail(400, QUOTING)) as server:
        client = Anthropic(base_url=server.url, api_key=KEY, max_retries=0)
        with pytest.raises(PromptEvaluationError) as caught:
            AnthropicAdapter(MODEL, client=client).evaluate(prompt(), session=Session())
        client.close()
    assert KEY not in str(caught.value)
