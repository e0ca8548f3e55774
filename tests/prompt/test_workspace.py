"""A section with files: its mounts, each tool's output and changes, and the replies to mistakes."""

import logging
import pickle
import re
import tracemalloc
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.agents import Args, answers, text_of, tool
from support.deadlines import with_growing_limit
from support.media import PDF, PNG
from support.sent_schemas import sent_spec
from weakincentives.content import MediaSupport
from weakincentives.evaluation.errors import DeadlineExceededError
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.messages import ToolMessage
from weakincentives.filesystem import (
    Filesystem,
    FilesystemLimits,
    HostFilesystem,
    InMemoryFilesystem,
)
from weakincentives.limits import Deadline
from weakincentives.prompt import (
    HostMount,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    PromptValidationError,
    Tool,
    ToolContext,
    ToolResult,
    WorkspaceSection,
)
from weakincentives.prompt.overrides import SectionOverride
from weakincentives.prompt.overrides.store import LocalPromptOverridesStore
from weakincentives.runtime.events import ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say

type Files = Mapping[str, str | bytes]

READING = ["list_directory", "read_file", "glob", "grep"]
WRITING = ["write_file", "edit_file", "remove"]
APP = "import sys\n\n\ndef main() -> int:\n    return 0\n\n\nsys.exit(main())\n"


def more(offset: object) -> str:
    """Returns the end of a first line that offers the rest from `offset`."""
    return f"more follow, go on with offset={offset} or narrow what you ask for."


class Agent:
    """A model that makes one call at a time, with one prompt whose resources stay open."""

    def __init__(self, section: WorkspaceSection, *others: Any) -> None:
        self.prompt = Prompt(ns="tests", key="workspace", sections=[section, *others])
        self.session = Session()

    @property
    def files(self) -> Filesystem:
        return self.prompt.resources.get(Filesystem)

    def content(self) -> dict[str, bytes]:
        return {
            entry.path: self.files.read_bytes(entry.path)
            for entry in self.files.walk()
            if entry.kind == "file"
        }

    def ask(self, name: str, **arguments: object) -> ToolMessage:
        # only the limits of files are tested here
        unbounded = RunConfig(max_argument_chars=None)
        adapter = ScriptedAdapter([call((name, arguments)), say("done")], config=unbounded)
        [answer] = answers(adapter.evaluate(self.prompt, session=self.session).transcript)
        return answer

    def use(self, name: str, **arguments: object) -> str:
        answer = self.ask(name, **arguments)
        assert answer.success, answer.content
        return answer.content

    def refused(self, name: str, **arguments: object) -> str:
        before = self.content()
        answer = self.ask(name, **arguments)
        assert not answer.success, answer.content
        assert self.content() == before
        return answer.content


@contextmanager
def at_work(section: WorkspaceSection, *others: Any) -> Generator[Agent]:
    agent = Agent(section, *others)
    with agent.prompt.resources:
        yield agent


@contextmanager
def over(files: Files, **options: Any) -> Generator[Agent]:
    with at_work(
        WorkspaceSection(filesystem=lambda: InMemoryFilesystem(files), **options)
    ) as agent:
        yield agent


def folder(root: Path, files: Files) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def names(section: WorkspaceSection) -> list[str]:
    return [tool.name for tool in section.tools()]


# --------------------------------------------------------------------------------------------------
# mounts


@pytest.mark.claim("PS-12")
def test_workspace_section_provides_its_filesystem(tmp_path: Path) -> None:
    folder(tmp_path, {"docs/guide.md": "hello"})
    prompt = PromptTemplate(
        ns="n", key="k", sections=[WorkspaceSection(mounts=[HostMount(tmp_path)])]
    ).bind()
    with prompt.resources:
        assert prompt.resources.get(Filesystem).read_text("docs/guide.md") == "hello"


def test_agent_can_find_read_edit_and_check_files_in_a_copy(tmp_path: Path) -> None:
    folder(tmp_path, {"src/app.py": APP, "README.md": "# App\n", ".git/config": "[core]\n"})
    script = [
        call(("list_directory", {}), ("grep", {"pattern": r"return \d", "glob": "**/*.py"})),
        call(("read_file", {"path": "src/app.py", "offset": 4, "limit": 2})),
        call(("edit_file", {"path": "src/app.py", "old": "return 0", "new": "return 1"})),
        call(
            ("grep", {"pattern": "return"}),
            ("write_file", {"path": "notes/done.md", "content": "done\n"}),
        ),
        say("done"),
    ]
    prompt = Prompt(ns="n", key="k", sections=[WorkspaceSection(mounts=[HostMount(tmp_path)])])
    with prompt.resources:
        transcript = ScriptedAdapter(script).evaluate(prompt, session=Session()).transcript
        files = prompt.resources.get(Filesystem)
        assert files.read_text("src/app.py") == APP.replace("return 0", "return 1")
        assert files.read_text("notes/done.md") == "done\n"
    assert [answer.content for answer in answers(transcript)] == [
        "Entries of '.': 2.\n\nREADME.md (6 bytes)\nsrc/",
        "Lines that match 'return \\\\d': 1.\n\nsrc/app.py:5:     return 0",
        (
            f"Lines of 'src/app.py': 4 to 5 of 8; {more(6)}\n\n"
            "     4\tdef main() -> int:\n     5\t    return 0"
        ),
        (
            "Edited 'src/app.py'. Replaced: 1.\n\n     2\t\n     3\t\n     4\tdef main() -> int:\n"
            "     5\t    return 1\n     6\t\n     7\t\n     8\tsys.exit(main())"
        ),
        "Lines that match 'return': 1.\n\nsrc/app.py:5:     return 1",
        "Created 'notes/done.md'. Lines: 1.",
    ]
    assert (tmp_path / "src/app.py").read_text() == APP
    assert not (tmp_path / "notes").exists()


def test_mount_copies_included_files_that_are_not_excluded(tmp_path: Path) -> None:
    wanted: Files = {
        "a.py": "1",
        "lib/b.py": "2",
        "lib/image.bin": bytes(range(256)),
        "lib/ü.py": "ü",
    }
    folder(
        tmp_path,
        {**wanted, "lib/c.txt": "3", "build/d.py": "4", "lib/build/e.py": "5", ".git/f.py": "6"},
    )
    (tmp_path / "link.py").symlink_to(tmp_path / "lib/c.txt")
    (tmp_path / "up").symlink_to(tmp_path.parent)
    mount = HostMount(
        tmp_path,
        mount_path="./in/",
        include=("**/*.py", "**/*.bin"),
        exclude=("**/build", "**/.git/**"),
    )
    with at_work(WorkspaceSection(mounts=[mount])) as agent:
        content = {name.removeprefix("in/"): data for name, data in agent.content().items()}
        assert content == {
            name: data.encode() if isinstance(data, str) else data for name, data in wanted.items()
        }


def test_excluded_folders_are_not_entered(tmp_path: Path) -> None:
    folder(tmp_path, {"a": "1", "/".join("d" * 40): "deep"})
    mount = HostMount(tmp_path, exclude=("d/d/d",))
    with at_work(WorkspaceSection(mounts=[mount])) as agent:
        assert agent.content() == {"a": b"1"}
    every = WorkspaceSection(mounts=[HostMount(tmp_path)])
    with (
        at_work(every) as agent,
        pytest.raises(PromptValidationError, match="more than 32 parts deep"),
    ):
        agent.content()


def test_mount_globs_are_normalized_like_paths(tmp_path: Path) -> None:
    folder(tmp_path, {"a.py": "1", "b.txt": "2", "build/c.py": "3"})
    mount = HostMount(tmp_path, include=["./*.py", "build/*"], exclude=["build/"])
    assert pickle.loads(pickle.dumps(mount)) == mount
    with at_work(WorkspaceSection(mounts=[mount])) as agent:
        assert agent.content() == {"a.py": b"1"}


def test_several_mounts_are_copied_to_their_mount_paths(tmp_path: Path) -> None:
    first, second = (
        folder(tmp_path / "1", {"a": "1"}),
        folder(tmp_path / "2", {"a": "2", "x/b": "3"}),
    )
    section = WorkspaceSection(
        mounts=[HostMount(first, mount_path="one"), HostMount(str(second), mount_path="two/deep")]
    )
    with at_work(section) as agent:
        assert agent.content() == {"one/a": b"1", "two/deep/a": b"2", "two/deep/x/b": b"3"}
        assert "copies of the author's folders at `one`, `two/deep`." in agent.prompt.render().text


def test_mounts_are_copied_on_first_use_once_per_prompt(tmp_path: Path) -> None:
    section = WorkspaceSection(mounts=[HostMount(tmp_path / "later")])
    template = PromptTemplate(ns="n", key="k", sections=[section])
    first, second = template.bind(), template.bind()
    folder(tmp_path / "later", {"a": "1"})
    with first.resources, second.resources:
        first.resources.get(Filesystem).write_text("a", "changed")
        assert first.resources.get(Filesystem).read_text("a") == "changed"
        assert second.resources.get(Filesystem).read_text("a") == "1"
    assert (tmp_path / "later/a").read_text() == "1"


def test_workspace_without_mounts_starts_empty() -> None:
    with at_work(WorkspaceSection()) as agent:
        assert (
            "It is empty at first.\n\nYou can read and change files." in agent.prompt.render().text
        )
        assert agent.use("list_directory") == "Entries of '.': 0."
        agent.use("write_file", path="a", content="1")
        assert agent.content() == {"a": b"1"}


def test_filesystem_factory_is_called_per_prompt_and_its_result_is_closed(tmp_path: Path) -> None:
    folder(tmp_path, {"a": "1"})
    filesystems: list[HostFilesystem] = []

    def make() -> HostFilesystem:
        filesystems.append(HostFilesystem(tmp_path, read_only=True))
        return filesystems[-1]

    section = WorkspaceSection(filesystem=make, read_only=True)
    assert (
        "List `.` to see what it holds.\n\nYou can read files, not change them."
        in section.body_text()
    )
    for _ in range(2):
        with at_work(section) as agent:
            assert agent.use("read_file", path="a") == "Lines of 'a': 1.\n\n     1\t1"
    assert len(filesystems) == 2
    for files in filesystems:
        with pytest.raises(ValueError, match="close"):
            files.read_bytes("a")


def test_filesystem_instance_is_shared_and_not_closed(tmp_path: Path) -> None:
    files = HostFilesystem(tmp_path)
    section = WorkspaceSection(filesystem=files)
    for number in "12":
        with at_work(section) as agent:
            agent.use("write_file", path=number, content=number)
    assert (tmp_path / "1").read_text() + (tmp_path / "2").read_text() == "12"
    files.close()


# --------------------------------------------------------------------------------------------------
# read-only


def test_read_only_workspace_has_no_write_tools_and_rejects_handler_writes(
    tmp_path: Path,
) -> None:
    folder(tmp_path, {"a": "1"})

    def meddle(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.resources.get(Filesystem).write_text("a", "2")
        return ToolResult(message="ok")

    section = WorkspaceSection(mounts=[HostMount(tmp_path)], read_only=True)
    with at_work(
        section, MarkdownSection(title="More", template="", tools=[tool(meddle, name="meddle")])
    ) as agent:
        assert names(section) == READING
        assert "You can read files, not change them." in agent.prompt.render().text
        assert "Unknown tool 'write_file'" in agent.refused("write_file", path="a", content="2")
        assert "read-only" in agent.refused("meddle")


def test_read_only_filesystem_makes_the_section_read_only() -> None:
    assert names(WorkspaceSection(filesystem=InMemoryFilesystem(read_only=True))) == READING
    assert names(WorkspaceSection(filesystem=InMemoryFilesystem())) == READING + WRITING


# --------------------------------------------------------------------------------------------------
# clones


@pytest.mark.claim("PS-39")
def test_clone_has_its_own_files(tmp_path: Path) -> None:
    folder(tmp_path, {"a": "1"})
    section = WorkspaceSection(
        mounts=[HostMount(tmp_path)], children=[MarkdownSection(title="Child", template="")]
    )
    clone = section.clone()
    assert clone.children[0] is not section.children[0]
    with at_work(section) as first, at_work(clone) as other:
        first.use("write_file", path="a", content="changed")
        assert other.content() == {"a": b"1"}


def test_clone_accepts_other_mounts_filesystem_and_access(tmp_path: Path) -> None:
    first, second = folder(tmp_path / "1", {"a": "1"}), folder(tmp_path / "2", {"b": "2"})
    section = WorkspaceSection(mounts=[HostMount(first)])
    closed = section.clone(read_only=True, key="closed", title="Closed")
    moved = section.clone(mounts=[HostMount(second, mount_path="here")])
    own = closed.clone(mounts=(), filesystem=InMemoryFilesystem({"c": "3"}), read_only=False)
    assert [names(each) for each in (section, closed, own)] == [
        READING + WRITING,
        READING,
        READING + WRITING,
    ]
    for each, content in ((closed, {"a": b"1"}), (moved, {"here/b": b"2"}), (own, {"c": b"3"})):
        with at_work(each) as agent:
            assert agent.content() == content
    assert section.clone(mounts=[]).mounts == ()
    assert "`here`" in PromptTemplate(ns="n", key="k", sections=[moved]).render().text
    assert "not change them" in PromptTemplate(ns="n", key="k", sections=[closed]).render().text


def test_pickled_section_works_like_the_original(tmp_path: Path) -> None:
    folder(tmp_path, {"a": "1"})
    section = WorkspaceSection(mounts=[HostMount(tmp_path)])
    twin = pickle.loads(pickle.dumps(section))
    assert twin.tools() == section.tools()
    assert pickle.loads(pickle.dumps(section.tools())) == section.tools()
    with at_work(twin) as agent:
        assert agent.content() == {"a": b"1"}


def test_text_and_tools_of_the_section_can_be_customized(tmp_path: Path) -> None:
    extra = tool(name="extra")
    section = WorkspaceSection(
        mounts=[HostMount(tmp_path, mount_path="a$b")], title="Files", tools=[extra]
    )
    assert (section.key, names(section)) == ("files", [*READING, *WRITING, "extra"])
    template = PromptTemplate(ns="n", key="k", sections=[section])
    text = template.render().text
    assert text.startswith("## 1. Files\n\nYour files are in a workspace")
    assert text.endswith("at `a$b`.\n\nYou can read and change files.")
    store = LocalPromptOverridesStore(tmp_path)
    store.seed(template)
    assert Prompt(template, overrides_store=store).render().text == text
    store.upsert(template.descriptor, SectionOverride(path=("files",), body="Be careful."))
    assert Prompt(template, overrides_store=store).render().text == "## 1. Files\n\nBe careful."


# ------------------------------------------------------------------------------------------------
# an author's mistakes


A_TEXT: Any = "/x"  # Any: a type checker would report it
A_PATH: Any = Path("/x")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HostMount("/x", mount_path="/abs"), "mount_path: '/abs' is absolute"),
        (lambda: HostMount("/x", mount_path="../up"), "mount_path: '../up' holds '..'"),
        (lambda: HostMount("/x", include=("a", "/b/*")), "include: '/b/\\*' is absolute"),
        (lambda: HostMount("/x", exclude=("..",)), "exclude: '..' holds '..'"),
        (
            lambda: HostMount("/x", include="**/*.py"),
            r"include must be a tuple of globs, .*, got a string",
        ),
        (
            lambda: HostMount("/x", exclude="*"),
            r"exclude must be a tuple of globs, .*, got a string",
        ),
        (lambda: WorkspaceSection(mounts=["/x"]), "must contain HostMount objects, got '/x'"),  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
        (
            lambda: WorkspaceSection(mounts=[HostMount("/x"), HostMount("/y", mount_path="./")]),
            "two mounts have the mount_path '.'",
        ),
        (
            lambda: WorkspaceSection(mounts=[HostMount("/x")], filesystem=InMemoryFilesystem()),
            "pass either mounts= .* or filesystem= .*, not both",
        ),
        (
            lambda: WorkspaceSection(filesystem=A_TEXT),
            r"got the path '/x'; write .*HostFilesystem\('/x'",
        ),
        (
            lambda: WorkspaceSection(filesystem=A_PATH),
            "filesystem must be a filesystem or a function that returns one",
        ),
        (lambda: WorkspaceSection().clone(mount=()), "no argument 'mount'"),
    ],
)
def test_invalid_arguments_are_rejected_at_construction(make: Any, message: str) -> None:
    with pytest.raises(PromptValidationError, match=message):
        make()


def test_mount_that_cannot_be_copied_is_reported_when_copied(tmp_path: Path) -> None:
    folder(tmp_path, {"a": "12345", "b": "67890", "d/a": "1"})
    root = str(tmp_path)
    for mounts, message in (
        (
            [HostMount(tmp_path, max_bytes=9, include=("?",))],
            "'b' of 5 bytes: the copies would have more than 9 bytes; exclude files",
        ),
        (
            [HostMount(tmp_path), HostMount(tmp_path, mount_path="d")],
            "another mount also has 'd/a'; exclude it",
        ),
        ([HostMount(tmp_path / "none")], "No such file or directory"),
        ([HostMount(tmp_path / "a")], "Not a directory"),
    ):
        prompt = Prompt(ns="n", key="k", sections=[WorkspaceSection(mounts=mounts)])
        with prompt.resources, pytest.raises(PromptValidationError) as caught:
            prompt.resources.get(Filesystem)
        assert message in str(caught.value)
        assert f"mount '{root}" in str(caught.value)
        assert caught.value.section_path == ("workspace",)


def test_conflicting_mounts_are_reported_when_copied(tmp_path: Path) -> None:
    folder(tmp_path, {"a": "12345"})
    mounts = [HostMount(tmp_path), HostMount(tmp_path, mount_path="a")]
    prompt = Prompt(ns="n", key="k", sections=[WorkspaceSection(mounts=mounts)])
    with (
        prompt.resources,
        pytest.raises(PromptValidationError, match=r"one tree: 'a/a' is or leads through a file"),
    ):
        prompt.resources.get(Filesystem)


def test_large_mounted_file_within_max_bytes_can_be_read(tmp_path: Path) -> None:
    folder(tmp_path, {"large": b"x" * 10_000_001})
    with at_work(WorkspaceSection(mounts=[HostMount(tmp_path, max_bytes=10_000_001)])) as agent:
        assert "(9,998,001 more characters)" in agent.use("read_file", path="large")


def test_two_workspaces_in_one_prompt_are_rejected() -> None:
    with pytest.raises(PromptValidationError, match=r"must be unique .*, got 'list_directory'"):
        PromptTemplate(
            ns="n", key="k", sections=[WorkspaceSection(), WorkspaceSection(key="other")]
        )


# --------------------------------------------------------------------------------------------------
# reading


def test_directory_is_listed_in_pages() -> None:
    with over({f"d/{number:03}": "x" * number for number in range(5)} | {"d/sub/x": ""}) as agent:
        assert agent.use("list_directory", path="d/", limit=2) == (
            f"Entries of 'd/': 1 to 2 of 6; {more(3)}\n\nd/000 (0 bytes)\nd/001 (1 bytes)"
        )
        assert (
            agent.use("list_directory", path="d", offset=5)
            == "Entries of 'd': 5 to 6 of 6.\n\nd/004 (4 bytes)\nd/sub/"
        )
        assert (
            agent.refused("list_directory", path="d", offset=7)
            == "Entries of 'd': fewer than 7; use a smaller offset"
        )


def test_names_with_newlines_are_quoted() -> None:
    with over({"a\nb/ (0 bytes)": "x\n"}) as agent:
        assert agent.use("list_directory") == "Entries of '.': 1.\n\n'a\\nb'/"
        assert agent.use("glob", pattern="**").endswith("\n\n'a\\nb/ (0 bytes)' (2 bytes)")
        assert agent.use("grep", pattern="x").endswith("\n\n'a\\nb/ (0 bytes)':1: x")


def test_listing_marks_links_and_special_files(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    with at_work(WorkspaceSection(filesystem=lambda: HostFilesystem(tmp_path))) as agent:
        assert "link (no regular file, cannot be opened)" in agent.use("list_directory")
        assert "out of bounds" in agent.ask("list_directory", path="link").content


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("", "Lines of 'f': 0."),
        ("\n", "Lines of 'f': 1.\n\n     1\t"),
        ("a", "Lines of 'f': 1.\n\n     1\ta"),
        ("a\r\nb\r\n", "Lines of 'f': 2.\n\n     1\ta\n     2\tb"),
        ("a\x0cb\u2028c\n", "Lines of 'f': 1.\n\n     1\ta\x0cb\u2028c"),
        ("häßlich 指南 🙂\n", "Lines of 'f': 1.\n\n     1\thäßlich 指南 🙂"),
    ],
)
def test_read_file_numbers_the_lines(content: str, shown: str) -> None:
    with over({"f": content}) as agent:
        assert agent.use("read_file", path="f") == shown


def test_long_line_is_truncated() -> None:
    with over({"f": "x" * 5_000 + "\ny\n"}) as agent:
        assert agent.use("read_file", path="f").endswith("x… (3,000 more characters)\n     2\ty")
        assert agent.use("grep", pattern="x").endswith("x… (4,500 more characters)")


class Blind(ScriptedAdapter):
    """An adapter whose model cannot see images or documents."""

    @property
    def media(self) -> MediaSupport:
        return MediaSupport()


class ImagesAlone(ScriptedAdapter):
    """An adapter whose model cannot see documents from tools."""

    @property
    def media(self) -> MediaSupport:
        return replace(super().media, documents_in_results=False)


MEDIA = {"a/cat.png": PNG, "paper.pdf": PDF, "cat\n.png": PNG, "cat.txt": PNG, "x.png": b"text"}


@pytest.mark.parametrize(
    ("adapter", "visible"),
    [
        (ScriptedAdapter, {"a/cat.png", "paper.pdf", "cat\n.png", "cat.txt"}),
        (ImagesAlone, {"a/cat.png", "cat\n.png", "cat.txt"}),
        (Blind, set[str]()),
    ],
)
def test_read_file_returns_images_and_pdfs_that_the_adapter_supports(
    adapter: type[ScriptedAdapter], visible: set[str]
) -> None:
    seen: set[str] = set()
    with over(MEDIA) as agent:
        for path, data in MEDIA.items():
            script = adapter([call(("read_file", {"path": path})), say("done")])
            [answer] = answers(script.evaluate(agent.prompt, session=agent.session).transcript)
            for media in answer.media:
                seen.add(path)
                mime = "application/pdf" if path == "paper.pdf" else "image/png"
                shown = f"{path!r} is {mime} of {len(data):,} bytes.\n\n{media}"
                assert answer.content == shown
                assert media.name in ("", path.rpartition("/")[2])
                assert agent.session.content.load(media) == data
    assert seen == visible


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b"\x89PNG\r\n\x00\x1a",
            "'f' is a binary file of 8 bytes; no tool here can show or edit it",
        ),
        (
            "é".encode("latin-1"),
            "'f' is not UTF-8 text (byte 0xe9 at 0 of 1); no tool here can show or edit it",
        ),
        (
            b"ab\xff" + b"c" * 2000,
            "'f' is not UTF-8 text (byte 0xff at 2 of 2,003); no tool here can show or edit it",
        ),
    ],
)
def test_file_that_is_not_text_is_neither_read_nor_edited(data: bytes, message: str) -> None:
    with over({"f": data}) as agent:
        assert agent.refused("read_file", path="f") == message
        assert agent.refused("edit_file", path="f", old="c", new="d") == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": "none"}, "there is no 'none'"),
        ({"path": "d"}, "'d' is a directory"),
        ({"path": "f/x"}, "'f/x' is or leads through a file"),
        (
            {"path": "/etc/passwd"},
            "'/etc/passwd' is absolute; pass a path below the root, such as 'src/app.py'",
        ),
        ({"path": "../x"}, "'../x' holds '..'"),
        ({"path": ""}, "has an empty part"),
        ({"path": "f", "offset": 3}, "Lines of 'f': fewer than 3; use a smaller offset"),
        ({"path": "empty", "offset": 2}, "Lines of 'empty': fewer than 2; use a smaller offset"),
        ({"path": "f", "offset": 10**40}, "use a smaller offset"),
        ({"path": "f", "offset": 0}, "offset and limit must be at least 1, got 0 and 2000"),
        ({"path": "f", "limit": -1}, "offset and limit must be at least 1, got 1 and -1"),
    ],
)
def test_invalid_read_gets_a_reply_with_the_fix_and_is_not_logged(
    arguments: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with over({"f": "1\n2\n", "d/x": "", "empty": ""}) as agent, caplog.at_level(logging.WARNING):
        assert message in agent.refused("read_file", **arguments)
    assert caplog.records == []


def test_page_can_start_anywhere_in_a_long_list() -> None:
    with over({f"{number:03}": "" for number in range(300)}) as agent:
        assert agent.use("list_directory", offset=299).endswith("\n\n298 (0 bytes)\n299 (0 bytes)")


LINES = st.lists(
    st.text(st.characters(exclude_characters="\n\r\0", codec="utf-8"), max_size=30), max_size=40
)


@given(LINES, st.sampled_from(["", "\n"]), st.integers(1, 50))
def test_pages_of_a_file_add_up_to_the_complete_file(
    lines: list[str], end: str, limit: int
) -> None:
    text = "\n".join(lines) + end
    read: list[str] = []
    with over({"f": text}) as agent:
        while True:
            agent.use("read_file", path="f", offset=len(read) + 1, limit=limit)
            answer = agent.session[ToolInvoked].all()[-1]
            assert answer.result.value.offset == len(read) + 1
            read += answer.result.value.lines
            if "more follow" not in answer.result.message:
                break
            assert more(len(read) + 1) in answer.result.message
    assert "\n".join(read) == text.removesuffix("\n")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("list_directory", {"path": "many", "limit": 10**9}),
        ("glob", {"pattern": "**", "limit": 10**9}),
        ("grep", {"pattern": "x", "limit": 10**9}),
        ("grep", {"pattern": "", "path": "lines", "limit": 10**9}),
        ("read_file", {"path": "lines", "limit": 10**9}),
        ("read_file", {"path": "wide"}),
    ],
)
def test_long_reply_is_truncated_and_names_the_next_offset(
    name: str, arguments: dict[str, Any]
) -> None:
    files = {f"many/{'n' * 150}{number:04}": "xyz" for number in range(400)}
    files |= {"lines": "x\n" * 50_000, "wide": "\n".join(["x" * 100_000] * 30)}
    with over(files) as agent:
        shown = agent.use(name, **arguments)
        assert 30_000 < len(shown) <= 40_300
        assert re.search(more(r"\d+"), shown)


# --------------------------------------------------------------------------------------------------
# searching

TREE: Files = {
    "a.py": "import os\nx = 1\n",
    "lib/b.py": "IMPORT\n",
    "lib/c.txt": "import\n",
    "lib/d.bin": b"import\0",
}


def test_glob_returns_files_in_order() -> None:
    with over(TREE) as agent:
        assert agent.use("glob", pattern="**/*.py") == (
            "Files that match '**/*.py': 2.\n\na.py (16 bytes)\nlib/b.py (7 bytes)"
        )
        assert agent.use("glob", pattern="*", path="lib", offset=2, limit=1) == (
            f"Files that match '*': 2 to 2; {more(3)}\n\nlib/c.txt (7 bytes)"
        )
        assert agent.use("glob", pattern="*.md") == "Files that match '*.md': 0."
        assert "is absolute" in agent.refused("glob", pattern="/etc/*")
        assert "there is no 'none'" in agent.refused("glob", pattern="*", path="none")


def test_grep_returns_lines_with_path_and_line_number() -> None:
    with over(TREE) as agent:
        assert agent.use("grep", pattern="^import") == (
            "Lines that match '^import': 2.\n\na.py:1: import os\nlib/c.txt:1: import"
        )
        found = agent.use("grep", pattern="import", ignore_case=True, glob="**/*.py", limit=1)
        assert found.endswith(f"1 to 1; {more(2)}\n\na.py:1: import os")
        assert (
            agent.use("grep", pattern="import", glob="*/*")
            == "Lines that match 'import': 1.\n\nlib/c.txt:1: import"
        )
        assert agent.use("grep", pattern="x", path="a.py").endswith("\n\na.py:2: x = 1")
        assert agent.use("grep", pattern="absent") == "Lines that match 'absent': 0."


def test_search_stops_at_the_deadline_of_its_call() -> None:
    limits = FilesystemLimits(search_seconds=600)
    files = InMemoryFilesystem({"text": ("ab" * 150 + "\n") * 30_000}, limits=limits)
    prompt = Prompt(ns="tests", key="workspace", sections=[WorkspaceSection(filesystem=files)])

    def attempt(seconds: float) -> list[ToolMessage]:
        adapter = ScriptedAdapter([call(("grep", {"pattern": r"\w{0,100}[!?]"})), say("done")])
        started = process_time()
        with pytest.raises(DeadlineExceededError) as caught:
            adapter.evaluate(prompt, session=Session(), deadline=Deadline.after(seconds))
        assert process_time() - started < seconds + 3  # the complete text takes ten seconds
        return answers(caught.value.transcript)

    [answer] = with_growing_limit(lambda seconds: attempt(seconds) or None, 1)
    assert "the search reached its deadline at 'text'" in answer.content


def test_unsupported_pattern_is_rejected_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with over(TREE) as agent, caplog.at_level(logging.WARNING):
        assert "invalid pattern" in agent.refused("grep", pattern=r"(a)\1")
    assert caplog.records == []


# --------------------------------------------------------------------------------------------------
# changing


def test_write_file_creates_directories_and_replaces_files() -> None:
    with over({"a": "1"}) as agent:
        assert (
            agent.use("write_file", path="x/y/z.md", content="ü\n2")
            == "Created 'x/y/z.md'. Lines: 2."
        )
        assert agent.use("write_file", path="a", content="") == "Replaced 'a'. Lines: 0."
        assert agent.content() == {"a": b"", "x/y/z.md": "ü\n2".encode()}
        assert "'x' is a directory" in agent.refused("write_file", path="x", content="")
        assert "leads through a file" in agent.refused("write_file", path="a/b", content="")
        assert "20000000" in agent.refused("write_file", path="a", content="x" * 20_000_000)


def test_remove_deletes_files_and_directories() -> None:
    with over({"a": "1", "d/e/f": "2", "g": "3"}) as agent:
        assert agent.use("remove", path="a") == "Removed 'a'."
        assert "recursive" in agent.refused("remove", path="d")
        assert agent.use("remove", path="d", recursive=True) == "Removed 'd'."
        assert "the root cannot be deleted" in agent.refused("remove", path=".", recursive=True)
        assert "there is no 'a'" in agent.refused("remove", path="a")
        assert agent.content() == {"g": b"3"}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("", "x", "old is empty; use write_file"),
        ("one", "one", "old and new are the same text"),
        (
            "three",
            "x",
            "cannot find old in 'f'; copy it exactly from read_file, with its indentation and",
        ),
        ("     2\tone", "x", "cannot find old in 'f'; copy it exactly"),
        (
            "one two",
            "x",
            "cannot find old in 'f' (it appears with different white space); copy it exactly",
        ),
        (
            "one",
            "x",
            "old appears 3 times in 'f', at lines 1, 2, 15; add surrounding lines until it is",
        ),
        (
            "z",
            "x",
            "old appears 12 times in 'f', at lines 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, …; add",
        ),
    ],
)
def test_invalid_or_ambiguous_edit_is_rejected_with_a_fix(old: str, new: str, message: str) -> None:
    with over({"f": "one\none\n" + "z\n" * 12 + "one\n    two\n"}) as agent:
        assert message in agent.refused("edit_file", path="f", old=old, new=new)


def test_edit_shows_the_surrounding_lines() -> None:
    with over({"f": "".join(f"{number}\n" for number in range(1, 101))}) as agent:
        assert agent.use("edit_file", path="f", old="50\n51\n", new="a\nb\nc\n") == (
            "Edited 'f'. Replaced: 1.\n\n"
            "    47\t47\n    48\t48\n    49\t49\n    50\ta\n    51\tb\n    52\tc\n"
            "    53\t52\n    54\t53\n    55\t54"
        )
        assert agent.use("edit_file", path="f", old="1\n", new="", replace_all=True).startswith(
            "Edited 'f'. Replaced: "
        )
        long = agent.use("edit_file", path="f", old="99\n", new="y\n" * 10_000)
        assert len(long.splitlines()) == 2 + 40


def test_oversized_edit_is_rejected_before_memory_is_allocated() -> None:
    with at_work(WorkspaceSection(filesystem=InMemoryFilesystem({"a": "e" * 100_000}))) as agent:
        tracemalloc.start()
        try:
            answer = agent.refused(
                "edit_file", path="a", old="e", new="x" * 10_000, replace_all=True
            )
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert "would have 1,000,000,000 characters" in answer
    assert peak < 100_000_000


def test_edit_can_fill_a_file_up_to_the_size_limit() -> None:
    files = InMemoryFilesystem({"a": "e"}, limits=FilesystemLimits(file_bytes=10))
    with at_work(WorkspaceSection(filesystem=files)) as agent:
        assert "would have 11 characters" in agent.refused(
            "edit_file", path="a", old="e", new="x" * 11
        )
        agent.use("edit_file", path="a", old="e", new="x" * 10)
    assert files.read_text("a") == "x" * 10


def test_reply_does_not_repeat_a_long_pattern() -> None:
    with at_work(WorkspaceSection(filesystem=InMemoryFilesystem({"a": "x"}))) as agent:
        assert len(agent.use("grep", pattern="y" * 10_000)) < 500
        assert len(agent.use("glob", pattern="/".join(["y" * 200] * 15))) < 500


def test_edit_can_empty_a_file() -> None:
    with over({"f": "one\n"}) as agent:
        assert agent.use("edit_file", path="f", old="one\n", new="") == "Edited 'f'. Replaced: 1."
        assert agent.content() == {"f": b""}


def test_edit_keeps_the_line_endings_of_the_file() -> None:
    with over({"f": "a\r\nb\r\nc\r\n"}) as agent:
        agent.use("edit_file", path="f", old="a\nb", new="x\ny\nz")
        agent.use("edit_file", path="f", old="c", new="c\r\nd")
        assert agent.content() == {"f": b"x\r\ny\r\nz\r\nc\r\nd\r\n"}


TEXT = st.text(st.sampled_from("ab \n\tü$\\."), max_size=30)


@given(
    TEXT,
    TEXT.filter(bool) | st.sampled_from(["a", "b", "\n"]),
    TEXT,
    st.sampled_from([{}, {"replace_all": True}]),
)
def test_accepted_edit_is_equivalent_to_str_replace(
    text: str, old: str, new: str, every: dict[str, bool]
) -> None:
    with over({"f": text}) as agent:
        answer = agent.ask("edit_file", path="f", old=old, new=new, **every)
        clear = old != new and (text.count(old) == 1 or (bool(every) and old in text))
        assert answer.success is clear
        assert agent.files.read_text("f") == (text.replace(old, new) if clear else text)


def test_failed_call_restores_the_files(tmp_path: Path) -> None:
    def spoil(params: Args, *, context: ToolContext) -> ToolResult[object]:
        files = context.resources.get(Filesystem)
        files.delete("d", recursive=True)
        files.write_text("a", "spoilt")
        raise RuntimeError("no")

    folder(tmp_path, {"a": "1", "d/b": "2"})
    more = MarkdownSection(title="More", template="", tools=[tool(spoil, name="spoil")])
    for section in (
        WorkspaceSection(mounts=[HostMount(tmp_path)]),
        WorkspaceSection(filesystem=lambda: HostFilesystem(tmp_path)),
    ):
        with at_work(section, more) as agent:
            agent.use("write_file", path="c", content="3")
            assert agent.refused("spoil") == "no"
            assert agent.content() == {"a": b"1", "d/b": b"2", "c": b"3"}


def test_parallel_calls_give_the_same_result_as_sequential_calls() -> None:
    calls = call(
        ("read_file", {"path": "a"}),
        ("edit_file", {"path": "a", "old": "1", "new": "9"}),
        ("grep", {"pattern": r"\d"}),
        ("write_file", {"path": "c/d", "content": "x"}),
        ("remove", {"path": "none"}),
        ("list_directory", {"path": "c"}),
        ("remove", {"path": "b"}),
        ("glob", {"pattern": "**"}),
    )
    seen: list[object] = []
    for config in (RunConfig(), RunConfig(parallel_tool_calls="isolated")):
        with over({"a": "1\n", "b": "2\n"}) as agent:
            agent.use("list_directory")  # so that a filesystem exists to be forked
            adapter = ScriptedAdapter([calls, say("done")], config=config)
            tool_answers = answers(adapter.evaluate(agent.prompt, session=Session()).transcript)
            seen.append(
                ([(answer.content, answer.success) for answer in tool_answers], agent.content())
            )
    assert seen[0] == seen[1]


# --------------------------------------------------------------------------------------------------
# tools


def test_reading_tools_are_pure_and_writing_tools_are_repeatable() -> None:
    section = WorkspaceSection()
    assert [tool.effect for tool in section.tools()] == ["pure"] * len(READING) + [
        "repeatable"
    ] * len(WRITING)


@pytest.mark.parametrize("file_tool", WorkspaceSection().tools(), ids=lambda tool: tool.name)
def test_every_argument_is_described_in_the_strict_schema(
    file_tool: Tool[Any, Any],
) -> None:
    adapter = ScriptedAdapter([say("done")])
    adapter.evaluate(Prompt(ns="n", key="k", sections=[WorkspaceSection()]), session=Session())
    [spec] = [spec for spec in adapter.requests[0].tools if spec.name == file_tool.name]
    assert sent_spec(spec).strict
    assert all(each["description"] for each in spec.parameters["properties"].values())
    assert "workspace" in text_of(adapter.requests[0].messages[0])
