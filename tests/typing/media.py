"""Media keep their kind, and results with media keep the type of their value."""

from typing import assert_type

from weakincentives import Session, ToolResult
from weakincentives.content import Content, Document, Image, Media, media_in, to_content


def kinds(session: Session, image: Image, data: bytes) -> None:
    assert_type(Image.from_path("cat.png"), Image)
    assert_type(Document.from_url("https://example.com/a.pdf"), Document)
    assert_type(Media.from_bytes(data), Media)
    assert_type(session.content.put(image), Image)
    assert_type(session.content.load(image), bytes)
    assert_type(image.reference, Image)


def messages(image: Image, document: Document) -> None:
    content = to_content(["Compare", image, document])
    assert_type(content, Content)
    assert_type(media_in(content), tuple[Image | Document, ...])
    to_content([image, 3])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


def results(image: Image) -> None:
    assert_type(ToolResult("Found.", 3, media=[image]), ToolResult[int])
