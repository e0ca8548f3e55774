"""The scripted server speaks three provider formats and does not leak resources."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from .deadlines import NEVER, SOON
from .scripted_server import (
    Call,
    Fail,
    Raw,
    Request,
    Say,
    ScriptedServer,
    ScriptError,
    Usage,
)

CHAT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
ROUTES = (CHAT, RESPONSES, MESSAGES)


def open_connection(server: ScriptedServer) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=SOON)


def send(
    server: ScriptedServer, route: str, body: str | bytes, method: str = "POST"
) -> tuple[int, str]:
    with closing(open_connection(server)) as connection:
        connection.request(method, route, body, {"X-Probe": "1"})
        response = connection.getresponse()
        return response.status, response.read().decode()


def post(server: ScriptedServer, route: str, body: object) -> tuple[int, Any]:
    """Returns the status and the JSON, typed as `Any` so that tests can index into it."""
    status, text = send(server, route, json.dumps(body))
    return status, json.loads(text)


def stream(server: ScriptedServer, route: str) -> list[Any]:
    """Returns the data of the events, typed as `Any` for the same reason."""
    _, text = send(server, route, '{"stream": true}')
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(value) for value in data if value != "[DONE]"]


# --- The record and the script


def test_a_request_is_kept_as_it_arrived() -> None:
    with ScriptedServer(Say("hi")) as server:
        post(server, f"{CHAT}?beta=true", {"model": "m", "n": 1})
    [request] = server.requests
    assert (request.method, request.path) == ("POST", f"{CHAT}?beta=true")
    assert request.body == b'{"model": "m", "n": 1}'
    assert request.json == {"model": "m", "n": 1}
    assert request.header("x-probe") == "1"
    assert request.header("absent") is None


def test_an_unknown_route_is_recorded_and_takes_no_step() -> None:
    with ScriptedServer(Say("hi")) as server:
        assert send(server, "/v1/models", b"", "GET")[0] == 404
        assert post(server, CHAT, {})[0] == 200
    assert [request.path for request in server.requests] == ["/v1/models", CHAT]


def test_a_body_that_is_no_json_is_recorded_and_answered() -> None:
    with ScriptedServer(Say("hi")) as server:
        assert send(server, CHAT, b"{")[0] == 200
    assert (server.requests[0].body, server.requests[0].json) == (b"{", None)


def test_a_callable_step_answers_by_the_request() -> None:
    def echo(request: Request) -> Say:
        return Say(request.json["word"])

    with ScriptedServer(echo, echo) as server:
        texts = [post(server, CHAT, {"word": word})[1] for word in ("a", "b")]
    assert [reply["choices"][0]["message"]["content"] for reply in texts] == ["a", "b"]


def test_callable_steps_may_wait_for_each_other() -> None:
    both = threading.Barrier(2, timeout=SOON)

    def meet(_: Request) -> Say:
        both.wait()
        return Say("met")

    with ScriptedServer(meet, meet) as server:
        threads = [threading.Thread(target=post, args=(server, CHAT, {})) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(server.requests) == 2


def test_the_exception_of_a_callable_step_is_raised_even_if_the_block_raised() -> None:
    def wrong(request: Request) -> Say:
        raise KeyError(request.path)

    def run() -> None:
        with ScriptedServer(wrong) as server:
            status, reply = post(server, CHAT, {})
            assert (status, reply["error"]["code"]) == (400, "script_fault")
            raise RuntimeError("what the client makes of it")

    with pytest.raises(KeyError, match=CHAT):
        run()


@pytest.mark.parametrize("route", ROUTES)
def test_a_request_beyond_the_script_is_refused(route: str) -> None:
    with ScriptedServer(strict=False) as server:
        status, reply = post(server, route, {})
    assert (status, reply["error"]["message"]) == (400, "the script has no step for this request")


def test_a_request_beyond_the_script_is_reported() -> None:
    with pytest.raises(ScriptError, match="1 request"), ScriptedServer() as server:
        post(server, CHAT, {})


def test_an_unused_step_is_reported_if_strict() -> None:
    with pytest.raises(ScriptError, match="never asked"), ScriptedServer(Say("never asked")):
        pass
    with ScriptedServer(Say("never asked"), strict=False):
        pass


def test_an_error_of_the_block_is_not_hidden_by_unused_steps() -> None:
    with pytest.raises(ZeroDivisionError), ScriptedServer(Say("unused")):
        raise ZeroDivisionError


def test_identifiers_are_the_same_in_every_run() -> None:
    def names() -> list[str]:
        with ScriptedServer(Say(calls=(Call("f"), Call("g", id="mine")))) as server:
            message = post(server, CHAT, {})[1]["choices"][0]["message"]
        return [call["id"] for call in message["tool_calls"]]

    assert names() == names() == ["call_1", "mine"]


# --- Closing


def test_leaving_the_block_ends_every_thread() -> None:
    before = set(threading.enumerate())
    arrived = threading.Event()

    def late(_: Request) -> Raw:
        arrived.set()
        return Raw(b"", delay=NEVER)

    with ScriptedServer(Say("hi"), late) as server:
        silent, busy = open_connection(server), open_connection(server)
        silent.connect()
        busy.request("POST", CHAT, "{}")
        busy.getresponse().read()
        busy.request("POST", CHAT, "{}")
        assert arrived.wait(SOON)
        left = time.monotonic()
    assert time.monotonic() - left < SOON
    assert set(threading.enumerate()) <= before
    silent.close()
    busy.close()


LEAK_PROBE = """
import gc, http.client, sys
sys.path.insert(0, sys.argv[1])
from support.scripted_server import Drop, Raw, Say, ScriptedServer
for step in (Say("hi"), Raw(b"x", content_type="text/html"), Drop()):
    with ScriptedServer(step) as server:
        connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
        connection.request("POST", "/v1/responses", "{}")
        try:
            connection.getresponse().read()
        except http.client.RemoteDisconnected:
            pass
    connection.close()
    gc.collect()
"""


def test_no_socket_is_left_to_the_garbage_collector() -> None:
    tests = str(Path(__file__).parent.parent)
    # In a new interpreter, because a ResourceWarning raised in a finaliser is only printed.
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", LEAK_PROBE, tests],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


# --- What no SDK here reads: Anthropic Messages


def test_an_anthropic_turn_has_thinking_text_and_tool_use() -> None:
    say = Say("so", (Call("f", {"a": 1}),), reasoning="hm", usage=Usage(10, 5, cached=4))
    with ScriptedServer(say) as server:
        reply = post(server, MESSAGES, {"model": "m"})[1]
    thinking, text, tool = reply["content"]
    assert (thinking["thinking"], text["text"]) == ("hm", "so")
    assert tool == {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}}
    assert (reply["model"], reply["stop_reason"]) == ("m", "tool_use")
    assert reply["usage"]["input_tokens"] + reply["usage"]["cache_read_input_tokens"] == 10


def test_an_anthropic_stream_adds_up_to_the_turn() -> None:
    say = Say("text", (Call("f", {"a": 1}), Call("g", "{broken")), reasoning="thought")
    with ScriptedServer(say) as server:
        events = stream(server, MESSAGES)
    assert (events[0]["type"], events[-1]["type"]) == ("message_start", "message_stop")
    deltas = [
        (event["index"], event["delta"])
        for event in events
        if "index" in event and "delta" in event
    ]
    fields = ("thinking", "text", "partial_json", "partial_json")
    filled = [
        "".join(delta.get(name, "") for at, delta in deltas if at == index)
        for index, name in enumerate(fields)
    ]
    assert filled == ["thought", "text", '{"a": 1}', "{broken"]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (529, "overloaded_error"), (500, "api_error")],
)
def test_an_anthropic_error_has_its_envelope(status: int, kind: str) -> None:
    with ScriptedServer(Fail(status, "no")) as server:
        got, reply = post(server, MESSAGES, {})
    assert (got, reply) == (status, {"type": "error", "error": {"type": kind, "message": "no"}})
