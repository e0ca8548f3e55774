"""Tool calls as transactions over a session and the resources that can be put back.

A snapshot covers the session's STATE slices and every part given beside it, such as a prompt's
resources. Undo is total: it happens for any `BaseException`, newest part first, and a part that
fails to go back is reported while the others still do. A part may have a method
`release(snapshot)`, which is called once when a transaction has ended.
"""

import logging
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

from ..errors import ControlFlow
from ..protocols import SessionProtocol, Snapshotable
from ..resources import release

__all__ = [
    "CompositeSnapshot",
    "create_snapshot",
    "release_snapshot",
    "restore_snapshot",
    "tool_transaction",
]

_log = logging.getLogger(__name__)


class CompositeSnapshot(NamedTuple):
    """What a session and some resources held at one moment."""

    # Any: only the part that made a snapshot reads it.
    parts: tuple[tuple[Snapshotable, Any], ...]
    tag: str = ""


def create_snapshot(
    session: SessionProtocol, resource_context: Iterable[Snapshotable] = (), tag: str = ""
) -> CompositeSnapshot:
    """Captures the session and each snapshotable resource; `tag` names the snapshot in logs.

    Call `release_snapshot` when the snapshot is not needed any more.
    """
    captured: list[tuple[Snapshotable, Any]] = []
    try:
        for part in (session, *resource_context):
            captured.append((part, part.snapshot()))  # noqa: PERF401 - what was captured before an error is released
        return CompositeSnapshot(tuple(captured), tag)
    except BaseException:
        _release_all(CompositeSnapshot(tuple(captured), tag))
        raise


def restore_snapshot(snapshot: CompositeSnapshot) -> None:
    """Puts back everything that `snapshot` captured, newest part first.

    A part that fails to go back is logged and the rest go on; what failed is raised at the end as
    an `ExceptionGroup`. After an interrupt, such as `KeyboardInterrupt`, all parts are put back
    once more, and then the interrupt is raised.
    """
    interrupt: BaseException | None = None
    failures: list[Exception] = []
    for _ in range(2):
        try:
            failures = _restore_parts(snapshot)
            break
        # from wherever it came; restoring twice is as restoring once
        except BaseException as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt
    if failures:
        raise ExceptionGroup(
            f"{len(failures)} of {len(snapshot.parts)} parts could not be put back", failures
        )


def release_snapshot(snapshot: CompositeSnapshot) -> None:
    """Tells each part, newest first, that `snapshot` will not be restored any more.

    Raises what a part raises; the parts after it are not told then.
    """
    for part, captured in reversed(snapshot.parts):
        release(part, captured)


def _restore_parts(snapshot: CompositeSnapshot) -> list[Exception]:
    """The errors of parts that failed; an interrupt is raised when all parts have had their turn."""
    failures: list[Exception] = []
    interrupt: BaseException | None = None
    for part, captured in reversed(snapshot.parts):
        try:
            part.restore(captured)
        except BaseException as error:
            if isinstance(error, Exception):
                _log.exception(
                    "Undo failed", extra={"part": type(part).__name__, "tag": snapshot.tag}
                )
                failures.append(error)
            else:
                interrupt = error
    if interrupt is not None:
        raise interrupt
    return failures


def _release_all(snapshot: CompositeSnapshot) -> None:
    """Releases every part; one that fails is logged."""
    for part, captured in reversed(snapshot.parts):
        try:
            release(part, captured)
        except Exception:
            _log.exception(
                "Release failed", extra={"part": type(part).__name__, "tag": snapshot.tag}
            )


class tool_transaction:  # noqa: N801 - a block that is called like a function, as in contextlib
    """A block, `with` or `async with`, that restores session and resources when it raises,
    `ControlFlow` excepted.

    `resource_context` is a `ResourceContext`, such as `prompt.resources`, or any parts that can be
    put back. What a context makes inside of the block goes with it. `tag` names the block in logs.
    Blocks nest. What ends the block goes on from it as it was raised; parts that could not be put
    back are logged and noted on it. A part that raises when it is released at the end of a block
    makes the block fail: what was not released yet is restored.

    >>> from weakincentives.runtime.session import Session
    >>> session = Session()
    >>> with tool_transaction(session, tag="example") as transaction:
    ...     session.dispatch("a note")
    ...     transaction.rollback()
    >>> session[str].all()
    ()
    """

    __slots__ = ("_resources", "_session", "_snapshot", "tag")

    def __init__(
        self, session: SessionProtocol, resource_context: Iterable[Snapshotable] = (), tag: str = ""
    ) -> None:
        self._session = session
        self._resources = resource_context
        self._snapshot: CompositeSnapshot | None = None
        self.tag = tag

    def __enter__(self) -> Self:
        if self._snapshot is not None:
            raise RuntimeError(
                f"transaction {self.tag!r} was entered already; make another for a block inside of it"
            )
        try:
            self._snapshot = create_snapshot(self._session, self._resources, self.tag)
            return self
        except BaseException:
            if self._snapshot is not None:  # an interrupt came just before the block
                self.end()
            raise

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.end(error)
        except BaseException as interrupt:  # it may have come before anything was put back
            self.end(interrupt)
            raise

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.__exit__(kind, error, trace)

    def rollback(self) -> None:
        """Puts everything back to the start of the block, which goes on from there; outside of it
        does nothing.

        Raises an `ExceptionGroup` of what could not be put back.
        """
        if self._snapshot is not None:
            restore_snapshot(self._snapshot)

    def end(self, error: BaseException | None = None) -> None:
        """Ends the transaction as leaving the block with `error` does; leaving the block then does
        nothing more.

        An interrupt can come before the first line of `__exit__`. A block that ends its transaction
        itself, and once more when that is interrupted, leaves nothing half undone.
        """
        snapshot = self._snapshot
        if snapshot is None:
            return
        if error is None or isinstance(error, ControlFlow):
            self._commit(snapshot)
        else:
            self._undo(snapshot, error)

    def _commit(self, snapshot: CompositeSnapshot) -> None:
        held = [entry for entry in snapshot.parts if hasattr(type(entry[0]), "release")]
        interrupt: BaseException | None = None
        for _ in range(2):
            try:
                while held:
                    release(*held[-1])
                    held.pop()
                break
            except Exception as error:
                unreleased = set(map(id, held))
                kept = [
                    one
                    for one in snapshot.parts
                    if id(one) in unreleased or not hasattr(type(one[0]), "release")
                ]
                self._undo(CompositeSnapshot(tuple(kept), snapshot.tag), error)
                if interrupt is not None:
                    raise interrupt from error
                raise
            except BaseException as error:
                interrupt = error
        self._snapshot = None
        if interrupt is not None:
            raise interrupt

    def _undo(self, snapshot: CompositeSnapshot, error: BaseException) -> None:
        interrupt: BaseException | None = None
        for _ in range(2):
            try:
                restore_snapshot(snapshot)
                break
            except ExceptionGroup as failed:  # it must not displace a cancellation or an interrupt
                error.add_note(f"While undoing {snapshot.tag!r}, {failed}")
                break
            except BaseException as raised:  # it may have come before anything was put back
                interrupt = raised
        _release_all(snapshot)
        self._snapshot = None
        if interrupt is not None:
            raise interrupt
