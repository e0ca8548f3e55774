"""Reads the citations in a reply, in any provider's form, with the passages that they belong to."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

from ..citations import Citation
from ..serde.json_types import AnyJson

__all__ = ["CitedText", "read_citation"]

# OpenAI's and Anthropic's kinds. Another kind is read if it has a URL.
_KINDS = frozenset(
    {
        *("url_citation", "file_citation", "container_file_citation"),
        *("char_location", "page_location", "content_block_location"),
        *("web_search_result_location", "search_result_location"),
    }
)


def read_citation(value: AnyJson) -> Citation | None:
    """Returns a citation without its passage; `None` for a value that does not name a source."""
    if not isinstance(value, dict):
        return None
    fields, kind = _fields(value), value.get("type")
    source = _text(fields, "file_id", "source", "document_id")
    url = _text(fields, "url", "uri")
    if not url and Citation(url=source).link:
        url, source = source, ""
    if not url and not (isinstance(kind, str) and kind in _KINDS):
        return None
    return Citation(
        url=url,
        title=_text(fields, "title", "document_title", "filename"),
        source=source,
        quote=_text(fields, "cited_text"),
    )


class CitedText:
    """The text of an answer, collected part by part, and its citations.

    `in_bytes` means that the provider's positions count bytes of UTF-8 instead of code points.
    """

    def __init__(self, *, in_bytes: bool = False) -> None:
        self._in_bytes = in_bytes
        self._parts: list[str] = []
        self._length = 0
        self._citations: list[Citation] = []

    @property
    def text(self) -> str:
        """The text of all parts."""
        return "".join(self._parts)

    def add(self, text: str, annotations: AnyJson = None, *, whole_part: bool = False) -> None:
        """Adds a part; its annotations cite passages of it, or with `whole_part` all of it."""
        start, self._length = self._length, self._length + len(text)
        self._parts.append(text)
        if not annotations or not isinstance(annotations, list):
            return
        position = None if whole_part else _positions(text, in_bytes=self._in_bytes)
        for annotation in annotations:
            if citation := read_citation(annotation):
                span = (0, len(text)) if position is None else _span(annotation, position)
                if span is not None and 0 <= span[0] < span[1] <= len(text):
                    begin, end = span
                    citation = replace(citation, start=start + begin, end=start + end)
                self._citations.append(citation)

    def citations(self, shown: str) -> tuple[Citation, ...]:
        """Returns the citations, each once, for the end of the text that is `shown`."""
        if not self._citations:
            return ()
        distance = len(shown) - self._length
        moved = [citation.moved(distance) for citation in self._citations]
        return tuple(dict.fromkeys(map(_checked, moved)))


def _checked(citation: Citation) -> Citation:
    """Returns the citation without a passage that is not in the text that is shown."""
    if citation.start is None or citation.start >= 0:
        return citation
    return replace(citation, start=None, end=None)


def _fields(value: dict[str, AnyJson]) -> dict[str, AnyJson]:
    """Returns a citation's fields, which Chat Completions puts under the name of its kind."""
    kind = value.get("type")
    inner = value.get(kind) if isinstance(kind, str) else None
    return inner if isinstance(inner, dict) else value


def _text(fields: dict[str, AnyJson], *names: str) -> str:
    """Returns the first of these fields that is a text."""
    return next((text for name in names if isinstance(text := fields.get(name), str) and text), "")


def _span(annotation: dict[str, AnyJson], position: Callable[[int], int]) -> tuple[int, int] | None:
    fields = _fields(annotation)
    start, end = fields.get("start_index"), fields.get("end_index")
    if isinstance(start, int) and isinstance(end, int) and start >= 0:
        return position(start), position(end)
    return None


def _positions(text: str, *, in_bytes: bool) -> Callable[[int], int]:
    """Returns a function that converts the provider's positions to code points."""
    if not in_bytes or text.isascii():
        return lambda position: position
    ends = list(accumulate((len(sign.encode()) for sign in text), initial=0))
    return lambda position: bisect_left(ends, position)
