"""Converts a server's call result to a `ToolResult`."""

import json
from typing import cast

from mcp.types import (
    AudioContent,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)

from ...content import ContentError, Media, Part
from ...prompt.tool import ToolResult
from ...serde import Json

__all__ = ["to_tool_result"]

_EMPTY = "The tool answered without content."


def to_tool_result(result: CallToolResult) -> ToolResult[Json]:
    """Converts a server's result to a `ToolResult`; an error becomes a failed result.

    The value is the structured content; the model sees it only if no text block repeats it. Images
    and documents become media, whose markers appear in the message.
    """
    blocks = [_content(block) for block in result.content]
    value: Json = result.structured_content
    repeated = value is None or any(
        isinstance(block, TextContent) and _is_json_of(block.text, value)
        for block in result.content
    )
    message = "\n\n".join(filter(None, map(str, blocks)))
    if not message and repeated:
        message = _EMPTY
    media = [block for block in blocks if not isinstance(block, str)]
    return ToolResult(message, value, not result.is_error, repeated, media)


def _content(block: ContentBlock) -> Part:
    match block:
        case TextContent(text=text):
            return text
        case EmbeddedResource(resource=resource):
            if isinstance(resource, TextResourceContents):
                return f"[resource {resource.uri}]\n{resource.text}"
            return _media(f"resource {resource.uri}", resource.mime_type, resource.blob)
        case ImageContent():
            return _media("image", block.mime_type, block.data)
        case AudioContent():
            return _media("audio", block.mime_type, block.data)
        case ResourceLink():
            return f"[link to resource {block.name!r}: {block.uri}]"


def _media(kind: str, mime_type: str | None, data: str) -> Part:
    """Returns an image or a document, or a description of content that is neither."""
    try:
        media = Media.from_base64(data, mime_type or "", name=kind.partition(" ")[2])
    except ContentError:  # it is corrupt, too large, or of an unsupported type
        return f"[{kind} {mime_type or 'of unknown type'}, which cannot be read]"
    return cast(Part, media)  # `from_base64` chose the class


def _is_json_of(text: str, value: Json) -> bool:
    try:
        content = json.loads(text)
    except ValueError:
        content = text
    # The SDK's servers wrap a result that is not an object.
    return bool(content == value or value in ({"result": content}, {"result": text}))
