"""The jail: no path, tree or race can escape the root; and files are replaced completely."""

import os
import random
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.files import PLACE
from weakincentives.filesystem import (
    Filesystem,
    FilesystemLimitError,
    FilesystemLimits,
    HostFilesystem,
    InMemoryFilesystem,
    PathError,
)

SECRET = b"what lies outside is nobody's business"


@contextmanager
def jail() -> Generator[tuple[Path, Path]]:
    """Returns a root and, next to it, a directory that must not be touched."""
    with tempfile.TemporaryDirectory(dir=PLACE) as place:
        root, outside = Path(place, "root"), Path(place, "outside")
        (outside / "below").mkdir(parents=True)
        root.mkdir()
        (outside / "secret").write_bytes(SECRET)
        (outside / "below/secret").write_bytes(SECRET)
        yield root, outside


def look(outside: Path) -> object:
    """Returns the host's metadata for everything outside, except access times."""
    stats = [
        (path, path.lstat(), path.is_file() and path.read_bytes())
        for path in sorted(outside.rglob("*"))
    ]
    return [
        (path, s.st_mode, s.st_size, s.st_nlink, s.st_mtime_ns, s.st_ctime_ns, data)
        for path, s, data in stats
    ]


def furnish(root: Path, outside: Path) -> None:
    """Fills the root with files that an untrusted archive could contain."""
    (root / "plain/deep").mkdir(parents=True)
    (root / "plain/file").write_text("inside")
    (root / "plain/deep/file").write_text("inside")
    targets: dict[str, str | Path] = {
        "link": outside,
        "up": "..",
        "round": ".",
        "file-link": outside / "secret",
        "plain/link": "../../outside",
        "plain/dangling": outside / "new",
    }
    for name, target in targets.items():
        (root / name).symlink_to(target)
    os.link(outside / "secret", root / "hard")
    os.link(outside / "secret", root / "plain/hard")
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener, suppress(OSError):
        listener.bind(str(root / "sock"))
    Path(os.fsdecode(os.fsencode(root) + b"/\xff")).mkdir()
    Path(root, *"n" * 40).mkdir(parents=True)


def try_all(
    files: Filesystem, path: str, other: str, dice: random.Random | None = None
) -> list[object]:
    """Calls every method with a path and returns the results.

    With dice, it calls all methods that read, and a few of the others.
    """
    look: list[Callable[[], object]] = [
        lambda: files.read_bytes(path),
        lambda: files.list(path),
        lambda: files.stat(path),
    ]
    search: list[Callable[[], object]] = [
        lambda: list(files.walk(path)),
        lambda: list(files.glob("**/*secret*", path)),
        lambda: list(files.glob(path)),
        lambda: list(files.grep("nobody", path)),
    ]
    change: list[Callable[[], object]] = [
        lambda: files.append_text(path, "x"),
        lambda: files.write_text(path, "written"),
        lambda: files.mkdir(path),
        lambda: files.rename(path, other),
        lambda: files.rename(other, path),
        lambda: files.delete(path),
        lambda: files.delete(path, recursive=True),
    ]
    outcomes: list[object] = []
    for attempt in look + (dice.sample(change * 3 + search, 3) if dice else search + change):
        try:
            outcomes.append(attempt())
        except (PathError, OSError) as error:
            outcomes.append(str(error))
    return outcomes


PIECES = [
    *(
        "..",
        ".",
        "",
        "/",
        "//",
        "\0",
        "\n",
        "~",
        "*",
        "**",
        "[",
        "\\",
        "\udcff",
        "\N{GREEK SMALL LETTER ALPHA}",
        " ",
        "C:",
    ),
    *(
        "plain",
        "file",
        "deep",
        "link",
        "up",
        "round",
        "hard",
        "pipe",
        "sock",
        "file-link",
        "dangling",
        "secret",
        "outside",
    ),
    *(
        "root",
        "below",
        "n/n/n",
        "new",
        "a" * 300,
        "../outside/secret",
        "/etc/passwd",
        "%2e%2e",
        "..\\",
        "…",
    ),
]


def some_path(dice: random.Random, outside: Path) -> str:
    pieces = [dice.choice(PIECES) for _ in range(dice.randint(1, 5))]
    text = dice.choice(["/", "/", "/", "", "//"]).join(pieces)
    return dice.choice([text, text, text, f"{outside}/{text}", f"/{text}", f"./{text}", f"{text}/"])


@pytest.mark.parametrize("sort", ["host", "memory", "fork of host"])
def test_path_cannot_escape_the_root(sort: str) -> None:
    dice = random.Random(7)  # noqa: S311 - the same paths in every run
    paths = 10_000 if sort == "host" else 2_000
    for _ in range(paths // 250):
        with jail() as (root, outside):
            furnish(root, outside)
            before = look(outside)
            host = HostFilesystem(root)
            files = {
                "host": host,
                "memory": InMemoryFilesystem({"plain/file": "inside"}),
                "fork of host": host.fork(),
            }[sort]
            for _ in range(250):
                outcome = try_all(files, some_path(dice, outside), some_path(dice, outside), dice)
                assert SECRET.decode() not in repr(outcome)
            assert look(outside) == before
            host.close()


NAMES = st.sampled_from(["a", "b", "secret"])
PARTS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
THINGS = st.tuples(
    st.sampled_from(["file", "directory", "symlink", "hardlink", "fifo"]),
    PARTS,
    st.sampled_from(
        [
            "{outside}",
            "{outside}/secret",
            "..",
            "../outside",
            "../../outside/secret",
            "a",
            ".",
            "{outside}/new",
        ]
    ),
)


@given(things=st.lists(THINGS, max_size=10))
@settings(max_examples=40)
def test_links_in_the_tree_cannot_escape_the_root(things: list[tuple[str, str, str]]) -> None:
    with jail() as (root, outside):
        for kind, name, target in things:
            path, to = root / name, target.format(outside=outside)
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.parent.resolve().is_relative_to(root.resolve()) and not os.path.lexists(
                    path
                ):
                    match kind:
                        case "file":
                            path.write_text("inside")
                        case "directory":
                            path.mkdir()
                        case "symlink":
                            path.symlink_to(to)
                        case "hardlink":
                            os.link(outside / "secret", path)
                        case _:
                            os.mkfifo(path)
        before = look(outside)
        files = HostFilesystem(root)
        snapshot = files.snapshot()
        for _, name, _ in things:
            for at in (name, f"{name}/secret", f"{name}/new/x"):
                assert SECRET.decode() not in repr(try_all(files, at, "a/b"))
        assert SECRET not in b"".join(files.read_bytes(entry.path) for entry in files.glob("**"))
        files.restore(snapshot)
        files.close()
        assert look(outside) == before


# The interpreter announces audited operations before it performs them: the worst moment for a swap,
# hit each time.
AUDITED = {
    "open",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.scandir",
    "os.truncate",
    "os.utime",
}
_swap: list[Callable[[], object]] = []
_audited = [0]


def _audit(event: str, _arguments: object) -> None:
    if _swap and event in AUDITED:
        _audited[0] -= 1
        if _audited[0] == 0:
            _swap.pop()()


sys.addaudithook(_audit)
DOINGS: dict[str, Callable[[HostFilesystem], object]] = {
    "read": lambda files: files.read_bytes("d/secret"),
    "write": lambda files: files.write_bytes("d/secret", b"inside"),
    "make": lambda files: files.write_bytes("d/new/new", b"inside"),
    "delete": lambda files: files.delete("d/secret"),
    "delete all": lambda files: files.delete("d", recursive=True),
    "rename": lambda files: files.rename("d/secret", "d/new"),
    "walk": lambda files: [
        files.read_bytes(entry.path) for entry in files.walk() if entry.kind == "file"
    ],
    "grep": lambda files: list(files.grep("nobody")),
}


@pytest.mark.parametrize("doing", [*DOINGS, "put back"])
@pytest.mark.parametrize("swapped", ["d", "d/secret", "d/below"])
def test_link_swapped_in_before_any_step_is_not_followed(swapped: str, doing: str) -> None:
    at, hit = 0, True
    while hit:
        at += 1
        with jail() as (root, outside):
            (root / "d/below").mkdir(parents=True)
            (root / "d/secret").write_bytes(b"inside")
            (root / "d/below/secret").write_bytes(b"inside")
            files, before = HostFilesystem(root), look(outside)
            snapshot = files.snapshot()
            if doing == "put back":
                files.delete("d", recursive=True)
                files.write_text("d/secret", "new")
                files.write_text("d/below/secret", "new")
            do = (
                partial(files.restore, snapshot)
                if doing == "put back"
                else partial(DOINGS[doing], files)
            )
            _audited[0] = at
            _swap.append(
                partial(put_link, root / swapped, outside / swapped.removeprefix("d").strip("/"))
            )
            try:
                outcome: object = do()
            except (OSError, ExceptionGroup) as error:
                outcome = str(error)
            finally:
                hit = not _swap
                _swap.clear()
            assert SECRET.decode() not in repr(outcome)
            assert look(outside) == before
            files.close()
    assert at > 2


def put_link(place: Path, target: Path) -> None:
    with suppress(OSError):
        place.rename(place.with_name("aside"))
    with suppress(OSError):
        place.symlink_to(target)


@pytest.mark.parametrize("swapped", ["directory", "file"])
def test_racing_symlink_swap_cannot_escape_the_root(swapped: str) -> None:
    """A thread repeatedly replaces paths that are read and written with links to the outside."""
    with jail() as (root, outside):
        (root / "d").mkdir()
        (root / "d/secret").write_bytes(b"inside")
        before, done = look(outside), threading.Event()
        place, target = (
            (root / "d", outside)
            if swapped == "directory"
            else (root / "d/secret", outside / "secret")
        )

        def swap() -> None:
            while not done.is_set():
                with suppress(OSError):
                    place.rename(root / "aside")
                with suppress(OSError):
                    place.symlink_to(target)
                with suppress(OSError):
                    place.unlink()
                if place.is_dir():  # writing has created another one in the meantime
                    shutil.rmtree(place, ignore_errors=True)
                with suppress(OSError):
                    (root / "aside").rename(place)

        swapper = threading.Thread(target=swap)
        swapper.start()
        files = HostFilesystem(root)
        results: set[object] = set()
        try:
            for number in range(4000):
                if number > 300 and {repr(b"inside"), PermissionError} <= results:
                    break
                snapshot = files.snapshot()
                for attempt in (
                    lambda: files.read_bytes("d/secret"),
                    lambda: files.write_bytes("d/new", b"inside"),
                    lambda: files.write_bytes("d/secret", b"inside"),
                    lambda: files.delete("d/new"),
                    lambda: [
                        files.read_bytes(entry.path)
                        for entry in files.walk()
                        if entry.kind == "file"
                    ],
                ):
                    try:
                        results.add(repr(attempt()))
                    except OSError as error:
                        results.add(type(error))
                if number % 5 == 0:
                    with suppress(ExceptionGroup):
                        files.restore(snapshot)
        finally:
            done.set()
            swapper.join()
            files.close()
        assert SECRET.decode() not in repr(results)
        assert repr(b"inside") in results
        assert PermissionError in results
        assert look(outside) == before


# ----------------------------------------------------------------------------------------------
# out of bounds


def test_links_and_special_files_are_listed_but_cannot_be_opened() -> None:
    with jail() as (root, outside):
        furnish(root, outside)
        files = HostFilesystem(root)
        kinds = {entry.path: entry.kind for entry in files.list()}
        assert kinds == {"plain": "directory", "n": "directory", "sock": "other"} | dict.fromkeys(
            ["file-link", "hard", "link", "pipe", "round", "up"], "other"
        )
        for path in (
            "link",
            "link/secret",
            "hard",
            "pipe",
            "sock",
            "up/outside/secret",
            "plain/dangling",
        ):
            for attempt in (
                files.read_bytes,
                files.list,
                files.delete,
                files.mkdir,
                lambda at: files.write_text(at, ""),
            ):
                with pytest.raises(PermissionError, match="out of bounds"):
                    attempt(path)
            with pytest.raises(PermissionError, match="out of bounds"):
                files.rename(path, "elsewhere")
            with pytest.raises(PermissionError, match="out of bounds"):
                files.rename("plain/file", path)
        with pytest.raises(PermissionError, match="out of bounds"):
            files.delete("plain", recursive=True)
        assert files.read_text("plain/deep/file") == "inside"
        files.close()


def test_hard_linked_file_can_be_read_if_hard_links_is_true(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "cache").write_text("installed")
    (tmp_path / "root/installed").hardlink_to(tmp_path / "cache")
    (tmp_path / "root/link").symlink_to(tmp_path / "cache")
    with closing(HostFilesystem(tmp_path / "root", hard_links=True)) as files:
        assert files.read_text("installed") == "installed"
        assert [entry.kind for entry in files.list()] == ["file", "other"]
        with pytest.raises(PermissionError, match="out of bounds"):
            files.read_bytes("link")
        files.write_text("installed", "mine")  # a new file takes the place
    assert (tmp_path / "cache").read_text() == "installed"


def test_link_created_while_a_tool_runs_is_removed_by_restore(
    tmp_path: Path,
) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "secret").write_bytes(SECRET)
    files = HostFilesystem(tmp_path / "root")
    files.write_text("a", "old")
    snapshot = files.snapshot()
    files.write_text("a", "new")
    (tmp_path / "root/a").unlink()
    (tmp_path / "root/a").symlink_to(tmp_path / "secret")
    files.restore(snapshot)
    assert files.read_text("a") == "old"
    assert (tmp_path / "secret").read_bytes() == SECRET
    files.close()


def test_root_remains_the_directory_that_was_opened(tmp_path: Path) -> None:
    root, other = tmp_path / "root", tmp_path / "other"
    root.mkdir()
    other.mkdir()
    files = HostFilesystem(root)
    root.rename(tmp_path / "moved")
    root.symlink_to(other)
    files.write_text("a", "1")
    assert list(other.iterdir()) == []
    assert (tmp_path / "moved/a").read_text() == "1"
    files.close()


def test_closed_filesystem_raises_value_error(tmp_path: Path) -> None:
    files = HostFilesystem(tmp_path)
    files.close()
    files.close()
    for attempt in (
        files.list,
        lambda: files.read_bytes("a"),
        lambda: files.write_text("a", ""),
        lambda: files.mkdir("a"),
    ):
        with pytest.raises(ValueError, match="is closed; create a new one"):
            attempt()


def test_root_must_be_an_existing_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        HostFilesystem(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        HostFilesystem(tmp_path / "missing")


# --------------------------------------------------------------------------------------------------
# writing


def test_reader_never_sees_a_partial_file(tmp_path: Path) -> None:
    files = HostFilesystem(tmp_path)
    contents = {b"a" * 300_000, b"b" * 200_000}
    files.write_bytes("file", b"a" * 300_000)
    done, seen = threading.Event(), set[bytes]()

    def read() -> None:
        while not done.is_set():
            seen.add((tmp_path / "file").read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(150):
        for content in contents:
            files.write_bytes("file", content)
    done.set()
    reader.join()
    assert seen <= contents
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
    files.close()


def test_temporary_file_of_a_writer_is_hidden_and_reserved(tmp_path: Path) -> None:
    (tmp_path / ".weakincentives-0123").write_text("half")
    files = HostFilesystem(tmp_path)
    assert list(files.walk()) == []
    with pytest.raises(PathError, match="reserved"):
        files.read_bytes(".weakincentives-0123")
    files.close()


def test_temporary_file_is_deleted_and_restored_with_its_directory(
    tmp_path: Path,
) -> None:
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    left = tmp_path / "folder" / "inner" / ".weakincentives-0123"
    left.write_text("half")
    files = HostFilesystem(tmp_path)
    before = files.snapshot()
    files.delete("folder", recursive=True)
    assert list(tmp_path.iterdir()) == []
    files.restore(before)
    assert left.read_text() == "half"
    files.close()


def test_file_size_is_checked_before_memory_is_allocated(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    files = HostFilesystem(tmp_path, limits=FilesystemLimits(file_bytes=100))
    with pytest.raises(FilesystemLimitError, match=r"'huge'.*1099511627776 bytes.*100"):
        files.read_bytes("huge")
    assert list(files.grep("x")) == []
    files.close()
