"""A directory of the host as a filesystem, from which no path leads out.

Every access walks from a descriptor of the root, one name at a time and through no link; no path
text is checked first and used later. A file with a second hard link may lie outside as well, so it
is out of bounds as links are.
"""

import errno
import os
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from shutil import copyfileobj
from stat import S_IMODE, S_ISDIR, S_ISREG
from tempfile import SpooledTemporaryFile
from weakref import finalize

from .protocol import (
    RESERVED,
    FileStat,
    FilesystemLimitError,
    FilesystemLimits,
    Kind,
    fault,
    is_utf8,
    normal_path,
)
from .undo import Version, VersionedFilesystem

__all__ = ["HostFilesystem"]

_CHUNK = 1 << 16
# Windows has none of these, and its constructor refuses.
_NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)
_DIRECTORY: int = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
_READ: int = os.O_RDONLY | _NO_LINK | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_WRITE: int = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file or, without content, a directory; `old` is what the host said of it, if it was there
    before.
    """

    content: "bytes | _Spooled | None"
    old: os.stat_result | None = None

    @property
    def kind(self) -> Kind:
        return "directory" if self.content is None else "file"


@dataclass(frozen=True, slots=True)
class _Spooled:
    """Content that waits in a temporary file."""

    spool: "SpooledTemporaryFile[bytes]"
    start: int
    size: int

    def chunks(self) -> Iterator[bytes]:
        for at in range(0, self.size, _CHUNK):
            self.spool.seek(self.start + at)
            yield self.spool.read(min(_CHUNK, self.size - at))


def _kind_of(found: os.stat_result) -> Kind:
    if S_ISDIR(found.st_mode):
        return "directory"
    return "file" if S_ISREG(found.st_mode) and found.st_nlink == 1 else "other"


class HostFilesystem(VersionedFilesystem[_Entry]):
    """The files below the directory `root`, which is opened once. Any thread may use it until it is
    closed.

    A file is written beside its place and renamed into it: readers see the old content or the new
    and never a part. Mode bits stay; owner and extended attributes are those of a new file. Raises
    `OSError` unless `root` is a directory and the platform opens files relative to one.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        read_only: bool = False,
        limits: FilesystemLimits = FilesystemLimits(),  # noqa: B008 - frozen
    ) -> None:
        super().__init__(read_only=read_only, limits=limits)
        needed = {os.open, os.stat, os.mkdir, os.rename, os.unlink, os.rmdir}
        if not needed <= os.supports_dir_fd or os.scandir not in os.supports_fd or not _NO_LINK:
            raise OSError(
                "this platform opens no files relative to a directory; use InMemoryFilesystem"
            )
        self.root = Path(root)
        self._descriptor = os.open(self.root, _DIRECTORY)
        self._closing = finalize(self, os.close, self._descriptor)

    def close(self) -> None:
        """Gives the root's descriptor back; any later use raises `ValueError`."""
        with self.lock:
            self._closing()

    def read_bytes(self, path: str, /) -> bytes:
        name = normal_path(path, self.limits)
        with self._file(name) as (file, found):
            if _kind_of(found) == "other":
                raise fault(PermissionError, path)
            self.check_size(path, found.st_size)
            data = file.read(self.limits.file_bytes + 1)
            self.check_size(path, len(data))  # it may have grown
            return data

    def list(self, path: str = ".", /) -> tuple[FileStat, ...]:
        found = [
            stat
            for stat in self._entries(normal_path(path, self.limits))
            if is_utf8(stat.path) and not stat.path.rpartition("/")[2].startswith(RESERVED)
        ]
        return tuple(sorted(found, key=lambda stat: stat.path))

    def stat(self, path: str, /) -> FileStat:
        name = normal_path(path, self.limits)
        with self._at(name) as (above, last):
            return _told(name, os.stat(last, dir_fd=above, follow_symlinks=False))

    def __repr__(self) -> str:
        return f"HostFilesystem({os.fspath(self.root)!r})"

    @contextmanager
    def _at(self, path: str) -> Generator[tuple[int, str]]:
        """The directory that holds `path`, open, and the last name; the host's errors are told in
        our words.
        """
        *above, last = path.split("/")
        with self.lock:
            if not self._closing.alive:
                raise ValueError(f"{self!r} is closed; make another")
            here = os.dup(self._descriptor)
        try:
            for name in above:
                here, above_it = _step(here, name, path), here
                os.close(above_it)
            yield here, last
        except OSError as error:
            if error.errno is None:  # one of ours
                raise
            if error.errno == errno.ELOOP:
                raise fault(PermissionError, path) from error
            if isinstance(
                error, FileNotFoundError | IsADirectoryError | NotADirectoryError | FileExistsError
            ):
                raise fault(type(error), path) from error
            raise OSError(error.errno, error.strerror, path) from error
        finally:
            os.close(here)

    @contextmanager
    def _file(self, path: str) -> Generator[tuple[BufferedReader, os.stat_result]]:
        """A regular file, open, and what the host says of it."""
        with self._at(path) as (above, name):
            # Once before it is opened, since opening a device may do something; then again, for
            # what was opened.
            _regular(os.stat(name, dir_fd=above, follow_symlinks=False), path)
            with open(
                name, "rb", opener=lambda _name, _flags: os.open(name, _READ, dir_fd=above)
            ) as file:
                yield file, _regular(os.fstat(file.fileno()), path)

    def _entries(self, path: str) -> Iterator[FileStat]:
        """All in a directory, what is being written or was left by a killed writer too, in no
        order.
        """
        prefix = "" if path == "." else path + "/"
        with self._at(path) as (above, name):
            descriptor = _step(above, name, path)
            try:
                with os.scandir(descriptor) as entries:
                    for count, entry in enumerate(entries):
                        if count >= self.limits.entries:
                            raise self.too_many(path)
                        with suppress(FileNotFoundError):  # gone since
                            yield _told(prefix + entry.name, entry.stat(follow_symlinks=False))
            finally:
                os.close(descriptor)

    def _kind(self, path: str) -> Kind | None:
        try:
            return self.stat(path).kind
        except FileNotFoundError:
            return None

    def _made(self, data: bytes | None) -> _Entry:
        return _Entry(data)

    def _get(self, path: str, version: Version[_Entry]) -> _Entry | None:
        try:
            with self._at(path) as (above, name):
                found = os.stat(name, dir_fd=above, follow_symlinks=False)
                if S_ISDIR(found.st_mode):
                    return _Entry(None, found)
            with self._file(path) as (file, found):
                if version.spool is None:
                    finalize(version, (spool := SpooledTemporaryFile[bytes](max_size=_CHUNK)).close)
                    version.spool = spool
                start = version.spool.seek(0, os.SEEK_END)
                copyfileobj(file, version.spool, _CHUNK)
                return _Entry(_Spooled(version.spool, start, version.spool.tell() - start), found)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _put(self, path: str, entry: _Entry | None) -> None:
        # Where something is to be removed, it may be gone, and what held it as well.
        with (
            suppress(*(() if entry else (FileNotFoundError, NotADirectoryError))),
            self._at(path) as (above, name),
        ):
            try:
                there = os.stat(name, dir_fd=above, follow_symlinks=False)
            except FileNotFoundError:
                there = None
            directory = there is not None and S_ISDIR(there.st_mode)
            if there is not None and (entry is None or directory is (entry.content is not None)):
                (os.rmdir if directory else os.unlink)(name, dir_fd=above)
            if entry is None:
                return
            if entry.content is not None:
                _write(above, name, entry, None if directory else there)
                return
            if not directory:
                os.mkdir(name, dir_fd=above)
            if entry.old is not None:
                descriptor = _step(above, name, path)
                try:
                    _touch(descriptor, entry.old)
                finally:
                    os.close(descriptor)

    def _move(self, path: str, to: str) -> None:
        with self._at(path) as (above, name), self._at(to) as (below, new):
            os.rename(name, new, src_dir_fd=above, dst_dir_fd=below)

    def _remove(self, path: str, kind: Kind | None) -> None:
        doomed = [(path, kind)]
        for name, of in doomed:  # which grows; all is found before the first goes
            if of == "other":
                raise fault(PermissionError, name)
            if of == "directory":
                doomed += [(stat.path, stat.kind) for stat in self._entries(name)]
            if len(doomed) > self.limits.entries or name.count("/") > self.limits.depth:
                raise FilesystemLimitError(
                    f"{path!r} holds more than one delete may remove; delete parts of it first"
                )
        for name, _ in reversed(doomed):
            self._record(name)
        for name, _ in reversed(doomed):
            self._put(name, None)


def _told(path: str, found: os.stat_result) -> FileStat:
    kind = _kind_of(found)
    return FileStat(path, kind, 0 if kind == "directory" else found.st_size, found.st_mtime)


def _regular(found: os.stat_result, path: str) -> os.stat_result:
    if not S_ISREG(found.st_mode):
        raise fault(IsADirectoryError if S_ISDIR(found.st_mode) else PermissionError, path)
    return found


def _step(above: int, name: str, path: str) -> int:
    """Opens the directory `name` in the directory `above`."""
    try:
        return os.open(name, _DIRECTORY | _NO_LINK, dir_fd=above)
    except NotADirectoryError:
        kind = _kind_of(os.stat(name, dir_fd=above, follow_symlinks=False))
        raise fault(PermissionError if kind == "other" else NotADirectoryError, path) from None


def _write(above: int, name: str, entry: _Entry, there: os.stat_result | None) -> None:
    """Makes or replaces a file at one stroke."""
    beside = RESERVED + os.urandom(8).hex()
    try:
        with os.fdopen(os.open(beside, _WRITE, 0o666, dir_fd=above), "wb") as file:
            content = entry.content
            file.writelines(
                content.chunks() if isinstance(content, _Spooled) else (content or b"",)
            )
            file.flush()
            if entry.old is not None:
                _touch(file.fileno(), entry.old)
            elif there is not None:
                os.fchmod(file.fileno(), there.st_mode & 0o777)
        os.rename(beside, name, src_dir_fd=above, dst_dir_fd=above)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(beside, dir_fd=above)
        raise


def _touch(descriptor: int, old: os.stat_result) -> None:
    os.fchmod(descriptor, S_IMODE(old.st_mode))
    os.utime(descriptor, ns=(old.st_atime_ns, old.st_mtime_ns))
