"""The table that the tools work on: a resource that can be put back. It knows CSV, and nothing of
models.
"""

import csv
from collections.abc import Mapping
from io import StringIO
from pathlib import Path

__all__ = ["Row", "Sheet"]

type Row = Mapping[str, str]


class Sheet:
    """Rows by their number in the file; 1 is the first below the header, and a dropped number is
    not used again.

    `snapshot` and `restore` are all that the library asks of a resource, to undo what a failing
    tool call did to it.
    """

    def __init__(self, columns: list[str], rows: dict[int, Row]) -> None:
        self.columns = columns
        self.rows = rows

    @classmethod
    def read(cls, path: Path) -> "Sheet":
        """The table in a CSV file, without blank lines.

        Raises `ValueError` for a file that holds no table.
        """
        with path.open(newline="", encoding="utf-8-sig") as file:
            header, *lines = [line for line in csv.reader(file) if line] or [[]]
        if not header or len(set(header)) < len(header):
            raise ValueError(f"the header is {header}; each column needs a name of its own")
        for number, line in enumerate(lines, start=1):
            if len(line) != len(header):
                raise ValueError(f"row {number} has {len(line)} cells, the header {len(header)}")
        return cls(
            header,
            {
                number: dict(zip(header, line, strict=True))
                for number, line in enumerate(lines, start=1)
            },
        )

    def put(self, number: int, column: str, value: str) -> None:
        """Changes one cell. Rows are values: a snapshot that holds this one keeps it as it was."""
        self.rows[number] = {**self.rows[number], column: value}

    def text(self) -> str:
        """The table as CSV."""
        out = StringIO()
        csv.writer(out, lineterminator="\n").writerows(
            [self.columns, *(row.values() for row in self.rows.values())]
        )
        return out.getvalue()

    def snapshot(self) -> dict[int, Row]:
        return dict(self.rows)

    def restore(self, snapshot: dict[int, Row], /) -> None:
        self.rows = dict(snapshot)
