"""The table that the tools change: a resource that can be rolled back."""

import csv
from collections.abc import Mapping
from io import StringIO
from pathlib import Path

__all__ = ["Row", "Sheet"]

type Row = Mapping[str, str]


class Sheet:
    """A table, with rows keyed by their number in the file; 1 is the first below the header.

    `snapshot` and `restore` are all that the library needs to roll back a failing tool call.
    """

    def __init__(self, columns: list[str], rows: dict[int, Row]) -> None:
        self.columns = columns
        self.rows = rows

    @classmethod
    def read(cls, path: Path) -> "Sheet":
        """Reads a CSV file and skips its blank lines.

        Raises `ValueError` if the file does not contain a table.
        """
        with path.open(newline="", encoding="utf-8-sig") as file:
            header, *lines = [line for line in csv.reader(file) if line] or [[]]
        if not header or len(set(header)) < len(header):
            raise ValueError(f"the header is {header}; each column needs a name of its own")
        rows: dict[int, Row] = {}
        for number, line in enumerate(lines, start=1):
            if len(line) != len(header):
                raise ValueError(f"row {number} has {len(line)} cells, the header {len(header)}")
            rows[number] = dict(zip(header, line, strict=True))
        return cls(header, rows)

    def put(self, number: int, column: str, value: str) -> None:
        """Changes one cell. It replaces the row, so that snapshots do not change."""
        self.rows[number] = {**self.rows[number], column: value}

    def text(self) -> str:
        """Returns the table as CSV."""
        file = StringIO()
        lines = [self.columns, *(row.values() for row in self.rows.values())]
        csv.writer(file, lineterminator="\n").writerows(lines)
        return file.getvalue()

    def snapshot(self) -> dict[int, Row]:
        return dict(self.rows)

    def restore(self, snapshot: dict[int, Row], /) -> None:
        self.rows = dict(snapshot)
