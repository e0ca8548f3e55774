"""Bounds HTTP replies: how many bytes one may have, and where it may lead."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from ..evaluation.errors import PromptEvaluationError
from .provider_errors import error_from_request

__all__ = [
    "ACCEPTED_ENCODINGS",
    "MAX_REPLY_BYTES",
    "ReplyTooLargeError",
    "bound_reply",
    "redirect_error",
]

MAX_REPLY_BYTES = 64 * 1024 * 1024
"""The default of `max_reply_bytes`: the pieces of a streamed answer of 128,000 tokens take some 45
MB.
"""

ACCEPTED_ENCODINGS = "gzip, deflate"
"""What a request must ask for in `Accept-Encoding`: other ways of compression have no bounded
reader here.
"""

_PIECE = 1024 * 1024
_PART = 2048  # of events, which an SDK may take a millisecond each to read
_LONGEST_TURN = 0.05  # seconds
_LONGEST_HOST = 200


class ReplyTooLargeError(Exception):
    """A reply has more bytes than `max_reply_bytes`."""


def bound_reply(  # Any: a Response of httpx or httpx2, as the SDK has it
    response: Any, max_bytes: int, error: type[ReplyTooLargeError] = ReplyTooLargeError
) -> None:
    """Makes an unread `response` raise `ReplyTooLargeError` once it has given `max_bytes`
    decompressed bytes.

    `error` may be a subclass that an SDK passes on. The body is decompressed in pieces of 1 MiB, so
    that memory stays bounded however well it was compressed. Reading a body that is compressed in
    another way than `ACCEPTED_ENCODINGS` raises `zlib.error`. Asynchronous readers get a stream of
    events in small parts and pause for the event loop, so that a flood of events can be cancelled.
    """

    def iter_bytes(_chunk_size: int | None = None) -> Iterator[bytes]:
        if response.is_stream_consumed:
            yield response.content
            return
        decompressed = _decompressor(response.headers.get("content-encoding", ""), max_bytes, error)
        for raw in response.iter_raw():
            yield from decompressed(raw)

    async def aiter_bytes(_chunk_size: int | None = None) -> AsyncIterator[bytes]:
        if response.is_stream_consumed:
            yield response.content
            return
        decompressed = _decompressor(response.headers.get("content-encoding", ""), max_bytes, error)
        part = _PART if "event-stream" in response.headers.get("content-type", "") else _PIECE
        paused_at = monotonic()
        async for raw in response.aiter_raw():
            for piece in decompressed(raw):
                for start in range(0, len(piece), part):
                    yield piece[start : start + part]
                    if monotonic() - paused_at > _LONGEST_TURN:
                        await asyncio.sleep(0)
                        paused_at = monotonic()

    # Both libraries read a whole body through these methods, and so do the SDKs that read a stream.
    response.iter_bytes, response.aiter_bytes = iter_bytes, aiter_bytes


def _decompressor(
    encoding: str, max_bytes: int, error: type[ReplyTooLargeError]
) -> Callable[[bytes], Iterator[bytes]]:
    """Returns a function from raw to decompressed bytes, which raises `error` beyond `max_bytes`."""
    encoding = encoding.strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise zlib.error(f"it is compressed as {encoding[:40]!r}, which the request did not accept")
    compressed = encoding not in ("", "identity")
    zipped = zlib.decompressobj(zlib.MAX_WBITS | 32)  # a gzip or a zlib header
    size = 0

    def decompress(raw: bytes) -> Iterator[bytes]:
        nonlocal zipped, size
        if not compressed:
            pieces = iter((raw,))
        else:
            if encoding == "deflate" and not size and raw and raw[0] & 0x0F != zlib.DEFLATED:
                zipped = zlib.decompressobj(-zlib.MAX_WBITS)  # some servers leave the header out
            pieces = _inflated(zipped, raw)
        for piece in pieces:
            size += len(piece)
            if size > max_bytes:
                raise error(f"the reply has more than max_reply_bytes={max_bytes} bytes")
            yield piece

    return decompress


# Any: the class of zlib's objects has no public name
def _inflated(zipped: Any, raw: bytes) -> Iterator[bytes]:
    while piece := zipped.decompress(raw, _PIECE):
        yield piece
        raw = zipped.unconsumed_tail


def redirect_error(
    provider: str, status: int, location: str, redact: Callable[[str], str]
) -> PromptEvaluationError:
    """Returns the error for a redirect, which is never followed: the prompt and the key would go
    along.
    """
    try:
        host = urlsplit(location).netloc.rpartition("@")[2]
    except ValueError:  # brackets that hold no address
        host = ""
    shown = redact(host)[:_LONGEST_HOST]
    message = (
        f"the server redirects to {shown!r}, and redirects are not followed"
        if host
        else "the server redirects"
    )
    error = error_from_request(
        provider, "redirect", message, "set base_url to the address that serves this API"
    )
    error.status = status
    return error
