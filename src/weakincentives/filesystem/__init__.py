"""Filesystems in memory or below a host directory, and forks of them; all can undo changes."""

from .host import HostFilesystem
from .memory import InMemoryFilesystem
from .overlay import OverlayFilesystem
from .paths import FilesystemLimitError, FilesystemLimits, PathError, glob_matches
from .protocol import FileStat, Filesystem
from .search import GrepMatch

__all__ = [
    "FileStat",
    "Filesystem",
    "FilesystemLimitError",
    "FilesystemLimits",
    "GrepMatch",
    "HostFilesystem",
    "InMemoryFilesystem",
    "OverlayFilesystem",
    "PathError",
    "glob_matches",
]
