"""The protocol of a filesystem, its entries and its errors; nothing here stores a file."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from ..limits import Deadline
from ..protocols import Snapshotable
from .paths import FilesystemLimitError, FilesystemLimits, Glob, PathError, normal_path
from .search import GrepMatch, LineSearch, is_text

__all__ = ["FileStat", "Filesystem", "Kind", "file_error"]

type Kind = Literal["file", "directory", "other"]
"""What stands at a path; links, files with several hard links and special files are "other"."""


@dataclass(frozen=True, slots=True)
class FileStat:
    """One entry: path from the root, kind, bytes, and the time of its last change.

    `modified` counts seconds since the epoch.
    """

    path: str
    kind: Kind
    size: int
    modified: float


_MESSAGES: dict[type[OSError], str] = {
    FileNotFoundError: "there is no {!r}; list its directory to see what there is",
    IsADirectoryError: (
        "{!r} is a directory; pass the path of a file, or ask for a recursive delete"
    ),
    NotADirectoryError: "{!r} is or leads through a file; pass a path through directories alone",
    FileExistsError: "{!r} is there already; delete it first or pass another path",
    PermissionError: (
        "{!r} is or leads through a link or a special file, which is out of bounds; "
        "pass another path"
    ),
}


def file_error(error_type: type[OSError], path: str) -> OSError:
    """Returns the error of a type for a path, to be raised."""
    return error_type(_MESSAGES[error_type].format(path))


class Filesystem(Snapshotable, Protocol):
    """Files and directories below one root; the other methods build on the abstract ones.

    Besides `PathError` and `FilesystemLimitError`, methods raise the builtin `FileNotFoundError`,
    `IsADirectoryError`, `NotADirectoryError`, `FileExistsError`, and `PermissionError` for links,
    special files and changes to what is read-only.
    """

    read_only: bool
    """Whether the filesystem refuses every change."""

    limits: FilesystemLimits
    """The bounds that every method checks before it spends memory."""

    @abstractmethod
    def read_bytes(self, path: str, /) -> bytes:
        """Returns the content of a file."""

    @abstractmethod
    def write_bytes(self, path: str, data: bytes, /) -> None:
        """Creates or replaces a file atomically, and creates the directories above it.

        A replaced file keeps its mode.
        """

    @abstractmethod
    def delete(self, path: str, /, *, recursive: bool = False) -> None:
        """Removes a file, or with `recursive` a directory and all below it."""

    @abstractmethod
    def mkdir(self, path: str, /) -> None:
        """Makes a directory and those above it, unless it is there."""

    @abstractmethod
    def rename(self, path: str, to: str, /) -> None:
        """Moves a file, over another one if there is one, and makes the directories above."""

    @abstractmethod
    def list(self, path: str = ".", /) -> tuple[FileStat, ...]:
        """Returns the entries of a directory, sorted by name."""

    @abstractmethod
    def stat(self, path: str, /) -> FileStat:
        """Returns the entry at a path."""

    @abstractmethod
    def fork(self) -> "Filesystem":
        """Returns a view of this filesystem that keeps its changes until they are merged."""

    @abstractmethod
    def merge(self, fork: "Filesystem", /) -> bool:
        """Repeats the changes of a fork here; returns `False`, and changes nothing, if it is stale.

        A fork is stale when something that it read has changed since. Raises `ValueError` for what
        is not a fork of this filesystem or was already merged.
        """

    def exists(self, path: str, /) -> bool:
        """Whether `path` exists."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def read_text(self, path: str, /) -> str:
        """Returns the text of a file. Raises `UnicodeDecodeError` unless it is UTF-8."""
        return self.read_bytes(path).decode()

    def write_text(self, path: str, text: str, /) -> None:
        """Writes `text` in UTF-8 as `write_bytes` does."""
        self.write_bytes(path, text.encode())

    def append_bytes(self, path: str, data: bytes, /) -> None:
        """Adds `data` to the end of a file, or makes a file of it."""
        self.write_bytes(path, (self.read_bytes(path) if self.exists(path) else b"") + data)

    def append_text(self, path: str, text: str, /) -> None:
        """Adds `text` in UTF-8 as `append_bytes` does."""
        self.append_bytes(path, text.encode())

    def walk(self, path: str = ".", /) -> Iterator[FileStat]:
        """Yields all below a directory, sorted, each directory before its entries.

        Lists each directory when the iterator comes to it. Leaves out what cannot be listed or
        lies too deep, and follows no links.
        """
        return self._walk(path, Glob("**"))

    def glob(self, pattern: str, path: str = ".", /) -> Iterator[FileStat]:
        """Yields the files below a directory whose path from there matches, in order of `walk`.

        `**` matches any number of directories, `*`, `?` and `[…]` for characters within one
        name.
        """
        matching = self._walk(path, Glob(normal_path(pattern, self.limits)))
        return (entry for entry in matching if entry.kind == "file")

    def grep(
        self,
        pattern: str,
        path: str = ".",
        /,
        *,
        glob: str = "**",
        ignore_case: bool = False,
        deadline: Deadline | None = None,
    ) -> Iterator[GrepMatch]:
        """Yields the lines that the regular expression `pattern` matches, in one file or below.

        Takes time linear in the text. In a directory it searches the files that `glob` matches, and
        leaves out files with a NUL byte near their start and files that cannot be read. Raises
        `ValueError` for an invalid pattern, and for look-around, back-references and verbose mode.
        The iterator raises `FilesystemLimitError` once matching has taken `limits.search_seconds`
        or `deadline` has passed, and for a line too long for a pattern with many repeats.
        """
        seconds = self.limits.search_seconds
        search = LineSearch(pattern, ignore_case=ignore_case, seconds=seconds, deadline=deadline)
        start = self.stat(path)
        return self._grep((start,) if start.kind == "file" else self.glob(glob, path), search)

    def _walk(self, path: str, glob: Glob) -> Iterator[FileStat]:
        """Yields the entries that match, and lists only directories that may hold some."""
        count = 0
        stack = [(iter(self.list(path)), glob.start)]
        while stack:
            entries, positions = stack[-1]
            entry = next(entries, None)
            if entry is None:
                stack.pop()
                continue
            count += 1
            if count > self.limits.entries:
                raise FilesystemLimitError(
                    f"more than {self.limits.entries} entries below {path!r}; start further down"
                )
            following = glob.advance(positions, entry.path.rpartition("/")[2])
            if glob.is_match(following):
                yield entry
            if entry.kind == "directory" and glob.may_match_below(following):
                try:
                    stack.append((iter(self.list(entry.path)), following))
                except FilesystemLimitError:
                    raise
                except (OSError, PathError):
                    continue

    def _grep(self, files: Iterable[FileStat], search: LineSearch) -> Iterator[GrepMatch]:
        for file in files:
            try:
                data = self.read_bytes(file.path)
            except (OSError, PathError):
                continue
            # empty data has zero lines, not one empty line
            if data and is_text(data):
                yield from search.matches(file.path, data.decode(errors="replace"))
