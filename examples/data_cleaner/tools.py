"""The cleaner's tools. They change one row after another, and stop at the first that fails.

None of them contains undo code: if a call fails, the library rolls back the sheet and the session.
The session records the changes as `Change` and `Drop`.
"""

import re
from dataclasses import dataclass, field
from time import strftime, strptime
from typing import Literal

from weakincentives import ToolContext, ToolResult
from weakincentives.prompt import ToolValidationError

from .sheet import Row, Sheet

__all__ = ["Change", "Drop", "convert_column", "drop_rows", "set_cell", "show_rows"]

_NUMBERING = "1 is the first below the header, and a dropped number is not used again."
_ROW = {"description": f"A row's number; {_NUMBERING}"}
_COLUMN = {"description": "A column's name, as the header has it."}
_KINDS = "text: single spaces; number: 1234.5; date: 2026-03-01. Empty cells stay empty."
_REASON = {"description": "Why, in a few words; it appears in the report."}


@dataclass(frozen=True, slots=True)
class Change:
    """A cell that was changed."""

    row: int
    column: str
    before: str
    after: str
    reason: str


@dataclass(frozen=True, slots=True)
class Drop:
    """A row that was dropped."""

    row: int
    reason: str


@dataclass(frozen=True, slots=True)
class Show:
    first: int = field(default=1, metadata=_ROW)
    count: int = field(default=20, metadata={"description": "How many rows to show at most."})


@dataclass(frozen=True, slots=True)
class Convert:
    column: str = field(metadata=_COLUMN)
    to: Literal["text", "number", "date"] = field(metadata={"description": _KINDS})
    date_formats: list[str] = field(
        default_factory=list[str],
        metadata={"description": "Tried in order after %Y-%m-%d, such as %d/%m/%Y."},
    )


@dataclass(frozen=True, slots=True)
class SetCell:
    row: int = field(metadata=_ROW)
    column: str = field(metadata=_COLUMN)
    value: str = field(metadata={"description": "The new text of the cell."})
    reason: str = field(metadata=_REASON)


@dataclass(frozen=True, slots=True)
class DropRows:
    rows: list[int] = field(metadata=_ROW)
    reason: str = field(metadata=_REASON)


def show_rows(params: Show, *, context: ToolContext) -> ToolResult[dict[int, Row]]:
    """Show rows as they are now."""
    rows = context.resources.get(Sheet).rows
    numbers = [number for number in rows if number >= params.first][: params.count]
    shown = {number: rows[number] for number in numbers}
    return ToolResult(message=f"{len(shown)} of {len(rows)} rows.", value=shown)


def convert_column(params: Convert, *, context: ToolContext) -> ToolResult[None]:
    """Convert all cells of a column, or none if one of them cannot be read."""
    sheet = context.resources.get(Sheet)
    count = 0
    for number in list(sheet.rows):
        before = _cell(sheet, number, params.column)
        after = _convert(before, params)
        if after is None:
            raise ToolValidationError(
                f"Row {number}: {before!r} is not a {params.to}. {count} cells had been changed; "
                f"that is undone. The row is {sheet.rows[number]}. Give another format, set the "
                "cell or drop the row; then try again."
            )
        if after != before:
            _put(context, Change(number, params.column, before, after, f"written as {params.to}"))
            count += 1
    return ToolResult(message=f"{count} cells changed.")


def set_cell(params: SetCell, *, context: ToolContext) -> ToolResult[None]:
    """Replace the value of one cell."""
    before = _cell(context.resources.get(Sheet), params.row, params.column)
    _put(context, Change(params.row, params.column, before, params.value, params.reason))
    return ToolResult(message=f"{before!r} is now {params.value!r}.")


def drop_rows(params: DropRows, *, context: ToolContext) -> ToolResult[None]:
    """Drop rows: all that are named, or none if one of them does not exist."""
    sheet = context.resources.get(Sheet)
    for number in params.rows:
        if sheet.rows.pop(number, None) is None:
            raise ToolValidationError(f"Row {number} does not exist. No row was dropped.")
        context.session.dispatch(Drop(number, params.reason))
    return ToolResult(message=f"{len(params.rows)} rows dropped.")


def _cell(sheet: Sheet, number: int, column: str) -> str:
    if number not in sheet.rows or column not in sheet.columns:
        raise ToolValidationError(
            f"No cell {column!r} in row {number}; columns are {', '.join(sheet.columns)}."
        )
    return sheet.rows[number][column]


def _put(context: ToolContext, change: Change) -> None:
    context.resources.get(Sheet).put(change.row, change.column, change.after)
    context.session.dispatch(change)


def _convert(text: str, params: Convert) -> str | None:
    """Returns `text` in the requested form, or `None` if it cannot be read."""
    text = " ".join(text.split())
    if params.to == "text" or not text:
        return text
    if params.to == "number":
        digits = text.replace(" ", "")
        return digits if re.fullmatch(r"[-+]?\d+(\.\d+)?", digits) else None
    for form in ["%Y-%m-%d", *params.date_formats]:
        try:
            return strftime("%Y-%m-%d", strptime(text, form))
        except ValueError:
            continue
    return None
