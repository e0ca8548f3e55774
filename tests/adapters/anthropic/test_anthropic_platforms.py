"""Claude on Google Cloud, Bedrock and Foundry, through the SDK's clients for them."""

import asyncio
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from itertools import repeat
from typing import Any

import anthropic
import pytest

from support import aws_event_stream
from support.agents import prompt, tool
from support.deadlines import with_growing_limit
from support.hostile_server import Connection, HostileServer
from support.scripted_server import Call, Fail, Raw, Request, Say, ScriptedServer, Usage
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.evaluation.errors import DeadlineExceededError, PromptEvaluationError
from weakincentives.evaluation.response import Completed, TextDelta
from weakincentives.limits import Deadline, TokenUsage
from weakincentives.prompt import Prompt
from weakincentives.runtime.session import Session

MODEL = "us.anthropic.claude-opus-4-5-v1:0"
SECRET = "s-secret-0123456789"  # noqa: S105 - not a real one
SESSION_TOKEN = "t-secret-0123456789"  # noqa: S105 - not a real one
IS_0 = anthropic.__version__.startswith("0.")

# Any: clients of classes that the SDK creates on demand, and their options
type AnyClient = Any

PLATFORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "google": ("Vertex", {"region": "r", "project_id": "p", "access_token": SECRET}),
    "bedrock": ("Bedrock", {"aws_region": "r", "api_key": SECRET}),
    "bedrock, signed": (
        "Bedrock",
        {
            "aws_region": "r",
            "aws_access_key": "AKIA0123456789",
            "aws_secret_key": SECRET,
            "aws_session_token": SESSION_TOKEN,
        },
    ),
    "foundry": ("Foundry", {"api_key": SECRET}),
}
platforms = pytest.mark.parametrize("platform", PLATFORMS)
bedrock = pytest.mark.parametrize("platform", ["bedrock", "bedrock, signed"])


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: Any) -> None:
    """Removes this machine's credentials and server addresses from the environment."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def client(platform: str, url: str, kind: str = "") -> AnyClient:
    name, options = PLATFORMS[platform]
    if name == "Bedrock":
        pytest.importorskip("botocore")
    if platform == "bedrock, signed":
        pytest.importorskip("boto3")
    make = getattr(anthropic, f"{kind}Anthropic{name}")
    return make(base_url=url, max_retries=0, **options)


@contextmanager
def connect(platform: str, url: str, **options: Any) -> Generator[AnthropicAdapter]:
    ready = client(platform, url)
    try:
        yield AnthropicAdapter(
            MODEL, client=ready, async_client=client(platform, url, "Async"), **options
        )
    finally:
        ready.close()


# Any: prompts and responses with any output type, in these four
def evaluate(adapter: AnthropicAdapter, asked: Prompt[Any], **limits: Any) -> Any:
    return adapter.evaluate(asked, session=Session(), **limits)


def evaluate_async(adapter: AnthropicAdapter, asked: Prompt[Any], **limits: Any) -> Any:
    return asyncio.run(closing(adapter, adapter.evaluate_async(asked, session=Session(), **limits)))


def stream(adapter: AnthropicAdapter, asked: Prompt[Any], **limits: Any) -> Any:
    return whole([*adapter.stream(asked, session=Session(), **limits)])


def stream_async(adapter: AnthropicAdapter, asked: Prompt[Any], **limits: Any) -> Any:
    async def events() -> list[Any]:
        return [event async for event in adapter.stream_async(asked, session=Session(), **limits)]

    return whole(asyncio.run(closing(adapter, events())))


async def closing(adapter: AnthropicAdapter, work: Any) -> Any:
    try:
        return await work
    finally:
        await (await adapter.async_client()).close()


def whole(events: list[Any]) -> Any:
    *pieces, last = events
    assert isinstance(last, Completed)
    texts = [piece.text for piece in pieces if isinstance(piece, TextDelta)]
    assert len(texts) > 1
    assert "".join(texts).endswith(last.response.text)
    return last.response


ENTRY_POINTS: list[Callable[..., Any]] = [evaluate, evaluate_async, stream, stream_async]
entry_points = pytest.mark.parametrize("entry_point", ENTRY_POINTS)


def failure(
    entry_point: Callable[..., Any], platform: str, step: Any, **options: Any
) -> PromptEvaluationError:
    with (
        ScriptedServer(step) as server,
        connect(platform, server.url, **options) as adapter,
        pytest.raises(PromptEvaluationError) as caught,
    ):
        entry_point(adapter, prompt())
    report = "".join(traceback.format_exception(caught.value))
    assert SECRET not in report
    assert SESSION_TOKEN not in report
    return caught.value


@platforms
@entry_points
def test_run_executes_tools_and_returns_the_answer_on_each_platform(
    platform: str, entry_point: Callable[..., Any]
) -> None:
    steps = (
        Say("Let me see.", (Call("probe", {"a": 1}),), usage=Usage(20, 8, 5, 2, 3), reasoning="hm"),
        Say("All is well."),
    )
    with ScriptedServer(*steps) as server, connect(platform, server.url) as adapter:
        response = entry_point(adapter, prompt(tool()))
        first, second = server.requests
    assert response.text.endswith("All is well.")
    assert response.usage == TokenUsage(30, 13, 5, 3, 2)
    assert second.json["messages"][1]["content"][0]["signature"] == "scripted"
    check_request(platform, first, is_stream="stream" in entry_point.__name__)


def check_request(platform: str, request: Request, *, is_stream: bool) -> None:
    """Checks path, version and credentials, which each platform expects in other places."""
    match platform:
        case "google":
            end = "streamRawPredict" if is_stream else "rawPredict"
            assert request.path.endswith(f"/publishers/anthropic/models/{MODEL}:{end}")
            assert request.header("authorization") == f"Bearer {SECRET}"
        case "foundry":
            assert request.path.endswith("/messages")
            assert SECRET in (request.header("api-key"), request.header("x-api-key"))
        case _:
            end = "invoke-with-response-stream" if is_stream else "invoke"
            assert request.path == f"/model/{MODEL}/{end}"
            sent = request.header("authorization") or ""
            signed = platform == "bedrock, signed"
            assert sent.startswith("AWS4-HMAC-SHA256" if signed else f"Bearer {SECRET}")
            assert SECRET not in str(request.headers) or not signed
            assert "stream" not in request.json
    if platform != "foundry":
        assert request.json.keys() >= {"anthropic_version", "messages", "max_tokens"}
        assert "model" not in request.json
    assert "cache_control" not in request.json, "every platform accepts marks at blocks"


@pytest.mark.parametrize("platform", ["bedrock", "google"])
def test_betas_are_sent_in_the_body_or_header_of_the_platform(platform: str) -> None:
    options = {"betas": ["mine-2026", "yours-2026"]}
    with (
        ScriptedServer(Say("Hi")) as server,
        connect(platform, server.url, options=options) as adapter,
    ):
        evaluate(adapter, prompt())
        [request] = server.requests
    if platform == "bedrock":
        assert request.json["anthropic_beta"] == ["mine-2026", "yours-2026"]
    else:
        assert request.header("anthropic-beta") == "mine-2026,yours-2026"


# --- Failures


QUOTING = f"no {SECRET}"


@pytest.mark.parametrize(
    ("platform", "body", "status", "code"),
    [
        ("bedrock", {"message": f"Too many tokens, {QUOTING}"}, 429, "throttled"),
        ("bedrock, signed", {"message": QUOTING}, 403, "permission"),
        ("bedrock", {"message": "Input is too long for requested model."}, 400, "context_length"),
        ("bedrock", {"Message": QUOTING}, 404, "not_found"),
        ("google", {"error": {"code": 429, "message": QUOTING, "status": "X"}}, 429, "throttled"),
        ("google", [{"error": {"code": 400, "message": QUOTING}}], 400, "bad_request"),
        ("foundry", {"error": {"code": "429", "message": QUOTING}}, 429, "throttled"),
    ],
)
@entry_points
def test_platform_error_body_is_classified_with_its_message(
    entry_point: Callable[..., Any], platform: str, body: Any, status: int, code: str
) -> None:
    error = failure(entry_point, platform, Raw.json(body, status=status))
    assert (error.code, error.status) == (code, status)
    assert not error.message.startswith(("{", "[")) or "Message" in body


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("throttlingException", "throttled"),
        ("validationException", "bad_request"),
        ("modelTimeoutException", "timeout"),
        ("serviceUnavailableException", "server_error"),
        ("modelStreamErrorException", "server_error"),
    ],
)
@pytest.mark.parametrize("entry_point", [stream, stream_async])
def test_exception_in_a_bedrock_stream_is_classified_by_its_type(
    entry_point: Callable[..., Any], kind: str, code: str
) -> None:
    start = {"type": "message_start", "message": {"content": [], "usage": {}}}
    told = f"no {SESSION_TOKEN}"
    body = aws_event_stream.chunk(start) + aws_event_stream.failure(kind, told)
    error = failure(entry_point, "bedrock, signed", Raw(body, aws_event_stream.CONTENT_TYPE))
    # older SDKs raise a ValueError for all of them
    assert (error.code, "***" in error.message) == ("provider_failed" if IS_0 else code, True)


def test_token_in_an_error_body_with_status_200_is_masked() -> None:
    for platform in ("google", "bedrock", "bedrock, signed"):
        reply = Raw.json({"error": {"message": QUOTING}})
        assert "***" in failure(evaluate, platform, reply).message


EVENTS = aws_event_stream.chunk({"type": "message_start", "message": {"content": []}})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        EVENTS,
        EVENTS[:-5],
        EVENTS[:-1] + bytes([EVENTS[-1] ^ 1]),
        b"event: message_start\ndata: {}\n\n" * 9,
        bytes(1000),
        aws_event_stream.frame({":message-type": "event", ":event-type": "chunk"}, b"no json"),
        aws_event_stream.chunk({"type": "content_block_delta", "index": "x", "delta": 5}),
    ],
    ids=["nothing", "no end", "cut", "checksum", "SSE", "zeros", "no JSON", "types"],
)
@pytest.mark.parametrize("entry_point", [stream, stream_async])
def test_broken_bedrock_stream_is_malformed(entry_point: Callable[..., Any], body: bytes) -> None:
    error = failure(entry_point, "bedrock", Raw(body, aws_event_stream.CONTENT_TYPE))
    assert (error.phase, error.code) == ("response", "malformed")


def test_bedrock_stream_is_limited_by_max_reply_bytes() -> None:
    flood = aws_event_stream.chunk({"type": "ping"}) * 10_000
    reply = Raw(flood, aws_event_stream.CONTENT_TYPE)
    for entry_point in (stream, stream_async):
        error = failure(entry_point, "bedrock", reply, max_reply_bytes=100_000)
        assert error.code == "reply_too_large"


@entry_points
@platforms
def test_deadline_ends_an_evaluation_on_each_platform(
    entry_point: Callable[..., Any], platform: str
) -> None:
    ping = aws_event_stream.chunk({"type": "ping"})

    def trickle(connection: Connection) -> None:
        connection.send(
            b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/"
            + (b"vnd.amazon.eventstream\r\n\r\n" if "bedrock" in platform else b"json\r\n\r\n")
        )
        connection.trickle(repeat(ping if "bedrock" in platform else b" "))

    def attempt(seconds: float) -> DeadlineExceededError | None:
        with (
            HostileServer(trickle) as server,
            connect(platform, server.url) as adapter,
            pytest.raises(DeadlineExceededError) as caught,
        ):
            entry_point(adapter, prompt(), deadline=Deadline.after(seconds))
        return caught.value if server.requests else None

    with_growing_limit(attempt, 0.3)


@pytest.mark.parametrize("kind", ["", "Async"])
def test_bedrock_client_without_botocore_raises_import_error(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = getattr(anthropic, f"{kind}AnthropicBedrock")(api_key=SECRET, aws_region="r")
    # makes Python treat the module as not installed
    monkeypatch.setitem(__import__("sys").modules, "botocore", None)
    name = "async_client" if kind else "client"
    with pytest.raises(ImportError, match=r"pip install 'anthropic\[bedrock\]'"):
        AnthropicAdapter(MODEL, **{name: ready})


@platforms
def test_credential_with_invalid_header_characters_is_not_leaked(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, options = PLATFORMS[platform]
    broken = {key: f"{value}\n" if value == SECRET else value for key, value in options.items()}
    monkeypatch.setitem(PLATFORMS, platform, (name, broken))
    with (
        ScriptedServer(Fail(403), strict=False) as server,
        connect(platform, server.url) as adapter,
        pytest.raises(PromptEvaluationError) as caught,
    ):
        evaluate(adapter, prompt())
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    if platform != "bedrock, signed":  # it sends only a signature
        assert server.requests == ()
