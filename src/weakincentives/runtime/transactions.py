"""Tool calls as transactions over a session and the resources that can be put back.

A snapshot covers the session's STATE slices and every part given beside it. Undo is total: it happens for any
`BaseException`, newest part first, and a part that fails to go back is reported while the others still do.
"""

import logging
from collections.abc import Iterable
from types import TracebackType
from typing import Any, NamedTuple, Self

from ..errors import ControlFlow
from ..ports import SessionProtocol, Snapshotable

__all__ = ["CompositeSnapshot", "Transaction", "create_snapshot", "restore_snapshot", "tool_transaction"]

_log = logging.getLogger(__name__)


class CompositeSnapshot(NamedTuple):
    """What a session and some resources held at one moment."""

    # Any: only the part that made a snapshot reads it.
    parts: tuple[tuple[Snapshotable, Any], ...]


def create_snapshot(session: SessionProtocol, resource_context: Iterable[Snapshotable] = ()) -> CompositeSnapshot:
    """Captures the session and each snapshotable resource."""
    return CompositeSnapshot(tuple([(part, part.snapshot()) for part in (session, *resource_context)]))


def restore_snapshot(snapshot: CompositeSnapshot) -> None:
    """Puts back everything that `snapshot` captured, newest part first.

    A part that fails to go back is logged and the rest go on; what failed is raised at the end as an `ExceptionGroup`.
    """
    failures: list[Exception] = []
    for part, captured in reversed(snapshot.parts):
        try:
            part.restore(captured)
        except Exception as error:
            _log.exception("Undo failed", extra={"part": type(part).__name__})
            failures.append(error)
    if failures:
        raise ExceptionGroup("some parts could not be put back", failures)


class Transaction:
    """A block that leaves no trace when it raises, `ControlFlow` excepted, or when `rollback()` is called in it."""

    __slots__ = ("_resources", "_session", "_snapshot", "tag")

    def __init__(self, session: SessionProtocol, resources: Iterable[Snapshotable], tag: str) -> None:
        self._session = session
        self._resources = resources
        self._snapshot: CompositeSnapshot | None = None
        self.tag = tag

    def __enter__(self) -> Self:
        self._snapshot = create_snapshot(self._session, self._resources)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, ControlFlow):
            self.rollback()
        self._snapshot = None

    def rollback(self) -> None:
        """Puts everything back to the start of the block; outside the block and at a second call it does nothing."""
        if self._snapshot is not None:
            snapshot, self._snapshot = self._snapshot, None
            _log.debug("Rolling back", extra={"tag": self.tag})
            restore_snapshot(snapshot)


def tool_transaction(
    session: SessionProtocol, resource_context: Iterable[Snapshotable] = (), tag: str = ""
) -> Transaction:
    """A block that restores session and resources when it raises; `tag` names it in logs. Blocks nest.

    >>> from weakincentives.runtime.session import Session
    >>> session = Session()
    >>> with tool_transaction(session, tag="example") as transaction:
    ...     session.dispatch("a note")
    ...     transaction.rollback()
    >>> session[str].all()
    ()
    """
    return Transaction(session, resource_context, tag)
