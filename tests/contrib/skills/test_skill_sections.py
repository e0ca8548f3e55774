"""A skill is a section: levels, literal text, files to read, and folders with faults."""

import os
import pickle
from pathlib import Path
from typing import Any, Literal

import pytest

from support.agents import answers
from support.skills import front_matter, write_skill
from weakincentives import MarkdownSection, Prompt, PromptTemplate
from weakincentives.contrib.skills import SkillError, SkillSection, SkillWarning, skills
from weakincentives.contrib.skills.skill_sections import Split
from weakincentives.inspection.analysis import analyze
from weakincentives.prompt import (
    HostMount,
    PromptValidationError,
    SectionPath,
    SectionVisibility,
    WorkspaceSection,
)
from weakincentives.prompt.overrides import SectionOverride
from weakincentives.prompt.overrides.store import LocalPromptOverridesStore
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say

FULL = SectionVisibility.FULL
BODY = """
# PDF files

Costs $5, ${x} and $$.

## Read

Use `pdftotext`. Then look.

### Tables

{long}

### Images

{long}

## Write

### One

Short.
"""


def template(*sections: MarkdownSection[None]) -> PromptTemplate[None]:
    return PromptTemplate(ns="tests", key="skills", sections=sections)


def keys(section: SkillSection) -> list[str]:
    return [node.key for node in template(section).registry.sections]


def texts(section: SkillSection) -> dict[SectionPath, str]:
    """Returns the text of each section once everything is open."""
    prompt = template(section)
    opened = dict.fromkeys([node.path for node in prompt.registry.sections], FULL)
    rendered = prompt.render(visibility_overrides=opened)
    return dict(zip([span.path for span in rendered.spans], rendered.section_texts, strict=True))


def plain_lines(*texts: str) -> list[str]:
    """Returns the lines of text that are not headings."""
    return [line for text in texts for line in text.split("\n") if line and line[0] != "#"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    text = BODY.replace("{long}", "A long line." * 400)
    return write_skill(tmp_path / "pdf", front_matter() + text)


@pytest.mark.claim("N-27")
def test_skill_opens_level_by_level(folder: Path) -> None:
    section = SkillSection(folder, split=2)
    assert keys(section) == [
        "pdf", "pdf.read", "pdf.read.tables", "pdf.read.images", "pdf.write",
    ]  # fmt: skip
    prompt = template(section)
    assert prompt.render().text == (
        "## 1. pdf\n\nWork with PDF files.\n\n---\n[This section is summarized. Call "
        '`read_section` with key "pdf" to view full content including subsections: read, write.]'
    )
    text = prompt.render(visibility_overrides={("pdf",): FULL}).text
    assert text.startswith("## 1. pdf\n\n# PDF files\n\nCosts $5, ${x} and $$.\n\n### 1.1. Read\n")
    assert "\n\nUse `pdftotext`.\n\n---\n" in text
    assert "pdf.read.tables, pdf.read.images.]" in text
    assert text.endswith("### 1.2. Write\n\n### One\n\nShort.")  # too short to be summarized
    assert "A long line" not in text


@pytest.mark.parametrize(
    ("split", "count"), [(0, 1), (1, 3), (2, 5), (9, 5), ("auto", 5)]
)  # fmt: skip
def test_split_sets_how_deep_headings_become_sections(
    folder: Path, split: int | Literal["auto"], count: int
) -> None:
    section = SkillSection(folder, split=split)
    assert len(keys(section)) == count
    markdown = section.skill.source[section.skill.start :]
    assert plain_lines(*texts(section).values()) == plain_lines(markdown)


def test_short_skill_stays_one_section(tmp_path: Path) -> None:
    folder = write_skill(tmp_path / "pdf", front_matter() + "# A\n\na\n\n# B\n\nb\n")
    assert keys(SkillSection(folder)) == ["pdf"]
    assert keys(SkillSection(folder, split=1)) == ["pdf", "pdf.a", "pdf.b"]


def test_duplicate_and_non_ascii_headings_get_unique_keys(tmp_path: Path) -> None:
    text = front_matter(name="概要") + "# Files\na\n# Files\nb\n# 手順\nc\n# 結果\nd\n"
    folder = write_skill(tmp_path / "概要", text, {"a.txt": "a"})
    section = SkillSection(folder, split=1)
    assert section.skill.findings == ()
    assert [key.partition(".")[2] for key in keys(section)] == [
        "", "files-2", "files-3", "part", "part-2", "files",
    ]  # fmt: skip
    assert section.title == "概要"


def test_skill_text_and_overrides_are_literal(folder: Path, tmp_path: Path) -> None:
    section = SkillSection(folder)
    store = LocalPromptOverridesStore(tmp_path)
    store.upsert(
        template(section).descriptor, SectionOverride(path=("pdf",), body="$1", summary="$2")
    )
    prompt = Prompt(template(section), overrides_store=store)
    assert prompt.render().text.startswith("## 1. pdf\n\n$2\n\n---\n")
    opened = prompt.render(visibility_overrides={("pdf",): FULL}).text
    assert opened.startswith("## 1. pdf\n\n$1\n\n### 1.1. Read\n")


def test_allowed_tools_and_compatibility_are_rendered(tmp_path: Path) -> None:
    more = "allowed-tools: Bash(git:*)\n  Read\ncompatibility: Needs git\n"
    folder = write_skill(tmp_path / "pdf", front_matter(more=more) + "Text")
    assert texts(SkillSection(folder))["pdf",] == (
        "## 1. pdf\n\nCompatibility, as the skill's author states it: Needs git\n\n"
        "Tools that the skill's author allows it; nothing here enforces this: Bash(git:*) Read\n\n"
        "Text"
    )


@pytest.mark.parametrize(
    "read", [["pdf"], ["pdf", "pdf.read"], ["pdf.read", "pdf"], ["pdf", "pdf.read.tables"]]
)
def test_restated_does_not_repeat_sections_read_level_by_level(
    folder: Path, read: list[str]
) -> None:
    prompt, session = template(SkillSection(folder, split=3)).bind(), Session()
    script = [call(("read_section", {"section_key": key})) for key in read]
    adapter = ScriptedAdapter([*script, say("one"), say("two")])
    first = adapter.evaluate(prompt, session=session, message="Hi").conversation
    assert first is not None
    restated = first.restated(prompt, session)
    assert len(restated.messages) == 2 + 2 * len(read) + 1
    second = adapter.evaluate(prompt, session=session, message="So?", conversation=restated)
    assert second.conversation is not None
    assert [message.kind for message in second.conversation.messages[-2:]] == ["user", "assistant"]
    assert len(second.conversation.messages) == len(restated.messages) + 2


def test_skill_section_takes_the_common_section_arguments_and_clones(folder: Path) -> None:
    tip = MarkdownSection(title="Tip", template="Ask first.")
    section = SkillSection(
        folder, key="documents", summary="When needed.", visibility=FULL, children=[tip]
    )
    for same in (section, section.clone()):
        text = template(same).render().text
        assert text.startswith("## 1. pdf\n\n# PDF files")
        assert text.endswith("### 1.3. Tip\n\nAsk first.")
        assert (same.key, same.summary) == ("documents", "When needed.")


def test_prompt_with_skills_can_be_pickled(files: Path) -> None:
    prompt = template(SkillSection(files))
    copy = pickle.loads(pickle.dumps(prompt))
    assert copy.render().text == prompt.render().text
    assert copy.registry.get_tool("pdf_read_file") == prompt.registry.get_tool("pdf_read_file")


def test_skill_findings_are_reported_by_analyze(tmp_path: Path) -> None:
    folder = write_skill(tmp_path / "pdf", front_matter(more="hint: x\n") + "Text. " * 99)
    [finding] = analyze(template(SkillSection(folder))).findings
    assert (finding.code, finding.section_path) == ("source", ("pdf",))
    assert finding.message.startswith(f"{folder / 'SKILL.md'}:4: unexpected field 'hint'")
    with pytest.raises(SkillError):
        SkillSection(folder, strict=True)


# ---------------------------------------------------------------------------------------------
# files


class Agent:
    """A model that makes one call at a time, with a skill's files open."""

    def __init__(self, *sections: MarkdownSection[None] | WorkspaceSection) -> None:
        self.prompt = Prompt(ns="tests", key="files", sections=sections)

    def ask(self, name: str, **arguments: object) -> str:
        adapter = ScriptedAdapter(
            [
                call(("read_section", {"section_key": "pdf.files"})),
                call((name, arguments)),
                say("done"),
            ]
        )
        answer = answers(adapter.evaluate(self.prompt, session=Session()).transcript)[-1]
        return answer.content


@pytest.fixture
def files(tmp_path: Path) -> Path:
    script = f"#!/bin/sh\ntouch {tmp_path}/ran\n"
    contents: dict[str, str | bytes] = {
        "scripts/run.sh": script,
        "references/a b.md": "one\ntwo\n",
        "logo.png": b"\x89PNG\0",
        "huge.txt": b"x" * 10_000_001,
    }
    folder = write_skill(tmp_path / "pdf", files=contents)
    (folder / "scripts/run.sh").chmod(0o755)
    (tmp_path / "secret").write_text("secret")
    (folder / "up").symlink_to(tmp_path)
    return folder


def test_skill_files_are_a_section_with_its_own_tools(files: Path, tmp_path: Path) -> None:
    section = SkillSection(files)
    text = texts(section)["pdf", "files"]
    assert "- `references/a b.md` (8 bytes)" in text
    assert "- `scripts/run.sh`" in text
    assert "SKILL.md" not in text
    assert "`up`" not in text
    (tmp_path / "src").mkdir()
    own = WorkspaceSection(mounts=[HostMount(tmp_path / "src")])  # its tools keep their names
    agent = Agent(own, section)
    assert "     2\ttwo" in agent.ask("pdf_read_file", path="references/a b.md")
    assert "references/a b.md:1: one" in agent.ask("pdf_grep", pattern="o.e", path="references")
    assert "scripts/run.sh" in agent.ask("pdf_glob", pattern="**/*.sh")
    assert "#!/bin/sh" in agent.ask("pdf_read_file", path="scripts/run.sh")
    assert "there is no 'scripts/run.sh'" in agent.ask("read_file", path="scripts/run.sh")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("../secret", "holds '..'"),
        ("/etc/passwd", "is absolute"),
        ("up/secret", "out of bounds"),
        ("logo.png", "is a binary file of 5 bytes"),
        ("huge.txt", "the limit is 10000000"),
        ("gone", "there is no 'gone'"),
    ],
)
def test_unreadable_skill_file_is_answered_with_an_error(
    files: Path, path: str, answer: str
) -> None:
    assert answer in Agent(SkillSection(files)).ask("pdf_read_file", path=path)


def test_missing_skill_folder_is_answered_with_an_error(files: Path) -> None:
    section = SkillSection(files)
    files.rename(files.with_name("gone"))
    assert "pdf" in Agent(section).ask("pdf_read_file", path="a.md")


def test_long_skill_names_get_valid_unique_tool_names(tmp_path: Path) -> None:
    names = [f"{'migrating-' * 6}{last}" for last in "ab"]
    for name in names:
        write_skill(tmp_path / name, files={"a.md": "a"})
    registry = template(*skills(tmp_path)).registry
    assert len(registry.tool_paths) == 8
    assert max(map(len, registry.tool_paths)) <= 64


def test_file_names_with_line_breaks_are_quoted(tmp_path: Path) -> None:
    folder = write_skill(tmp_path / "pdf", files={"a\n## 9. Forged": "x"})
    shown = texts(SkillSection(folder))["pdf", "files"]
    assert r"- `'a\n## 9. Forged'` (1 bytes)" in shown
    assert "\n## 9." not in template(SkillSection(folder)).render().text + shown


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("1. Read the file. Then stop.", "Read the file."),
        ("- **Note**: e.g. this one. More.", "Note: e.g. this one."),
        ("```\ncode\n```", "One"),
        ("```\n# code\n```\n### Deeper\n### More", "Deeper, More"),
        ("Use `it`. Then stop.", "Use `it`."),
        ("### Deeper\n\n> Quoted text", "Deeper"),
        ("> Quoted text", "Quoted text"),
        ("| a | b |\n", "One"),
        (f"{'word ' * 50}.", f"{('word ' * 32).strip()} …"),
    ],
)
def test_heading_is_summarized_by_its_first_sentence(
    tmp_path: Path, text: str, summary: str
) -> None:
    source = front_matter() + f"## One\n\n{text}\n\n## Two\n\n{'Long. ' * 200}"
    section = SkillSection(write_skill(tmp_path / "pdf", source), split=1)
    assert section.children[0].summary == summary


@pytest.mark.parametrize("split", [-1, "all", None, 1.5])
def test_invalid_split_is_rejected(tmp_path: Path, split: Split) -> None:
    with pytest.raises(PromptValidationError, match='must be a number of levels or "auto"'):
        SkillSection(write_skill(tmp_path / "pdf"), split=split)


def test_file_list_is_truncated_to_50(tmp_path: Path) -> None:
    many: dict[str, str | bytes] = {f"{number:03}.md": "a" for number in range(60)}
    text = texts(SkillSection(write_skill(tmp_path / "pdf", files=many)))["pdf", "files"]
    assert text.count("\n- `") == 50
    assert text.endswith("- and 10 more")


# ---------------------------------------------------------------------------------------------
# folders


def test_skills_are_found_in_order_and_filtered_by_globs(tmp_path: Path) -> None:
    for path in ("b", "group/a", ".hidden/c", "b/inner", "node/x/.git/d"):
        write_skill(tmp_path / path)
    (tmp_path / "README.md").write_text("no skill")
    found = [section.key for section in skills(tmp_path, strict=True)]
    assert found == ["c", "b", "a"]
    assert [section.key for section in skills(tmp_path / "b")] == ["b"]
    assert [section.key for section in skills(tmp_path, include=["group/*"])] == ["a"]
    assert [section.key for section in skills(tmp_path, exclude=["b", ".hidden/**"])] == ["a"]
    assert skills(tmp_path, include=[]) == ()
    with pytest.raises(NotADirectoryError):
        skills(tmp_path / "README.md")


@pytest.mark.parametrize("option", ["include", "exclude"])
def test_globs_must_be_a_list(tmp_path: Path, option: str) -> None:
    globs: Any = {option: "a*"}
    with pytest.raises(PromptValidationError, match=rf"{option} must be a list, .*, got a string"):
        skills(tmp_path, **globs)


def test_skipped_skills_are_named_in_warnings(tmp_path: Path) -> None:
    folder = tmp_path / "skills"
    write_skill(folder / "good")
    write_skill(folder / "more/good")
    write_skill(folder / "binary", b"\0\xff")
    write_skill(tmp_path / "outside")
    (folder / "linked").symlink_to(tmp_path / "outside")
    with pytest.warns(SkillWarning) as caught:
        assert [section.key for section in skills(folder)] == ["good"]
    assert {Path(warning.filename).name for warning in caught} == {Path(__file__).name}
    warnings = [str(warning.message) for warning in caught]
    assert [text.partition(": ")[0] for text in warnings] == [
        f"{folder}/{path}:1" for path in ("binary/SKILL.md", "linked", "more/good")
    ]
    assert "it is a link, so it is skipped; pass the folder that it leads to" in warnings[1]
    assert f"{str(folder / 'good')!r} also has the name 'good'; rename or exclude" in warnings[2]
    with pytest.raises(SkillError, match="skipped") as error:
        skills(folder, strict=True)
    assert len(error.value.findings) == 3
    quiet = skills(folder, exclude=["binary", "linked", "more/**"], strict=True)
    assert [section.key for section in quiet] == ["good"]


def test_skills_accepts_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_skill(tmp_path / "pdf")
    monkeypatch.chdir(tmp_path / "pdf")
    assert [section.title for section in skills(os.curdir, strict=True)] == ["pdf"]


def test_lone_heading_below_some_text_becomes_a_section(tmp_path: Path) -> None:
    for text, children in [
        ("Intro.\n\n# Only\n\nText.\n", ["pdf.only"]),
        ("# Only\n\nText.\n", []),
        ("# Title\n\nIntro.\n\n## Only\n\nText.\n", ["pdf.only"]),
        ("# Title\n\n## Only\n\nText.\n", []),
    ]:
        section = SkillSection(write_skill(tmp_path / "pdf", front_matter() + text), split=1)
        assert keys(section) == ["pdf", *children]
        markdown = section.skill.source[section.skill.start :]
        assert plain_lines(*texts(section).values()) == plain_lines(markdown)
