"""All errors of providers and connections, through the real SDKs: each becomes a typed error with a
remedy, which is the same for each API.
"""

import asyncio
import gc
import io
import json
import logging
import os
import pickle
import socket
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from threading import Event as Signal
from typing import Any

import openai
import pytest

from support.agents import Args, answers, prompt, tool
from support.deadlines import NEVER, SOON, with_growing_limit
from support.hostile_server import HostileServer
from support.scripted_server import Call, Drop, Fail, Raw, Request, Say, ScriptedServer, Step
from support.sdk_clients import APIS, AnyAdapter, sdk_adapter, sdk_client
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.evaluation.errors import (
    DeadlineExceededError,
    PromptEvaluationError,
    ThrottleError,
)
from weakincentives.limits import Deadline, TokenUsage
from weakincentives.prompt import Prompt, ToolContext, ToolResult
from weakincentives.runtime.events import Event, ProviderCalled
from weakincentives.runtime.session import Session

KEY = "sk-marked-0123456789-secret"


@pytest.fixture(autouse=True)
def clean_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name in os.environ:
        if name.startswith(("ANTHROPIC_", "OPENAI_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv(
        "HOME", str(tmp_path_factory.mktemp("home"))
    )  # it would contain Anthropic's profiles
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


_MADE: list[AnyAdapter] = []


@pytest.fixture(autouse=True)
def close_clients() -> Iterator[None]:
    """Closes clients after each test: an error's traceback keeps adapter and connection in a cycle,
    whose parts are finalized in no order.
    """
    yield
    while _MADE:
        if client := _MADE.pop()._client:
            client.close()


# Any: prompts with any output type, options of all types.
def connect(
    server: HostileServer | ScriptedServer, api: str = "responses", **options: Any
) -> AnyAdapter:
    arguments: dict[str, Any] = {"api_key": KEY, "max_retries": 0, **options}
    _MADE.append(sdk_adapter(api, server.url, **arguments))
    return _MADE[-1]


def evaluate(adapter: AnyAdapter, asked: Prompt[Any], session: Session, **limits: Any) -> None:
    adapter.evaluate(asked, session=session, **limits)


def evaluate_async(
    adapter: AnyAdapter, asked: Prompt[Any], session: Session, **limits: Any
) -> None:
    asyncio.run(adapter.evaluate_async(asked, session=session, **limits))


def stream(adapter: AnyAdapter, asked: Prompt[Any], session: Session, **limits: Any) -> None:
    list(adapter.stream(asked, session=session, **limits))


type Run = Callable[..., None]

apis = pytest.mark.parametrize("api", APIS)
drivers = pytest.mark.parametrize("run", [evaluate, evaluate_async])
# These faults come from the transport, which the APIs share; the codecs' own tests cover the
# differences between APIs.
WAYS: list[tuple[str, Run]] = [
    *(("responses", evaluate), ("chat", evaluate), ("responses", evaluate_async)),
    *[("messages", run) for run in (evaluate, evaluate_async, stream) if "messages" in APIS],
]
ways = pytest.mark.parametrize(("api", "run"), WAYS)


def provider(api: str) -> str:
    return "anthropic" if api == "messages" else "openai"


def failure(api: Any, run: Run, *steps: Any, **options: Any) -> PromptEvaluationError:
    """Returns the error after one turn with a tool call and then `steps`."""
    session = Session()
    with (
        ScriptedServer(Say(calls=(Call("probe"),)), *steps) as server,
        pytest.raises(PromptEvaluationError) as caught,
    ):
        run(connect(server, api, **options), prompt(tool()), session)
    error = caught.value
    assert (error.provider, error.turns) == (
        provider(api) if error.phase == "request" or error.provider else "",
        2,
    )
    assert error.usage.total_tokens >= 15
    assert [message.content for message in answers(error.transcript)] == ["ok"]
    events = session[ProviderCalled].all()
    assert len(events) == 2
    assert (events[-1].error is None) is (events[-1].finish != "")
    return error


# --- Error statuses


@dataclass(frozen=True)
class Case:
    fail: Fail
    code: str
    remedy: str
    kind: type[PromptEvaluationError] = PromptEvaluationError


OPENAI_CASES = [  # Anthropic's errors have neither code nor param
    Case(Fail(400, "Bad thing", param="input[1]"), "bad_request", "'input[1]'"),
    Case(Fail(400, "Too long", "context_length_exceeded"), "context_length", "shorten the prompt"),
    Case(Fail(429, "No money", "insufficient_quota", 7), "quota", "billing"),
]
CASES = [
    Case(Fail(400, "Bad thing"), "bad_request", "see the message"),
    Case(Fail(400, "prompt is too long: 2 > 1"), "context_length", "shorten the prompt"),
    Case(Fail(400, "Your credit balance is too low"), "quota", "billing"),
    Case(Fail(401, "Incorrect key"), "authentication", "check the API key"),
    Case(Fail(402, "Pay first"), "quota", "billing"),
    Case(Fail(403, "Not yours"), "permission", "has access to this model"),
    Case(Fail(404, "No such model", "model_not_found"), "not_found", "model's name"),
    Case(Fail(404, "No such page"), "not_found", "base_url"),
    Case(Fail(408, "Slow"), "timeout", "try again"),
    Case(Fail(409, "Conflict"), "bad_request", "see the message"),
    Case(Fail(413, "Large"), "too_large", "shorten the prompt"),
    Case(Fail(422, "Odd"), "bad_request", "see the message"),
    Case(Fail(429, "Slow down", "rate_limit_exceeded", 7), "throttled", "slow down", ThrottleError),
    Case(Fail(500, "Broke"), "server_error", "try again later"),
    Case(Fail(503, "Busy"), "server_error", "try again later"),
    Case(Fail(529, "Overloaded"), "server_error", "try again later"),
]


@pytest.mark.claim("TL-37")
@pytest.mark.parametrize(
    ("api", "run", "case"),
    [
        (api, run, case)
        for api, run in WAYS
        for case in (CASES if api == "messages" else OPENAI_CASES + CASES)
    ],
)
def test_error_status_is_classified_with_a_remedy(api: Any, run: Run, case: Case) -> None:
    error = failure(api, run, case.fail)
    assert type(error) is case.kind
    assert (error.phase, error.code, error.provider, error.status) == (
        "request",
        case.code,
        provider(api),
        case.fail.status,
    )
    assert case.remedy in error.remedy
    assert case.remedy in str(error)
    assert (
        "the provider refused the API key" if case.fail.status == 401 else case.fail.message
    ) in error.message
    assert "APIStatusError" in [kind.__name__ for kind in type(error.__cause__).__mro__]
    pickle.loads(pickle.dumps(error))


@apis
@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("7", 7),
        ("0.5", 0.5),
        *[
            (header, None)
            for header in (
                "0",
                "-3",
                "nan",
                "inf",
                "1e300",
                "soon",
                "",
                "9" * 5000,
                "Wed, 21 Oct 2015 07:28:00 GMT",
            )
        ],
        (None, None),
    ],
)
def test_throttle_error_has_retry_after_only_for_a_valid_duration(
    api: str, header: str | None, seconds: float | None
) -> None:
    headers = () if header is None else (("retry-after", header),)
    error = failure(api, evaluate, Fail(429, headers=headers))
    assert isinstance(error, ThrottleError)
    assert error.retry_after == (None if seconds is None else timedelta(seconds=seconds))


@ways
@pytest.mark.parametrize(
    "body",
    [
        b"<html>bad gateway</html>",
        b"",
        b"null",
        b"[]",
        b"[1]",
        b'"text"',
        b'{"error": "text"}',
        b'{"error": {"code": 7}}',
        b'{"error": {"message": 7, "type": []}}',
        b'[{"error": {"message": null}}]',
        b'{"message": ["x"]}',
        b"\xff",
        b"[" * 100_000,
    ],
)
@pytest.mark.parametrize(("status", "code"), [(502, "server_error"), (404, "not_found")])
def test_error_without_the_usual_envelope_is_classified_by_status(
    api: str, run: Run, body: bytes, status: int, code: str
) -> None:
    for content_type in ("application/json", "text/html"):
        error = failure(api, run, Raw(body, content_type, status=status))
        assert (error.code, error.status) == (code, status)
        assert 0 < len(error.message) <= 500
        pickle.loads(pickle.dumps(error))


LONG = f"{'x' * 490}{KEY}{'x' * 100_000}"


@pytest.mark.parametrize(
    "step",
    [
        Raw(f"<html>{LONG}".encode(), "text/html", status=500),
        Raw.json({"error": {"message": LONG}}),
    ],
    ids=["page", "failure"],
)
def test_long_error_message_is_masked_and_truncated(step: Step) -> None:
    error = failure("chat", evaluate, step)
    assert len(error.message) == 500
    assert KEY[:4] not in error.message  # masked before it is truncated


@ways
def test_sdk_retries_succeed_or_raise_the_last_error(api: Any, run: Run) -> None:
    again = (("retry-after-ms", "1"),)
    with ScriptedServer(Fail(529, headers=again), Say("Hi.")) as server:
        run(connect(server, api, max_retries=1), prompt(), Session())
        first, second = server.requests
    assert first.json == second.json
    error = failure(api, run, Fail(500, headers=again), Fail(429, headers=again), max_retries=1)
    assert error.code == "throttled"


# --- No answer


@ways
def test_dropped_connection_is_a_connection_error(api: Any, run: Run) -> None:
    error = failure(api, run, Drop())
    assert (error.phase, error.code, error.status) == ("request", "connection", None)
    assert "check base_url and the network" in str(error)


@ways
def test_refused_connection_is_a_connection_error(api: Any, run: Run) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    adapter = sdk_adapter(api, f"http://127.0.0.1:{port}", api_key=KEY, max_retries=0)
    with pytest.raises(PromptEvaluationError, match="ConnectError") as caught:
        run(adapter, prompt(), Session())
    assert (caught.value.phase, caught.value.code, caught.value.turns) == (
        "request",
        "connection",
        1,
    )


@ways
def test_slow_answer_is_a_timeout(api: Any, run: Run) -> None:
    def attempt(seconds: float) -> PromptEvaluationError | None:
        steps = Say(calls=(Call("probe"),)), Raw(b"{}", delay=NEVER)
        with (
            ScriptedServer(*steps, strict=False) as server,
            pytest.raises(PromptEvaluationError) as caught,
        ):
            run(connect(server, api, timeout=seconds), prompt(tool()), Session())
        return caught.value if caught.value.turns == 2 else None

    error = with_growing_limit(attempt, 0.2)
    assert (error.phase, error.code) == ("request", "timeout")
    assert "raise timeout" in str(error)


def test_custom_client_keeps_its_own_timeout() -> None:
    slow = Raw(b"{}", delay=NEVER)
    with ScriptedServer(slow, slow, strict=False) as server:
        client = openai.OpenAI(base_url=server.openai_url, api_key=KEY, max_retries=0, timeout=0.2)
        adapter = OpenAIAdapter("m", client=client)
        for deadline in (None, Deadline.after(SOON)):
            with pytest.raises(PromptEvaluationError) as caught:
                evaluate(adapter, prompt(), Session(), deadline=deadline)
            assert caught.value.code == "timeout"
        client.close()


@ways
def test_deadline_during_a_request_raises_deadline_exceeded_error(api: Any, run: Run) -> None:
    def attempt(seconds: float) -> DeadlineExceededError | None:
        steps = Say(calls=(Call("probe"),)), Raw(b"{}", delay=NEVER)
        with ScriptedServer(*steps, strict=False) as server:
            adapter, deadline = connect(server, api), Deadline.after(seconds)
            with pytest.raises(DeadlineExceededError) as caught:
                run(adapter, prompt(tool()), Session(), deadline=deadline)
        return caught.value if len(server.requests) == 2 else None

    error = with_growing_limit(attempt)
    assert (error.phase, error.code, error.turns) == ("limit", "deadline", 2)
    assert error.usage == TokenUsage(10, 5)
    assert [message.content for message in answers(error.transcript)] == ["ok"]


@apis
def test_cancelling_a_request_leaves_the_adapter_usable(api: str) -> None:
    asked = Signal()

    def slow(request: Request) -> Raw:
        asked.set()
        return Raw(b"{}", delay=NEVER)

    async def main(adapter: AnyAdapter) -> str:
        running = asyncio.create_task(adapter.evaluate_async(prompt(), session=Session()))
        assert await asyncio.to_thread(asked.wait, SOON)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        return (await adapter.evaluate_async(prompt(), session=Session())).text

    with ScriptedServer(slow, Say("again")) as server:
        assert asyncio.run(main(connect(server, api))) == "again"


# --- Answers that are none

GARBAGE: list[tuple[str, Step]] = [
    ("page", Raw(b"<html>Welcome</html>", "text/html")),
    ("empty page", Raw(b"", "text/html")),
    ("broken", Raw(b'{"choices": [')),
    ("empty", Raw(b"")),
    ("latin", Raw(b'{"output": "\xe9"}')),
    ("object", Raw.json({})),
    ("null", Raw.json(None)),
    ("list", Raw.json([])),
    ("number", Raw.json(5)),
    ("string", Raw.json("text")),
    ("no choices", Raw.json({"choices": [], "usage": None})),
    ("no stop reason", Raw.json({"content": [], "stop_reason": None})),
    ("text as content", Raw.json({"content": "x", "stop_reason": "end_turn"})),
    ("deep", Raw(b"[" * 100_000)),
]


@ways
@pytest.mark.parametrize("step", [step for _, step in GARBAGE], ids=[name for name, _ in GARBAGE])
def test_status_200_without_an_answer_is_malformed(api: Any, run: Run, step: Step) -> None:
    error = failure(api, run, step)
    assert (error.phase, error.code, error.provider) == ("response", "malformed", provider(api))
    assert "base_url" in error.remedy


BROKEN_OFF = [
    (Say("cut", finish="length"), "truncated", "allow more output tokens"),
    (Say(calls=(Call("probe", '{"a'),), finish="length"), "truncated", "allow more output tokens"),
    (Say(refusal="I will not."), "refused", "I will not."),
    (Say("", finish="content_filter"), "content_filter", "content filter"),
]


@pytest.mark.parametrize(
    ("api", "run", "step", "code", "text"),
    [
        (*way, *case)
        for way in WAYS
        for case in BROKEN_OFF
        if way[0] != "messages" or case[1] != "content_filter"  # Anthropic has no filter
    ],
)
def test_incomplete_turn_is_classified(api: Any, run: Run, step: Say, code: str, text: str) -> None:
    session = Session()
    with ScriptedServer(step) as server, pytest.raises(PromptEvaluationError) as caught:
        run(connect(server, api), prompt(tool()), session)
    error = caught.value
    assert (error.phase, error.code, error.turns, error.usage) == (
        "response",
        code,
        1,
        TokenUsage(10, 5),
    )
    assert text in str(error)
    assert [message.success for message in answers(error.transcript)] == [False] * len(step.calls)


@drivers
def test_choice_with_an_upstream_error_raises_server_error(run: Run) -> None:
    choice = {"finish_reason": "error", "error": {"code": 502, "message": "upstream is gone"}}
    error = failure(
        "chat", run, Raw.json({"choices": [{**choice, "message": {"content": "Half an ans"}}]})
    )
    assert (error.phase, error.code, error.message) == (
        "response",
        "server_error",
        "upstream is gone",
    )


# --- Secrets


def report_of(error: BaseException) -> str:
    """Returns everything that a log, a debugger or an error tracker with causes would show."""
    texts = [str(error), repr(error), repr(error.args), "".join(traceback.format_exception(error))]
    if error.__cause__ is not None:
        texts.append(report_of(error.__cause__))
    return "\n".join(texts)


QUOTING = f"Incorrect key {KEY} or 'Bearer {KEY}'"


@pytest.mark.claim("TL-35")
@pytest.mark.parametrize(
    "step",
    [
        Fail(401, QUOTING),
        Fail(403, QUOTING),
        Fail(400, QUOTING),
        Fail(429, QUOTING),
        Fail(500, QUOTING),
        Raw(QUOTING.encode(), "text/html", status=502),
        Raw.json([QUOTING], status=500),
        Raw.json({"error": QUOTING}, status=404),
        Raw.json({"error": {"message": QUOTING}}),
        Drop(),
        Raw(b"{"),
    ],
    ids=["401", "403", "400", "429", "500", "page", "list", "text", "200", "drop", "broken"],
)
@pytest.mark.parametrize(
    ("api", "run", "variable"),
    [
        (api, run, variable)
        for api, run in WAYS
        for variable in (None, "API_KEY", "AUTH_TOKEN")
        if api == "messages" or variable != "AUTH_TOKEN"
    ],
)
def test_api_key_is_sent_only_to_the_provider(
    api: Any, run: Run, step: Step, variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    logging.getLogger().addHandler(handler)
    level = logging.getLogger("weakincentives").level
    logging.getLogger("weakincentives").setLevel(logging.DEBUG)
    session = Session()
    events: list[Event] = []
    session.bus.subscribe(Event, events.append)
    if variable:
        monkeypatch.setenv(f"{provider(api).upper()}_{variable}", KEY)
    try:
        with ScriptedServer(step) as server, pytest.raises(PromptEvaluationError) as caught:
            run(connect(server, api, api_key=None if variable else KEY), prompt(), session)
        logging.getLogger("weakincentives").error("as an application would", exc_info=caught.value)
    finally:
        logging.getLogger().removeHandler(handler)
        logging.getLogger("weakincentives").setLevel(level)
    [request] = server.requests
    sent = [request.header("authorization"), request.header("x-api-key")]
    assert f"Bearer {KEY}" in sent or (
        api == "messages" and KEY in sent
    )  # depends on the SDK's version
    assert KEY.encode() not in request.body
    for text in (
        report_of(caught.value),
        repr(events),
        log.getvalue(),
        repr(caught.value.transcript),
    ):
        assert KEY not in text
    assert KEY not in repr(session[ProviderCalled].all())


@ways
@pytest.mark.parametrize(
    "key", [f"{KEY}\n", f" {KEY}", f"{KEY}\r\n", "sk-münchen", "sk-\x00", "sk two"]
)
def test_api_key_with_invalid_header_characters_is_rejected_before_sending(
    api: Any, run: Run, key: str
) -> None:
    with (
        ScriptedServer() as server,
        pytest.raises(PromptEvaluationError, match="the API key contains") as caught,
    ):
        run(connect(server, api, api_key=key), prompt(), Session())
    assert (caught.value.phase, caught.value.code, caught.value.provider) == (
        "request",
        "authentication",
        provider(api),
    )
    assert "line break" in caught.value.remedy
    assert key not in report_of(caught.value)
    assert key.strip() not in report_of(caught.value)
    assert caught.value.__cause__ is None


@apis
@pytest.mark.parametrize(
    ("key", "steps", "message"),
    [(f"{KEY}\n", (), "the API key contains"), (KEY, (Fail(400, QUOTING),), r"key \*\*\*")],
)
def test_key_of_a_custom_client_is_checked_and_masked(
    api: str, key: str, steps: tuple[Step, ...], message: str
) -> None:
    with ScriptedServer(*steps) as server:
        client = sdk_client(api, server.url, api_key=key, max_retries=0)
        with pytest.raises(PromptEvaluationError, match=message) as caught:
            evaluate(sdk_adapter(api, client=client), prompt(), Session())
        client.close()
    assert KEY not in report_of(caught.value)


SAID = {"message": f"no capacity for {KEY}"}


@drivers
@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize(
    "body", [{"error": SAID}, {"choices": [{"error": SAID}]}, {"error": SAID, "status": "failed"}]
)
def test_error_with_status_200_does_not_leak_the_key(
    run: Run, api: str, body: dict[str, Any]
) -> None:
    with ScriptedServer(Raw.json(body)) as server, pytest.raises(PromptEvaluationError) as caught:
        run(connect(server, api), prompt(), Session())
    assert KEY not in report_of(caught.value)
    if "choices" not in body or api == "chat":
        assert caught.value.message == "no capacity for ***"


@pytest.mark.parametrize(
    "step", [Fail(400, "no seat here"), Raw.json({"error": {"message": "no seat here"}})]
)
def test_short_api_key_is_not_masked_in_messages(step: Step) -> None:
    with ScriptedServer(step) as server, pytest.raises(PromptEvaluationError, match="no seat here"):
        evaluate(connect(server, api_key="seat"), prompt(), Session())


@pytest.mark.parametrize(
    ("api", "event"),
    [
        ("chat", {"choices": [{"delta": {}, "error": SAID, "finish_reason": "error"}]}),
        ("chat", {"error": SAID}),
        *[("messages", {"type": "error", "error": SAID}) for api in APIS if api == "messages"],
        ("responses", {"type": "error", **SAID}),
        ("responses", {"type": "response.failed", "response": {"status": "failed", "error": SAID}}),
    ],
)
def test_error_in_a_stream_event_does_not_leak_the_key(api: str, event: dict[str, Any]) -> None:
    reply = Raw(f"data: {json.dumps(event)}\n\n".encode(), "text/event-stream")
    session = Session()
    events: list[Event] = []
    session.bus.subscribe(Event, events.append)
    with (
        ScriptedServer(reply) as server,
        pytest.raises(PromptEvaluationError, match=r"no capacity for \*\*\*") as caught,
    ):
        stream(connect(server, api), prompt(), session)
    assert KEY not in report_of(caught.value)
    assert KEY not in repr(events)


@ways
def test_missing_api_key_error_names_the_environment_variable(api: Any, run: Run) -> None:
    with (
        ScriptedServer() as server,
        pytest.raises(PromptEvaluationError, match=f"{provider(api).upper()}_API_KEY") as caught,
    ):
        run(connect(server, api, api_key=None), prompt(), Session())
    assert (caught.value.phase, caught.value.code) == ("request", "authentication")
    assert ".; " not in str(caught.value)  # our remedy follows the SDK's sentence
    assert "Missing credentials" not in (report := report_of(caught.value))
    assert "authentication method" not in report
    assert caught.value.__cause__ is None


@pytest.mark.claim("TL-34")
def test_failing_tool_sends_only_its_message_to_the_provider() -> None:
    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        try:
            raise KeyError(KEY)
        except KeyError as cause:
            raise RuntimeError("no access") from cause

    with ScriptedServer(Say(calls=(Call("probe"),)), Say("done")) as server:
        evaluate(connect(server), prompt(tool(handler)), Session())
    assert [item.get("output") for item in server.requests[1].json["input"]][-1] == "no access"
    assert all(KEY.encode() not in request.body for request in server.requests)


# --- What the author did wrong


@ways
def test_unserializable_options_raise_client_error(api: str, run: Run) -> None:
    with (
        ScriptedServer() as server,
        pytest.raises(PromptEvaluationError, match="not JSON serializable") as caught,
    ):
        run(connect(server, api, options={"temperature": object()}), prompt(), Session())
    assert (caught.value.phase, caught.value.code) == ("request", "client_error")
    assert "check the adapter's options" in str(caught.value)


def test_connections_are_closed_after_a_failure() -> None:
    def slow(request: Request) -> Raw:
        return Raw.json({}, status=500)

    for _ in range(2):
        with ScriptedServer(slow, Drop()) as server:
            adapter = connect(server)
            for _ in range(2):
                with pytest.raises(PromptEvaluationError):
                    evaluate_async(adapter, prompt(), Session())
        del adapter
        # an unclosed connection would fail this test with a ResourceWarning
        gc.collect()
