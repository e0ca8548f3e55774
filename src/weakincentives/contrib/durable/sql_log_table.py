"""`SqlLogTable` stores the logs of durable runs in SQLite or PostgreSQL, using SQLAlchemy.

A row is stored only if its attempt is the newest one. To ensure this, each transaction locks the
run's row in `weakincentives_runs`, which a newer attempt changes when it starts.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from importlib import import_module
from itertools import count

from ...evaluation.stored_log import NewAttempt, Place, Row, StoppedAttempt, check_version
from ...limits import utc_now
from .database import Extra, WaitingRunsError, make_engine, parse_url, sqlalchemy

__all__ = ["SqlLogTable"]

_log = logging.getLogger(__name__)

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('weakincentives tables', 0))"
# A frozen worker must not lock rows for long; applies until the transaction ends.
_SHORT = "set_config('idle_in_transaction_session_timeout', '5000', true)"

# Uses the collation `C`, so that paths are compared byte by byte.
_CREATE = (
    """CREATE TABLE weakincentives_runs (
    run_id TEXT PRIMARY KEY, version TEXT NOT NULL, attempt INTEGER NOT NULL,
    cancelled INTEGER NOT NULL, started TEXT NOT NULL)""",
    """CREATE TABLE weakincentives_log (
    run_id TEXT NOT NULL, path TEXT {collate} NOT NULL, position INTEGER NOT NULL,
    attempt INTEGER NOT NULL, line TEXT NOT NULL, PRIMARY KEY (run_id, path, position))""",
)
_BEGIN = """INSERT INTO weakincentives_runs VALUES (:run_id, :version, 1, 0, :started)
    ON CONFLICT (run_id) DO UPDATE SET attempt = weakincentives_runs.attempt + 1
    RETURNING version, attempt, cancelled, started, {short}"""
_ROWS = """SELECT path, position, line FROM weakincentives_log WHERE run_id = :run_id
    ORDER BY path, position"""
_NEWEST = """SELECT attempt, cancelled, {short} FROM weakincentives_runs
    WHERE run_id = :run_id FOR SHARE"""
_NEWEST_IN_SQLITE = """UPDATE weakincentives_runs SET attempt = attempt WHERE run_id = :run_id
    RETURNING attempt, cancelled"""  # SQLite has one writer and no row locks
_CANCEL = """INSERT INTO weakincentives_runs VALUES (:run_id, '', 0, 1, '')
    ON CONFLICT (run_id) DO UPDATE SET cancelled = 1"""
_DELETE = (
    "DELETE FROM weakincentives_log WHERE run_id = :run_id",
    "DELETE FROM weakincentives_runs WHERE run_id = :run_id",
)
_REPLACE = """DELETE FROM weakincentives_log WHERE run_id = :run_id
    AND path BETWEEN :path AND :end AND (path > :path OR position >= :position)"""
_APPEND = """INSERT INTO weakincentives_log VALUES (:run_id, :path, :position, :attempt, :line)
    ON CONFLICT (run_id, path, position)
    DO UPDATE SET attempt = excluded.attempt, line = excluded.line"""
_ATTEMPTS = "SELECT run_id, attempt FROM weakincentives_runs WHERE run_id IN :run_ids"
_STORED = """SELECT 1 FROM weakincentives_log WHERE run_id = :run_id AND path = :path
    AND position = :position AND attempt = :attempt"""

# SQLAlchemy's code for a transaction that was not rolled back after its connection broke.
_BROKEN = "8s2b"

_open: ContextVar[Extra] = ContextVar("open transaction")  # for a tool and its nested runs


class SqlLogTable:
    """A `LogTable` in a database; it creates its tables on first use.

    With a `datasource`, which is a `SQLAlchemyDatasource`, the tables are in the application's
    database, so that transactional tools commit together with their entries.
    """

    def __init__(self, datasource: Extra = None) -> None:
        self._datasource = datasource
        self._engine: Extra = None if datasource is None else datasource.engine
        self._is_ready, self._creates = False, True

    def open(self, database_url: str, *, create: bool = True) -> None:
        """Uses this database, unless there is a datasource.

        With `create=False`, each use raises `WaitingRunsError` if the tables do not exist.
        """
        if self._datasource is None:
            self.close()
            self._engine = make_engine(parse_url(database_url))
            self._is_ready, self._creates = False, create

    def close(self) -> None:
        """Closes the connections that were opened since `open`."""
        if self._datasource is None and self._engine is not None:
            self._engine.dispose()

    def exists(self) -> bool:
        """Returns whether the tables exist, without creating them or retrying."""
        return self._engine is not None and _has_table(self._engine)

    @property
    def engine(self) -> Extra:
        """SQLAlchemy's engine, once the tables exist."""
        if self._engine is None:
            raise RuntimeError(
                "DurableRuns.config must be called before launch, because it sets the database"
            )
        if not self._is_ready:
            self._again(self.create)
            self._is_ready = True
        return self._engine

    def create(self) -> None:
        """Creates the tables if they do not exist, without retrying."""
        if _has_table(self._engine):
            return
        if not self._creates:
            raise WaitingRunsError(
                "cannot use the logs of runs because this database has no table "
                "weakincentives_log; pass the URL of the database that has it as log_url= or --log "
                "(with transactional tools it is the application's)"
            )
        with self._engine.begin() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE" if _is_sqlite(connection) else _LOCK)
            if not _has_table(connection):
                for statement in _CREATE:
                    collate = "" if _is_sqlite(connection) else 'COLLATE "C"'
                    connection.exec_driver_sql(statement.format(collate=collate))

    def _transact[T](self, work: Callable[[Extra], T]) -> T:
        """Calls `work` on a connection, in a transaction that sees all committed changes."""
        engine = self.engine
        if not _is_sqlite(engine):
            engine = engine.execution_options(isolation_level="READ COMMITTED")

        def attempt() -> T:
            with engine.begin() as connection:
                return work(connection)

        return self._again(attempt)

    def begin(self, run_id: str, version: str) -> NewAttempt:
        """Implements `LogTable.begin`."""

        def work(connection: Extra) -> NewAttempt:
            statement = _BEGIN.format(short="1" if _is_sqlite(connection) else _SHORT)
            started = utc_now().isoformat()
            row = _execute(
                connection, statement, run_id=run_id, version=version, started=started
            ).one()
            if row.cancelled:
                raise StoppedAttempt(run_id, cancelled=True)
            check_version(run_id, row.version, version)
            began = datetime.fromisoformat(row.started)
            return NewAttempt(row.attempt, began, _rows(connection, run_id))

        return self._transact(work)

    def append(self, run_id: str, attempt: int, rows: Sequence[Row], *, first: bool) -> None:
        """Implements `LogTable.append`."""

        def work(connection: Extra) -> None:
            _append(connection, run_id, attempt, rows, first=first)

        if (session := _open.get(None)) is not None:
            work(session.connection())
        else:
            self._transact(work)

    def transact(
        self, name: str, place: Place, perform: Callable[[], bool], append: Callable[[], None]
    ) -> None:
        """Implements `LogTable.transact`."""
        source, tries = self._datasource, count()

        def write(session: Extra) -> None:
            with session.begin_nested() as savepoint:
                if not perform():
                    savepoint.rollback()
            append()

        def work() -> None:
            session = source.sql_session()
            connection = session.connection()
            # The sqlite3 module does not start a transaction before a SAVEPOINT. The savepoint's
            # RELEASE would then commit a tool's writes before its entry.
            if _is_sqlite(connection) and not connection.connection.dbapi_connection.in_transaction:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            if next(tries) and _execute(connection, _STORED, **place._asdict()).first():
                return  # the first try had committed before the connection broke
            token = _open.set(session)
            try:
                write(session)
            finally:
                _open.reset(token)

        if (session := _open.get(None)) is not None:
            write(session)
            return
        isolation = "SERIALIZABLE" if _is_sqlite(self.engine) else "READ COMMITTED"
        options = {"name": name, "isolation_level": isolation}
        self._again(lambda: source.run_tx_step(options, work))

    def cancel(self, run_id: str) -> None:
        """Stops the run's current attempt at its next entry, and prevents further attempts."""
        self._transact(lambda connection: _execute(connection, _CANCEL, run_id=run_id))

    def delete(self, run_ids: Sequence[str]) -> None:
        """Deletes all rows of these runs."""

        def work(connection: Extra) -> None:
            for run_id in run_ids:
                for statement in _DELETE:
                    _execute(connection, statement, run_id=run_id)

        self._transact(work)

    def rows(self, run_id: str) -> Sequence[Row]:
        """Returns a run's stored rows."""
        return self._transact(lambda connection: _rows(connection, run_id))

    def attempts(self, run_ids: Sequence[str]) -> Mapping[str, int]:
        """Returns the number of attempts for each of these runs."""
        expanded = sqlalchemy().bindparam("run_ids", expanding=True)
        statement = sqlalchemy().text(_ATTEMPTS).bindparams(expanded)

        def work(connection: Extra) -> Mapping[str, int]:
            found = connection.execute(statement, {"run_ids": run_ids}).all()
            return {**dict.fromkeys(run_ids, 0), **dict(found)}

        return self._transact(work)

    def _again[T](self, work: Callable[[], T]) -> T:
        """Calls `work`, and retries while the database is unavailable, overloaded or locked."""
        errors, utils, pause = sqlalchemy().exc, import_module("dbos._utils"), 0.05
        retriable = (
            utils.retriable_sqlite_exception
            if _is_sqlite(self._engine)
            else utils.retriable_postgres_exception
        )
        while True:
            try:
                return work()
            except errors.SQLAlchemyError as error:
                broken = error.code == _BROKEN  # a handler failed with this error
                if not (broken or isinstance(error, errors.TimeoutError) or retriable(error)):
                    raise
                _log.warning(
                    "The database of runs is unavailable; trying again", exc_info=pause >= 1
                )
            time.sleep(pause)
            pause = min(2 * pause, 2.0)


def _is_sqlite(engine: Extra) -> bool:
    """Returns whether an engine or connection uses SQLite."""
    is_sqlite: bool = engine.dialect.name == "sqlite"
    return is_sqlite


def _has_table(engine: Extra) -> bool:
    has_table: bool = sqlalchemy().inspect(engine).has_table("weakincentives_log")
    return has_table


def _execute(connection: Extra, statement: str, **values: str | int) -> Extra:
    return connection.execute(sqlalchemy().text(statement), values)


def _rows(connection: Extra, run_id: str) -> list[Row]:
    return [Row(*values) for values in _execute(connection, _ROWS, run_id=run_id)]


def _append(
    connection: Extra, run_id: str, attempt: int, rows: Sequence[Row], *, first: bool
) -> None:
    statement = _NEWEST_IN_SQLITE if _is_sqlite(connection) else _NEWEST.format(short=_SHORT)
    newest = _execute(connection, statement, run_id=run_id).first()
    if newest is None or newest.cancelled or newest.attempt != attempt:
        # If there is no attempt, the run was cancelled and then deleted.
        raise StoppedAttempt(run_id, cancelled=newest is None or bool(newest.cancelled))
    path, position, _ = rows[0]
    if first and path:
        # A nested run's path starts with this path and a colon, which sorts before a semicolon.
        end = path if position else f"{path[:-1]};"
        _execute(connection, _REPLACE, run_id=run_id, path=path, position=position, end=end)
    for row in rows:  # one by one, because psycopg's pipeline turns off the server's timeout
        _execute(connection, _APPEND, run_id=run_id, attempt=attempt, **row._asdict())
