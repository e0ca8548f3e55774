"""Replaces the model with a fixed plan of calls that reads the tools' results. It is not an LLM.

The plan guesses a column's kind from its first value. Each rejection says which cell to repair.
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
    """Converts each column; if a cell is rejected, repairs it or drops the row, and tries again."""
    _, rows = embedded_json((yield _call("show_rows", count=1)))
    [first] = rows.values() if isinstance(rows, dict) and rows else [{}]
    doubts: list[str] = []
    for column, value in first.items():
        date_format = _date_format(value)
        formats = [date_format] if date_format else []
        kind = "date" if date_format else "number" if _is_number(value) else "text"
        while True:
            answer = yield _call("convert_column", column=column, to=kind, date_formats=formats)
            refusal = re.match(r"Row (\d+): (.*?) is not a ", answer)
            if refusal is None:
                break
            row, cell = int(refusal[1]), literal_eval(refusal[2])
            if kind == "date" and (other := _date_format(cell)) and other not in formats:
                formats = [*formats, other]
            elif cell.lower() in _MISSING:
                yield _set_cell(row, column, "", "it marks a missing value")
            elif kind == "number" and re.fullmatch(r"[\d.]+,\d+", cell):
                number = cell.replace(".", "").replace(",", ".")
                yield _set_cell(row, column, number, "a comma for the point")
            else:
                yield _call("drop_rows", rows=[row], reason=f"{column} {cell!r} is not a {kind}")
                doubts.append(f"Row {row} was dropped for its {column}, {cell!r}; what was meant?")
    summary = "Its columns mixed several ways to write values."
    return json.dumps({"summary": summary, "doubts": doubts})


OFFLINE = Offline(
    "an offline plan (no LLM: fixed rules that read what the tools answer)", follow(clean)
)


def _call(name: str, **arguments: object) -> Call:
    return Call(name=name, arguments=arguments)


def _set_cell(row: int, column: str, value: str, reason: str) -> Call:
    return _call("set_cell", row=row, column=column, value=value, reason=reason)


def _date_format(text: str) -> str | None:
    formats = [form for pattern, form in _DATES.items() if re.fullmatch(pattern, text)]
    return formats[0] if formats else None


def _is_number(text: str) -> bool:
    """Whether the text is written like a number, and not like an identifier."""
    return re.fullmatch(r"[\d., ]*\d", text) is not None and not text.isdigit()
