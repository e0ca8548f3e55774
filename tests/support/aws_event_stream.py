"""Amazon's event stream format, which Bedrock uses: frames with headers, lengths and checksums."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping
from struct import pack
from typing import Any
from zlib import crc32

CONTENT_TYPE = "application/vnd.amazon.eventstream"
_TEXT = 7  # the type of a header's value


def frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    """Returns a frame with these headers, whose names begin with a colon."""
    written = b"".join(
        bytes([len(name)]) + name.encode() + pack(">BH", _TEXT, len(value)) + value.encode()
        for name, value in headers.items()
    )
    prelude = pack(">II", len(written) + len(payload) + 16, len(written))
    head = prelude + pack(">I", crc32(prelude)) + written + payload
    return head + pack(">I", crc32(head))


def chunk(event: Mapping[str, Any]) -> bytes:
    """Returns a frame with an event of the Messages API."""
    payload = {"bytes": b64encode(json.dumps(event).encode()).decode(), "p": "abcd"}
    headers = {":event-type": "chunk", ":content-type": "application/json"}
    return frame({**headers, ":message-type": "event"}, json.dumps(payload).encode())


def failure(kind: str, message: str) -> bytes:
    """Returns a frame with a Bedrock exception, such as `throttlingException`."""
    headers = {":exception-type": kind, ":content-type": "application/json"}
    return frame(
        {**headers, ":message-type": "exception"}, json.dumps({"message": message}).encode()
    )
