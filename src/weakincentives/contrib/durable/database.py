"""The database of durable runs as a caller names it: by a URL, whose password no error shows."""

from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from ...errors import WeakIncentivesError, missing_extra
from .sqlite import SqliteConnection

__all__ = [
    "WaitingRunsError",
    "check_database_file",
    "database_errors",
    "dbos",
    "make_engine",
    "parse_url",
]

_POSTGRES = ("postgresql", "postgres", "cockroachdb")  # which DBOS opens in the same way

# Any below: DBOS and SQLAlchemy are extras that type checkers need not find.


def dbos() -> Any:
    """Imports the package, which takes a second."""
    try:
        return import_module("dbos")
    except ModuleNotFoundError as error:
        if error.name != "dbos":
            raise
        raise missing_extra("A durable run", "DBOS", "durable") from error


class WaitingRunsError(WeakIncentivesError):
    """The database of durable runs cannot be used."""


@contextmanager
def database_errors(
    problem: str = "the database of durable runs cannot be read",
    remedy: str = "check its URL, that a worker has opened it, and that its workers have the same "
    "version of DBOS",
) -> Generator[None]:
    """Raises SQLAlchemy's errors as `WaitingRunsError`."""
    try:
        yield
    except import_module("sqlalchemy.exc").SQLAlchemyError as error:
        reason = str(getattr(error, "orig", error)).strip().partition("\n")[0]
        raise WaitingRunsError(f"{problem}: {reason}; {remedy}") from error


def parse_url(database_url: str) -> Any:
    """Returns SQLAlchemy's URL of an SQLite or PostgreSQL database.

    Raises `WaitingRunsError` for any other text, which it does not repeat: it may have a password.
    """
    sqlalchemy = import_module("sqlalchemy")
    try:
        url = sqlalchemy.make_url(database_url)
    except (sqlalchemy.exc.ArgumentError, ValueError):
        url = None
    if url is not None and url.get_backend_name() == "sqlite":
        return url
    if url is not None and url.get_backend_name() in _POSTGRES and url.database:
        return url.set(drivername="postgresql+psycopg")  # as DBOS does
    raise WaitingRunsError(
        "the database URL must be sqlite:///FILE or postgresql://USER@HOST/DATABASE, "
        f"got {'another one' if url is None else repr(url.get_backend_name() + '://…')}; correct it"
    )


def make_engine(url: Any) -> Any:
    """Returns SQLAlchemy's engine for a URL of `parse_url`."""
    is_sqlite = url.get_backend_name() == "sqlite"
    options = {"factory": SqliteConnection, "timeout": 30} if is_sqlite else {}
    return import_module("sqlalchemy").create_engine(url, connect_args=options)


def check_database_file(url: Any) -> None:
    """Raises `WaitingRunsError` if `url` is that of an SQLite file that does not exist."""
    path = url.database or ":memory:"
    if url.get_backend_name() == "sqlite" and not Path(path).is_file():
        raise WaitingRunsError(
            f"there is no database file {path!r}; start a worker first, which creates it, or "
            "correct the URL"
        )
