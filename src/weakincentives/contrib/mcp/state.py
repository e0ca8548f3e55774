"""The folder of a server's data, which a rollback puts back while the server goes on."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ...filesystem.foreign import ForeignDirectory
from ...filesystem.host import HostEntry
from ...filesystem.undo import Version
from ...prompt.tool import ToolResult
from ...serde import Json
from .connection import Connection
from .live_server import Notify
from .lock import ServerLock

__all__ = ["ServerState", "StateKey", "UndoVerdict", "probe_undo"]

type UndoVerdict = Literal["undone", "cached", "unseen"]
"""Whether a server sees that its folder was put back; `unseen` if reading shows no change at all.

A `cached` server answers from its memory, so that a rollback leaves it with what was undone.
"""

_PROBE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class StateKey:
    """The key by which a prompt's resources hold the state of the server of this name."""

    server: str

    def __call__(self) -> "ServerState":
        raise TypeError("a StateKey only names a resource; use resources.get(key)")


class ServerState:
    """Puts a folder back as it was when a call of a server fails; transactions use it.

    It cannot help where the server keeps in memory what it has read, holds files open, or acts
    elsewhere. Raises `OSError` unless `path` is a directory.
    """

    def __init__(self, path: str | os.PathLike[str], connection: Connection) -> None:
        self._directory = ForeignDirectory(path)
        self._connection = connection

    def record(self) -> None:
        """Copies what a call may change; raises `FilesystemLimitError` if that is too much."""
        self._directory.record()

    def snapshot(self) -> Version[HostEntry]:
        return self._directory.snapshot()

    def restore(self, snapshot: Version[HostEntry], /) -> None:
        self._connection.end_calls()  # else the server might write while the folder is put back
        self._directory.restore(snapshot)

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
    connection = Connection(lock)
    state = ServerState(folder, connection)

    def call(tool: str, arguments: Mapping[str, Json]) -> ToolResult[Json]:
        ignore: Notify = id
        return asyncio.run(
            connection.call(
                tool, arguments, repeatable=False, seconds=_PROBE_SECONDS, publish=ignore
            )
        )

    try:
        before = call(*read)
        snapshot = state.snapshot()
        state.record()
        try:
            call(*change)
            changed = call(*read)
        finally:
            state.restore(snapshot)
        if changed == before:
            return "unseen"
        return "undone" if call(*read) == before else "cached"
    finally:
        connection.close()
        state.close()
