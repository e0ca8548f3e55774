"""How `wink` prints: text that cannot steer the terminal, JSON, and wide tables."""

import json
import sys

from rich.console import Console

from .. import serde

__all__ = ["count_of", "printable", "short_line", "single_line", "wide_console", "write_json"]

_WIDTH = 100
# Control characters except tab and line feed, and those that change the direction of text.
_STEERING = (
    *(*range(9), *range(11, 32), *range(127, 160)),
    *(*range(0x202A, 0x202F), *range(0x2066, 0x206A)),
)
_TO_QUESTION_MARK = dict.fromkeys(_STEERING, "?")
_TO_ESCAPE = {code: f"\\u{code:04x}" for code in _STEERING}


def printable(text: str) -> str:
    """Replaces each character that would steer a terminal by a question mark."""
    return text.translate(_TO_QUESTION_MARK)


def single_line(text: str) -> str:
    """Makes `text` printable, with one space for each run of white space."""
    return printable(" ".join(text.split()))


def short_line(margin: str, text: str) -> str:
    """Makes one line of `text` behind the margin; two leading blanks mark a part of a turn."""
    text = margin + "  " * text.startswith("  ") + single_line(text)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"


def count_of(number: int, noun: str) -> str:
    """Returns `1 finding` or `2 findings`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def write_json(value: object, *, indent: int | None = 2) -> None:
    """Prints `value` as JSON, and escapes characters that would steer a terminal."""
    text = json.dumps(serde.dump(value), indent=indent, ensure_ascii=False)
    sys.stdout.write(text.translate(_TO_ESCAPE) + "\n")


def wide_console() -> Console:
    """Returns standard output, where a table in a file or pipe has more than 80 columns."""
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=160)
