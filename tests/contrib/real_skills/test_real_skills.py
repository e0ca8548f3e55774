"""Every skill in four packages from PyPI and npm: read, rendered, checked and written back."""

import shutil
from pathlib import Path

import pytest

from benchmarks.skills import CASES, ours
from support.skills import SHIPPED, refusals
from weakincentives import Prompt, PromptTemplate
from weakincentives.contrib.skills import SkillSection, export_skills, read_skill, skills
from weakincentives.contrib.skills.skill_sections import Split
from weakincentives.evaluation.messages import Instructions, ToolMessage
from weakincentives.inspection.analysis import analyze
from weakincentives.prompt import SectionVisibility
from weakincentives.prompt.overrides import SectionOverride
from weakincentives.prompt.overrides.store import LocalPromptOverridesStore
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say

FOLDERS = sorted(path.parent for path in SHIPPED.glob("*/*/SKILL.md"))
NAMES = [folder.name for folder in FOLDERS]


def template(*sections: SkillSection) -> PromptTemplate[None]:
    return PromptTemplate(ns="tests", key="real", sections=sections, closable=True)


def content(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def test_all_shipped_skills_fit_in_one_prompt_without_errors() -> None:
    prompt = template(*skills(SHIPPED, strict=True))
    assert len(FOLDERS) == len(prompt.sections) == 21
    assert [f for f in analyze(prompt).findings if f.severity == "error"] == []
    bodies = sum(len((folder / "SKILL.md").read_text()) for folder in FOLDERS)
    assert len(prompt.render().text) < bodies / 10


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
@pytest.mark.parametrize("split", ["auto", 0, 1, 3])
def test_shipped_skill_is_exported_byte_for_byte(
    folder: Path, split: Split, tmp_path: Path
) -> None:
    section = SkillSection(folder, split=split)
    assert (section.skill.findings, refusals(folder)) == ((), [])
    [export] = export_skills(template(section).bind())
    export.write(tmp_path)
    assert content(tmp_path / folder.name) == content(folder)


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_each_text_of_a_shipped_skill_can_be_overridden_in_place(
    folder: Path, tmp_path: Path
) -> None:
    prompt = template(SkillSection(folder, split=2))
    store = LocalPromptOverridesStore(tmp_path)
    source = (folder / "SKILL.md").read_text()
    for node in prompt.registry.sections:
        text = node.section.body_text()
        if not text or not node.section.accepts_overrides:
            continue
        override, tag = SectionOverride(path=node.path, body="Mine: $5."), f"tag-{node.index}"
        store.upsert(prompt.descriptor, override, tag)
        overridden = Prompt(prompt, overrides_store=store, overrides_tag=tag)
        [export] = export_skills(overridden)
        assert export.files["SKILL.md"].decode() == source.replace(text, "Mine: $5.", 1)


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("disable-model-invocation: true", "disable-model-invocation"),
        ("argument-hint: [file]", "argument-hint"),
        ("name: other", "must match the directory name"),
        (f"description: {'x' * 1_068}", "1,068 characters"),
    ],
)
def test_faults_rejected_by_the_validator_are_findings(
    field: str, reason: str, tmp_path: Path
) -> None:
    """Of 99 skills in use, the validator rejected 26, for these reasons."""
    for folder in FOLDERS:
        copy = shutil.copytree(folder, tmp_path / folder.name)
        name = field.partition(":")[0]
        lines = (copy / "SKILL.md").read_text().split("\n")
        others = [line for line in lines[1:] if not line.startswith(f"{name}:")]
        (copy / "SKILL.md").write_text("\n".join([lines[0], field, *others]))
        assert refusals(copy) != []
        findings = read_skill(copy).findings
        assert any(reason in finding.message for finding in findings)
        assert len(SkillSection(copy).children) == len(SkillSection(folder).children)


@pytest.mark.parametrize(
    "name", ["chrome-devtools-cli", "cookie-debugging"]
)  # with and without files
def test_restated_removes_the_text_of_closed_skills(name: str) -> None:
    prompt = template(*skills(SHIPPED / "chrome-devtools-mcp")).bind()
    session = Session()
    sections = [node for node in prompt.template.registry.sections if node.path[0] == name]
    summarized = [node for node in sections if node.visibility is SectionVisibility.SUMMARY]
    adapter = ScriptedAdapter(
        [
            *[call(("read_section", {"section_key": node.key})) for node in summarized],
            *[call(("close_section", {"section_key": node.key})) for node in reversed(summarized)],
            say("Done."),
        ]
    )
    response = adapter.evaluate(prompt, session=session, message="Help me.")
    calls = [message for message in response.transcript if isinstance(message, ToolMessage)]
    assert all(message.success for message in calls)
    assert len(calls) == 2 * len(summarized)
    conversation = response.conversation
    assert conversation is not None
    restated = conversation.restated(prompt, session)
    bodies = [node.section.body_text() for node in sections if node.section.accepts_overrides]
    before, after = (sum(map(len, map(str, c.messages))) for c in (conversation, restated))
    assert before - after > sum(map(len, bodies)) > 9_000
    lines = {line for body in bodies for line in body.split("\n") if len(line) > 60}
    text = str(restated.messages)
    assert lines
    assert [line for line in lines if line in text] == []
    assert restated.messages[0] == Instructions(prompt.render().text)


def test_ten_tasks_load_less_than_the_skill_bodies_and_leave_nothing() -> None:
    """Checks the counts in benchmarks/SKILLS.md."""
    counts = [ours(SHIPPED / package, name, turns) for package, name, _, turns in CASES]
    bodies = [read_skill(SHIPPED / package / name) for package, name, _, _ in CASES]
    whole = sum(len(skill.source) - skill.start for skill in bodies)
    assert sum(count.loaded for count in counts) < 0.65 * whole
    assert [count.left for count in counts] == [0] * 10
