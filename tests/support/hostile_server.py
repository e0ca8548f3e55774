"""A server on 127.0.0.1 that answers over a bare socket, so that it can do things that no HTTP
library would.

    with HostileServer(trickled_headers) as server:
        client = OpenAI(base_url=server.openai_url, api_key="test")
        ...
        assert server.left()  # the client has closed all its connections

A behaviour is a function of a connection whose request has been read; it writes until the client
has gone.
"""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import repeat
from types import TracebackType
from typing import Self

from .deadlines import SOON

__all__ = [
    "BEHAVIOURS",
    "SSE",
    "Behaviour",
    "Connection",
    "HostileServer",
    "compressed",
    "redirect",
    "retry_later",
]

_PAUSE = 0.05


class Connection:
    """One connection: writes until the client or the server closes it."""

    def __init__(self, accepted: socket.socket, closing: threading.Event) -> None:
        self.socket = accepted
        self._closing = closing

    def read_request(self) -> bytes:
        """Returns one request, headers and body, or `b""` if the client has disconnected."""
        read = b""
        while b"\r\n\r\n" not in read:
            if not (piece := self.socket.recv(65536)):
                return b""
            read += piece
        head, _, body = read.partition(b"\r\n\r\n")
        [length] = [
            int(line[15:])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        ]
        while len(body) < length:
            if not (piece := self.socket.recv(65536)):
                return b""
            body += piece
        return head + b"\r\n\r\n" + body

    def send(self, *pieces: bytes, pause: float = 0) -> None:
        for piece in pieces:
            self.socket.sendall(piece)
            if self._closing.wait(pause):
                raise ConnectionError("the server is closing")

    def trickle(self, pieces: Iterator[bytes], pause: float = _PAUSE) -> None:
        for piece in pieces:
            self.send(piece, pause=pause)


type Behaviour = Callable[[Connection], None]

JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000000000\r\n\r\n"
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


def _endless(head: bytes, piece: bytes, pause: float = _PAUSE) -> Behaviour:
    def behave(connection: Connection) -> None:
        connection.send(head)
        connection.trickle(repeat(piece), pause)

    return behave


def _silence(connection: Connection) -> None:
    while connection.socket.recv(65536):
        pass


def _headers(connection: Connection) -> None:
    connection.send(b"HTTP/1.1 200 OK\r\nx-slow: ")
    connection.trickle(repeat(b"x"))


BEHAVIOURS: dict[str, Behaviour] = {
    "silence": _silence,
    "comments": _endless(SSE, b": wait\n\n"),
    "blank lines": _endless(SSE, b"\n"),
    "pings": _endless(SSE, b'event: ping\ndata: {"type": "ping", "choices": []}\n\n'),
    "flood of events": _endless(SSE, b'data: {"type": "ping", "choices": []}\n\n' * 100, 0),
    "spaces": _endless(JSON, b" "),
    "endless body": _endless(JSON, b" " * 1000, 0.001),
    "headers byte by byte": _headers,
    "early hints": _endless(b"", b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"),
    "slow error": _endless(b"HTTP/1.1 500 Oops\r\nconnection: close\r\n\r\n", b" "),
}
"""Things that a server can do instead of answering."""


def _reply(status: str, *headers: str, body: bytes = b"{}") -> Behaviour:
    lines = [
        f"HTTP/1.1 {status}",
        f"content-length: {len(body)}",
        "connection: close",
        *headers,
        "",
        "",
    ]

    def behave(connection: Connection) -> None:
        connection.send("\r\n".join(lines).encode() + body)

    return behave


def retry_later(seconds: float) -> Behaviour:
    """Asks the client to retry after `seconds`."""
    return _reply("429 Slow down", f"retry-after: {seconds}", "content-type: application/json")


def redirect(to: str | None, status: int = 307, body: bytes = b"") -> Behaviour:
    """Redirects the client, with or without a location."""
    location = [] if to is None else [f"location: {to}"]
    return _reply(f"{status} Elsewhere", *location, body=body)


def compressed(
    size: int, status: str = "200 OK", kind: str = "application/json", of: bytes = b" "
) -> Behaviour:
    """Sends `size` bytes, compressed into few."""
    with_gzip = gzip.compress(of * (size // len(of)), 9)
    return _reply(status, "content-encoding: gzip", f"content-type: {kind}", body=with_gzip)


class HostileServer:
    """Answers each request with `behaviour` while its `with` block lasts."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._closing = threading.Event()
        self._changed = threading.Condition()
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self.requests: list[bytes] = []

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._start(self._accept)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._changed:
            for accepted in self._open:
                with suppress(OSError):  # the client has closed it already
                    accepted.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    def left(self, timeout: float = SOON) -> bool:
        """Returns whether the clients close all connections within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._open, timeout)

    def asked(self, times: int, timeout: float = SOON) -> bool:
        """Returns whether that many requests have arrived within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self.requests) >= times, timeout)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        self._threads.append(threading.Thread(target=target, args=args, name="hostile-server"))
        self._threads[-1].start()

    def _accept(self) -> None:
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:  # closed
                return
            with self._changed:
                self._open.append(accepted)
            self._start(self._serve, accepted)

    def _serve(self, accepted: socket.socket) -> None:
        connection = Connection(accepted, self._closing)
        try:
            if request := connection.read_request():
                with self._changed:
                    self.requests.append(request)
                    self._changed.notify_all()
                self._behaviour(connection)
        except OSError:  # the client has gone
            pass
        finally:
            with self._changed:
                self._open.remove(accepted)
                self._changed.notify_all()
            accepted.close()
