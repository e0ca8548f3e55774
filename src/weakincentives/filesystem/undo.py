"""Undo: a filesystem records what it changes, so that it can go back to an earlier version.

A version holds the original of each entry that has changed since, and the next newer version. Each
change records the original first, so an interrupt leaves at most one record too many; restoring an
entry twice has the same result as once. The filesystem refers to its newest version weakly: it
records nothing while nobody holds a snapshot.
"""

from abc import abstractmethod
from collections.abc import Iterator
from threading import RLock
from typing import Any, Protocol
from weakref import ref

from .differences import text_diff
from .paths import FilesystemLimitError, FilesystemLimits, PathError, normal_path
from .protocol import Filesystem, Kind, file_error

__all__ = ["Version", "VersionedFilesystem"]


_LARGEST_DIFF = 200_000  # bytes


class _Entry(Protocol):
    """A file or directory, as a filesystem keeps it."""

    @property
    def kind(self) -> Kind: ...


class Version[E: _Entry]:
    """A state of a filesystem; `snapshot()` returns it."""

    __slots__ = ("__weakref__", "newer", "operation_count", "originals", "spool")

    def __init__(self) -> None:
        self.newer: Version[E] | None = None
        # The entry at each path that has changed since, in order of the changes; `None` for none.
        self.originals: dict[str, E | None] = {}
        self.operation_count = 0  # see OverlayFilesystem
        # Any: where a filesystem keeps contents that should not fill the memory
        self.spool: Any = None


class VersionedFilesystem[E: _Entry](Filesystem):
    """A filesystem made of three primitives over its entries: get one, put one, move one."""

    def __init__(self, *, read_only: bool, limits: FilesystemLimits) -> None:
        self.read_only = read_only
        self.limits = limits
        self.lock = RLock()
        self._newest: ref[Version[E]] | None = None

    @abstractmethod
    def _kind(self, path: str) -> Kind | None:
        """Returns the kind of the entry at `path`, or `None` without one."""

    @abstractmethod
    def _get(self, path: str, version: Version[E]) -> E | None:
        """Returns the entry at `path` for `version` to keep."""

    @abstractmethod
    def _put(self, path: str, entry: E | None) -> None:
        """Puts `entry` in the place of whatever is at `path`; `None` removes that."""

    @abstractmethod
    def _move(self, path: str, to: str) -> None:
        """Moves a file into a directory that is there."""

    @abstractmethod
    def _files(self, path: str, entry: E) -> Iterator[tuple[str, bytes]]:
        """Yields path and content of the file `entry`, or of the files that a directory holds."""

    @abstractmethod
    def _new_entry(self, data: bytes | None) -> E:
        """Returns a new file, or a new directory for `None`."""

    def write_bytes(self, path: str, data: bytes, /) -> None:
        with self.lock:
            name = self._changeable_path(path)
            self._check_size(path, len(data))
            if self._check_kind(path, name, directory=IsADirectoryError) is None:
                self._make_parents(name)
            self._change(name, self._new_entry(bytes(data)))
            self._log("write_bytes", path, bytes(data))

    def append_bytes(self, path: str, data: bytes, /) -> None:
        with self.lock:
            super().append_bytes(path, data)

    def delete(self, path: str, /, *, recursive: bool = False) -> None:
        with self.lock:
            name = self._changeable_path(path)
            if name == ".":
                raise PermissionError("the root cannot be deleted; name what is in it")
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
                self._change(name, self._new_entry(None))
                self._log("mkdir", path)

    def rename(self, path: str, to: str, /) -> None:
        with self.lock:
            name, new = self._changeable_path(path), self._changeable_path(to)
            self._check_kind(path, name, missing=FileNotFoundError, directory=IsADirectoryError)
            self._check_kind(to, new, directory=IsADirectoryError)
            if name != new:
                self._make_parents(new)
                self._record(new)
                self._record(name)
                self._move(name, new)
                self._log("rename", path, to)

    def snapshot(self) -> Version[E]:
        """Returns the present version, to which `restore` can go back; takes O(1)."""
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
        """Puts back all that has changed since `snapshot`, which makes newer snapshots invalid.

        An entry that cannot be put back does not stop the rest; another `restore` tries it again.
        Raises an `ExceptionGroup` of these failures, and `ValueError` for a snapshot that is
        invalid or of another filesystem.
        """
        with self.lock:
            versions = [snapshot]
            while versions[-1] is not self._newest_version():
                if versions[-1].newer is None:
                    raise ValueError(
                        "this snapshot is of another filesystem, or an older one was restored "
                        "since; restore where it was made, newer ones before older ones"
                    )
                versions.append(versions[-1].newer)
            originals: dict[str, E | None] = {}
            for version in versions:
                for path, entry in version.originals.items():
                    originals.setdefault(path, entry)
            # After an interrupt between any two of these assignments, restoring again is right.
            snapshot.originals = originals
            self._newest = ref(snapshot)
            for version in versions:
                version.newer = None
            self._put_back(snapshot)

    def changes_since(self, snapshot: Version[E], /) -> dict[str, dict[str, str]]:
        """Returns what has changed since `snapshot` as a unified diff by path, under "files".

        A file that is large or no text has its sizes instead. Takes time for what has changed.
        """
        with self.lock:
            version: Version[E] | None = snapshot
            before: dict[str, bytes | None] = {}
            while version is not None:
                for path, entry in version.originals.items():
                    for name, data in self._files(path, entry) if entry is not None else ():
                        before.setdefault(name, data)
                    before.setdefault(path, None)
                version = version.newer
            after = {path: self._content(path) for path in before}
        differences = {path: _difference(path, before[path], after[path]) for path in before}
        return {"files": {path: text for path, text in differences.items() if text}}

    def _content(self, path: str) -> bytes | None:
        try:
            return self.read_bytes(path)
        except (OSError, PathError):  # gone, or a directory
            return None

    def _put_back(self, version: Version[E]) -> None:
        """Puts back what `version` recorded, the last first; keeps the record of what fails."""
        entries = [*reversed(version.originals.items())]
        # Directories come once more, for their times, when all that is in them is back.
        directories = [
            (path, entry)
            for path, entry in reversed(entries)
            if entry and entry.kind == "directory"
        ]
        failures: list[Exception] = []
        interrupt: BaseException | None = None
        for path, entry in entries + directories:
            for _ in range(2):  # an interrupt waits until the end, and its entry is put back again
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
            raise ExceptionGroup(f"{len(failures)} changes could not be put back", failures)

    def _log(self, method: str, *arguments: str | bytes, **options: bool) -> None:
        """Receives each finished change; a fork repeats them on its base."""

    def _newest_version(self) -> Version[E] | None:
        return None if self._newest is None else self._newest()

    def _record(self, path: str) -> None:
        version = self._newest_version()
        if version is not None and path not in version.originals:
            version.originals[path] = self._get(path, version)

    def _change(self, path: str, entry: E | None) -> None:
        self._record(path)
        self._put(path, entry)

    def _remove(self, path: str, kind: Kind | None) -> None:
        """Removes a file, or a directory with all below it."""
        self._change(path, None)

    def _make_parents(self, path: str) -> None:
        parent = path.rpartition("/")[0]
        if parent and self._kind(parent) is None:
            self._make_parents(parent)
            self._change(parent, self._new_entry(None))

    def _check_kind(self, path: str, name: str, **errors: type[OSError]) -> Kind | None:
        """Returns the kind of the entry at `name`, or raises the error for that kind.

        "missing" stands for no entry. The kind "other" is always an error.
        """
        kind = self._kind(name)
        error = PermissionError if kind == "other" else errors.get(kind or "missing")
        if error is not None:
            raise file_error(error, path)
        return kind

    def _check_size(self, path: str, size: int) -> None:
        if size > self.limits.file_bytes:
            raise FilesystemLimitError(
                f"{path!r} would be read or written with {size} bytes, but files may have "
                f"{self.limits.file_bytes}; split it, or raise FilesystemLimits.file_bytes"
            )

    def _check_count(self, path: str, count: int) -> None:
        if count > self.limits.entries:
            raise FilesystemLimitError(
                f"{path!r} holds more than {self.limits.entries} entries; name the one you need"
            )

    def _changeable_path(self, path: str) -> str:
        name = normal_path(path, self.limits)
        if self.read_only:
            raise PermissionError(
                f"{path!r} cannot be changed: this filesystem is read-only; write elsewhere"
            )
        return name


def _difference(path: str, before: bytes | None, after: bytes | None) -> str:
    """Returns a unified diff of two contents, or their sizes; empty if they are equal."""
    if before == after:
        return ""
    old_name, new_name = ["/dev/null" if data is None else path for data in (before, after)]
    if diff := text_diff(before, after, (old_name, new_name), _LARGEST_DIFF):
        return diff.removesuffix("\n")
    sizes = ["none" if data is None else f"{len(data):,} bytes" for data in (before, after)]
    return " -> ".join(sizes)
