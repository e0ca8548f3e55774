"""Undo by re-rooting: what the three filesystems share. Where entries are kept is theirs.

A version knows how to get to it from the present: the pre-images of what has changed since, and,
when other versions came after it, the next of those (Baker's arrays). Each change records first and
changes then, so that an interrupt leaves at most a pre-image too many; putting back is idempotent.
The filesystem refers to its newest version weakly: without a snapshot that somebody holds nothing
is recorded, and abandoned branches are garbage.
"""

from abc import abstractmethod
from threading import RLock
from typing import Any, Protocol
from weakref import ref

from .protocol import Filesystem, FilesystemLimitError, FilesystemLimits, Kind, fault, normal_path

__all__ = ["Version", "VersionedFilesystem"]


class _Entry(Protocol):
    """What may stand at a path."""

    @property
    def kind(self) -> Kind: ...


class Version[E: _Entry]:
    """One state of a filesystem; what `snapshot()` gives."""

    __slots__ = ("__weakref__", "after", "past", "pre", "spool")

    def __init__(self, past: tuple[object, ...] = ()) -> None:
        self.past = past  # what a filesystem keeps beside its entries
        self.after: Version[E] | None = None
        # what stood at each path that has changed since, in order
        self.pre: dict[str, E | None] = {}
        # Any: where a filesystem keeps contents that should not fill the memory
        self.spool: Any = None


class VersionedFilesystem[E: _Entry](Filesystem):
    """A filesystem made of three primitives over entries of type `E`: get one, put one, move one."""

    def __init__(self, *, read_only: bool, limits: FilesystemLimits) -> None:
        self.read_only = read_only
        self.limits = limits
        self.lock = RLock()
        self._newest: ref[Version[E]] | None = None
        self._past: tuple[object, ...] = ()

    @abstractmethod
    def _kind(self, path: str) -> Kind | None:
        """The kind of what stands at `path`, if anything does."""

    @abstractmethod
    def _get(self, path: str, version: Version[E]) -> E | None:
        """What stands at `path`, to be kept by `version`."""

    @abstractmethod
    def _put(self, path: str, entry: E | None) -> None:
        """Makes `entry` stand at `path`, whatever is there; `None` removes it."""

    @abstractmethod
    def _move(self, path: str, to: str) -> None:
        """Gives a file another path, whose directory is there."""

    @abstractmethod
    def _made(self, data: bytes | None) -> E:
        """A new file, or a new directory for `None`."""

    def write_bytes(self, path: str, data: bytes, /) -> None:
        with self.lock:
            name = self._changeable(path)
            self.check_size(path, len(data))
            if self._checked(path, name, directory=IsADirectoryError) is None:
                self._make_parents(name)
            self._change(name, self._made(bytes(data)))
            self._did("write_bytes", path, bytes(data))

    def append_bytes(self, path: str, data: bytes, /) -> None:
        with self.lock:
            super().append_bytes(path, data)

    def delete(self, path: str, /, *, recursive: bool = False) -> None:
        with self.lock:
            name = self._changeable(path)
            if name == ".":
                raise PermissionError("the root cannot be deleted; name what is in it")
            kind = self._checked(path, name, nothing=FileNotFoundError)
            if kind == "directory" and not recursive:
                raise fault(IsADirectoryError, path)
            self._remove(name, kind)
            self._did("delete", path, recursive=True)

    def mkdir(self, path: str, /) -> None:
        with self.lock:
            name = self._changeable(path)
            if self._checked(path, name, file=FileExistsError) is None:
                self._make_parents(name)
                self._change(name, self._made(None))
                self._did("mkdir", path)

    def rename(self, path: str, to: str, /) -> None:
        with self.lock:
            name, new = self._changeable(path), self._changeable(to)
            self._checked(path, name, nothing=FileNotFoundError, directory=IsADirectoryError)
            self._checked(to, new, directory=IsADirectoryError)
            if name != new:
                self._make_parents(new)
                self._record(new)
                self._record(name)
                self._move(name, new)
                self._did("rename", path, to)

    def snapshot(self) -> Version[E]:
        """The present state, to be put back in any order with others as long as somebody holds it;
        takes O(1).
        """
        with self.lock:
            newest = self._version()
            if newest is not None and not newest.pre:
                return newest
            version = Version[E](self._past)
            if newest is not None:
                newest.after = version
            self._newest = ref(version)
            return version

    def restore(self, snapshot: Version[E], /) -> None:
        """Puts back what has changed since or before `snapshot`, and nothing else.

        What cannot be put back does not stop the rest and is raised as an `ExceptionGroup`. Raises
        `ValueError` for a snapshot of another filesystem.
        """
        with self.lock:
            path: list[Version[E]] = [snapshot]
            while path[-1] is not self._version():
                if path[-1].after is None:
                    raise ValueError(
                        "this snapshot is of another filesystem; restore it where it was made"
                    )
                path.append(path[-1].after)
            self._past = snapshot.past
            failures: list[BaseException] = []
            current = path.pop()
            self._put_back(current, failures)
            while path:
                version = path.pop()
                # One assignment after the other, and each leaves both within reach. What failed is
                # now `version`'s too.
                current.pre = {
                    at: self._get(at, current) for at in reversed(version.pre)
                } | current.pre
                version.pre = version.pre | current.pre | version.pre
                current.after = version
                self._newest = ref(version)
                version.after = None
                self._put_back(version, failures)
                current = version
            if failures:
                for error in failures:
                    if not isinstance(error, Exception):
                        raise error
                raise BaseExceptionGroup(f"{len(failures)} changes could not be put back", failures)

    def _put_back(self, version: Version[E], failures: list[BaseException]) -> None:
        """Puts back what `version` recorded, the last first; what fails stays recorded for another
        try.
        """
        pre = version.pre
        back = [(path, pre[path]) for path in reversed(pre)]
        # Once more for their times, when all is back that is in them.
        folders = [
            (path, entry) for path, entry in reversed(back) if entry and entry.kind == "directory"
        ]
        for path, entry in back + folders:
            # an interrupt waits until all is put back, and what it interrupted is done again
            for _ in range(2):
                try:
                    self._put(path, entry)
                except BaseException as error:
                    failures.append(error)
                    if isinstance(error, Exception):
                        break
                else:
                    pre.pop(path, None)
                    break
        if version.spool is not None and not pre:
            version.spool.seek(0)
            version.spool.truncate()

    def _did(self, method: str, *arguments: str | bytes, **options: bool) -> None:
        """Hears of each change that came to its end."""

    def _version(self) -> Version[E] | None:
        return None if self._newest is None else self._newest()

    def _record(self, path: str) -> None:
        version = self._version()
        if version is not None and path not in version.pre:
            version.pre[path] = self._get(path, version)

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
            self._change(parent, self._made(None))

    def _checked(self, path: str, name: str, **wrong: type[OSError]) -> Kind | None:
        """The kind of what stands at `name`, unless that is `wrong`; what is "other" always is."""
        kind = self._kind(name)
        error = PermissionError if kind == "other" else wrong.get(kind or "nothing")
        if error is not None:
            raise fault(error, path)
        return kind

    def check_size(self, path: str, size: int) -> None:
        """Raises `FilesystemLimitError` for a file that is larger than the limits allow."""
        if size > self.limits.file_bytes:
            raise FilesystemLimitError(
                f"{path!r} would be read or written with {size} bytes, but files may have {self.limits.file_bytes}; "
                "split it, or raise FilesystemLimits.file_bytes"
            )

    def too_many(self, path: str) -> FilesystemLimitError:
        """The error of a directory with more entries than the limits allow, to be raised."""
        return FilesystemLimitError(
            f"{path!r} holds more than {self.limits.entries} entries; name the one you need"
        )

    def _changeable(self, path: str) -> str:
        name = normal_path(path, self.limits)
        if self.read_only:
            raise PermissionError(
                f"{path!r} cannot be changed: this filesystem is read-only; write elsewhere"
            )
        return name
