"""Imported skills are exported byte for byte; overridden texts replace the originals."""

import stat
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skills_ref import read_properties

from support.skills import front_matter, refusals, write_skill
from support.strategies import Nothing, Plan, Who, forests, sections
from weakincentives import MarkdownSection, Prompt, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.contrib.skills import SkillError, SkillSection, export_skills, read_skill
from weakincentives.contrib.skills.skill_sections import Split
from weakincentives.prompt import SectionVisibility
from weakincentives.prompt.overrides import TextId
from weakincentives.prompt.overrides.store import LocalPromptOverridesStore
from weakincentives.prompt.sections import AnySection
from weakincentives.runtime.session import Session

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY


def look(params: Nothing, *, context: ToolContext) -> ToolResult[Nothing]:
    return ToolResult(message="", value=params)


TOOL = Tool(name="look", handler=look)


def template(*roots: AnySection, key: str = "guide") -> PromptTemplate[None]:
    return PromptTemplate(ns="tests", key=key, sections=roots)


def overridden(
    prompt: PromptTemplate[None], texts: dict[TextId, str], place: str | Path
) -> Prompt[None]:
    store = LocalPromptOverridesStore(Path(place, "overrides"))
    store.replace(prompt.descriptor, texts)
    return Prompt(prompt, overrides_store=store)


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


LINES = st.sampled_from(
    ["", " ", "text", "  indented", "# One", "## Two", "### Two", "```", "# One", "---", "a\u2028b"]
)
ENDS = st.sampled_from(["\n", "\r\n"])
SPLITS = st.sampled_from(["auto", 0, 1, 2, 9])
FRONTS = st.sampled_from(
    [
        front_matter(),
        front_matter(description="|\n  One\n  two\n", more="license: MIT\n"),
        front_matter(description="'x' # why"),
        front_matter(description=">-\n  One\n\n  two\n"),
        front_matter(description="Use when: x"),
        "\ufeff" + front_matter(more="hint: yes\n"),
        "",
    ]
)


def skill_sources() -> st.SearchStrategy[str]:
    def join(front: str, lines: list[str], end: str) -> str:
        return (front + "\n".join(lines)).replace("\n", end)

    return st.builds(join, FRONTS, st.lists(LINES, max_size=12), ENDS)


@given(skill_sources(), SPLITS, st.booleans())
def test_unchanged_skill_is_exported_byte_for_byte(source: str, split: Split, seeded: bool) -> None:
    with TemporaryDirectory() as place:
        folder = write_skill(Path(place, "pdf"), source, {"a/b.bin": b"\0\xff", "LICENSE": "x\r\n"})
        prompt = template(SkillSection(folder, split=split))
        texts = {id_: text.text for id_, text in prompt.descriptor.texts.items()} if seeded else {}
        [export] = export_skills(overridden(prompt, texts, place))
        export.write(Path(place, "out"))
        assert files(Path(place, "out/pdf")) == files(folder)
        assert export.notes == []


@given(skill_sources(), SPLITS, st.data())
def test_overridden_body_replaces_only_its_own_text(
    source: str, split: Split, data: st.DataObject
) -> None:
    with TemporaryDirectory() as place:
        section = SkillSection(write_skill(Path(place, "pdf"), source), split=split)
        prompt = template(section)
        nodes = prompt.registry.sections
        node = data.draw(st.sampled_from(nodes))
        before = {node.key: node.section.body_text() for node in nodes}
        [export] = export_skills(
            overridden(prompt, {TextId("body", node.key): "New $1\n\nend."}, place)
        )
        write_skill(Path(place, "pdf"), export.files["SKILL.md"])
        again = template(SkillSection(Path(place, "pdf"), split=split)).registry.sections
        after = {node.key: node.section.body_text() for node in again}
        if "```" not in source and split != "auto":  # otherwise, an open fence ends elsewhere
            assert after == before | {node.key: "New $1\n\nend."}
        old = section.skill.source.replace("\r\n", "\n").split("\n")
        new = export.files["SKILL.md"].decode().replace("\r\n", "\n").split("\n")
        removed = [line for line in old if old.count(line) > new.count(line) and line.strip()]
        assert set(removed) <= set(before[node.key].split("\n"))
        assert ("\r\n" in export.files["SKILL.md"].decode()) == ("\r\n" in section.skill.source)


@given(skill_sources(), st.text(min_size=1, max_size=30))
def test_overridden_summary_is_exported_as_the_description(source: str, text: str) -> None:
    with TemporaryDirectory() as place:
        section = SkillSection(write_skill(Path(place, "pdf"), source))
        prompt = template(section)
        [export] = export_skills(overridden(prompt, {TextId("summary", "pdf"): text}, place))
        write_skill(Path(place, "pdf"), export.files["SKILL.md"])
        read = read_skill(Path(place, "pdf"))
        if "description" not in section.skill.fields:
            assert export.notes == [
                "pdf: the summary is omitted because SKILL.md has no field for it"
            ]
        elif text.strip():
            assert read.text("description") == " ".join(text.split())
            assert read.text("name") == section.skill.text("name")
            assert read.source[read.start :] == section.skill.source[section.skill.start :]


def test_content_a_skill_cannot_contain_is_noted(tmp_path: Path) -> None:
    folder = write_skill(tmp_path / "pdf", front_matter() + "# A\n\na\n\n# B\n\nb\n")
    tip = MarkdownSection(title="Tip", template="x")
    section = SkillSection(folder, split=1, children=[tip], tools=[TOOL])
    [export] = export_skills(
        overridden(template(section), {TextId("summary", "pdf.a"): "When."}, tmp_path)
    )
    assert [note.partition(" because")[0] for note in export.notes] == [
        "pdf.a: the summary is omitted",
        "pdf: its tools are omitted",
        "pdf.tip: it is omitted",
    ]


def test_write_keeps_executable_scripts_and_does_not_overwrite_skills(tmp_path: Path) -> None:
    folder = write_skill(tmp_path / "pdf", files={"run.sh": "true\n", "a.md": "a"})
    (folder / "run.sh").chmod(0o755)
    [export] = export_skills(template(SkillSection(folder)).bind())
    export.write(tmp_path / "out/deep")
    modes = {path: stat.S_IMODE((tmp_path / "out/deep/pdf" / path).stat().st_mode) & 0o111
             for path in ("run.sh", "a.md")}  # fmt: skip
    assert modes == {"run.sh": 0o111, "a.md": 0}
    with pytest.raises(FileExistsError, match="'pdf' already exists in"):
        export.write(tmp_path / "out/deep")
    export.write(tmp_path / "out/deep", replace=True)
    with pytest.raises(FileExistsError):
        export.write(tmp_path)
    (tmp_path / "trap").mkdir()
    (tmp_path / "trap/pdf").symlink_to(folder)
    with pytest.raises(PermissionError):
        export.write(tmp_path / "trap", replace=True)


# ---------------------------------------------------------------------------------------------
# our own prompts


def test_prompt_is_exported_as_a_skill_with_a_file_per_summarized_section(tmp_path: Path) -> None:
    deep = MarkdownSection(title="Deep", template="Deep text.", summary="More.", visibility=SUMMARY)
    known = MarkdownSection(
        title="Known",
        template="Known text.",
        summary="When in doubt.",
        visibility=SUMMARY,
        children=[MarkdownSection(title="Open", template="Shown."), deep],
    )
    role = MarkdownSection[Who](title="Role", template="You help $name.", tools=[TOOL])
    hidden = MarkdownSection(title="Hidden", template="x", enabled=False)
    prompt = template(role, known, hidden, key="The Guide/2").bind(Who("Ada"))
    [export] = export_skills(prompt)
    assert {path: data.decode() for path, data in export.files.items()} == {
        "SKILL.md": (
            '---\nname: "the-guide-2"\ndescription: "You help Ada."\n---\n\n# The_Guide_2\n\n'
            "## Role\n\nYou help Ada.\n\n## Known\n\nWhen in doubt.\n\n"
            "Read `references/known.md` in this skill's folder for all of it.\n"
        ),
        "references/known.md": (
            "# Known\n\nKnown text.\n\n## Open\n\nShown.\n\n## Deep\n\nMore.\n\n"
            "Read `references/known.deep.md` in this skill's folder for all of it.\n"
        ),
        "references/known.deep.md": "# Deep\n\nDeep text.\n",
    }
    assert export.notes == ["role: its tools are omitted (look)"]
    export.write(tmp_path)
    assert refusals(tmp_path / "the-guide-2") == []


@given(forests(), st.lists(st.text(max_size=40), max_size=1))
def test_each_exported_file_contains_the_text_of_its_opened_section(
    plans: tuple[Plan, ...], description: list[str]
) -> None:
    definition = template(*sections(plans))
    prompt = definition.bind(*[Who("Ada")] * (Who in definition.registry.params_types))
    rendered = prompt.render(session=Session())
    if not rendered.sections:
        assert export_skills(prompt) == ()
        return
    [export] = export_skills(prompt, description="".join(description))
    view = rendered.view
    with TemporaryDirectory() as place:
        export.write(place)
        assert refusals(Path(place, export.name)) == []
    expected = {"SKILL.md": [node for node, how in rendered.sections.items() if how is FULL]}
    summarized = [node for node, how in rendered.sections.items() if how is SUMMARY]
    for node in summarized:  # grows
        opened = view.with_visibility({node.path: FULL}).visible_sections(node)
        expected[f"references/{node.key}.md"] = [n for n, how in opened.items() if how is FULL]
        summarized += [inner for inner, how in opened.items() if how is SUMMARY]
    assert export.files.keys() == expected.keys()
    for path, nodes in expected.items():
        text = export.files[path].decode()
        position = 0
        for node in nodes:
            [shown], _, _ = view.fully_expanded().render({node: FULL})
            body = shown.removeprefix(node.heading).strip("\n")
            position = text.index(body, position) + len(body)


@given(st.text(min_size=1, max_size=60))
def test_any_description_is_accepted(description: str) -> None:
    section = MarkdownSection(title="Task", template="Do it.")
    [export] = export_skills(template(section).bind(), description=description)
    with TemporaryDirectory() as place:
        export.write(place)
        folder = Path(place, "guide")
        assert refusals(folder) == []
        expected = description.strip() or "Do it."
        assert read_skill(folder, strict=True).fields["description"].text == expected
        assert read_properties(folder).description == expected


def test_skills_in_a_prompt_are_exported_to_their_own_folders(tmp_path: Path) -> None:
    pdf = SkillSection(write_skill(tmp_path / "pdf"))
    task = MarkdownSection(title="Task", template="Help.", children=[pdf])
    exports = export_skills(template(task).bind())
    assert [export.name for export in exports] == ["pdf", "guide"]
    assert exports[1].files["SKILL.md"].decode().endswith(
        "### pdf\n\nWork with PDF files.\n\nThis is the skill `pdf`.\n"
    )  # fmt: skip
    with pytest.raises(SkillError, match="two skills have this name"):
        export_skills(template(task, key="pdf").bind())
