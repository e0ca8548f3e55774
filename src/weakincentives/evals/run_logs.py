"""The logs of an experiment's runs: one file of JSON Lines for each run.

A line is the run's description, an entry of its log with the session's and the files' changes, its
end, or its scores. A run without an end continues where its log stops. An incomplete line at the
end of a file, left by a process that was killed, is removed.
"""

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Self

from .. import serde
from ..errors import SerdeError
from ..evaluation.errors import PromptEvaluationError
from ..evaluation.logged_run import LoggedEntry, LoggedRun
from ..evaluation.run_log import RunLog
from ..evaluation.stored_log import NewAttempt, Place, Row, StoredLog, read_rows
from ..filesystem.undo import FileChange, VersionedFilesystem
from ..limits import RunUsage, utc_now
from .pacing import OVER_BUDGET

# missing on Windows, where two experiments must not use one folder at the same time
fcntl: Any = import_module("fcntl") if find_spec("fcntl") else None  # Any: as typeshed has no stub

__all__ = [
    "RUN_FAILURES",
    "BusyRun",
    "Line",
    "RunFile",
    "RunSink",
    "StoredEnd",
    "before_failure",
    "is_final",
    "stored_end",
]

RUN_FAILURES = frozenset({"output", "truncated"})
"""The codes of the model's own failures among the errors of requests and responses."""

type Line = dict[str, Any]  # Any: JSON values

_TAIL = 8_192  # bytes; the end and the scores of most runs are shorter
_FORMAT = 1
_ROOT = '""'  # the path of the run itself, as JSON


class BusyRun(Exception):
    """Another process is performing this run."""


@dataclass(frozen=True, slots=True)
class StoredEnd:
    """How a stored run ended, and its scores by the key of their evaluator."""

    ended: Line
    scores: Mapping[str, Line]


def stored_end(path: str) -> StoredEnd | None:
    """Returns how a run ended, from the last lines of its file; `None` if it has not ended."""
    with suppress(OSError), open(path, "rb", buffering=0) as file:  # noqa: PTH123 - of a `str`
        size, length = file.seek(0, os.SEEK_END), _TAIL
        while True:
            file.seek(max(size - length, 0))
            has_all = length >= size
            end = _end_in(file.read(), first_is_cut=not has_all)
            if end is not None or has_all:
                return end
            length *= 16
    return None


def _end_in(data: bytes, *, first_is_cut: bool) -> StoredEnd | None:
    lines = data.split(b"\n")
    ended: Line | None = None
    scores: dict[str, Line] = {}
    for line in lines[first_is_cut:]:
        if line.startswith((b'{"ended"', b'{"scores"')):
            with suppress(ValueError, LookupError, TypeError, AttributeError):  # a damaged line
                value: Line = json.loads(line)
                if (end := value.get("ended")) is not None:
                    usage = serde.parse(RunUsage, end["usage"])
                    known = {name: end[name] for name in ("outcome", "error", "seconds")}
                    ended = {**known, "usage": usage}
                found: dict[str, Line] = value.get("scores", {})
                scores |= {
                    key: one for key, one in found.items() if isinstance(one["values"], dict)
                }
    return None if ended is None else StoredEnd(ended, scores)


@dataclass(slots=True)
class RunFile:
    """The file of one run, open for one attempt to perform it; it is the run's `LogTable`.

    `description` is the first line. After `open`, `rows` and `changes` contain what earlier
    attempts stored. For a run that has ended, `ended` says how, and `left` has its text and its
    last changes of the session. `files` is the run's filesystem, whose changes are stored with each
    entry.
    """

    path: str
    description: Line
    rows: list[Row] = field(default_factory=list[Row])
    changes: list[Line] = field(default_factory=list[Line])
    left: Line = field(default_factory=dict[str, Any])
    ended: Line | None = None
    files: VersionedFilesystem[Any] | None = None  # Any: entries of any filesystem
    _descriptor: int = -1
    _unwritten: str = ""  # written together with whatever comes next
    _version: Any = None  # Any: the filesystem's version at the last entry

    @property
    def is_open(self) -> bool:
        """Whether the file is open for an attempt."""
        return self._descriptor >= 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor >= 0:
            try:
                self.write()
            finally:  # even if the disk is full; an open file would stay locked
                os.close(self._descriptor)
                self._descriptor = -1

    def open(self) -> Self:
        """Opens and locks the file, and reads what is in it; raises `BusyRun` if it is locked."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        self._descriptor = os.open(self.path, flags | getattr(os, "O_BINARY", 0), 0o666)
        try:
            if fcntl is not None:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read()
        except BaseException as error:
            os.close(self._descriptor)
            self._descriptor = -1
            if isinstance(error, BlockingIOError):
                raise BusyRun(self.path) from None
            raise
        return self

    @classmethod
    def log(cls, path: Path) -> LoggedRun:
        """Returns the log in a file, which need not have an end and is not changed.

        Entries after a line that cannot be read are left out. Raises `OSError` without the file.
        """
        file = cls(str(path), {})
        with path.open("rb") as lines, suppress(ValueError, LookupError, AttributeError, TypeError):
            for line in islice(lines, 1, None):
                file._add(json.loads(line))
        with suppress(SerdeError):
            return read_rows(file.rows)
        return LoggedRun()

    def _read(self) -> None:
        data = b"".join(iter(lambda: os.read(self._descriptor, 1 << 20), b""))
        kept, is_described = 0, False
        for text in data.splitlines(keepends=True):
            try:
                line: Line = json.loads(text)
                if kept:
                    self._add(line)
                elif (found := line.get("run", {}).get("format")) != _FORMAT:
                    if found is not None:
                        raise RuntimeError(
                            f"{self.path} has format {found!r} of another version; use another "
                            "folder"
                        )
                    break
            except (ValueError, LookupError, AttributeError, TypeError):
                break
            kept, is_described = kept + len(text), True
        if kept < len(data):
            os.ftruncate(self._descriptor, kept)
        elif data and not data.endswith(b"\n"):
            self.write("\n")
        if not is_described:
            description = {"run": {"format": _FORMAT, **self.description}}
            self._unwritten = f"{json.dumps(description)}\n"
        if not self.left:  # a line is missing, so the run ends once more
            self.ended = None
        if self.ended is None:
            self.rows = before_failure(self.rows)
            del self.changes[len(self.rows) :]

    def _add(self, line: Line) -> None:
        if "path" in line:
            row = Row(line["path"], line["position"], serde.dump_json(line["line"]))
            self._drop(row.path, row.position)
            self.rows.append(row)
            self.changes.append(line.get("files") or {})
        self.left = line.get("left", self.left)
        self.ended = line.get("ended", self.ended)

    def _drop(self, path: str, start: int) -> None:
        """Removes the rows that a new row replaces, as `LogTable.append` says."""
        last = next((row for row in reversed(self.rows) if row.path == path), None)
        if last is None or last.position < start:
            return
        kept = [
            (row, files)
            for row, files in zip(self.rows, self.changes, strict=True)
            if not (row.path == path and row.position >= start)
            and not (path and start == 0 and row.path.startswith(path))
        ]
        self.rows, self.changes = [row for row, _ in kept], [files for _, files in kept]

    def restore_files(self) -> None:
        """Applies the stored changes to `files`, which has its initial content."""
        if (files := self.files) is None:
            return
        for changes in self.changes:
            for path, content in changes.items():
                match content:
                    case None:
                        with suppress(FileNotFoundError):
                            files.delete(path, recursive=True)
                    case True:
                        files.mkdir(path)
                    case _:
                        files.write_bytes(path, b64decode(content))
        self._version = files.snapshot()

    def begin(self, run_id: str, version: str) -> NewAttempt:
        """Implements `LogTable.begin`."""
        return NewAttempt(1, utc_now(), self.rows)

    def append(self, run_id: str, attempt: int, rows: Sequence[Row], *, first: bool) -> None:
        """Implements `LogTable.append`."""
        text = ""
        for number, (path, position, line) in enumerate(rows):
            shown = json.dumps(path) if path else _ROOT
            text += f'{{"path":{shown},"position":{position},"line":{line}'
            if self.files is not None and not path and not number:
                text += self._file_changes()
            text += "}\n"
        self.write(text)

    def _file_changes(self) -> str:
        """Returns the part of a line with the files that have changed since the last one."""
        assert self.files is not None
        changes = {change.path: _content(change) for change in self.files.changes(self._version)}
        if not changes:
            return ""
        self._version = self.files.snapshot()
        return f',"files":{json.dumps(changes)}'

    def transact(
        self, name: str, place: Place, perform: Callable[[], bool], append: Callable[[], None]
    ) -> None:
        """Implements `LogTable.transact`; the tool's database has its own transaction."""
        perform()
        append()

    def copy(self, rows: Sequence[Row]) -> None:
        """Takes the rows of a run that was performed elsewhere, without storing them."""
        self.rows[:], self.changes[:] = rows, [{} for _ in rows]

    def clear(self) -> None:
        """Removes everything, so that the run begins again."""
        os.ftruncate(self._descriptor, 0)
        self._unwritten = ""

    def end(self, left: Mapping[str, object], ended: Mapping[str, object]) -> None:
        """Stores what the run has left, and how it ended, together with its scores."""
        self._unwritten += f"{json.dumps({'left': left})}\n{json.dumps({'ended': ended})}\n"

    def add_scores(self, scores: Mapping[str, Line]) -> None:
        """Stores scores, by the key of their evaluator."""
        self.write(f"{json.dumps({'scores': scores})}\n")

    def write(self, text: str = "") -> None:
        """Writes text after all that was not written yet, such as the end without its scores."""
        data = f"{self._unwritten}{text}".encode("utf-8", "surrogatepass")
        self._unwritten = ""
        while data:
            data = data[os.write(self._descriptor, data) :]


def before_failure(rows: Sequence[Row]) -> list[Row]:
    """Returns rows without a last answer that failed or is cut off, to request it again."""
    kept, own = [*rows], [row for row in rows if not row.path]
    while own and _has_failed(own[-1]):
        kept.remove(own.pop())
    return kept


def _has_failed(row: Row) -> bool:
    entry = json.loads(row.line)["entry"]
    reply = entry.get("reply", {})
    if entry["kind"] != "answered" or reply.get("fell_back"):
        return False
    return reply["kind"] == "failure" or reply["finish"] not in (
        "stop",
        "tool_calls",
        "pause",
        "length",
    )


def is_final(error: Exception | None) -> bool:
    """Whether a run that failed would fail again: the model has failed, and not code or time."""
    if not isinstance(error, PromptEvaluationError):
        return False
    return error.code in RUN_FAILURES or (
        error.phase == "limit" and error.code not in ("budget", OVER_BUDGET, "deadline")
    )


def _content(change: FileChange) -> str | Literal[True] | None:
    match change.after:
        case bytes() as data:
            return b64encode(data).decode()
        case "directory":
            return True
        case _:
            return None


class RunSink(StoredLog):
    """The log sink of a run; `root` is the log that it stores."""

    root: RunLog | None = None
    _loaded = LoggedRun()

    def load(self, record: LoggedRun, /) -> LoggedRun:
        self._loaded = super().load(record)
        return self._loaded

    def append(self, log: RunLog, entries: Sequence[LoggedEntry], /) -> None:
        if log.caller is None:
            self.root = log
        super().append(log, entries)

    @property
    def log(self) -> LoggedRun:
        """The run's log as a value."""
        return self._loaded if self.root is None else self.root.to_value()
