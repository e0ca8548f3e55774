"""What `wink` prints: text that cannot steer the terminal, JSON, wide tables. What they say is not
decided here.
"""

import json
import sys

from rich.console import Console

from .. import serde

__all__ = ["counted", "in_one_line", "shown", "wide_console", "write_json"]

# Control characters but for tab and line feed, and those that turn the direction of text.
_STEERING = (
    *range(9),
    *range(11, 32),
    *range(127, 160),
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
)
_HIDDEN = dict.fromkeys(_STEERING, "?")
_ESCAPED = {code: f"\\u{code:04x}" for code in _STEERING}


def shown(text: str) -> str:
    """`text`, whoever wrote it, with a question mark for each character that would steer a
    terminal.
    """
    return text.translate(_HIDDEN)


def in_one_line(text: str) -> str:
    """`text` as `shown`, each run of white space as one space."""
    return shown(" ".join(text.split()))


def counted(number: int, noun: str) -> str:
    """`1 finding`, `2 findings`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def write_json(value: object, *, indent: int | None = 2) -> None:
    """Prints `value` as JSON, in which what would steer a terminal is escaped."""
    text = json.dumps(serde.dump(value), indent=indent, ensure_ascii=False)
    sys.stdout.write(text.translate(_ESCAPED) + "\n")


def wide_console() -> Console:
    """Standard output; a table that goes into a file or a pipe is not squeezed into 80 columns."""
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=160)
