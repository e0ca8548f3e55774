"""How values show themselves: in one line for `repr`, as Markdown, and without hidden characters.

A notebook renders Markdown as HTML, and texts of users, tools and models may hold both. So every
such text stands in a code block or a code span that it cannot leave.
"""

import re
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
    "unreadable",
    "visible",
]

# Unicode's categories Cc, Cf, Cs, Zl and Zp except for tab and line feed, its other characters that
# programs ignore by default, and letters without a shape. The two selectors of emoji are absent.
HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2"
    r"\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164"
    r"\ud800-\udfff\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\U000110bd\U000110cd"
    r"\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""One character that steers a terminal, changes the direction of text, or hides what follows."""

_BLOCK_CHARACTERS = 10_000
_LINE_CHARACTERS = 100


class _Shown(Protocol):
    def _repr_markdown_(self) -> str: ...


def markdown(value: _Shown) -> str:
    """Returns what a notebook shows of `value`."""
    return value._repr_markdown_()  # pyright: ignore[reportPrivateUsage] - a name of IPython's


def one_line(text: str) -> str:
    """Returns the beginning of `text` on one line: at most 100 characters."""
    return " ".join(text[: 4 * _LINE_CHARACTERS].split())[:_LINE_CHARACTERS]


def cut(text: str, limit: int, *, counted: bool = True) -> str:
    """Returns `text`, or its first `limit` characters and a mark for the rest.

    The mark is `… (1,234 more characters)`, or just `…` unless it is `counted`.
    """
    rest = len(text) - limit
    if rest <= 0:
        return text
    return f"{text[:limit]}… ({rest:,} more characters)" if counted else f"{text[:limit]}…"


def code_span(text: str) -> str:
    """Returns Markdown that shows `text` literally within a line, shortened by `one_line`."""
    return literal(one_line(text))


def literal(line: str) -> str:
    """Returns Markdown that shows a whole line literally."""
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
    """Replaces each character of `HIDDEN` by its escape in JSON."""
    return HIDDEN.sub(lambda match: _json_escape(match[0]), text)


def _json_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join([f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4)])


def visible(line: str) -> str:
    """Writes out the hidden characters of a line, and other spaces and characters without a shape.

    It is for texts that an approver reads: letters, plain spaces and tabs stay.
    """
    hidden = unreadable(line) - {"\t"}
    return line.translate({ord(char): char.encode("unicode_escape").decode() for char in hidden})


def name_in_line(name: str) -> str:
    """Returns a name for a line of text; quoted if a line break in it could look like another."""
    return name if name.isprintable() else repr(name)


def unreadable(text: str) -> set[str]:
    """Returns the characters of `HIDDEN`, and others that are not printable, which `text` has."""
    return {char for char in {*text} if not char.isprintable() or HIDDEN.match(char)}


def longest_run(text: str) -> int:
    """Returns the length of the longest run of backticks; a fence or span needs more."""
    return max(map(len, re.findall("`+", text)), default=0)


def _without_surrogates(text: str) -> str:
    """Returns what UTF-8 can encode, as the messages of a notebook must be."""
    return text.encode("utf-8", "replace").decode()
