"""Paths as text, their limits, and globs that match them; this module never accesses files.

Paths are POSIX paths relative to the root; `.` is the root itself. `./a` and a trailing `/` are
accepted. The model that wrote a path sees the error messages.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase

from ..atomic_writes import RESERVED
from ..errors import WeakIncentivesError

__all__ = [
    "FilesystemLimitError",
    "FilesystemLimits",
    "Glob",
    "PathError",
    "glob_matches",
    "is_utf8",
    "normal_path",
]

_MAX_NAME, _MAX_PATH = 255, 4096  # bytes: Linux's NAME_MAX and PATH_MAX


class PathError(WeakIncentivesError, ValueError):
    """A path that no filesystem accepts."""


class FilesystemLimitError(WeakIncentivesError, OSError):
    """A filesystem limit on size, number, depth or search time was exceeded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesystemLimits:
    """Limits on file size, path depth, entries per listing or walk, and search time."""

    file_bytes: int = 10_000_000
    depth: int = 32
    entries: int = 100_000
    search_seconds: float = 1.0
    """Limits only the time spent matching, not the time to read files or the caller's own work."""


def is_utf8(name: str) -> bool:
    """Returns whether UTF-8 can encode `name`; a name on the host may contain any bytes."""
    return name.isascii() or name.encode(errors="ignore").decode() == name


def normal_path(path: str, limits: FilesystemLimits) -> str:
    """Returns the unique normal form of `path`. Raises `PathError` for an invalid path."""
    parts = [part for part in path.removesuffix("/").split("/") if part != "."]
    sizes = [len(part.encode(errors="replace")) for part in parts]
    problems = {
        "is absolute": path.startswith("/"),
        "holds '..'": ".." in parts,
        "has an empty part": "" in parts,
        "holds a NUL character": "\0" in path,
        "is no UTF-8": not is_utf8(path),
        "is too long": max(sizes, default=0) > _MAX_NAME or sum(sizes) + len(sizes) > _MAX_PATH,
        f"is more than {limits.depth} parts deep": len(parts) > limits.depth,
        "holds a reserved name": any(part.startswith(RESERVED) for part in parts),
    }
    for problem, applies in problems.items():
        if applies:
            raise PathError(
                f"{path!r:.200} {problem}; pass a path below the root, such as 'src/app.py'"
            )
    return "/".join(parts) or "."


class Glob:
    """Matches a pattern against a path, name by name, so that a walk can skip directories.

    After each name, a set of positions records which parts of the pattern can match the next one.
    """

    def __init__(self, pattern: str) -> None:
        self._parts = pattern.split("/")
        self.start = self._skip_stars({0})

    def advance(self, positions: set[int], name: str) -> set[int]:
        """Returns the positions after `name`."""
        following: set[int] = set()
        for position in positions - {len(self._parts)}:
            part = self._parts[position]
            if part == "**":
                following.add(position)
            elif fnmatchcase(name, part):
                following.add(position + 1)
        return self._skip_stars(following)

    def is_match(self, positions: set[int]) -> bool:
        """Returns whether the names so far match the complete pattern."""
        return len(self._parts) in positions

    def may_match_below(self, positions: set[int]) -> bool:
        """Returns whether a longer path can match."""
        return bool(positions - {len(self._parts)})

    def _skip_stars(self, positions: set[int]) -> set[int]:
        """Adds the position after each `**`, which can match zero directories."""
        for position, part in enumerate(self._parts):
            if part == "**" and position in positions:
                positions.add(position + 1)
        return positions


def glob_matches(pattern: str, path: str) -> bool:
    """Returns whether a normal `path` matches a `Filesystem.glob` pattern."""
    glob = Glob(pattern)
    positions = glob.start
    for name in path.split("/"):
        positions = glob.advance(positions, name)
    return glob.is_match(positions)
