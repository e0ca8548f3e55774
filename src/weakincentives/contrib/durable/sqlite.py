"""The connection to SQLite for DBOS."""

import sqlite3
import time
from typing import Any

__all__ = ["SqliteConnection"]


def _unixepoch(_subsec: str) -> float:
    return time.time()


class SqliteConnection(sqlite3.Connection):
    """Adds what DBOS needs to SQLite before 3.42, and saves one fsync for each step."""

    def __init__(self, *args: Any, **options: Any) -> None:  # Any: those of sqlite3.connect
        super().__init__(*args, **options)
        if sqlite3.sqlite_version_info < (3, 42):
            self.create_function("unixepoch", 1, _unixepoch)
        self.execute("PRAGMA journal_mode=WAL")
        self.execute("PRAGMA synchronous=NORMAL")
