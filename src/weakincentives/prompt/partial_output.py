"""Finds the JSON in an answer while the model writes it, and parses it as far as it has arrived."""

import re
from functools import lru_cache

from .. import serde
from ..serde.partial_json import PartialJson
from ..serde.partial_places import Place
from ..serde.partial_value import PartialValue
from .output import StructuredOutputConfig

__all__ = ["PartialOutput"]

_FENCE = re.compile(r"[ \t]*+(`{3,}+)([^`]*+)")
_START_OF_FENCE = re.compile(r"[ \t]*+(?:`{0,2}|`{3,}+[^`]*+)")
_THOUGHT = "<think"
_THOUGHT_END = re.compile(r"</think(?:ing)?\s*+>", re.IGNORECASE)
_LONGEST_END = 64
_RANKS = {"json": 2, "": 1}
"""The fenced blocks that can contain the answer, by language; a higher rank replaces a lower."""


class PartialOutput:
    """The answer so far, in the same part of the text in which `json_text` finds it at the end.

    That is the first JSON block, or the first block without a language, or all of the text, each
    without the reasoning that some models write before it. `value` is the value so far.
    """

    def __init__(self, config: StructuredOutputConfig[object]) -> None:
        self._config = config
        self.value: PartialValue | None = None
        self._start: str | None = ""  # of a thought, or the end of the open one
        self._thinks = False
        self._end: str | None = ""  # of a text without an answer, in which a thought may end
        self._begin()

    def _begin(self) -> None:
        self._line: str | None = ""  # the current line, if it may be a fence
        self._ticks = self._rank = self._block_rank = 0
        self._reads = True  # whether the current block, or the text without one, is the answer
        self._parsers = self._new_parsers()

    def _new_parsers(self) -> list[PartialJson]:
        place, wrapper = _place_of(self._config), self._config.wrapper
        wrapped = [PartialJson(place, wrapper)] if wrapper else []
        return [*wrapped, PartialJson(place)]  # the answer may also come without its wrapper

    def feed(self, text: str) -> bool:
        """Reads the next chunk of the answer; returns whether its value has changed."""
        before = self.value
        if self._start is not None:
            text = self._without_thoughts(self._start + text)
        self._read(text)
        if self._end is not None and not self._parsers:
            text = self._end + text
            if end := _THOUGHT_END.search(text):  # its start was a part of the model's template
                self._end = None
                self._begin()
                self._read(text[end.end() :])
            else:
                self._end = text[-_LONGEST_END:]
        return self.value is not before

    def _without_thoughts(self, text: str) -> str:
        while True:
            if self._thinks:
                if (end := _THOUGHT_END.search(text)) is None:
                    self._start = text[-_LONGEST_END:]
                    return ""
                self._thinks, text = False, text[end.end() :]
            text = text.lstrip()
            start = text[: len(_THOUGHT)].lower()
            if start != _THOUGHT:
                waits = _THOUGHT.startswith(start)
                self._start = text if waits else None
                return "" if waits else text
            self._thinks, text = True, text[len(_THOUGHT) :]

    def _read(self, text: str) -> None:
        for index, part in enumerate(text.split("\n")):
            if index:
                self._end_line()
            if self._line is None:
                self._pass(part)
            elif part:
                self._line += part
                if _START_OF_FENCE.fullmatch(self._line) is None:
                    line, self._line = self._line, None
                    self._pass(line)

    def _end_line(self) -> None:
        line, self._line = self._line, ""
        fence = None if line is None else _FENCE.fullmatch(line)
        words = fence[2].lower().split() if fence else []
        if fence and not self._ticks:
            self._ticks, self._block_rank = len(fence[1]), _RANKS.get("".join(words[:1]), 0)
            self._reads = self._block_rank > self._rank
            if self._reads:
                self._parsers = self._new_parsers()
        elif fence and not words and len(fence[1]) >= self._ticks:
            if self._reads:
                self._rank = self._block_rank
            self._ticks, self._reads = 0, False
        else:
            self._pass(f"{line or ''}\n")

    def _pass(self, text: str) -> None:
        if not self._reads:
            return
        shown = self._parsers[:1]
        changed = [parser for parser in self._parsers if parser.feed(text)]
        self._parsers = [parser for parser in self._parsers if not parser.has_stopped]
        for parser in (self._parsers or shown)[:1]:
            if parser in changed or ([parser] != shown and parser.value is not None):
                self.value = parser.value


@lru_cache(maxsize=256)
def _place_of(config: StructuredOutputConfig[object]) -> Place:
    schema = serde.json_schema(config.output_type)
    return Place([schema], schema)
