"""An in-memory tree of files, for `InMemoryFilesystem` and forks.

A `File` never changes; a write replaces it with a new one.
"""

from collections.abc import Iterator
from contextlib import suppress
from time import time

from .paths import FilesystemLimits, normal_path
from .protocol import FileStat, Kind, file_error
from .undo import Version, VersionedFilesystem

__all__ = ["Directory", "File", "Node", "TreeFilesystem"]


class File:
    """A file's content and the time it was written."""

    kind: Kind = "file"

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._modified = time()

    def read(self) -> bytes:
        return self._data

    def stat(self, path: str) -> FileStat:
        return FileStat(path, self.kind, len(self._data), self._modified)


class Directory:
    """Nodes by name. A directory no longer changes once it has been removed from its tree."""

    kind: Kind = "directory"

    def __init__(self) -> None:
        self.children: dict[str, Node | None] = {}
        self._modified = time()

    def get(self, name: str) -> "Node | None":
        return self.children.get(name)

    def put(self, name: str, node: "Node | None") -> None:
        if node is None:
            self.children.pop(name, None)
        else:
            self.children[name] = node

    def list(self, prefix: str) -> list[FileStat]:
        children = self.children.items()
        return [node.stat(prefix + name) for name, node in children if node is not None]

    def stat(self, path: str) -> FileStat:
        return FileStat(path, "directory", 0, self._modified)


type Node = File | Directory


class TreeFilesystem(VersionedFilesystem[Node]):
    """Files in a tree of nodes. Any thread may use it."""

    def __init__(self, root: Directory, *, limits: FilesystemLimits) -> None:
        super().__init__(read_only=False, limits=limits)
        self._root = root

    def read_bytes(self, path: str, /) -> bytes:
        with self.lock:
            node = self._node(path)
            if isinstance(node, Directory):
                raise file_error(IsADirectoryError, path)
            return node.read()

    def list(self, path: str = ".", /) -> tuple[FileStat, ...]:
        with self.lock:
            node = self._node(path)
            if not isinstance(node, Directory):
                raise file_error(NotADirectoryError, path)
            prefix = "" if node is self._root else normal_path(path, self.limits) + "/"
            entries = node.list(prefix)
            self._check_count(path, len(entries))
            return tuple(sorted(entries, key=lambda entry: entry.path))

    def stat(self, path: str, /) -> FileStat:
        with self.lock:
            return self._node(path).stat(normal_path(path, self.limits))

    def _node(self, path: str) -> Node:
        node = self._find(normal_path(path, self.limits))
        if node is None:
            raise file_error(FileNotFoundError, path)
        return node

    def _find(self, path: str, *, attach: bool = False) -> Node | None:
        """Returns the node at `path`; with `attach`, adds every node on the way to this tree."""
        node: Node = self._root
        for name in () if path == "." else path.split("/"):
            if not isinstance(node, Directory):
                error = PermissionError if node.kind == "other" else NotADirectoryError
                raise file_error(error, path)
            child = node.get(name)
            if child is None:
                return None
            if attach:
                node.put(name, child)
            node = child
        return node

    def _kind(self, path: str) -> Kind | None:
        node = self._find(path)
        return None if node is None else node.kind

    def _new_entry(self, data: bytes | None) -> Node:
        return Directory() if data is None else File(data)

    def _read(self, entry: Node, max_bytes: int) -> bytes | None:
        if isinstance(entry, Directory) or entry.stat("").size > max_bytes:
            return None
        return entry.read()

    def _below(self, path: str, entry: Node) -> Iterator[tuple[str, Node]]:
        yield path, entry
        if isinstance(entry, Directory):
            with suppress(OSError):  # raised for a base directory that cannot be listed
                for stat in entry.list(f"{path}/"):
                    child = entry.get(stat.path.rpartition("/")[2])
                    if child is not None:
                        yield from self._below(stat.path, child)

    def _get(self, path: str, version: Version[Node]) -> Node | None:
        return self._find(path)

    def _put(self, path: str, entry: Node | None) -> None:
        directory, _, name = path.rpartition("/")
        try:
            parent = self._find(directory or ".", attach=True)
        except NotADirectoryError:
            parent = None
        if isinstance(parent, Directory):  # otherwise there is nothing to remove
            parent.put(name, entry)

    def _move(self, path: str, to: str) -> None:
        node = self._find(path)
        self._put(to, node)  # an interrupt leaves the node in both places, not in neither
        self._put(path, None)
