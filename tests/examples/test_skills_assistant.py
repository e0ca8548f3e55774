"""The assistant for a folder of skills: opens level by level, closes, and names its sources."""

import json
from pathlib import Path

import pytest

from examples.skills_assistant.prompt import FOLDER, assistant
from support.example_agents import run_example
from support.skills import front_matter, refusals, write_skill
from weakincentives.contrib.skills import skills
from weakincentives.inspection.analysis import analyze


def test_sample_skills_have_no_findings() -> None:
    for section in skills(FOLDER, strict=True):
        assert refusals(section.skill.folder) == []
    assert analyze(assistant()).findings == ()


@pytest.mark.parametrize(
    ("question", "source", "words"),
    [
        ("When must customers be told about an incident?", "incident-response", "thirty minutes"),
        ("Who is on call when somebody falls ill?", "on-call-handover", "team lead"),
    ],
)
def test_question_opens_the_skill_that_answers_it(question: str, source: str, words: str) -> None:
    done = run_example("skills_assistant", "--json", question)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert source in answer["sources"]
    assert words in answer["answer"]


def test_run_shows_opened_levels_and_closing() -> None:
    done = run_example("skills_assistant")
    keys = [line.split('"section_key": ')[1] for line in done.stdout.splitlines() if "✓" in line]
    assert [key.split('"')[1] for key in keys] == [
        "database-backup", "database-backup.restore", "database-backup",
    ]  # fmt: skip
    assert "Closed section 'database-b" in done.stdout


def test_another_folder_of_skills_can_be_used(tmp_path: Path) -> None:
    source = front_matter("tea", "Make tea.") + "Green tea takes two minutes at $5 a cup.\n"
    write_skill(tmp_path / "tea", source)
    done = run_example(
        "skills_assistant", "--skills", str(tmp_path), "--json", "How long does tea take?"
    )
    assert "two minutes at $5" in json.loads(done.stdout)["answer"]
    missing = run_example("skills_assistant", "--skills", str(tmp_path / "gone"))
    assert (missing.returncode, "is not a folder" in missing.stderr) == (2, True)
