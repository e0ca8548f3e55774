"""The door to filesystems: in memory, on the host below one directory, and layered; each can undo
its changes.
"""

from .host import HostFilesystem
from .memory import InMemoryFilesystem
from .overlay import OverlayFilesystem
from .protocol import (
    FileStat,
    Filesystem,
    FilesystemLimitError,
    FilesystemLimits,
    GrepMatch,
    PathError,
    glob_matches,
)

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
