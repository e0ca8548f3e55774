"""The adapter over the real LiteLLM against a scripted server, on the routes of two formats."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event
from traceback import format_exception
from typing import Any

import pytest

from support.agents import Args, answers, prompt, tool
from support.deadlines import NEVER, SOON
from support.litellm_routes import ANTHROPIC, KEY, OPENAI, connect, routes
from support.scripted_server import Call, Fail, Raw, Say, ScriptedServer, Usage
from weakincentives.adapters.core import PromptResponse
from weakincentives.adapters.litellm import LiteLLMAdapter
from weakincentives.evaluation.errors import (
    PromptEvaluationError,
    ThrottleError,
)
from weakincentives.evaluation.response import Completed, TextDelta
from weakincentives.limits import TokenUsage
from weakincentives.prompt import Prompt
from weakincentives.runtime.events import (
    ProviderCalled,
    ToolInvoked,
)
from weakincentives.runtime.session import Session

type Run = Callable[..., PromptResponse[Any]]


def evaluate(
    adapter: LiteLLMAdapter, asked: Prompt[Any], session: Session, **limits: Any
) -> PromptResponse[Any]:
    return adapter.evaluate(asked, session=session, **limits)


def evaluate_async(
    adapter: LiteLLMAdapter, asked: Prompt[Any], session: Session, **limits: Any
) -> PromptResponse[Any]:
    return asyncio.run(adapter.evaluate_async(asked, session=session, **limits))


drivers = pytest.mark.parametrize("run", [evaluate, evaluate_async])


@dataclass(frozen=True)
class Sum:
    total: int


# --- A conversation


@routes
@drivers
def test_run_executes_tools_and_returns_the_answer(model: str, run: Run) -> None:
    session = Session()
    calls = (Call("probe", {"a": 1}), Call("probe", {"a": 2}))
    with ScriptedServer(
        Say(calls=calls, usage=Usage(20, 8, 5, 2, written=3, for_hour=1), reasoning="hm"),
        Say("Both done.", model="another"),
    ) as server:
        response = run(connect(server, model), prompt(tool()), session)
        first, second = server.requests
    assert (response.text, response.turns, response.output) == ("Both done.", 2, None)
    for_hour = 1 if model == ANTHROPIC else 0
    assert response.usage == TokenUsage(30, 13, 5, 3, 2, for_hour)
    models = [event.model for event in session[ProviderCalled].all()]
    assert models == [model.partition("/")[2], "another"]
    assert [event.params for event in session[ToolInvoked].all()] == [Args(1), Args(2)]
    assert first.path == ("/v1/messages" if model == ANTHROPIC else "/v1/chat/completions")
    assert first.json["model"] == model.partition("/")[2]
    sent = second.json["messages"]
    if model == ANTHROPIC:
        assert first.header("x-api-key") == KEY
        assert sent[1]["content"][0] == {
            "type": "thinking",
            "thinking": "hm",
            "signature": "scripted",
        }
        assert [block["content"] for block in sent[2]["content"]] == ["ok", "ok"]
    else:
        assert first.header("authorization") == f"Bearer {KEY}"
        assert [message["content"] for message in sent if message["role"] == "tool"] == ["ok", "ok"]
        assert "provider_specific_fields" not in sent[1]


@routes
def test_changed_section_is_appended_to_the_conversation(model: str) -> None:
    with ScriptedServer(Say("one", reasoning="hm"), Say("two")) as server:
        adapter, session = connect(server, model), Session()
        first = adapter.evaluate(prompt(text="Go."), session=session, message="Hi")
        adapter.evaluate(
            prompt(text="Stop."), session=session, message="So?", conversation=first.conversation
        )
        sent = server.requests[1].json
    rules = sent["system"][0]["text"] if model == ANTHROPIC else sent["messages"][0]["content"]
    assert rules == "## 1. Task\n\nGo."
    texts = [
        text
        for message in sent["messages"]
        if message["role"] == "user"
        for text in (
            [block["text"] for block in message["content"]]
            if model == ANTHROPIC
            else [message["content"]]
        )
    ]
    assert texts[0] == "Hi"
    assert "\n\n".join(texts[1:]).endswith(
        "Stop.\n\nSo?"
    )  # one message if the roles must alternate


def test_provider_items_are_not_sent_to_another_provider() -> None:
    with ScriptedServer(Say("one", reasoning="hm"), Say("two")) as server:
        asked, session = prompt(text="Go."), Session()
        first = connect(server, ANTHROPIC).evaluate(asked, session=session, message="Hi")
        connect(server, OPENAI).evaluate(
            asked, session=session, message="So?", conversation=first.conversation
        )
        assert server.requests[1].json["messages"] == [
            {"role": "system", "content": "## 1. Task\n\nGo."},
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": "one"},
            {"role": "user", "content": "So?"},
        ]


@routes
def test_stream_yields_text_chunks_and_the_same_response(model: str) -> None:
    script = (
        Say(
            "Let me see.",
            (Call("probe", {"a": 1}, "call_same"),),
            usage=Usage(20, 8, cached=5),
            reasoning="hm",
        ),
        Say("Done."),
    )

    async def streamed(adapter: LiteLLMAdapter) -> list[Any]:
        return [event async for event in adapter.stream_async(prompt(tool()), session=Session())]

    with ScriptedServer(*script * 3) as server:
        adapter = connect(server, model)
        whole = evaluate(adapter, prompt(tool()), Session())
        runs = (
            list(adapter.stream(prompt(tool()), session=Session())),
            asyncio.run(streamed(adapter)),
        )
        sent = [request.json["messages"] for request in server.requests]
    for events in runs:
        pieces = [event.text for event in events if isinstance(event, TextDelta)]
        assert "".join(pieces) == "Let me see.Done."
        assert len(pieces) > 2
        last = events[-1]
        assert isinstance(last, Completed)
        assert (last.response.text, last.response.turns, last.response.usage) == (
            "Done.",
            2,
            whole.usage,
        )
    assert [message["content"] for message in sent[3]] == [
        message["content"] for message in sent[1]
    ]
    assert [message["content"] for message in sent[5]] == [
        message["content"] for message in sent[1]
    ]


@routes
@pytest.mark.parametrize("body", [b"{}", b"<html>"])
def test_reply_that_is_not_a_stream_is_malformed(model: str, body: bytes) -> None:
    with (
        ScriptedServer(Raw(body)) as server,
        pytest.raises(PromptEvaluationError, match="malformed"),
    ):
        list(connect(server, model).stream(prompt(), session=Session()))


# --- Typed output


@routes
@drivers
def test_typed_output_uses_the_native_response_format_if_supported(model: str, run: Run) -> None:
    with ScriptedServer(Say('{"total": "three"}'), Say('{"total": 3}')) as server:
        response = run(connect(server, model), prompt(output=Sum), Session())
        first = server.requests[0].json
    assert response.output == Sum(3)
    assert response.turns == 2
    form = first["output_format"] if model == ANTHROPIC else first["response_format"]
    assert form["type"] == "json_schema"
    assert "JSON schema" not in str(first["messages"])


@pytest.mark.parametrize(
    ("model", "options"),
    [("text-completion-openai/davinci-002", {}), (OPENAI, {"structured_output": "prompted"})],
)
def test_typed_output_without_native_support_is_prompted_and_repaired(
    model: str, options: dict[str, Any]
) -> None:
    adapter = LiteLLMAdapter(model, **options)
    with ScriptedServer(Say("Three."), Say('```json\n{"total": 3}\n```')) as server:
        # The first adapter shows the result of "auto" for a model; only chat routes can be used.
        prompted = connect(server, OPENAI, structured_output=adapter._options.structured_output)
        response = evaluate(prompted, prompt(output=Sum), Session())
        first, second = server.requests
    assert response.output == Sum(3)
    assert "response_format" not in first.json
    assert '"total"' in first.json["messages"][0]["content"]
    assert "does not fit the required JSON schema" in second.json["messages"][-1]["content"]


# --- Failures


@dataclass(frozen=True)
class Case:
    step: Any
    code: str
    status: int


CASES = [  # in addition to the conformance suite
    Case(Fail(400, "This model's maximum context length is 10 tokens"), "context_length", 400),
    Case(Fail(403, f"Not yours {KEY}"), "permission", 403),
    Case(Fail(429, "Slow down", retry_after=7), "throttled", 429),
    Case(Fail(529, "Overloaded"), "server_error", 529),
]


@routes
@drivers
@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.step)[:40])
def test_failure_is_classified_by_the_providers_reply(model: str, run: Run, case: Case) -> None:
    session = Session()
    with (
        ScriptedServer(Say(calls=(Call("probe"),)), case.step) as server,
        pytest.raises(PromptEvaluationError) as caught,
    ):
        run(connect(server, model), prompt(tool()), session)
    error = caught.value
    assert (error.phase, error.code, error.provider) == ("request", case.code, "litellm")
    assert error.status == case.status or (error.status, case.status) == (500, 529)
    assert isinstance(error, ThrottleError) is (case.code == "throttled")
    if isinstance(error, ThrottleError):
        assert error.retry_after is not None
        assert error.retry_after.total_seconds() == 7
    assert error.turns == 2
    assert [message.content for message in answers(error.transcript)] == ["ok"]
    cause: BaseException | None = error
    while cause is not None:
        assert KEY not in f"{cause} {cause!r}"
        cause = cause.__cause__


@routes
@drivers
@pytest.mark.parametrize("source", ["argument", "environment"])
@pytest.mark.parametrize("status", [400, 401, 404, 429, 500])
def test_api_key_is_sent_only_to_the_provider(
    model: str, run: Run, source: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, KEY if source == "environment" else "")
    session = Session()
    with (
        ScriptedServer(Fail(status, f"What to do with {KEY}?")) as server,
        pytest.raises(PromptEvaluationError) as caught,
    ):
        run(
            connect(server, model, api_key=KEY if source == "argument" else None), prompt(), session
        )
    assert KEY in "".join(value for _, value in server.requests[0].headers)
    assert KEY not in "".join(format_exception(caught.value))
    assert KEY not in repr(session[ProviderCalled].all())


@drivers
@pytest.mark.parametrize("model", [OPENAI, ANTHROPIC, "gemini/gemini-2.5-pro"])
def test_missing_api_key_is_reported_without_litellms_own_error(
    model: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with ScriptedServer() as server, pytest.raises(PromptEvaluationError) as caught:
        run(connect(server, model, api_key=None), prompt(), Session())
    assert (caught.value.code, caught.value.message) == (
        "authentication",
        "the API key is missing",
    )
    assert caught.value.__cause__ is None


@drivers
@pytest.mark.parametrize("model", [OPENAI, ANTHROPIC])
@pytest.mark.parametrize("code", [["x", KEY], {"x": KEY}, 7, True])
def test_error_code_of_any_type_is_classified(model: str, run: Run, code: object) -> None:
    body = Raw.json({"error": {"message": f"No {KEY}", "type": "x", "code": code}}, status=400)
    with ScriptedServer(body) as server, pytest.raises(PromptEvaluationError) as caught:
        run(connect(server, model), prompt(), Session())
    assert (caught.value.code, caught.value.status) == ("bad_request", 400)
    assert KEY not in "".join(format_exception(caught.value))


@routes
@drivers
@pytest.mark.parametrize("key", [f"{KEY}\n", "sk-münchen", "sk-\x00-marked"])
def test_api_key_with_invalid_header_characters_is_rejected_before_sending(
    model: str, run: Run, key: str
) -> None:
    with (
        ScriptedServer() as server,
        pytest.raises(PromptEvaluationError, match="the API key contains") as caught,
    ):
        run(connect(server, model, api_key=key), prompt(), Session())
    assert caught.value.code == "authentication"
    assert caught.value.__cause__ is None


@routes
@drivers
def test_slow_and_unreachable_providers_have_different_codes(model: str, run: Run) -> None:
    with (
        ScriptedServer(Raw(b"{}", delay=NEVER), strict=False) as server,
        pytest.raises(PromptEvaluationError) as slow,
    ):
        run(connect(server, model, timeout=0.3), prompt(), Session())
    assert (slow.value.phase, slow.value.code) == ("request", "timeout")
    with pytest.raises(PromptEvaluationError) as absent:
        run(
            LiteLLMAdapter(model, base_url="http://127.0.0.1:9", api_key=KEY, max_retries=0),
            prompt(),
            Session(),
        )
    assert (absent.value.phase, absent.value.code) == ("request", "connection")


@drivers
def test_max_retries_uses_the_retries_of_the_providers_client(run: Run) -> None:
    with ScriptedServer(Fail(500, headers=(("retry-after-ms", "1"),)), Say("done")) as server:
        assert run(connect(server, max_retries=1), prompt(), Session()).text == "done"


# --- LiteLLM's own doubles


def test_litellm_mock_response_needs_no_server() -> None:
    adapter = LiteLLMAdapter(OPENAI, api_key=KEY, options={"mock_response": "Hello."})
    assert evaluate(adapter, prompt(), Session()).text == "Hello."


@pytest.mark.parametrize(
    ("mock", "code"),
    [
        ("litellm.RateLimitError", "throttled"),
        ("litellm.ContextWindowExceededError", "context_length"),
    ],
)
def test_litellm_mocked_errors_are_classified(mock: str, code: str) -> None:
    adapter = LiteLLMAdapter(OPENAI, api_key=KEY, options={"mock_response": mock})
    with pytest.raises(PromptEvaluationError) as caught:
        evaluate(adapter, prompt(), Session())
    assert caught.value.code == code


# --- LiteLLM's own logging

MANY_LOOPS = """
import asyncio
import sys
import threading
from weakincentives import MarkdownSection, Prompt
from weakincentives.adapters.litellm import LiteLLMAdapter
from weakincentives.runtime.session import Session

adapter = LiteLLMAdapter(sys.argv[1], base_url=sys.argv[2], api_key="sk-test-test", max_retries=0)
prompt = Prompt(ns="tests", key="loops", sections=[MarkdownSection(title="Task", template="Go.")])


async def stream():
    return [event async for event in adapter.stream_async(prompt, session=Session())]


async def many():
    await asyncio.gather(*[adapter.evaluate_async(prompt, session=Session()) for _ in range(20)])


for _ in range(3):
    asyncio.run(adapter.evaluate_async(prompt, session=Session()))
    asyncio.run(stream())
asyncio.run(many())
for _ in range(20):
    adapter.evaluate(prompt, session=Session())
    list(adapter.stream(prompt, session=Session()))
names = [thread.name for thread in threading.enumerate()]
print(len([name for name in names if name.startswith("litellm-logging")]) <= 8)
"""


@routes
def test_many_event_loops_log_nothing_and_leak_no_threads(model: str) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("LOGGING_")}
    with ScriptedServer(*[Say("Done.")] * 66) as server:
        url = server.url if model == ANTHROPIC else server.openai_url
        command = [sys.executable, "-c", MANY_LOOPS, model, url]
        ran = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "True\n", "")


@pytest.mark.parametrize("per_call", [False, True])
def test_litellm_success_callback_is_called(
    per_call: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called = Event()
    callbacks = [lambda *_: called.set()]
    with ScriptedServer(Say("Done.")) as server:
        adapter = connect(server, options={"success_callback": callbacks} if per_call else {})
        if not per_call:
            monkeypatch.setattr(adapter.litellm, "success_callback", callbacks)
        evaluate(adapter, prompt(), Session())
        assert called.wait(SOON)


def test_litellm_async_success_callback_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def evaluate_and_wait(adapter: LiteLLMAdapter) -> None:
        called = asyncio.Event()

        async def callback(*_: object) -> None:
            called.set()

        monkeypatch.setattr(adapter.litellm, "_async_success_callback", [callback])
        await adapter.evaluate_async(prompt(), session=Session())
        await asyncio.wait_for(called.wait(), SOON)  # LiteLLM calls it later, in the same loop

    with ScriptedServer(Say("Done.")) as server:
        asyncio.run(evaluate_and_wait(connect(server)))


# --- Importing

IMPORTED = """
import sys
import weakincentives.adapters.litellm as module
assert "litellm" not in sys.modules
def refuse(event, args):
    if event == "socket.getaddrinfo":
        sys.exit(f"{event} {args}")
sys.addaudithook(refuse)
module.LiteLLMAdapter("openai/gpt-4o")
assert "litellm" in sys.modules
"""


def test_litellm_is_imported_on_first_adapter_without_network_access() -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("LITELLM_")}
    ran = subprocess.run(
        [sys.executable, "-c", IMPORTED], env=env, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
