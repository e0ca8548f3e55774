"""Receives an MCP server's messages from a process or over HTTP, within limits.

Because a server can be hostile, a message is measured before it is parsed, and a server that sends
requests faster than they are answered must wait. A server process and its child processes end with
the connection, even if this process is killed.
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
_HTTP_TIMEOUT = httpx2.Timeout(30, read=300)  # the same values as in the SDK's HTTP client
_END_SECONDS = 2.0  # for each step of stopping a server: waiting, SIGTERM, SIGKILL
_POLL_SECONDS = 0.01
_STDERR_LINES, _STDERR_CHARS = 3, 300
_DRAIN_SECONDS = 0.2  # for the remaining output after the server has ended
# Waits for the end of its input, which comes from this process, and then kills process group $0.
_WATCH = 'read _; sleep 1; kill -s TERM -- "-$0"; sleep 1; kill -s KILL -- "-$0"'

type _Message = SessionMessage | Exception
type Streams = Any  # Any: both directions of a transport; the SDK does not export the type


class MessageLimitError(httpx2.StreamError, httpx2.SSEError):
    """A server message exceeds a limit; the SDK passes these errors to the request."""


class TransportState:
    """The state of one connection: everything that the server has sent except results."""

    def __init__(self) -> None:
        self.problem = ""
        """Why the server's messages are no longer read, or `""`."""
        self.is_closed = False
        """Whether the SDK has closed its end, which it does when the server's output ends."""
        self.stderr = b""
        """The last part of a process's stderr."""
        self._unanswered = 0

    @property
    def last_lines(self) -> list[str]:
        """The last lines of stderr; a long line counts as several."""
        pieces = re.findall(f".{{1,{_STDERR_CHARS}}}", self.stderr.decode(errors="replace"))
        return [piece.strip() for piece in pieces if piece.strip()][-_STDERR_LINES:]

    def check(self, message: bytes | bytearray) -> None:
        """Raises `MessageLimitError`, and fails the connection, if the message exceeds a limit."""
        if len(message) > _MAX_BYTES:
            raise self.fail(_TOO_LONG)
        openings = message.count(b"[") + message.count(b"{")
        if len(message) <= _MAX_TOKENS and openings <= _MAX_DEPTH:
            return  # too short to exceed the limits
        depth = 0
        for number, token in enumerate(_TOKEN.finditer(message)):
            first = message[token.start()]
            depth += (first in b"[{") - (first in b"]}")
            if depth > _MAX_DEPTH:
                raise self.fail(f"with more than {_MAX_DEPTH} levels of nesting")
            if number >= _MAX_TOKENS:
                raise self.fail(f"with more than {_MAX_TOKENS:,} JSON tokens")

    def fail(self, fault: str) -> MessageLimitError:
        """Returns the error for a message's `fault`, and marks the connection as failed."""
        self.problem = f"sent a message {fault}"
        return MessageLimitError(self.problem)

    @contextmanager
    def answering(self) -> Generator[None]:
        """Counts one of the server's requests as unanswered during the block."""
        self._unanswered += 1
        try:
            yield
        finally:
            self._unanswered -= 1

    async def wait_for_answers(self) -> None:
        """Waits while too many of the server's requests are unanswered."""
        while self._unanswered >= _MAX_UNANSWERED:  # noqa: ASYNC110 - only a flood waits
            await anyio.sleep(_POLL_SECONDS)


class _Writer(ObjectSendStream[SessionMessage]):
    """Sends messages with a function, and reports replies and closing to `TransportState`."""

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
    """Opens a session with a server over HTTP, and closes it at the end of the block."""

    async def limit_end(request: httpx2.Request) -> None:
        if request.method == "DELETE":  # closes the session, with a short timeout
            request.extensions["timeout"] = httpx2.Timeout(_END_SECONDS).as_dict()

    async def limit(response: httpx2.Response) -> None:
        response.stream = _LimitedBody(response, state)

    # Early SDK versions do not have their own limit.
    has_limit = "max_sse_event_size" in signature(streamable_http_client).parameters
    # Any: a type checker would compare one number with every argument
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
    """The decompressed body of a response, which yields complete messages within the limits."""

    def __init__(self, response: httpx2.Response, state: TransportState) -> None:
        bound_reply(response, sys.maxsize)
        self._stream = cast("httpx2.AsyncByteStream", response.stream)  # from an async client
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
        """Yields each event in a stream, or the complete body; truncates overlong messages."""
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
    """Starts a server process, and stops it and its child processes at the end of the block."""
    if sys.platform == "win32":  # the SDK uses jobs for this on Windows
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
        with suppress(OSError):  # the image has no shell
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
            incoming.close()  # drops any further server output
            process.stdin.close()
            await _wait_for_exit(process)
            # It uses only `pid` and `returncode`, which asyncio's process also has.
            await terminate_posix_process_tree(cast("Process", process), _END_SECONDS)
            await _wait_for_exit(process)
            if watch is not None:
                watch.kill()
                await watch.wait()
            await asyncio.wait(readers, timeout=_DRAIN_SECONDS)
        for reader in readers:
            reader.cancel()
        # A process that left the group can keep the pipes open, and no public function closes our
        # ends.
        vars(process)["_transport"].close()


async def _read(
    stdout: asyncio.StreamReader, state: TransportState, to_client: MemoryObjectSendStream[_Message]
) -> None:
    """Forwards a server's messages, one per line, and then drops the rest of the output."""
    try:
        async with to_client:
            async for line in stdout:
                state.check(line)
                await state.wait_for_answers()
                await to_client.send(_parse(line))
    except (MessageLimitError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        pass
    except ValueError:  # the line exceeds the limit of `stdout`
        state.fail(_TOO_LONG)
    while await stdout.read(65_536):
        pass


def _parse(line: bytes) -> _Message:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:  # for example, a log line
        return error


async def _write(stdin: asyncio.StreamWriter, item: SessionMessage) -> None:
    text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
    with suppress(OSError):  # the server and its output have ended
        stdin.write(text.encode() + b"\n")
        await stdin.drain()


async def _keep_errors(stderr: asyncio.StreamReader, state: TransportState) -> None:
    while text := await stderr.read(65_536):
        state.stderr = (state.stderr + text)[-4 * _STDERR_LINES * _STDERR_CHARS :]


async def _wait_for_exit(process: asyncio.subprocess.Process) -> None:
    """Waits up to two seconds for a process to end, even if other processes hold its pipes open."""
    with anyio.move_on_after(_END_SECONDS):
        while process.returncode is None:  # noqa: ASYNC110 - `wait` waits for the pipes
            await anyio.sleep(_POLL_SECONDS)
