"""The files of a store: their paths and their format, and that nothing is lost whatever goes wrong
around them.
"""

import json
import os
import resource
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weakincentives.errors import missing_extra
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate
from weakincentives.prompt.errors import OverridesStoreError, PromptError
from weakincentives.prompt.overrides import (
    OverridesTag,
    PromptOverride,
    PromptOverridesStore,
    SectionOverride,
    TextId,
)
from weakincentives.prompt.overrides.store import LocalPromptOverridesStore

SOURCE = Path(__file__).parents[3] / "src"
PLACE = OverridesTag("tests/nested", "store")


def template(*bodies: str, ns: str = "tests/nested", key: str = "store") -> PromptTemplate[None]:
    """Returns a template with a section for each body; the keys are `s0`, `s1` and so on."""
    sections = [
        MarkdownSection(title=f"S{number}", template=body)
        for number, body in enumerate(bodies or ["Body."])
    ]
    return PromptTemplate(ns=ns, key=key, sections=sections)


def body(number: int, text: str) -> SectionOverride:
    return SectionOverride(path=(f"s{number}",), body=text)


@pytest.fixture
def store(tmp_path: Path) -> LocalPromptOverridesStore:
    return LocalPromptOverridesStore(tmp_path)


def files(root: Path) -> dict[str, bytes]:
    """Returns the files under `root`, except for the lock."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and path.suffix
    }


# -------------------------------------------------------------------------------------------------
# writing and reading


@pytest.mark.claim("PS-37")
def test_local_store_implements_the_overrides_store_protocol(tmp_path: Path) -> None:
    store: PromptOverridesStore = LocalPromptOverridesStore(tmp_path)
    tree = template("One.", "Two.")
    assert not store.resolve(tree.descriptor)
    assert store.resolve(tree.descriptor) == PromptOverride("latest")
    assert files(tmp_path) == {}
    store.upsert(tree.descriptor, body(0, "First."))
    store.upsert(tree.descriptor, body(0, "Primo."))
    assert store.resolve(tree.descriptor).texts == {TextId("body", "s0"): "Primo."}
    assert store.seed(tree.bind()).texts == {
        TextId("body", "s0"): "Primo.",
        TextId("body", "s1"): "Two.",
    }
    assert store.list() == (PLACE,)
    assert store.delete(PLACE, TextId("body", "s0"))
    assert not store.delete(PLACE, TextId("body", "s0"))
    assert store.resolve(tree.descriptor).texts == {TextId("body", "s1"): "Two."}
    assert store.delete(PLACE)
    assert not store.delete(PLACE)
    assert store.list() == ()
    assert not store.resolve(tree.descriptor)


@pytest.mark.claim("PS-36")
def test_resolve_omits_stale_entries_and_keeps_fresh_ones(store: LocalPromptOverridesStore) -> None:
    store.upsert(template("One.", "Two.").descriptor, body(0, "First."))
    store.upsert(template("One.", "Two.").descriptor, body(1, "Second."))
    override = store.resolve(template("Changed.", "Two.").descriptor)
    assert override.texts == {TextId("body", "s1"): "Second."}
    assert [str(stale.id) for stale in override.stale] == ["body s0"]
    assert store.resolve(template("One.", "Two.").descriptor).stale == ()


@given(st.text(st.characters(exclude_categories=["Cs"])).map(lambda text: text.replace("$", "$$")))
@settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_stored_text_round_trips_unchanged(tmp_path: Path, text: str) -> None:
    store, tree = LocalPromptOverridesStore(tmp_path), template()
    store.upsert(tree.descriptor, body(0, text))
    assert LocalPromptOverridesStore(tmp_path).resolve(tree.descriptor).texts == {
        TextId("body", "s0"): text
    }


@pytest.mark.claim("PS-38")
def test_override_file_has_the_documented_path_and_a_readable_format(
    store: LocalPromptOverridesStore, tmp_path: Path
) -> None:
    tree = template("Grüße.\n\n$$5", "Two.")
    store.upsert(tree.descriptor, body(1, "Zwei.\nDrei."))
    store.upsert(tree.descriptor, body(0, "Grüße."))
    path = tmp_path / ".weakincentives/prompts/overrides/tests/nested/store/latest.json"
    assert store.path(PLACE) == path
    text = path.read_text(encoding="utf-8")
    assert text.endswith("}\n")
    assert json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False) + "\n" == text
    data = json.loads(text)
    assert data["schema"] == 1
    assert [
        tuple(map(entry.get, ("kind", "at", "base", "text"))) for entry in data["overrides"]
    ] == [
        ("body", "s0", ["Grüße.", "", "$$5"], ["Grüße."]),
        ("body", "s1", ["Two."], ["Zwei.", "Drei."]),
    ]
    assert sorted(files(tmp_path)) == [str(path.relative_to(tmp_path))]


def test_storing_the_same_text_does_not_rewrite_the_file(store: LocalPromptOverridesStore) -> None:
    tree = template()
    store.upsert(tree.descriptor, body(0, "Other."))
    path = store.path(PLACE)
    before = path.stat()
    store.upsert(tree.descriptor, body(0, "Other."))
    store.seed(tree)
    after = path.stat()  # its access time is that of a read
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_list_returns_every_override_set_and_ignores_other_files(
    store: LocalPromptOverridesStore,
) -> None:
    for ns, key, tag in [("b", "x", "latest"), ("a/b", "x", "v1.2"), ("a", "b", "latest")]:
        store.upsert(template(ns=ns, key=key).descriptor, body(0, "Other."), tag)
    store.upsert(template(ns="a/b", key="key.json").descriptor, body(0, "Other."))
    (store.folder / "notes.json").write_text("{}")
    (store.folder / "b" / "Upper.json").write_text("{}")
    (store.folder / "b" / "x" / "latest.conflicts.md").write_text("")
    (store.folder / "b" / "x" / "latest.json.new").write_text("")
    sets = (
        ("a", "b", "latest"),
        ("a/b", "key.json", "latest"),
        ("a/b", "x", "v1.2"),
        ("b", "x", "latest"),
    )
    assert store.list() == sets


# -------------------------------------------------------------------------------------------------
# the root


@pytest.mark.parametrize("mark", [".git", "pyproject.toml", ".weakincentives"])
def test_root_is_found_from_a_subfolder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    (tmp_path / mark).mkdir()
    below = tmp_path / "src" / "deep"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert (
        LocalPromptOverridesStore().folder
        == tmp_path.resolve() / ".weakincentives/prompts/overrides"
    )


def test_root_is_required_outside_a_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    with pytest.raises(
        OverridesStoreError,
        match=r"create the folder \.weakincentives in your project's root, or pass root=",
    ):
        LocalPromptOverridesStore()


NAMES = [
    "..",
    ".",
    "",
    "a/../b",
    "/etc",
    "a\\b",
    "a\0b",
    "Upper",
    "-x",
    "é",
    "a b",
    "x" * 65,
    "a//b",
    "a\n",
    "~",
    "C:",
]


@pytest.mark.claim("U-02")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("which", ["ns", "key", "tag"])
def test_invalid_names_are_rejected_and_nothing_is_written(
    tmp_path: Path, which: str, name: str
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    store = LocalPromptOverridesStore(root)
    names = {"ns": "a", "key": "b", "tag": "c"} | {which: name}
    place = OverridesTag(**names)
    calls: list[Any] = [
        lambda: store.delete(place),
        lambda: store.delete(place, TextId("body", "s0")),
    ]
    if name.strip() or which == "tag":
        tree, tag = template(ns=names["ns"], key=names["key"]), names["tag"]
        calls += [
            lambda: store.resolve(tree.descriptor, tag),
            lambda: store.upsert(tree.descriptor, body(0, "x"), tag),
            lambda: store.seed(tree, tag),
            lambda: store.rebase(tree.descriptor, tag),
            lambda: Prompt(tree, overrides_store=store, overrides_tag=tag).render(),
        ]
    for refused in calls:
        with pytest.raises(OverridesStoreError, match="cannot be part of the file's path"):
            refused()
    assert list(root.iterdir()) == []
    assert list(tmp_path.iterdir()) == [root]


@pytest.mark.claim("U-02")
@given(st.text(max_size=12), st.text(max_size=12), st.text(max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_store_path_is_always_inside_the_root(tmp_path: Path, ns: str, key: str, tag: str) -> None:
    store = LocalPromptOverridesStore(tmp_path)
    try:
        path = store.path(OverridesTag(ns, key, tag))
    except OverridesStoreError:
        return
    assert path.is_relative_to(store.folder)
    assert path.resolve() == path


@pytest.mark.claim("U-02")
@pytest.mark.parametrize(
    "link", ["latest.json", ".", "..", "../..", "../../..", "../../../..", "../../../../.."]
)
def test_symlink_that_leaves_the_root_is_rejected(tmp_path: Path, link: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text('{"schema": 1, "overrides": []}')
    store, tree = LocalPromptOverridesStore(tmp_path / "root"), template()
    path = store.path(PLACE).parent / link
    place = Path(os.path.normpath(path))
    place.parent.mkdir(parents=True)
    place.symlink_to(
        outside / "file" if link.endswith("json") else outside, target_is_directory=True
    )
    for refused in (
        lambda: store.resolve(tree.descriptor),
        lambda: store.upsert(tree.descriptor, body(0, "x")),
        lambda: store.seed(tree),
        lambda: store.rebase(tree.descriptor),
        lambda: store.delete(PLACE),
    ):
        with pytest.raises(
            OverridesStoreError,
            match=r"'tests/nested' 'store', tag 'latest'.*is a link that leaves",
        ):
            refused()
    assert files(outside) == {}
    assert [path.name for path in outside.iterdir()] == ["file"]


def test_symlink_in_place_of_the_lock_is_not_followed(
    store: LocalPromptOverridesStore, tmp_path: Path
) -> None:
    store.folder.mkdir(parents=True)
    target = tmp_path / "precious"
    target.write_text("kept")
    (store.folder / ".lock").symlink_to(target)
    with pytest.raises(OverridesStoreError, match="is a link that leaves"):
        store.upsert(template().descriptor, body(0, "x"))
    assert target.read_text() == "kept"


def test_symlink_loop_raises_overrides_store_error(store: LocalPromptOverridesStore) -> None:
    path = store.path(PLACE)
    path.parent.mkdir(parents=True)
    path.symlink_to(path)
    with pytest.raises(OverridesStoreError, match="'tests/nested' 'store'"):
        store.resolve(template().descriptor)


def test_root_can_be_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    store, tree = LocalPromptOverridesStore(tmp_path / "link"), template()
    store.upsert(tree.descriptor, body(0, "Other."))
    assert LocalPromptOverridesStore(tmp_path / "real").resolve(tree.descriptor).texts


# -------------------------------------------------------------------------------------------------
# bad files


def stored(store: LocalPromptOverridesStore) -> bytes:
    store.upsert(template().descriptor, body(0, "Other."))
    return store.path(PLACE).read_bytes()


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda text: b"",
    "cut off": lambda text: text[: len(text) // 2],
    "no JSON": lambda text: b"\xff\xfe" + text,
    "another shape": lambda text: b"[]",
    "no schema": lambda text: b'{"overrides": []}',
    "an unknown field": lambda text: text.replace(b'"at"', b'"where": 1, "at"'),
    "an unknown kind": lambda text: text.replace(b'"body"', b'"heading"'),
    "a text that is not a list": lambda text: text.replace(
        b'[\n        "Other."\n      ]', b'"Other."'
    ),
    "a newer schema that reads alike": lambda text: text.replace(b'"schema": 1', b'"schema": 2'),
    "a newer schema": lambda text: text.replace(b'"schema": 1', b'"schema": 2, "more": {}'),
    "a key twice": lambda text: text.replace(b'"schema": 1', b'"overrides": [], "schema": 1'),
    "a key of an entry twice": lambda text: text.replace(b'"at"', b'"kind": "body", "at"'),
    "an entry twice": lambda text: json.dumps(
        {"schema": 1, "overrides": json.loads(text)["overrides"] * 2}
    ).encode(),
}


@pytest.mark.claim("U-20")
@pytest.mark.parametrize("how", BROKEN)
def test_unreadable_file_is_named_in_the_error_and_left_unchanged(
    store: LocalPromptOverridesStore, how: str
) -> None:
    broken = BROKEN[how](stored(store))
    path, tree = store.path(PLACE), template()
    path.write_bytes(broken)
    for refused in (
        lambda: store.resolve(tree.descriptor),
        lambda: store.upsert(tree.descriptor, body(0, "x")),
        lambda: store.seed(tree),
        lambda: store.rebase(tree.descriptor),
        lambda: store.delete(PLACE, TextId("body", "s0")),
        lambda: Prompt(tree, overrides_store=store).render(),
    ):
        with pytest.raises(
            OverridesStoreError,
            match=r"'tests/nested' 'store', tag 'latest': .*(correct|remove|upgrade)",
        ):
            refused()
        assert path.read_bytes() == broken
    assert issubclass(OverridesStoreError, PromptError)
    assert store.delete(PLACE)
    assert not store.resolve(tree.descriptor)


@pytest.mark.claim("U-20")
@given(st.data())
@settings(
    max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
def test_truncated_file_raises_overrides_store_error(tmp_path: Path, data: st.DataObject) -> None:
    store = LocalPromptOverridesStore(tmp_path)
    whole = stored(store)
    cut = data.draw(st.integers(0, len(whole.rstrip()) - 1))
    store.path(PLACE).write_bytes(whole[:cut])
    with pytest.raises(OverridesStoreError, match="remove the cause"):
        LocalPromptOverridesStore(tmp_path).resolve(template().descriptor)
    store.path(PLACE).unlink()


@pytest.mark.parametrize("there", ["file above", "folder", "pipe"])
def test_path_that_is_not_a_regular_file_raises_overrides_store_error(
    store: LocalPromptOverridesStore, there: str
) -> None:
    place = store.path(PLACE)
    if there == "folder":
        place.mkdir(parents=True)
    elif there == "pipe":
        place.parent.mkdir(parents=True)
        os.mkfifo(place)  # nothing will ever be written to it
    else:
        place.parent.parent.mkdir(parents=True)
        place.parent.write_text("a file in the place of a folder")
    for refused in (
        lambda: store.resolve(template().descriptor),
        lambda: store.upsert(template().descriptor, body(0, "x")),
    ):
        with pytest.raises(OverridesStoreError, match=r"'tests/nested' 'store', tag 'latest'"):
            refused()


def test_lone_surrogate_is_rejected_and_the_old_file_is_kept(
    store: LocalPromptOverridesStore,
) -> None:
    before = stored(store)
    with pytest.raises(OverridesStoreError, match="tests/nested"):
        store.upsert(template().descriptor, body(0, "\ud800"))
    assert store.path(PLACE).read_bytes() == before


# -------------------------------------------------------------------------------------------------
# other processes, and killed ones


def script(text: str) -> str:
    return textwrap.dedent("""
        import sys
        from weakincentives.prompt import MarkdownSection, PromptTemplate
        from weakincentives.prompt.overrides import OverridesTag, SectionOverride
        from weakincentives.prompt.overrides.store import LocalPromptOverridesStore
        sections = [MarkdownSection(title=f"S{number}", template="Body.") for number in range(100)]
        template = PromptTemplate(ns="tests/nested", key="store", sections=sections)
        store = LocalPromptOverridesStore(sys.argv[1])
        def put(number, text):
            store.upsert(template.descriptor, SectionOverride(path=(f"s{number}",), body=text))
    """) + textwrap.dedent(text)


def start(text: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        # -B: a full disk must not truncate bytecode that other processes read
        [sys.executable, "-B", "-c", script(text), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def hundred() -> PromptTemplate[None]:
    return template(*["Body."] * 100)


@pytest.mark.claim("U-20")
def test_concurrent_processes_do_not_lose_each_others_writes(tmp_path: Path) -> None:
    writing = "for number in range(int(sys.argv[2]), 100, 2): put(number, f'by {number}')"
    processes = [start(writing, tmp_path, first) for first in (0, 1)]
    assert [process.communicate(timeout=300)[1] for process in processes] == ["", ""]
    override = LocalPromptOverridesStore(tmp_path).resolve(hundred().descriptor)
    assert override.texts == {TextId("body", f"s{number}"): f"by {number}" for number in range(100)}


def test_concurrent_threads_do_not_lose_each_others_writes(
    store: LocalPromptOverridesStore,
) -> None:
    tree = hundred()

    def write(first: int) -> None:
        for number in range(first, 40, 4):
            store.upsert(tree.descriptor, body(number, "x"))

    threads = [Thread(target=write, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.resolve(tree.descriptor).texts) == 40


@pytest.mark.claim("U-20")
def test_killed_writer_leaves_the_old_or_the_new_file(tmp_path: Path) -> None:
    # killed at different moments, while it writes one file after another
    writing = """
        for number in range(10**9):
            put(0, f"{number} " + "x" * 200_000)
            print(number, flush=True)
    """
    last = -1
    for writes in (1, 2, 3, 5):
        process = start(writing, tmp_path)
        assert process.stdout is not None
        for _ in range(writes):
            last = int(process.stdout.readline())
        process.kill()
        process.communicate(timeout=300)
        store = LocalPromptOverridesStore(tmp_path)
        ((_, text),) = store.resolve(hundred().descriptor).texts.items()
        assert int(text.split()[0]) >= last
        assert len(text.split()[1]) == 200_000
        # the lock is free, and files that the killed process left do not matter
        store.upsert(hundred().descriptor, body(1, "after"))
        assert len(store.resolve(hundred().descriptor).texts) == 2
        store.delete(PLACE, TextId("body", "s1"))
        assert [name for name in files(tmp_path) if name.endswith(".new")] == []


@pytest.mark.claim("U-20")
def test_writer_killed_in_the_middle_of_a_file_leaves_the_old_file(tmp_path: Path) -> None:
    # the kernel kills it at the limit, when half of the new file is written
    store = LocalPromptOverridesStore(tmp_path)
    before = stored(store)
    dying = """
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        put(0, "x" * 100_000)
    """
    process = start(dying, tmp_path)
    process.communicate(timeout=300)
    assert process.returncode < 0
    (left,) = tmp_path.rglob("*.new")
    assert 0 < left.stat().st_size < 100_000
    assert store.path(PLACE).read_bytes() == before
    assert store.list() == (PLACE,)
    store.upsert(hundred().descriptor, body(0, "after"))
    assert not left.exists()


def test_full_disk_keeps_the_old_file_and_leaves_no_other(tmp_path: Path) -> None:
    store = LocalPromptOverridesStore(tmp_path)
    before = stored(store)
    filling = """
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        try:
            put(0, "x" * 100_000)
        except Exception as error:
            print(type(error).__name__, error)
    """
    out, err = start(filling, tmp_path).communicate(timeout=300)
    assert err == ""
    assert out.startswith(
        "OverridesStoreError overrides of 'tests/nested' 'store', tag 'latest': cannot write"
    )
    assert files(tmp_path) == {str(store.path(PLACE).relative_to(tmp_path)): before}
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 4096


def test_without_filelock_reading_works_and_writing_names_the_extra(tmp_path: Path) -> None:
    stored(LocalPromptOverridesStore(tmp_path))
    bare = """
        sys.modules["filelock"] = None  # as if it were not installed
        assert len(store.resolve(template.descriptor).texts) == 1
        try:
            put(0, "x")
        except ImportError as error:
            print(error)
    """
    out, err = start(bare, tmp_path).communicate(timeout=300)
    assert (out, err) == (
        f"{missing_extra('Writing overrides', 'filelock', 'overrides')}\n",
        "",
    )
