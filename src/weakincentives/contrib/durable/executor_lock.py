"""Locks an `executor_id` for a process: by a file beside SQLite, or an advisory lock in PostgreSQL.

The operating system or the server releases the lock when the process dies.
"""

import atexit
import os
import time
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Protocol

from .database import Extra, sqlalchemy

__all__ = ["AdvisoryLocks", "lock_executor", "lock_key", "locked_by_failover", "release"]

# The server sees a death a moment later, and a `WorkerFailover` that looks has the lock briefly.
_TIMEOUT_SECONDS = 2.0


class _Lock(Protocol):
    """An open file or a connection; closing it releases the lock."""

    def close(self) -> None: ...


# with the id of the process, since a forked one holds no lock of its parent
type _Key = tuple[int, str, str]

_locks: dict[_Key, _Lock] = {}
locked_by_failover: set[_Key] = set()
"""The locks that a `WorkerFailover` of this process has on a connection of its own."""


class AdvisoryLocks:
    """A connection to PostgreSQL that locks executor ids until it closes.

    The server closes it if it is silent for `silent` seconds, unless these are 0; then it locks
    nothing, and the next use opens another one.
    """

    def __init__(self, database_url: str, *, silent: float = 0) -> None:
        self._url, self._silent = _libpq_url(database_url), silent
        self._connection = self._connect()

    def _connect(self) -> Extra:
        connection = import_module("psycopg").connect(self._url, autocommit=True)
        connection.execute(f"SET idle_session_timeout = {int(self._silent * 1000)}")
        # The server notices within a quarter of a minute that a machine is gone.
        connection.execute("SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 3")
        connection.execute("SET tcp_keepalives_count = 3")
        return connection

    def lock(self, executor_id: str, seconds: float = 0) -> bool:
        """Locks an id, and returns whether it could; tries for some `seconds`."""
        until = time.monotonic() + seconds
        while not self._ask("pg_try_advisory_lock", executor_id):
            if time.monotonic() >= until:
                return False
            time.sleep(0.1)
        return True

    def unlock(self, executor_id: str) -> None:
        """Unlocks an id once."""
        self._ask("pg_advisory_unlock", executor_id)

    def close(self) -> None:
        """Closes the connection, which unlocks all ids."""
        self._connection.close()

    def _ask(self, function: str, executor_id: str) -> bool:
        if self._connection.closed:
            self._connection = self._connect()
        statement = f"SELECT {function}(hashtextextended('weakincentives ' || %s, 0))"
        return bool(self._connection.execute(statement, [executor_id]).fetchone()[0])


def lock_executor(database_url: str, executor_id: str) -> None:
    """Locks `executor_id` until this process ends; raises `RuntimeError` when another has it.

    Does nothing for a database in memory, and for SQLite on Windows.
    """
    key = lock_key(database_url, executor_id)
    if key in _locks or key in locked_by_failover:
        return
    if database_url.startswith("sqlite"):
        lock = _lock_file(database_url, executor_id)
    else:
        lock = _lock_advisory(database_url, executor_id)
    if lock is not None:
        _locks[key] = lock
        atexit.register(release, database_url, executor_id)


def release(database_url: str, executor_id: str) -> None:
    """Releases the lock that `lock_executor` took in this process, if any."""
    lock = _locks.pop(lock_key(database_url, executor_id), None)
    if lock is not None:
        lock.close()


def lock_key(database_url: str, executor_id: str) -> _Key:
    """Returns the key of a lock within this process."""
    return os.getpid(), _libpq_url(database_url), executor_id


def _libpq_url(database_url: str) -> str:
    """Returns the URL without SQLAlchemy's name of the driver."""
    return database_url.replace("postgresql+psycopg:", "postgresql:")


def _lock_file(database_url: str, executor_id: str) -> _Lock | None:
    try:
        import fcntl
    except ImportError:
        return None
    name = sqlalchemy().make_url(database_url).database
    if not name or ":memory:" in name:
        return None
    # A POSIX lock belongs to the process, so a child that outlives it does not keep it. Each id
    # locks a byte.
    byte = int.from_bytes(sha256(executor_id.encode()).digest()[:7])
    file = Path(f"{name.removeprefix('file:')}-executors").open("ab")  # noqa: SIM115 - it stays open
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
    except OSError as error:
        file.close()
        raise _refusal(executor_id) from error
    return file


def _lock_advisory(database_url: str, executor_id: str) -> _Lock:
    locks = AdvisoryLocks(database_url)
    if not locks.lock(executor_id, _TIMEOUT_SECONDS):
        locks.close()
        raise _refusal(executor_id)
    return locks


def _refusal(executor_id: str) -> RuntimeError:
    return RuntimeError(
        f"another process that is alive has executor_id {executor_id!r}, and would run its steps "
        "twice; give each process an executor_id of its own, or end the other one"
    )
