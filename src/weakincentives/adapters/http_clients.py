"""HTTP clients of adapters: a client for each event loop, and a bound for the bytes of a reply."""

import asyncio
import weakref
import zlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import suppress
from time import monotonic
from typing import Any, Protocol
from urllib.parse import urlsplit

from ..evaluation.errors import PromptEvaluationError
from .provider_errors import error_from_redirect, error_from_reply, error_from_request

__all__ = [
    "ACCEPTED_ENCODINGS",
    "MAX_REPLY_BYTES",
    "LoopClients",
    "RedirectError",
    "ReplyTooLargeError",
    "bound_reply",
    "check_max_reply_bytes",
    "error_from_http",
    "read_origin",
]

MAX_REPLY_BYTES = 64 * 1024 * 1024
"""The default of `max_reply_bytes`; a streamed answer of 128,000 tokens takes some 45 MB."""

ACCEPTED_ENCODINGS = "gzip, deflate"
"""The value for a request's `Accept-Encoding`: `bound_reply` reads no other encodings."""

_PIECE = 1024 * 1024
_PART = 2048  # of events, which an SDK may take a millisecond each to read
_LONGEST_TURN = 0.05  # seconds


# Any: finalizers take functions of every kind.
type _Finalizer = weakref.finalize[..., Any]
type _Clients[C] = dict[asyncio.AbstractEventLoop, tuple[C, _Finalizer]]


class _Client(Protocol):
    def close(self) -> Awaitable[object]: ...


class LoopClients[C: _Client]:
    """Makes one client for each event loop, since connections cannot move between loops.

    A client is closed before its event loop, which `asyncio.run` and portals ensure, or when this
    object is gone.
    """

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._clients: _Clients[C] = {}

    def __iter__(self) -> Iterator[C]:
        return iter([client for client, _ in list(self._clients.values())])

    async def get(self) -> C:
        """Returns the client of the running event loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            holder = _hold(self._clients, loop, self._make())
            client = await anext(holder)
            # The finalizer keeps the client alive until this object is gone: the garbage collector
            # would close connections in any order.
            finalizer = weakref.finalize(self, _release, loop, holder)
            finalizer.atexit = False
            self._clients[loop] = client, finalizer
        return self._clients[loop][0]


async def _hold[C: _Client](
    clients: _Clients[C], loop: asyncio.AbstractEventLoop, client: C
) -> AsyncGenerator[C]:
    """Closes `client` when the generator ends: a loop ends its generators before it closes."""
    try:
        yield client
    finally:
        _, finalizer = clients.pop(loop)
        finalizer.detach()
        await client.close()


def _release[C](loop: asyncio.AbstractEventLoop, holder: AsyncGenerator[C]) -> None:
    async def end() -> None:
        await holder.aclose()

    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(lambda: loop.create_task(end()))


class ReplyTooLargeError(Exception):
    """A reply has more bytes than `max_reply_bytes`."""


class RedirectError(Exception):
    """A redirect to `location`, which was not followed."""

    def __init__(self, status: int, location: str) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.location = location


def check_max_reply_bytes(max_reply_bytes: int) -> int:
    """Returns `max_reply_bytes`; raises `ValueError` unless it is above 0."""
    if max_reply_bytes < 1:
        raise ValueError(f"max_reply_bytes is {max_reply_bytes}; pass a number of bytes above 0")
    return max_reply_bytes


def bound_reply(  # Any: a Response of httpx or httpx2, as the SDK has it
    response: Any, max_bytes: int, error: type[ReplyTooLargeError] = ReplyTooLargeError
) -> None:
    """Bounds an unread `response`: reading more than `max_bytes` raises `ReplyTooLargeError`.

    Bytes count after decompression. `error` may be a subclass that an SDK passes on. A body is
    decompressed in pieces of 1 MiB, so that memory stays bounded however well it was compressed.
    Reading a body in another encoding than `ACCEPTED_ENCODINGS` raises `zlib.error`. Asynchronous
    readers get a stream of events in small parts and pause for the event loop, so that a flood of
    events can be cancelled.
    """

    def iter_bytes(_chunk_size: int | None = None) -> Iterator[bytes]:
        if response.is_stream_consumed:
            yield response.content
            return
        decompress = _decompressor(response.headers, max_bytes, error)
        try:
            for raw in response.iter_raw():
                yield from decompress(raw)
        finally:
            release()

    async def aiter_bytes(_chunk_size: int | None = None) -> AsyncIterator[bytes]:
        if response.is_stream_consumed:
            yield response.content
            return
        decompress = _decompressor(response.headers, max_bytes, error)
        part = _PART if "event-stream" in response.headers.get("content-type", "") else _PIECE
        paused_at = monotonic()
        try:
            async for raw in response.aiter_raw():
                for piece in decompress(raw):
                    for start in range(0, len(piece), part):
                        yield piece[start : start + part]
                        if monotonic() - paused_at > _LONGEST_TURN:
                            await asyncio.sleep(0)
                            paused_at = monotonic()
        finally:
            release()

    def release() -> None:
        """Lets the response go: with these functions it refers to itself."""
        for name in ("iter_bytes", "aiter_bytes"):
            vars(response).pop(name, None)

    # Both libraries read a whole body through these methods, and so do the SDKs that read a stream.
    response.iter_bytes, response.aiter_bytes = iter_bytes, aiter_bytes


def _decompressor(
    headers: Mapping[str, str], max_bytes: int, error: type[ReplyTooLargeError]
) -> Callable[[bytes], Iterable[bytes]]:
    """Returns a function from raw to decompressed bytes; it raises `error` beyond `max_bytes`."""
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise zlib.error(f"it is compressed as {encoding[:40]!r}, which the request did not accept")
    size = 0

    def count(piece: bytes) -> bytes:
        nonlocal size
        size += len(piece)
        if size > max_bytes:
            raise error(f"the reply has more than max_reply_bytes={max_bytes} bytes")
        return piece

    if encoding in ("", "identity"):  # it needs no inflater, which takes 8 kB
        return lambda raw: (count(raw),)
    inflate = _inflate(encoding)
    return lambda raw: map(count, inflate(raw))


def _inflate(encoding: str) -> Callable[[bytes], Iterator[bytes]]:
    """Returns a function from parts of a compressed body to pieces of at most 1 MiB."""
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)  # a gzip or a zlib header
    has_begun = False

    def inflate(raw: bytes) -> Iterator[bytes]:
        nonlocal inflater, has_begun
        if encoding == "deflate" and not has_begun and raw and raw[0] & 0x0F != zlib.DEFLATED:
            inflater = zlib.decompressobj(-zlib.MAX_WBITS)  # some servers leave the header out
        has_begun = has_begun or bool(raw)
        while piece := inflater.decompress(raw, _PIECE):
            yield piece
            raw = inflater.unconsumed_tail

    return inflate


def error_from_http(provider: str, error: BaseException) -> PromptEvaluationError | None:
    """Returns the error for an exception of an HTTP library or of this module, `None` for others.

    The SDK's version decides whether its HTTP library is httpx or httpx2, so names are compared.
    """
    names = {base.__name__ for base in type(error).__mro__}
    if isinstance(error, RedirectError):
        return error_from_redirect(provider, error.status, error.location)
    if isinstance(error, ReplyTooLargeError):
        return error_from_request(provider, "reply_too_large", str(error))
    if isinstance(error, zlib.error):
        return error_from_reply(provider, str(error))
    if names & {"TimeoutError", "TimeoutException"}:
        return error_from_request(provider, "timeout", "the provider did not answer in time")
    if names & {"OSError", "TransportError"}:
        reason = f"no connection ({type(error).__name__})"
        return error_from_request(provider, "connection", reason)
    return None


def read_origin(base_url: object, own_host: str = "") -> str:
    """Returns the host of a base URL, `""` without one and for the provider's `own_host`."""
    try:
        host = urlsplit(str(base_url or "")).hostname or ""
    except ValueError:  # the first request reports it
        return ""
    return "" if host == own_host else host
