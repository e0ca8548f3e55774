"""Transactions over a session and resources; the executor runs each tool call in one.

A snapshot covers the session's STATE slices and other parts, such as a prompt's resources. Any
`BaseException` causes a rollback, which restores the newest part first. If a part fails, the
failure is reported and the other parts are still restored. If a part has a `release(snapshot)`
method, the transaction calls it once when it ends.
"""

import logging
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

from ..errors import ControlFlow
from ..protocols import SessionProtocol, Snapshot, Snapshotable
from ..resources import release
from ..serde import Json

__all__ = [
    "CallTransaction",
    "CompositeSnapshot",
    "changes_since",
    "create_snapshot",
    "release_snapshot",
    "restore_snapshot",
    "tool_transaction",
]

_log = logging.getLogger(__name__)

type _Parts = tuple[tuple[Snapshotable, Snapshot], ...]


class CompositeSnapshot(NamedTuple):
    """The snapshots of a session and some resources, taken together."""

    parts: _Parts
    tag: str = ""


def create_snapshot(
    session: SessionProtocol, resource_context: Iterable[Snapshotable] = (), tag: str = ""
) -> CompositeSnapshot:
    """Takes a snapshot of the session and each resource; `tag` names the snapshot in logs.

    Call `release_snapshot` when you no longer need the snapshot.
    """
    parts: _Parts = ()
    try:
        for part in (session, *resource_context):
            parts += ((part, part.snapshot()),)
        return CompositeSnapshot(parts, tag)
    except BaseException:
        _release_all(CompositeSnapshot(parts, tag))
        raise


def restore_snapshot(snapshot: CompositeSnapshot) -> None:
    """Restores every part of `snapshot`, newest first.

    If a part fails, logs the failure, restores the others and raises an `ExceptionGroup`. After an
    interrupt, such as `KeyboardInterrupt`, restores all parts once more and then raises the
    interrupt.
    """
    failure, interrupt = _restore_parts(snapshot)
    if interrupt is not None:
        raise interrupt
    if failure is not None:
        raise failure


def release_snapshot(snapshot: CompositeSnapshot) -> None:
    """Releases each part of `snapshot`, newest first; stops at the first part that raises."""
    for part, part_snapshot in reversed(snapshot.parts):
        release(part, part_snapshot)


def changes_since(snapshot: CompositeSnapshot) -> dict[str, dict[str, Json]]:
    """Describes the changes since `snapshot`, for parts that can report them.

    `"state"` contains the differences in the session's slices, and `"files"` contains unified diffs
    by path; other parts can add more. A part that fails is logged and omitted.
    """
    changes: dict[str, dict[str, Json]] = {}
    for part, part_snapshot in snapshot.parts:
        describe = getattr(type(part), "changes_since", None)
        if describe is None:
            continue
        try:
            for kind, values in describe(part, part_snapshot).items():
                if values:
                    changes.setdefault(kind, {}).update(values)
        except Exception:
            _log_failure("Changes are unknown", part, snapshot)
    return changes


def _restore_parts(
    snapshot: CompositeSnapshot,
) -> tuple[ExceptionGroup[Exception] | None, BaseException | None]:
    """Restores all parts (twice after an interrupt); returns the failures and the interrupt."""
    failures: list[Exception] = []
    interrupt: BaseException | None = None
    for _ in range(2):  # restoring twice has the same result as restoring once
        failures = []
        interrupted = False
        try:
            for part, part_snapshot in reversed(snapshot.parts):
                try:
                    part.restore(part_snapshot)
                except Exception as error:
                    _log_failure("Undo failed", part, snapshot)
                    failures.append(error)
                except BaseException as error:
                    interrupt, interrupted = error, True
        except BaseException as error:  # an interrupt between two parts or while logging
            interrupt, interrupted = error, True
        if not interrupted:
            break
    if not failures:
        return None, interrupt
    message = f"{len(failures)} of {len(snapshot.parts)} parts could not be restored"
    return ExceptionGroup(message, failures), interrupt


def _release_all(snapshot: CompositeSnapshot) -> None:
    """Releases every part, and logs parts that fail."""
    for part, part_snapshot in reversed(snapshot.parts):
        try:
            release(part, part_snapshot)
        except Exception:
            _log_failure("Release failed", part, snapshot)


def _log_failure(message: str, part: Snapshotable, snapshot: CompositeSnapshot) -> None:
    _log.exception(message, extra={"part": type(part).__name__, "tag": snapshot.tag})


class CallTransaction:
    """The changes of one tool call, kept if and only if the call's entry was added to `log`.

    Call `begin`, then `release` once the entry has been added, and always `settle`, which restores
    the session and the resources unless the log has grown. `settle` can be called any number of
    times, so an interrupt can safely come at any moment. A part that cannot be restored is logged,
    and added as a note to the exception that is being handled.
    """

    __slots__ = ("_entries", "_log", "_resources", "_session", "_snapshot", "tag")

    def __init__(
        self,
        session: SessionProtocol,
        resources: Iterable[Snapshotable],
        log: list[Any],  # Any: entries of every type
        tag: str,
    ) -> None:
        self._session, self._resources, self._log, self.tag = session, resources, log, tag
        self._snapshot: CompositeSnapshot | None = None
        self._entries = 0

    @property
    def is_open(self) -> bool:
        """Whether the transaction has started but not ended."""
        return self._snapshot is not None

    def begin(self) -> None:
        """Takes the snapshot."""
        self._entries = len(self._log)
        self._snapshot = create_snapshot(self._session, self._resources, self.tag)

    @property
    def before(self) -> Snapshot:
        """The snapshot of the session."""
        return self._snapshot.parts[0][1] if self._snapshot else None

    def changes(self) -> dict[str, dict[str, Json]]:
        """Describes the changes since `begin`, like `changes_since`."""
        return {} if self._snapshot is None else changes_since(self._snapshot)

    def undo(self, error: Exception | None = None) -> None:
        """Restores the state before a failed call, whose entry may follow.

        If parts cannot be restored, adds a note to `error`; if `error` is `None`, raises an
        `ExceptionGroup` of the failures.
        """
        if self._snapshot is None:
            return
        if error is None:
            restore_snapshot(self._snapshot)
        elif interrupt := _restore_for(error, self._snapshot):
            raise interrupt

    def release(self) -> Exception | None:
        """Releases the snapshot of a call whose entry was added, newest part first.

        If a part cannot be released, undoes the call and its entry and returns the error.
        """
        parts = self._snapshot.parts if self._snapshot else ()
        for entry in reversed(parts):
            if not hasattr(type(entry[0]), "release"):
                continue
            try:
                release(*entry)
            except Exception as error:
                del self._log[self._entries :]
                self.settle(error)
                return error
            parts = tuple([part for part in parts if part is not entry])
            self._snapshot = CompositeSnapshot(parts, self.tag)
        self._snapshot = None
        return None

    def settle(self, error: BaseException | None = None) -> None:
        """Ends the transaction; `error` defaults to the exception that is being handled."""
        if (snapshot := self._snapshot) is None:
            return
        interrupt: BaseException | None = None
        if len(self._log) == self._entries:
            interrupt = _restore_for(error or sys.exception(), snapshot)
        _release_all(snapshot)
        self._snapshot = None
        if interrupt is not None:
            raise interrupt


def _restore_for(error: BaseException | None, snapshot: CompositeSnapshot) -> BaseException | None:
    """Restores all parts, adds failures to `error` as a note, and returns an interrupt, if any."""
    failure, interrupt = _restore_parts(snapshot)
    if failure is not None and error is not None:  # the failure must not replace a cancellation
        error.add_note(f"While undoing {snapshot.tag!r}, {failure}")
    return interrupt


class tool_transaction(CallTransaction):  # noqa: N801 - used like a function, as in contextlib
    """A `with` or `async with` block that restores the session and resources if it raises.

    Only `ControlFlow` keeps the changes. `resource_context` is a `ResourceContext`, such as
    `prompt.resources`, or any `Snapshotable` parts; a rollback also removes the resources that the
    context created inside the block. `tag` names the block in logs. Blocks can be nested. The
    original exception propagates from the block; parts that cannot be restored are logged and added
    to it as a note. If releasing a part raises an error, the block fails and restores the parts
    that have not been released yet.

    >>> from weakincentives.runtime.session import Session
    >>> session = Session()
    >>> with tool_transaction(session, tag="example") as transaction:
    ...     session.dispatch("a note")
    ...     transaction.rollback()
    >>> session[str].all()
    ()
    """

    __slots__ = ()

    def __init__(
        self, session: SessionProtocol, resource_context: Iterable[Snapshotable] = (), tag: str = ""
    ) -> None:
        super().__init__(session, resource_context, [], tag)

    def __enter__(self) -> Self:
        if self.is_open:
            raise RuntimeError(
                f"transaction {self.tag!r} has already been entered; create another one for a "
                "nested block"
            )
        try:
            self.begin()
            return self
        except BaseException:  # an interrupt just before the block
            self.settle()
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.end(error)
        except BaseException as interrupt:  # the interrupt may come before anything is restored
            self.end(interrupt)
            raise

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.__exit__(kind, error, trace)

    def rollback(self) -> None:
        """Restores the state at the start of the block, which then continues.

        Does nothing outside the block. Raises an `ExceptionGroup` for parts that could not be
        restored.
        """
        self.undo()

    def end(self, error: BaseException | None = None) -> None:
        """Ends the transaction as if the block had ended with `error`; a second call does nothing.

        An interrupt before the first line of `__exit__` would leave the transaction open. To
        prevent this, call `end()` in the last line of the block, and `end(error)` in an
        `except BaseException` around the block's code.
        """
        if self.is_open and (error is None or isinstance(error, ControlFlow)):
            self._log.append(None)
            if (failure := self.release()) is not None:
                raise failure
        self.settle(error)
