"""How messages of an MCP server arrive: from a process or over HTTP, within limits.

A server may be hostile, so a message is measured before anything is built from it, and a server
that sends requests faster than they are answered has to wait. A process and those that it starts
end with the connection, and also if this process is killed.
"""

import asyncio
import re
import sys
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from inspect import signature
from typing import Any, cast

import anyio
import httpx2
from anyio.abc import ObjectSendStream, Process
from anyio.streams.memory import MemoryObjectSendStream
from mcp import StdioServerParameters, stdio_client
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.os.posix.utilities import terminate_posix_process_tree
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCError, JSONRPCResponse, jsonrpc_message_adapter

from ...adapters.http_clients import ACCEPTED_ENCODINGS, bound_reply

__all__ = ["Streams", "TransportState", "connect_http", "start_process"]

_MAX_BYTES = 16 * 1024 * 1024
_TOO_LONG = "with more than 16 MiB"
_MAX_TOKENS = 200_000
_MAX_DEPTH = 100
_MAX_UNANSWERED = 100
_TOKEN = re.compile(rb'[\[\]{},]|"(?:[^"\\]++|\\.)*+(?:"|\Z)', re.DOTALL)
_EVENT_END = re.compile(rb"\n\n|\r\r|\r\n\r\n")
_HTTP_TIMEOUT = httpx2.Timeout(30, read=300)  # as the SDK's own client over HTTP has
_END_SECONDS = 2.0  # for each step of ending a server: its own end, SIGTERM, SIGKILL
_POLL_SECONDS = 0.01
_STDERR_LINES, _STDERR_CHARS = 3, 300
_DRAIN_SECONDS = 0.2  # for what a server wrote before its end
# Waits for the end of its input, which is that of this process, and ends the process group $0.
_WATCH = 'read _; sleep 1; kill -s TERM -- "-$0"; sleep 1; kill -s KILL -- "-$0"'

type _Message = SessionMessage | Exception
type Streams = Any  # Any: both directions of a transport, whose type the SDK does not export


class MessageLimitError(httpx2.StreamError, httpx2.SSEError):
    """A message of the server is over a limit; the SDK answers a request with these errors."""


class TransportState:
    """The state of one connection: what the server has sent, except for its answers to calls."""

    def __init__(self) -> None:
        self.problem = ""
        """Why the server's messages are not read any more; empty while they are."""
        self.is_closed = False
        """Whether the SDK has closed its end, which it does when the server ends its output."""
        self.stderr = b""
        """The end of the text that a process wrote to stderr."""
        self._unanswered = 0

    @property
    def last_lines(self) -> list[str]:
        """The last lines on stderr; a long line counts as several."""
        pieces = re.findall(f".{{1,{_STDERR_CHARS}}}", self.stderr.decode(errors="replace"))
        return [piece.strip() for piece in pieces if piece.strip()][-_STDERR_LINES:]

    def check(self, message: bytes | bytearray) -> None:
        """Raises `MessageLimitError` if the message is over a limit, for good."""
        if len(message) > _MAX_BYTES:
            raise self.fail(_TOO_LONG)
        openings = message.count(b"[") + message.count(b"{")
        if len(message) <= _MAX_TOKENS and openings <= _MAX_DEPTH:
            return  # it cannot have so many
        depth = 0
        for number, token in enumerate(_TOKEN.finditer(message)):
            first = message[token.start()]
            depth += (first in b"[{") - (first in b"]}")
            if depth > _MAX_DEPTH:
                raise self.fail(f"with more than {_MAX_DEPTH} levels of nesting")
            if number >= _MAX_TOKENS:
                raise self.fail(f"with more than {_MAX_TOKENS:,} JSON tokens")

    def fail(self, fault: str) -> MessageLimitError:
        """Returns the error for a message's `fault`, after which the connection is not used."""
        self.problem = f"sent a message {fault}"
        return MessageLimitError(self.problem)

    @contextmanager
    def answering(self) -> Generator[None]:
        """Counts a request of the server as unanswered during the block."""
        self._unanswered += 1
        try:
            yield
        finally:
            self._unanswered -= 1

    async def wait_for_answers(self) -> None:
        """Waits while too many of the server's requests have no answer yet."""
        while self._unanswered >= _MAX_UNANSWERED:  # noqa: ASYNC110 - only a flood waits
            await anyio.sleep(_POLL_SECONDS)


class _Writer(ObjectSendStream[SessionMessage]):
    """Sends messages by a function, and tells `TransportState` of answers and of the end."""

    def __init__(
        self, send: Callable[[SessionMessage], Awaitable[None]], state: TransportState
    ) -> None:
        self._send = send
        self._state = state

    async def send(self, item: SessionMessage) -> None:
        if isinstance(item.message, JSONRPCResponse | JSONRPCError):
            with self._state.answering():
                await self._send(item)
        else:
            await self._send(item)

    async def aclose(self) -> None:
        self._state.is_closed = True


# --- HTTP


@asynccontextmanager
async def connect_http(
    url: str, headers: Mapping[str, str], state: TransportState
) -> AsyncGenerator[Streams]:
    """Opens a session with a server over HTTP; the block's end ends it."""

    async def limit_end(request: httpx2.Request) -> None:
        if request.method == "DELETE":  # it ends the session, for which nobody waits long
            request.extensions["timeout"] = httpx2.Timeout(_END_SECONDS).as_dict()

    async def limit(response: httpx2.Response) -> None:
        response.stream = _LimitedBody(response, state)

    # The first versions of the SDK have no limit of their own.
    has_limit = "max_sse_event_size" in signature(streamable_http_client).parameters
    # Any: a checker would compare a number with every argument
    more: dict[str, Any] = {"max_sse_event_size": _MAX_BYTES} if has_limit else {}
    async with (
        httpx2.AsyncClient(
            headers={"Accept-Encoding": ACCEPTED_ENCODINGS, **headers},
            timeout=_HTTP_TIMEOUT,
            event_hooks={"request": [limit_end], "response": [limit]},
        ) as client,
        streamable_http_client(url, http_client=client, **more) as streams,
    ):
        yield streams[0], _Writer(streams[1].send, state)


class _LimitedBody(httpx2.AsyncByteStream):
    """The decompressed body of a response, which yields whole messages within the limits."""

    def __init__(self, response: httpx2.Response, state: TransportState) -> None:
        bound_reply(response, sys.maxsize)
        self._stream = cast("httpx2.AsyncByteStream", response.stream)  # of an async client
        self._state = state
        self._has_events = "event-stream" in response.headers.get("content-type", "")
        self._is_ignored = response.request.method == "DELETE"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._is_ignored:
            return
        try:
            async for message in self._messages():
                self._state.check(message)
                await self._state.wait_for_answers()
                yield message
        except zlib.error as error:
            raise self._state.fail(f"that cannot be decompressed: {error}") from None

    async def _messages(self) -> AsyncIterator[bytes]:
        """Yields each event of a stream, or the whole body; of too long ones the beginning."""
        message = bytearray()
        async for piece in self._stream:
            searched = max(0, len(message) - 3)
            message += piece
            while self._has_events and (end := _EVENT_END.search(message, searched)):
                yield bytes(message[: end.end()])
                del message[: end.end()]
                searched = 0
            if len(message) > _MAX_BYTES:
                yield bytes(message)
        yield bytes(message)

    async def aclose(self) -> None:
        await self._stream.aclose()


# --- Processes


@asynccontextmanager
async def start_process(
    parameters: StdioServerParameters, state: TransportState
) -> AsyncGenerator[Streams]:
    """Starts a server as a process; the block's end ends it and the processes that it started."""
    if sys.platform == "win32":  # where the SDK has jobs for this
        async with stdio_client(parameters) as streams:
            yield streams[0], _Writer(streams[1].send, state)
        return
    process = await asyncio.create_subprocess_exec(
        parameters.command,
        *parameters.args,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=get_default_environment() | (parameters.env or {}),
        cwd=parameters.cwd,
        limit=_MAX_BYTES,
        start_new_session=True,
    )
    assert process.stdin and process.stdout and process.stderr  # noqa: PT018 - pipes
    to_client, incoming = anyio.create_memory_object_stream[_Message](0)
    readers = [
        asyncio.create_task(_read(process.stdout, state, to_client)),
        asyncio.create_task(_keep_errors(process.stderr, state)),
    ]
    watch: asyncio.subprocess.Process | None = None
    try:
        with suppress(OSError):  # in an image without a shell
            watch = await asyncio.create_subprocess_exec(
                *("/bin/sh", "-c", _WATCH, str(process.pid)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        yield incoming, _Writer(partial(_write, process.stdin), state)
    finally:
        with anyio.CancelScope(shield=True):
            incoming.close()  # so that what the server still writes is dropped
            process.stdin.close()
            await _wait_for_exit(process)
            # It reads nothing but `pid` and `returncode`, which asyncio's process has, too.
            await terminate_posix_process_tree(cast("Process", process), _END_SECONDS)
            await _wait_for_exit(process)
            if watch is not None:
                watch.kill()
                await watch.wait()
            await asyncio.wait(readers, timeout=_DRAIN_SECONDS)
        for reader in readers:
            reader.cancel()
        # A process that left the group may hold the pipes open, and nothing public closes ours.
        vars(process)["_transport"].close()


async def _read(
    stdout: asyncio.StreamReader, state: TransportState, to_client: MemoryObjectSendStream[_Message]
) -> None:
    """Passes the messages of a server on, one a line, and drops what follows its end."""
    try:
        async with to_client:
            async for line in stdout:
                state.check(line)
                await state.wait_for_answers()
                await to_client.send(_parse(line))
    except (MessageLimitError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass
    except ValueError:  # the line is longer than the limit of `stdout`
        state.fail(_TOO_LONG)
    while await stdout.read(65_536):
        pass


def _parse(line: bytes) -> _Message:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:  # a log line, for example
        return error


async def _write(stdin: asyncio.StreamWriter, item: SessionMessage) -> None:
    text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
    with suppress(OSError):  # the server has ended, and so does its output
        stdin.write(text.encode() + b"\n")
        await stdin.drain()


async def _keep_errors(stderr: asyncio.StreamReader, state: TransportState) -> None:
    while text := await stderr.read(65_536):
        state.stderr = (state.stderr + text)[-4 * _STDERR_LINES * _STDERR_CHARS :]


async def _wait_for_exit(process: asyncio.subprocess.Process) -> None:
    """Waits for the end of a process, two seconds at most, whoever else holds its pipes."""
    with anyio.move_on_after(_END_SECONDS):
        while process.returncode is None:  # noqa: ASYNC110 - `wait` waits for the pipes
            await anyio.sleep(_POLL_SECONDS)
