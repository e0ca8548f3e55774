"""Images and documents for a model, and the stores that keep their bytes.

An `Image` or `Document` is a reference: either a URL, or the type, size, name and digest of some
bytes. `data` contains the bytes only in the program that read them. JSON never contains bytes:
conversations, events, logs and snapshots contain references, and a `ContentStore` finds the bytes
by their digest.
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from .errors import WeakIncentivesError

__all__ = [
    "IMAGE_TYPES",
    "MAX_CONTENT_BYTES",
    "Content",
    "ContentError",
    "ContentStore",
    "Document",
    "FolderContentStore",
    "Image",
    "Media",
    "MediaSupport",
    "MemoryContentStore",
    "Part",
    "media_in",
    "references_in",
    "shown_in",
    "text_of",
    "to_content",
]

MAX_CONTENT_BYTES = 50_000_000
"""The size limit for an image or document; no provider accepts a larger one in a request."""

IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""The image types that most providers accept."""

_MAX_NAME = 255
_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"%PDF-": "application/pdf",
}
# `pathlib`, `hashlib` and `binascii` are imported only when needed: few programs use media.
type AnyPath = str | os.PathLike[str]


class ContentError(WeakIncentivesError, ValueError):
    """An image or document cannot be used: invalid bytes, the wrong type, or missing bytes."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Media:
    """A reference to an image or a document; `Image` and `Document` are the two kinds.

    `digest` is the SHA-256 digest of the bytes in hexadecimal, and `size` is their number. Both are
    empty for content at a `url`, which only the provider reads. `mime` is the media type, such as
    `"image/png"`. `data` contains the bytes if this program has read them; `data` is ignored in
    comparisons and is never converted to JSON.

    Raises `ContentError` for inconsistent fields, such as both a digest and a URL.
    """

    mime: str = ""
    name: str = ""
    digest: str = ""
    size: int = 0
    url: str = ""
    data: bytes | None = field(default=None, init=False, compare=False)

    def __post_init__(self) -> None:
        problem = _problem(self)
        if problem:
            raise ContentError(f"{_subject(type(self), self.name or self.url)}: {problem}")

    @classmethod
    def from_bytes(cls, data: bytes, mime: str = "", *, name: str = "") -> Self:
        """Returns an image or document with these bytes; `Media.from_bytes` detects the kind.

        If `mime` is not given, the type is detected from the first bytes. Raises `ContentError` for
        bytes that do not match the type, an unknown type, or more than `MAX_CONTENT_BYTES`.
        """
        data = bytes(data)
        try:
            mime = _check_bytes(data, mime)
        except ContentError as error:
            raise ContentError(f"{_subject(cls, name)}: {error}") from None
        kind: type[Media] = Image if mime.startswith("image/") else Document
        if not issubclass(kind, cls):
            raise ContentError(f"{_subject(cls, name)}: the bytes are {mime}; use {kind.__name__}")
        media = kind(mime=mime, name=name, digest=_digest(data), size=len(data))
        object.__setattr__(media, "data", data)
        return media

    @classmethod
    def from_path(cls, path: AnyPath, mime: str = "", *, name: str = "") -> Self:
        """Returns the image or document in a file, by default with the file's name.

        Raises `ContentError` like `from_bytes`, and `OSError` for a file that cannot be read.
        """
        from pathlib import Path

        with Path(path).open("rb") as file:
            data = file.read(MAX_CONTENT_BYTES + 1)
        base_name = Path(path).name
        if not mime and not _detected(data):
            from mimetypes import guess_type  # reads system tables

            mime = guess_type(base_name)[0] or ""
        return cls.from_bytes(data, mime, name=name or base_name)

    @classmethod
    def from_base64(cls, text: str | bytes, mime: str = "", *, name: str = "") -> Self:
        """Returns the image or document in base64 text; raises `ContentError` for other texts."""
        from binascii import Error, a2b_base64

        try:
            data = a2b_base64(text, strict_mode=True)
        except (Error, ValueError) as error:
            raise ContentError(
                f"{_subject(cls, name)}: the text is not base64 ({error}); pass only the encoded "
                "bytes, without line breaks and without 'data:…,'"
            ) from None
        return cls.from_bytes(data, mime, name=name)

    @classmethod
    def from_url(cls, url: str, mime: str = "", *, name: str = "") -> Self:
        """Returns a reference to content at an HTTP URL, which the provider fetches.

        A provider may fetch the content again for each request, so it must not change. Raises
        `ContentError` for any other URL.
        """
        if cls is Media:
            raise TypeError(
                "Media.from_url cannot tell whether the URL is an image or a document; call "
                "Image.from_url or Document.from_url"
            )
        return cls(mime=mime, name=name, url=url)

    @property
    def reference(self) -> Self:
        """The reference without the bytes."""
        return self if self.data is None else replace(self)

    def __repr__(self) -> str:
        """Returns the marker that represents it in text, such as `[image cat.png 3f2a91c0]`."""
        label = self.url or " ".join(filter(None, [self.name, self.digest[:8]]))
        return f"[{type(self).__name__.lower()} {label}]"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Image(Media):
    """An image for the model: PNG, JPEG, GIF or WebP with most providers."""

    kind: Literal["image"] = "image"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Document(Media):
    """A document for the model: PDF with most providers, plain text with some."""

    kind: Literal["document"] = "document"


type Part = str | Image | Document
"""A part of a message."""

type Content = str | tuple[Part, ...]
"""The content of a message: a string, or strings, images and documents in order."""


def to_content(message: str | Sequence[Part]) -> Content:
    """Returns a message as content; strings without media are joined into one.

    Raises `TypeError` for parts of any other type, and `ValueError` for an empty message.
    """
    if isinstance(message, str):
        parts: tuple[Part, ...] = (message,)
    elif isinstance(message, Sequence):
        parts = tuple(message)
    else:
        raise TypeError(f"message must be a string or a list of parts, got {message!r:.200}")
    for part in parts:
        if not isinstance(part, str | Image | Document):
            raise TypeError(
                f"message parts must be strings or media, got {part!r:.200}; create media with "
                "Image.from_path(…) or Document.from_path(…)"
            )
    parts = tuple([part for part in parts if not isinstance(part, str) or part.strip()])
    if not parts:
        raise ValueError("message is empty; omit it to send only the prompt")
    return parts if media_in(parts) else text_of(parts)


def text_of(content: Content) -> str:
    """Returns content as text, with a marker for each image and document."""
    return content if isinstance(content, str) else "\n\n".join(map(str, content))


def media_in(content: Content) -> tuple[Image | Document, ...]:
    """Returns the images and documents in content."""
    return tuple([part for part in content if isinstance(part, Image | Document)])


def references_in(content: Content) -> Content:
    """Returns content with references only, without the bytes of images and documents."""
    if isinstance(content, str):
        return content
    return tuple([part if isinstance(part, str) else part.reference for part in content])


def shown_in(text: str, media: Sequence[Image | Document]) -> tuple[Image | Document, ...]:
    """Returns the media whose markers appear in `text`, each once, in order of appearance."""
    places = {item: text.find(str(item)) for item in media}
    return tuple(sorted([item for item in places if places[item] >= 0], key=places.__getitem__))


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSupport:
    """The images and documents that an adapter can send to its model.

    `types` maps each media type to the maximum number of bytes; `"text/*"` matches all text types
    and `"*"` matches everything. `urls` contains the kinds that the provider fetches from a URL. If
    `documents_in_results` is false, tools can return only images and texts.
    """

    types: Mapping[str, int] = field(default_factory=dict[str, int])
    urls: tuple[type[Media], ...] = ()
    documents_in_results: bool = True

    def problem(self, media: Media) -> str:
        """Explains why `media` cannot be sent, and how to fix it; returns `""` if it can."""
        if media.url:
            if isinstance(media, self.urls):
                return ""
            return f"it fetches no {type(media).__name__.lower()} from a URL; pass the bytes"
        family = f"{media.mime.partition('/')[0]}/*"
        limit = self.types.get(media.mime, self.types.get(family, self.types.get("*")))
        if limit is None:
            known = ", ".join(self.types) or "no images and no documents"
            return f"it takes {known}, and not {media.mime}; convert it, or use another adapter"
        if media.size > limit:
            return f"it takes at most {limit:,} bytes of {media.mime}, and not {media.size:,}"
        return ""

    def problem_in_result(self, media: Media) -> str:
        """Like `problem`, for media that a tool returns."""
        is_plain = isinstance(media, Image) or media.mime.startswith("text/")
        if not self.documents_in_results and (media.url or not is_plain):
            return "of results it shows bytes of images and texts alone; pass it in a message"
        return self.problem(media)


class ContentStore(ABC):
    """Stores the bytes of images and documents by digest; a subclass determines where.

    Any number of sessions, threads and processes can share a store. The bytes under a digest never
    change, so a tool call that is rolled back cannot leave wrong bytes behind.
    """

    def put[M: Media](self, media: M) -> M:
        """Stores the bytes of `media` and returns a reference without the bytes."""
        if media.data is not None:
            self.write(media.digest, media.data)
        return media.reference

    def load(self, media: Media) -> bytes:
        """Returns the bytes of `media`.

        Raises `ContentError` if the bytes are missing or do not match the digest, and for media at
        a URL.
        """
        if media.url:
            raise ContentError(f"{media} has only a URL, and only providers download URLs")
        data = self.read(media.digest) if media.data is None else media.data
        subject = f"{media}: the bytes of digest {media.digest}"
        if data is None:
            raise ContentError(
                f"{subject} are not in {type(self).__name__}; pass the store that has them as "
                "Session(content=…), or store the file again with "
                "session.content.put(Image.from_path(…))"
            )
        if _digest(data) != media.digest:
            raise ContentError(
                f"{subject} have changed in {type(self).__name__}; remove this entry and store "
                "the file again"
            )
        return data

    @abstractmethod
    def write(self, digest: str, data: bytes) -> None:
        """Stores `data` under its digest; a second call for the same digest has no effect."""

    @abstractmethod
    def read(self, digest: str) -> bytes | None:
        """Returns the bytes for a digest; `None` if they are not in the store."""


class MemoryContentStore(ContentStore):
    """Stores bytes in memory, for as long as the store exists."""

    def __init__(self) -> None:
        self._data: dict[str, bytes] = {}

    def write(self, digest: str, data: bytes) -> None:
        self._data.setdefault(digest, data)

    def read(self, digest: str) -> bytes | None:
        return self._data.get(digest)


class FolderContentStore(ContentStore):
    """Stores bytes in a folder, in one file per digest; a new folder is readable only by its owner.

    Processes can share the folder. Files are never removed automatically; delete the ones that no
    conversation needs.
    """

    def __init__(self, path: AnyPath) -> None:
        from pathlib import Path

        self.path = Path(path)

    def write(self, digest: str, data: bytes) -> None:
        from .atomic_writes import replacing

        target = self.path / digest
        if target.exists():
            return
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing(target) as file:
            file.write(data)

    def read(self, digest: str) -> bytes | None:
        try:
            with (self.path / digest).open("rb") as file:
                return file.read(MAX_CONTENT_BYTES + 1)
        except FileNotFoundError:
            return None


def _digest(data: bytes) -> str:
    from hashlib import sha256  # loads OpenSSL

    return sha256(data).hexdigest()


def _subject(kind: type[Media], name: str) -> str:
    return f"{kind.__name__} {name!r:.200}" if name else kind.__name__


def _problem(media: Media) -> str:
    """Explains what is wrong with the fields, and how to fix it; `""` if they are valid."""
    if type(media) is Media:
        return "it has no kind; use Image or Document"
    if len(media.name) > _MAX_NAME or not media.name.isprintable():
        return f"the name has more than {_MAX_NAME} or unprintable characters; pass name="
    if media.url:
        if re.fullmatch(r"https?://[^\s\]]{1,2000}", media.url) is None:
            return "the URL must be an HTTP address; pass https://…, or the bytes to from_base64"
        return "a URL has no digest and no size" if media.digest or media.size else ""
    # the digest is used as a file name, so it must be a valid digest
    if re.fullmatch(r"[0-9a-f]{64}", media.digest) is None or media.size <= 0:
        return "digest and size are not those of bytes; use from_bytes, from_path or from_url"
    if re.fullmatch(r"[a-z]+/[a-z0-9.+-]+", media.mime) is None:
        return f"{media.mime!r:.100} is not a media type; pass mime= such as 'image/png'"
    if media.mime.startswith("image/") != isinstance(media, Image):
        return f"{media.mime} is of the other kind; use Image for images, Document for the rest"
    return ""


def _check_bytes(data: bytes, mime: str) -> str:
    """Returns the bytes' media type; raises `ContentError` if `mime` is given and differs."""
    if not data:
        raise ContentError("there are no bytes; pass the bytes of a whole file")
    if len(data) > MAX_CONTENT_BYTES:
        raise ContentError(f"it has more than {MAX_CONTENT_BYTES:,} bytes; make it smaller")
    detected = _detected(data)
    if mime in ("", detected):
        if not detected:
            raise ContentError(
                "cannot detect the type from the bytes; pass mime=, such as 'text/plain'"
            )
        return detected
    if detected:
        raise ContentError(f"the bytes are {detected}, not {mime}; omit mime")
    if mime in {*_SIGNATURES.values(), "image/webp"}:
        raise ContentError(f"the bytes are not {mime}; pass the file's actual type as mime=")
    if mime.startswith("text/"):
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise ContentError(f"the bytes are not {mime} in UTF-8 ({error.reason})") from None
    return mime


def _detected(data: bytes) -> str:
    """Detects the media type from the first bytes; returns `""` if it is unknown."""
    for signature, mime in _SIGNATURES.items():
        if data.startswith(signature):
            return mime
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else ""
