"""Images and documents: accepted inputs, references, and the stores of their bytes."""

import pickle
import stat
from base64 import b64encode
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.media import PDF, PNG, png
from weakincentives import serde
from weakincentives.content import (
    MAX_CONTENT_BYTES,
    Content,
    ContentError,
    ContentStore,
    Document,
    FolderContentStore,
    Image,
    Media,
    MediaSupport,
    MemoryContentStore,
    media_in,
    text_of,
    to_content,
)
from weakincentives.errors import SerdeError

NAMES = st.text(st.characters(categories=["L", "N", "P"]), max_size=40)
MEDIA = st.one_of(
    st.builds(lambda data, name: Image.from_bytes(PNG + data, name=name), st.binary(), NAMES),
    st.builds(lambda data, name: Document.from_bytes(PDF + data, name=name), st.binary(), NAMES),
    st.builds(lambda name: Image.from_url(f"https://example.com/{name}.png"), st.uuids()),
)


@given(MEDIA)
def test_references_round_trip_through_json_without_bytes(media: Image | Document) -> None:
    text = serde.dump_json(media)
    assert serde.parse_json(Image | Document, text) == media
    assert serde.parse_json(Image | Document, text).data is None
    assert media.reference == media
    assert hash(media.reference) == hash(media)
    assert serde.dump_json_lossless(Image | Document, media.reference) == text
    if media.data is not None:
        assert b64encode(media.data[:12]).decode()[:12] not in text


def test_state_with_bytes_is_rejected_instead_of_losing_them() -> None:
    with pytest.raises(SerdeError, match="data"):
        serde.dump_json_lossless(Image, Image.from_bytes(PNG))


def test_media_type_is_detected_from_the_first_bytes() -> None:
    webp = b"RIFF\x10\0\0\0WEBPVP8 "
    mimes = [Media.from_bytes(data).mime for data in (PNG, b"GIF89a..", b"\xff\xd8\xff..", webp)]
    assert mimes == ["image/png", "image/gif", "image/jpeg", "image/webp"]
    assert isinstance(Media.from_bytes(PDF), Document)
    assert isinstance(Media.from_bytes(PNG), Image)
    assert Document.from_bytes(b"plain", "text/plain").mime == "text/plain"


def test_from_path_sets_the_name_and_type_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(PNG)
    (tmp_path / "notes.txt").write_text("Hello")
    cat, notes = Image.from_path(tmp_path / "cat.png"), Document.from_path(tmp_path / "notes.txt")
    assert (cat.name, cat.mime, cat.size) == ("cat.png", "image/png", len(PNG))
    assert (notes.name, notes.mime) == ("notes.txt", "text/plain")
    assert str(cat) == f"[image cat.png {cat.digest[:8]}]"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Image.from_bytes(b""), "no bytes; pass the bytes of a whole file"),
        (lambda: Image.from_bytes(b"hello"), "cannot detect the type from the bytes; pass mime="),
        (lambda: Image.from_bytes(PDF, name="a.pdf"), "'a.pdf': .* are application/pdf; use Doc"),
        (lambda: Document.from_bytes(PNG), "are image/png; use Image"),
        (lambda: Image.from_bytes(PNG, "image/jpeg"), "image/png, not image/jpeg; omit mime"),
        (lambda: Document.from_bytes(b"hi", "application/pdf"), "are not application/pdf; pass"),
        (lambda: Document.from_bytes(b"\xff\xfe", "text/plain"), "not text/plain in UTF-8"),
        (lambda: Document.from_bytes(b"hi", "plain"), "'plain' is not a media type; pass mime="),
        (
            lambda: Image.from_base64("a", "image/png"),
            "is not base64 .*; pass only the encoded bytes",
        ),
        (lambda: Image.from_base64("data:image/png;base64,aaaa"), "without 'data:"),
        (lambda: Image.from_url("file:///etc/passwd"), "must be an HTTP address; pass https:"),
        (lambda: Image.from_url("data:image/png;base64,aaaa"), "the bytes to from_base64"),
        (lambda: Image.from_bytes(PNG, name="a\nb"), "unprintable characters; pass name="),
        (lambda: Image.from_bytes(bytes(MAX_CONTENT_BYTES + 1)), "more than 50,000,000 bytes"),
        (lambda: Image(url="https://a.b/c", size=3), "a URL has no digest and no size"),
        (lambda: Image(mime="image/png", digest="../../etc/passwd", size=3), "not those of bytes"),
        (lambda: Image(mime="application/pdf", digest="a" * 64, size=3), "of the other kind"),
        (lambda: Media(mime="image/png", digest="a" * 64, size=3), "it has no kind"),
    ],
)
def test_invalid_media_are_rejected_with_a_fix(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ContentError, match=message):
        make()


def test_from_base64_creates_the_same_image() -> None:
    assert Image.from_base64(b64encode(PNG)) == Image.from_bytes(PNG)


@given(st.lists(st.text() | MEDIA))
def test_to_content_keeps_all_parts_and_returns_a_string_without_media(
    parts: list[str | Image],
) -> None:
    said = [part for part in parts if not isinstance(part, str) or part.strip()]
    if not said:
        with pytest.raises(ValueError, match="message is empty"):
            to_content(parts)
        return
    content: Content = to_content(parts)
    media = tuple([part for part in parts if isinstance(part, Image | Document)])
    assert media_in(content) == media
    assert isinstance(content, tuple) is bool(media)
    assert all(str(part) in text_of(content) for part in said)


@pytest.mark.parametrize("message", [3, [PNG], ["text", None]])
def test_unsupported_message_parts_raise_type_error(message: list[str]) -> None:
    with pytest.raises(TypeError, match="message"):
        to_content(message)


@pytest.fixture(params=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ContentStore:
    folder = FolderContentStore(tmp_path / "content")
    return MemoryContentStore() if request.param == "memory" else folder


def test_store_returns_the_bytes_of_a_digest(store: ContentStore) -> None:
    image = Image.from_bytes(PNG)
    reference = store.put(image)
    assert store.put(image) == store.put(reference) == reference
    assert reference.data is None
    assert store.load(reference) == PNG


def test_missing_bytes_are_reported_with_digest_and_fix(store: ContentStore) -> None:
    image = Image.from_bytes(PNG, name="cat.png")
    with pytest.raises(ContentError, match=rf"cat\.png.*{image.digest}.*Session\(content=…\)"):
        store.load(image.reference)
    with pytest.raises(ContentError, match="only providers download URLs"):
        store.load(Image.from_url("https://example.com/cat.png"))


def test_changed_bytes_are_detected_by_the_digest(tmp_path: Path) -> None:
    store = FolderContentStore(tmp_path)
    reference = store.put(Image.from_bytes(PNG))
    (tmp_path / reference.digest).write_bytes(png(red=1))
    with pytest.raises(ContentError, match=f"{reference.digest} have changed .*; remove"):
        store.load(reference)


def test_content_folder_is_private_and_has_no_partial_files(tmp_path: Path) -> None:
    store = FolderContentStore(tmp_path / "content")
    reference = store.put(Image.from_bytes(PNG))
    assert list(store.path.iterdir()) == [store.path / reference.digest]
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o700
    with pytest.raises(TypeError):  # a write that fails halfway
        store.write("a" * 64, "text")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert list(store.path.iterdir()) == [store.path / reference.digest]


def test_media_are_pickled_with_their_bytes() -> None:
    image = Image.from_bytes(PNG)
    assert pickle.loads(pickle.dumps(image)).data == PNG


def test_media_support_explains_why_media_are_not_supported() -> None:
    support = MediaSupport(types={"image/png": len(PNG), "text/*": 10}, urls=(Image,))
    assert support.problem(Image.from_bytes(PNG)) == ""
    assert support.problem(Document.from_bytes(b"hi", "text/csv")) == ""
    assert support.problem(Image.from_url("https://example.com/a")) == ""
    assert "fetches no document" in support.problem(Document.from_url("https://example.com/a"))
    assert "at most" in support.problem(Image.from_bytes(PNG + b"x"))
    assert "takes image/png, text/*, and not application/pdf" in support.problem(
        Document.from_bytes(PDF)
    )
    assert "no images and no documents" in MediaSupport().problem(Image.from_bytes(PNG))
