"""The provider for W10, in its own process: prints its port and ends with its standard input.

It speaks Chat Completions over bare sockets. A request with fewer than `CALLS` tool results gets
another call as its answer, any other the text `done`.
"""

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

CALLS = 10
TEXT = "done"
_PIECE = 8  # characters in an event of a stream, about two tokens


def arguments(turn: int) -> str:
    return json.dumps({"query": f"topic {turn}", "limit": 3, "tags": ["api", "guide"]})


@cache
def reply(turn: int) -> bytes:
    """Returns a turn's complete answer."""
    message: dict[str, object] = {"role": "assistant", "content": TEXT}
    if turn < CALLS:
        function = {"name": "search", "arguments": arguments(turn)}
        calls = [{"id": f"call_{turn}", "type": "function", "function": function}]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
    choice = {"index": 0, "message": message, "finish_reason": finish(turn)}
    body = json.dumps(envelope("chat.completion") | {"choices": [choice], "usage": USAGE}).encode()
    head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "
    return f"{head}{len(body)}\r\n\r\n".encode() + body


@cache
def events(turn: int) -> bytes:
    """Returns the same answer as a stream of events, one in each chunk."""
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas(turn)]
    last = {"index": 0, "delta": {}, "finish_reason": finish(turn)}
    same = envelope("chat.completion.chunk")
    chunks = [same | {"choices": [choice], "usage": None} for choice in (*choices, last)]
    texts = [json.dumps(chunk) for chunk in (*chunks, same | {"choices": [], "usage": USAGE})]
    lines = [f"data: {text}\n\n" for text in (*texts, "[DONE]")]
    body = "".join([f"{len(line):x}\r\n{line}\r\n" for line in lines])
    head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked"
    return f"{head}\r\n\r\n{body}0\r\n\r\n".encode()


def deltas(turn: int) -> Iterator[dict[str, Any]]:  # Any: JSON
    if turn == CALLS:
        yield {"role": "assistant", "content": TEXT}
        return
    text, call = arguments(turn), {"id": f"call_{turn}", "type": "function"}
    function = {"name": "search", "arguments": ""}
    yield {"role": "assistant", "tool_calls": [{"index": 0, **call, "function": function}]}
    for start in range(0, len(text), _PIECE):
        function = {"arguments": text[start : start + _PIECE]}
        yield {"tool_calls": [{"index": 0, "function": function}]}


def finish(turn: int) -> str:
    return "tool_calls" if turn < CALLS else "stop"


def envelope(kind: str) -> dict[str, object]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1_760_000_000, "model": "m"}


USAGE = {"prompt_tokens": 900, "completion_tokens": 20, "total_tokens": 920}


class Connection(asyncio.Protocol):
    """Answers the requests of one connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.read = transport, bytearray()

    def data_received(self, data: bytes) -> None:
        self.read += data
        head, found, body = self.read.partition(b"\r\n\r\n")
        if not found:
            return
        length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        assert length is not None
        if len(body) < int(length[1]):
            return
        turn = body.count(b'"role":"tool"')
        streamed = re.search(rb'"stream": *true', body)
        self.transport.write((events if streamed else reply)(turn))
        self.read.clear()


async def serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Connection, "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(serve())
