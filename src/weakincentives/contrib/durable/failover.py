"""Detects dead workers, each of which locks its `executor_id`, and requeues their runs.

A lock is a byte of a file next to the SQLite database, or an advisory lock in PostgreSQL. The
operating system or the server releases it when the process dies. A `WorkerFailover` requeues the
runs of dead and frozen workers. It also requeues runs that DBOS claimed for its own worker but
never started.
"""

import atexit
import logging
import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from threading import Event, Thread
from typing import Self

from .database import Extra, dbos, sqlalchemy
from .waiting import ANY_WORKER, WORKFLOW

__all__ = ["WorkerFailover", "lock_executor", "release"]

_log = logging.getLogger(__name__)

# Consecutive checks without a lock; by then, a worker that only lost its connection has a new one.
_CHECKS = 3

# The server notices a dead worker only after a delay, and a `WorkerFailover` takes the lock briefly
# to check.
_TIMEOUT_SECONDS = 2.0


# Includes the process id, because a forked process does not inherit its parent's locks.
type _Key = tuple[int, str, str]

type _Release = Callable[[], None]

_releases: dict[_Key, _Release] = {}
_locked_by_failover: set[_Key] = set()  # locked on a separate connection


class _AdvisoryLocks:
    """A PostgreSQL connection that locks executor ids until it is closed.

    The server closes the connection, and releases its locks, after `silent` seconds without
    activity, unless `silent` is 0. The next use opens a new connection.
    """

    def __init__(self, database_url: str, *, silent: float = 0) -> None:
        self._url, self._silent = _libpq_url(database_url), silent
        self._connection = self._connect()

    def _connect(self) -> Extra:
        connection = import_module("psycopg").connect(self._url, autocommit=True)
        connection.execute(f"SET idle_session_timeout = {int(self._silent * 1000)}")
        # The server notices within 15 seconds that a machine has disappeared.
        connection.execute("SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 3")
        connection.execute("SET tcp_keepalives_count = 3")
        return connection

    def lock(self, executor_id: str, seconds: float = 0) -> bool:
        """Tries to lock an id for up to `seconds`; returns whether it succeeded."""
        until = time.monotonic() + seconds
        while not self._ask("pg_try_advisory_lock", executor_id):
            if time.monotonic() >= until:
                return False
            time.sleep(0.1)
        return True

    def unlock(self, executor_id: str) -> None:
        """Releases one lock on an id."""
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
    """Locks `executor_id` until this process ends; raises `RuntimeError` if another one holds it.

    Does nothing for an in-memory database or for SQLite on Windows.
    """
    key = _lock_key(database_url, executor_id)
    if key in _releases or key in _locked_by_failover:
        return
    lock = _lock_file if database_url.startswith("sqlite") else _lock_advisory
    if unlock := lock(database_url, executor_id):
        _releases[key] = unlock
        atexit.register(release, database_url, executor_id)


def release(database_url: str, executor_id: str) -> None:
    """Releases the lock that `lock_executor` acquired in this process, if any."""
    if unlock := _releases.pop(_lock_key(database_url, executor_id), None):
        unlock()


def _lock_key(database_url: str, executor_id: str) -> _Key:
    return os.getpid(), _libpq_url(database_url), executor_id


def _libpq_url(database_url: str) -> str:
    """Returns the URL without SQLAlchemy's driver name."""
    return database_url.replace("postgresql+psycopg:", "postgresql:")


def _lock_file(database_url: str, executor_id: str) -> _Release | None:
    try:
        import fcntl
    except ImportError:
        return None
    name = sqlalchemy().make_url(database_url).database
    if not name or ":memory:" in name:
        return None
    # A POSIX lock belongs to the process, so a surviving child process does not keep it. Each id
    # locks one byte.
    byte = int.from_bytes(sha256(executor_id.encode()).digest()[:7])
    file = Path(f"{name.removeprefix('file:')}-executors").open("ab")  # noqa: SIM115 - it stays open
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
    except OSError as error:
        file.close()
        raise _refusal(executor_id) from error
    return file.close


def _lock_advisory(database_url: str, executor_id: str) -> _Release:
    locks = _AdvisoryLocks(database_url)
    if not locks.lock(executor_id, _TIMEOUT_SECONDS):
        locks.close()
        raise _refusal(executor_id)
    return locks.close


def _refusal(executor_id: str) -> RuntimeError:
    return RuntimeError(
        f"another process that is alive has executor_id {executor_id!r}, and would run its steps "
        "twice; give each process an executor_id of its own, or end the other one"
    )


class WorkerFailover:
    """Marks this worker as alive inside a `with` block, and recovers the runs of dead workers.

    Enter it before `DBOS.launch()`. It checks the other workers every `every` seconds. The server
    releases the lock of a worker that is silent for `silent` seconds. `silent` must be longer than
    DBOS's `sys_db_idle_transaction_timeout_sec`, so that the worker no longer locks any rows by
    then. Raises `RuntimeError` if another worker with this id is alive.
    """

    def __init__(
        self, database_url: str, executor_id: str, *, every: float = 1, silent: float = 10
    ) -> None:
        self._key, self._executor_id = _lock_key(database_url, executor_id), executor_id
        self._every = every
        self._absent: Counter[str] = Counter()  # consecutive checks without a lock, by executor id
        self._lost: Counter[str] = Counter()  # consecutive checks in which a run was idle
        self._over = Event()
        self._thread = Thread(target=self._watch, name="failover", daemon=True)
        self._locks = _AdvisoryLocks(database_url, silent=silent)
        release(database_url, executor_id)  # a frozen worker would keep the lock from `config`
        if not self._locks.lock(executor_id, _CHECKS * every):  # a peer may hold it briefly
            self._locks.close()
            raise RuntimeError(
                f"executor_id must be unique, but another running worker has {executor_id!r}; "
                "pass another id"
            )
        _locked_by_failover.add(self._key)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        _locked_by_failover.discard(self._key)
        self._locks.close()

    def _watch(self) -> None:
        while not self._over.wait(self._every):
            try:
                self._check_workers()
            # The database is unavailable, or DBOS is still launching; the next check will retry.
            except Exception:
                _log.warning(
                    "Checking other workers failed",
                    extra={"executor_id": self._executor_id},
                    exc_info=True,
                )
                with suppress(Exception):  # lock again immediately in case the connection broke
                    self._locks.lock(self._executor_id)

    def _check_workers(self) -> None:
        self._locks.lock(self._executor_id)  # a checking peer may have held the lock
        engine = dbos().DBOS
        version = engine.application_version  # runs of other versions need their own workers
        pending = engine.list_workflows(
            status="PENDING", app_version=version, load_input=False, load_output=False
        )
        absent: Counter[str] = Counter()
        for other in {run.executor_id for run in pending} - {self._executor_id}:
            if not self._locks.lock(other):
                continue
            try:
                absent[other] = self._absent[other] + 1
                if absent[other] >= _CHECKS:
                    _log.warning("Taking over runs", extra={"executor_id": other})
                    # The public function loses the retry count and the deadline.
                    engine._recover_pending_workflows([other])
            finally:
                self._locks.unlock(other)
        self._absent = absent
        self._recover_lost([run for run in pending if run.executor_id == self._executor_id])

    def _recover_lost(self, own: list[Extra]) -> None:
        """Requeues the runs that this worker has claimed but does not execute.

        DBOS claims queued runs, and starts them once the server has confirmed this. If the
        connection breaks in between, DBOS forgets the runs until its next launch.
        """
        instance = import_module("dbos._dbos")._get_dbos_instance()
        if not instance._executor._work_queue.empty():  # some runs are waiting for a thread
            return
        active = {*instance._active_workflows_set.activeList()}
        self._lost = Counter(
            {
                run.workflow_id: self._lost[run.workflow_id] + 1
                for run in own
                if run.name == WORKFLOW and run.queue_name and run.workflow_id not in active
            }
        )
        for run_id in [run_id for run_id, checks in self._lost.items() if checks >= _CHECKS]:
            _log.warning("Recovering a lost run", extra={"run_id": run_id})
            instance._sys_db.reenqueue_for_recovery(run_id, [self._executor_id], ANY_WORKER)
            del self._lost[run_id]  # a later claim is counted from zero
