"""Reads the text and the reasoning in a reply's events, in the form of a stream's deltas."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ..evaluation.response import Delta, ReasoningDelta, TextDelta
from ..serde.json_types import AnyJson
from .think_tags import ThoughtFilter

__all__ = ["HIDDEN", "DeltaReader", "ReasoningPiece", "thinking_pieces"]

HIDDEN = "(hidden)"
"""Replaces reasoning that the provider sends only in encrypted form."""

_BETWEEN_PARTS = "\n\n"


class ReasoningPiece(NamedTuple):
    """A piece of the model's reasoning.

    Some servers send the same reasoning in several places; only the first `source` that has text is
    read. `part` identifies the part of the reasoning; adjacent pieces of a part are joined, and a
    blank line separates parts. A piece with `is_whole` repeats its part, and is skipped if the part
    already has text. After a piece with `ends`, the same `part` identifies a new part.
    """

    source: str
    part: str
    text: str
    is_whole: bool = False
    ends: bool = False


def thinking_pieces(
    block: dict[str, AnyJson], part: str, *, ends: bool = False
) -> Iterator[ReasoningPiece]:
    """Yields the pieces of a thinking block or its chunk, in Anthropic's form.

    A signature without text stands for reasoning that is not shown. With `ends`, it also ends the
    block.
    """
    if isinstance(text := block.get("thinking"), str):
        yield ReasoningPiece("blocks", part, text)
    if block.get("signature"):
        yield ReasoningPiece("blocks", part, HIDDEN, is_whole=True, ends=ends)


class DeltaReader:
    """Reads the events of one reply; `has_text` is true once a delta contained text.

    `read_text` and `read_reasoning` are the codec's methods. With `think_tags`, reasoning between
    `<think>` and `</think>` at the beginning of the text is not part of the text.
    """

    def __init__(
        self,
        read_text: Callable[[AnyJson], str],
        read_reasoning: Callable[[AnyJson], Iterable[ReasoningPiece]],
        *,
        think_tags: bool = False,
    ) -> None:
        self.has_text = False
        self._read_text = read_text
        self._read_reasoning = read_reasoning
        self._thoughts = ThoughtFilter() if think_tags else None
        self._chunks: list[str] = []
        self._source = self._part = ""
        self._read_parts = set[str]()

    @property
    def reasoning(self) -> str:
        """The reasoning in all events so far."""
        return "".join(self._chunks)

    def read(self, event: AnyJson) -> list[Delta]:
        """Returns an event's deltas: its reasoning, then its text."""
        deltas: list[Delta] = []
        if pieces := self._read_reasoning(event):
            deltas += [ReasoningDelta(chunk) for piece in pieces if (chunk := self.add(piece))]
        text = self._read_text(event)
        if self._thoughts is not None and text:
            thought, text = self._thoughts.feed(text)
            if chunk := self.add(ReasoningPiece("tags", "", thought)):
                deltas.append(ReasoningDelta(chunk))
        if text:
            self.has_text = True
            deltas.append(TextDelta(text))
        return deltas

    def add(self, piece: ReasoningPiece) -> str:
        """Adds a piece to the reasoning; returns the text to show, or `""`."""
        source, part, text, is_whole, ends = piece
        if self._source not in ("", source):
            return ""
        chunk = ""
        part = f"{source}/{part}"
        if text and not (is_whole and part in self._read_parts):
            starts = bool(self._chunks) and part != self._part
            chunk = _BETWEEN_PARTS + text if starts else text
            self._source, self._part = source, part
            self._chunks.append(chunk)
            self._read_parts.add(part)
        if ends:
            self._part = ""
            self._read_parts.discard(part)
        return chunk
