"""HTTP clients for adapters: one client for each event loop, and a size limit for replies."""

import asyncio
import sys
import weakref
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from functools import cache, partial
from time import monotonic
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from ..evaluation.errors import PromptEvaluationError
from ..event_loops import start_on
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
    "read_address",
    "read_origin",
]

MAX_REPLY_BYTES = 64 * 1024 * 1024
"""The default of `max_reply_bytes`; a streamed answer of 128,000 tokens takes about 45 MB."""

ACCEPTED_ENCODINGS = "gzip, deflate"
"""The value of a request's `Accept-Encoding`: the encodings that `bound_reply` can decode."""

_BROKEN = {"ReadError", "RemoteProtocolError", "WriteError", "ConnectionResetError"}
_CHUNK = 1024 * 1024
_PART = 2048  # bytes of events; an SDK can take a millisecond to read each event
_LONGEST_TURN = 0.05  # seconds before yielding to the event loop


# Any: a Response from httpx or httpx2, depending on the SDK.
type AnyResponse = Any
type _Decompress = Callable[[bytes], Iterable[bytes]]
# Any: modules, classes, requests and streams from httpx or httpx2.
type _AnyHTTP = Any
# Any: finalizers accept any function.
type _Finalizer = weakref.finalize[..., Any]
type _Clients[C] = dict[asyncio.AbstractEventLoop, tuple[C, _Finalizer]]


class _Client(Protocol):
    def close(self) -> Awaitable[object]: ...


class LoopClients[C: _Client]:
    """Creates one client for each event loop, because connections cannot move between loops.

    A client is closed before its event loop closes (`asyncio.run` and portals ensure this), or when
    this object is garbage-collected.
    """

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._clients: _Clients[C] = {}

    def __iter__(self) -> Iterator[C]:
        return iter([client for client, _ in list(self._clients.values())])

    async def get(self) -> C:
        """Returns the running event loop's client."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            holder = _hold(self._clients, loop, self._make())
            client = await anext(holder)
            # The finalizer keeps the client alive as long as this object, because the garbage
            # collector would close connections in an arbitrary order.
            finalizer = weakref.finalize(self, _release, loop, holder)
            finalizer.atexit = False
            self._clients[loop] = client, finalizer
        return self._clients[loop][0]


async def _hold[C: _Client](
    clients: _Clients[C], loop: asyncio.AbstractEventLoop, client: C
) -> AsyncGenerator[C]:
    """Closes `client` when the generator ends; a loop ends its generators before it closes."""
    try:
        yield client
    finally:
        _, finalizer = clients.pop(loop)
        finalizer.detach()
        await client.close()


def _release[C](loop: asyncio.AbstractEventLoop, holder: AsyncGenerator[C]) -> None:
    async def end() -> None:
        await holder.aclose()

    start_on(loop, end())


class ReplyTooLargeError(Exception):
    """A reply has more bytes than `max_reply_bytes`."""


class RedirectError(Exception):
    """A redirect to `location` that was not followed."""

    def __init__(self, status: int, location: str) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.location = location


def check_max_reply_bytes(max_reply_bytes: int) -> int:
    """Returns `max_reply_bytes`; raises `ValueError` if it is less than 1."""
    if max_reply_bytes < 1:
        raise ValueError(f"max_reply_bytes must be above 0, got {max_reply_bytes}")
    return max_reply_bytes


def bound_reply(
    response: AnyResponse,
    max_bytes: int,
    error: type[ReplyTooLargeError] = ReplyTooLargeError,
    *,
    is_stream: bool | None = None,
) -> None:
    """Limits and decompresses an unread `response` in chunks of at most 1 MiB as it is read.

    Reading the response raises `error` after `max_bytes`, and `zlib.error` for any encoding that is
    not in `ACCEPTED_ENCODINGS`. `error` can be a subclass that an SDK does not wrap. `is_stream` is
    derived from the content type by default. For a stream, asynchronous readers get small chunks
    and yield to the event loop, so that even a flood of events can be cancelled.
    """
    if response.is_stream_consumed:  # already read by a hook or a recorder
        return
    if is_stream is None:
        is_stream = "event-stream" in response.headers.get("content-type", "")
    kind = _bounded_stream(type(response).__mro__[-2])  # the class itself may belong to a transport
    encoding = response.headers.get("content-encoding", "")
    response.stream = kind(
        response.stream,
        partial(_decompressor, encoding.strip().lower(), max_bytes, error),
        _PART if is_stream else _CHUNK,
    )
    if encoding:
        del response.headers["content-encoding"]


@cache
def _bounded_stream(response_class: type[object]) -> _AnyHTTP:
    """Returns the class for bodies that `bound_reply` sets in one library's responses."""
    library: _AnyHTTP = sys.modules[response_class.__module__.partition(".")[0]]
    return _define_stream(library.SyncByteStream, library.AsyncByteStream)


def _define_stream(sync_base: _AnyHTTP, async_base: _AnyHTTP) -> _AnyHTTP:
    class BoundedStream(sync_base, async_base):  # type: ignore[misc]  # chosen at run time
        def __init__(self, inner: _AnyHTTP, begin: Callable[[], _Decompress], part: int) -> None:
            self._inner = inner
            self._begin = begin
            self._part = part

        def __iter__(self) -> Iterator[bytes]:
            decompress = self._begin()
            for raw in self._inner:
                yield from decompress(raw)

        async def __aiter__(self) -> AsyncIterator[bytes]:
            decompress, part, paused_at = self._begin(), self._part, monotonic()
            async for raw in self._inner:
                for chunk in decompress(raw):
                    for start in range(0, len(chunk), part):
                        yield chunk[start : start + part]
                        if monotonic() - paused_at > _LONGEST_TURN:
                            await asyncio.sleep(0)
                            paused_at = monotonic()

        def close(self) -> None:
            self._inner.close()

        async def aclose(self) -> None:
            await self._inner.aclose()

    return BoundedStream


def _decompressor(encoding: str, max_bytes: int, error: type[ReplyTooLargeError]) -> _Decompress:
    """Returns a function that decompresses bytes, and raises `error` after `max_bytes`."""
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise zlib.error(f"it is compressed as {encoding[:40]!r}, which the request did not accept")
    size = 0

    def count(chunk: bytes) -> bytes:
        nonlocal size
        size += len(chunk)
        if size > max_bytes:
            raise error(f"the reply has more than max_reply_bytes={max_bytes} bytes")
        return chunk

    if encoding in ("", "identity"):  # avoids creating an inflater, which takes 8 kB
        return lambda raw: (count(raw),)
    inflate = _inflate(encoding)
    return lambda raw: map(count, inflate(raw))


def _inflate(encoding: str) -> Callable[[bytes], Iterator[bytes]]:
    """Returns a function that inflates parts of a body into chunks of at most 1 MiB."""
    inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)  # with a gzip or zlib header
    has_begun = False

    def inflate(raw: bytes) -> Iterator[bytes]:
        nonlocal inflater, has_begun
        if encoding == "deflate" and not has_begun and raw and raw[0] & 0x0F != zlib.DEFLATED:
            inflater = zlib.decompressobj(-zlib.MAX_WBITS)  # some servers omit the header
        has_begun = has_begun or bool(raw)
        while chunk := inflater.decompress(raw, _CHUNK):
            yield chunk
            raw = inflater.unconsumed_tail

    return inflate


def error_from_http(provider: str, error: BaseException) -> PromptEvaluationError | None:
    """Returns the error for an exception from an HTTP library or this module; otherwise `None`.

    Names are compared because the SDK's version determines whether its library is httpx or httpx2.
    """
    names = {base.__name__ for base in type(error).__mro__}
    if isinstance(error, RedirectError):
        return error_from_redirect(provider, error.status, error.location)
    if isinstance(error, ReplyTooLargeError):
        return error_from_request(provider, "reply_too_large", str(error))
    if isinstance(error, zlib.error):
        return error_from_reply(provider, str(error))
    name = type(error).__name__
    if name != "ConnectTimeout" and names & {"TimeoutError", "TimeoutException"}:
        return error_from_request(provider, "timeout", "the provider did not answer in time")
    if "complete message body" in str(error):  # h11's message; the server had started to reply
        return error_from_request(provider, "connection", "the reply ended early", "try again")
    if name in _BROKEN:
        reason = f"the connection ended early ({name})"
        remedy = "try again, or check base_url and the network"
        return error_from_request(provider, "connection", reason, remedy)
    if names & {"OSError", "TransportError"}:
        address = f" to {place}" if (place := read_address(error).origin) else ""
        failure = error_from_request(provider, "connection", f"no connection{address} ({name})")
        if name == "UnsupportedProtocol":
            failure.remedy = "begin base_url with http:// or https://"
        return failure
    return None


class Address(NamedTuple):
    """A request's address, without credentials or query: its origin and URL.

    `origin` looks like `http://host:80`.
    """

    origin: str
    url: str


def read_address(error: BaseException) -> Address:
    """Returns the failed request's address, or empty strings if `error` has no request."""
    try:
        # This is a property that may raise if it is not set yet.
        request: _AnyHTTP = getattr(error, "request", None)
        parts = urlsplit(str(request.url))
        origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    except (AttributeError, RuntimeError, ValueError):
        return Address("", "")
    return Address(origin, origin + parts.path) if parts.netloc else Address("", "")


def read_origin(base_url: object, own_host: str = "") -> str:
    """Returns a base URL's host, or `""` if there is no URL or it is the provider's `own_host`."""
    try:
        host = urlsplit(str(base_url or "")).hostname or ""
    except ValueError:  # the first request will report the error
        return ""
    return "" if host == own_host else host
