"""The folder of a server's data, which a rollback puts back while the server goes on."""

import os
from dataclasses import dataclass

from ...filesystem.foreign import ForeignDirectory
from ...filesystem.host import HostEntry
from ...filesystem.undo import Version
from .connection import Connection

__all__ = ["ServerState", "StateKey"]


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
