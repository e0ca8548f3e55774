"""Displays values: in one line for `repr`, as Markdown, and without hidden characters.

A notebook renders Markdown as HTML, and text from users, tools and models may contain either. Every
such text is therefore put into a code block or a code span that it cannot close.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Protocol

__all__ = [
    "HIDDEN",
    "code_block",
    "code_span",
    "count_of",
    "cut",
    "escape_hidden",
    "literal",
    "longest_run",
    "markdown",
    "name_in_line",
    "one_line",
    "table_lines",
    "unreadable",
    "visible",
]

# The Unicode categories Cc, Cf, Cs, Zl and Zp except tab and line feed, other default-ignorable
# characters, and letters without a visible shape. The two emoji variation selectors are excluded.
HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2"
    r"\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164"
    r"\ud800-\udfff\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\U000110bd\U000110cd"
    r"\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""A character that controls a terminal, changes the text direction, or hides text after it."""

_BLOCK_CHARACTERS = 10_000
_LINE_CHARACTERS = 100
_CELL_CHARACTERS = 60


class _Shown(Protocol):
    def _repr_markdown_(self) -> str: ...


def markdown(value: _Shown) -> str:
    """Returns the Markdown that a notebook shows for `value`."""
    return value._repr_markdown_()  # pyright: ignore[reportPrivateUsage] - a name of IPython's


def one_line(text: str) -> str:
    """Returns the beginning of `text` on one line: at most 100 characters."""
    return " ".join(text[: 4 * _LINE_CHARACTERS].split())[:_LINE_CHARACTERS]


def cut(text: str, limit: int, *, counted: bool = True) -> str:
    """Returns `text`, truncated to `limit` characters, with a mark if any are missing.

    The mark is `… (1,234 more characters)`, or just `…` if `counted` is false.
    """
    rest = len(text) - limit
    if rest <= 0:
        return text
    return f"{text[:limit]}… ({rest:,} more characters)" if counted else f"{text[:limit]}…"


def code_span(text: str) -> str:
    """Returns Markdown that shows `text` literally within a line, shortened by `one_line`."""
    return literal(one_line(text))


def literal(line: str) -> str:
    """Returns Markdown that shows an entire line literally."""
    line = _without_surrogates(line)
    ticks = "`" * (longest_run(line) + 1)
    return f"{ticks} {line} {ticks}"


def code_block(text: str) -> str:
    """Returns Markdown that shows up to 10,000 characters of `text` literally."""
    rest = len(text) - _BLOCK_CHARACTERS
    text = _without_surrogates(text[:_BLOCK_CHARACTERS])
    fence = "`" * max(3, longest_run(text) + 1)
    more = f"\n\n… {rest} more characters" if rest > 0 else ""
    return f"{fence}text\n{text}\n{fence}{more}"


def count_of(number: int, noun: str) -> str:
    """Returns `1 finding` or `2 findings`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def escape_hidden(text: str) -> str:
    """Replaces each character in `HIDDEN` with its JSON escape."""
    return HIDDEN.sub(lambda match: _json_escape(match[0]), text)


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join([f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4)])


def visible(line: str) -> str:
    """Escapes a line's hidden characters, unusual spaces and characters without a visible shape.

    Use this for texts that an approver reads: letters, plain spaces and tabs are unchanged.
    """
    hidden = unreadable(line) - {"\t"}
    return line.translate({ord(char): char.encode("unicode_escape").decode() for char in hidden})


def name_in_line(name: str) -> str:
    """Returns a name for use in a line of text; quoted if it has unprintable characters."""
    return name if name.isprintable() else repr(name)


def unreadable(text: str) -> set[str]:
    """Returns the characters in `text` that are in `HIDDEN` or otherwise not printable."""
    return {char for char in {*text} if not char.isprintable() or HIDDEN.match(char)}


def table_lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields the lines of a table whose first row is the head; cells are cut to 60 characters."""
    cells = [[cut(cell, _CELL_CHARACTERS, counted=False) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield line.rstrip()


def longest_run(text: str) -> int:
    """Returns the length of the longest run of backticks; a fence or span must be longer."""
    return max(map(len, re.findall("`+", text)), default=0)


def _without_surrogates(text: str) -> str:
    """Replaces characters that UTF-8 cannot encode, because a notebook's messages are UTF-8."""
    return text.encode("utf-8", "replace").decode()
