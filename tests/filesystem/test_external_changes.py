"""A directory that other programs change can be restored to any recorded snapshot."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from time import sleep

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.files import PLACE
from weakincentives.filesystem import FilesystemLimitError
from weakincentives.filesystem.external import ExternalDirectory

type Change = tuple[str, str, bytes]

NAMES = st.sampled_from(["a", "b", "a/c", "a/d", "b/e", "a/c/f"])
CONTENTS = st.sampled_from([b"", b"one", b"two", b"a longer content"])
KINDS = st.sampled_from(["write", "remove", "mkdir", "protect"])
CHANGES = st.lists(st.tuples(KINDS, NAMES, CONTENTS), max_size=5)


@contextmanager
def directory() -> Generator[tuple[Path, ExternalDirectory]]:
    with tempfile.TemporaryDirectory(dir=PLACE) as place:
        external = ExternalDirectory(place)
        yield Path(place), external
        external.close()


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def change(root: Path, changes: list[Change]) -> None:
    """Changes the tree as an external program does, without the directory's object."""
    for kind, name, content in changes:
        path = root / name
        if path.parent != root and not path.parent.is_dir():
            change(root, [("mkdir", str(path.parent.relative_to(root)), b"")])
        if os.path.lexists(path) and (kind == "remove" or path.is_dir() is not (kind == "mkdir")):
            remove(path)
        match kind:
            case "write":
                path.write_bytes(content)  # in place, if it exists
            case "protect":
                path.unlink(missing_ok=True)
                path.write_bytes(content)
                path.chmod(0o400)
            case "mkdir":
                path.mkdir(exist_ok=True)
            case "link":
                path.symlink_to("/nowhere")
            case _:
                pass


def tree(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Returns mode, time and content of all entries."""
    paths = {path.relative_to(root).as_posix(): path for path in [root, *sorted(root.rglob("*"))]}
    stats = {name: path.lstat() for name, path in paths.items()}
    contents = {name: path.read_bytes() if path.is_file() else b"" for name, path in paths.items()}
    return {name: (stat.st_mode, stat.st_mtime_ns, contents[name]) for name, stat in stats.items()}


@given(CHANGES, st.lists(CHANGES, min_size=1, max_size=4), st.data())
@settings(max_examples=300, deadline=None)
def test_restore_undoes_changes_by_other_programs(
    first: list[Change], calls: list[list[Change]], data: st.DataObject
) -> None:
    with directory() as (root, external):
        change(root, first)
        before, snapshots = [], []
        for changes in calls:
            before.append(tree(root))
            snapshots.append(external.snapshot())
            external.record()
            change(root, changes)
        if not (root / "b").exists():
            change(root, [("link", "b", b"")])
        index = data.draw(st.integers(0, len(calls) - 1))
        external.restore(snapshots[index])
        assert tree(root) == before[index]


KILLED = """
import os, signal, sys
from weakincentives.filesystem.external import ExternalDirectory
external = ExternalDirectory(sys.argv[1])
snapshot = external.snapshot()
external.record(seconds=60)
print(flush=True)
input()
if sys.argv[2] == "commit":
    external.commit()
os.kill(os.getpid(), signal.SIGKILL)
"""


def changed_by_a_killed_process(root: Path, changes: list[Change], end: str = "") -> None:
    command = [sys.executable, "-c", KILLED, str(root), end]
    environment = {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline()
        change(root, changes)
        process.stdin.write(b"\n")
    assert process.returncode == -signal.SIGKILL


def copies(root: Path) -> list[Path]:
    return list(root.parent.glob(f".{root.name}.undo-*"))


BEFORE: list[Change] = [
    ("write", "b", b"one"),
    ("write", "a/c", b"two"),
    ("protect", "a/d", b""),
    ("link", "link", b""),
]
AFTER: list[Change] = [
    ("remove", "b", b""),
    ("write", "a/c", b"too"),
    ("write", "new/f", b"new"),
    ("link", "other", b""),
]


def test_changes_of_a_killed_process_are_undone_by_recover() -> None:
    with directory() as (root, external):
        change(root, BEFORE)
        before = tree(root)
        changed_by_a_killed_process(root, AFTER)
        assert tree(root) != before
        external.recover()
        assert tree(root) == before
        assert copies(root) == []
        external.recover()
        assert tree(root) == before


def test_committed_changes_of_a_killed_process_are_kept() -> None:
    with directory() as (root, external):
        changed_by_a_killed_process(root, BEFORE, "commit")
        after = tree(root)
        external.recover()
        assert tree(root) == after
        assert copies(root) == []


def test_changes_made_after_a_process_was_killed_are_not_undone() -> None:
    with directory() as (root, external):
        change(root, BEFORE)
        changed_by_a_killed_process(root, AFTER)
        (folder,) = copies(root)
        os.utime(folder / "entries.json", (0, 0))  # as if the changes were old
        after = tree(root)
        with pytest.raises(
            FileExistsError, match="some of them have been changed again since"
        ) as raised:
            external.recover()
        assert str(folder) in str(raised.value)
        assert tree(root) == after
        shutil.rmtree(folder)
        external.recover()
        assert tree(root) == after


def test_incomplete_or_escaping_copies_are_rejected() -> None:
    with directory() as (root, external):
        change(root, BEFORE)
        changed_by_a_killed_process(root, AFTER)
        after = tree(root)
        (folder,) = copies(root)
        (contents,) = [path for path in folder.iterdir() if path.name != "entries.json"]
        listed = (folder / "entries.json").read_text()
        os.truncate(contents, 2)
        with pytest.raises(ValueError, match="incomplete"):
            external.recover()
        for text in ("{", "[3]", listed.replace('"a/c"', '"../c"'), listed.replace('"b"', '"/b"')):
            contents.write_bytes(b"x" * 100)
            (folder / "entries.json").write_text(text)
            with pytest.raises(ValueError, match=r"cannot read the backups|path"):
                external.recover()
        assert tree(root) == after


def test_copies_in_use_are_kept_until_their_process_closes() -> None:
    with directory() as (root, external):
        other = ExternalDirectory(root)
        snapshot = other.snapshot()
        other.record(seconds=60)
        (root / "new").write_text("new")
        external.recover()
        assert (root / "new").exists()
        assert copies(root) != []
        other.restore(snapshot)
        assert not (root / "new").exists()
        other.close()
        assert copies(root) == []


def test_restore_without_a_record_undoes_nothing() -> None:
    with directory() as (root, external):
        snapshot = external.snapshot()
        (root / "new").write_text("by another program")
        external.restore(snapshot)
        assert (root / "new").exists()


def test_file_with_unchanged_status_is_read_once() -> None:
    with directory() as (root, external):
        path = root / "large"
        path.write_bytes(b"x" * 100_000)
        sleep(0.1)  # a later change has another time
        first = external.snapshot()
        external.record()
        (root / "new").write_bytes(b"y")
        second = external.snapshot()
        before = path.stat().st_atime_ns, path.stat().st_ino
        external.record()
        assert second.originals["large"] is first.originals["large"]
        external.restore(second)
        assert (path.stat().st_atime_ns, path.stat().st_ino) == before


def test_changed_link_is_reported_and_the_rest_is_restored() -> None:
    with directory() as (root, external):
        (root / "link").symlink_to("here")
        (root / "file").write_text("before")
        os.link(root / "file", root / "twin")
        before = external.snapshot()
        external.record()
        (root / "new").write_text("new")
        (root / "link").unlink()
        (root / "twin").write_text("after")
        with pytest.raises(ExceptionGroup, match="cannot restore 1 changes") as raised:
            external.restore(before)
        assert "'link'" in str(raised.value.exceptions[0])
        assert not (root / "new").exists()
        assert [(root / name).read_text() for name in ("file", "twin")] == ["before", "before"]


def test_directory_beyond_max_bytes_is_rejected_before_it_is_copied() -> None:
    with tempfile.TemporaryDirectory(dir=PLACE) as place:
        Path(place, "large").write_bytes(b"x" * 1001)
        external = ExternalDirectory(place, max_bytes=1000)
        snapshot = external.snapshot()
        with pytest.raises(FilesystemLimitError, match="1,001 bytes"):
            external.record()
        external.restore(snapshot)
        assert Path(place, "large").exists()
        external.close()
