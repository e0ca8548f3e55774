"""Searches text line by line within a time limit; this module does not read files.

The engine takes time in proportion to the number of states in the pattern times the number of bytes
in the line, and cannot be interrupted. Therefore the search rejects lines for which this product is
large, and checks the clock between lines.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

from ..limits import Deadline, utc_now
from ..serde import line_matcher
from .paths import FilesystemLimitError

__all__ = ["GrepMatch", "LineSearch", "is_text", "pattern_size"]

# A step is one state of a pattern at one byte of text. The slowest known pattern takes 20 ns per
# step on a machine from 2024, so these limits correspond to 0.4 s and 0.04 s.
_STEPS_PER_LINE = 20_000_000
_STEPS_PER_CHECK = 2_000_000

_BYTES_PER_CHARACTER = 4  # at most, in UTF-8
_MAX_PATTERN = 10_000

_TOKEN = re.compile(
    # The flag that allows white space and comments, which the other rules here do not handle.
    r"(?P<verbose> \(\? [a-zA-Z]* x )"
    r"| \\[pPxuU] \{ [^}]* \}"
    r"| \{ \s* (?P<least>\d+) \s* (?: , \s* (?P<most>\d*) \s* )? \}"
    r"| \\. | .",
    re.DOTALL | re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class GrepMatch:
    """A matching line; line numbers start at 1."""

    path: str
    line_number: int
    line: str


def is_text(data: bytes) -> bool:
    """Returns whether a file's content counts as text: it has no NUL byte near its start."""
    return b"\0" not in data[:8192]


def pattern_size(pattern: str) -> int:
    """Returns how many states the engine can be in at once; an upper bound, never too low.

    A repeat such as `{0,50}` multiplies the size of the repeated item; after a group, it multiplies
    the size of the complete pattern up to that point. Raises `ValueError` for a pattern that turns
    on verbose mode.
    """
    if not re.search(r"[\\.+*?()\[\]{}|^$]", pattern):
        return 1  # the engine searches for plain text directly
    total, last, repeats_all = 0, 0, True
    for token in _TOKEN.finditer(pattern):
        if token["verbose"]:
            raise ValueError(
                f"pattern {pattern!r:.200} must not use the flag x; remove the flag, white space "
                "and comments"
            )
        if token["least"]:
            times = max(1, int(token["least"]), int(token["most"] or 0))
            total = total * times if repeats_all else total + last * (times - 1)
            repeats_all = True
        else:
            last = 1 if token[0].isalnum() else 2
            total += last
            repeats_all = token[0] in (")", "}", "*", "+", "?")
    return total


class LineSearch:
    """A search for one pattern in any number of files.

    Raises `ValueError` for an invalid pattern.
    """

    def __init__(
        self, pattern: str, *, ignore_case: bool, seconds: float, deadline: Deadline | None
    ) -> None:
        if len(pattern) > _MAX_PATTERN:
            raise ValueError(
                f"pattern must have at most {_MAX_PATTERN:,} characters, got {len(pattern):,}"
            )
        self._is_match = line_matcher(pattern, ignore_case=ignore_case)
        size = pattern_size(pattern)
        self._max_line_bytes = _STEPS_PER_LINE // size
        self._characters_per_check = max(1, _STEPS_PER_CHECK // size // _BYTES_PER_CHARACTER)
        self._max_seconds = seconds
        self._deadline = deadline
        self._seconds = 0.0

    def matches(self, path: str, text: str) -> Iterator[GrepMatch]:
        """Yields the matching lines of a file.

        Raises `FilesystemLimitError` if matching has taken too long, if the deadline has passed, or
        if a line is too long for the pattern.
        """
        number = 1
        for chunk in self._chunks(path, text.removesuffix("\n")):
            self._check_time(path)
            started = perf_counter()
            lines = [line.removesuffix("\r") for line in chunk.split("\n")]
            matches = [
                GrepMatch(path, line_number, line)
                for line_number, line in enumerate(lines, number)
                if self._is_match(line)
            ]
            number += len(lines)
            self._seconds += perf_counter() - started
            yield from matches

    def _chunks(self, path: str, text: str) -> Iterator[str]:
        """Yields complete lines in chunks, one for each check of the clock."""
        start = 0
        while start + self._characters_per_check < len(text):
            end = text.rfind("\n", start, start + self._characters_per_check)
            if end < 0:
                end = text.find("\n", start)
                end = len(text) if end < 0 else end
                if len(text[start:end].encode()) > self._max_line_bytes:
                    number = text.count("\n", 0, start) + 1
                    raise FilesystemLimitError(
                        f"line {number} of {path!r} is too long for this pattern ({end - start:,} "
                        "characters); exclude the file, or simplify the pattern, for example by "
                        f"removing counts such as {{0,50}}"
                    )
            yield text[start:end]
            start = end + 1
        if start <= len(text):
            yield text[start:]

    def _check_time(self, path: str) -> None:
        if self._seconds > self._max_seconds:
            problem = f"took more than {self._max_seconds:g} s"
        elif self._deadline is not None and self._deadline.has_passed(utc_now()):
            problem = "reached its deadline"
        else:
            return
        raise FilesystemLimitError(
            f"the search {problem} at {path!r}; search fewer files, or use a simpler pattern"
        )
