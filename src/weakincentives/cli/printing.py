"""Output for `wink`: text without terminal control characters, JSON, and wide tables."""

import json
import sys
from collections.abc import Iterable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from .. import serde
from ..citations import Citation
from ..displays import HIDDEN, cut, escape_hidden
from ..evaluation.response import OutputDelta

__all__ = [
    "LiveOutput",
    "as_json",
    "output_so_far",
    "print_lines",
    "printable",
    "short_line",
    "single_line",
    "source_line",
    "wide_console",
    "write_json",
]

_WIDTH = 100


def printable(text: str) -> str:
    """Replaces characters that control a terminal or hide text with question marks."""
    return HIDDEN.sub("?", text)


def single_line(text: str) -> str:
    """Makes `text` printable, and collapses each run of white space to a single space."""
    return printable(" ".join(text.split()))


def short_line(margin: str, text: str) -> str:
    """Formats `text` as one line after the margin; two leading spaces indent a step in a turn."""
    text = margin + "  " * text.startswith("  ") + single_line(text)
    return cut(text, _WIDTH - 1, counted=False)


def source_line(citation: Citation, text: str) -> str:
    """Returns a line with a source that `text` cites, and the passage; a long URL is not cut."""
    url = citation.url if citation.name != citation.url else ""
    passage = f"for “{cut(citation.passage(text), _WIDTH // 2)}”" if citation.span else ""
    return single_line(f"source: {citation.name} {url} {passage}") + "\n"


def print_lines(lines: Iterable[str]) -> None:
    """Prints each item as exactly one line, without terminal control characters."""
    sys.stdout.writelines(f"{printable(line).replace('\n', '?')}\n" for line in lines)


def write_json(value: object, *, indent: int | None = 2) -> None:
    """Prints `value` as JSON; see `as_json`."""
    sys.stdout.write(as_json(value, indent=indent) + "\n")


def as_json(value: object, *, indent: int | None = 2) -> str:
    """Returns `value` as JSON, escaping characters that control a terminal or hide text."""
    return escape_hidden(json.dumps(serde.dump(value), indent=indent, ensure_ascii=False))


def output_so_far(delta: OutputDelta | None, console: Console) -> Text:
    """Returns a partial answer as JSON, as much of its end as fits below other lines."""
    if delta is None:
        return Text()
    try:
        text = escape_hidden(json.dumps(delta.partial, indent=2, ensure_ascii=False))
    except RecursionError:  # the answer is nested so deeply that it will be rejected
        text = "…"
    lines = text.splitlines()[-max(console.height - 4, 1) :]
    return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")


class LiveOutput:
    """Shows a typed answer on a terminal while it grows, a few times a second, and removes it."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, markup=False)
        self.is_supported = self._console.is_terminal and not self._console.is_dumb_terminal
        self._delta: OutputDelta | None = None
        self._live: Live | None = None

    def show(self, delta: OutputDelta) -> None:
        """Shows the answer so far, from the next frame on."""
        self._delta = delta
        if self._live is None:
            self._live = Live(
                console=self._console,
                get_renderable=lambda: output_so_far(self._delta, self._console),
                transient=True,
                refresh_per_second=8,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()

    def hide(self) -> None:
        """Removes the answer from the terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = self._delta = None


def wide_console() -> Console:
    """Returns a console for standard output; in a file or pipe, tables can exceed 80 columns."""
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=160)
