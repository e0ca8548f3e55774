"""A fork: a filesystem over another one, with what it read there and what was done in it, so that
it can be merged.

Only changes live in its tree; any other name stands for what is below. Each look below is logged
with what it gave, and merging looks again: if all is as it was, the operations are repeated on the
base.
"""

from contextlib import nullcontext
from dataclasses import replace
from hashlib import sha256
from typing import Any

from .memory import Directory, File, InMemoryFilesystem, Node
from .protocol import FileStat, Filesystem, Kind
from .undo import VersionedFilesystem

__all__ = ["OverlayFilesystem"]


class OverlayFilesystem(InMemoryFilesystem):
    """A view of `base` in which everything can be changed while the base stays; `base.merge(fork)`
    makes it so there.

    What was not changed here is read from the base as it is then. A merged fork is spent.
    """

    def __init__(self, base: Filesystem) -> None:
        super().__init__(limits=base.limits)
        self.base = base
        self._root = _LowerDirectory(self, ".")
        self._looks: dict[tuple[str, str, object], None] = {}  # a set in order
        self._merged = False

    def merge_into_base(self) -> bool:
        """What `base.merge(fork)` does; see there."""
        with (
            self.lock,
            self.base.lock if isinstance(self.base, VersionedFilesystem) else nullcontext(),
        ):
            if self._merged:
                raise ValueError(f"{self!r} was merged already; fork again")
            if any(_look(self.base, method, path)[1] != seen for method, path, seen in self._looks):
                return False
            # Any: `_did` below ties them as (what came before, method, its arguments, its options).
            past: Any = self._past
            operations: list[Any] = []
            while past:
                past, *operation = past
                operations.append(operation)
            before = self.base.snapshot()
            try:
                for method, arguments, options in reversed(operations):
                    getattr(self.base, method)(*arguments, **options)
            except BaseException:
                self.base.restore(before)
                raise
            self._merged = True
            return True

    def look(self, method: str, path: str) -> Any:  # Any: what that method gives
        """Asks the base, and remembers what it said."""
        given, seen = _look(self.base, method, path)
        self._looks[method, path, seen] = None
        if isinstance(given, Exception):
            raise given
        return given

    def _did(self, method: str, *arguments: str | bytes, **options: bool) -> None:
        self._past = (self._past, method, arguments, options)


class _LowerFile(File):
    """What stands at a path of the base and is no directory."""

    def __init__(self, fork: OverlayFilesystem, path: str, kind: Kind) -> None:
        self._fork, self._path, self.kind = fork, path, kind

    def read(self) -> bytes:
        data: bytes = self._fork.look("read_bytes", self._path)
        return data

    def stat(self, path: str) -> FileStat:
        found: FileStat = self._fork.look("stat", self._path)
        return replace(found, path=path)


class _LowerDirectory(Directory):
    """A directory of the base, and what has been changed in it here; `None` marks a name that is
    gone.
    """

    def __init__(self, fork: OverlayFilesystem, path: str) -> None:
        super().__init__()
        self._fork, self._path = fork, path

    def get(self, name: str) -> Node | None:
        if name in self.children:
            return self.children[name]
        path = name if self._path == "." else f"{self._path}/{name}"
        try:
            kind = self._fork.look("kind", path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return (
            _LowerDirectory(self._fork, path)
            if kind == "directory"
            else _LowerFile(self._fork, path, kind)
        )

    def put(self, name: str, node: Node | None) -> None:
        self.children[name] = node

    def list(self, prefix: str) -> list[FileStat]:
        below = [
            (stat.path.rpartition("/")[2], stat) for stat in self._fork.look("list", self._path)
        ]
        return super().list(prefix) + [
            replace(stat, path=prefix + name) for name, stat in below if name not in self.children
        ]

    def stat(self, path: str) -> FileStat:
        found: FileStat = self._fork.look("stat", self._path)
        return replace(found, path=path)


# Any: what that method gives
def _look(base: Filesystem, method: str, path: str) -> tuple[Any, object]:
    """What the base says, or the error it raises, and of this what must be the same for a merge."""
    try:
        given = base.stat(path).kind if method == "kind" else getattr(base, method)(path)
    except (OSError, ValueError) as error:
        return error, type(error)
    return given, _trace(given)


def _trace(given: object) -> object:
    match given:
        case bytes():
            return sha256(given).digest()
        case FileStat(path, "directory"):  # its time changes with any file in it
            return path
        case tuple():
            return tuple(map(_trace, given))
        case _:
            return given
