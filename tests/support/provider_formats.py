"""Renders a step for OpenAI Chat Completions, OpenAI Responses and Anthropic Messages.

Pure: a step and its request become the bytes of a `Raw`, unless the step is a `Drop`. A format
consists of three functions (the reply, the reply as stream events, an error) and a row in
`_ROUTES`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import assert_never

from . import aws_event_stream
from .script import Call, Drop, Fail, Headers, Json, Raw, Say, Step

type Event = tuple[str | None, Json]


class Ids:
    """Ids that are unique in one server and the same in every run: call_1, call_2, msg_1."""

    def __init__(self) -> None:
        self._counts: dict[str, count[int]] = {}

    def __call__(self, prefix: str) -> str:
        return f"{prefix}_{next(self._counts.setdefault(prefix, count(1)))}"


def _sse(events: Iterable[Event]) -> bytes:
    return "".join(
        f"{f'event: {name}\n' if name else ''}data: {json.dumps(data)}\n\n" for name, data in events
    ).encode()


@dataclass(frozen=True, slots=True)
class ProviderFormat:
    """The format of a provider's API; `events` gets the reply and its request.

    `encode` writes the events of a stream. With `streams_by_path`, each reply is a stream.
    """

    reply: Callable[[Say, str, Ids], Json]
    events: Callable[[Json, Json], Iterator[Event]]
    error: Callable[[Fail], Json]
    end_of_stream: bytes = b""
    streams_by_path: bool = False
    encode: Callable[[Iterable[Event]], bytes] = _sse
    stream_type: str = "text/event-stream"


_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}


def _kind(fail: Fail) -> str:
    return fail.kind or _KINDS.get(
        fail.status, "api_error" if fail.status >= 500 else "invalid_request_error"
    )


def _halves(text: str) -> Iterator[str]:
    """Splits a text into two deltas, to catch clients that keep only the last one."""
    middle = len(text) // 2
    yield from (part for part in (text[:middle], text[middle:]) if part)


# OpenAI Chat Completions


def _url_citations(say: Say) -> list[Json]:
    """Returns the sources of a text, each of which is cited by the whole text."""
    end = len(say.text)
    return [
        {"title": title, "url": url, "start_index": 0, "end_index": end}
        for title, url in say.sources
    ]


def _chat_message(say: Say, ids: Ids) -> Json:
    message: Json = {"role": "assistant", "content": say.text or None, "refusal": say.refusal}
    if say.reasoning is not None:
        message["reasoning_content"] = say.reasoning
    if say.sources:
        message["annotations"] = [
            {"type": "url_citation", "url_citation": fields} for fields in _url_citations(say)
        ]
    if say.calls:
        message["tool_calls"] = [
            {
                "id": call.id or ids("call"),
                "type": "function",
                "function": {"name": call.name, "arguments": call.text},
            }
            for call in say.calls
        ]
    return message


def _chat_reply(say: Say, model: str, ids: Ids) -> Json:
    choice = {
        "index": 0,
        "message": _chat_message(say, ids),
        "finish_reason": say.ending,
        "logprobs": None,
    }
    usage = {
        "prompt_tokens": say.usage.input,
        "completion_tokens": say.usage.output,
        "total_tokens": say.usage.input + say.usage.output,
        "prompt_tokens_details": {
            "cached_tokens": say.usage.cached,
            "cache_write_tokens": say.usage.written,
        },
        "completion_tokens_details": {"reasoning_tokens": say.usage.reasoning},
    }
    return {
        "id": ids("chatcmpl"),
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [choice],
        "usage": usage,
    }


def _chat_deltas(message: Json) -> Iterator[Json]:
    yield {"role": "assistant", "content": ""}
    for name in ("reasoning_content", "content", "refusal"):
        yield from ({name: part} for part in _halves(message.get(name) or ""))
    if "annotations" in message:
        yield {"annotations": message["annotations"]}
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        yield {"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]}
        for part in _halves(function["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": part}}]}


def _chat_events(reply: Json, asked: Json) -> Iterator[Event]:
    head = {name: reply[name] for name in ("id", "created", "model")}
    head["object"] = "chat.completion.chunk"
    [choice] = reply["choices"]
    for delta in _chat_deltas(choice["message"]):
        yield None, {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    last = {"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}
    yield None, {**head, "choices": [last]}
    if (asked.get("stream_options") or {}).get("include_usage"):
        yield None, {**head, "choices": [], "usage": reply["usage"]}


def _openai_error(fail: Fail) -> Json:
    kind = _kind(fail)
    return {
        "error": {"message": fail.message, "type": kind, "param": fail.param, "code": fail.code}
    }


# OpenAI Responses

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


def _reasoning_item(text: str, ids: Ids) -> Json:
    return {
        "id": ids("rs"),
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": text}],
        "encrypted_content": f"encrypted:{text}",
    }


def _message_item(say: Say, status: str, ids: Ids) -> Json:
    cited = [{"type": "url_citation", **fields} for fields in _url_citations(say)]
    part: Json = {"type": "output_text", "text": say.text, "annotations": cited, "logprobs": []}
    if say.refusal is not None:
        part = {"type": "refusal", "refusal": say.refusal}
    return {
        "id": ids("msg"),
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [part],
    }


def _call_item(call: Call, ids: Ids) -> Json:
    return {
        "id": ids("fc"),
        "type": "function_call",
        "call_id": call.id or ids("call"),
        "name": call.name,
        "arguments": call.text,
        "status": "completed",
    }


def _responses_output(say: Say, status: str, ids: Ids) -> Iterator[Json]:
    if say.reasoning is not None:
        yield _reasoning_item(say.reasoning, ids)
    if say.text or say.refusal is not None or not say.calls:
        yield _message_item(say, status, ids)
    yield from (_call_item(call, ids) for call in say.calls)


def _responses_reply(say: Say, model: str, ids: Ids) -> Json:
    reason = _INCOMPLETE.get(say.ending)
    status = "incomplete" if reason else "completed"
    usage = {
        "input_tokens": say.usage.input,
        "input_tokens_details": {
            "cached_tokens": say.usage.cached,
            "cache_write_tokens": say.usage.written,
        },
        "output_tokens": say.usage.output,
        "output_tokens_details": {"reasoning_tokens": say.usage.reasoning},
        "total_tokens": say.usage.input + say.usage.output,
    }
    return {
        "id": ids("resp"),
        "object": "response",
        "created_at": 0,
        "status": status,
        "error": None,
        "incomplete_details": {"reason": reason} if reason else None,
        "instructions": None,
        "metadata": {},
        "model": model,
        "output": list(_responses_output(say, status, ids)),
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": usage,
    }


# By a part's type: the events of its text, the events of the part itself, the key of its text.
_PARTS = {
    "output_text": ("response.output_text", "response.content_part", "text"),
    "refusal": ("response.refusal", "response.content_part", "refusal"),
    "summary_text": (
        "response.reasoning_summary_text",
        "response.reasoning_summary_part",
        "text",
    ),
}


def _part_events(part: Json, at: Json) -> Iterator[Json]:
    """Yields a part of a message or of a reasoning summary; `at` is its position."""
    text_event, part_event, name = _PARTS[part["type"]]
    extra: Json = {"logprobs": []} if part["type"] == "output_text" else {}
    yield {"type": f"{part_event}.added", **at, "part": {**part, name: ""}}
    for text in _halves(part[name]):
        yield {"type": f"{text_event}.delta", **at, "delta": text, **extra}
    yield {"type": f"{text_event}.done", **at, name: part[name], **extra}
    yield {"type": f"{part_event}.done", **at, "part": part}


def _argument_events(item: Json, at: Json) -> Iterator[Json]:
    event = "response.function_call_arguments"
    for text in _halves(item["arguments"]):
        yield {"type": f"{event}.delta", **at, "delta": text}
    yield {"type": f"{event}.done", **at, "name": item["name"], "arguments": item["arguments"]}


def _item_events(item: Json, index: int) -> Iterator[Json]:
    """Yields an output item: it is added empty, filled, then repeated in full."""
    at = {"item_id": item["id"], "output_index": index}
    empty: Json = {"message": {"content": []}, "reasoning": {"summary": []}}.get(
        item["type"], {"arguments": ""}
    )
    started = {**item, **empty, "status": "in_progress"}
    yield {"type": "response.output_item.added", "output_index": index, "item": started}
    for name in ("content", "summary"):
        for number, part in enumerate(item.get(name, ())):
            yield from _part_events(part, {**at, f"{name}_index": number})
    if "arguments" in item:
        yield from _argument_events(item, at)
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _responses_events(reply: Json, _asked: Json) -> Iterator[Event]:
    started = {**reply, "status": "in_progress", "output": [], "usage": None}
    started["incomplete_details"] = None

    def events() -> Iterator[Json]:
        yield {"type": "response.created", "response": started}
        yield {"type": "response.in_progress", "response": started}
        for index, item in enumerate(reply["output"]):
            yield from _item_events(item, index)
        yield {"type": f"response.{reply['status']}", "response": reply}

    for number, event in enumerate(events()):
        yield event["type"], {**event, "sequence_number": number}


# Anthropic Messages

_STOP_REASONS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "pause": "pause_turn",
    "length": "max_tokens",
    "content_filter": "refusal",
}


def _anthropic_input(call: Call) -> object:
    """Returns the arguments as JSON; malformed text stays text, which only a stream can express."""
    try:
        return json.loads(call.text)
    except (ValueError, RecursionError):
        return call.text


def _anthropic_citations(say: Say) -> Json:
    web = {"type": "web_search_result_location", "cited_text": "", "encrypted_index": "x"}
    cited = [{**web, "title": title, "url": url} for title, url in say.sources]
    return {"citations": cited} if cited else {}


def _anthropic_blocks(say: Say, ids: Ids) -> Iterator[Json]:
    if say.reasoning is not None:
        yield {"type": "thinking", "thinking": say.reasoning, "signature": "scripted"}
    yield from say.blocks
    for text in (say.text, say.refusal):
        if text:
            yield {"type": "text", "text": text, **_anthropic_citations(say)}
    for call in say.calls:
        name = call.id or ids("toolu")
        yield {"type": "tool_use", "id": name, "name": call.name, "input": _anthropic_input(call)}


def _anthropic_reply(say: Say, model: str, ids: Ids) -> Json:
    usage = {
        "input_tokens": say.usage.input - say.usage.cached - say.usage.written,
        "cache_read_input_tokens": say.usage.cached,
        "cache_creation_input_tokens": say.usage.written,
        "cache_creation": {
            "ephemeral_5m_input_tokens": say.usage.written - say.usage.for_hour,
            "ephemeral_1h_input_tokens": say.usage.for_hour,
        },
        "output_tokens": say.usage.output,
        "output_tokens_details": {"thinking_tokens": say.usage.reasoning},
    }
    return {
        "id": ids("msg"),
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": list(_anthropic_blocks(say, ids)),
        "stop_reason": "refusal" if say.refusal is not None else _STOP_REASONS[say.ending],
        "stop_sequence": None,
        "usage": usage,
    }


def _block_deltas(block: Json) -> tuple[Json, list[Json]]:
    """Returns the block as it starts, and the deltas that fill it."""
    match block["type"]:
        case "text":
            parts = [{"type": "text_delta", "text": part} for part in _halves(block["text"])]
            cited = block.get("citations", ())
            parts += [{"type": "citations_delta", "citation": citation} for citation in cited]
            start = {key: value for key, value in block.items() if key != "citations"}
            return {**start, "text": ""}, parts
        case "thinking":
            text = block["thinking"]
            parts = [{"type": "thinking_delta", "thinking": part} for part in _halves(text)]
            parts.append({"type": "signature_delta", "signature": block["signature"]})
            return {**block, "thinking": "", "signature": ""}, parts
        case _ if "input" not in block:
            return block, []
        case _:
            value = block["input"]
            text = value if isinstance(value, str) else json.dumps(value)
            parts = [{"type": "input_json_delta", "partial_json": part} for part in _halves(text)]
            return {**block, "input": {}}, parts


def _anthropic_events(reply: Json, _asked: Json) -> Iterator[Event]:
    def events() -> Iterator[Json]:
        message = {**reply, "content": [], "stop_reason": None}
        yield {"type": "message_start", "message": message}
        for index, block in enumerate(reply["content"]):
            started, deltas = _block_deltas(block)
            yield {"type": "content_block_start", "index": index, "content_block": started}
            for delta in deltas:
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        ending = {"stop_reason": reply["stop_reason"], "stop_sequence": None}
        yield {"type": "message_delta", "delta": ending, "usage": reply["usage"]}
        yield {"type": "message_stop"}

    return ((event["type"], event) for event in events())


def _anthropic_error(fail: Fail) -> Json:
    return {"type": "error", "error": {"type": _kind(fail), "message": fail.message}}


_ROUTES = {
    "/chat/completions": ProviderFormat(
        _chat_reply, _chat_events, _openai_error, end_of_stream=b"data: [DONE]\n\n"
    ),
    "/responses": ProviderFormat(_responses_reply, _responses_events, _openai_error),
    "/messages": ProviderFormat(_anthropic_reply, _anthropic_events, _anthropic_error),
}
# Claude on Google Cloud and Amazon Bedrock
_ROUTES.update(dict.fromkeys([":rawPredict", ":streamRawPredict", "/invoke"], _ROUTES["/messages"]))
_ROUTES["/invoke-with-response-stream"] = ProviderFormat(
    _anthropic_reply,
    _anthropic_events,
    _anthropic_error,
    streams_by_path=True,
    encode=lambda events: b"".join(aws_event_stream.chunk(event) for _, event in events),
    stream_type=aws_event_stream.CONTENT_TYPE,
)


def provider_format(path: str) -> ProviderFormat | None:
    """Returns the format for a path, whatever its prefix, or `None` for an unknown path."""
    route = path.partition("?")[0]
    return next((form for end, form in _ROUTES.items() if route.endswith(end)), None)


def render(step: Step, form: ProviderFormat, asked: Json, ids: Ids) -> Raw | Drop:
    """Returns the bytes of a step in a format, as a stream if the request `asked` for one."""
    match step:
        case Raw() | Drop():
            return step
        case Fail(status=status, retry_after=seconds):
            wait: Headers = () if seconds is None else (("retry-after", f"{seconds:g}"),)
            return Raw.json(form.error(step), status=status, headers=wait + step.headers)
        case Say():
            reply = form.reply(step, step.model or asked.get("model", "scripted"), ids)
            if not asked.get("stream") and not form.streams_by_path:
                return Raw.json(reply)
            stream = form.encode(form.events(reply, asked)) + form.end_of_stream
            return Raw(stream, content_type=form.stream_type)
        case _:
            assert_never(step)
