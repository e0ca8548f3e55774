"""Replies that real servers send, according to public bug reports, and the adapters' results.

Each row runs synchronously, asynchronously and streamed; a table gives the expected results.
"""

import asyncio
import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any, ClassVar, override

import openai
import pytest
from openai.types.chat import ChatCompletion

from support.agents import Args, prompt, tool
from support.scripted_server import Raw, Say, ScriptedServer
from support.sdk_clients import APIS, sdk_adapter, sdk_client
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.core import LoopAdapter
from weakincentives.adapters.fallback import FallbackAdapter
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.errors import PromptEvaluationError, ThrottleError
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.evaluation.response import Completed, PromptResponse
from weakincentives.limits import Deadline
from weakincentives.prompt import Prompt, ToolContext, ToolResult
from weakincentives.runtime.events import ProviderCalled
from weakincentives.runtime.session import Session

# Any below: a server's JSON, and prompts and responses with any output type
USAGE = {"prompt_tokens": 11, "completion_tokens": 7}


def connect(server: ScriptedServer, api: str = "chat", **options: Any) -> LoopAdapter:
    return sdk_adapter(api, server.url, api_key="unused", max_retries=0, **options)


def chunk(delta: Any, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def said(*events: Any, done: bool = True) -> Raw:
    texts = [it if isinstance(it, str) else f"data: {json.dumps(it)}\n\n" for it in events]
    body = "".join(texts) + ("data: [DONE]\n\n" if done else "")
    return Raw(body.encode(), "text/event-stream")


def whole(message: Any, finish: str | None = "stop", status: int = 200, **more: Any) -> Raw:
    choice = {"index": 0, "message": message, "finish_reason": finish, **more}
    return Raw.json({"choices": [choice], "usage": USAGE}, status=status)


END = chunk({}, "stop", usage=USAGE)
CALLED = chunk({}, "tool_calls", usage=USAGE)


def sync(adapter: LoopAdapter, asked: Prompt[Any], session: Session) -> PromptResponse[Any]:
    return adapter.evaluate(asked, session=session)


def async_(adapter: LoopAdapter, asked: Prompt[Any], session: Session) -> PromptResponse[Any]:
    return asyncio.run(adapter.evaluate_async(asked, session=session))


def streamed(adapter: LoopAdapter, asked: Prompt[Any], session: Session) -> PromptResponse[Any]:
    *_, last = adapter.stream(asked, session=session)
    assert isinstance(last, Completed)
    return last.response


def streamed_async(
    adapter: LoopAdapter, asked: Prompt[Any], session: Session
) -> PromptResponse[Any]:
    async def read() -> Any:
        return [event async for event in adapter.stream_async(asked, session=session)][-1]

    response: PromptResponse[Any] = asyncio.run(read()).response
    return response


WHOLE = [sync, async_]
STREAMED = [streamed, streamed_async]


def failure(run: Any, adapter: LoopAdapter, session: Session | None = None) -> Any:
    with pytest.raises(PromptEvaluationError) as caught:
        run(adapter, prompt(), session or Session())
    return caught.value


# --- Streams


TEXTS = {
    "list, then texts": [
        chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}),
        chunk({"content": "The "}),
        chunk({"content": "answer."}),
        END,
    ],
    "text, then a list": [
        chunk({"content": "The "}),
        chunk({"content": [{"type": "text", "text": "answer"}]}),
        chunk({"content": "."}),
        END,
    ],
    "delta null at the end": [
        chunk({"content": "The answer."}),
        chunk(None, "stop", usage=USAGE),
    ],
    "no delta at the end": [
        chunk({"content": "The answer."}),
        {"choices": [{"index": 0, "finish_reason": "stop"}], "usage": USAGE},
    ],
    "usage in the choice": [
        chunk({"content": "The answer."}),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": USAGE}]},
    ],
    "a later zero": [
        chunk({"content": "The answer."}),
        END,
        {"choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": 0}},
    ],
    "events without data": [
        chunk({"content": "The "}),
        "retry: 3000\n\n",
        "event: ping\n\n",
        "data:\n\n",
        ": comment\n\n",
        "data: {}\n\n",
        chunk({"content": "answer."}),
        END,
    ],
    "one line break between events": [
        f"data: {json.dumps(chunk({'content': 'The answer.'}))}\ndata: {json.dumps(END)}\n\n"
    ],
    "line breaks of another kind": [
        f"data: {json.dumps(chunk({'content': 'The answer.'}))}\r\n\r\ndata: {json.dumps(END)}\r\r"
    ],
    "JSON": [json.dumps(json.loads(whole({"content": "The answer."}).body), indent=1) + "\n\n"],
}


@pytest.mark.parametrize("run", STREAMED)
@pytest.mark.parametrize("events", TEXTS.values(), ids=TEXTS)
def test_stream_in_an_unusual_format_is_decoded_completely(events: list[Any], run: Any) -> None:
    with ScriptedServer(said(*events), Say("Next.")) as server:
        adapter, session = connect(server), Session()
        response = run(adapter, prompt(), session)
        assert (response.text, response.usage.input_tokens) == ("The answer.", 11)
        chat = adapter.evaluate(
            prompt(), session=session, message="More?", conversation=response.conversation
        )
        assert chat.text == "Next."


def calling(name: str = "", text: str | None = None, **more: Any) -> dict[str, Any]:
    function = {"name": name} if name else {}
    return {**more, "function": function if text is None else {**function, "arguments": text}}


def one(*calls: dict[str, Any]) -> dict[str, Any]:
    return chunk({"tool_calls": list(calls)})


_A, _B = '{"a": 1}', '{"a": 2}'
CALLS = {
    "index 0 for all, no ids": [
        one(calling("probe", _A, index=0, id="")),
        one(calling("probe", _B, index=0, id="")),
    ],
    "index 0 for all in one chunk": [
        one(calling("probe", _A, index=0), calling("probe", _B, index=0))
    ],
    "no index": [
        one(calling("probe", "", id="a")),
        one(calling(text='{"a":')),
        one(calling(text=" 1}")),
        one(calling("probe", "", id="b")),
        one(calling(text=_B)),
    ],
    "null and a number": [
        one(calling("probe", "", id="a", index=None)),
        one(calling(text=_A, index=None)),
        one(calling("probe", "", id="b", index=1)),
        one(calling(text=_B, index=1)),
    ],
    "two entries of an index": [
        one(calling("probe", "", id="a", index=0), calling(text='{"a":', index=0)),
        one(calling(text=" 1}", index=0)),
        one(calling("probe", _B, id="b", index=1)),
    ],
    "id and name repeated": [
        one(calling("probe", '{"a":', id="a", index=0)),
        one(calling("probe", " 1}", id="a", index=0)),
        one(calling("probe", _B, id="b", index=1)),
    ],
    "interleaved": [
        one(calling("probe", "", id="a", index=0), calling("probe", "", id="b", index=1)),
        one(calling(text='{"a": 2', index=1)),
        one(calling(text=_A, index=0)),
        one(calling(text="}", index=1)),
    ],
    "without index in one chunk": [
        one(calling("probe", "", id="a"), calling("probe", "", id="b")),
        one(calling(text=_A), calling(text=_B)),
    ],
}


@pytest.mark.parametrize("events", CALLS.values(), ids=CALLS)
def test_streamed_tool_calls_are_separated(events: list[Any]) -> None:
    with ScriptedServer(said(*events, CALLED), Say("Done.")) as server:
        *_, last = connect(server).stream(prompt(), session=Session())
    assert isinstance(last, Completed)
    message = last.response.transcript[1]
    assert isinstance(message, AssistantMessage)
    made = [(call.name, json.loads(call.arguments)["a"]) for call in message.tool_calls]
    assert made == [("probe", 1), ("probe", 2)]


def test_repeated_name_after_the_arguments_runs_the_call_once() -> None:
    ran: list[str] = []

    def note(params: Args, *, context: ToolContext) -> ToolResult[object]:
        ran.append("note")
        return ToolResult("noted")

    events = one(calling("note", "{}", index=0)), one(calling("note", "", index=0)), CALLED
    with ScriptedServer(said(*events), Say("Done.")) as server:
        streamed(connect(server), prompt(tool(note, name="note")), Session())
    assert ran == ["note"]


RESPONSE: dict[str, Any] = {"status": "completed", "output": [], "usage": {"input_tokens": 11}}
ITEM = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]}
DELTA = {"type": "response.output_text.delta", "delta": "Hi."}


@pytest.mark.parametrize("run", STREAMED)
@pytest.mark.parametrize(
    "events", [[DELTA, {"type": "response.output_item.done", "item": ITEM}], [DELTA]]
)
def test_empty_output_of_the_last_event_keeps_earlier_items(events: list[Any], run: Any) -> None:
    last = {"type": "response.completed", "response": RESPONSE}
    with ScriptedServer(said(*events, last, done=False)) as server:
        assert run(connect(server, "responses"), prompt(), Session()).text == "Hi."


MESSAGE = {"type": "message", "content": [], "usage": {"input_tokens": 50, "output_tokens": 1}}
BEGUN: dict[str, list[Any]] = {
    "chat": [chunk({"content": "Par"}, usage=USAGE)],
    "responses": [
        {"type": "response.created", "response": {"usage": {"input_tokens": 11}}},
        {**DELTA, "delta": "Par"},
    ],
    "messages": [
        {"type": "message_start", "message": MESSAGE},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "Par"},
        },
    ],
}
INPUT = {"chat": 11, "responses": 11, "messages": 50}


@pytest.mark.parametrize("run", STREAMED)
@pytest.mark.parametrize("api", APIS)
def test_incomplete_stream_raises_with_its_partial_text_and_usage(api: str, run: Any) -> None:
    session = Session()
    with ScriptedServer(said(*BEGUN[api], done=False), Say("Whole.")) as server:
        adapter = connect(server, api)
        error = failure(run, adapter, session)
        again = adapter.evaluate(prompt(), session=session, conversation=error.conversation)
    assert "ended early" in error.message
    assert "base_url" not in str(error)
    assert error.usage.input_tokens == INPUT[api]
    [called] = session[ProviderCalled].all()[:1]
    assert (called.usage.input_tokens, called.text) == (INPUT[api], "Par")
    last = error.conversation.messages[-1]
    assert isinstance(last, AssistantMessage)
    assert (last.text, last.finish) == ("Par", "error")
    assert again.text == "Whole."


@pytest.mark.parametrize("api", APIS)
def test_fallback_counts_the_usage_of_a_failed_stream(api: str) -> None:
    with (
        ScriptedServer(said(*BEGUN[api], {"error": {"message": "gone"}}, done=False)) as first,
        ScriptedServer(Say("Hello.")) as second,
    ):
        adapter = FallbackAdapter(connect(first, api), connect(second, "chat"))
        response = streamed(adapter, prompt(), Session())
    assert (response.text, response.usage.input_tokens) == ("Hello.", INPUT[api] + 10)


@pytest.mark.parametrize("api", APIS)
def test_closed_stream_reports_its_usage(api: str) -> None:
    session = Session()
    with ScriptedServer(said(*BEGUN[api], done=False)) as server:
        chat = Chat(MainLoop(connect(server, api)), prompt(), session=session)
        events = chat.stream("Hi")
        next(event for event in events if type(event).__name__ == "TextDelta")
        events.close()
    assert chat.conversation is not None
    assert chat.conversation.usage.input_tokens == INPUT[api]


# --- An ordinary request


class _PatchedClient(openai.OpenAI):
    """A client patched by a tool that answers instead of the SDK, such as Inspect's bridge."""

    # Any: the SDK's own signature
    def request(self, *args: Any, stream: bool = False, **more: Any) -> Any:
        if stream:
            raise RuntimeError("streaming is not supported")
        return ChatCompletion.model_validate(
            {
                "id": "x",
                "object": "chat.completion",
                "created": 1,
                "model": "m",
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": "stop",
                        "message": {"role": "assistant", "content": "Patched."},
                    }
                ],
            }
        )


def test_patched_sdk_client_works_without_streaming() -> None:
    client = _PatchedClient(api_key="unused", base_url="http://127.0.0.1:9/v1")
    adapter = sdk_adapter("chat", client=client)
    assert adapter.evaluate(prompt(), session=Session()).text == "Patched."
    client.close()


FRAMED = {
    "events": said(chunk({"content": "Hi."}), END),
    "JSON and [DONE]": Raw(whole({"content": "Hi."}).body + b"\n\ndata: [DONE]\n\n"),
}


@pytest.mark.parametrize("run", WHOLE)
@pytest.mark.parametrize("reply", FRAMED.values(), ids=FRAMED)
def test_non_streamed_reply_in_sse_framing_is_decoded(reply: Raw, run: Any) -> None:
    with ScriptedServer(reply) as server:
        assert run(connect(server), prompt(), Session()).text == "Hi."
        assert "stream" not in server.requests[0].json


# --- No loss looks like success


REASONS = {
    "error": "provider_failed",
    "abort": "provider_failed",
    "network_error": "provider_failed",
    "function_call_filter: MALFORMED_FUNCTION_CALL": "provider_failed",
    "sensitive": "content_filter",
    "SAFETY": "content_filter",
    "model_length": "truncated",
    "max_tokens": "truncated",
}


@pytest.mark.parametrize("run", [sync, streamed])
@pytest.mark.parametrize(("reason", "code"), REASONS.items())
def test_failure_finish_reason_raises_with_its_code(reason: str, code: str, run: Any) -> None:
    reply = whole({"content": "Par"}, reason)
    if run is streamed:
        reply = said(chunk({"content": "Par"}), chunk({}, reason, usage=USAGE))
    with ScriptedServer(reply) as server:
        error = failure(run, connect(server))
    assert (error.code, error.usage.input_tokens) == (code, 11)
    assert error.conversation.messages[-1].text == "Par"


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("lacking", "words"),
    [(Say(""), "empty"), (Say("I will look.", finish="tool_calls"), "announces tool calls")],
)
def test_answer_without_content_is_requested_again(lacking: Say, words: str, api: str) -> None:
    if api == "responses" and lacking.text:
        pytest.skip("the Responses API announces no calls")
    with ScriptedServer(lacking, Say("Here.")) as server:
        response = sync(connect(server, api), prompt(), Session())
        assert (response.text, response.turns) == ("Here.", 2)
        assert words in str(server.requests[1].json)
    with ScriptedServer(*[lacking] * 3) as server:
        error = failure(sync, connect(server, api))
    assert (error.code, words in error.message) == ("output", True)


# --- What a server says


def body(error: Any, status: int = 400) -> Raw:
    return Raw.json(error, status=status)


FAILURES: dict[str, tuple[Raw, str, str]] = {
    "vLLM context": (
        body({"object": "error", "message": "This model's maximum context length is 4096."}),
        "context_length",
        "4096",
    ),
    "llama.cpp context": (
        body({"error": {"code": 400, "message": "x", "type": "exceed_context_size_error"}}),
        "context_length",
        "x",
    ),
    "LM Studio context": (
        body({"error": "Trying to keep the first 6000 tokens when context the overflows."}),
        "context_length",
        "6000",
    ),
    "Anthropic context": (
        body(
            {
                "error": {
                    "type": "invalid_request_error",
                    "message": "input length and `max_tokens` exceed context limit: 1 + 2 > 2",
                }
            }
        ),
        "context_length",
        "exceed",
    ),
    "Azure filter": (
        body({"error": {"message": "filtered", "code": "content_filter", "status": 400}}),
        "content_filter",
        "filtered",
    ),
    "402": (body({"error": {"message": "Insufficient credits.", "code": 402}}, 402), "quota", ""),
    "Gemini key": (
        body([{"error": {"code": 400, "message": "API key not valid. Please pass a valid one."}}]),
        "authentication",
        "refused the API key",
    ),
    "OpenRouter raw": (
        body(
            {
                "error": {
                    "message": "Provider returned error",
                    "metadata": {"raw": '{"error": {"message": "at most 1 image"}}'},
                }
            }
        ),
        "bad_request",
        "at most 1 image",
    ),
    "FastAPI": (
        body({"detail": [{"loc": ["body", "stream_options"], "msg": "Extra inputs"}]}, 422),
        "bad_request",
        "stream_options: Extra inputs",
    ),
    "Cloudflare": (body({"errors": [{"message": "unavailable"}]}), "bad_request", "unavailable"),
    "a page": (Raw(b"<html><b>No</b> page</html>", status=404), "not_found", "No page"),
    "in a 200": (
        body({"error": {"code": 429, "message": "Busy; try again in 1.5s."}}, 200),
        "throttled",
        "Busy",
    ),
    "text in a 200": (body({"error": "model 'm' not found"}, 200), "not_found", "'m'"),
    "detail in a 200": (body({"detail": "Model m is loading"}, 200), "provider_failed", "loading"),
}


@pytest.mark.parametrize("run", [sync, streamed])
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(("reply", "code", "words"), FAILURES.values(), ids=FAILURES)
def test_error_has_the_code_and_message_of_the_server(
    reply: Raw, code: str, words: str, api: str, run: Any
) -> None:
    with ScriptedServer(reply) as server:
        error = failure(run, connect(server, api))
    assert error.code == code
    assert words in error.message
    assert ("base_url" in error.remedy) == (words == "No page")


def test_missing_item_error_names_the_required_option() -> None:
    words = "Item with id 'rs_1' not found. Items are not persisted when `store` is set to false."
    with ScriptedServer(body({"error": {"message": words}}, 404)) as server:
        error = failure(sync, connect(server, "responses", options={"store": False}))
    assert error.code == "bad_request"
    assert "reasoning.encrypted_content" in error.remedy
    assert "base_url" not in error.remedy


def test_retry_after_is_parsed_from_the_error_message() -> None:
    with ScriptedServer(FAILURES["in a 200"][0]) as server:
        error = failure(sync, connect(server))
    assert isinstance(error, ThrottleError)
    assert error.retry_after is not None
    assert error.retry_after.total_seconds() == 1.5


def test_server_error_message_is_truncated_and_masks_the_key() -> None:
    reply = body({"error": {"message": f"wrong {'x' * 400} sk-secret-0123456789"}})
    with ScriptedServer(reply) as server:
        adapter = sdk_adapter("chat", server.url, api_key="sk-secret-0123456789", max_retries=0)
        error = failure(sync, adapter)
    assert "sk-secret" not in str(error)
    assert len(error.message) <= 500


FAILED = {"code": "rate_limit_exceeded", "message": "Please try again in 1.5s."}


@pytest.mark.parametrize(
    "event",
    [
        {"type": "response.failed", "response": {"status": "failed", "error": FAILED}},
        {"type": "error", **FAILED},
    ],
)
def test_failed_response_keeps_its_code(event: Any) -> None:
    with ScriptedServer(said(event, done=False)) as server:
        assert failure(streamed, connect(server, "responses")).code == "throttled"


# --- No prompt goes to another server


@pytest.mark.claim("N-20")
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("given", "run", "missing"),
    [
        ("async_client", sync, "client"),
        ("async_client", streamed, "client"),
        ("client", async_, "async_client"),
        ("client", streamed_async, "async_client"),
    ],
)
def test_run_without_the_required_client_raises_and_sends_nothing(
    api: str, given: str, run: Any, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedServer() as elsewhere, ScriptedServer() as gateway:
        for name in ("OPENAI", "ANTHROPIC"):
            monkeypatch.setenv(f"{name}_API_KEY", "of the environment")
            monkeypatch.setenv(f"{name}_BASE_URL", elsewhere.openai_url)
        kind = "Async" if given == "async_client" else ""
        client = sdk_client(api, gateway.url, kind, api_key="of the gateway")
        error = failure(run, sdk_adapter(api, **{given: client}))
        assert error.code == "client_error"
        assert error.message.startswith(f"{missing} is missing")
        assert not elsewhere.requests
        assert not gateway.requests


def test_sync_run_with_a_deadline_does_not_use_the_async_client() -> None:
    with ScriptedServer() as gateway:
        client = sdk_client("chat", gateway.url, "Async", api_key="unused")
        adapter = sdk_adapter("chat", async_client=client)
        with pytest.raises(PromptEvaluationError, match="client is missing"):
            adapter.evaluate(prompt(), session=Session(), deadline=Deadline.after(60))


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("name", ["base_url", "api_key"])
def test_custom_client_with_base_url_or_api_key_is_rejected(api: str, name: str) -> None:
    client = sdk_client(api, "http://127.0.0.1:9", api_key="unused")
    other: dict[str, Any] = {name: "http://127.0.0.1:8"}
    adapter_class = AnthropicAdapter if api == "messages" else OpenAIAdapter
    with pytest.raises(ValueError, match=f"{name} cannot be combined with a ready client"):
        adapter_class("m", client=client, **other)


def test_clients_with_different_base_urls_are_rejected() -> None:
    client = sdk_client("chat", "http://127.0.0.1:9", api_key="unused")
    other = sdk_client("chat", "http://127.0.0.1:8", "Async", api_key="unused")
    with pytest.raises(ValueError, match="must have the same base_url"):
        sdk_adapter("chat", client=client, async_client=other)


# --- Size


@pytest.mark.parametrize("run", STREAMED)
@pytest.mark.parametrize("api", APIS)
def test_event_of_ten_megabytes_is_decoded_quickly(api: str, run: Any) -> None:
    text = "x" * 10_000_000
    with ScriptedServer(Say(text)) as server:
        adapter = connect(server, api)
        start = time.thread_time()
        assert run(adapter, prompt(), Session()).text == text
    assert time.thread_time() - start < 10  # copying the text so far would take a minute


# --- Text next to an answer, and failures in unusual places


@pytest.mark.parametrize("run", [sync, streamed, async_, streamed_async])
def test_message_field_next_to_an_answer_is_not_an_error(run: Any) -> None:
    answer = {
        "index": 0,
        "message": {"role": "assistant", "content": "Hi"},
        "finish_reason": "stop",
    }
    reply: dict[str, Any] = {"code": 0, "message": "Success", "choices": [answer], "usage": {}}
    piece = {"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"}
    is_streamed = run in (streamed, streamed_async)
    served = said({**reply, "choices": [piece]}) if is_streamed else body(reply, 200)
    with ScriptedServer(served) as server:
        assert run(connect(server, "chat"), prompt(), Session()).text == "Hi"


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    ("status", "reply", "code"),
    [
        (400, {"error": True, "message": "maximum context length is 10"}, "context_length"),
        (200, {"error": True, "code": 429, "reason": "Too many requests"}, "throttled"),
        (200, {"error": {"message": "Slow down", "code": "429"}}, "throttled"),
        (400, {"error": "too many tokens: size limit exceeded by 500 tokens"}, "context_length"),
        (422, {"error": "`inputs` must have less than 4096 tokens. Given: 5000"}, "context_length"),
        (
            400,
            {"error": "the input token count is 40000 but the model only supports up to 32768"},
            "context_length",
        ),
        (400, {"error": "Invalid value for context: size must be positive"}, "bad_request"),
    ],
)
def test_error_in_an_unusual_field_is_classified(
    api: str, status: int, reply: dict[str, Any], code: str
) -> None:
    with ScriptedServer(body(reply, status)) as server:
        assert failure(sync, connect(server, api)).code == code


class _Endless(BaseHTTPRequestHandler):
    """Streams an answer, and ends the reply soon after its last event, or never."""

    protocol_version = "HTTP/1.1"
    connections: ClassVar[list[object]]
    ends: ClassVar[bool]
    stopped: ClassVar[Event]

    def setup(self) -> None:
        super().setup()
        self.connections.append(self.client_address)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        body = said(chunk({"content": "Hi."}), END).body
        self.wfile.write(f"{len(body):x}\r\n".encode() + body + b"\r\n")
        if self.ends:
            time.sleep(0.02)
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.close_connection = self.stopped.wait(10)

    @override
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.mark.parametrize("ends", [True, False])
def test_stream_reuses_its_connection_if_the_reply_ends_promptly(
    ends: bool,
) -> None:
    class Handler(_Endless):
        connections: ClassVar[list[object]] = []
        stopped = Event()

    Handler.ends = ends
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.01,)).start()

    async def ask() -> list[str]:
        url = f"http://127.0.0.1:{server.server_port}"
        adapter = OpenAIAdapter("m", api="chat", base_url=url, api_key="unused")
        texts: list[str] = []
        for _ in range(3):
            stream = adapter.stream_async(prompt(), session=Session())
            *_, last = [event async for event in stream]
            assert isinstance(last, Completed)
            texts.append(last.response.text)
        return texts

    try:
        assert asyncio.run(asyncio.wait_for(ask(), 5)) == ["Hi."] * 3
        assert len(Handler.connections) == (1 if ends else 3)
    finally:
        Handler.stopped.set()
        server.shutdown()
        server.server_close()
