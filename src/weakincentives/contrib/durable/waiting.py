"""The durable runs that wait for people: which they are, and decisions on their calls.

A run that waits is a row of DBOS on a queue that nobody serves, so it holds no worker. A decision
puts the rest of the run on the queue of the run. This needs the database alone, and no prompt.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from ...errors import WeakIncentivesError, missing_extra
from ...evaluation.approval import Decision, Preview
from ...evaluation.suspension import Suspension, previews_of_0_2
from .execution import to_resumed
from .outcomes import Record
from .sqlite import SqliteConnection

__all__ = [
    "WORKFLOW",
    "WaitingRun",
    "WaitingRuns",
    "WaitingRunsError",
    "dbos",
    "keep_waiting",
    "last_status",
    "open_waiting_runs",
]

# These names stand in databases, so they stay.
WORKFLOW = "weakincentives.run"
_WAITING = "weakincentives.waiting"  # the queue of rows that wait, and their workflow
_ROW = ":waiting"

# DBOS's own queue, on which it puts runs that it recovers; every process serves it.
_ANY_WORKER = "_dbos_internal_queue"

_LATER = 3600.0  # seconds after which a part starts whose cancellation a crash has cut

# Any below: DBOS is an extra that type checkers need not find.


def dbos() -> Any:
    """Imports the package, which takes a second."""
    try:
        return import_module("dbos")
    except ModuleNotFoundError as error:
        if error.name != "dbos":
            raise
        raise missing_extra("A durable run", "DBOS", "durable") from error


class WaitingRunsError(WeakIncentivesError):
    """The database of durable runs cannot be read."""


@contextmanager
def _database_errors() -> Generator[None]:
    """Raises SQLAlchemy's errors as `WaitingRunsError`."""
    try:
        yield
    except import_module("sqlalchemy.exc").SQLAlchemyError as error:
        reason = str(getattr(error, "orig", error)).strip().partition("\n")[0]
        raise WaitingRunsError(
            f"the database of durable runs cannot be read: {reason}; check its URL, that a "
            "worker has opened it, and that its workers have the same version of DBOS"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRun:
    """A durable run that waits for decisions on the calls in `pending`.

    `wait_id` names what was shown: a run that waits again has another one. The `suspension` is
    `None` for a run of 0.2, which its own code finishes.
    """

    run_id: str
    wait_id: str
    agent: str
    pending: tuple[Preview, ...]
    since: datetime
    suspension: Suspension | None = field(repr=False)


class WaitingRuns:
    """The runs of one database that wait for people; `engine` is `DBOS` or a `DBOSClient`."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def waiting(self) -> list[WaitingRun]:
        """Returns the runs that wait, the oldest first."""
        rows = self._list(queue_name=_WAITING, status="ENQUEUED")
        waits = {row.workflow_id.removesuffix(_ROW): row for row in rows}
        decided = {row.workflow_id for row in self._list(workflow_ids=[*waits])} if waits else set()
        return [
            _waiting_run(wait_id, waits[wait_id]) for wait_id in waits if wait_id not in decided
        ]

    def decide(self, wait_id: str, decisions: Mapping[str, Decision]) -> None:
        """Decides on calls of a run that waits, by call id; the run goes on in a worker.

        Calls without a decision wait on: the run goes on to the first of them, waits again and
        keeps the decisions on later ones. Raises `ValueError`, and changes nothing, if the run does
        not wait, if somebody has decided before, and for calls that do not wait; raises `TypeError`
        for what is no decision.
        """
        self._start_rest(wait_id, decisions)

    def cancel(self, wait_id: str) -> None:
        """Ends a run that waits as DBOS ends one that is cancelled; raises as `decide` does."""
        self._start_rest(wait_id, {}, delay_seconds=_LATER)
        self._engine.cancel_workflow(wait_id)

    def _start_rest(
        self, wait_id: str, decisions: Mapping[str, Decision], **more_options: float
    ) -> None:
        rows = self._list(workflow_ids=[wait_id + _ROW], load_input=True)
        row = next(iter(rows), None)
        if row is None:
            raise ValueError(f"no run has waited as {wait_id!r}; pass WaitingRun.wait_id")
        agent, run_input, waiting = row.input["args"]
        rest = to_resumed(run_input, waiting, decisions)
        options = {
            "workflow_name": WORKFLOW,
            "workflow_id": wait_id,
            "workflow_id_reuse_policy": "reject",  # so one decision starts the rest
            "queue_name": run_input.get("queue") or _ANY_WORKER,
            "app_version": row.app_version,
            "application_name": row.application_name,
            **more_options,
        }
        enqueue = getattr(self._engine, "enqueue_workflow_with_options", None)
        try:
            (enqueue or self._engine.enqueue)(options, agent, rest)
        except dbos().error.DBOSWorkflowIDInUseError as error:
            raise ValueError(
                f"somebody has decided on {wait_id!r} before; call waiting() again, "
                "since the run may wait for other calls by now"
            ) from error
        self._engine.cancel_workflow(wait_id + _ROW)  # one that a crash leaves is not listed

    def _list(self, **options: Any) -> list[Any]:
        with _database_errors():
            rows: list[Any] = self._engine.list_workflows(load_output=False, **options)
            return rows


def _waiting_run(wait_id: str, row: Any) -> WaitingRun:
    agent, _, waiting = row.input["args"]
    text = waiting["suspension"]
    previews = previews_of_0_2(text)
    suspension = Suspension.from_json(text) if previews is None else None
    return WaitingRun(
        run_id=waiting["run_id"],
        wait_id=wait_id,
        agent=agent,
        pending=suspension.pending if suspension else previews or (),
        since=datetime.fromtimestamp(row.created_at / 1000, UTC),
        suspension=suspension,
    )


def _wait_id(run_id: str, waits: int) -> str:
    return f"{run_id}:wait-{waits}"


def last_status(engine: Any, run_id: str) -> Any:
    """Returns DBOS's status of the last part of a run; `None` if it waits for people.

    It agrees with `WaitingRuns.waiting`: a part stores that the run waits before the part ends.
    """
    status, waits = engine.get_workflow_status(run_id), 1
    while status and engine.get_workflow_status(_wait_id(run_id, waits) + _ROW):
        status, waits = engine.get_workflow_status(_wait_id(run_id, waits)), waits + 1
    return status


def keep_waiting(engine: Any, agent: str, run_input: Record, waiting: Record) -> str:
    """Stores that a run waits, from within its workflow; returns the id of its rest.

    `waiting` is the result of `execute_run`.
    """
    wait_id = _wait_id(waiting["run_id"], waiting["waits"])
    options = {
        "workflow_name": _WAITING,
        "workflow_id": wait_id + _ROW,
        "queue_name": _WAITING,
        "app_version": engine.application_version,
    }
    engine.enqueue_workflow_with_options(options, agent, run_input, waiting)
    return wait_id


@contextmanager
def open_waiting_runs(database_url: str) -> Generator[WaitingRuns]:
    """Gives access to the suspended runs of a database, from a process that runs none.

    It or its first method raises `WaitingRunsError` for a database that does not exist or that no
    worker has opened yet; it creates none.
    """
    package, sqlalchemy, engine = dbos(), import_module("sqlalchemy"), None
    serializer = package.DBOSPortableJSONSerializer()
    if database_url.startswith("sqlite"):
        path = sqlalchemy.make_url(database_url).database or ":memory:"
        if not Path(path).is_file():
            raise WaitingRunsError(
                f"there is no database file {path!r}; start a worker first, which creates it, or "
                "correct the URL"
            )
        engine = sqlalchemy.create_engine(database_url, connect_args={"factory": SqliteConnection})
    with _database_errors():
        client = package.DBOSClient(
            system_database_url=database_url, system_database_engine=engine, serializer=serializer
        )
    try:
        yield WaitingRuns(client)
    finally:
        client.destroy()
        if engine is not None:
            engine.dispose()
