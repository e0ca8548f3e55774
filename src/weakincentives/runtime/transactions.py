"""Tool calls as transactions over a session and the resources that can be put back.

A snapshot covers the session's STATE slices and every part given beside it, such as a prompt's resources. Undo is
total: it happens for any `BaseException`, newest part first, and a part that fails to go back is reported while the
others still do.
"""

import logging
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

from ..errors import ControlFlow
from ..ports import SessionProtocol, Snapshotable

__all__ = ["CompositeSnapshot", "create_snapshot", "restore_snapshot", "tool_transaction"]

_log = logging.getLogger(__name__)


class CompositeSnapshot(NamedTuple):
    """What a session and some resources held at one moment."""

    # Any: only the part that made a snapshot reads it.
    parts: tuple[tuple[Snapshotable, Any], ...]
    tag: str = ""


def create_snapshot(
    session: SessionProtocol, resource_context: Iterable[Snapshotable] = (), tag: str = ""
) -> CompositeSnapshot:
    """Captures the session and each snapshotable resource; `tag` names the snapshot in logs."""
    return CompositeSnapshot(tuple([(part, part.snapshot()) for part in (session, *resource_context)]), tag)


def restore_snapshot(snapshot: CompositeSnapshot) -> None:
    """Puts back everything that `snapshot` captured, newest part first.

    A part that fails to go back is logged and the rest go on; what failed is raised at the end as an `ExceptionGroup`,
    or alone when it is no `Exception`, such as a `KeyboardInterrupt`.
    """
    failures: list[Exception] = []
    interrupt: BaseException | None = None
    for part, captured in reversed(snapshot.parts):
        try:
            part.restore(captured)
        except BaseException as error:
            _log.exception("Undo failed", extra={"part": type(part).__name__, "tag": snapshot.tag})
            if isinstance(error, Exception):
                failures.append(error)
            else:
                interrupt = error
    if interrupt is not None:
        raise interrupt
    if failures:
        raise ExceptionGroup(f"{len(failures)} of {len(snapshot.parts)} parts could not be put back", failures)


class tool_transaction:  # noqa: N801 - a block that is called like a function, as in contextlib
    """A block, `with` or `async with`, that restores session and resources when it raises, `ControlFlow` excepted.

    `resource_context` is a `ResourceContext`, such as `prompt.resources`, or any parts that can be put back. What a
    context makes inside of the block goes with it. `tag` names the block in logs. Blocks nest. What ends the block goes
    on from it as it was raised; parts that could not be put back are logged and noted on it.

    >>> from weakincentives.runtime.session import Session
    >>> session = Session()
    >>> with tool_transaction(session, tag="example") as transaction:
    ...     session.dispatch("a note")
    ...     transaction.rollback()
    >>> session[str].all()
    ()
    """

    __slots__ = ("_resources", "_session", "_snapshot", "tag")

    def __init__(self, session: SessionProtocol, resource_context: Iterable[Snapshotable] = (), tag: str = "") -> None:
        self._session = session
        self._resources = resource_context
        self._snapshot: CompositeSnapshot | None = None
        self.tag = tag

    def __enter__(self) -> Self:
        if self._snapshot is not None:
            raise RuntimeError(f"transaction {self.tag!r} was entered already; make another for a block inside of it")
        self._snapshot = create_snapshot(self._session, self._resources, self.tag)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        snapshot, self._snapshot = self._snapshot, None
        if error is None or snapshot is None or isinstance(error, ControlFlow):
            return
        try:
            restore_snapshot(snapshot)
        except ExceptionGroup as failed:  # it must not displace a cancellation or an interrupt
            error.add_note(f"While undoing {snapshot.tag!r}, {failed}")

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.__exit__(kind, error, trace)

    def rollback(self) -> None:
        """Puts everything back to the start of the block, which goes on from there; outside of it does nothing.

        Raises an `ExceptionGroup` of what could not be put back.
        """
        if self._snapshot is not None:
            restore_snapshot(self._snapshot)
