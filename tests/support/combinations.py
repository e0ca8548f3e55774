"""The table of combinations, read from `tests/combinations.toml`, and as lines of text."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Row", "read_table", "table_lines"]

COLUMNS = ("adapter", "MainLoop", "Chat", "SQLite", "PostgreSQL")


@dataclass(frozen=True)
class Row:
    """A feature of a run; `empty` and `fault` give reasons by entry point."""

    name: str
    empty: Mapping[str, str] = field(default_factory=dict[str, str])
    fault: Mapping[str, str] = field(default_factory=dict[str, str])


def read_table(path: Path = Path(__file__).parents[1] / "combinations.toml") -> Sequence[Row]:
    return [Row(name, **cells) for name, cells in tomllib.loads(path.read_text()).items()]


def table_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yields the table with a mark for each cell, and then the reasons for the marks."""
    width = max(len(row.name) for row in rows)
    yield f"{'each by evaluate and stream, sync and async':{width}}  {'  '.join(COLUMNS)}"
    for row in rows:
        marks = [
            "empty" if column in row.empty else "fault" if column in row.fault else "ok"
            for column in COLUMNS
        ]
        cells = [f"{mark:{len(column)}}" for mark, column in zip(marks, COLUMNS, strict=True)]
        yield f"{row.name:{width}}  {'  '.join(cells)}".rstrip()
    for row in rows:
        for kind, reasons in (("empty", row.empty), ("fault", row.fault)):
            for reason in dict.fromkeys(reasons.values()):
                columns = ", ".join(column for column in reasons if reasons[column] == reason)
                yield f"{row.name}, {columns}, {kind}: {reason}"
