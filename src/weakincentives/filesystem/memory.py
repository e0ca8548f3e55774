"""A filesystem in memory: a tree of directories whose files do not change, only give way to others."""

from collections.abc import Mapping
from time import time
from types import MappingProxyType

from .protocol import FileStat, FilesystemLimits, Kind, fault, normal_path
from .undo import Version, VersionedFilesystem

__all__ = ["Directory", "File", "InMemoryFilesystem"]


class File:
    """A file's content and when it was written."""

    kind: Kind = "file"

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._modified = time()

    def read(self) -> bytes:
        return self._data

    def stat(self, path: str) -> FileStat:
        return FileStat(path, self.kind, len(self._data), self._modified)


class Directory:
    """Names and what they stand for.

    One that is in no tree does not change, so a version can keep it as it is.
    """

    kind: Kind = "directory"

    def __init__(self) -> None:
        self.children: dict[str, File | Directory | None] = {}
        self._modified = time()

    def get(self, name: str) -> "File | Directory | None":
        return self.children.get(name)

    def put(self, name: str, node: "File | Directory | None") -> None:
        if node is None:
            self.children.pop(name, None)
        else:
            self.children[name] = node

    def list(self, prefix: str) -> "list[FileStat]":
        return [
            node.stat(prefix + name) for name, node in self.children.items() if node is not None
        ]

    def stat(self, path: str) -> FileStat:
        return FileStat(path, "directory", 0, self._modified)


type Node = File | Directory


class InMemoryFilesystem(VersionedFilesystem[Node]):
    """Files in memory, at first `files` by path. Any thread may use it."""

    def __init__(
        self,
        files: Mapping[str, str | bytes] = MappingProxyType({}),
        *,
        read_only: bool = False,
        limits: FilesystemLimits = FilesystemLimits(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__(read_only=False, limits=limits)
        self._root = Directory()
        for path, content in files.items():
            self.write_bytes(path, content.encode() if isinstance(content, str) else content)
        self.read_only = read_only

    def read_bytes(self, path: str, /) -> bytes:
        with self.lock:
            node = self._there(path)
            if isinstance(node, Directory):
                raise fault(IsADirectoryError, path)
            return node.read()

    def list(self, path: str = ".", /) -> tuple[FileStat, ...]:
        with self.lock:
            node = self._there(path)
            if not isinstance(node, Directory):
                raise fault(NotADirectoryError, path)
            found = node.list("" if node is self._root else normal_path(path, self.limits) + "/")
            if len(found) > self.limits.entries:
                raise self.too_many(path)
            return tuple(sorted(found, key=lambda stat: stat.path))

    def stat(self, path: str, /) -> FileStat:
        with self.lock:
            return self._there(path).stat(normal_path(path, self.limits))

    def _there(self, path: str) -> Node:
        node = self._find(normal_path(path, self.limits))
        if node is None:
            raise fault(FileNotFoundError, path)
        return node

    def _find(self, path: str, *, keep: bool = False) -> Node | None:
        """What stands at `path`; `keep` makes all on the way a part of this tree, where it is not
        so already.
        """
        node: Node = self._root
        for name in () if path == "." else path.split("/"):
            if not isinstance(node, Directory):
                raise fault(PermissionError if node.kind == "other" else NotADirectoryError, path)
            below = node.get(name)
            if below is None:
                return None
            if keep:
                node.put(name, below)
            node = below
        return node

    def _kind(self, path: str) -> Kind | None:
        node = self._find(path)
        return None if node is None else node.kind

    def _made(self, data: bytes | None) -> Node:
        return Directory() if data is None else File(data)

    def _get(self, path: str, version: Version[Node]) -> Node | None:
        try:
            return self._find(path)
        except NotADirectoryError:
            return None

    def _put(self, path: str, entry: Node | None) -> None:
        above, _, name = path.rpartition("/")
        try:
            parent = self._find(above or ".", keep=True)
        except NotADirectoryError:
            parent = None
        if isinstance(parent, Directory):  # else something is to be removed that is not there
            parent.put(name, entry)

    def _move(self, path: str, to: str) -> None:
        node = self._find(path)
        self._put(to, node)  # at both for a moment rather than at none
        self._put(path, None)
