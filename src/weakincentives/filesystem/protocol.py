"""The filesystem protocol, its entries and its errors; this module does not store files."""

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
"""The kind of an entry; links, files with several hard links and special files are "other"."""


@dataclass(frozen=True, slots=True)
class FileStat:
    """An entry: its path from the root, kind, size in bytes, and time of last modification.

    `modified` is in seconds since the epoch.
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
    """Creates an error of the given type for a path."""
    return error_type(_MESSAGES[error_type].format(path))


class Filesystem(Snapshotable, Protocol):
    """Files and directories below one root; the other methods build on the abstract methods.

    Besides `PathError` and `FilesystemLimitError`, methods raise the builtin `FileNotFoundError`,
    `IsADirectoryError`, `NotADirectoryError` and `FileExistsError`. They raise `PermissionError`
    for links, special files and changes to a read-only filesystem.
    """

    read_only: bool
    """Whether the filesystem rejects every change."""

    limits: FilesystemLimits
    """The limits that every method checks before it allocates memory."""

    @abstractmethod
    def read_bytes(self, path: str, /) -> bytes:
        """Returns the content of a file."""

    @abstractmethod
    def write_bytes(self, path: str, data: bytes, /) -> None:
        """Creates or replaces a file atomically, and creates missing parent directories.

        A replaced file keeps its mode.
        """

    @abstractmethod
    def delete(self, path: str, /, *, recursive: bool = False) -> None:
        """Removes a file or, with `recursive`, a directory and everything below it."""

    @abstractmethod
    def mkdir(self, path: str, /) -> None:
        """Creates a directory and its missing parents, unless it already exists."""

    @abstractmethod
    def rename(self, path: str, to: str, /) -> None:
        """Moves a file, replacing any existing file, and creates missing parent directories."""

    @abstractmethod
    def list(self, path: str = ".", /) -> tuple[FileStat, ...]:
        """Returns a directory's entries, sorted by name."""

    @abstractmethod
    def stat(self, path: str, /) -> FileStat:
        """Returns the entry at a path."""

    @abstractmethod
    def fork(self) -> "Filesystem":
        """Returns a view of this filesystem that keeps its changes until they are merged."""

    @abstractmethod
    def merge(self, fork: "Filesystem", /) -> bool:
        """Repeats a fork's changes here. If the fork is stale, returns `False` and changes nothing.

        A fork is stale if anything that it read has changed in the meantime. Raises `ValueError` if
        `fork` is not a fork of this filesystem, or has already been merged.
        """

    def exists(self, path: str, /) -> bool:
        """Returns whether `path` exists."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def read_text(self, path: str, /) -> str:
        """Returns a file's text. Raises `UnicodeDecodeError` unless it is valid UTF-8."""
        return self.read_bytes(path).decode()

    def write_text(self, path: str, text: str, /) -> None:
        """Writes `text` as UTF-8; see `write_bytes`."""
        self.write_bytes(path, text.encode())

    def append_bytes(self, path: str, data: bytes, /) -> None:
        """Appends `data` to a file, or creates the file with this content."""
        self.write_bytes(path, (self.read_bytes(path) if self.exists(path) else b"") + data)

    def append_text(self, path: str, text: str, /) -> None:
        """Appends `text` as UTF-8; see `append_bytes`."""
        self.append_bytes(path, text.encode())

    def walk(self, path: str = ".", /) -> Iterator[FileStat]:
        """Yields every entry below a directory, sorted, with each directory before its entries.

        Lists each directory when the iterator reaches it. Skips directories that cannot be listed
        or are nested too deeply, and does not follow links.
        """
        return self._walk(path, Glob("**"))

    def glob(self, pattern: str, path: str = ".", /) -> Iterator[FileStat]:
        """Yields the files whose path relative to a directory matches, in the order of `walk`.

        `**` matches any number of directories; `*`, `?` and `[…]` match characters within one name.
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
        """Yields the lines that match the regular expression `pattern`, in a file or a directory.

        Matching takes time linear in the text. In a directory, it searches the files that `glob`
        matches, but skips files with a NUL byte near their start and files that cannot be read.
        Raises `ValueError` for an invalid pattern, and for look-around, back-references and verbose
        mode. The iterator raises `FilesystemLimitError` once matching has taken
        `limits.search_seconds` or `deadline` has passed, and for a line that is too long for a
        pattern with many repeats.
        """
        seconds = self.limits.search_seconds
        search = LineSearch(pattern, ignore_case=ignore_case, seconds=seconds, deadline=deadline)
        start = self.stat(path)
        return self._grep((start,) if start.kind == "file" else self.glob(glob, path), search)

    def _walk(self, path: str, glob: Glob) -> Iterator[FileStat]:
        """Yields the matching entries; lists only directories that may contain some."""
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
            # Empty data has no lines, not one empty line.
            if data and is_text(data):
                yield from search.matches(file.path, data.decode(errors="replace"))
