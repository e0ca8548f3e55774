"""Lists, cancels and deletes the durable runs in a database, and decides on suspended ones.

A suspended run is a DBOS row on a queue that no worker serves, so it does not occupy a worker. A
decision puts the rest of the run on the run's own queue. All of this requires only the database,
not the prompt.
"""

import logging
import re
from collections import defaultdict
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import batched, chain, count, islice
from typing import Literal, NamedTuple

from ...errors import SerdeError
from ...evaluation.approval import Decision, Preview
from ...evaluation.logged_run import LoggedRun
from ...evaluation.stored_log import Row, read_rows
from ...evaluation.suspension import Suspension, previews_of_0_2
from .database import (
    Extra,
    WaitingRunsError,
    check_database_file,
    database_errors,
    dbos,
    make_engine,
    parse_url,
)
from .execution import Record, rest_of, to_resumed
from .sql_log_table import SqlLogTable

__all__ = [
    "ANY_WORKER",
    "UNFINISHED",
    "WORKFLOW",
    "RunStatus",
    "StoredRun",
    "WaitingRun",
    "WaitingRuns",
    "WaitingRunsError",
    "check_agent",
    "check_run_id",
    "create_tables",
    "keep_waiting",
    "last_status",
    "open_waiting_runs",
]

_log = logging.getLogger(__name__)

# These names are stored in databases, so they must not change.
WORKFLOW = "weakincentives.run"
_WAITING = "weakincentives.waiting"  # the queue and the workflow of suspended runs
_ROW = ":waiting"

ANY_WORKER = "_dbos_internal_queue"
"""DBOS's own queue for recovered runs; every process serves it."""

UNFINISHED = ("PENDING", "ENQUEUED", "DELAYED")
"""DBOS's states for a part that is running or queued."""

_PART = re.compile(r".+:wait-\d+", re.DOTALL)

_PAGE = 100  # the number of runs that are read or deleted together

_LATER = 3600.0  # seconds until a part starts if a crash interrupted its cancellation


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRun:
    """A suspended run that requires decisions on the calls in `pending`.

    `wait_id` identifies this suspension; if the run is suspended again, it gets another one.
    `suspension` is `None` for a run that this version cannot read. For example, version 0.2 must
    finish its own runs.
    """

    run_id: str
    wait_id: str
    agent: str
    pending: tuple[Preview, ...]
    since: datetime
    suspension: Suspension | None = field(repr=False)


type RunStatus = Literal["running", "waiting", "ended", "failed", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """A durable run in the database, in any state.

    `started` is the time when the run was started or queued. `attempts` is the number of times that
    a worker took it up, or `None` if the logs are in another database. `pending` is the number of
    calls that require a decision.
    """

    run_id: str
    agent: str
    status: RunStatus
    started: datetime
    attempts: int | None
    pending: int


class WaitingRuns:
    """Manages the runs in one database, including suspended runs.

    `engine` is `DBOS` or a `DBOSClient`, and `table` contains the runs' logs.
    """

    def __init__(self, engine: Extra, table: SqlLogTable | None = None) -> None:
        self._engine = engine
        self.table = SqlLogTable() if table is None else table

    def waiting(self) -> list[WaitingRun]:
        """Returns the suspended runs, oldest first."""
        rows = self._list(queue_name=_WAITING, status="ENQUEUED", load_input=True)
        waits = {row_id.removesuffix(_ROW): row for row_id, row in rows.items()}
        decided = self._rows([*waits])
        return [
            _waiting_run(wait_id, row) for wait_id, row in waits.items() if wait_id not in decided
        ]

    def decide(self, wait_id: str, decisions: Mapping[str, Decision]) -> None:
        """Decides on pending calls of a suspended run, by call id; a worker then resumes the run.

        Calls without a decision stay pending: the run continues up to the first of them, is
        suspended again, and keeps the decisions on later calls. Raises `ValueError` and changes
        nothing if the run is not suspended, if a decision was already made, or if a call is not
        pending. Raises `TypeError` for a value that is not a decision.
        """
        row = self._waiting(wait_id)
        _, run_input, waiting = row.input["args"]
        try:
            rest = to_resumed(run_input, waiting, decisions)
        except SerdeError as error:
            raise ValueError(
                f"cannot decide on {wait_id!r} because this version cannot read the run "
                f"({error}); decide with the version that runs it"
            ) from error
        self._start_rest(wait_id, row, rest)

    def cancel(self, run_id: str, /) -> None:
        """Cancels a run before its next request or tool call, or while it is suspended.

        After that, `DurableRun.result` raises DBOS's error. A run that has already ended is not
        changed. If you pass a `wait_id`, the run is cancelled only if it is still in that
        suspension. Raises `ValueError` for an unknown id or, like `decide`, if someone decides on
        the run at the same time.
        """
        if self._rows([waiting_row(run_id)]):
            self._cancel_waiting(run_id)
            return
        for part, row in parts_of(self._engine, run_id):
            if part == run_id:
                _check_known("cancel", run_id, row)
            if row is None:
                self._cancel_waiting(part)
            elif row.status not in ("SUCCESS", "ERROR"):
                with database_errors():
                    self.table.cancel(part)
                    self._engine.cancel_workflow(part)

    def _cancel_waiting(self, wait_id: str) -> None:
        row = self._waiting(wait_id)
        _, run_input, waiting = row.input["args"]
        self._start_rest(wait_id, row, rest_of(run_input, waiting, {}), delay_seconds=_LATER)
        self._engine.cancel_workflow(wait_id)

    def delete(self, run_ids: Sequence[str]) -> None:
        """Deletes runs that have ended, including their logs.

        Raises `ValueError`, and deletes nothing, if one of them is unknown or has not ended.
        """
        parts = self._parts(run_ids)
        self._check_whole("delete", *run_ids)
        for run_id, own in parts.items():
            _check_known("delete", run_id, own[0].row)
            if _end(own) is None:
                raise ValueError(
                    f"cannot delete run {run_id!r} because it has not ended; wait for its end, or "
                    "cancel it first"
                )
        self._delete(parts)

    def _check_whole(self, action: str, *run_ids: str) -> None:
        """Raises `ValueError` if an id belongs to a later part of a run."""
        waits = self._rows([*map(waiting_row, run_ids)])
        for part in [run_id for run_id in run_ids if waiting_row(run_id) in waits]:
            owner = part.rpartition(":")[0]
            raise ValueError(
                f"cannot {action} {part!r} because it is a part of run {owner!r}; {action} that run"
            )

    def delete_ended(self, before: datetime) -> int:
        """Deletes the runs that ended before `before`, with their logs; returns their number."""
        found, before = dict[str, list[_Part]](), before.astimezone(UTC)
        for run_ids in self._pages(end_time=before.isoformat()):
            for run_id, own in self._parts(run_ids).items():
                end = _end(own)
                if end is not None and end < before:
                    found[run_id] = own
        for page in batched(found.items(), _PAGE):
            self._delete(dict(page))
        return len(found)

    def _delete(self, parts: Mapping[str, Sequence["_Part"]]) -> None:
        waits = [waiting_row(part.id) for own in parts.values() for part in own[1:]]
        ids = [part.id for own in parts.values() for part in own]
        with database_errors():
            self.table.delete(ids)
            self._engine.delete_workflows([*ids, *waits])

    def list_runs(
        self,
        *,
        run_ids: Sequence[str] | None = None,
        status: RunStatus | None = None,
        limit: int | None = 100,
    ) -> list[StoredRun]:
        """Returns the runs in the database, or those with the `run_ids`, newest first."""
        if run_ids is not None and not run_ids:
            return []  # DBOS would list all runs for an empty list
        ids = None if run_ids is None else [*run_ids]
        pages = self._pages(sort_desc=True, workflow_ids=ids)
        return [*islice(chain.from_iterable(self._stored(page, status) for page in pages), limit)]

    def log(self, run_id: str) -> LoggedRun:
        """Returns a run's log so far, from its stored entries.

        `weakincentives.inspection.logged_entries.records_of` converts it to events. Raises
        `ValueError` for an unknown id or a part's id.
        """
        self._check_whole("show", run_id)
        log = LoggedRun()
        for part, row in parts_of(self._engine, run_id):
            if part == run_id:
                _check_known("show", run_id, row)
            else:
                wait = self._rows([waiting_row(part)], load_input=True)[waiting_row(part)]
                log = Suspension.from_json(wait.input["args"][2]["suspension"]).log
            with database_errors():
                log = read_rows(self.table.rows(part), log)
        return log

    def rows(self, run_id: str) -> list[Row]:
        """Returns the rows of a run's log so far, without the decisions on which it waited."""
        found, numbers = dict[tuple[str, int], Row](), defaultdict[str, Iterator[int]](count)
        with database_errors():
            for part, _ in parts_of(self._engine, run_id):
                found |= {(row.path, row.position): row for row in self.table.rows(part)}
        return [
            row._replace(position=next(numbers[path])) for (path, _), row in sorted(found.items())
        ]

    def _stored(self, run_ids: Sequence[str], status: RunStatus | None) -> list[StoredRun]:
        parts = self._parts(run_ids)
        lasts = {run_id: own[-1] for run_id, own in parts.items()}
        ids = [part.id for part in lasts.values() if part.row and part.row.status == "SUCCESS"]
        # Only the output distinguishes "ended" from "failed".
        outputs = self._rows(ids if status in (None, "ended", "failed") else [], load_output=True)
        states: dict[str, RunStatus] = {
            run_id: _status(outputs.get(part.id, part.row)) for run_id, part in lasts.items()
        }
        chosen = [run_id for run_id in run_ids if status in (None, states[run_id])]
        waits = [waiting_row(lasts[run_id].id) for run_id in chosen if states[run_id] == "waiting"]
        rows = self._rows([*chosen, *waits], load_input=True)
        ids = [part.id for run_id in chosen for part in parts[run_id]]
        with database_errors():
            known = self.table.attempts(ids) if self.table.exists() else None
        runs: list[StoredRun] = []
        for run_id in chosen:
            row, wait_id, state = rows.get(run_id), lasts[run_id].id, states[run_id]
            wait = rows.get(waiting_row(wait_id))
            if row is None or (wait is None and state == "waiting"):
                continue  # the run was deleted in the meantime
            run = StoredRun(
                run_id=run_id,
                agent=row.input["args"][0],
                status=state,
                started=_time(row.created_at),
                attempts=None if known is None else sum(known[part.id] for part in parts[run_id]),
                pending=len(_waiting_run(wait_id, wait).pending) if wait else 0,
            )
            runs.append(run)
        return runs

    def _pages(self, **options: Extra) -> Iterator[list[str]]:
        """Yields pages of run ids, without the ids of later parts."""
        seen, offset = set[str](), 0
        while rows := self._list(name=WORKFLOW, limit=_PAGE, offset=offset, **options):
            offset += len(rows)  # runs that start in the meantime shift the pages
            ids = [part for part in rows if part not in seen]
            seen.update(ids)
            waits = self._rows([waiting_row(part) for part in ids if _PART.fullmatch(part)])
            yield [run_id for run_id in ids if waiting_row(run_id) not in waits]

    def _parts(self, run_ids: Collection[str]) -> dict[str, list["_Part"]]:
        """Returns each run's parts."""
        parts: dict[str, list[_Part]] = {run_id: [] for run_id in run_ids}
        for part_by_run in _part_by_run(self._engine, run_ids):
            for run_id, part in part_by_run.items():
                parts[run_id].append(part)
        return parts

    def _waiting(self, wait_id: str) -> Extra:
        """Returns the DBOS row of a run that was suspended."""
        row = self._rows([waiting_row(wait_id)], load_input=True).get(waiting_row(wait_id))
        if row is None:
            raise ValueError(f"no run was suspended as {wait_id!r}; pass WaitingRun.wait_id")
        return row

    def _start_rest(self, wait_id: str, row: Extra, rest: Record, **more_options: float) -> None:
        agent, *_ = row.input["args"]
        options = {
            "workflow_name": WORKFLOW,
            "workflow_id": wait_id,
            "workflow_id_reuse_policy": "reject",  # ensures that the rest is started only once
            "queue_name": rest.get("queue") or ANY_WORKER,
            "app_version": row.app_version,
            "application_name": row.application_name,
            **more_options,
        }
        enqueue = getattr(self._engine, "enqueue_workflow_with_options", None)
        try:
            (enqueue or self._engine.enqueue)(options, agent, rest)
        except dbos().error.DBOSWorkflowIDInUseError as error:
            raise ValueError(
                f"cannot decide on {wait_id!r} because it has already been decided; call "
                "waiting() again, because other calls of the run may be pending now"
            ) from error
        self._engine.cancel_workflow(wait_id + _ROW)  # unlisted even if a crash prevents this

    def _list(self, **options: Extra) -> Mapping[str, Extra]:
        return _list(self._engine, **options)

    def _rows(self, ids: Sequence[str], **options: bool) -> Mapping[str, Extra]:
        # An empty list would return all rows.
        return self._list(workflow_ids=[*ids], **options) if ids else {}


def _list(engine: Extra, **options: Extra) -> Mapping[str, Extra]:
    """Returns DBOS's rows by id."""
    with database_errors():
        rows = engine.list_workflows(**{"load_input": False, "load_output": False, **options})
    return {row.workflow_id: row for row in rows}


def _check_known(action: str, run_id: str, row: Extra) -> None:
    """Raises `ValueError` unless this row is a run; the application may have other workflows."""
    if row is None or row.name != WORKFLOW:
        raise ValueError(
            f"cannot {action} run {run_id!r} because the database has no run with this id; check "
            "the id and the database"
        )


def _status(row: Extra) -> RunStatus:
    """Returns a run's status from the DBOS row of its last part."""
    if row is None:
        return "waiting"
    if row.status in UNFINISHED:
        return "running"
    if row.status == "SUCCESS":
        return "failed" if "error" in (row.output or {}) else "ended"
    return "cancelled" if row.status == "CANCELLED" else "failed"


def _end(parts: Sequence["_Part"]) -> datetime | None:
    """Returns the time when the last of these parts ended, or `None` if one is unfinished."""
    if any(part.row is None or part.row.status in UNFINISHED for part in parts):
        return None
    return max(_time(part.row.completed_at or part.row.updated_at) for part in parts)


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _waiting_run(wait_id: str, row: Extra) -> WaitingRun:
    agent, _, waiting = row.input["args"]
    text = waiting["suspension"]
    previews = suspension = None
    try:
        previews = previews_of_0_2(text)
        suspension = Suspension.from_json(text) if previews is None else None
    except SerdeError:
        _log.warning("Cannot read the suspended run %r with this version", waiting["run_id"])
    return WaitingRun(
        run_id=waiting["run_id"],
        wait_id=wait_id,
        agent=agent,
        pending=suspension.pending if suspension else previews or (),
        since=_time(row.created_at),
        suspension=suspension,
    )


def waiting_row(wait_id: str) -> str:
    """Returns the row id for a suspended run."""
    return wait_id + _ROW


def _wait_id(run_id: str, waits: int) -> str:
    return f"{run_id}:wait-{waits}"


def last_status(engine: Extra, run_id: str) -> Extra:
    """Returns DBOS's status for a run's last part, or `None` if the run is suspended.

    The result agrees with `WaitingRuns.waiting`, because a part stores the suspension before it
    ends. Raises `ValueError` if the run was deleted.
    """
    parts = [*parts_of(engine, run_id)]
    _check_known("find", run_id, parts[0].row)
    return parts[-1].row


def check_agent(engine: Extra, run_id: str, agent: str) -> None:
    """Raises `ValueError` for another agent's run or an unknown run."""
    row: Extra = _list(engine, workflow_ids=[run_id], load_input=True).get(run_id)
    _check_known("find", run_id, row)
    if (other := row.input["args"][0]) != agent:
        raise ValueError(
            f"run {run_id!r} belongs to agent {other!r}, not to {agent!r}; pass its agent, or "
            "another run_id"
        )


def check_run_id(run_id: str) -> None:
    """Raises `ValueError` for a reserved id or an id with unprintable characters."""
    problem = ""
    if _PART.fullmatch(run_id.removesuffix(_ROW)):
        problem = "such ids belong to suspended runs"
    elif not run_id.isprintable():
        problem = "the id has unprintable characters"
    if problem:
        raise ValueError(f"cannot start run {run_id!r} because {problem}; choose another id")


class _Part(NamedTuple):
    """A part of a run: its id, which is the run id or a `wait_id`, and its DBOS row, if any."""

    id: str
    row: Extra


def parts_of(engine: Extra, run_id: str) -> Iterator[_Part]:
    """Yields a run's parts; each part is looked up only when it is requested."""
    return (part_by_run[run_id] for part_by_run in _part_by_run(engine, [run_id]))


def _part_by_run(engine: Extra, run_ids: Collection[str]) -> Iterator[Mapping[str, _Part]]:
    """Yields the runs' first parts, by run id, then their second parts, and so on.

    Reads each part before it looks for the next one. A part stores the suspension before it ends,
    so if a part has ended and there is no next part, the run has ended.
    """
    ids, waits = {run_id: run_id for run_id in run_ids}, 0
    while ids:
        rows = _list(engine, workflow_ids=[*ids.values()])
        yield {run_id: _Part(part, rows.get(part)) for run_id, part in ids.items()}
        waits += 1
        after = {run_id: _wait_id(run_id, waits) for run_id in ids}
        stored = _list(engine, workflow_ids=[waiting_row(part) for part in after.values()])
        ids = {run_id: part for run_id, part in after.items() if waiting_row(part) in stored}


def keep_waiting(engine: Extra, agent: str, run_input: Record, waiting: Record) -> str:
    """Stores a run's suspension, from within its workflow; returns the id of its next part.

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
def open_waiting_runs(database_url: str, *, log_url: str | None = None) -> Generator[WaitingRuns]:
    """Opens the runs in a database from a process that does not execute them.

    If tools are transactional, pass the URL of the application's database as `log_url`, because it
    contains the runs' logs, which `cancel`, `delete` and `delete_ended` change. Raises
    `WaitingRunsError`, here or from the first method call, if the database does not exist or no
    worker has opened it yet. Never creates a database.
    """
    package, engine, table = dbos(), None, SqlLogTable()
    url = parse_url(database_url)
    for each in (url, parse_url(log_url or database_url)):
        check_database_file(each)
    with ExitStack() as stack:
        if url.get_backend_name() == "sqlite":
            engine = make_engine(url)
            stack.callback(engine.dispose)
        table.open(log_url or database_url, create=False)
        stack.callback(table.close)
        with database_errors():
            client = package.DBOSClient(
                system_database_url=database_url,
                system_database_engine=engine,
                serializer=package.DBOSPortableJSONSerializer(),
            )
            stack.callback(client.destroy)
            if log_url is not None:
                table.exists()  # raises now any error that a later use would retry
        yield WaitingRuns(client, table)


def create_tables(database_url: str, *, log_url: str | None = None) -> None:
    """Creates the tables for durable runs, or migrates them to the installed DBOS version.

    Use a database role that can create tables; the workers' role then only needs to read and write
    rows. If tools are transactional, pass the URL of the application's database as `log_url`.
    Raises `WaitingRunsError` if the tables cannot be created.
    """
    package, table = dbos(), SqlLogTable()
    parse_url(database_url)
    table.open(log_url or database_url)
    problem = "the tables of durable runs cannot be created"
    with database_errors(problem, "check the URL, and that its role may create tables"):
        try:
            package.DBOS.migrate(database_url)
            table.create()
        except package.error.DBOSException as error:
            raise WaitingRunsError(f"{problem}: {error}") from error
        finally:
            table.close()
