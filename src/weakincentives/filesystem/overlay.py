"""Forks: a fork is a tree of changes on top of another filesystem, its base.

The tree contains only the entries that the fork changed; any other name refers to the base's entry.
The fork records everything that it reads from the base. A merge repeats these reads: if the base
still returns the same results, the merge repeats the fork's operations on it.
"""

from contextlib import nullcontext
from dataclasses import replace
from hashlib import sha256
from typing import Any

from .protocol import FileStat, Filesystem, Kind
from .tree import Directory, File, Node, TreeFilesystem
from .undo import Version, VersionedFilesystem

__all__ = ["ForkableFilesystem", "OverlayFilesystem"]

type _Value = Any  # Any: the result of one of the base's methods


class ForkableFilesystem(Filesystem):
    """A filesystem whose forks are overlays."""

    def fork(self) -> "OverlayFilesystem":
        return OverlayFilesystem(self)

    def merge(self, fork: Filesystem, /) -> bool:
        if not isinstance(fork, OverlayFilesystem) or fork.base is not self:
            raise ValueError(
                f"{fork!r} is not a fork of {self!r}; merge the filesystem that its fork() returned"
            )
        return fork.merge_into_base()


class OverlayFilesystem(TreeFilesystem, ForkableFilesystem):
    """A view of `base` that keeps its changes until `base.merge(fork)` repeats them there.

    It reads unchanged entries from the current state of the base. A fork can be merged only once.
    `changes(fork.start)` returns the fork's changes. Computing them counts as reading these paths,
    so a later merge makes exactly these changes to them, or none.
    """

    def __init__(self, base: Filesystem) -> None:
        super().__init__(_BaseDirectory(self, "."), limits=base.limits)
        self.base = base
        self._observations: dict[tuple[str, str, object], None] = {}  # an ordered set
        # Not `operator.methodcaller`: it crashes the garbage collector of Python 3.14 on
        # WebAssembly.
        self._operations: list[tuple[str, tuple[str | bytes, ...], dict[str, bool]]] = []
        self._merged = False
        self.start = self.snapshot()

    def snapshot(self) -> Version[Node]:
        with self.lock:
            version = super().snapshot()
            version.operation_count = len(self._operations)
            return version

    def restore(self, snapshot: Version[Node], /) -> None:
        with self.lock:
            self._changeable_path(".")
            super().restore(snapshot)
            del self._operations[snapshot.operation_count :]

    def close(self) -> None:
        """Makes the fork read-only, so that a thread still running cannot change anything."""
        with self.lock:
            self.read_only = True

    def merge_into_base(self) -> bool:
        """Merges the fork; see `Filesystem.merge`."""
        base = self.base
        with self.lock, base.lock if isinstance(base, VersionedFilesystem) else nullcontext():
            if self._merged:
                raise ValueError(f"{self!r} has already been merged; fork again")
            for method, path, summary in self._observations:
                if _observe(base, method, path)[1] != summary:
                    return False
            before = base.snapshot()
            try:
                for method, arguments, options in self._operations:
                    getattr(base, method)(*arguments, **options)
            except BaseException:
                base.restore(before)
                raise
            self._merged = True
            return True

    def read_base(self, method: str, path: str) -> _Value:
        """Calls one of the base's read methods and records the result or the error."""
        value, summary = _observe(self.base, method, path)
        self._observations[method, path, summary] = None
        if isinstance(value, Exception):
            raise value
        return value

    def _log(self, method: str, *arguments: str | bytes, **options: bool) -> None:
        self._operations.append((method, arguments, options))


class _BaseFile(File):
    """An entry in the base that is not a directory."""

    def __init__(self, fork: OverlayFilesystem, path: str, kind: Kind) -> None:
        self._fork, self._path, self.kind = fork, path, kind

    def read(self) -> bytes:
        data: bytes = self._fork.read_base("read_bytes", self._path)
        return data

    def stat(self, path: str) -> FileStat:
        stat: FileStat = self._fork.read_base("stat", self._path)
        return replace(stat, path=path)


class _BaseDirectory(Directory):
    """A directory of the base, with the fork's changes; `None` marks a removed name."""

    def __init__(self, fork: OverlayFilesystem, path: str) -> None:
        super().__init__()
        self._fork, self._path = fork, path

    def get(self, name: str) -> Node | None:
        if name in self.children:
            return self.children[name]
        path = name if self._path == "." else f"{self._path}/{name}"
        try:
            kind = self._fork.read_base("kind", path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if kind == "directory":
            return _BaseDirectory(self._fork, path)
        return _BaseFile(self._fork, path, kind)

    def put(self, name: str, node: Node | None) -> None:
        self.children[name] = node

    def list(self, prefix: str) -> list[FileStat]:
        entries = super().list(prefix)
        for stat in self._fork.read_base("list", self._path):
            name = stat.path.rpartition("/")[2]
            if name not in self.children:
                entries.append(replace(stat, path=prefix + name))
        return entries

    def stat(self, path: str) -> FileStat:
        stat: FileStat = self._fork.read_base("stat", self._path)
        return replace(stat, path=path)


def _observe(base: Filesystem, method: str, path: str) -> tuple[_Value, object]:
    """Returns the base's result or error, and a summary of it for a merge to compare."""
    try:
        value = base.stat(path).kind if method == "kind" else getattr(base, method)(path)
    except (OSError, ValueError) as error:
        return error, type(error)
    return value, _summary(value)


def _summary(value: object) -> object:
    match value:
        case bytes():
            return sha256(value).digest()
        case FileStat(path, "directory"):  # its time changes when any file in it does
            return path
        case tuple():
            return tuple(map(_summary, value))
        case _:
            return value
