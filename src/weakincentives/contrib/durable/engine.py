"""Executes durable runs with DBOS, which stores them in SQLite or PostgreSQL.

The application owns DBOS. `install` registers one workflow with it, and DBOS is not imported before
that. The import itself is in `database`, which processes that do not run agents also use.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from contextvars import copy_context
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from ...content import Part
from ...evaluation.conversation import Conversation, OnChange
from ...evaluation.main_loop import Execution
from ...evaluation.response import StreamEvent
from ...evaluation.stored_log import Row, StoppedAttempt
from ...limits import Budget, Deadline
from ...runtime.session import Session
from .agent import AnyAgent, combined_version
from .database import Extra, SqliteConnection, dbos
from .execution import Record, execute_run, to_execution, to_input
from .failover import lock_executor
from .sql_log_table import SqlLogTable
from .waiting import (
    UNFINISHED,
    WORKFLOW,
    WaitingRuns,
    check_agent,
    check_run_id,
    keep_waiting,
    last_status,
)

if TYPE_CHECKING:  # DBOS is an extra
    from dbos import DBOSConfig  # pyright: ignore[reportMissingImports]

__all__ = ["DurableRun", "DurableRuns", "SqliteConnection", "install"]

_log = logging.getLogger(__name__)


class DurableRun:
    """One run, which can continue in another process."""

    def __init__(self, agent: AnyAgent, handle: Extra) -> None:
        self.run_id: str = handle.workflow_id
        self._agent = agent
        self._handle = handle

    def result(self) -> Execution[Any]:  # Any: the agent's declared output type
        """Waits for the run to end, including any approvals, and returns the execution.

        Raises the `PromptEvaluationError` that ended the run, `ValueError` if the run was deleted,
        and DBOS's own errors.
        """
        return to_execution(self._agent, self._end())

    @property
    def status(self) -> Literal["running", "waiting", "ended"]:
        """The run's status: running (or queued), waiting for approval, or ended."""
        status = last_status(dbos().DBOS, self.run_id)
        if status is None:
            return "waiting"
        return "running" if status.status in UNFINISHED else "ended"

    @property
    def is_queued(self) -> bool:
        """Whether the run is on a queue, and no worker has started it."""
        row = last_status(dbos().DBOS, self.run_id)
        return row is not None and row.status in ("ENQUEUED", "DELAYED")

    @property
    def seconds(self) -> float:
        """The time since a worker last started the run, until its end; 0 before that."""
        row = last_status(dbos().DBOS, self.run_id)
        if row is None or row.completed_at is None:
            return 0.0
        seconds: float = (row.completed_at - (row.dequeued_at or row.created_at)) / 1_000
        return max(seconds, 0.0)

    def session(self) -> Session:
        """Waits for the run to end and returns its session, even if the run failed."""
        session = self._agent.session(self.run_id)
        self._agent.prompt().declare_state(session)
        snapshot = self._end()["session"]
        session.restore(session.parse_snapshot(snapshot, types=self._agent.types))
        return session

    def _end(self, **options: float) -> Record:
        """Waits for the run's last part and returns its result."""
        last_status(dbos().DBOS, self.run_id)  # otherwise DBOS would wait forever for a deleted run
        result: Record = self._handle.get_result(**options)
        while "wait_id" in result:
            rest = dbos().DBOS.retrieve_workflow(result["wait_id"], existing_workflow=False)
            result = rest.get_result(**options)
        return result


class DurableRuns(WaitingRuns):
    """Starts and finds runs, and makes decisions on suspended runs; created by `install`."""

    def __init__(
        self,
        agents: Mapping[str, AnyAgent],
        workflow: Callable[[str, Record], Record],
        table: SqlLogTable,
    ) -> None:
        super().__init__(dbos().DBOS, table)
        self._agents = agents
        self._workflow = workflow
        self.version = combined_version(agents)

    @property
    def agents(self) -> Mapping[str, AnyAgent]:
        """The installed agents, by name."""
        return self._agents

    def config(  # pyright: ignore[reportUnknownParameterType]  # DBOS may not be installed
        self, name: str, database_url: str, *, executor_id: str = "worker-0", exclusive: bool = True
    ) -> "DBOSConfig":
        """Returns the configuration for `DBOS(config=…)`.

        After a restart, a worker must use the same `executor_id` to keep its runs. The process
        locks the `executor_id` until it ends; raises `RuntimeError` if another process holds the
        lock. Pass `exclusive=False` for PostgreSQL behind a connection pooler, which does not
        support this lock.
        """
        if exclusive:
            lock_executor(database_url, executor_id)
        self.table.open(database_url)
        sqlite = database_url.startswith("sqlite")
        return {
            "name": name,
            "system_database_url": database_url,
            "application_version": self.version,
            "executor_id": executor_id,
            "serializer": dbos().DBOSPortableJSONSerializer(),
            "sys_db_idle_transaction_timeout_sec": 5,  # a frozen worker must not lock rows for long
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
        message: str | Sequence[Part] | None = None,
        conversation: Conversation | None = None,
        on_change: OnChange = "append",
        log: Sequence[Row] = (),
    ) -> DurableRun:
        """Starts a run of the named agent, in this process or on a worker that serves `queue`.

        `params` are bound to the prompt. `message`, `conversation` and `on_change` are the same as
        for `MainLoop.execute`. A `run_id` identifies one run: starting it a second time returns the
        same run, and logs a warning if that run is waiting for another version of the code. With a
        `run_id`, the run can continue the `log` of another one, which are its first `rows`. Raises
        `KeyError` for an agent that is not installed. Raises `ValueError` for a `run_id` that
        belongs to another agent's run, is reserved for suspended runs, or contains unprintable
        characters.
        """
        engine, durable_agent = dbos().DBOS, self._agents[agent]
        if run_id is not None:
            check_run_id(run_id)
        if run_id is not None and engine.get_workflow_status(run_id) is not None:
            return self.find(agent, run_id)
        run_input = to_input(
            *params,
            session=session,
            deadline=deadline,
            budget=budget,
            message=message,
            conversation=conversation,
            on_change=on_change,
        )
        if log and run_id is not None:
            attempt = self.table.begin(run_id, durable_agent.version).number
            self.table.append(run_id, attempt, log, first=False)
        run_input["queue"] = queue  # also used for the rest of the run if it is suspended
        with nullcontext() if run_id is None else dbos().SetWorkflowID(run_id):
            if queue is None:
                handle = engine.start_workflow(self._workflow, agent, run_input)
            else:
                handle = engine.enqueue_workflow(queue, self._workflow, agent, run_input)
        return DurableRun(durable_agent, handle)

    def find(self, agent: str, run_id: str) -> DurableRun:
        """Returns the run with this id; raises DBOS's error for an unknown id.

        Raises `ValueError` if the id belongs to another agent's run or to an unrelated workflow.
        Logs a warning if the run is unfinished and waiting for another version of the code.
        """
        engine = dbos().DBOS
        run = DurableRun(self._agents[agent], engine.retrieve_workflow(run_id))
        self._check_whole("find", run_id)
        check_agent(engine, run_id, agent)
        status = last_status(engine, run_id)
        if (
            status
            and status.status in UNFINISHED
            and status.app_version not in (None, self.version)
        ):
            _log.warning(
                "Run %r is waiting for a process of version %s, but this one has version %s: "
                "keep the old code running until the run is over, or cancel it",
                run_id,
                status.app_version,
                self.version,
            )
        return run


def install(
    agents: Mapping[str, AnyAgent],
    *,
    datasource: Extra = None,
    progress: Callable[[str, StreamEvent[Any]], object] | None = None,  # Any: likewise
) -> DurableRuns:
    """Registers the agents' runs with DBOS; call it before `DBOS.launch()`.

    `progress` is called with the run id and each event of every run that this process executes; if
    it is given, these runs stream their answers. After a crash, the next process continues with the
    first step that was not stored.

    `datasource` is a `SQLAlchemyDatasource` for the application's database, to which transactional
    tools write with `datasource.sql_session()`. Raises `ValueError` if an agent has such a tool but
    there is no datasource.
    """
    for name, agent in agents.items():
        for tool in agent.tools:
            if tool.effect == "transactional" and datasource is None:
                raise ValueError(
                    f"tool {tool.name!r} of agent {name!r} is transactional and requires a "
                    "database; pass datasource="
                )

    table = SqlLogTable(datasource)

    def run(agent: str, run_input: Record) -> Record:
        run_id = dbos().DBOS.workflow_id
        resumed = run_input.get("resumed")
        first_id = resumed["run_id"] if resumed else run_id  # later parts have their own ids
        tell = None if progress is None else partial(progress, first_id)
        work = partial(execute_run, agents[agent], run_input, table, run_id, progress=tell)
        result: Record | None = None
        while result is None:
            try:
                result = _outside_of_workflow(work)
            except StoppedAttempt as stopped:
                if stopped.cancelled:
                    # repeated, because a crash may have interrupted `cancel`
                    _outside_of_workflow(partial(dbos().DBOS.cancel_workflow, run_id))
                    raise dbos().error.DBOSWorkflowCancelledError(run_id) from None
                # If this worker still owns the run, an older worker that was frozen has only now
                # started its attempt: continue in a newer one.
                if not import_module("dbos._datasource")._still_owns(run_id):
                    # DBOS then waits for the other attempt's result
                    raise dbos().error.DBOSWorkflowConflictIDError(run_id) from None
            except (SystemExit, KeyboardInterrupt, GeneratorExit) as stop:
                # Otherwise DBOS would leave the run unfinished.
                message = f"a handler of run {first_id!r} raised {type(stop).__name__}: {stop}"
                raise RuntimeError(message) from stop
        if "suspension" in result:
            return {"wait_id": keep_waiting(dbos().DBOS, agent, run_input, result)}
        return result

    workflow = dbos().DBOS.workflow(name=WORKFLOW)(run)
    return DurableRuns(agents, workflow, table)


def _outside_of_workflow[T](work: Callable[[], T]) -> T:
    """Calls `work` without recording its DBOS calls as steps, whose numbers would change."""
    context = copy_context()
    context.run(import_module("dbos._context")._clear_local_dbos_context)
    return context.run(work)
