"""A server's data folder, which a rollback restores while the server is running."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Literal
from weakref import WeakSet

from ...filesystem.external import ExternalDirectory
from ...filesystem.host import HostEntry
from ...filesystem.undo import Version
from ...prompt.tool import ToolResult
from ...serde import Json
from .connection import Connection
from .lock import ServerLock

__all__ = ["ServerState", "UndoVerdict", "probe_undo"]

type UndoVerdict = Literal["undone", "cached", "unseen"]
"""Whether a server sees that its folder was restored.

A `cached` server replies from memory, so after a rollback it still returns the changed data. The
verdict is `unseen` if the change never appears when the data is read.
"""

_PROBE_SECONDS = 60.0
_END_SECONDS = 10.0  # how long a server may continue to write after its client disconnects


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class _Savepoint:
    """A version of the folder that one transaction can return to."""

    version: Version[HostEntry]


class ServerState:
    """Restores a folder if a call to its server fails; used by transactions.

    If a process is killed during a call, the next process restores the folder. Restoring does not
    help if the server caches data in memory, keeps files open, or has effects elsewhere. Raises
    `OSError` if `path` is not a directory, or if something else has changed it since the process
    was killed.
    """

    def __init__(self, path: str | os.PathLike[str], connection: Connection) -> None:
        self._directory = ExternalDirectory(path)
        self._connection = connection
        # Weak references, because a caller may never release a savepoint.
        self._savepoints = WeakSet[_Savepoint]()
        try:
            self._directory.recover()
        except BaseException:
            self._directory.close()
            raise

    def record(self, *, seconds: float) -> None:
        """Copies the files that a call of at most `seconds` can change.

        Raises `FilesystemLimitError` if there is too much data to copy, and `OSError` if the copies
        cannot be written next to the folder.
        """
        self._directory.record(seconds=seconds + _END_SECONDS)

    def snapshot(self) -> _Savepoint:
        savepoint = _Savepoint(self._directory.snapshot())
        self._savepoints.add(savepoint)
        return savepoint

    def restore(self, snapshot: _Savepoint, /) -> None:
        self._connection.end_calls()  # otherwise the server could write during the restore
        self._directory.restore(snapshot.version)

    def release(self, snapshot: _Savepoint, /) -> None:
        """Commits the changes when the outermost transaction ends."""
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
    """Makes a server change its folder, restores the folder, and compares what the server reads.

    `change` and `read` are tool names with arguments. Afterwards, the folder is back in its
    original state. Raises `ServerError` if the server does not reply.
    """
    with closing(Connection(lock)) as connection, closing(ServerState(folder, connection)) as state:

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
