"""Small images and documents, and strict readers of the forms that providers accept."""

import zlib
from base64 import b64decode
from hashlib import sha256
from struct import pack
from typing import Any

__all__ = ["PDF", "PNG", "png", "shown_by_chat", "shown_by_messages", "shown_by_responses"]

# Any throughout: JSON payloads, which are read key by key.


def png(red: int = 200, side: int = 2) -> bytes:
    """Returns a square PNG of one colour."""
    rows = b"".join([b"\0" + bytes([red, 10, 10]) * side for _ in range(side)])
    chunks = [
        (b"IHDR", pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        [
            pack(">I", len(data)) + kind + data + pack(">I", zlib.crc32(kind + data))
            for kind, data in chunks
        ]
    )


PNG = png()
PDF = b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"


def _digest_of_url(url: str) -> str:
    """Returns the URL, or the digest of its bytes if it is a data URL, which must name a type."""
    if url.startswith("https://"):
        return url
    head, _, data = url.partition(";base64,")
    content = b64decode(data, validate=True)
    mime = head.removeprefix("data:")
    signatures = {"image/png": b"\x89PNG", "application/pdf": b"%PDF-", "text/csv": b""}
    assert content.startswith(signatures[mime]), mime
    return sha256(content).hexdigest()


def shown_by_responses(body: dict[str, Any]) -> list[str]:
    """Returns the texts, digests and URLs of all parts, in order; fails for any other form."""
    shown: list[str] = []
    for item in body["input"]:
        field = "output" if item.get("type") == "function_call_output" else "content"
        parts = item.get(field, [])
        if isinstance(parts, str):
            continue
        for part in parts:
            match part:
                case {"type": "input_text", "text": str() as text, **rest} if text and not rest:
                    shown.append(text)
                case {"type": "input_image", "image_url": url, "detail": "auto", **rest}:
                    assert not rest
                    assert item.get("role", "user") == "user"
                    shown.append(_digest_of_url(url))
                case {"type": "input_file", "filename": str() as name, "file_data": url, **rest}:
                    assert name
                    assert not rest
                    shown.append(_digest_of_url(url))
                case {"type": "input_file", "file_url": url, **rest} if not rest:
                    shown.append(url)
                case {"type": "output_text"}:
                    assert item["role"] == "assistant"
                case _:
                    raise AssertionError(f"no part of Responses: {part}")
    return shown


def shown_by_chat(body: dict[str, Any]) -> list[str]:
    """Returns the texts, digests and URLs of all parts, in order; fails for any other form.

    Only a user message has parts, and the answers to all calls of a turn follow them immediately.
    """
    shown: list[str] = []
    open_calls: list[str] = []
    for message in body["messages"]:
        if message["role"] == "tool":
            open_calls.remove(message["tool_call_id"])
        else:
            assert not open_calls, "a call has no answer yet"
            open_calls = [call["id"] for call in message.get("tool_calls", ())]
        parts = message.get("content")
        if not isinstance(parts, list):
            continue
        assert message["role"] == "user"
        for part in parts:
            match part:
                case {"type": "text", "text": str() as text, **rest} if text and not rest:
                    shown.append(text)
                case {"type": "image_url", "image_url": {"url": url, **rest}} if not rest:
                    shown.append(_digest_of_url(url))
                case {"type": "file", "file": {"filename": str() as name, "file_data": url}}:
                    assert name
                    shown.append(_digest_of_url(url))
                case _:
                    raise AssertionError(f"no part of Chat Completions: {part}")
    return shown


def shown_by_messages(body: dict[str, Any]) -> list[str]:
    """Returns the texts, digests and URLs of all parts, in order; fails for any other form.

    Images and documents are allowed in user messages and in results that are not errors.
    """
    shown: list[str] = []
    for message in body["messages"]:
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
            assert message["role"] == "user" or block["type"] not in ("image", "document")
            if block["type"] == "tool_result":
                inner: Any = block.get("content", [])
                inner = [{"type": "text", "text": inner}] if isinstance(inner, str) else inner
                kinds = {part["type"] for part in inner}
                assert not block.get("is_error") or kinds <= {"text"}
                shown += [_shown_by_block(part) for part in inner]
            elif message["role"] == "user":
                shown.append(_shown_by_block(block))
    return shown


def _shown_by_block(block: dict[str, Any]) -> str:
    form = {key: value for key, value in block.items() if key != "cache_control"}
    match form:
        case {"type": "text", "text": str() as text, **rest} if text and not rest:
            return text
        case {"type": "tool_reference"}:
            return ""
        case {"type": "image" | "document", "source": {"type": "url", "url": url, **rest}}:
            assert not rest
            return str(url)
        case {"type": "image", "source": {"type": "base64", "media_type": mime, "data": data}}:
            assert mime.startswith("image/")
            return _digest_of_url(f"data:{mime};base64,{data}")
        case {"type": "document", "source": {"type": "base64", "media_type": mime, "data": data}}:
            assert mime == "application/pdf"
            assert form.keys() <= {"type", "source", "title"}
            return _digest_of_url(f"data:{mime};base64,{data}")
        case {"type": "document", "source": {"type": "text", "media_type": mime, "data": text}}:
            assert mime == "text/plain"
            return sha256(text.encode()).hexdigest()
        case _:
            raise AssertionError(f"no block of Messages: {block}")
