"""Path texts, their bounds, and globs over them; nothing here knows of files.

Paths are POSIX text relative to the root, `.` being the root. `./a` and a trailing `/` are
accepted. The model that wrote a path reads the messages.
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

_MAX_NAME, _MAX_PATH = 255, 4096  # bytes: NAME_MAX and PATH_MAX of Linux


class PathError(WeakIncentivesError, ValueError):
    """No filesystem accepts this path text."""


class FilesystemLimitError(WeakIncentivesError, OSError):
    """Something is too large, too many or too deep by the filesystem's limits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesystemLimits:
    """Bounds a file's bytes, a path's parts, entries of a listing or walk, and search seconds."""

    file_bytes: int = 10_000_000
    depth: int = 32
    entries: int = 100_000
    search_seconds: float = 1.0
    """Counts matching alone, neither reading files nor the caller's own work."""


def is_utf8(name: str) -> bool:
    """Whether UTF-8 can encode `name`; a name on the host may be any bytes."""
    return name.isascii() or name.encode(errors="ignore").decode() == name


def normal_path(path: str, limits: FilesystemLimits) -> str:
    """Returns the only normal form of `path`. Raises `PathError` for an invalid path."""
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
    """Matches a pattern against a path, name by name, so that a walk can leave out directories.

    After some names, a set of positions says which parts of the pattern may match the next name.
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
        """Whether the names until here match the whole pattern."""
        return len(self._parts) in positions

    def may_match_below(self, positions: set[int]) -> bool:
        """Whether a path with more names can match."""
        return bool(positions - {len(self._parts)})

    def _skip_stars(self, positions: set[int]) -> set[int]:
        """Adds the positions behind each `**`, which may stand for nothing."""
        for position, part in enumerate(self._parts):
            if part == "**" and position in positions:
                positions.add(position + 1)
        return positions


def glob_matches(pattern: str, path: str) -> bool:
    """Whether a normal `path`, of a file or a directory, matches a pattern of `Filesystem.glob`."""
    glob = Glob(pattern)
    positions = glob.start
    for name in path.split("/"):
        positions = glob.advance(positions, name)
    return glob.is_match(positions)
