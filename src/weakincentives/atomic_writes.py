"""Files that are replaced as a whole: readers see the old content or the new, never a part."""

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import partial
from io import BufferedWriter
from pathlib import Path

__all__ = ["RESERVED", "replacing"]

RESERVED = ".weakincentives-"
"""The prefix of the names of files that are still being written."""


@contextmanager
def replacing(
    path: str | os.PathLike[str],
    *,
    temporary: str | os.PathLike[str] | None = None,
    mode: int = 0o666,
    directory: int | None = None,
    sync: bool = False,
) -> Generator[BufferedWriter]:
    """Yields a new file that replaces `path` when the block ends, and is removed if it raises.

    The new file is next to `path`, under a random name unless `temporary` is given, and with the
    permissions `mode`. `directory` is a descriptor that `path` is relative to. With `sync`, the
    content is on the disk before it replaces the old one.
    """
    new = temporary or Path(path).with_name(RESERVED + os.urandom(8).hex())
    try:
        with open(new, "xb", opener=partial(os.open, mode=mode, dir_fd=directory)) as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        os.replace(new, path, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(new, dir_fd=directory)
        raise
