"""Replies that providers should never send, by name, in each of the three provider formats.

A reply is a step for `ScriptedServer`: a function that answers in the format of the request.
"""

import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from support.entry_points import ANSWERED_BEFORE
from support.provider_formats import Ids, provider_format, render
from support.script import Call, Drop, Fail, Raw, Request, Say, Step

__all__ = ["KEY", "MAX_BYTES", "REPLIES", "Reply"]

KEY = "sk-marked-0123456789-secret"
MAX_BYTES = 1_000_000
"""The reply limit of the adapters that ask for these replies."""

_TEXT = "Hello."
_HELLO = Say(_TEXT)

# Any below: JSON values of every shape
type _Change = Callable[[Any], Any]
type _Answer = Callable[[Request], Step]


@dataclass(frozen=True)
class Reply:
    """A server's answer, and how the run may end: with a text or an error code."""

    answer: _Answer
    ends: frozenset[str]


# --- How replies are made


def _rendered(request: Request, say: Say = _HELLO) -> Raw:
    form = provider_format(request.path)
    assert form is not None
    raw = render(say, form, request.json, Ids())
    assert isinstance(raw, Raw)
    return raw


def _is_stream(raw: Raw) -> bool:
    return raw.content_type == "text/event-stream"


def _changed(raw: Raw, change: _Change) -> Raw:
    """Returns the reply with it, or each event of its stream, changed."""
    if not _is_stream(raw):
        return replace(raw, body=json.dumps(change(json.loads(raw.body))).encode())
    start = "data: "
    lines = [
        start + json.dumps(change(json.loads(line.removeprefix(start))))
        if line.startswith(start + "{")
        else line
        for line in raw.body.decode().split("\n")
    ]
    return replace(raw, body="\n".join(lines).encode())


def _walk(value: Any, change: _Change) -> Any:
    """Changes each object in a JSON value, innermost first."""
    if isinstance(value, list):
        return [_walk(item, change) for item in value]
    if isinstance(value, dict):
        return change({key: _walk(item, change) for key, item in value.items()})
    return value


def _says(change: _Change, say: Say = _HELLO) -> _Answer:
    """Answers with a text reply in which every object is changed."""
    return lambda request: _changed(_rendered(request, say), lambda value: _walk(value, change))


def _setting(names: str, value: Any) -> _Change:
    keys = names.split()
    return lambda it: {key: value if key in keys else item for key, item in it.items()}


def _lacking(names: str) -> _Change:
    keys = names.split()
    return lambda it: {key: item for key, item in it.items() if key not in keys}


def _calls(*made: Call, change: _Change = lambda it: it) -> _Answer:
    """Calls tools, and says hello once the calls are answered."""
    answers = re.compile(rb'"(?:tool_call_id|tool_use_id)"|"function_call_output"')

    def answer(request: Request) -> Step:
        answered = len(answers.findall(request.body))
        if answered > request.body.count(ANSWERED_BEFORE.encode()):
            return _HELLO
        return _says(change, Say(calls=made))(request)

    return answer


def _raw(body: bytes, kind: str = "", **more: Any) -> _Answer:
    """Answers with these bytes, as JSON or as a stream, whichever was requested."""

    def answer(request: Request) -> Step:
        asked = "text/event-stream" if request.json.get("stream") else "application/json"
        return Raw(body, kind or asked, **more)

    return answer


def _zipped(size: int, status: int = 200) -> _Answer:
    headers = (("content-encoding", "gzip"),)
    return _raw(gzip.compress(b" " * size), status=status, headers=headers)


def _redirects(status: int, *to: str) -> _Answer:
    headers = tuple([("location", address) for address in to])
    return _raw(f"go to {to}".encode(), status=status, headers=headers)


def _throttles(wait: str) -> _Answer:
    return _raw(b"{}", status=429, headers=(("retry-after", wait),))


def _always(step: Step) -> _Answer:
    return lambda request: step


def _cut(share: float) -> _Answer:
    def answer(request: Request) -> Step:
        whole = _rendered(request, Say("Hello there, " * 20))
        return replace(whole, body=whole.body[: int(len(whole.body) * share)])

    return answer


def _twice(request: Request) -> Step:
    """Repeats the choices, items or blocks of a reply at the same indexes."""

    def change(it: Any) -> Any:
        lists = "choices", "output", "content"
        return {k: v * 2 if k in lists and isinstance(v, list) else v for k, v in it.items()}

    return _changed(_rendered(request), change)


def _with_news(request: Request) -> Step:
    """Answers with a stream that has comments and an event of an unknown type."""
    raw = _rendered(request)
    if not _is_stream(raw):
        return raw
    news = b'\n\nevent: news\ndata: {"type": "news", "choices": []}\n\n: hello\n\n'
    return replace(raw, body=b": hello\n\n" + raw.body.replace(b"\n\n", news, 1))


def _failing(request: Request) -> Step:
    """Answers with an error status, or with a stream event that reports an error."""
    raw = _rendered(request)
    said = {"type": "api_error", "code": "x", "message": f"Bearer {KEY}"}
    error = json.dumps({"type": "error", "error": said}).encode()
    if not _is_stream(raw):
        return replace(raw, body=error, status=500)
    first, _ = raw.body.split(b"\n\n", 1)
    return replace(raw, body=first + b"\n\nevent: error\ndata: " + error + b"\n\n")


# --- The replies

_COUNTS = (
    "prompt_tokens completion_tokens total_tokens cached_tokens cache_write_tokens "
    "reasoning_tokens input_tokens output_tokens cache_read_input_tokens thinking_tokens "
    "cache_creation_input_tokens ephemeral_5m_input_tokens ephemeral_1h_input_tokens"
)
_NUMBERS: Mapping[str, Any] = {
    "NaN": float("nan"),
    "endless": float("inf"),
    "negative": -5,
    "huge": 10**400,
    "list": [],
}
_ODD: Mapping[str, Any] = {"null": None, "number": 7, "list": [[]], "object": {"deep": [None]}}
_KEYS = {
    "usage": "usage",
    "text": "text content",
    "delta": "delta",
    "finish": "finish_reason stop_reason status",
    "parts": "choices output item response message content_block",
    "index": "index output_index content_index sequence_number",
}
_CALL_KEYS = {
    "name": "name",
    "id": "id call_id item_id",
    "arguments": "arguments input partial_json",
    "function": "function",
}
_ARGUMENTS = {
    "broken": '{"a":',
    "of a list": "[1]",
    "deep": "[" * 100_000,
    "deep objects": '{"a":' * 20_000,
    "unknown": '{"zz": 1}',
    "of NaN": '{"a": NaN}',
    "twice": '{"a": 1, "a": 2}',
    "of lone surrogates": '{"a": "\\ud800"}',
}
_BODIES = {
    "nothing": b"",
    "null": b"null",
    "a list": b"[]",
    "no UTF-8": b"\xff\xfe",
    "deep": b"[" * 100_000,
    "zeros": bytes(1000),
    "the key": KEY.encode(),
    "null as an event": b"data: null\n\n",
    "only the end": b"data: [DONE]\n\n",
}
_STATUSES = {
    400: "bad_request",
    401: "authentication",
    404: "not_found",
    408: "timeout",
    413: "too_large",
    599: "server_error",
    999: "server_error",
}


def _values() -> Iterator[tuple[str, _Answer, set[str]]]:
    """Replies with values of a wrong type, and with missing values."""
    hello, either = {_TEXT}, {_TEXT, "malformed"}
    for name, value in _NUMBERS.items():
        yield f"counts: {name}", _says(_setting(_COUNTS, value)), hello
    for name, value in _ODD.items():
        for what, keys in _KEYS.items():
            # an answer is empty if it is missing, or a list or object without texts
            empty = {"text": ("null", "list"), "delta": ("null", "object"), "parts": ("null",)}
            ends = hello if what == "usage" else either
            ends = ends | {"output"} if name in empty.get(what, ()) else ends
            yield f"{what}: {name}", _says(_setting(keys, value)), ends
        for what, keys in _CALL_KEYS.items():
            called = _calls(Call("probe"), change=_setting(keys, value))
            yield f"{what} of a call: {name}", called, either
    for name, value in {"negative": -1, "of another": 1, "far": 10**12}.items():
        yield f"index: {name}", _says(_setting(_KEYS["index"], value)), either
    for what in ("usage", "finish", "index"):
        yield f"no {what}", _says(_lacking(_KEYS[what])), either
    yield "no types", _says(_lacking("type object")), either
    yield "no ids", _calls(Call("probe"), change=_lacking("id call_id item_id")), hello
    yield "unknown keys", _says(lambda it: {**it, "zz": {"deep": [1]}}), hello
    yield "unknown events", _with_news, hello
    yield "all twice", _twice, {_TEXT, _TEXT * 2, "HelHello.lo."}


def _answers() -> Iterator[tuple[str, _Answer, set[str]]]:
    """Replies with texts and calls that a provider may send if its model is odd enough."""
    hello = {_TEXT}
    yield "lone surrogate in a text", _always(Say("x\ud800y")), {"x?y"}
    yield "lone surrogates in a call", _calls(Call("\ud800", {"a": "\ud800"}, "\ud800")), hello
    yield "duplicate ids", _calls(Call("probe", {}, "same"), Call("probe", {}, "same")), hello
    yield (
        "empty ids",
        _calls(Call("probe"), Call("probe"), change=_setting("id call_id", "")),
        hello,
    )
    yield "long id", _calls(Call("probe", {}, "x" * 5000)), hello
    yield "unknown tools", _calls(Call("nonsense"), Call("x" * 5000), Call("bad\n")), hello
    for name, text in _ARGUMENTS.items():
        yield f"arguments {name}", _calls(Call("probe", text)), hello
    yield "refusal", _always(Say(refusal="no" * 10_000)), {"refused"}
    yield "filtered", _always(Say("x", finish="content_filter")), {"content_filter", "refused"}
    yield "truncated", _always(Say("x", finish="length")), {"truncated"}


def _bytes() -> Iterator[tuple[str, _Answer, set[str]]]:
    """Replies with malformed bodies, statuses, encodings, redirects and truncated streams."""
    bad, large = {"malformed"}, {"reply_too_large"}
    for name, body in _BODIES.items():
        yield f"body: {name}", _raw(body), bad
        yield f"body of an error: {name}", _raw(body, status=502), {"server_error"}
    yield "page", _raw(b"<html>", "text/html"), bad
    yield "another character set", _raw(b"{}", "application/json; charset=utf-16"), bad
    for encoding in (
        "br",
        "gzip",
    ):  # one that was not requested, and one that the body does not use
        headers = (("content-encoding", encoding),)
        yield f"encoding {encoding}", _raw(b"{}", headers=headers), bad
    yield "too large", _raw(b" " * 3 * MAX_BYTES), large
    yield "gzip bomb", _zipped(30 * MAX_BYTES), large
    yield "gzip bomb of an error", _zipped(30 * MAX_BYTES, 500), large
    for status in (301, 307):
        yield f"redirect {status}", _redirects(status, f"http://other.test/{KEY}"), {"redirect"}
    yield "redirect to nowhere", _redirects(302), {"redirect"}
    for wait in ("nan", "-1", "1e300", "9" * 5000):
        yield f"throttled for {wait[:5]}", _throttles(wait), {"throttled"}
    for status, code in _STATUSES.items():
        yield f"status {status}", _always(Fail(status, f"Bearer {KEY} {'x' * 5000}")), {code}
    yield "status 204", _raw(b"", status=204), bad
    yield "status 299", _raw(b"{}", status=299), bad
    for share in (0.02, 0.3, 0.6):
        yield f"cut at {share:.0%}", _cut(share), bad
    yield "error in the stream", _failing, {"provider_failed", "server_error"}
    yield "dropped", _always(Drop()), {"connection"}


REPLIES = {
    name: Reply(answer, frozenset(ends))
    for cases in (_values(), _answers(), _bytes())
    for name, answer, ends in cases
}
