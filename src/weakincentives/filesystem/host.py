"""A host directory as a filesystem; no path can lead outside it.

Every access opens the names in a path one after another, starting at a descriptor for the root, and
follows no links. There is no gap between the check of a path and its use, so nobody can change the
path in between. A file with a second hard link may also exist outside the root, so the filesystem
rejects it, as it rejects symbolic links.
"""

import errno
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from io import BufferedReader
from pathlib import Path
from shutil import copyfileobj
from stat import S_IMODE, S_ISDIR, S_ISREG
from tempfile import SpooledTemporaryFile
from typing import IO
from weakref import finalize

from ..atomic_writes import RESERVED, replacing
from .overlay import ForkableFilesystem
from .paths import FilesystemLimitError, FilesystemLimits, is_utf8, normal_path
from .protocol import FileStat, Kind, file_error
from .undo import Version, VersionedFilesystem

__all__ = ["HostEntry", "HostFilesystem", "SpooledContent"]

_CHUNK = 1 << 16
# Windows does not define these flags; there, the constructor raises.
_NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)
_DIRECTORY: int = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_READ: int = os.O_RDONLY | _NO_LINK | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)


class _Spool(SpooledTemporaryFile[bytes]):
    """A temporary file for contents, which is closed when no entry refers to it any more."""

    def __del__(self) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class SpooledContent:
    """The position of one content in a file that stores many."""

    spool: IO[bytes]
    start: int
    size: int

    def chunks(self) -> Iterator[bytes]:
        for offset in range(0, self.size, _CHUNK):
            self.spool.seek(self.start + offset)
            yield self.spool.read(min(_CHUNK, self.size - offset))


@dataclass(frozen=True, slots=True)
class HostEntry:
    """An entry; only files have content, and only new entries have no status."""

    kind: Kind
    content: bytes | SpooledContent = b""
    stat: os.stat_result | None = None


class HostFilesystem(VersionedFilesystem[HostEntry], ForkableFilesystem):
    """The files below the directory `root`, which is opened once. Any thread may use it.

    With `hard_links`, it also reads files that have several hard links, because some package
    managers install files that way.

    A write creates a temporary file in the same directory and renames it, so readers see either the
    old content or the new, never partial content. Mode bits are kept, but owner and extended
    attributes are those of a new file. Raises `OSError` unless `root` is a directory and the
    platform can open files relative to a directory.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        read_only: bool = False,
        hard_links: bool = False,
        limits: FilesystemLimits = FilesystemLimits(),
    ) -> None:
        super().__init__(read_only=read_only, limits=limits)
        self._hard_links = hard_links
        needed = {os.open, os.stat, os.mkdir, os.rename, os.unlink, os.rmdir}
        if not needed <= os.supports_dir_fd or os.scandir not in os.supports_fd or not _NO_LINK:
            raise OSError(
                "this platform cannot open files relative to a directory; use InMemoryFilesystem"
            )
        self.root = Path(root)
        self._descriptor = os.open(self.root, _DIRECTORY)
        self._closer = finalize(self, os.close, self._descriptor)

    def close(self) -> None:
        """Closes the root's descriptor; any later use raises `ValueError`."""
        with self.lock:
            self._closer()

    def read_bytes(self, path: str, /) -> bytes:
        with self._open_file(normal_path(path, self.limits)) as (file, stat):
            if self._stat_of(path, stat).kind == "other":
                raise file_error(PermissionError, path)
            self._check_size(path, stat.st_size)
            data = file.read(self.limits.file_bytes + 1)
            self._check_size(path, len(data))  # the file may have grown
            return data

    def list(self, path: str = ".", /) -> tuple[FileStat, ...]:
        entries = [
            entry
            for entry in self._scan(normal_path(path, self.limits))
            if is_utf8(entry.path) and not entry.path.rpartition("/")[2].startswith(RESERVED)
        ]
        return tuple(sorted(entries, key=lambda entry: entry.path))

    def stat(self, path: str, /) -> FileStat:
        path = normal_path(path, self.limits)
        with self._open_parent(path) as (parent, name):
            return self._stat_of(path, _stat(parent, name))

    def __repr__(self) -> str:
        return f"HostFilesystem({os.fspath(self.root)!r})"

    @contextmanager
    def _open_parent(self, path: str) -> Generator[tuple[int, str]]:
        """Opens the parent directory of `path`; yields its descriptor and the path's last name.

        Replaces the host's errors with ours.
        """
        *directories, name = path.split("/")
        with self.lock:
            if not self._closer.alive:
                raise ValueError(f"{self!r} is closed; create a new one")
            descriptor = os.dup(self._descriptor)
        try:
            for directory in directories:
                child = _open_directory(descriptor, directory, path)
                descriptor, parent = child, descriptor
                os.close(parent)
            yield descriptor, name
        except OSError as error:
            if error.errno is None:  # already one of our errors
                raise
            if error.errno == errno.ELOOP:
                raise file_error(PermissionError, path) from error
            if isinstance(
                error, FileNotFoundError | IsADirectoryError | NotADirectoryError | FileExistsError
            ):
                raise file_error(type(error), path) from error
            raise OSError(error.errno, error.strerror, path) from error
        finally:
            os.close(descriptor)

    @contextmanager
    def _open_file(self, path: str) -> Generator[tuple[BufferedReader, os.stat_result]]:
        """Opens a regular file and yields it with its status."""
        with self._open_parent(path) as (parent, name):
            # Opening a device can have side effects, so check the file type before opening it, and
            # again afterwards.
            _check_regular(_stat(parent, name), path)
            with open(name, "rb", opener=partial(_open_for_reading, parent)) as file:
                yield file, _check_regular(os.fstat(file.fileno()), path)

    def _scan(self, path: str) -> Iterator[FileStat]:
        """Yields a directory's entries, unsorted and including the temporary files of writers."""
        prefix = "" if path == "." else path + "/"
        with self._open_parent(path) as (parent, name):
            descriptor = _open_directory(parent, name, path)
            try:
                with os.scandir(descriptor) as entries:
                    for count, entry in enumerate(entries, 1):
                        self._check_count(path, count)
                        with suppress(FileNotFoundError):  # it was removed in the meantime
                            stat = entry.stat(follow_symlinks=False)
                            yield self._stat_of(prefix + entry.name, stat)
            finally:
                os.close(descriptor)

    def _stat_of(self, path: str, stat: os.stat_result) -> FileStat:
        kind: Kind = "other"
        if S_ISDIR(stat.st_mode):
            kind = "directory"
        elif S_ISREG(stat.st_mode) and (stat.st_nlink == 1 or self._hard_links):
            kind = "file"
        return FileStat(path, kind, 0 if kind == "directory" else stat.st_size, stat.st_mtime)

    def _kind(self, path: str) -> Kind | None:
        try:
            return self.stat(path).kind
        except FileNotFoundError:
            return None

    def _new_entry(self, data: bytes | None) -> HostEntry:
        return HostEntry("directory") if data is None else HostEntry("file", data)

    def _read(self, entry: HostEntry, max_bytes: int) -> bytes | None:
        content = entry.content
        if isinstance(content, SpooledContent):
            return None if content.size > max_bytes else b"".join(content.chunks())
        return content

    def _get(self, path: str, version: Version[HostEntry]) -> HostEntry | None:
        try:
            with self._open_parent(path) as (parent, name):
                stat = _stat(parent, name)
                if S_ISDIR(stat.st_mode):
                    return HostEntry("directory", stat=stat)
            with self._open_file(path) as (file, stat):
                if version.spool is None:
                    version.spool = self._new_spool()
                spool: IO[bytes] = version.spool
                start = spool.seek(0, os.SEEK_END)
                copyfileobj(file, spool, _CHUNK)
                content = SpooledContent(spool, start, spool.tell() - start)
                return HostEntry("file", content, stat)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _new_spool(self) -> IO[bytes]:
        """Returns a file to store the contents that one version keeps."""
        return _Spool(max_size=_CHUNK)

    def _put(self, path: str, entry: HostEntry | None) -> None:
        if entry is not None and entry.kind == "other":
            raise file_error(PermissionError, path)
        # The entry to remove, or its directory, may already be gone.
        ignored = () if entry else (FileNotFoundError, NotADirectoryError)
        with suppress(*ignored), self._open_parent(path) as (parent, name):
            try:
                old = _stat(parent, name)
            except FileNotFoundError:
                old = None
            if old is not None:
                is_directory = S_ISDIR(old.st_mode)
                if entry is None or is_directory != (entry.kind == "directory"):
                    (os.rmdir if is_directory else os.unlink)(name, dir_fd=parent)
                    old = None
            if entry is None:
                return
            if entry.kind == "file":
                _write_file(parent, name, entry, old)
                return
            if old is None:
                os.mkdir(name, dir_fd=parent)
            if entry.stat is not None:
                descriptor = _open_directory(parent, name, path)
                try:
                    _set_mode_and_times(descriptor, entry.stat)
                finally:
                    os.close(descriptor)

    def _move(self, path: str, to: str) -> None:
        with self._open_parent(path) as (parent, name), self._open_parent(to) as (new_parent, new):
            os.rename(name, new, src_dir_fd=parent, dst_dir_fd=new_parent)

    def _remove(self, path: str, kind: Kind | None) -> None:
        to_remove: list[tuple[str, Kind | None]] = [(path, kind)]
        for name, name_kind in to_remove:  # the loop extends the list
            if name_kind == "other":
                raise file_error(PermissionError, name)
            if name_kind == "directory":
                to_remove.extend((entry.path, entry.kind) for entry in self._scan(name))
            if len(to_remove) > self.limits.entries or name.count("/") > self.limits.depth:
                raise FilesystemLimitError(
                    f"{path!r} has too many entries for one delete; delete parts of it first"
                )
        for name, name_kind in reversed(to_remove):
            self._record(name, name_kind)
        for name, _ in reversed(to_remove):
            self._put(name, None)


def _stat(parent: int, name: str) -> os.stat_result:
    return os.stat(name, dir_fd=parent, follow_symlinks=False)


def _check_regular(stat: os.stat_result, path: str) -> os.stat_result:
    if not S_ISREG(stat.st_mode):
        raise file_error(IsADirectoryError if S_ISDIR(stat.st_mode) else PermissionError, path)
    return stat


def _open_for_reading(parent: int, name: str, _flags: int) -> int:
    return os.open(name, _READ, dir_fd=parent)


def _open_directory(parent: int, name: str, path: str) -> int:
    try:
        return os.open(name, _DIRECTORY | _NO_LINK, dir_fd=parent)
    except NotADirectoryError:
        stat = _stat(parent, name)
        is_file = S_ISREG(stat.st_mode) and stat.st_nlink == 1
        raise file_error(NotADirectoryError if is_file else PermissionError, path) from None


def _write_file(parent: int, name: str, entry: HostEntry, old: os.stat_result | None) -> None:
    """Creates or replaces a file atomically."""
    content = entry.content
    with replacing(name, directory=parent) as file:
        file.writelines(content.chunks() if isinstance(content, SpooledContent) else (content,))
        file.flush()
        if entry.stat is not None:
            _set_mode_and_times(file.fileno(), entry.stat)
        elif old is not None:
            os.fchmod(file.fileno(), old.st_mode & 0o777)


def _set_mode_and_times(descriptor: int, stat: os.stat_result) -> None:
    os.fchmod(descriptor, S_IMODE(stat.st_mode))
    os.utime(descriptor, ns=(stat.st_atime_ns, stat.st_mtime_ns))
