"""A fork keeps its changes, and a merge repeats them on its base or changes nothing."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from support.files import OPERATIONS, TREES, Do, Tree, filesystem, tree
from weakincentives.filesystem import (
    Filesystem,
    HostFilesystem,
    InMemoryFilesystem,
    OverlayFilesystem,
)

LOOKS = st.builds(
    Do, st.sampled_from(["read", "list", "stat"]), st.sampled_from(["a", "b", "a/b", "c/a"])
)
STEPS = st.lists(OPERATIONS | LOOKS, max_size=6)


def run(step: Do, files: Filesystem) -> object:
    """Returns a step's result, or the error that it raises, without times."""
    try:
        match step.what:
            case "read":
                return files.read_bytes(step.path)
            case "list":
                return [(entry.path, entry.kind, entry.size) for entry in files.list(step.path)]
            case "stat":
                return files.stat(step.path).kind, files.stat(step.path).size
            case _:
                return step.on(files)
    except OSError as error:
        return type(error)


@pytest.mark.parametrize("sort", ["memory", "host", "fork of memory"])
@given(before=TREES, first=STEPS, second=STEPS)
@settings(max_examples=120)
def test_forks_merge_in_order_or_the_later_merge_changes_nothing(
    sort: str, before: Tree, first: list[Do], second: list[Do]
) -> None:
    with filesystem(sort, before) as base, filesystem("memory", before) as plain:
        first_fork, second_fork = base.fork(), base.fork()
        for step in first:
            assert run(step, first_fork) == run(step, plain)
        assert tree(base) == before
        fork_results = [run(step, second_fork) for step in second]
        assert base.merge(first_fork)
        assert tree(base) == tree(plain)
        if base.merge(second_fork):
            event("merged")
            assert [run(step, plain) for step in second] == fork_results
        else:
            event("refused")
        assert tree(base) == tree(plain)


@given(
    before=TREES, first=st.lists(OPERATIONS, max_size=4), second=st.lists(OPERATIONS, max_size=4)
)
@settings(max_examples=60)
def test_fork_of_a_fork_merges_into_its_parent(
    before: Tree, first: list[Do], second: list[Do]
) -> None:
    with filesystem("memory", before) as base:
        outer = base.fork()
        inner = outer.fork()
        for step in first:
            step.on(inner)
        assert tree(outer) == before
        assert outer.merge(inner)
        for step in second:
            step.on(outer)
        expected = tree(outer)
        assert tree(base) == before
        assert base.merge(outer)
        assert tree(base) == expected


@pytest.mark.parametrize("sort", ["memory", "host", "fork of host"])
@given(before=TREES, steps=st.lists(OPERATIONS, max_size=6))
@settings(max_examples=100)
def test_fork_changes_are_the_differences_from_its_base(
    sort: str, before: Tree, steps: list[Do]
) -> None:
    with filesystem(sort, before) as base:
        fork = base.fork()
        assert isinstance(fork, OverlayFilesystem)
        for step in steps:
            step.on(fork)
        old, new = [
            {path: "directory" if data is None else data for path, data in tree(files).items()}
            for files in (base, fork)
        ]
        assert [*fork.changes(fork.start)] == [
            (path, old.get(path), new.get(path))
            for path in sorted({**old, **new})
            if old.get(path) != new.get(path)
        ]
        assert base.merge(fork)


def test_changes_report_large_or_removed_base_files_as_other(tmp_path: Path) -> None:
    base = HostFilesystem(tmp_path)
    base.write_text("gone", "1")
    base.write_text("large", "12")
    fork = base.fork()
    fork.write_text("gone", "new")
    fork.write_text("large", "new")
    (tmp_path / "gone").unlink()
    assert [*fork.changes(fork.start, 1)] == [("gone", "other", b"new"), ("large", "other", b"new")]
    assert not base.merge(fork)
    base.close()


def test_forks_that_change_different_files_of_a_directory_both_merge() -> None:
    base = InMemoryFilesystem({"src/a.py": "a", "src/b.py": "b"})
    first, second = base.fork(), base.fork()
    first.write_text("src/a.py", first.read_text("src/a.py") + "!")
    first.write_text("src/new.py", "n")
    second.write_text("src/b.py", second.read_text("src/b.py") + "!")
    second.delete("src/b.py")
    assert base.merge(first)
    assert base.merge(second)
    assert tree(base) == {"src": None, "src/a.py": b"a!", "src/new.py": b"n"}


def test_merge_is_rejected_if_a_file_read_by_the_fork_has_changed() -> None:
    base = InMemoryFilesystem({"count": "1"})
    forks = [base.fork(), base.fork()]
    for fork in forks:
        fork.write_text("count", str(int(fork.read_text("count")) + 1))
        fork.write_text("note", "done")
    assert base.merge(forks[0])
    base.delete("note")
    assert not base.merge(forks[1])
    assert tree(base) == {"count": b"2"}


def test_merge_is_rejected_if_a_file_searched_by_the_fork_has_changed() -> None:
    base = InMemoryFilesystem({"a.txt": "needle", "b.txt": "hay"})
    fork = base.fork()
    assert [match.path for match in fork.grep("needle")] == ["a.txt"]
    fork.write_text("found", "1")
    base.write_text("b.txt", "a needle")
    assert not base.merge(fork)
    assert not base.exists("found")


def test_merge_omits_changes_that_the_fork_rolled_back() -> None:
    base = InMemoryFilesystem({"a": "1"})
    fork = base.fork()
    fork.write_text("kept", "1")
    snapshot = fork.snapshot()
    fork.write_text("gone", "1")
    fork.delete("a")
    later = fork.snapshot()
    fork.delete("kept")
    fork.restore(later)
    fork.restore(snapshot)
    assert base.merge(fork)
    assert tree(base) == {"a": b"1", "kept": b"1"}


def test_failed_merge_changes_nothing(tmp_path: Path) -> None:
    base = HostFilesystem(tmp_path)
    base.write_text("a", "1")
    fork = base.fork()
    fork.delete("a")
    fork.write_text("d/x", "1")
    (tmp_path / "d").symlink_to(tmp_path)
    assert not base.merge(fork)
    assert tree(base) == {"a": b"1"}
    read_only = InMemoryFilesystem({"a": "1"}, read_only=True)
    over = read_only.fork()
    over.write_text("b", "1")
    with pytest.raises(PermissionError, match="read-only"):
        read_only.merge(over)
    assert tree(read_only) == {"a": b"1"}
    base.close()


def test_merge_accepts_only_a_fork_of_this_filesystem_and_only_once() -> None:
    base, other = InMemoryFilesystem(), InMemoryFilesystem()
    with pytest.raises(ValueError, match="not a fork of"):
        base.merge(other.fork())
    with pytest.raises(ValueError, match="not a fork of"):
        base.merge(other)
    fork = base.fork()
    assert base.merge(fork)
    with pytest.raises(ValueError, match="has already been merged"):
        base.merge(fork)


def test_merge_detects_external_changes_to_host_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    base = HostFilesystem(tmp_path)
    fork = base.fork()
    fork.write_text("b", fork.read_text("a"))
    (tmp_path / "a").write_text("2")
    assert not base.merge(fork)
    base.close()


@pytest.mark.parametrize("sort", ["memory", "host"])
def test_threads_can_use_their_own_forks_of_one_base(sort: str) -> None:
    with filesystem(sort, {f"{number}": b"%d" % number for number in range(20)}) as base:

        def work(name: str) -> list[bytes]:
            fork = base.fork()
            read = [fork.read_bytes(f"{number}") for number in range(20)]
            fork.write_text(f"by {name}", name)
            assert base.merge(fork)
            return read

        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(work, map(str, range(24))))
        assert all(result == [b"%d" % number for number in range(20)] for result in results)
        assert sum(entry.path.startswith("by ") for entry in base.list()) == 24
