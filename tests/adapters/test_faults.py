"""A hostile server causes the same error at every entry point.

The entry points are those of the adapters, of the main loop and of a chat: synchronous,
asynchronous and streamed. No error contains the key.
"""

import traceback
from collections.abc import Mapping
from typing import Any

import pytest

from support.entry_points import ENTRY_POINTS as ALL_ENTRY_POINTS
from support.entry_points import EntryPoint
from support.hostile_server import (
    BEHAVIOURS,
    Behaviour,
    Connection,
    HostileServer,
    compressed,
    redirect,
    retry_later,
)
from support.sdk_clients import APIS, sdk_adapter
from weakincentives.adapters.core import LoopAdapter
from weakincentives.adapters.fallback import FallbackAdapter
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.runtime.session import Session

KEY = "sk-marked-0123456789-secret"
MAX_BYTES = 100_000

ENTRY_POINTS = {
    entry_point.__name__: entry_point
    for entry_point in ALL_ENTRY_POINTS
    if not entry_point.__name__.startswith(("nested", "resume", "durable"))
}


def _sends(head: str, body: bytes = b"") -> Behaviour:
    lines = f"HTTP/1.1 {head}\r\nconnection: close\r\n\r\n".encode()
    return lambda connection: connection.send(lines + body)


def _resets(connection: Connection) -> None:
    """Closes the connection without an answer."""


_JSON = "content-type: application/json"
_QUOTE = b'{"error": {"message": "wrong key %s", "type": "t"}}' % KEY.encode()

FAULTS: Mapping[str, tuple[Behaviour, str]] = {
    "closes without an answer": (_resets, "connection"),
    "no HTTP": (lambda connection: connection.send(b"hello\r\n\r\n"), "connection"),
    "a head without an end": (
        lambda connection: connection.send(b"HTTP/1.1 200 OK\r\nx: "),
        "connection",
    ),
    "a body that breaks off": (
        _sends(f"200 OK\r\n{_JSON}\r\ncontent-length: 1000", b'{"id"'),
        "connection",
    ),
    "an empty body": (_sends(f"200 OK\r\n{_JSON}\r\ncontent-length: 0"), "malformed"),
    "a page": (_sends("200 OK\r\ncontent-type: text/html", b"<html>Hello</html>"), "malformed"),
    "another form": (_sends(f"200 OK\r\n{_JSON}", b'{"hello": ["you"]}'), "malformed"),
    "no gzip": (_sends(f"200 OK\r\n{_JSON}\r\ncontent-encoding: gzip", b"plain"), "malformed"),
    "too many bytes": (compressed(10 * MAX_BYTES), "reply_too_large"),
    "too many bytes in an error": (compressed(10 * MAX_BYTES, "500 Oops"), "reply_too_large"),
    "a flood of events": (BEHAVIOURS["flood of events"], "reply_too_large"),
    "an endless body": (BEHAVIOURS["endless body"], "reply_too_large"),
    "a redirect with the key": (redirect(f"http://127.0.0.1:9/{KEY}?k={KEY}"), "redirect"),
    "a redirect to nowhere": (redirect(None), "redirect"),
    "an error that quotes the key": (_sends(f"401 No\r\n{_JSON}", _QUOTE), "authentication"),
    "an error without JSON": (
        _sends("503 No\r\ncontent-type: text/html", b"<p>"),
        "server_error",
    ),
    "retry later": (retry_later(3600), "throttled"),
}


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def adapters(url: str) -> dict[str, Any]:  # Any: an SDK's clients
    made: dict[str, Any] = {
        api: sdk_adapter(api, url, api_key=KEY, max_retries=0, max_reply_bytes=MAX_BYTES)
        for api in APIS
    }
    return made


def code_of(entry_point: EntryPoint, adapter: LoopAdapter) -> str:
    """Runs the entry point and returns the code of its error, which must not contain the key."""
    with pytest.raises(PromptEvaluationError) as caught:
        entry_point(adapter, Session(), None)
    report = "".join([repr(caught.value), *traceback.format_exception(caught.value)])
    assert KEY not in report
    return caught.value.code


@pytest.mark.parametrize("fault", FAULTS)
def test_server_fault_raises_the_same_error_from_every_entry_point(fault: str) -> None:
    behaviour, expected = FAULTS[fault]
    with HostileServer(behaviour) as server:
        made = adapters(server.url)
        found = {
            (api, name): code_of(entry_point, adapter)
            for api, adapter in made.items()
            for name, entry_point in ENTRY_POINTS.items()
        }
        assert found == dict.fromkeys(found, expected)
        assert len(server.requests) == len(found)
        for adapter in made.values():
            adapter.client().close()


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_failing_fallback_does_not_leak_the_key(entry_point: str) -> None:
    with HostileServer(FAULTS["an error without JSON"][0]) as server:
        made = adapters(server.url)
        assert code_of(ENTRY_POINTS[entry_point], FallbackAdapter(*made.values())) == "server_error"
        assert len(server.requests) == len(made)
        for adapter in made.values():
            adapter.client().close()
