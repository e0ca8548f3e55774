"""Undo: a filesystem records its changes, so that it can return to an earlier version.

A version stores the original of each entry that has changed since then, and a reference to the next
newer version. Each change first records the original, so an interrupt leaves at most one unneeded
record; restoring an entry twice has the same effect as restoring it once. The filesystem keeps only
a weak reference to its newest version, so it records nothing while there is no snapshot.
"""

from abc import abstractmethod
from collections.abc import Iterator
from sys import maxsize
from threading import RLock
from typing import Any, Literal, NamedTuple, Protocol
from weakref import ref

from .paths import FilesystemLimitError, FilesystemLimits, PathError, normal_path
from .protocol import Filesystem, Kind, file_error
from .text_diff import text_diff

__all__ = ["Content", "FileChange", "Version", "VersionedFilesystem"]

_LARGEST_DIFF = 200_000  # bytes


type Content = bytes | Literal["directory", "other"] | None
"""A path's content: a file's bytes, or `"other"` if the file cannot or should not be read."""


class FileChange(NamedTuple):
    """A path whose content has changed."""

    path: str
    before: Content
    after: Content


class _Entry(Protocol):
    """A file or directory, as a filesystem stores it."""

    @property
    def kind(self) -> Kind: ...


class Version[E: _Entry]:
    """A state of a filesystem; `snapshot()` returns it."""

    __slots__ = ("__weakref__", "newer", "operation_count", "originals", "spool")

    def __init__(self) -> None:
        self.newer: Version[E] | None = None
        # The original entry at each changed path, in the order of the changes; `None` if there was
        # none.
        self.originals: dict[str, E | None] = {}
        self.operation_count = 0  # for a fork: how many changes it had logged
        # Any: a filesystem's storage for contents that are too large to keep in memory.
        self.spool: Any = None


class VersionedFilesystem[E: _Entry](Filesystem):
    """A filesystem built from three primitives on its entries: get, put and move.

    These are enough to support undo; `ForkableFilesystem` adds forks.
    """

    def __init__(self, *, read_only: bool, limits: FilesystemLimits) -> None:
        self.read_only = read_only
        self.limits = limits
        self.lock = RLock()
        self._newest: ref[Version[E]] | None = None

    @abstractmethod
    def _kind(self, path: str) -> Kind | None:
        """Returns the kind of the entry at `path`, or `None` if there is none."""

    @abstractmethod
    def _get(self, path: str, version: Version[E]) -> E | None:
        """Returns the entry at `path`, for `version` to store."""

    @abstractmethod
    def _put(self, path: str, entry: E | None) -> None:
        """Replaces the entry at `path` with `entry`; `None` removes it."""

    @abstractmethod
    def _move(self, path: str, to: str) -> None:
        """Moves a file into an existing directory."""

    @abstractmethod
    def _read(self, entry: E, max_bytes: int) -> bytes | None:
        """Returns a file's content, or `None` if it has more than `max_bytes`."""

    def _below(self, path: str, entry: E) -> Iterator[tuple[str, E]]:
        """Yields the entry at `path` and, for a directory, everything in it."""
        yield path, entry

    @abstractmethod
    def _new_entry(self, data: bytes | None) -> E:
        """Returns a new file, or a new directory if `data` is `None`."""

    def write_bytes(self, path: str, data: bytes, /) -> None:
        with self.lock:
            name = self._changeable_path(path)
            self._check_size(path, len(data))
            kind = self._check_kind(path, name, directory=IsADirectoryError)
            if kind is None:
                self._make_parents(name)
            self._change(name, kind, self._new_entry(bytes(data)))
            self._log("write_bytes", path, bytes(data))

    def append_bytes(self, path: str, data: bytes, /) -> None:
        with self.lock:
            super().append_bytes(path, data)

    def delete(self, path: str, /, *, recursive: bool = False) -> None:
        with self.lock:
            name = self._changeable_path(path)
            if name == ".":
                raise PermissionError("the root cannot be deleted; delete its entries instead")
            kind = self._check_kind(path, name, missing=FileNotFoundError)
            if kind == "directory" and not recursive:
                raise file_error(IsADirectoryError, path)
            self._remove(name, kind)
            self._log("delete", path, recursive=True)

    def mkdir(self, path: str, /) -> None:
        with self.lock:
            name = self._changeable_path(path)
            if self._check_kind(path, name, file=FileExistsError) is None:
                self._make_parents(name)
                self._change(name, None, self._new_entry(None))
                self._log("mkdir", path)

    def rename(self, path: str, to: str, /) -> None:
        with self.lock:
            name, new = self._changeable_path(path), self._changeable_path(to)
            self._check_kind(path, name, missing=FileNotFoundError, directory=IsADirectoryError)
            replaced = self._check_kind(to, new, directory=IsADirectoryError)
            if name != new:
                self._make_parents(new)
                self._record(new, replaced)
                self._record(name, "file")
                self._move(name, new)
                self._log("rename", path, to)

    def snapshot(self) -> Version[E]:
        """Returns the current version, to which `restore` can return; takes O(1)."""
        with self.lock:
            newest = self._newest_version()
            if newest is not None and not newest.originals:
                return newest
            version = Version[E]()
            if newest is not None:
                newest.newer = version
            self._newest = ref(version)
            return version

    def restore(self, snapshot: Version[E], /) -> None:
        """Undoes every change since `snapshot`, and invalidates newer snapshots.

        If an entry cannot be restored, the other entries still are, and the next `restore` tries it
        again. Raises an `ExceptionGroup` with these failures, and `ValueError` for a snapshot that
        is invalid or belongs to another filesystem.
        """
        with self.lock:
            versions = [snapshot]
            while versions[-1] is not self._newest_version():
                if versions[-1].newer is None:
                    raise ValueError(
                        "this snapshot belongs to another filesystem, or was invalidated by "
                        "restoring an older one; restore it on its own filesystem, newest "
                        "snapshots first"
                    )
                versions.append(versions[-1].newer)
            originals: dict[str, E | None] = {}
            for version in versions:
                for path, entry in version.originals.items():
                    originals.setdefault(path, entry)
            # After an interrupt between any two of these assignments, another restore still works.
            snapshot.originals = originals
            self._newest = ref(snapshot)
            for version in versions:
                version.newer = None
            self._put_back(snapshot)

    def changes_since(self, snapshot: Version[E], /) -> dict[str, dict[str, str]]:
        """Returns the changes since `snapshot` under "files", as a unified diff for each path.

        For a large file, or one that is not text, returns its sizes instead. The time it takes
        depends on how much has changed.
        """
        differences = {change.path: _difference(change) for change in self.changes(snapshot)}
        return {"files": {path: text for path, text in differences.items() if text}}

    def changes(self, snapshot: Version[E], max_bytes: int = maxsize) -> Iterator[FileChange]:
        """Yields the differences from `snapshot` by path, reading about `max_bytes` of them."""
        originals: dict[str, E | None] = {}
        version: Version[E] | None = snapshot
        with self.lock:
            while version is not None:
                for path, entry in version.originals.items():
                    for name, below in () if entry is None else self._below(path, entry):
                        originals.setdefault(name, below)
                    originals.setdefault(path, None)
                version = version.newer
        for path in sorted(originals):
            before, after = self._content_of(originals[path], max_bytes), self._content_at(path)
            max_bytes -= len(before or "")
            if before != after or after == "other":
                yield FileChange(path, before, after)

    def _content_of(self, entry: E | None, max_bytes: int) -> Content:
        if entry is None:
            return None
        if entry.kind != "file":
            return entry.kind
        try:
            data = self._read(entry, max_bytes)
        except OSError:
            data = None
        return "other" if data is None else data

    def _content_at(self, path: str) -> Content:
        try:
            return "directory" if self._kind(path) == "directory" else self.read_bytes(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, PathError):
            return "other"

    def _put_back(self, version: Version[E]) -> None:
        """Restores the entries that `version` recorded, last first; keeps any that fail."""
        entries = [*reversed(version.originals.items())]
        # Restore directories a second time, after their contents, to set their times.
        directories = [
            (path, entry)
            for path, entry in reversed(entries)
            if entry and entry.kind == "directory"
        ]
        failures: list[Exception] = []
        interrupt: BaseException | None = None
        for path, entry in entries + directories:
            for _ in range(2):  # an interrupt is raised at the end; its entry is retried
                try:
                    self._put(path, entry)
                except Exception as error:
                    failures.append(error)
                    break
                except BaseException as error:
                    interrupt = error
                else:
                    version.originals.pop(path, None)
                    break
        if not version.originals:
            version.spool = None
        if interrupt is not None:
            raise interrupt
        if failures:
            raise ExceptionGroup(f"cannot restore {len(failures)} changes", failures)

    def _log(self, method: str, *arguments: str | bytes, **options: bool) -> None:
        """Handles a finished change; a fork logs it, to repeat it on its base later."""

    def _newest_version(self) -> Version[E] | None:
        return None if self._newest is None else self._newest()

    def _record(self, path: str, kind: Kind | None) -> None:
        """Records the entry at `path`, which is of this kind."""
        version = self._newest_version()
        if version is not None and path not in version.originals:
            version.originals[path] = None if kind is None else self._get(path, version)

    def _change(self, path: str, kind: Kind | None, entry: E | None) -> None:
        """Replaces the entry at `path`, which is of this kind."""
        self._record(path, kind)
        self._put(path, entry)

    def _remove(self, path: str, kind: Kind | None) -> None:
        """Removes a file, or a directory with everything in it."""
        self._change(path, kind, None)

    def _make_parents(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        if parent and self._kind(parent) is None:
            self._make_parents(parent)
            self._change(parent, None, self._new_entry(None))

    def _check_kind(self, path: str, name: str, **errors: type[OSError]) -> Kind | None:
        """Returns the kind of the entry at `name`, or raises the error for that kind.

        "missing" means that there is no entry. The kind "other" is always an error.
        """
        kind = self._kind(name)
        error = PermissionError if kind == "other" else errors.get(kind or "missing")
        if error is not None:
            raise file_error(error, path)
        return kind

    def _check_size(self, path: str, size: int) -> None:
        if size > self.limits.file_bytes:
            raise FilesystemLimitError(
                f"cannot read or write {path!r}: it would have {size} bytes, the limit is "
                f"{self.limits.file_bytes}; split it, or raise FilesystemLimits.file_bytes"
            )

    def _check_count(self, path: str, count: int) -> None:
        if count > self.limits.entries:
            raise FilesystemLimitError(
                f"{path!r} has more than {self.limits.entries} entries; list a subdirectory"
            )

    def _changeable_path(self, path: str) -> str:
        name = normal_path(path, self.limits)
        if self.read_only:
            raise PermissionError(
                f"cannot change {path!r}: this filesystem is read-only; write elsewhere"
            )
        return name


def _difference(change: FileChange) -> str:
    """Returns a file's diff, or its sizes; empty if there is no file before or after the change."""
    path, *contents = change
    before, after = [content if isinstance(content, bytes) else None for content in contents]
    if before == after:
        return ""
    old_name, new_name = ["/dev/null" if data is None else path for data in (before, after)]
    if diff := text_diff(before, after, (old_name, new_name), _LARGEST_DIFF):
        return diff.removesuffix("\n")
    sizes = ["none" if data is None else f"{len(data):,} bytes" for data in (before, after)]
    return " -> ".join(sizes)
