"""Approval on the terminal, and `wink approve`, which decides on a stored run's calls."""

import json
import sys
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.text import Text
from typer import Argument, Option

from ..atomic_writes import replacing
from ..displays import count_of
from ..errors import SerdeError
from ..evaluation.approval import Approve, Decision, Deny, Preview, ReplaceArguments
from ..evaluation.suspension import Suspension
from .printing import printable
from .target import UsageError, read_text

__all__ = ["approve", "ask", "is_interactive", "read_suspension", "write_file"]

_STYLES = {"+": "green", "-": "red", "@": "cyan"}
_QUESTION = "Approve? y, n, n REASON, or other arguments as JSON: "

_Yes = Annotated[
    list[str] | None, Option("--yes", help="Approve the call with this id. Repeatable.")
]
_No = Annotated[
    list[str] | None, Option("--no", help="Deny the call: id, or id=reason. Repeatable.")
]


def approve(
    file: Annotated[Path, Argument(help="A suspended run from wink run --suspend.")],
    *,
    yes: _Yes = None,
    no: _No = None,
) -> None:
    """Show a stored run's pending calls, and decide on them.

    On a terminal, asks about each call that has no decision yet. The decisions are stored in the
    file, and wink run --resume FILE continues with them.
    """
    suspension = read_suspension(file)
    decisions: dict[str, Decision] = dict.fromkeys(yes or (), Approve())
    for text in no or ():
        call_id, _, reason = text.partition("=")
        decisions[call_id] = Deny(reason)
    waiting = {preview.call_id: preview for preview in suspension.pending}
    if unknown := sorted(decisions.keys() - waiting.keys()):
        calls = ", ".join(waiting)
        raise UsageError(
            f"{file}: call {unknown[0]!r} is not pending approval; the pending calls are {calls}"
        )
    decided = {**suspension.decisions, **decisions}
    for preview in waiting.values():
        if preview.call_id in decided or not is_interactive():
            show(preview, decided.get(preview.call_id))
        else:
            decided[preview.call_id] = ask(preview)
    write_file(file, suspension.decide(decided).to_json())
    left = len(waiting.keys() - decided.keys())
    remedy = "" if left else f"; continue with wink run TARGET --resume {file}"
    sys.stderr.write(f"{file}: {count_of(left, 'call')} without a decision{remedy}\n")


def ask(preview: Preview) -> Decision:
    """Shows a call on the terminal and reads the user's decision; end of input means denial."""
    show(preview)
    while True:
        sys.stderr.write(_QUESTION)
        sys.stderr.flush()
        line = sys.stdin.readline()
        word, _, rest = line.strip().partition(" ")
        if not line:
            return Deny("Nobody answered.")
        if word in ("y", "yes") and not rest:
            return Approve()
        if word in ("n", "no"):
            return Deny(rest.strip())
        try:
            arguments = json.loads(line, parse_constant=_refuse)
        except (ValueError, RecursionError):
            continue
        if isinstance(arguments, dict):
            return ReplaceArguments(arguments)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


def show(preview: Preview, decision: Decision | None = None) -> None:
    """Prints a preview on standard error, with diff lines in colour."""
    console = Console(stderr=True, highlight=False, markup=False)
    mark = "" if decision is None else f" [{decision.kind}]"
    console.print(Text(printable(f"{preview.call_id}{mark}: {preview.tool}"), style="bold"))
    for line in str(preview).split("\n"):
        console.print(Text(line, style=_STYLES.get(line[:1], "")), soft_wrap=True)


def is_interactive() -> bool:
    """Returns whether the user can be asked questions."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def read_suspension(file: Path) -> Suspension:
    """Reads the suspended run in a file."""
    try:
        return Suspension.from_json(read_text(file))
    except FileNotFoundError as error:
        raise UsageError(f"{file} does not exist; it is deleted when its run has ended") from error
    except SerdeError as error:
        raise UsageError(f"{file} is not a suspended run: {error}") from error


def write_file(file: Path, text: str) -> None:
    """Replaces a file atomically; only its owner can read the new file."""
    with replacing(file, mode=0o600) as new:
        new.write(text.encode())
