"""A filesystem in memory."""

from collections.abc import Mapping
from types import MappingProxyType

from .overlay import ForkableFilesystem
from .paths import FilesystemLimits
from .tree import Directory, TreeFilesystem

__all__ = ["InMemoryFilesystem"]


class InMemoryFilesystem(TreeFilesystem, ForkableFilesystem):
    """Files in memory, initially `files` by path. Any thread may use it."""

    def __init__(
        self,
        files: Mapping[str, str | bytes] = MappingProxyType({}),
        *,
        read_only: bool = False,
        limits: FilesystemLimits = FilesystemLimits(),
    ) -> None:
        super().__init__(Directory(), limits=limits)
        for path, content in files.items():
            self.write_bytes(path, content.encode() if isinstance(content, str) else content)
        self.read_only = read_only
