"""Durable runs kept by DBOS in SQLite or PostgreSQL. The application owns DBOS; this registers one
workflow with it.

The only module that imports DBOS, and only when `install` is called.
"""

import logging
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from importlib import import_module
from typing import Any

from ...evaluation.main_loop import Execution
from ...limits import Budget, Deadline
from ...runtime.session import Session
from .executor_lock import lock_executor
from .journal import (
    DurableAgent,
    Record,
    combined_version,
    execute_run,
    succeeded,
    to_execution,
    to_input,
)

__all__ = ["DurableRun", "DurableRuns", "SqliteConnection", "install"]

_log = logging.getLogger(__name__)

# Any below: DBOS is an extra that type checkers need not find.


def dbos() -> Any:
    """The package, which takes a second to import."""
    return import_module("dbos")


_WORKFLOW = "weakincentives.run"  # stands in databases, so it stays
_UNFINISHED = ("PENDING", "ENQUEUED", "DELAYED")


class DurableRun:
    """One run, which may go on in another process."""

    def __init__(self, agent: DurableAgent[Any], handle: Any) -> None:
        self.run_id: str = handle.workflow_id
        self._agent = agent
        self._handle = handle

    def result(self) -> Execution[Any]:
        """Waits for the end.

        Raises the `PromptEvaluationError` in which the run ended, and what DBOS raises.
        """
        return to_execution(self._agent, self._handle.get_result())

    def session(self) -> Session:
        """Waits for the end; the session as the run left it, also where it failed."""
        session = self._agent.session(self.run_id)
        session.restore(
            session.parse_snapshot(self._handle.get_result()["session"], types=self._agent.types)
        )
        return session


class DurableRuns:
    """Starts runs of agents and finds them again; made by `install`."""

    def __init__(
        self, agents: Mapping[str, DurableAgent[Any]], workflow: Callable[[str, Record], Record]
    ) -> None:
        self._agents = agents
        self._workflow = workflow
        self.version = combined_version(agents)

    def config(
        self, name: str, database_url: str, *, executor_id: str = "worker-0", exclusive: bool = True
    ) -> dict[str, Any]:
        """What `DBOS(config=…)` needs. `executor_id` stays with a worker when it starts again: its
        runs are its own.

        The process holds its `executor_id` until it ends; raises `RuntimeError` when another one
        does. PostgreSQL behind a pooler that shares connections cannot hold it: give
        `exclusive=False` there.
        """
        if exclusive:
            lock_executor(database_url, executor_id)
        sqlite = database_url.startswith("sqlite")
        return {
            "name": name,
            "system_database_url": database_url,
            "application_version": self.version,
            "executor_id": executor_id,
            "serializer": dbos().DBOSPortableJSONSerializer(),
            "sys_db_idle_transaction_timeout_sec": 5,  # a frozen worker must hold no row for long
            "console_log_level": "WARNING",
            "db_engine_kwargs": {"connect_args": {"factory": SqliteConnection}} if sqlite else None,
        }

    def start(
        self,
        agent: str,
        *params: object,
        session: Session | None = None,
        run_id: str | None = None,
        queue: str | None = None,
        deadline: Deadline | None = None,
        budget: Budget | None = None,
    ) -> DurableRun:
        """Starts a run of the agent of that name, here or by whichever worker takes it from
        `queue`.

        `params` are bound to the prompt. A `run_id` names one run: started again, it is the same,
        and a warning is logged if it waits for another version of the code. Raises `KeyError` for
        an agent that is not installed.
        """
        one = self._agents[agent]
        if run_id is not None and dbos().DBOS.get_workflow_status(run_id) is not None:
            return self.find(agent, run_id)
        given = to_input(*params, session=session, deadline=deadline, budget=budget)
        with nullcontext() if run_id is None else dbos().SetWorkflowID(run_id):
            if queue is None:
                return DurableRun(one, dbos().DBOS.start_workflow(self._workflow, agent, given))
            return DurableRun(
                one, dbos().DBOS.enqueue_workflow(queue, self._workflow, agent, given)
            )

    def find(self, agent: str, run_id: str) -> DurableRun:
        """The run of that id, which was started here or elsewhere. Raises what DBOS does where
        there is none.

        Logs a warning if the run is not over and waits for another version of the code.
        """
        run = DurableRun(self._agents[agent], dbos().DBOS.retrieve_workflow(run_id))
        status = dbos().DBOS.get_workflow_status(run_id)
        if status.status in _UNFINISHED and status.app_version not in (None, self.version):
            _log.warning(
                "Run %r waits for a process of version %s, and this one is of version %s: keep the old code running "
                "until the run is over, or cancel it",
                run_id,
                status.app_version,
                self.version,
            )
        return run


def install(agents: Mapping[str, DurableAgent[Any]], *, datasource: Any = None) -> DurableRuns:
    """Registers the agents' runs with DBOS; call it before `DBOS.launch()`.

    `datasource` is a `SQLAlchemyDatasource` of the application's database, in which transactional
    tools write by `datasource.sql_session()`. Raises `ValueError` for an agent with such a tool
    where none is given.
    """
    for name, agent in agents.items():
        for tool in agent.tools:
            if tool.effect == "transactional" and datasource is None:
                raise ValueError(
                    f"tool {tool.name!r} of agent {name!r} is transactional; give datasource="
                )

    def run(agent: str, given: Record) -> Record:
        return execute_run(agents[agent], given, _DbosSteps(datasource))

    return DurableRuns(agents, dbos().DBOS.workflow(name=_WORKFLOW)(run))


class _DbosSteps:
    """Keeps the records of the workflow that it is made in."""

    def __init__(self, datasource: Any) -> None:
        self._dbos = dbos().DBOS
        self._datasource = datasource
        self.run_id: str = self._dbos.workflow_id

    def step(
        self, name: str, work: Callable[[], Record], /, *, transactional: bool = False
    ) -> Record:
        """As `Steps.step`. Raises DBOS's own error when the record is of another step."""

        def unless_it_fails() -> Record:
            session = self._datasource.sql_session()
            _begin(session.connection())
            with session.begin_nested() as savepoint:
                record = work()
                if not succeeded(record):
                    savepoint.rollback()
            return record

        kept: Record = (
            self._datasource.run_tx_step({"name": name}, unless_it_fails)
            if transactional
            else self._dbos.run_step({"name": name}, work)
        )
        return kept


def _begin(connection: Any) -> None:
    """Begins the transaction that SQLAlchemy believes to be in.

    The module sqlite3 begins one before an INSERT, but not before a SAVEPOINT, whose RELEASE would
    then commit what a tool wrote before its record is written.
    """
    if (
        connection.dialect.name == "sqlite"
        and not connection.connection.dbapi_connection.in_transaction
    ):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _unixepoch(_subsec: str) -> float:
    return time.time()


class SqliteConnection(sqlite3.Connection):
    """What DBOS expects of SQLite 3.42, on older ones too, and one fsync less for each step."""

    def __init__(self, *args: Any, **options: Any) -> None:  # Any: those of sqlite3.connect
        super().__init__(*args, **options)
        if sqlite3.sqlite_version_info < (3, 42):
            self.create_function("unixepoch", 1, _unixepoch)
        self.execute("PRAGMA journal_mode=WAL")
        self.execute("PRAGMA synchronous=NORMAL")
