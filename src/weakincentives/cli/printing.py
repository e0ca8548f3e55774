"""How `wink` prints: text that cannot steer the terminal, JSON, and wide tables."""

import json
import sys
from collections.abc import Iterable

from rich.console import Console

from .. import serde
from ..displays import HIDDEN, cut, escape_hidden

__all__ = [
    "print_lines",
    "printable",
    "short_line",
    "single_line",
    "wide_console",
    "write_json",
]

_WIDTH = 100


def printable(text: str) -> str:
    """Replaces each character that steers a terminal or hides text by a question mark."""
    return HIDDEN.sub("?", text)


def single_line(text: str) -> str:
    """Makes `text` printable, with one space for each run of white space."""
    return printable(" ".join(text.split()))


def short_line(margin: str, text: str) -> str:
    """Makes one line of `text` behind the margin; two leading blanks mark a part of a turn."""
    text = margin + "  " * text.startswith("  ") + single_line(text)
    return cut(text, _WIDTH - 1, counted=False)


def print_lines(lines: Iterable[str]) -> None:
    """Prints lines that cannot steer the terminal, and none of which becomes two."""
    sys.stdout.writelines(f"{printable(line).replace('\n', '?')}\n" for line in lines)


def write_json(value: object, *, indent: int | None = 2) -> None:
    """Prints `value` as JSON, and escapes characters that steer a terminal or hide text."""
    text = json.dumps(serde.dump(value), indent=indent, ensure_ascii=False)
    sys.stdout.write(escape_hidden(text) + "\n")


def wide_console() -> Console:
    """Returns standard output, where a table in a file or pipe has more than 80 columns."""
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=160)
