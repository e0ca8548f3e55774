"""`StoredLog` stores the log of a durable run in a table, so that another attempt can continue.

The table contains a row for each entry, with the key (run, path, position). A run's attempts are
numbered, and an older attempt stops at its next append. The root run's rows also contain the
session's changes since the previous row.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from datetime import datetime
from threading import Lock
from typing import NamedTuple, Protocol

from .. import serde
from ..errors import WeakIncentivesError
from ..limits import utc_now
from ..runtime.session import Session
from ..runtime.session.snapshots import Changes, SessionSnapshot, parse_changes, types_by_name
from .errors import ChangedRunError
from .logged_run import Began, LoggedEntry, LoggedRun, NestedRun, RunsInside
from .run_log import RunLog
from .suspension import SuspendedRun

__all__ = [
    "LogTable",
    "MemoryLogTable",
    "NewAttempt",
    "Place",
    "Row",
    "StoppedAttempt",
    "StoredLog",
    "apply_changes",
    "check_version",
]

_PLACE = re.compile(r"(\d+/[^/]*)/(\d+):")  # a nested run's place in a path


class StoppedAttempt(BaseException):
    """Stops an attempt because the run was cancelled or a newer attempt has taken over.

    It is not an `Exception`, so that no tool handler can suppress it.
    """

    def __init__(self, run_id: str, *, cancelled: bool) -> None:
        reason = "was cancelled" if cancelled else "continues in a newer attempt"
        super().__init__(f"run {run_id!r} {reason}")
        self.cancelled = cancelled


class Row(NamedTuple):
    """One entry as JSON text; `path` identifies its run and is `""` for the root run."""

    path: str
    position: int
    line: str


class Place(NamedTuple):
    """The place where an attempt stores an entry."""

    run_id: str
    attempt: int
    path: str
    position: int


class NewAttempt(NamedTuple):
    """A new attempt: its number, the start of the first attempt, and all rows so far."""

    number: int
    started: datetime
    rows: Sequence[Row]


class LogTable(Protocol):
    """A table that stores the logs of durable runs. Threads can call it concurrently."""

    def begin(self, run_id: str, version: str) -> NewAttempt:
        """Starts a new attempt, after which older attempts can no longer store rows.

        Raises `ChangedRunError` if another version of the code started the run, and
        `StoppedAttempt` if the run was cancelled.
        """
        ...

    def append(self, run_id: str, attempt: int, rows: Sequence[Row], *, first: bool) -> None:
        """Stores all `rows` or none, replacing their path's rows from the first position on.

        If the `first` rows of a nested run start at position 0, the nested run is starting again,
        so the rows of its own nested runs are removed too. Raises `StoppedAttempt` if the attempt
        must stop.
        """
        ...

    def transact(
        self, name: str, place: Place, perform: Callable[[], bool], append: Callable[[], None]
    ) -> None:
        """Calls `perform` and `append` in one transaction of the application's database.

        If `perform` returns false, its writes are rolled back. Both can be called again until the
        entry is stored at its `place`.
        """
        ...


class MemoryLogTable:
    """A table in memory, for example for tests; `rows` contains the rows of each run."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Row]] = {}
        self._runs: dict[str, tuple[str, int, datetime]] = {}
        self._lock = Lock()

    def begin(self, run_id: str, version: str) -> NewAttempt:
        """Implements `LogTable.begin`."""
        with self._lock:
            known, number, started = self._runs.get(run_id, (version, 0, utc_now()))
            check_version(run_id, known, version)
            self._runs[run_id] = version, number + 1, started
            return NewAttempt(number + 1, started, tuple(self.rows.setdefault(run_id, [])))

    def append(self, run_id: str, attempt: int, rows: Sequence[Row], *, first: bool) -> None:
        """Implements `LogTable.append`."""
        with self._lock:
            if self._runs[run_id][1] != attempt:
                raise StoppedAttempt(run_id, cancelled=False)
            path, start, _ = rows[0]
            kept = [
                row
                for row in self.rows[run_id]
                if not (row.path == path and row.position >= start)
                and not (first and path and start == 0 and row.path.startswith(path))
            ]
            self.rows[run_id] = [*kept, *rows]

    def transact(
        self, name: str, place: Place, perform: Callable[[], bool], append: Callable[[], None]
    ) -> None:
        """Implements `LogTable.transact`, without a database."""
        perform()
        append()


def check_version(run_id: str, began: str, version: str) -> None:
    """Raises `ChangedRunError` if a run was started by another version."""
    if began != version:
        raise ChangedRunError(
            f"cannot continue run {run_id!r} because it started with version {began} of its "
            f"agent, and this is {version}; finish it with the code that started it"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """The start of a nested run."""

    tool: str
    arguments: str
    ns: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """An entry in a run's log; `state` contains the session's changes since the previous entry.

    `head` is set for a nested run.
    """

    entry: LoggedEntry
    state: Changes = field(default_factory=dict[str, dict[str, serde.Json]])
    head: _Head | None = None


type _Unstored = tuple[Sequence[Row], bool]

# The entries of runs nested in a transactional call. They are stored only when the call ends:
# nothing is committed before then, and the run's row, which another attempt needs, stays unlocked
# until then.
_unstored: ContextVar[list[_Unstored] | None] = ContextVar("entries of a transaction", default=None)


class StoredLog:
    """The log sink for one attempt at a run; stores entries in a table."""

    def __init__(
        self,
        table: LogTable,
        run_id: str,
        version: str,
        session: Session,
        types: Collection[type[object]],
    ) -> None:
        self.run_id = run_id
        self._table, self._session = table, session
        self.types: set[type[object]] = {*types, SuspendedRun}
        self._attempt = table.begin(run_id, version)
        self._before: SessionSnapshot = session.snapshot()
        self.started = self._attempt.started

    def load(self, record: LoggedRun, /) -> LoggedRun:
        """Implements `LogSink.load`."""
        lines = _parsed(self._attempt.rows)
        self.types |= self._session.snapshot().slices.keys()  # before a handler adds other types
        for row, line in lines:
            if not row.path:
                apply_changes(self._session, line.state, self.types)
        self._before = self._session.snapshot()
        return _with_rows(record, "", lines)

    def append(self, log: RunLog, entries: Sequence[LoggedEntry], /) -> None:
        """Implements `LogSink.append`; raises `SerdeError` for state that JSON cannot represent."""
        head: _Head | None = None
        state: Changes = {}
        now = None
        if log.caller is not None:
            call = log.caller.call
            head = _Head(tool=call.name, arguments=call.arguments, ns=log.ns, key=log.key)
        else:
            now = self._session.snapshot()
            state = now.since(self._before)
            for slices in state.values():
                types_by_name(slices, self.types)  # raises for an unknown type
        rows: list[Row] = []
        for position, entry in enumerate(entries, log.stored):
            line = _Line(entry=entry, state=state if position == log.stored else {}, head=head)
            rows.append(Row(log.path, position, serde.dump_json(line)))
        if _unstored.get() is not None and any(isinstance(entry, Began) for entry in entries):
            raise WeakIncentivesError(
                "a tool that must not run twice cannot run inside a transactional call, which may "
                "be retried; change the effect of the calling tool"
            )
        self._store(rows, first=log.stored == len(log.record.entries))
        if now is not None:
            self._before = now

    def unstored_state(self) -> Changes:
        """Returns the session's changes since the last row, such as those at the end of a run."""
        return self._session.snapshot().since(self._before)

    def _store(self, rows: Sequence[Row], *, first: bool) -> None:
        if (unstored := _unstored.get()) is not None:
            unstored.append((rows, first))
        else:
            self._table.append(self.run_id, self._attempt.number, rows, first=first)

    def transact(self, log: RunLog, name: str, perform: Callable[[], bool], /) -> None:
        """Implements `LogSink.transact`."""
        before, size, unstored = self._before, log.stored, list[_Unstored]()

        def hold() -> bool:
            unstored.clear()
            token = _unstored.set(unstored)
            try:
                return perform()
            finally:
                _unstored.reset(token)

        def append() -> None:
            self._before, log.stored = before, size
            for rows, first in unstored:
                self._store(rows, first=first)
            log.store()

        place = Place(self.run_id, self._attempt.number, log.path, size)
        self._table.transact(name, place, hold, append)


def read_rows(rows: Iterable[Row], record: LoggedRun | None = None) -> LoggedRun:
    """Returns `record` with the entries of stored rows added, for example for `wink runs show`."""
    return _with_rows(record or LoggedRun(), "", _parsed(rows))


def _parsed(rows: Iterable[Row]) -> list[tuple[Row, _Line]]:
    return [(row, serde.parse_json(_Line, row.line)) for row in rows]


def apply_changes(session: Session, changes: Changes, types: Collection[type[object]]) -> None:
    """Applies state changes, such as those of a line, to the session."""
    for change, kind, values in parse_changes(changes, types):
        if change == "set":
            session[kind].seed(*values)
        else:
            for value in values:
                session[kind].append(value)


def _with_rows(log: LoggedRun, path: str, lines: Iterable[tuple[Row, _Line]]) -> LoggedRun:
    """Returns the log with later entries added, including those of nested runs."""
    own: dict[int, LoggedEntry] = {}
    deeper: dict[str, dict[int, list[tuple[Row, _Line]]]] = {}
    for row, line in lines:
        if row.path == path:
            own[row.position] = line.entry
        elif place := _PLACE.match(row.path, len(path)):
            key, number = place.groups()
            deeper.setdefault(key, {}).setdefault(int(number), []).append((row, line))
    entries = log.entries[: min(own, default=len(log.entries))]
    inside = dict(log.inside)
    for key, by_number in deeper.items():
        before = inside.get(key)  # from before the suspension
        runs = [*before.runs] if before else []
        head: _Head | None = None
        for number, rows in sorted(by_number.items()):
            run_path = f"{path}{key}/{number}:"
            head = next((line.head for row, line in rows if row.path == run_path), None) or head
            # A nested run that started at the same time may not have a row yet.
            while head is not None and number > len(runs):
                runs.append(NestedRun(ns=head.ns, key=head.key, log=LoggedRun()))
            if number <= len(runs):
                known = runs[number - 1]
                runs[number - 1] = replace(known, log=_with_rows(known.log, run_path, rows))
        if head is not None:
            inside[key] = RunsInside(tool=head.tool, arguments=head.arguments, runs=tuple(runs))
        elif before is not None:
            inside[key] = replace(before, runs=tuple(runs))
    return replace(log, entries=(*entries, *[own[n] for n in sorted(own)]), inside=inside)
