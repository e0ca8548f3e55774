"""Stands in for a model when there is none: a fixed plan of calls that reads the tools' answers. It
is no LLM.

It takes a column for what its first value looks like, and lets each refusal tell what to do about a
cell.
"""

import json
import re
from ast import literal_eval

from examples.common.models import Offline
from examples.offline_model import Call, Plan, embedded_json, follow

__all__ = ["OFFLINE"]

_DATES = {
    r"\d{4}-\d\d-\d\d": "%Y-%m-%d",
    r"\d\d?/\d\d?/\d{4}": "%d/%m/%Y",
    r"\d\d? [A-Z][a-z]+ \d{4}": "%d %B %Y",
}
_MISSING = {"-", "?", "n/a", "none", "null", "unknown"}


def clean() -> Plan:
    """Converts column by column; after a refusal it mends the cell or drops the row, and tries
    again.
    """
    _, rows = embedded_json((yield _call("show_rows", count=1)))
    [first] = rows.values() if isinstance(rows, dict) and rows else [{}]
    doubts: list[str] = []
    for column, value in first.items():
        date, number = (
            _date_format(value),
            re.fullmatch(r"[\d., ]*\d", value) and not value.isdigit(),
        )
        kind, formats = "date" if date else "number" if number else "text", [date] if date else []
        while refused := re.match(
            r"Row (\d+): (.*?) is no ",
            (yield _call("convert_column", column=column, to=kind, date_formats=formats)),
        ):
            row, cell = int(refused[1]), literal_eval(refused[2])
            if kind == "date" and (other := _date_format(cell)) and other not in formats:
                formats = [*formats, other]
            elif cell.lower() in _MISSING:
                yield _call(
                    "set_cell",
                    row=row,
                    column=column,
                    value="",
                    reason="it says that there is no value",
                )
            elif kind == "number" and re.fullmatch(r"[\d.]+,\d+", cell):
                mended = cell.replace(".", "").replace(",", ".")
                yield _call(
                    "set_cell", row=row, column=column, value=mended, reason="a comma for the point"
                )
            else:
                yield _call("drop_rows", rows=[row], reason=f"{column} {cell!r} is no {kind}")
                doubts.append(f"Row {row} was dropped for its {column}, {cell!r}; what was meant?")
    return json.dumps(
        {"summary": "Its columns mixed several ways to write values.", "doubts": doubts}
    )


OFFLINE = Offline(
    "an offline plan (no LLM: fixed rules that read what the tools answer)", follow(clean)
)


def _call(name: str, **arguments: object) -> Call:
    return Call(name=name, arguments=arguments)


def _date_format(text: str) -> str | None:
    return next((form for pattern, form in _DATES.items() if re.fullmatch(pattern, text)), None)
