"""Searching text line by line within bounds on time; files are read elsewhere.

The engine takes time in proportion to the states of the pattern times the bytes of the line, and
cannot be interrupted meanwhile. So a line is matched only when that product is small, and the clock
is read between lines.
"""

import re
from collections.abc import Iterator
from time import perf_counter

from ..limits import Deadline, utc_now
from ..serde import line_matcher
from .protocol import FilesystemLimitError, GrepMatch

__all__ = ["LineSearch", "pattern_size"]

# A step is one state of a pattern at one byte of text. The slowest pattern that was found takes 20
# ns for it on a
# machine of 2024, so these are 0.4 s and 0.04 s.
_STEPS_PER_LINE = 20_000_000
_STEPS_PER_CHECK = 2_000_000

_BYTES_PER_CHARACTER = 4  # at most, in UTF-8
_MAX_PATTERN = 10_000

_TOKEN = re.compile(
    # turns on white space and comments, which no other rule here reckons with
    r"(?P<flags> \(\? [a-zA-Z]* x )"
    r"| \\[pPxuU] \{ [^}]* \}"
    r"| \{ \s* (?P<least>\d+) \s* (?: , \s* (?P<most>\d*) \s* )? \}"
    r"| \\. | .",
    re.DOTALL | re.VERBOSE,
)


def pattern_size(pattern: str) -> int:
    """How many states the engine may be in at once for `pattern`; never too few, sometimes too
    many.

    A repeat such as `{0,50}` multiplies what it repeats; after a group that is all of the pattern
    until there. Raises `ValueError` for a pattern that turns on verbose mode.
    """
    if not re.search(r"[\\.+*?()\[\]{}|^$]", pattern):
        return 1  # a plain text is searched for as such
    total, last, whole = 0, 0, True
    for token in _TOKEN.finditer(pattern):
        if token["flags"]:
            raise ValueError(
                f"{pattern!r:.200} has the flag x; write the pattern without white space and comments"
            )
        if token["least"]:
            times = max(1, int(token["least"]), int(token["most"] or 0))
            total = total * times if whole else total + last * (times - 1)
            whole = True
        else:
            last = 1 if token[0].isalnum() else 2
            total += last
            whole = token[0] in (")", "}", "*", "+", "?")
    return total


class LineSearch:
    """One search for a pattern, in any number of files.

    Raises `ValueError` for a pattern that is none, and in `matches` a `FilesystemLimitError` when
    matching has taken `seconds`, when `deadline` has passed, and for a line that is too long for
    the pattern.
    """

    def __init__(
        self, pattern: str, *, ignore_case: bool, seconds: float, deadline: Deadline | None
    ) -> None:
        if len(pattern) > _MAX_PATTERN:
            raise ValueError(
                f"the pattern has {len(pattern):,} characters; write one of {_MAX_PATTERN:,} at most"
            )
        self._is_match = line_matcher(pattern, ignore_case=ignore_case)
        size = pattern_size(pattern)
        self._longest_line = _STEPS_PER_LINE // size
        self._characters_per_check = max(1, _STEPS_PER_CHECK // size // _BYTES_PER_CHARACTER)
        self._seconds = seconds
        self._deadline = deadline
        self._spent = 0.0

    def matches(self, path: str, text: str) -> Iterator[GrepMatch]:
        """The lines of a file that hold a match."""
        number = 1
        for chunk in self._chunks(path, text.removesuffix("\n")):
            self._check_time(path)
            started = perf_counter()
            lines = chunk.split("\n")
            if "\r" in chunk:
                lines = [line.removesuffix("\r") for line in lines]
            found = [
                GrepMatch(path, at, line)
                for at, line in enumerate(lines, number)
                if self._is_match(line)
            ]
            number += len(lines)
            self._spent += perf_counter() - started
            yield from found

    def _chunks(self, path: str, text: str) -> Iterator[str]:
        """Whole lines of `text`, as many as may be matched between two looks at the clock, and one
        at least.
        """
        start = 0
        while start + self._characters_per_check < len(text):
            end = text.rfind("\n", start, start + self._characters_per_check)
            if end < 0:
                end = text.find("\n", start)
                end = len(text) if end < 0 else end
                if len(text[start:end].encode()) > self._longest_line:
                    raise self._too_long(path, text.count("\n", 0, start) + 1, end - start)
            yield text[start:end]
            start = end + 1
        if start <= len(text):
            yield text[start:]

    def _check_time(self, path: str) -> None:
        if self._spent > self._seconds:
            problem = f"took more than {self._seconds:g} s"
        elif self._deadline is not None and self._deadline.has_passed(utc_now()):
            problem = "reached its deadline"
        else:
            return
        raise FilesystemLimitError(
            f"the search {problem} at {path!r}; search fewer files, or for a simpler pattern"
        )

    def _too_long(self, path: str, number: int, length: int) -> FilesystemLimitError:
        return FilesystemLimitError(
            f"line {number} of {path!r} is too long for this pattern ({length:,} characters); "
            "leave the file out, or write the pattern shorter, without counts such as {0,50}"
        )
