"""How values show themselves: in one line for `repr`, and as Markdown in notebooks.

A notebook renders Markdown as HTML, and texts of users, tools and models may hold both. So every
such text stands in a code block or a code span that it cannot leave.
"""

import re
from typing import Protocol

__all__ = ["code_block", "code_span", "literal", "longest_run", "markdown", "one_line"]

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


def longest_run(text: str) -> int:
    """Returns the length of the longest run of backticks; a fence or span needs more."""
    return max(map(len, re.findall("`+", text)), default=0)


def _without_surrogates(text: str) -> str:
    """Returns what UTF-8 can encode, as the messages of a notebook must be."""
    return text.encode("utf-8", "replace").decode()
