"""What a filesystem is: its protocol, the values it gives, its errors and its path texts; nothing
here stores a file.

Paths are POSIX text relative to the root, `.` being the root. `./a` and a trailing `/` are
accepted; what is absolute, holds `..` or cannot name a file anywhere is a `PathError`. Messages are
written for the model that gave the path.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, Protocol

from ..errors import WeakIncentivesError
from ..limits import Deadline
from ..protocols import Snapshotable

__all__ = [
    "FileStat",
    "Filesystem",
    "FilesystemLimitError",
    "FilesystemLimits",
    "GrepMatch",
    "Kind",
    "PathError",
    "fault",
    "glob_matches",
    "is_utf8",
    "normal_path",
]

type Kind = Literal["file", "directory", "other"]
"""What stands at a path; "other" is whatever is neither, links above all, and out of bounds."""

RESERVED = ".weakincentives-"
"""How the names of files that are still being written begin; no path may hold such a name."""


class PathError(WeakIncentivesError, ValueError):
    """A path text that no filesystem accepts."""


class FilesystemLimitError(WeakIncentivesError, OSError):
    """Something too large, too many or too deep by the filesystem's limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesystemLimits:
    """Upper bounds: bytes of a file, parts of a path, entries that a listing or a walk visits,
    seconds of a search.
    """

    file_bytes: int = 10_000_000
    depth: int = 32
    entries: int = 100_000
    search_seconds: float = 1.0
    """For matching alone; the reading of files and the caller's own work do not count."""


@dataclass(frozen=True, slots=True)
class FileStat:
    """One entry: path from the root, kind, size in bytes, and when it was modified, in seconds
    since the epoch.
    """

    path: str
    kind: Kind
    size: int
    modified: float


@dataclass(frozen=True, slots=True)
class GrepMatch:
    """A line that matched; lines count from 1."""

    path: str
    line_number: int
    line: str


_FAULTS: dict[type[OSError], str] = {
    FileNotFoundError: "there is no {!r}; list its directory to see what there is",
    IsADirectoryError: "{!r} is a directory; give the path of a file, or ask for a recursive delete",
    NotADirectoryError: "{!r} is or leads through a file; give a path through directories alone",
    FileExistsError: "{!r} is there already; delete it first or give another path",
    PermissionError: "{!r} is or leads through a link or a special file, which is out of bounds; give another path",
}


def fault(kind: type[OSError], path: str) -> OSError:
    """The error of a kind for a path, to be raised."""
    return kind(_FAULTS[kind].format(path))


def is_utf8(name: str) -> bool:
    """Whether it can be written in UTF-8; a name on the host may be any bytes."""
    return name.isascii() or name.encode(errors="ignore").decode() == name


def normal_path(path: str, limits: FilesystemLimits) -> str:
    """The one way to write `path`. Raises `PathError` for a text that is no path here."""
    parts = [part for part in path.removesuffix("/").split("/") if part != "."]
    sizes = [len(part.encode(errors="replace")) for part in parts]
    problems = {
        "is absolute": path.startswith("/"),
        "holds '..'": ".." in parts,
        "has an empty part": "" in parts,
        "holds a NUL character": "\0" in path,
        "is no UTF-8": not is_utf8(path),
        "is too long": max(sizes, default=0) > 255 or sum(sizes) + len(sizes) > 4096,  # noqa: PLR2004 - NAME_MAX, PATH_MAX
        f"is more than {limits.depth} parts deep": len(parts) > limits.depth,
        "holds a reserved name": any(part.startswith(RESERVED) for part in parts),
    }
    for problem, found in problems.items():
        if found:
            raise PathError(
                f"{path!r:.200} {problem}; give a path below the root, such as 'src/app.py'"
            )
    return "/".join(parts) or "."


class Filesystem(Snapshotable, Protocol):
    """Files and directories below one root; subclasses inherit all that can be said by means of the
    rest.

    Besides `PathError` and `FilesystemLimitError`, methods raise the builtin `FileNotFoundError`,
    `IsADirectoryError`, `NotADirectoryError`, `FileExistsError`, and `PermissionError` for links,
    special files and changes to what is read-only.
    """

    read_only: bool
    """Whether every change is refused."""

    limits: FilesystemLimits
    """The bounds that are checked before memory is spent."""

    def read_bytes(self, path: str, /) -> bytes:
        """The content of a file."""
        ...

    def write_bytes(self, path: str, data: bytes, /) -> None:
        """Makes or replaces a file at one stroke, and the directories above it; a file keeps its
        mode.
        """
        ...

    def delete(self, path: str, /, *, recursive: bool = False) -> None:
        """Removes a file, or with `recursive` a directory and all below it."""
        ...

    def mkdir(self, path: str, /) -> None:
        """Makes a directory and those above it, unless it is there."""
        ...

    def rename(self, path: str, to: str, /) -> None:
        """Gives a file another path and makes the directories above that; replaces the file that is
        there.
        """
        ...

    def list(self, path: str = ".", /) -> tuple[FileStat, ...]:
        """The entries of a directory, sorted by name."""
        ...

    def stat(self, path: str, /) -> FileStat:
        """What stands at a path."""
        ...

    def exists(self, path: str, /) -> bool:
        """Whether anything stands at `path`."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def read_text(self, path: str, /) -> str:
        """The content of a file as text. Raises `UnicodeDecodeError` unless it is UTF-8."""
        return self.read_bytes(path).decode()

    def write_text(self, path: str, text: str, /) -> None:
        """`write_bytes` with `text` in UTF-8."""
        self.write_bytes(path, text.encode())

    def append_bytes(self, path: str, data: bytes, /) -> None:
        """Adds `data` to the end of a file, which is made when there is none."""
        self.write_bytes(path, (self.read_bytes(path) if self.exists(path) else b"") + data)

    def append_text(self, path: str, text: str, /) -> None:
        """`append_bytes` with `text` in UTF-8."""
        self.append_bytes(path, text.encode())

    def walk(self, path: str = ".", /) -> Iterator[FileStat]:
        """All below a directory, each directory before what is in it, sorted, as it is asked for.

        What cannot be listed or lies too deep is left out, links are not followed.
        """
        return self._visit(path, ("**",))

    def glob(self, pattern: str, path: str = ".", /) -> Iterator[FileStat]:
        """The files below a directory whose path from there matches `pattern`, in the order of
        `walk`.

        `**` stands for any number of directories, `*`, `?` and `[…]` for characters within one
        name.
        """
        parts = normal_path(pattern, self.limits).split("/")
        return (found for found in self._visit(path, parts) if found.kind == "file")

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
        """The lines that hold a match of the regular expression `pattern`, in a file or in those
        that `glob` finds.

        Takes time linear in the text. Files with a NUL byte near their start and files that cannot
        be read are left out. Raises `ValueError` for a pattern that is none, or one with
        look-around, back-references or verbose mode. The iterator raises `FilesystemLimitError`
        once matching has taken `limits.search_seconds` or `deadline` has passed, and for a line
        that is too long for a pattern with many repeats.
        """
        from .search import LineSearch

        seconds = self.limits.search_seconds
        search = LineSearch(pattern, ignore_case=ignore_case, seconds=seconds, deadline=deadline)
        start = self.stat(path)
        return self._grep(
            (start,) if start.kind == "file" else self.glob(glob, path), search.matches
        )

    def fork(self) -> "Filesystem":
        """A view of this filesystem whose changes stay in it until they are merged."""
        from .overlay import OverlayFilesystem

        return OverlayFilesystem(self)

    def merge(self, fork: "Filesystem", /) -> bool:
        """Makes the changes of a fork here, all or none: none, and `False`, if something that it
        read has changed.

        Raises `ValueError` for what is no fork of this filesystem or was merged already.
        """
        from .overlay import OverlayFilesystem

        if not isinstance(fork, OverlayFilesystem) or fork.base is not self:
            raise ValueError(f"{fork!r} is no fork of {self!r}; merge what its fork() gave")
        return fork.merge_into_base()

    def _visit(self, path: str, pattern: Sequence[str]) -> Iterator[FileStat]:
        """Entries that match, in pre-order; only directories that may hold some are listed."""
        left, end = self.limits.entries, len(pattern)
        stack = [(iter(self.list(path)), _reach({0}, pattern))]
        while stack:
            entries, states = stack[-1]
            for found in entries:
                left -= 1
                if left < 0:
                    raise FilesystemLimitError(
                        f"more than {self.limits.entries} entries below {path!r}; start further down"
                    )
                name = found.path.rpartition("/")[2]
                after = _after(states, pattern, name)
                if end in after:
                    yield found
                if found.kind == "directory" and after - {end}:
                    try:
                        stack.append((iter(self.list(found.path)), after))
                    except FilesystemLimitError:
                        raise
                    except (OSError, PathError):
                        continue
                    break
            else:
                stack.pop()

    def _grep(
        self, files: Iterable[FileStat], matches: Callable[[str, str], Iterator[GrepMatch]]
    ) -> Iterator[GrepMatch]:
        for found in files:
            try:
                data = self.read_bytes(found.path)
            except (OSError, PathError):
                continue
            # without data there is no line, not even an empty one
            if data and b"\0" not in data[:8192]:
                yield from matches(found.path, data.decode(errors="replace"))


def _after(states: set[int], pattern: Sequence[str], name: str) -> set[int]:
    """Where in `pattern` one can be when `name` comes next."""
    parts = [(at, pattern[at]) for at in states if at < len(pattern)]
    anywhere = {at for at, part in parts if part == "**"}
    return _reach(
        anywhere | {at + 1 for at, part in parts if part != "**" and fnmatchcase(name, part)},
        pattern,
    )


def _reach(states: set[int], pattern: Sequence[str]) -> set[int]:
    """`states` and what follows where `**` stands for nothing."""
    reached = set(states)
    for at in range(len(pattern)):
        if at in reached and pattern[at] == "**":
            reached.add(at + 1)
    return reached


def glob_matches(pattern: str, path: str) -> bool:
    """Whether a normal `path`, of a file or a directory, matches a pattern of `Filesystem.glob`."""
    parts = pattern.split("/")
    states = _reach({0}, parts)
    for name in path.split("/"):
        states = _after(states, parts, name)
    return len(parts) in states
