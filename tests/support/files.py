"""Filesystems of every sort, operations on them, and a dict as their model."""

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from weakincentives.filesystem import Filesystem, HostFilesystem, InMemoryFilesystem

SORTS = ("memory", "host", "fork of memory", "fork of host")

PLACE = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108 - tests make a directory with a new name in it
"""A folder in memory, if the platform has one."""

type Tree = dict[str, bytes | None]
"""The entry at each path: a file's content, or `None` for a directory."""


@contextmanager
def filesystem(sort: str, files: Tree | None = None) -> Generator[Filesystem]:
    """Yields a filesystem of the given sort with some content; a fork's content is in its base."""
    with tempfile.TemporaryDirectory(dir=PLACE) as root:
        host = HostFilesystem(root)
        new_files: Filesystem = host if "host" in sort else InMemoryFilesystem()
        for path, data in (files or {}).items():
            if data is None:
                new_files.mkdir(path)
            else:
                new_files.write_bytes(path, data)
        yield new_files.fork() if "fork" in sort else new_files
        host.close()


def tree(files: Filesystem) -> Tree:
    return {
        entry.path: files.read_bytes(entry.path) if entry.kind == "file" else None
        for entry in files.walk()
        if entry.kind != "other"
    }


def host_tree(root: str | Path) -> dict[str, tuple[int, int, bytes]]:
    """Returns mode, time and content of each file below a directory, and each directory's mode."""
    stats: dict[str, tuple[int, int, bytes]] = {}
    for above, directories, names in os.walk(root):
        for name in directories:
            path = Path(above, name)
            stats[str(path.relative_to(root))] = (path.lstat().st_mode, 0, b"")
        for name in names:
            path = Path(above, name)
            stat = path.lstat()
            stats[str(path.relative_to(root))] = (stat.st_mode, stat.st_mtime_ns, path.read_bytes())
    return stats


@dataclass(frozen=True)
class Do:
    """One operation."""

    what: str
    path: str
    more: str = ""

    def on(self, files: Filesystem) -> type[Exception] | None:
        """Performs the operation; returns the type of the error that it raised."""
        try:
            match self.what:
                case "write":
                    files.write_text(self.path, self.more)
                case "append":
                    files.append_text(self.path, self.more)
                case "delete":
                    files.delete(self.path)
                case "delete all":
                    files.delete(self.path, recursive=True)
                case "mkdir":
                    files.mkdir(self.path)
                case "rename":
                    files.rename(self.path, self.more)
                case _:
                    raise AssertionError(self.what)
        except OSError as error:
            return type(error)
        return None

    def on_tree(self, files: Tree) -> type[Exception] | None:
        """Performs the operation on a dict, as `on` does."""
        try:
            self._on_tree(files)
        except OSError as error:
            return type(error)
        return None

    def _on_tree(self, files: Tree) -> None:
        there, below = (
            _kind(files, self.path),
            [at for at in files if f"{at}/".startswith(f"{self.path}/")],
        )
        match self.what, there:
            case "rename", _:
                self._rename(files, there)
            case "delete" | "delete all", None:
                raise FileNotFoundError
            case ("delete", "directory") | ("write" | "append", "directory"):
                raise IsADirectoryError
            case "delete" | "delete all", _:
                for path in below:
                    del files[path]
            case "mkdir", "file":
                raise FileExistsError
            case _:
                _parents(files, self.path)
                before = (files.get(self.path) or b"") if self.what == "append" else b""
                files[self.path] = None if self.what == "mkdir" else before + self.more.encode()

    def _rename(self, files: Tree, there: str | None) -> None:
        if there is None:
            raise FileNotFoundError
        if there == "directory" or _kind(files, self.more) == "directory":
            raise IsADirectoryError
        _parents(files, self.more)
        files[self.more] = files.pop(self.path)


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts))]


def _kind(files: Tree, path: str) -> str | None:
    for above in _above(path):
        if above not in files:
            return None
        if files[above] is not None:
            raise NotADirectoryError
    return None if path not in files else "directory" if files[path] is None else "file"


def _parents(files: Tree, path: str) -> None:
    for above in _above(path):
        files.setdefault(above, None)


# Few, so that operations use the same paths.
PATHS = st.sampled_from(["a", "b", "a/a", "a/b", "b/a", "a/a/a", "a/a/b", "b/a/a"])
TEXTS = st.text("xyz\n", max_size=3)
OPERATIONS = (
    st.builds(Do, st.sampled_from(["write", "append"]), PATHS, TEXTS)
    | st.builds(Do, st.sampled_from(["delete", "delete all", "mkdir"]), PATHS)
    | st.builds(Do, st.just("rename"), PATHS, PATHS)
)


def _grown(steps: list[Do]) -> Tree:
    files: Tree = {}
    for step in steps:
        step.on_tree(files)
    return files


TREES = st.lists(OPERATIONS, max_size=8).map(_grown)
