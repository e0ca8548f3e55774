"""How messages of an MCP server arrive: from a process or over HTTP, within limits.

A server may be hostile, so a message is measured before anything is built from it, and a server
that sends requests faster than they are answered has to wait. A process and those that it starts
end with the connection, and also if this process is killed.
"""

import asyncio
import os
import re
import signal
import sys
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from inspect import signature
from typing import Any, NoReturn, Protocol

import anyio
import httpx2
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from anyio.streams.memory import MemoryObjectSendStream
from mcp import StdioServerParameters, stdio_client
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp.types import (
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

from ...adapters.http_clients import ACCEPTED_ENCODINGS, decompressor

__all__ = ["Wire", "over_http", "start_process"]

_MAX_BYTES = 16 * 1024 * 1024
_MAX_TOKENS = 200_000
_MAX_DEPTH = 100
_MAX_REQUESTS = 100
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
type _Streams = tuple[ObjectReceiveStream[_Message], ObjectSendStream[SessionMessage]]


class MessageLimitError(Exception):
    """A message of the server is over a limit."""


class Wire:
    """The state of one connection: what the server has sent, except for its answers to calls."""

    def __init__(self) -> None:
        self.problem = ""
        """Why the server's messages are not read any more; empty while they are."""
        self.is_closed = False
        """Whether the SDK has closed its end, which it does when the server ends its output."""
        self.list_changes = 0
        """How often the server said that its tools changed."""
        self.stderr = b""
        """The end of the text that a process wrote to stderr."""
        self.reading: anyio.CancelScope | None = None
        self._unanswered: set[object] = set()
        self._answered = asyncio.Event()

    @property
    def last_lines(self) -> list[str]:
        """The last lines on stderr; a long line counts as several."""
        pieces = re.findall(f".{{1,{_STDERR_CHARS}}}", self.stderr.decode(errors="replace"))
        return [piece.strip() for piece in pieces if piece.strip()][-_STDERR_LINES:]

    def check(self, message: bytes | bytearray) -> None:
        """Stops the connection and raises `MessageLimitError` if the message is over a limit."""
        if len(message) > _MAX_BYTES:
            self.stop("with more than 16 MiB")
        openings = message.count(b"[") + message.count(b"{")
        if len(message) <= _MAX_TOKENS and openings <= _MAX_DEPTH:
            return  # it cannot have so many
        depth = 0
        for number, token in enumerate(_TOKEN.finditer(message)):
            first = message[token.start()]
            depth += (first in b"[{") - (first in b"]}")
            if depth > _MAX_DEPTH:
                self.stop(f"with more than {_MAX_DEPTH} levels of nesting")
            if number >= _MAX_TOKENS:
                self.stop(f"with more than {_MAX_TOKENS:,} JSON tokens")

    def stop(self, fault: str) -> NoReturn:
        """Ends the connection because of a message's `fault`, and raises `MessageLimitError`."""
        self.problem = f"sent a message {fault}"
        if self.reading is not None:
            self.reading.cancel()
        raise MessageLimitError(self.problem)

    async def admit(self, item: _Message) -> None:
        """Waits while too many of the server's requests have no answer yet."""
        match item:
            case SessionMessage(message=JSONRPCRequest(id=request)):
                while request in self._unanswered or len(self._unanswered) >= _MAX_REQUESTS:
                    self._answered.clear()
                    await self._answered.wait()
                self._unanswered.add(request)
            case SessionMessage(
                message=JSONRPCNotification(method="notifications/cancelled", params=params)
            ):
                with suppress(TypeError):  # an id that cannot be one
                    self._unanswered.discard((params or {}).get("requestId"))
            case _:
                pass

    def answered(self, item: SessionMessage) -> None:
        """Lets the next request of the server through if the message answers one."""
        if isinstance(item.message, JSONRPCResponse | JSONRPCError):
            self._unanswered.discard(item.message.id)
            self._answered.set()


class _Readable(Protocol):
    async def receive(self) -> _Message: ...
    async def aclose(self) -> None: ...


class _Writable(Protocol):
    async def send(self, item: SessionMessage, /) -> None: ...
    async def aclose(self) -> None: ...


class _LimitedReader(ObjectReceiveStream[_Message]):
    """Passes messages on as `Wire` admits them, and ends when it stops."""

    def __init__(self, stream: _Readable, wire: Wire) -> None:
        self._stream = stream
        self._wire = wire

    async def receive(self) -> _Message:
        if not self._wire.problem:
            with anyio.CancelScope() as self._wire.reading:
                item = await self._stream.receive()
                await self._wire.admit(item)
                return item
        raise anyio.EndOfStream

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Writer(ObjectSendStream[SessionMessage]):
    """Tells `Wire` of each answer, and of the end."""

    def __init__(self, stream: _Writable, wire: Wire) -> None:
        self._stream = stream
        self._wire = wire

    async def send(self, item: SessionMessage) -> None:
        await self._stream.send(item)
        self._wire.answered(item)

    async def aclose(self) -> None:
        self._wire.is_closed = True
        await self._stream.aclose()


# --- HTTP


@asynccontextmanager
async def over_http(url: str, headers: Mapping[str, str], wire: Wire) -> AsyncGenerator[_Streams]:
    """Opens a session with a server over HTTP; the block's end ends it."""

    async def limit_end(request: httpx2.Request) -> None:
        if request.method == "DELETE":  # it ends the session, for which nobody waits long
            request.extensions["timeout"] = httpx2.Timeout(_END_SECONDS).as_dict()

    async def limit(response: httpx2.Response) -> None:
        response.stream = _LimitedBody(response, wire)

    # The first versions of the SDK have no limit of their own.
    has_limit = "max_sse_event_size" in signature(streamable_http_client).parameters
    more: dict[str, Any] = {"max_sse_event_size": _MAX_BYTES} if has_limit else {}
    async with (
        httpx2.AsyncClient(
            headers={"Accept-Encoding": ACCEPTED_ENCODINGS, **headers},
            timeout=_HTTP_TIMEOUT,
            event_hooks={"request": [limit_end], "response": [limit]},
        ) as client,
        streamable_http_client(url, http_client=client, **more) as streams,
    ):
        yield _LimitedReader(streams[0], wire), _Writer(streams[1], wire)


class _LimitedBody(httpx2.AsyncByteStream):
    """The decompressed body of a response, which yields whole messages within the limits."""

    def __init__(self, response: httpx2.Response, wire: Wire) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)  # noqa: S101 - of this client
        self._stream = response.stream
        self._wire = wire
        self._headers = response.headers.copy()
        response.headers.pop("content-encoding", None)  # for the library, which has no limits
        self._has_events = "event-stream" in response.headers.get("content-type", "")
        self._is_ignored = response.request.method == "DELETE"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self._is_ignored:
            return
        try:
            async for message in self._messages():
                self._wire.check(message)
                yield message
        except zlib.error as error:
            self._wire.stop(f"that cannot be decompressed: {error}")

    async def _messages(self) -> AsyncIterator[bytes]:
        """Yields each event of a stream, or the whole body; of too long ones the beginning."""
        decompress = decompressor(self._headers, sys.maxsize)
        message, searched = bytearray(), 0
        async for raw in self._stream:
            for piece in decompress(raw):
                message += piece
                while self._has_events and (end := _EVENT_END.search(message, searched)):
                    yield bytes(message[: end.end()])
                    del message[: end.end()]
                    searched = 0
                searched = max(0, len(message) - 3)
                if len(message) > _MAX_BYTES:
                    yield bytes(message)
        yield bytes(message)

    async def aclose(self) -> None:
        await self._stream.aclose()


# --- Processes


@asynccontextmanager
async def start_process(parameters: StdioServerParameters, wire: Wire) -> AsyncGenerator[_Streams]:
    """Starts a server as a process; the block's end ends it and the processes that it started."""
    if sys.platform == "win32":  # where the SDK has jobs for this
        async with stdio_client(parameters) as streams:
            yield _LimitedReader(streams[0], wire), _Writer(streams[1], wire)
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
    to_client, incoming = anyio.create_memory_object_stream[_Message](0)
    outgoing, from_client = anyio.create_memory_object_stream[SessionMessage](0)
    async with anyio.create_task_group() as tasks, to_client, incoming, outgoing, from_client:
        watch: asyncio.subprocess.Process | None = None
        readers = [
            asyncio.create_task(_read(process, wire, to_client)),
            asyncio.create_task(_keep_errors(process, wire)),
        ]
        try:
            tasks.start_soon(_write, process, from_client)
            with suppress(OSError):  # in an image without a shell
                watch = await asyncio.create_subprocess_exec(
                    *("/bin/sh", "-c", _WATCH, str(process.pid)),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=asyncio.subprocess.DEVNULL,
                    start_new_session=True,
                )
            yield _LimitedReader(incoming, wire), _Writer(outgoing, wire)
        finally:
            with anyio.CancelScope(shield=True):
                incoming.close()  # so that what the server still writes is dropped
                await _end_group(process)
                if watch is not None:
                    watch.kill()
                    await watch.wait()
                await asyncio.wait(readers, timeout=_DRAIN_SECONDS)
            for reader in readers:
                reader.cancel()
            tasks.cancel_scope.cancel()
            # A process that left the group may hold the pipes open, and nothing public closes ours.
            vars(process)["_transport"].close()


async def _read(
    process: asyncio.subprocess.Process, wire: Wire, to_client: MemoryObjectSendStream[_Message]
) -> None:
    """Passes the messages of a server on, one a line, and drops what follows its end."""
    assert process.stdout is not None  # noqa: S101 - a pipe
    with suppress(MessageLimitError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        async with to_client:
            while to_client.statistics().open_receive_streams:
                try:
                    line = await process.stdout.readline()
                except ValueError:  # it is longer than the reader's limit
                    wire.stop("with more than 16 MiB")
                if not line:
                    break
                wire.check(line)
                try:
                    message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                except ValueError:  # a log line, for example
                    await asyncio.sleep(0)
                    continue
                await to_client.send(SessionMessage(message))
    while await process.stdout.read(65_536):
        pass


async def _write(
    process: asyncio.subprocess.Process, from_client: ObjectReceiveStream[SessionMessage]
) -> None:
    assert process.stdin is not None  # noqa: S101 - a pipe
    with suppress(OSError):  # it has ended, and so does its output
        async for item in from_client:
            text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(text.encode() + b"\n")
            await process.stdin.drain()


async def _keep_errors(process: asyncio.subprocess.Process, wire: Wire) -> None:
    assert process.stderr is not None  # noqa: S101 - a pipe
    while text := await process.stderr.read(65_536):
        wire.stderr = (wire.stderr + text)[-4 * _STDERR_LINES * _STDERR_CHARS :]


async def _end_group(process: asyncio.subprocess.Process) -> None:
    """Ends a process and its group as the protocol says: closed input, SIGTERM, SIGKILL."""
    assert process.stdin is not None  # noqa: S101 - a pipe
    process.stdin.close()
    await _until(lambda: process.returncode is not None)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not _signal_group(process.pid, number):
            return
        await _until(lambda: not _signal_group(process.pid, 0))


def _signal_group(group: int, number: int) -> bool:
    """Sends a signal to a process group; returns whether there is such a group."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # of one of its processes, or on macOS of one that has ended
        return True
    return True


async def _until(is_so: Callable[[], bool]) -> None:
    """Waits for a condition, two seconds at most."""
    with anyio.move_on_after(_END_SECONDS):
        while not is_so():  # noqa: ASYNC110 - nothing tells when a group has ended
            await anyio.sleep(_POLL_SECONDS)
