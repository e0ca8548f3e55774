"""Undo for a directory of the host that other programs change, such as the data of a server."""

import os
from time import time_ns
from typing import IO

from .host import HostEntry, HostFilesystem
from .paths import FilesystemLimitError, FilesystemLimits, normal_path
from .protocol import FileStat, Kind
from .recovery import LIST, Journal, uncommitted_changes
from .undo import Version

__all__ = ["ExternalDirectory"]

_LIMITS = FilesystemLimits(depth=1_000)
# A file that changes so soon after it was copied may keep its times.
_CLOCK_NS = 50_000_000
_RECOVERY_NS = 600_000_000_000


class ExternalDirectory(HostFilesystem):
    """A directory that other programs can change: `restore` undoes their changes after a `record`.

    Call `record` before such a program may run, and `restore` when it no longer does, or `commit`.
    A file is copied once and again when its status changed. Symbolic links and special files are
    not copied: `restore` removes new ones, and raises if another was changed or removed. Raises
    `FilesystemLimitError` for more than 100,000 entries or `max_bytes`.

    The copies are on disk, beside the directory: if this process is killed between `record` and
    `restore` or `commit`, `recover` in another one puts back what was recorded.
    """

    def __init__(self, root: str | os.PathLike[str], *, max_bytes: int = 1_000_000_000) -> None:
        super().__init__(root, hard_links=True, limits=_LIMITS)
        self._max_bytes = max_bytes
        self._copies: dict[str, HostEntry] = {}
        self._journal = Journal(self.root)

    def record(self, *, seconds: float = 0) -> None:
        """Copies the directory's contents into the newest snapshot, if there is one.

        `recover` puts it back only if all changes came within `seconds` from now.
        """
        with self.lock:
            if (version := self._newest_version()) is None:
                return
            if "." not in version.originals:
                kinds: dict[str, Kind] = {entry.path: entry.kind for entry in self._entries()}
                self._copies = {path: self._copies[path] for path in kinds if path in self._copies}
                # a directory last, so that it is restored first
                for path, kind in reversed(kinds.items()):
                    self._record(path, kind)
            self._journal.begin(version.originals, self._copies, time_ns() + int(seconds * 1e9))

    def commit(self) -> None:
        """Commits the changes since `record`, even if this process is killed afterwards."""
        with self.lock:
            self._journal.end()

    def recover(self) -> None:
        """Puts back what processes that were killed have recorded and not committed.

        Raises `FileExistsError` if there are changes since, and `ValueError` for copies that cannot
        be read; both name the folder of the copies, which stays.
        """
        with self.lock:
            for folder, entries, until_ns in uncommitted_changes(self.root):
                stats = [self._status(entry.path) for entry in self._entries()]
                if any(stat is not None and stat.st_ctime_ns > until_ns for stat in stats):
                    raise FileExistsError(
                        f"cannot recover {self.root}: a process was killed while it changed "
                        "files, and some of them have been changed again since; save what you "
                        f"need from the backups in {folder}, then delete that folder"
                    )
                # These changes are ours, if this process is killed too.
                soon_ns = time_ns() + _RECOVERY_NS
                os.utime(folder / LIST, ns=(soon_ns, soon_ns))
                version = self.snapshot()
                for name, is_stable, entry in entries:
                    path = normal_path(name, self.limits)
                    version.originals[path] = entry
                    if is_stable:
                        self._copies[path] = entry
                self.restore(version)
                self._copies.clear()  # the files of their contents are removed

    def close(self) -> None:
        with self.lock:
            self._journal.close()
            self._copies.clear()
            super().close()

    def _new_spool(self) -> IO[bytes]:
        return self._journal.new_file()

    def restore(self, snapshot: Version[HostEntry], /) -> None:
        with self.lock:
            first: Version[HostEntry] | None = snapshot
            while first is not None and "." not in first.originals:
                first = first.newer
            if first is not None:
                self._complete(first)
            super().restore(snapshot)

    def changes_since(self, snapshot: Version[HostEntry], /) -> dict[str, dict[str, str]]:
        """Returns nothing: a record covers all files, and comparing them takes too long."""
        return {}

    def _complete(self, version: Version[HostEntry]) -> None:
        """Adds what is new since a recorded `version` to it, and drops unchanged files."""
        paths = [entry.path for entry in self._entries()]
        originals = version.originals
        for path in paths:
            originals.setdefault(path, None)
        for path, entry in [*originals.items()]:
            # What is put back into a directory changes its times, so all of these stay.
            if entry is None or entry.kind == "directory":
                continue
            if self._is_unchanged(path, entry):
                del originals[path]
        while version.newer is not None:
            version = version.newer
            version.originals.clear()

    def _entries(self) -> list[FileStat]:
        """Returns all entries with the root, a directory before what is in it."""
        entries = [FileStat(".", "directory", 0, 0)]
        for entry in entries:  # grows until it is complete
            if entry.kind == "directory":
                entries += self._scan(entry.path)
            if len(entries) > self.limits.entries:
                raise FilesystemLimitError(
                    f"cannot copy {self.root}: it has more than {self.limits.entries:,} entries; "
                    "use a smaller directory"
                )
        size = sum(entry.size for entry in entries)
        if size > self._max_bytes:
            raise FilesystemLimitError(
                f"cannot copy {self.root}: it has {size:,} bytes, the limit is "
                f"{self._max_bytes:,}; use a smaller directory"
            )
        return entries

    def _is_unchanged(self, path: str, entry: HostEntry) -> bool:
        now = self._status(path)
        known = entry.kind == "other" or self._copies.get(path) is entry
        return known and now is not None and _signature(now) == _signature(entry.stat)

    def _status(self, path: str) -> os.stat_result | None:
        try:
            with self._open_parent(path) as (parent, name):
                return os.stat(name, dir_fd=parent, follow_symlinks=False)
        except OSError:  # it was removed, or a link or a file has replaced its directory
            return None

    def _get(self, path: str, version: Version[HostEntry]) -> HostEntry | None:
        copy = self._copies.get(path)
        if copy is not None and self._is_unchanged(path, copy):
            return copy
        try:
            entry = super()._get(path, version)
        except PermissionError:
            if self._kind(path) != "other":
                raise
            return HostEntry("other", stat=self._status(path))
        stat = None if entry is None else entry.stat
        if entry is not None and stat is not None and time_ns() - stat.st_ctime_ns > _CLOCK_NS:
            self._copies[path] = entry
        return entry


def _signature(stat: os.stat_result | None) -> tuple[int, ...]:
    """Returns what changes with each change of a file, except within a tick of the clock."""
    if stat is None:
        return ()
    times = stat.st_mtime_ns, stat.st_ctime_ns
    return stat.st_ino, stat.st_mode, stat.st_size, stat.st_nlink, *times
