"""Images and documents that a model sees, and the stores that keep their bytes.

An `Image` or `Document` is a reference: type, size, name and digest of some bytes, or a URL. Its
`data` are the bytes while the program that read them has them. JSON never holds bytes:
conversations, events, logs and snapshots have references, and a `ContentStore` finds the bytes by
their digest.
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
"""The largest image or document; no provider takes a larger one in a request."""

IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""The types of images that models see, with most providers."""

_MAX_NAME = 255
_SIGNATURES = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"%PDF-": "application/pdf",
}
# Nothing here imports `pathlib`, `hashlib` or `binascii` at the start: few programs show media.
type AnyPath = str | os.PathLike[str]


class ContentError(WeakIncentivesError, ValueError):
    """An image or a document cannot be used: bad bytes, a wrong type, or bytes that are missing."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Media:
    """A reference to an image or a document; `Image` and `Document` are the two kinds.

    `digest` is the SHA-256 of the bytes in hexadecimal and `size` their number; both are empty for
    what stands at a `url`, which only the provider reads. `mime` is the media type, such as
    `"image/png"`. `data` are the bytes, if this program has read them: they take no part in
    comparisons and never become JSON.

    Raises `ContentError` for fields that do not fit, for example a digest beside a URL.
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
        """Returns the image or document that these bytes are; `Media.from_bytes` finds the kind.

        Without `mime` the first bytes tell the type. Raises `ContentError` for bytes that are not
        of the type, for an unknown type, and for more than `MAX_CONTENT_BYTES`.
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

        Raises `ContentError` as `from_bytes` does, and `OSError` for a file that cannot be read.
        """
        from pathlib import Path

        with Path(path).open("rb") as file:
            data = file.read(MAX_CONTENT_BYTES + 1)
        base_name = Path(path).name
        if not mime and not _detected(data):
            from mimetypes import guess_type  # reads the system's tables

            mime = guess_type(base_name)[0] or ""
        return cls.from_bytes(data, mime, name=name or base_name)

    @classmethod
    def from_base64(cls, text: str | bytes, mime: str = "", *, name: str = "") -> Self:
        """Returns the image or document in base64 text; raises `ContentError` for other text."""
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
        """Returns a reference to what stands at an HTTP address; the provider fetches it.

        A provider may fetch it for each request, so the bytes there must not change. Raises
        `ContentError` for any other address.
        """
        if cls is Media:
            raise TypeError(
                "Media.from_url cannot tell whether the URL is an image or a document; call "
                "Image.from_url or Document.from_url"
            )
        return cls(mime=mime, name=name, url=url)

    @property
    def reference(self) -> Self:
        """The same reference without the bytes."""
        return self if self.data is None else replace(self)

    def __repr__(self) -> str:
        """Returns the marker that stands for it in texts, such as `[image cat.png 3f2a91c0]`."""
        label = self.url or " ".join(filter(None, [self.name, self.digest[:8]]))
        return f"[{type(self).__name__.lower()} {label}]"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Image(Media):
    """A picture that the model sees: PNG, JPEG, GIF or WebP with most providers."""

    kind: Literal["image"] = "image"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Document(Media):
    """A document that the model reads: PDF with most providers, plain text with some."""

    kind: Literal["document"] = "document"


type Part = str | Image | Document
"""A part of a message."""

type Content = str | tuple[Part, ...]
"""What a message says: a text, or texts with images and documents in between."""


def to_content(message: str | Sequence[Part]) -> Content:
    """Returns a message as content; texts without media become one text.

    Raises `TypeError` for other parts, and `ValueError` for a message that says nothing.
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
    """Returns the images and documents of content."""
    return tuple([part for part in content if isinstance(part, Image | Document)])


def references_in(content: Content) -> Content:
    """Returns content with references alone, without the bytes of images and documents."""
    if isinstance(content, str):
        return content
    return tuple([part if isinstance(part, str) else part.reference for part in content])


def shown_in(text: str, media: Sequence[Image | Document]) -> tuple[Image | Document, ...]:
    """Returns the media whose markers stand in `text`, each once, in the order of the text."""
    places = {item: text.find(str(item)) for item in media}
    return tuple(sorted([item for item in places if places[item] >= 0], key=places.__getitem__))


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSupport:
    """Which images and documents an adapter can show to its model.

    `types` gives the largest number of bytes for each media type; `"text/*"` stands for all texts
    and `"*"` for everything. `urls` are the kinds that the provider fetches from a URL. Without
    `documents_in_results` a tool can return images and texts alone.
    """

    types: Mapping[str, int] = field(default_factory=dict[str, int])
    urls: tuple[type[Media], ...] = ()
    documents_in_results: bool = True

    def problem(self, media: Media) -> str:
        """Returns why `media` cannot be shown, and the remedy; `""` if it can be."""
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
    """Keeps the bytes of images and documents by digest; a subclass says where.

    Any number of sessions, threads and processes may share one. Bytes never change under their
    digest, so that a rolled back tool call leaves nothing wrong behind.
    """

    def put[M: Media](self, media: M) -> M:
        """Keeps the bytes of `media` and returns its reference, without the bytes."""
        if media.data is not None:
            self.write(media.digest, media.data)
        return media.reference

    def load(self, media: Media) -> bytes:
        """Returns the bytes of `media`.

        Raises `ContentError` when they are missing here or are not those of the digest, and for
        media at a URL.
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
        """Keeps `data` under its digest; called again for the same digest, it changes nothing."""

    @abstractmethod
    def read(self, digest: str) -> bytes | None:
        """Returns the bytes of a digest; `None` if they are not here."""


class MemoryContentStore(ContentStore):
    """Keeps bytes in memory, as long as the store lives."""

    def __init__(self) -> None:
        self._data: dict[str, bytes] = {}

    def write(self, digest: str, data: bytes) -> None:
        self._data.setdefault(digest, data)

    def read(self, digest: str) -> bytes | None:
        return self._data.get(digest)


class FolderContentStore(ContentStore):
    """Keeps bytes in a folder, one file for each digest; only its owner may read one it makes.

    Processes may share the folder. Nothing removes files; delete those that no conversation needs.
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
    """Returns what is wrong with the fields, and the remedy; `""` for valid ones."""
    if type(media) is Media:
        return "it has no kind; use Image or Document"
    if len(media.name) > _MAX_NAME or not media.name.isprintable():
        return f"the name has more than {_MAX_NAME} or unprintable characters; pass name="
    if media.url:
        if re.fullmatch(r"https?://[^\s\]]{1,2000}", media.url) is None:
            return "the URL must be an HTTP address; pass https://…, or the bytes to from_base64"
        return "a URL has no digest and no size" if media.digest or media.size else ""
    # a digest names a file, so it must be nothing else
    if re.fullmatch(r"[0-9a-f]{64}", media.digest) is None or media.size <= 0:
        return "digest and size are not those of bytes; use from_bytes, from_path or from_url"
    if re.fullmatch(r"[a-z]+/[a-z0-9.+-]+", media.mime) is None:
        return f"{media.mime!r:.100} is not a media type; pass mime= such as 'image/png'"
    if media.mime.startswith("image/") != isinstance(media, Image):
        return f"{media.mime} is of the other kind; use Image for images, Document for the rest"
    return ""


def _check_bytes(data: bytes, mime: str) -> str:
    """Returns the media type of the bytes; raises `ContentError` unless it is `mime`, if given."""
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
    """Returns the media type that the first bytes tell; `""` for an unknown one."""
    for signature, mime in _SIGNATURES.items():
        if data.startswith(signature):
            return mime
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else ""
