"""The real `openai` SDK accepts the scripted server as OpenAI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from openai import (
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    AsyncOpenAI,
    AuthenticationError,
    BadRequestError,
    InternalServerError,
    NotFoundError,
    OpenAI,
    RateLimitError,
)

from .deadlines import NEVER, SOON
from .scripted_server import (
    Call,
    Drop,
    Fail,
    Raw,
    Say,
    ScriptedServer,
    Step,
    Usage,
)

MODEL = "scripted-model"
PARALLEL = Say("thinking aloud", (Call("add", {"a": 1}), Call("mul", '{"b": 2}')))


def client(server: ScriptedServer, timeout: float = SOON) -> OpenAI:
    return OpenAI(base_url=server.openai_url, api_key="test", max_retries=0, timeout=timeout)


# The SDK's parameter types are unions of dozens of TypedDicts; lists of `Any` are simpler here.
def chat(
    server: ScriptedServer, messages: list[Any] | None = None, *, timeout: float = SOON
) -> Any:
    with client(server, timeout) as api:
        asked = messages or [{"role": "user", "content": "hi"}]
        return api.chat.completions.create(model=MODEL, messages=asked)


def respond(
    server: ScriptedServer, items: list[Any] | None = None, *, timeout: float = SOON
) -> Any:
    with client(server, timeout) as api:
        asked = items or [{"role": "user", "content": "hi"}]
        return api.responses.create(model=MODEL, input=asked)


type Ask = Callable[..., Any]
both_apis = pytest.mark.parametrize("ask", [chat, respond])


# --- Two turns with parallel calls


def test_chat_plays_two_turns_with_parallel_calls() -> None:
    with ScriptedServer(PARALLEL, Say("3 and 2", usage=Usage(20, 7, cached=4))) as server:
        messages: list[Any] = [{"role": "user", "content": "hi"}]
        first = chat(server, messages).choices[0]
        assert first.finish_reason == "tool_calls"
        messages.append(first.message.model_dump(exclude_none=True))
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": "ok"}
            for call in first.message.tool_calls
        ]
        second = chat(server, messages)
    names = [(call.function.name, call.function.arguments) for call in first.message.tool_calls]
    assert names == [("add", '{"a": 1}'), ("mul", '{"b": 2}')]
    assert second.choices[0].message.content == "3 and 2"
    assert second.choices[0].finish_reason == "stop"
    assert (second.usage.prompt_tokens, second.usage.total_tokens) == (20, 27)
    assert second.usage.prompt_tokens_details.cached_tokens == 4
    sent = server.requests[1].json["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool"]


def test_responses_plays_two_turns_with_parallel_calls() -> None:
    first_turn = Say(PARALLEL.text, PARALLEL.calls, reasoning="hm")
    with ScriptedServer(first_turn, Say("3 and 2", usage=Usage(20, 7, reasoning=3))) as server:
        items: list[Any] = [{"role": "user", "content": "hi"}]
        first = respond(server, items)
        items += [item.to_dict(mode="json") for item in first.output]
        items += [
            {"type": "function_call_output", "call_id": item.call_id, "output": "ok"}
            for item in first.output
            if item.type == "function_call"
        ]
        second = respond(server, items)
    kinds = [item.type for item in first.output]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]
    assert first.output[0].encrypted_content == "encrypted:hm"
    assert [item.arguments for item in first.output[2:]] == ['{"a": 1}', '{"b": 2}']
    assert second.output_text == "3 and 2"
    assert second.usage.output_tokens_details.reasoning_tokens == 3
    assert server.requests[1].json["input"] == items


# --- How a turn ends


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_a_turn_cut_short_says_so_in_both(finish: Any) -> None:
    with ScriptedServer(Say("par", finish=finish), Say("par", finish=finish)) as server:
        assert chat(server).choices[0].finish_reason == finish
        response = respond(server)
    assert response.status == "incomplete"
    reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
    assert response.incomplete_details.reason == reasons[finish]


def test_a_refusal_stands_apart_from_the_text_in_both() -> None:
    with ScriptedServer(Say(refusal="no"), Say(refusal="no")) as server:
        message = chat(server).choices[0].message
        response = respond(server)
    assert (message.content, message.refusal) == (None, "no")
    assert response.output_text == ""
    assert response.output[0].content[0].refusal == "no"


# --- Streams


def test_a_chat_stream_adds_up_to_the_turn() -> None:
    with ScriptedServer(PARALLEL, Say(refusal="no")) as server, client(server) as api:
        asked: Any = [{"role": "user", "content": "hi"}]
        with api.chat.completions.stream(
            model=MODEL, messages=asked, stream_options={"include_usage": True}
        ) as events:
            final = events.get_final_completion()
        with api.chat.completions.stream(model=MODEL, messages=asked) as events:
            refused = events.get_final_completion()
    message = final.choices[0].message
    assert message.content == PARALLEL.text
    assert [(call.id, call.function.arguments) for call in message.tool_calls or ()] == [
        ("call_1", '{"a": 1}'),
        ("call_2", '{"b": 2}'),
    ]
    assert final.usage is not None
    assert final.usage.total_tokens == 15
    assert refused.choices[0].message.refusal == "no"
    assert refused.usage is None


@pytest.mark.parametrize(
    "say", [Say(PARALLEL.text, PARALLEL.calls, reasoning="hm"), Say(refusal="no")]
)
def test_a_responses_stream_adds_up_to_the_turn(say: Say) -> None:
    with ScriptedServer(say, say) as server, client(server) as api:
        with api.responses.stream(model=MODEL, input="hi") as events:
            final = events.get_final_response()
        with api.responses.create(model=MODEL, input="hi", stream=True) as raw:
            numbered = [event.to_dict() for event in raw]
    assert final.output_text == say.text
    assert [item.type for item in final.output].count("function_call") == len(say.calls)
    assert [event["sequence_number"] for event in numbered] == list(range(len(numbered)))
    deltas = [event for event in numbered if str(event["type"]).endswith(".delta")]
    written = "".join(str(event["delta"]) for event in deltas)
    spoken = [say.reasoning, say.text, say.refusal, *(call.text for call in say.calls)]
    assert written == "".join(part for part in spoken if part)


def test_a_responses_stream_cut_short_ends_in_an_incomplete_response() -> None:
    with (
        ScriptedServer(Say("par", finish="length")) as server,
        client(server) as api,
        api.responses.create(model=MODEL, input="hi", stream=True) as events,
    ):
        last = list(events)[-1]
    assert last.type == "response.incomplete"
    assert last.response.status == "incomplete"
    assert last.response.output_text == "par"


# --- Faults


@both_apis
@pytest.mark.parametrize(
    ("fail", "error"),
    [
        (Fail(401, "bad key", "invalid_api_key"), AuthenticationError),
        (Fail(404, "no model", "model_not_found", param="model"), NotFoundError),
        (Fail(429, "slow down", "rate_limit_exceeded", retry_after=1.5), RateLimitError),
        (Fail(500, "oops"), InternalServerError),
    ],
)
def test_a_failure_is_the_sdk_s_own_exception(
    ask: Ask, fail: Fail, error: type[APIStatusError]
) -> None:
    with ScriptedServer(fail) as server, pytest.raises(error) as caught:
        ask(server)
    assert (caught.value.status_code, caught.value.code) == (fail.status, fail.code)
    assert caught.value.param == fail.param
    assert caught.value.request_id == "req_1"
    seconds = caught.value.response.headers.get("retry-after")
    assert seconds == (None if fail.retry_after is None else "1.5")


@both_apis
def test_a_page_with_status_200_arrives_as_text(ask: Ask) -> None:
    page = Raw(b"<html>proxy</html>", content_type="text/html")
    with ScriptedServer(page) as server:
        assert ask(server) == "<html>proxy</html>"


@both_apis
def test_broken_json_with_status_200_raises_a_decode_error(ask: Ask) -> None:
    with ScriptedServer(Raw(b'{"id": ')) as server, pytest.raises(json.JSONDecodeError):
        ask(server)


@both_apis
@pytest.mark.parametrize("step", [Drop(), Raw(b"", delay=NEVER)])
def test_no_answer_is_a_connection_error(ask: Ask, step: Step) -> None:
    with ScriptedServer(step) as server, pytest.raises(APIConnectionError) as caught:
        ask(server, timeout=0.2)
    assert isinstance(caught.value, APITimeoutError) == isinstance(step, Raw)


@both_apis
def test_exhaustion_has_a_code_of_its_own(ask: Ask) -> None:
    with ScriptedServer(strict=False) as server, pytest.raises(BadRequestError) as caught:
        ask(server)
    assert caught.value.code == "script_exhausted"


# --- Async


async def _both_async(server: ScriptedServer) -> tuple[str | None, str]:
    async with AsyncOpenAI(
        base_url=server.openai_url, api_key="test", max_retries=0, timeout=SOON
    ) as api:
        asked: Any = [{"role": "user", "content": "hi"}]
        completion = await api.chat.completions.create(model=MODEL, messages=asked)
        response = await api.responses.create(model=MODEL, input=asked)
        return completion.choices[0].message.content, response.output_text


def test_the_async_client_is_served_alike() -> None:
    with ScriptedServer(Say("a"), Say("b")) as server:
        assert asyncio.run(_both_async(server)) == ("a", "b")
