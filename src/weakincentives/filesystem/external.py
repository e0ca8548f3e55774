"""Undo for a host directory that other programs change, such as a server's data directory."""

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
# A file that changes this soon after it was copied may keep its old times.
_CLOCK_NS = 50_000_000
_RECOVERY_NS = 600_000_000_000


class ExternalDirectory(HostFilesystem):
    """A directory that other programs can change: `restore` undoes their changes since `record`.

    Call `record` before such a program can run, and `restore` or `commit` after it has stopped. A
    file is copied once, and again whenever its status has changed. Symbolic links and special files
    are not copied: `restore` removes new ones, and raises if an existing one was changed or
    removed. Raises `FilesystemLimitError` if the directory has more than 100,000 entries or more
    than `max_bytes` of data.

    The copies are on disk, next to the directory: if this process is killed between `record` and
    `restore` or `commit`, `recover` in another process restores the recorded contents.
    """

    def __init__(self, root: str | os.PathLike[str], *, max_bytes: int = 1_000_000_000) -> None:
        super().__init__(root, hard_links=True, limits=_LIMITS)
        self._max_bytes = max_bytes
        self._copies: dict[str, HostEntry] = {}
        self._journal = Journal(self.root)

    def record(self, *, seconds: float = 0) -> None:
        """Copies the directory's contents into the newest snapshot, if there is one.

        `recover` restores them only if every later change was made within `seconds` from now.
        """
        with self.lock:
            if (version := self._newest_version()) is None:
                return
            if "." not in version.originals:
                kinds: dict[str, Kind] = {entry.path: entry.kind for entry in self._entries()}
                self._copies = {path: self._copies[path] for path in kinds if path in self._copies}
                # Record a directory after its entries, so that it is restored before them.
                for path, kind in reversed(kinds.items()):
                    self._record(path, kind)
            self._journal.begin(version.originals, self._copies, time_ns() + int(seconds * 1e9))

    def commit(self) -> None:
        """Commits the changes since `record`: `recover` will not undo them."""
        with self.lock:
            self._journal.end()

    def recover(self) -> None:
        """Restores the contents that killed processes recorded but never committed.

        Raises `FileExistsError` if files have changed since then, and `ValueError` if the copies
        cannot be read. Both messages name the backup folder, which is kept.
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
                # If this process is killed too, these changes still belong to the recovery.
                soon_ns = time_ns() + _RECOVERY_NS
                os.utime(folder / LIST, ns=(soon_ns, soon_ns))
                version = self.snapshot()
                for name, is_stable, entry in entries:
                    path = normal_path(name, self.limits)
                    version.originals[path] = entry
                    if is_stable:
                        self._copies[path] = entry
                self.restore(version)
                self._copies.clear()  # the files with their contents are about to be removed

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
        """Returns no changes: a record covers all files, and comparing them would take too long."""
        return {}

    def _complete(self, version: Version[HostEntry]) -> None:
        """Records in `version` which entries were created since, and drops unchanged files."""
        paths = [entry.path for entry in self._entries()]
        originals = version.originals
        for path in paths:
            originals.setdefault(path, None)
        for path, entry in [*originals.items()]:
            # Keep every directory, because restoring its entries changes its times.
            if entry is None or entry.kind == "directory":
                continue
            if self._is_unchanged(path, entry):
                del originals[path]
        while version.newer is not None:
            version = version.newer
            version.originals.clear()

    def _entries(self) -> list[FileStat]:
        """Returns all entries including the root, each directory before its own entries."""
        entries = [FileStat(".", "directory", 0, 0)]
        for entry in entries:  # the loop extends the list
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
        except OSError:  # it was removed, or its directory was replaced
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
    """Returns values that differ after each change to a file, except within one clock tick."""
    if stat is None:
        return ()
    times = stat.st_mtime_ns, stat.st_ctime_ns
    return stat.st_ino, stat.st_mode, stat.st_size, stat.st_nlink, *times
