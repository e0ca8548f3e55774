"""The plain MCP server over HTTP, which forgets its sessions, or answers calls with any bytes."""

import json
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from support.mcp_prompts import lock_of
from support.plain_mcp_server import Server

__all__ = ["PlainHttp", "served"]


class PlainHttp:
    """The plain server over HTTP; `answer`, if given, returns the headers and body for each call.

    With `hangs`, it never answers the request that ends a session.
    """

    def __init__(self, folder: Path, *, hangs: bool) -> None:
        self.server = Server(folder)
        self.hangs = hangs
        self.ended = threading.Event()
        self.sessions: set[str] = set()
        self.forgetful = False
        self.received: list[dict[str, str]] = []
        self.answer: Callable[[object], tuple[Mapping[str, str], Iterable[bytes]]] | None = None
        handler = type("Handler", (_Handler,), {"plain": self})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.http.daemon_threads = False  # so that closing the server waits for its threads
        url = f"http://127.0.0.1:{self.http.server_port}/mcp"
        self.lock = replace(lock_of(folder), command=None, url=url)

    def has_forgotten(self, session: str | None, method: str | None) -> bool:
        if self.forgetful and method == "tools/call":
            self.sessions.clear()
        return session not in self.sessions and method != "server/discover"


class _Handler(BaseHTTPRequestHandler):
    plain: PlainHttp

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.plain.received.append(dict(self.headers))
        session, method = self.headers.get("Mcp-Session-Id"), message.get("method")
        if method == "initialize":
            session = f"s{len(self.plain.received)}"
            self.plain.sessions.add(session)
        elif self.plain.has_forgotten(session, method):
            self.respond(404, None, session)
            return
        if self.plain.answer is not None and method == "tools/call":
            headers, body = self.plain.answer(message["id"])
            self.send_response(200)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(OSError):  # the client has disconnected
                self.wfile.writelines(body)
            return
        response = None if method is None else self.plain.server.respond(message)
        self.respond(202 if response is None else 200, response, session)

    def do_GET(self) -> None:
        self.respond(405, None, None)

    def do_DELETE(self) -> None:
        if self.plain.hangs:
            self.plain.ended.wait(30)
        else:
            self.respond(200, None, None)

    # Any: JSON of the protocol
    def respond(self, status: int, body: Any, session: str | None) -> None:
        data = b"" if body is None else json.dumps({"jsonrpc": "2.0", **body}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if session is not None:
            self.send_header("Mcp-Session-Id", session)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - the base's name


@contextmanager
def served(folder: Path, *, hangs: bool = False) -> Generator[PlainHttp]:
    plain = PlainHttp(folder, hangs=hangs)
    thread = threading.Thread(target=partial(plain.http.serve_forever, 0.01))
    thread.start()
    try:
        yield plain
    finally:
        plain.ended.set()
        plain.http.shutdown()
        thread.join()
        plain.http.server_close()
