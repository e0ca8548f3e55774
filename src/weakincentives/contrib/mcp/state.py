"""The folder of a server's data, which a rollback puts back while the server goes on."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Literal
from weakref import WeakSet

from ...filesystem.foreign import ForeignDirectory
from ...filesystem.host import HostEntry
from ...filesystem.undo import Version
from ...prompt.tool import ToolResult
from ...serde import Json
from .connection import Connection
from .lock import ServerLock

__all__ = ["ServerState", "UndoVerdict", "probe_undo"]

type UndoVerdict = Literal["undone", "cached", "unseen"]
"""Whether a server sees that its folder was put back; `unseen` if reading shows no change at all.

A `cached` server answers from its memory, so that a rollback leaves it with what was undone.
"""

_PROBE_SECONDS = 60.0
_END_SECONDS = 10.0  # for which a server may go on writing when its client has gone


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class _Savepoint:
    """A version of the folder, to which one transaction may go back."""

    version: Version[HostEntry]


class ServerState:
    """Puts a folder back as it was when a call of a server fails; transactions use it.

    If a process was killed in the middle of a call, the next one puts the folder back. It cannot
    help where the server keeps in memory what it has read, holds files open, or acts elsewhere.
    Raises `OSError` unless `path` is a directory, and for changes of others since such a kill.
    """

    def __init__(self, path: str | os.PathLike[str], connection: Connection) -> None:
        self._directory = ForeignDirectory(path)
        self._connection = connection
        # weak, since a caller may never release one
        self._savepoints = WeakSet[_Savepoint]()
        try:
            self._directory.recover()
        except BaseException:
            self._directory.close()
            raise

    def record(self, *, seconds: float) -> None:
        """Copies what a call of at most `seconds` may change.

        Raises `FilesystemLimitError` if that is too much, and `OSError` if the copies cannot be
        written beside the folder.
        """
        self._directory.record(seconds=seconds + _END_SECONDS)

    def snapshot(self) -> _Savepoint:
        savepoint = _Savepoint(self._directory.snapshot())
        self._savepoints.add(savepoint)
        return savepoint

    def restore(self, snapshot: _Savepoint, /) -> None:
        self._connection.end_calls()  # else the server might write while the folder is put back
        self._directory.restore(snapshot.version)

    def release(self, snapshot: _Savepoint, /) -> None:
        """Lets changes stand when the outermost transaction ends."""
        self._savepoints.discard(snapshot)
        if not self._savepoints:
            self._directory.commit()

    def close(self) -> None:
        """Closes the folder."""
        self._directory.close()


def probe_undo(
    lock: ServerLock,
    folder: str | os.PathLike[str],
    *,
    change: tuple[str, Mapping[str, Json]],
    read: tuple[str, Mapping[str, Json]],
) -> UndoVerdict:
    """Has a server change its folder, puts the folder back, and compares what the server reads.

    `change` and `read` are names of tools with arguments. The folder is as before at the end.
    Raises `ServerError` if the server does not answer.
    """
    with (
        closing(Connection(lock)) as connection,
        closing(ServerState(folder, connection)) as state,
    ):

        def call(tool: str, arguments: Mapping[str, Json]) -> ToolResult[Json]:
            work = connection.call(
                tool, arguments, repeatable=False, seconds=_PROBE_SECONDS, publish=id
            )
            return asyncio.run(work)

        before = call(*read)
        snapshot = state.snapshot()
        state.record(seconds=_PROBE_SECONDS)
        try:
            call(*change)
            changed = call(*read)
        finally:
            state.restore(snapshot)
        if changed == before:
            return "unseen"
        return "undone" if call(*read) == before else "cached"
