"""A real database as a resource: SQLite in memory, rolled back by savepoints."""

import sqlite3
import weakref
from itertools import count


class Database:
    """Notes in SQLite; a snapshot is the name of a savepoint."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(
            ":memory:",
            isolation_level=None,
            check_same_thread=False,  # the garbage collector may close it in any thread
        )
        weakref.finalize(self, self.connection.close)
        self.connection.executescript(
            "PRAGMA foreign_keys = ON; CREATE TABLE kind (name TEXT PRIMARY KEY);"
            "CREATE TABLE note (text TEXT, kind TEXT REFERENCES kind (name) "
            "DEFERRABLE INITIALLY DEFERRED);"
        )
        self.numbers = count()

    def add(self, text: str, kind: str | None = None) -> None:
        self.connection.execute("INSERT INTO note VALUES (?, ?)", (text, kind))

    @property
    def notes(self) -> list[str]:
        return [text for (text,) in self.connection.execute("SELECT text FROM note ORDER BY rowid")]

    def snapshot(self) -> str:
        name = f"call_{next(self.numbers)}"
        self.connection.execute(f"SAVEPOINT {name}")
        return name

    def restore(self, snapshot: str, /) -> None:
        self.connection.execute(f"ROLLBACK TO {snapshot}")

    def release(self, snapshot: str, /) -> None:
        self.connection.execute(f"RELEASE {snapshot}")
