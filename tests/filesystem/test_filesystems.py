"""All filesystems agree on paths, reading, changing, searching, limits and messages."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from time import process_time, time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.files import SORTS, TREES, Tree, filesystem, tree
from weakincentives.errors import WeakIncentivesError
from weakincentives.filesystem import (
    Filesystem,
    FilesystemLimitError,
    FilesystemLimits,
    GrepMatch,
    HostFilesystem,
    InMemoryFilesystem,
    PathError,
    glob_matches,
)
from weakincentives.limits import Deadline
from weakincentives.protocols import Snapshotable
from weakincentives.serde import line_matcher


@pytest.fixture(params=SORTS)
def files(request: pytest.FixtureRequest) -> Iterator[Filesystem]:
    content: Tree = {
        "README.md": b"# Title\nText\n",
        "src": None,
        "src/app.py": b"import os\n",
        "src/a/b.py": b"x = 1",
    }
    with filesystem(request.param, content) as new_files:
        yield new_files


# --------------------------------------------------------------------------------------------------
# paths

REFUSED = {
    "": "an empty part",
    "/": "is absolute",
    "/etc/passwd": "is absolute",
    "..": "holds '..'",
    "src/../README.md": "holds '..'",
    "src//app.py": "an empty part",
    "a\0b": "a NUL character",
    "\udcff": "is no UTF-8",
    "x" * 256: "too long",
    "\N{EURO SIGN}" * 86: "too long",
    "/".join("x" * 33): "more than 32 parts deep",
    ".weakincentives-x/y": "a reserved name",
}


@pytest.mark.parametrize("path", REFUSED, ids=range(len(REFUSED)))
def test_invalid_path_is_rejected_with_a_fix(files: Filesystem, path: str) -> None:
    attempts: list[Callable[[], object]] = [
        lambda: files.read_bytes(path),
        lambda: files.write_bytes(path, b""),
        lambda: files.delete(path),
        lambda: files.mkdir(path),
        lambda: files.rename(path, "x"),
        lambda: files.rename("src", path),
        lambda: files.list(path),
        lambda: files.stat(path),
        lambda: list(files.walk(path)),
        lambda: list(files.glob("*", path)),
        lambda: list(files.glob(path)),
        lambda: list(files.grep("x", path)),
    ]
    before = tree(files)
    for attempt in attempts:
        with pytest.raises(
            PathError, match=f"{REFUSED[path]}; pass a path below the root, such as 'src/app.py'"
        ) as error:
            attempt()
        assert len(str(error.value)) < 300
    assert tree(files) == before
    assert issubclass(PathError, ValueError)
    assert issubclass(PathError, WeakIncentivesError)


def test_paths_are_normalized(files: Filesystem) -> None:
    assert files.read_bytes("./src/./app.py") == files.read_bytes("src/app.py")
    assert files.stat("./src/").path == "src"
    assert [entry.path for entry in files.list("./")] == ["README.md", "src"]
    assert files.stat(".").kind == "directory"


def test_unusual_file_names_are_allowed(files: Filesystem) -> None:
    for name in (
        "~",
        "a b",
        "-rf",
        "*",
        "new\nline",
        "\N{PILE OF POO}",
        "C:",
        "back\\slash",
        "...",
        "\x7f",
    ):
        files.write_text(name, name)
        assert files.read_text(name) == name
        assert name in {entry.path for entry in files.list()}


# ---------------------------------------------------------------------------------------------
# reading and writing


def test_bytes_and_text_round_trip_unchanged(files: Filesystem) -> None:
    data = bytes(range(256)) * 3 + b"\r\n\n\r"
    files.write_bytes("data", data)
    assert files.read_bytes("data") == data
    assert files.stat("data").size == len(data)
    assert abs(files.stat("data").modified - time()) < 3600
    files.write_text("text", "\r\n\N{EURO SIGN}")
    assert files.read_text("text") == "\r\n\N{EURO SIGN}"
    files.write_bytes("text", b"\xff")
    with pytest.raises(UnicodeDecodeError):
        files.read_text("text")


def test_append_creates_a_file_or_extends_it(files: Filesystem) -> None:
    files.append_text("log/today", "1")
    files.append_bytes("log/today", b"2")
    assert files.read_text("log/today") == "12"


def test_list_is_sorted_and_has_kind_and_size_of_each_entry(files: Filesystem) -> None:
    files.write_text("a", "12")
    entries = [(entry.path, entry.kind, entry.size) for entry in files.list()]
    assert entries == [("README.md", "file", 13), ("a", "file", 2), ("src", "directory", 0)]
    assert [entry.path for entry in files.list("src")] == ["src/a", "src/app.py"]


def test_every_error_names_the_path_and_a_fix(files: Filesystem) -> None:
    cases: list[tuple[type[OSError], str, Callable[[], object]]] = [
        (FileNotFoundError, "'no/file'", lambda: files.read_bytes("no/file")),
        (FileNotFoundError, "'no'", lambda: files.list("no")),
        (FileNotFoundError, "'no'", lambda: files.stat("no")),
        (FileNotFoundError, "'no'", lambda: files.delete("no")),
        (FileNotFoundError, "'no'", lambda: files.rename("no", "x")),
        (IsADirectoryError, "'src'", lambda: files.read_bytes("src")),
        (IsADirectoryError, "'src'", lambda: files.write_bytes("src", b"")),
        (IsADirectoryError, "'src'", lambda: files.delete("src")),
        (NotADirectoryError, "'README.md'", lambda: files.list("README.md")),
        (NotADirectoryError, "'README.md/x'", lambda: files.read_bytes("README.md/x")),
        (NotADirectoryError, "'README.md/x/y'", lambda: files.write_bytes("README.md/x/y", b"")),
        (NotADirectoryError, "'README.md/x'", lambda: files.mkdir("README.md/x")),
        (FileExistsError, "'README.md'", lambda: files.mkdir("README.md")),
        (IsADirectoryError, "'src'", lambda: files.rename("README.md", "src")),
        (IsADirectoryError, "'src'", lambda: files.rename("src", "README.md")),
        (NotADirectoryError, "'README.md/x'", lambda: files.rename("README.md", "README.md/x")),
        (PermissionError, "the root", lambda: files.delete(".", recursive=True)),
        (IsADirectoryError, "'.'", lambda: files.rename(".", "x")),
        (IsADirectoryError, "'.'", lambda: files.rename("README.md", ".")),
    ]
    before = tree(files)
    for kind, culprit, attempt in cases:
        with pytest.raises(kind, match=culprit) as error:
            attempt()
        assert "\n" not in str(error.value)
        assert ";" in str(error.value)
    assert tree(files) == before


def test_rename_replaces_files_and_creates_missing_directories(
    files: Filesystem,
) -> None:
    files.rename("README.md", "src/app.py")
    files.rename("src/app.py", "lib/python/app.py")
    assert files.read_text("lib/python/app.py") == "# Title\nText\n"
    assert not files.exists("README.md")
    assert not files.exists("src/app.py")
    files.rename("src/a/b.py", "src/a/b.py")
    assert files.read_text("src/a/b.py") == "x = 1"


@pytest.mark.parametrize("sort", ["memory", "host"])
def test_read_only_filesystem_rejects_every_change(sort: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    memory, host = (
        InMemoryFilesystem({"a": "1"}, read_only=True),
        HostFilesystem(tmp_path, read_only=True),
    )
    files = memory if sort == "memory" else host
    assert files.read_only
    attempts: list[Callable[[], object]] = [
        lambda: files.write_text("a", "2"),
        lambda: files.append_text("a", "2"),
        lambda: files.delete("a"),
        lambda: files.mkdir("d"),
        lambda: files.rename("a", "b"),
    ]
    for attempt in attempts:
        with pytest.raises(PermissionError, match="read-only"):
            attempt()
    assert tree(files) == {"a": b"1"}
    host.close()


def test_filesystems_are_snapshotable(files: Filesystem) -> None:
    assert isinstance(files, Snapshotable)


# --------------------------------------------------------------------------------------------------
# limits


@pytest.mark.parametrize("sort", ["memory", "host"])
def test_limit_errors_name_the_limit_and_a_fix(sort: str, tmp_path: Path) -> None:
    limits = FilesystemLimits(file_bytes=10, depth=3, entries=4)
    files = (
        InMemoryFilesystem(limits=limits)
        if sort == "memory"
        else HostFilesystem(tmp_path, limits=limits)
    )
    files.write_text("a/b/c", "0123456789")
    with pytest.raises(FilesystemLimitError, match=r"'a/b/c'.* 11 bytes.* 10; split it"):
        files.append_text("a/b/c", "x")
    with pytest.raises(PathError, match="more than 3 parts deep"):
        files.mkdir("a/b/c/d")
    files.write_text("d", "")
    assert len(list(files.walk())) == 4
    files.write_text("e", "")
    with pytest.raises(FilesystemLimitError, match="more than 4 entries"):
        list(files.walk())
    for name in "fgh":
        files.write_text(name, "")
    with pytest.raises(
        FilesystemLimitError, match=r"'\.' has more than 4 entries; list a subdirectory"
    ):
        files.list()
    assert files.read_text("f") == ""
    if isinstance(files, HostFilesystem):
        files.close()


# --------------------------------------------------------------------------------------------------
# searching


def test_walk_yields_each_directory_before_its_contents(files: Filesystem) -> None:
    assert [entry.path for entry in files.walk()] == [
        "README.md",
        "src",
        "src/a",
        "src/a/b.py",
        "src/app.py",
    ]
    assert [entry.path for entry in files.walk("src/a")] == ["src/a/b.py"]


def matches(pattern: list[str], path: list[str]) -> bool:
    """Returns whether a path matches a pattern, in the plainest way."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(matches(pattern[1:], path[at:]) for at in range(len(path) + 1))
    return bool(path) and fnmatchcase(path[0], pattern[0]) and matches(pattern[1:], path[1:])


@given(
    content=TREES,
    pattern=st.lists(
        st.sampled_from(["**", "*", "a", "b", "[ab]", "?", "[!c]"]), min_size=1, max_size=4
    ),
)
def test_glob_matches_path_segments(content: Tree, pattern: list[str]) -> None:
    with filesystem("memory", content) as files:
        expected = [
            path
            for path, data in content.items()
            if data is not None and matches(pattern, path.split("/"))
        ]
        assert sorted(entry.path for entry in files.glob("/".join(pattern))) == sorted(expected)
    for path in content:
        assert glob_matches("/".join(pattern), path) is matches(pattern, path.split("/"))


def test_glob_does_not_list_directories_that_cannot_match(files: Filesystem) -> None:
    fork = files.fork()
    assert [entry.path for entry in fork.glob("*.md")] == ["README.md"]
    files.write_text("src/new.md", "")
    assert files.merge(fork)


def test_glob_with_many_stars_takes_bounded_time() -> None:
    files = InMemoryFilesystem({"/".join("a" * 30): "", "a" * 250: ""})
    started = process_time()
    assert list(files.glob("/".join(["**", "a"] * 14) + "/b")) == []
    assert list(files.glob("*a" * 100 + "b")) == []
    assert process_time() - started < 10


def test_grep_returns_lines_with_their_numbers(files: Filesystem) -> None:
    assert list(files.grep(r"^t\w+$", ignore_case=True)) == [GrepMatch("README.md", 2, "Text")]
    assert list(files.grep("[a-z]", "src", glob="*.py")) == [
        GrepMatch("src/app.py", 1, "import os")
    ]
    assert list(files.grep("Text", "README.md")) == [GrepMatch("README.md", 2, "Text")]
    files.write_bytes("crlf", b"one\r\ntwo\r\n\r\n")
    assert [match.line_number for match in files.grep("^$|^two$", "crlf")] == [2, 3]
    files.write_bytes("empty", b"")
    files.write_bytes("blank", b"\n")
    assert [list(files.grep("^$", path)) for path in ("empty", "blank")] == [
        [],
        [GrepMatch("blank", 1, "")],
    ]


def test_grep_skips_binary_files(files: Filesystem) -> None:
    files.write_bytes("binary", b"Text\0")
    files.write_bytes("latin", b"Text \xff")
    assert [match.path for match in files.grep("Text")] == ["README.md", "latin"]


def test_unsupported_pattern_is_rejected_before_the_search_starts(files: Filesystem) -> None:
    for pattern in ("(", "(?=x)", r"(a)\1"):
        with pytest.raises(ValueError, match="invalid pattern"):
            files.grep(pattern)
    with pytest.raises(ValueError, match="must have at most 10,000 characters, got 10,001"):
        files.grep("x" * 10_001)
    for pattern in ("(?x)a", r"\\(?ix: a {9}) "):
        with pytest.raises(
            ValueError, match="must not use the flag x; remove the flag, white space"
        ):
            files.grep(pattern)
    files.grep(r"print\(?x")


def test_file_beyond_the_depth_limit_does_not_end_a_search(tmp_path: Path) -> None:
    for below in ("a", "a/b", "a/b/c"):
        (tmp_path / below).mkdir()
        (tmp_path / below / "f").write_text("needle")
    files = HostFilesystem(tmp_path, limits=FilesystemLimits(depth=3))
    assert [entry.path for entry in files.grep("needle")] == ["a/b/f", "a/f"]


def test_hostile_pattern_takes_linear_time() -> None:
    files = InMemoryFilesystem({"a": "a" * 100_000 + "b"})
    started = process_time()
    assert list(files.grep("(a+)+$")) == []
    assert process_time() - started < 10


# Without a limit, each takes many seconds, in which no other thread of the process runs.
@pytest.mark.parametrize(
    "text", ["a" * 300_000, ("ab" * 150 + "\n") * 30_000], ids=["line", "lines"]
)
@pytest.mark.parametrize(
    "pattern",
    ["[ab]{0,5000}[cd]", "(?:a{0,10}){1000}[cd]", r"\w{0,100}[!?]", r"[ab]*(?:\w{0,20}){4}[!?]"],
)
def test_pattern_that_would_block_the_process_is_stopped(pattern: str, text: str) -> None:
    files = InMemoryFilesystem({"text": text})
    started = process_time()
    with suppress(FilesystemLimitError):
        assert list(files.grep(pattern)) == []
    assert process_time() - started < 3


def test_every_filesystem_limits_the_cost_of_a_search(files: Filesystem) -> None:
    files.write_text("long", "a" * 300_000)
    with pytest.raises(FilesystemLimitError, match="line 1 of 'long' is too long for this pattern"):
        list(files.grep("[ab]{0,5000}c", "long"))


def test_search_that_takes_too_long_raises_with_a_fix() -> None:
    files = InMemoryFilesystem(
        {"a": "x", "b": "x", "long": "x" * 10_000}, limits=FilesystemLimits(search_seconds=0)
    )
    with pytest.raises(
        FilesystemLimitError,
        match="the search took more than 0 s at 'b'; search fewer files, or use a simpler pattern",
    ):
        list(files.grep("x"))
    with pytest.raises(
        FilesystemLimitError,
        match=r"line 1 of 'long' is too long .* \(10,000 characters\); "
        r"exclude the file, or simplify",
    ):
        list(files.grep("[xy]{0,5000}z", "long"))


def test_search_stops_at_its_deadline(files: Filesystem) -> None:
    files.write_text("text", "a" * 100)
    with pytest.raises(
        FilesystemLimitError, match=r"the search reached its deadline at 'README\.md'"
    ):
        list(files.grep("x", deadline=Deadline.after(-1)))
    assert list(files.grep("a{50}", "text", deadline=Deadline.after(600)))


def test_time_between_matches_is_not_part_of_the_search_time(files: Filesystem) -> None:
    slow = InMemoryFilesystem(
        {"a": "x\n" * 3, "b": "x"}, limits=FilesystemLimits(search_seconds=0.05)
    )
    paths = []
    for match in slow.grep("x"):
        paths.append(match.path)
        until = process_time() + 0.06
        while process_time() < until:
            pass
    assert paths == ["a", "a", "a", "b"]


def test_long_lines_can_be_searched_with_ordinary_patterns() -> None:
    files = InMemoryFilesystem({"bundle.js": "var a=1;" * 100_000 + "needle = 'x'"})
    for pattern in ("needle", r"needle\s*=", r"\bneedle\b.{0,3}'x'$"):
        assert [match.line_number for match in files.grep(pattern)] == [1]


@given(text=st.text("ab\n\r\N{EURO SIGN}", max_size=300))
@pytest.mark.parametrize("pattern", ["b|(?:c{0,100}){40}[de]", "^a?$", "a$", "\N{EURO SIGN}"])
def test_grep_finds_the_same_lines_however_the_text_is_chunked(pattern: str, text: str) -> None:
    matches = line_matcher(pattern)
    lines = (
        [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []
    )
    expected = [(number, line) for number, line in enumerate(lines, 1) if matches(line)]
    results = InMemoryFilesystem({"f": text}).grep(pattern)
    assert [(match.line_number, match.line) for match in results] == expected
