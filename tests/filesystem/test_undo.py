"""Undo: a snapshot can be restored whatever has happened since; the changes determine the cost."""

import gc
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import ref

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import weakincentives
from support.files import OPERATIONS, SORTS, TREES, Do, Tree, filesystem, host_tree, tree
from support.own_thread import in_own_thread
from support.sizes import FULL
from weakincentives.filesystem import Filesystem, HostFilesystem

STEPS = st.lists(
    OPERATIONS
    | st.just("snapshot")
    | st.tuples(st.sampled_from(["restore", "drop"]), st.integers(0, 5)),
    max_size=30,
)


@pytest.mark.parametrize("sort", SORTS)
@given(before=TREES, steps=STEPS)
@example(
    before={"a": None},
    steps=["snapshot", Do("write", "a/a"), Do("delete all", "a"), ("restore", 0)],
)
@example(
    before={"a": None, "a/y": b"1"},
    steps=[
        "snapshot",
        Do("delete all", "a"),
        Do("write", "a/b/x", "2"),
        Do("write", "a/x", "2"),
        Do("delete all", "a"),
        Do("write", "a", "3"),
        "snapshot",
        ("restore", 0),
    ],
)
@settings(max_examples=100)
def test_snapshot_can_be_restored_unless_an_older_one_was(
    sort: str, before: Tree, steps: list[Any]
) -> None:
    with filesystem(sort, before) as files:
        model = dict(before)
        snapshots: list[tuple[Any, Tree, Any]] = []
        for step in steps:
            match step:
                case Do():
                    assert step.on(files) == step.on_tree(model)
                case "snapshot":
                    stats = host_tree(files.root) if isinstance(files, HostFilesystem) else None
                    snapshots.append((files.snapshot(), dict(model), stats))
                case ("drop", int(index)) if snapshots:
                    del snapshots[index % len(snapshots)]
                case ("restore", int(index)) if snapshots:
                    snapshot, expected, stats = snapshots[index % len(snapshots)]
                    files.restore(snapshot)
                    model = dict(expected)
                    if isinstance(files, HostFilesystem):
                        assert host_tree(files.root) == stats
                    for newer, *_ in snapshots[index % len(snapshots) :]:
                        if newer is not snapshot:
                            with pytest.raises(
                                ValueError, match="was invalidated by restoring an older one"
                            ):
                                files.restore(newer)
                    del snapshots[index % len(snapshots) + 1 :]
                case _:
                    pass
            assert tree(files) == model
        for snapshot, expected, _ in reversed(snapshots):
            files.restore(snapshot)
            assert tree(files) == expected


# -------------------------------------------------------------------------------------------------
# interruptions

# After an interrupt between opening a file and the block that closes it, the garbage collector
# closes the file, and reports that.
loose_files = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)

DESCRIPTORS = Path("/proc/self/fd")  # empty on systems without it
CONTENT: Tree = {
    "a": None,
    "a/x": b"1",
    "a/y": b"2" * 100_000,
    "a/d": None,
    "a/d/z": b"3",
    "b": b"4",
}
CHANGES: dict[str, Callable[[Filesystem], object]] = {
    "replaced": lambda files: files.write_text("a/x", "new"),
    "new": lambda files: files.write_text("n/m/o", "new"),
    "deleted": lambda files: files.delete("a", recursive=True),
    "moved": lambda files: files.rename("a/y", "c/e"),
    "moved over": lambda files: files.rename("b", "a/x"),
    "all": lambda files: [
        Do(*step).on(files)
        for step in (
            ("write", "a/x", "1"),
            ("delete all", "a"),
            ("write", "a/d/z", "1"),
            ("rename", "a/d/z", "b"),
        )
    ],
}


TRACED = tuple(
    f"{Path(weakincentives.__file__).parent / name}" for name in ("filesystem", "atomic_writes.py")
)


class Interrupts:
    """Raises `KeyboardInterrupt` before the nth line that runs in our code; counts these lines."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: FrameType, event: str, _argument: object) -> "Interrupts":
        if event == "line" and frame.f_code.co_filename.startswith(TRACED):
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


def interrupted(run: Callable[[], object], at: int) -> bool:
    """Runs with an interrupt; returns whether there was one."""
    before = sys.gettrace()
    sys.settrace(Interrupts(at))
    try:
        run()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def interrupt_at_every_line(check: Callable[[int], bool], step: int) -> None:
    """Calls `check` with the number of the line to interrupt until it says that none was."""
    step *= 1 if FULL else 4
    at = 1
    while in_own_thread(partial(check, at)):
        at += step
    gc.collect()  # files that the interrupts left open, while this test allows that
    assert at > 20


@loose_files
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("sort", ["memory", "host", "fork of memory"])
def test_interrupt_of_a_change_at_any_line_allows_a_correct_restore(
    sort: str, change: Callable[[Filesystem], object]
) -> None:
    def check(at: int) -> bool:
        with filesystem(sort, CONTENT) as files:
            snapshot = files.snapshot()
            was_interrupted = interrupted(partial(change, files), at)
            files.restore(snapshot)
            assert tree(files) == CONTENT, at
            if isinstance(files, HostFilesystem):
                assert list(files.root.glob(".*")) == []
        return was_interrupted

    interrupt_at_every_line(check, step=1 if sort == "memory" else 7)


@loose_files
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("sort", ["memory", "host"])
def test_interrupt_of_restore_at_any_line_allows_another_restore(
    sort: str, change: Callable[[Filesystem], object]
) -> None:
    def check(at: int) -> bool:
        with filesystem(sort, CONTENT) as files:
            snapshot = files.snapshot()
            files.write_text("b", "newer")
            newer = files.snapshot()
            change(files)
            was_interrupted = interrupted(partial(files.restore, snapshot), at)
            del newer
            files.restore(snapshot)
            assert tree(files) == CONTENT, at
        return was_interrupted

    interrupt_at_every_line(check, step=1 if sort == "memory" else 11)


class Failing(HostFilesystem):
    """Fails to restore one path, as long as it is told to."""

    stuck: str | None = None
    error: type[BaseException] = ValueError

    def _put(self, path: str, entry: Any) -> None:
        if path == self.stuck:
            raise self.error(path)
        super()._put(path, entry)


def test_failed_entry_does_not_stop_the_restore_and_can_be_retried(
    tmp_path: Path,
) -> None:
    files = Failing(tmp_path)
    for name in "abc":
        files.write_text(name, "old")
    snapshot = files.snapshot()
    for name in "abc":
        files.write_text(name, "new")
    files.stuck = "b"
    with pytest.raises(ExceptionGroup) as raised:
        files.restore(snapshot)
    assert [str(error) for error in raised.value.exceptions] == ["b"]
    assert tree(files) == {"a": b"old", "b": b"new", "c": b"old"}
    files.stuck = None
    files.restore(snapshot)
    assert tree(files) == {"a": b"old", "b": b"old", "c": b"old"}
    files.close()


def test_failed_restore_of_an_older_snapshot_can_be_retried(tmp_path: Path) -> None:
    files = Failing(tmp_path)
    for name in "ab":
        files.write_text(name, "old")
    first = files.snapshot()
    files.write_text("a", "new")
    second = files.snapshot()
    files.write_text("b", "new")
    files.stuck = "b"
    with pytest.raises(ExceptionGroup):
        files.restore(first)
    del second  # the content of "b" stays reachable
    files.stuck = None
    files.restore(first)
    assert tree(files) == {"a": b"old", "b": b"old"}
    files.close()


def test_interrupt_during_restore_is_raised_after_the_rest_is_restored(
    tmp_path: Path,
) -> None:
    files = Failing(tmp_path)
    files.write_text("b", "old")
    snapshot = files.snapshot()
    for name in "abc":
        files.write_text(name, "new")
    files.stuck, files.error = "c", KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        files.restore(snapshot)
    assert tree(files) == {"b": b"old", "c": b"new"}
    files.stuck = None
    files.restore(snapshot)
    assert tree(files) == {"b": b"old"}
    files.close()


# -----------------------------------------------------------------------------------------------
# modes and times


def test_restore_includes_modes_and_times_of_changed_files(
    tmp_path: Path,
) -> None:
    files = HostFilesystem(tmp_path)
    files.write_text("d/run", "#!/bin/sh")
    files.write_text("d/e/data", "1")
    (tmp_path / "d/run").chmod(0o751)
    (tmp_path / "d/e").chmod(0o700)
    for name, at in (
        ("d/run", 1_000_000_007),
        ("d/e/data", 2_000_000_011),
        ("d/e", 3_000_000_013),
        ("d", 4_000_000_017),
    ):
        os.utime(tmp_path / name, ns=(at, at))
    before = {path: (path.stat().st_mode, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")}
    snapshot = files.snapshot()
    files.delete("d", recursive=True)
    files.write_text("d", "a file")
    files.restore(snapshot)
    assert {
        path: (path.stat().st_mode, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")
    } == before
    files.write_text("d/run", "other")
    assert (tmp_path / "d/run").stat().st_mode & 0o777 == 0o751
    files.restore(snapshot)
    assert (tmp_path / "d/run").stat().st_mtime_ns == 1_000_000_007
    files.close()


# --------------------------------------------------------------------------------------------------
# costs


class Counting(HostFilesystem):
    """Counts the pre-images it takes."""

    taken = 0

    def _get(self, path: str, version: Any) -> Any:
        self.taken += 1
        return super()._get(path, version)


@pytest.mark.parametrize("size", [10, 1000])
@pytest.mark.parametrize("changed", [0, 1, 10])
def test_undo_cost_depends_on_changes_and_not_on_the_size_of_the_tree(
    tmp_path: Path, size: int, changed: int
) -> None:
    for number in range(size):
        (tmp_path / f"{number}.txt").write_text("old")
    files = Counting(tmp_path)
    snapshot = files.snapshot()
    calls: list[str] = []
    on = [True]
    sys.addaudithook(
        lambda event, _: calls.append(event) if on[0] and event in {"open", "os.scandir"} else None
    )
    for number in range(changed):
        files.write_text(f"{number}.txt", "new")
        files.write_text(f"{number}.txt", "newer")
    files.restore(snapshot)
    on[0] = False
    assert files.taken == changed
    assert "os.scandir" not in calls
    assert calls.count("open") <= 10 * changed
    files.close()


def test_nothing_is_kept_without_a_referenced_snapshot(tmp_path: Path) -> None:
    files = Counting(tmp_path)
    files.write_text("a", "1")
    files.write_text("a", "2")
    files.snapshot()
    files.write_text("a", "3")
    assert files.taken == 0
    files.close()


@pytest.mark.parametrize("sort", SORTS)
def test_unreferenced_snapshot_is_freed_without_the_garbage_collector(sort: str) -> None:
    with filesystem(sort, CONTENT) as files:
        start = files.snapshot()
        files.write_text("b", "1")
        newer = files.snapshot()
        files.write_text("b", "2")
        reference = ref(newer)
        files.restore(start)
        assert reference() is newer
        gc.disable()
        try:
            del newer
            assert reference() is None
        finally:
            gc.enable()


def test_large_pre_image_is_stored_in_a_file_instead_of_memory(tmp_path: Path) -> None:
    files = HostFilesystem(tmp_path)
    files.write_bytes("big", b"1" * 200_000)
    snapshot = files.snapshot()
    files.delete("big")
    assert snapshot.spool._rolled
    files.restore(snapshot)
    assert files.read_bytes("big") == b"1" * 200_000
    assert snapshot.spool is None
    files.close()


def test_many_large_pre_images_use_one_file_descriptor(tmp_path: Path) -> None:
    files = HostFilesystem(tmp_path)
    for number in range(50):
        files.write_bytes(f"{number}", b"%d" % number * 70_000)
    snapshot = files.snapshot()
    before = len(list(DESCRIPTORS.glob("*")))
    files.delete("0")
    for number in range(1, 50):
        files.write_text(f"{number}", "")
    after = len(list(DESCRIPTORS.glob("*")))
    assert after - before <= 1
    files.restore(snapshot)
    assert files.read_bytes("49") == b"49" * 70_000
    files.close()


@pytest.mark.parametrize("sort", SORTS)
def test_snapshot_of_another_filesystem_is_rejected(sort: str) -> None:
    with filesystem(sort) as first, filesystem(sort) as other:
        snapshot = first.snapshot()
        other.write_text("a", "kept")
        with pytest.raises(ValueError, match="another filesystem"):
            other.restore(snapshot)
        assert tree(other) == {"a": b"kept"}
