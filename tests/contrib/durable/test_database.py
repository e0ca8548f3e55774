"""The connections of durable runs to their database."""

import sqlite3
from contextlib import closing
from pathlib import Path
from threading import Timer

from weakincentives.contrib.durable.database import SqliteConnection


def test_connection_waits_while_another_one_has_the_database(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    other = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    other.execute("CREATE TABLE runs (id)")
    other.execute("BEGIN IMMEDIATE")
    timer = Timer(0.3, other.execute, ["COMMIT"])
    timer.start()
    with closing(other), closing(SqliteConnection(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        timer.join()
