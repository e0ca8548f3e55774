"""Images and documents as content blocks of Anthropic's Messages API, and their size limits.

The Claude Agent SDK accepts the same blocks.
"""

from binascii import a2b_base64

from ..content import IMAGE_TYPES, Document, Image, Media, MediaSupport
from .codec import JsonObject

__all__ = ["CLAUDE_MEDIA", "CLOUD_MEDIA", "MAX_IMAGES", "MAX_MEDIA_CHARS", "encode_claude_media"]

# platform.claude.com/docs/en/build-with-claude/vision and …/pdf-support: the API counts base64
# characters, four for every three bytes. Only the API can check image dimensions and PDF page
# counts.
MAX_MEDIA_CHARS = 32 * 1024 * 1024
"""The maximum number of base64 characters in one request."""

MAX_IMAGES = 600
"""The maximum number of images in one request; models with a 200,000-token window accept 100."""

_DOCUMENT_BYTES = MAX_MEDIA_CHARS // 4 * 3
_DOCUMENTS = {"application/pdf": _DOCUMENT_BYTES, "text/*": _DOCUMENT_BYTES}

CLAUDE_MEDIA = MediaSupport(
    types={**dict.fromkeys(IMAGE_TYPES, 10 * 1024 * 1024 // 4 * 3), **_DOCUMENTS},
    urls=(Image, Document),
)
"""The media that Anthropic's own API accepts."""

CLOUD_MEDIA = MediaSupport(
    types={**dict.fromkeys(IMAGE_TYPES, 5 * 1024 * 1024 // 4 * 3), **_DOCUMENTS}
)
"""The media that Bedrock and Google Cloud accept for Claude; they do not fetch URLs."""


def encode_claude_media(media: Media, base64: str) -> JsonObject:
    """Returns an image or a document as a block; `base64` is its bytes, or `""` for a URL."""
    if media.url:
        source = {"type": "url", "url": media.url}
    elif media.mime.startswith("text/"):
        text = a2b_base64(base64).decode()
        source = {"type": "text", "media_type": "text/plain", "data": text}
    else:
        source = {"type": "base64", "media_type": media.mime, "data": base64}
    if isinstance(media, Image):
        return {"type": "image", "source": source}
    title = {"title": media.name} if media.name else {}
    return {"type": "document", "source": source, **title}
