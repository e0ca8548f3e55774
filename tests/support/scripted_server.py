"""A provider on 127.0.0.1 that plays a script: the same steps answer in any of three formats.

    with ScriptedServer(Say(calls=(Call("add", {"a": 1}),)), Say("1")) as server:
        client = OpenAI(base_url=server.openai_url, api_key="test", max_retries=0)
        ...
    assert server.requests[1].json["messages"][-1]["role"] == "tool"

Steps are used in order, one per request, whatever the route. This module contains the sockets, the
threads and the record of requests; `script` defines the steps, and `provider_formats` renders them.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar, Self, override

from .provider_formats import Ids, provider_format, render
from .script import Call, Drop, Fail, Raw, Request, Say, Scripted, ScriptError, Step, Usage

__all__ = [
    "Call",
    "Drop",
    "Fail",
    "Raw",
    "Request",
    "Say",
    "ScriptError",
    "ScriptedServer",
    "Step",
    "Usage",
]


class _Play:
    """The script's position and the requests so far; shared by threads, independent of sockets."""

    def __init__(self, steps: tuple[Scripted, ...]) -> None:
        self._lock = threading.Lock()
        self._left = list(steps)
        self._surplus = 0
        self.ids = Ids()
        self.requests: list[Request] = []
        self.issues: list[Exception] = []
        self.closing = threading.Event()

    def respond(self, request: Request) -> Raw | Drop:
        """Records the request and plays the next step; a request without a route uses none."""
        form = provider_format(request.path) if request.method == "POST" else None
        step = self._next(request, routed=form is not None)
        if form is None:
            return Raw(b"no such route", content_type="text/plain", status=404)
        asked = request.json if isinstance(request.json, dict) else {}
        return render(self._resolve(step, request), form, asked, self.ids)

    def _next(self, request: Request, *, routed: bool) -> Scripted:
        """Does both under one lock, so that requests and steps have the same order."""
        with self._lock:
            self.requests.append(request)
            if routed and self._left:
                return self._left.pop(0)
            self._surplus += routed
            return Fail(400, "the script has no step for this request", "script_exhausted")

    def _resolve(self, step: Scripted, request: Request) -> Step:
        """Calls a callable step outside the lock, because it may wait for another request."""
        if isinstance(step, Say | Fail | Raw | Drop):
            return step
        try:
            return step(request)
        except Exception as fault:
            self.issues.append(fault)
            return Fail(400, f"a step of the script raised {fault!r}", "script_fault")

    def mismatch(self) -> str | None:
        """Describes how the requests differ from the script."""
        if self._surplus:
            return f"{self._surplus} request(s) came after the script's last step"
        return f"the script's last steps were not asked for: {self._left}" if self._left else None


class _Handler(BaseHTTPRequestHandler):
    """Reads a request, plays the next step and writes the answer."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise the body, a second write, would wait 40 ms

    # Typed Any as in typeshed: the three arguments are socketserver's, passed on untouched.
    def __init__(self, play: _Play, *args: Any) -> None:
        self._play = play
        super().__init__(*args)

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: all requests are in `ScriptedServer.requests`."""

    def do_POST(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        request = self._read()
        answer = self._play.respond(request)
        if isinstance(answer, Raw) and not self._play.closing.wait(answer.delay):
            self._write(answer)
        else:
            self.close_connection = True

    def _read(self) -> Request:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            value = json.loads(body)
        except ValueError:
            value = None
        return Request(self.command, self.path, tuple(self.headers.items()), body, value)

    def _write(self, answer: Raw) -> None:
        self.send_response(answer.status)
        self.send_header("content-type", answer.content_type)
        self.send_header("content-length", str(len(answer.body)))
        self.send_header("x-request-id", self._play.ids("req"))
        for name, value in answer.headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.body)


class _Listener(ThreadingHTTPServer):
    """Tracks its open connections, so that closing it ends every thread, even a waiting one."""

    daemon_threads = False  # so that server_close() joins them
    # sixteen concurrent clients overflow the usual five: some wait a second, some are disconnected
    request_queue_size = 128

    def __init__(self, play: _Play) -> None:
        self._play = play
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", ScriptedServer.port), partial(_Handler, play))

    # `request` is Any in typeshed: for a TCP server it is the accepted socket.
    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    @override
    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores a client that disconnected; any other error fails the test at the end."""
        fault = sys.exception()
        if isinstance(fault, Exception) and not isinstance(fault, ConnectionError):
            self._play.issues.append(fault)

    @override
    def server_close(self) -> None:
        for connection in tuple(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:  # closed by its own thread between the copy and here
                continue
        super().server_close()


class ScriptedServer:
    """Plays `steps` while its `with` block lasts, then checks that all of them were used.

    A request beyond the last step gets status 400 with code `script_exhausted`. Leaving the block
    raises `ScriptError` if that happened or steps remain, unless `strict` is false or the block
    itself raised. A callable step that raises gives status 400 with code `script_fault`, and its
    exception is raised on leaving in any case: it is the cause of whatever else went wrong.
    """

    port: ClassVar[int] = 0
    """By default any free port; a fixed one is for long runs with one server after another at the
    same address.
    """

    def __init__(self, *steps: Scripted, strict: bool = True) -> None:
        self._play = _Play(steps)
        self._strict = strict

    def __enter__(self) -> Self:
        self._listener = _Listener(self._play)
        # The poll interval limits how long closing takes.
        serve = partial(self._listener.serve_forever, poll_interval=0.005)
        self._thread = threading.Thread(target=serve, name="scripted-server")
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()
        if self._play.issues:
            raise self._play.issues[0]
        mismatch = self._play.mismatch()
        if mismatch and self._strict and error is None:
            raise ScriptError(mismatch)

    def _close(self) -> None:
        self._play.closing.set()
        self._listener.shutdown()
        self._thread.join()
        self._listener.server_close()

    @property
    def url(self) -> str:
        """The root URL, which is the base URL for an Anthropic client."""
        return f"http://127.0.0.1:{self._listener.server_port}"

    @property
    def openai_url(self) -> str:
        """The base URL for an OpenAI client."""
        return f"{self.url}/v1"

    @property
    def requests(self) -> tuple[Request, ...]:
        """All requests so far, in order of arrival, including those without a route."""
        return tuple(self._play.requests)
