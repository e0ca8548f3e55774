"""An OpenAI-compatible HTTP server on 127.0.0.1; `formats` reads and writes its bodies."""

import json
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from .answering import extract
from .conversation import Policy
from .formats import MODEL, BadRequest, Body, events, respond

_LARGEST = 32 * 1024 * 1024
_MODELS = {
    "object": "list",
    "data": [{"id": MODEL, "object": "model", "created": 0, "owned_by": "offline, no LLM"}],
}


@contextmanager
def start_offline_model(decide: Policy = extract, pace: float = 0) -> Generator[str]:
    """Serves `decide` on a free port of 127.0.0.1 until the block ends; yields the `base_url`.

    A streamed answer pauses for `pace` seconds after each word.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, decide, pace))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise the body, a second write, would wait 40 ms

    # Any as in typeshed: the three arguments are socketserver's, passed on untouched.
    def __init__(self, decide: Policy, pace: float, *args: Any) -> None:
        self._decide, self._pace = decide, pace
        super().__init__(*args)

    def do_GET(self) -> None:
        if self.path.partition("?")[0] == "/v1/models":
            self._send(200, _MODELS)
        else:
            self._refuse(BadRequest(f"Unknown route {self.path!r}.", status=404))

    def do_POST(self) -> None:
        try:
            body = self._body()
            response = respond(self.path.partition("?")[0], body, self._decide)
            if isinstance(body, dict) and body.get("stream"):
                self._stream(response)
            else:
                self._send(200, response)
        except BadRequest as error:
            self._refuse(error)
        except ConnectionError:
            self.close_connection = True  # the client has disconnected
        except Exception as error:  # the client needs an answer even if we fail
            self._refuse(BadRequest(f"The offline model failed: {error!r}.", status=500))

    def _body(self) -> object:
        length = self.headers.get("content-length", "")
        if not length.isdigit() or int(length) > _LARGEST:
            self.close_connection = True  # the body could be taken for the next request
            raise BadRequest(f"content-length must be a number up to {_LARGEST}, not {length!r}.")
        try:
            return json.loads(self.rfile.read(int(length)))
        except ValueError as error:
            raise BadRequest(f"The body is not JSON: {error}.") from error

    def _stream(self, response: Body) -> None:
        self.close_connection = True  # which ends the body, whose length is unknown
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for event in events(response):
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
            time.sleep(self._pace)

    def _refuse(self, error: BadRequest) -> None:
        is_server_error = error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        kind = "server_error" if is_server_error else "invalid_request_error"
        detail = {"message": str(error), "type": kind, "param": error.param, "code": None}
        self._send(error.status, {"error": detail})

    def _send(self, status: int, value: Mapping[str, object]) -> None:
        data = json.dumps(value, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
        """Logs nothing: the program that starts the server prints what matters."""
