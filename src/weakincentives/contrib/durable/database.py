"""Opens the database for durable runs by URL, without revealing its password in errors."""

import sqlite3
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from ...errors import WeakIncentivesError, missing_extra

__all__ = [
    "Extra",
    "SqliteConnection",
    "WaitingRunsError",
    "check_database_file",
    "database_errors",
    "dbos",
    "make_engine",
    "parse_url",
    "sqlalchemy",
]

_BUSY_SECONDS = 5.0  # as long as sqlite3 waits for a lock
_BUSY_POLL = 0.01
_POSTGRES = ("postgresql", "postgres", "cockroachdb")  # DBOS opens all of these in the same way

type Extra = Any
"""A value from DBOS, SQLAlchemy or psycopg, which may not be installed for type checkers."""


def dbos() -> Extra:
    """Imports and returns DBOS, which takes a second."""
    try:
        return import_module("dbos")
    except ModuleNotFoundError as error:
        if error.name != "dbos":
            raise
        raise missing_extra("A durable run", "DBOS", "durable") from error


def sqlalchemy() -> Extra:
    """Imports and returns SQLAlchemy, which DBOS installs."""
    return import_module("sqlalchemy")


class WaitingRunsError(WeakIncentivesError):
    """Raised if the database for durable runs cannot be used."""


def _unixepoch(_subsec: str) -> float:
    return time.time()


class SqliteConnection(sqlite3.Connection):
    """Adds features that DBOS needs to SQLite before 3.42, and saves one fsync per step."""

    def __init__(self, *args: Any, **options: Any) -> None:  # Any: sqlite3.connect's arguments
        super().__init__(*args, **options)
        if sqlite3.sqlite_version_info < (3, 42):
            self.create_function("unixepoch", 1, _unixepoch)
        self._use_wal()
        self.execute("PRAGMA synchronous=NORMAL")

    def _use_wal(self) -> None:
        until = time.monotonic() + _BUSY_SECONDS
        while True:
            try:
                self.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:  # SQLite waits for others only elsewhere
                is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY  # or an extension
                if not is_busy or time.monotonic() > until:
                    raise
            time.sleep(_BUSY_POLL)


@contextmanager
def database_errors(
    problem: str = "the database of durable runs cannot be read",
    remedy: str = "check its URL, that a worker has opened it, and that its workers have the same "
    "version of DBOS",
) -> Generator[None]:
    """Converts SQLAlchemy's errors to `WaitingRunsError`."""
    try:
        yield
    except sqlalchemy().exc.SQLAlchemyError as error:
        reason = str(getattr(error, "orig", error)).strip().partition("\n")[0]
        raise WaitingRunsError(f"{problem}: {reason}; {remedy}") from error


def parse_url(database_url: str) -> Extra:
    """Returns SQLAlchemy's URL object for an SQLite or PostgreSQL database.

    Raises `WaitingRunsError` for any other text, without quoting it, because it may contain a
    password.
    """
    try:
        url = sqlalchemy().make_url(database_url)
    except (sqlalchemy().exc.ArgumentError, ValueError):
        url = None
    if url is not None and url.get_backend_name() == "sqlite":
        return url
    if url is not None and url.get_backend_name() in _POSTGRES and url.database:
        return url.set(drivername="postgresql+psycopg")  # the same driver that DBOS uses
    raise WaitingRunsError(
        "the database URL must be sqlite:///FILE or postgresql://USER@HOST/DATABASE, "
        f"got {'another one' if url is None else repr(url.get_backend_name() + '://…')}; correct it"
    )


def make_engine(url: Extra) -> Extra:
    """Returns SQLAlchemy's engine for a URL from `parse_url`."""
    is_sqlite = url.get_backend_name() == "sqlite"
    options = {"factory": SqliteConnection, "timeout": 30} if is_sqlite else {}
    return sqlalchemy().create_engine(url, connect_args=options)


def check_database_file(url: Extra) -> None:
    """Raises `WaitingRunsError` if `url` refers to an SQLite file that does not exist."""
    path = url.database or ":memory:"
    if url.get_backend_name() == "sqlite" and not Path(path).is_file():
        raise WaitingRunsError(
            f"cannot find the database file {path!r}; start a worker first, which creates it, or "
            "correct the URL"
        )
