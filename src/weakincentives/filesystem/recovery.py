"""On-disk backups of a directory, from which a later process undoes a killed one's changes.

The backups are in a folder `.NAME.undo-…` next to the directory: the contents of its files and,
while a change is in progress, a list of its entries. The process that created the backups holds a
lock on that folder.
"""

import json
import os
from collections.abc import Container, Iterator, Mapping
from contextlib import ExitStack, suppress
from io import BufferedRandom, FileIO
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import IO
from uuid import uuid4

from ..atomic_writes import replacing
from .host import HostEntry, SpooledContent
from .protocol import Kind

__all__ = ["LIST", "Journal", "uncommitted_changes"]

LIST = "entries.json"


type _Listed = tuple[str, bool, HostEntry]
"""A path, whether the status of its entry would reveal a change, and the entry."""


class _ContentsFile(BufferedRandom):
    """A new file, which this process removes once no entry refers to it any more."""

    def __init__(self, path: Path) -> None:
        super().__init__(FileIO(path, "x+"))
        self._path, self._process = path, os.getpid()

    def __del__(self) -> None:
        self.close()
        if self._process == os.getpid():
            self._path.unlink(missing_ok=True)


class Journal:
    """This process's backups of the directory `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._folder: Path | None = None
        self._lock, self._process = -1, os.getpid()
        self._listed: list[_Listed] = []  # keeps their contents on disk

    def new_file(self) -> IO[bytes]:
        """Returns a new file for contents; it is removed once nothing refers to it.

        Raises `OSError` if the parent directory of `root` is not writable.
        """
        if self._folder is None:
            self._folder, self._lock = _new_folder(self._root)
        return _ContentsFile(self._folder / uuid4().hex)

    def begin(
        self, entries: Mapping[str, HostEntry | None], stable: Container[str], until_ns: int
    ) -> None:
        """Saves a list of the `entries` of `root` before a change that ends by the time `until_ns`.

        For an entry whose path is in `stable`, a changed status reveals any change. If a change is
        already in progress, it is extended until then.
        """
        if self._folder is None:  # nothing has been copied
            self._folder, self._lock = _new_folder(self._root)
        path = self._folder / LIST
        if not self._listed:
            listed = [(name, name in stable, entry) for name, entry in entries.items() if entry]
            with replacing(path) as file:
                file.write(json.dumps([_to_json(*one) for one in listed]).encode())
            self._listed = listed
        os.utime(path, ns=(until_ns, until_ns))

    def end(self) -> None:
        """Ends the change, which has been completed or undone."""
        if self._folder is not None:
            (self._folder / LIST).unlink(missing_ok=True)
            self._listed = []

    def close(self) -> None:
        """Removes the backups, unless this process was forked from the one that created them."""
        if self._folder is not None and self._process == os.getpid():
            self.end()
            rmtree(self._folder, ignore_errors=True)
            os.close(self._lock)
            self._folder = None


def uncommitted_changes(root: Path) -> Iterator[tuple[Path, list[_Listed], int]]:
    """Yields the lists that dead processes saved before changes they did not finish.

    Each item contains the backup folder, the entries, and the time by which the change ended; the
    newest comes first. Advancing the iterator removes the previous folder. Raises `ValueError` for
    a folder that cannot be read.
    """
    root = root.resolve()
    prefix, folders = _prefix(root), list[Path]()
    with suppress(PermissionError):  # then no backups could be written there either
        folders = [path for path in root.parent.iterdir() if path.name.startswith(prefix)]
    for folder in sorted(folders, key=_end_ns, reverse=True):
        try:
            lock = _lock(folder)
        except OSError:  # it is in use, or another process is recovering it
            continue
        with ExitStack() as stack:
            stack.callback(os.close, lock)
            if until_ns := _end_ns(folder):
                yield folder, _read(folder, stack), until_ns
            rmtree(folder)


def _end_ns(folder: Path) -> int:
    """Returns the time by which the change in `folder` ended; 0 if none was in progress."""
    with suppress(OSError):
        return max(1, (folder / LIST).stat().st_mtime_ns)
    return 0


def _prefix(root: Path) -> str:
    return f".{root.name}.undo-"


def _new_folder(root: Path) -> tuple[Path, int]:
    while True:
        folder = Path(mkdtemp(prefix=_prefix(root), dir=root.parent))
        lock = _lock(folder, wait=True)
        if folder.exists():  # a starting process may have removed it as abandoned
            return folder, lock
        os.close(lock)


def _lock(folder: Path, *, wait: bool = False) -> int:
    """Locks `folder` until this process ends; returns the descriptor, or raises `OSError`."""
    import fcntl  # not available on Windows

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _to_json(path: str, is_stable: bool, entry: HostEntry) -> list[object]:  # noqa: FBT001 - a part of `_Listed`
    content, stat = entry.content, entry.stat
    place: tuple[object, ...] = ()
    if isinstance(content, SpooledContent):
        content.spool.flush()
        place = Path(content.spool.name).name, content.start, content.size
    # The status becomes its tuple plus a dict that contains the times in nanoseconds.
    status = stat.__reduce__()[1] if stat is not None else None
    return [path, entry.kind == "other", is_stable, place, status]


def _read(folder: Path, stack: ExitStack) -> list[_Listed]:
    files = dict[str, IO[bytes]]()
    entries: list[_Listed] = []
    try:
        for path, is_uncopied, is_stable, place, status in json.loads((folder / LIST).read_bytes()):
            content: bytes | SpooledContent = b""
            kind: Kind = "other" if is_uncopied else "file" if place else "directory"
            if place:
                name, start, size = place
                file = files.get(name)
                if file is None:
                    file = files[name] = stack.enter_context((folder / Path(name).name).open("rb"))
                if file.seek(0, os.SEEK_END) < start + size:
                    raise ValueError(f"{name} is incomplete")
                content = SpooledContent(file, start, size)
            entry = HostEntry(kind, content, os.stat_result(*status))
            entries.append((path, is_stable, entry))
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"cannot read the backups in {folder}: {error}") from error
    return entries
