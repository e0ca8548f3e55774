"""`wink` with folders of skills: tree, check, render, and the export of any prompt."""

from pathlib import Path

import pytest

from support.commands import Wink, write_shop
from support.skills import front_matter, refusals, write_skill
from weakincentives.cli.target import load_prompt
from weakincentives.prompt.overrides import SectionOverride
from weakincentives.prompt.overrides.store import LocalPromptOverridesStore


@pytest.fixture
def wink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Wink:
    write_shop(tmp_path)
    write_skill(tmp_path / "skills/pdf", front_matter() + "Costs $5. " * 30, {"run.sh": "true\n"})
    write_skill(tmp_path / "skills/xlsx", front_matter(name="xlsx") + "# A\n\na\n" * 40)
    return Wink(tmp_path, monkeypatch, capsys)


def test_folder_of_skills_can_be_a_target(wink: Wink) -> None:
    done = wink("tree", "skills")
    assert [line.split()[1:3] for line in done.stdout.splitlines()[1:4]] == [
        ["pdf", "summary"],
        ["pdf.files", "hidden"],
        ["xlsx", "summary"],
    ]
    assert "pdf_read_file" in done.stdout
    text = wink("render", "skills/pdf", "--open", "pdf").stdout
    assert text.startswith("## 1. pdf\n\nCosts $5. Costs $5.")
    assert (wink("check", "skills").returncode, wink("check", "skills/pdf").returncode) == (0, 0)


def test_check_reports_unreadable_skills_and_unexpected_fields(wink: Wink, tmp_path: Path) -> None:
    source = front_matter(name="docx", more="hint: x\n") + "Text. " * 50
    write_skill(tmp_path / "skills/docx", source)
    write_skill(tmp_path / "skills/bad", b"\xff")
    done = wink("check", "skills")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith("warning: skills/bad/SKILL.md: 'utf-8' codec can't decode byte 0xff")
    assert lines[1].startswith("warning: docx: skills/docx/SKILL.md:4: unexpected field 'hint'")
    assert lines[-1] == "skills/skills: 2 findings in 5 states of disclosure."
    assert wink("check", "skills", "--ignore", "source").returncode == 0


def test_folder_without_skills_is_rejected_as_target(wink: Wink, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = wink("tree", "empty")
    assert done.returncode == 2
    assert done.stderr == "wink: cannot find a skill in 'empty': no folder has a SKILL.md\n"


def test_export_writes_imported_skills_with_their_overrides(wink: Wink, tmp_path: Path) -> None:
    done = wink("skill", "export", "skills", "--to", "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["out/pdf/SKILL.md", "out/pdf/run.sh", "out/xlsx/SKILL.md"]
    for path in ("pdf/SKILL.md", "pdf/run.sh", "xlsx/SKILL.md"):
        assert (tmp_path / "out" / path).read_bytes() == (tmp_path / "skills" / path).read_bytes()
    again = wink("skill", "export", "skills", "--to", "out")
    assert (again.returncode, again.stderr) == (
        2,
        "wink: 'pdf' already exists in 'out'; replace it\n",
    )
    store = LocalPromptOverridesStore(tmp_path)
    override = SectionOverride(path=("pdf",), body="Mine.")
    store.upsert(load_prompt(str(tmp_path / "skills")).descriptor, override, "mine")
    wink("skill", "export", "skills", "--to", "out", "--tag", "mine", "--replace")
    assert (tmp_path / "out/pdf/SKILL.md").read_text() == front_matter() + "Mine. "


def test_export_writes_a_prompt_as_a_skill(wink: Wink, tmp_path: Path) -> None:
    arguments = ("--to", "out", "--set", "text=hi", "--description", "Sell things.")
    done = wink("skill", "export", "shop:template", *arguments)
    assert done.returncode == 0
    [folder] = (tmp_path / "out").iterdir()
    assert refusals(folder) == []
    assert 'description: "Sell things."' in (folder / "SKILL.md").read_text()
    assert "tools are omitted" in done.stderr
    missing = wink("skill", "export", "shop:template", "--to", "other")
    assert missing.returncode == 2
    assert "--set Question.text=" in missing.stderr
