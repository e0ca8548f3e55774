"""A file is replaced completely, or not at all."""

import os
from pathlib import Path

import pytest

from weakincentives.atomic_writes import replacing


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("temporary", [False, True])
def test_raising_block_keeps_the_old_file_and_leaves_no_other(
    tmp_path: Path, error: type[BaseException], temporary: bool
) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def write() -> None:
        with replacing(path, temporary=tmp_path / "new" if temporary else None) as file:
            file.write(b"half")
            file.flush()
            assert len(list(tmp_path.iterdir())) == 2
            raise error

    with pytest.raises(error):
        write()
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "old"


@pytest.mark.parametrize("relative", [False, True])
def test_successful_block_replaces_the_file(tmp_path: Path, relative: bool) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        name, directory = ("file", descriptor) if relative else (path, None)
        with replacing(name, directory=directory, mode=0o600, sync=True) as file:
            file.write(b"new")
            assert path.read_text() == "old"
    finally:
        os.close(descriptor)
    assert list(tmp_path.iterdir()) == [path]
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o600)


def test_symlink_in_place_of_the_temporary_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("kept")
    (tmp_path / "new").symlink_to(tmp_path / "secret")
    with (
        pytest.raises(FileExistsError),
        replacing(tmp_path / "file", temporary=tmp_path / "new") as file,
    ):
        file.write(b"new")
    assert (tmp_path / "secret").read_text() == "kept"
