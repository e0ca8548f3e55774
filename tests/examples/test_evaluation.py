"""The evaluation of the skills assistant: its cases, its verdicts and its numbers."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from examples.skills_assistant.target import prompt
from support.commands import Done, environment
from support.eval_results import rows_of
from support.example_agents import ROOT
from weakincentives.evals import Dataset, load_experiment
from weakincentives.prompt.overrides.store import LocalPromptOverridesStore

EXAMPLE = ROOT / "examples/skills_assistant"
TAGS = ("brief", "topics")


def cases() -> Dataset:
    return Dataset.load(EXAMPLE / "cases.yaml", prompt())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a `wink` of this process's Python and, after a run, the results."""
    folder = tmp_path_factory.mktemp("evaluation")
    wink = folder / "wink"
    wink.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m weakincentives.cli "$@"\n')
    wink.chmod(0o755)
    return folder


def evaluate(folder: Path, *arguments: str) -> Done:
    """Runs the script that `make eval-demo` runs."""
    done = subprocess.run(
        ["/bin/sh", EXAMPLE / "evaluate.sh", "--folder", folder / "runs", *arguments],
        env=environment(WINK=str(folder / "wink"), OPENAI_API_KEY="not a key"),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def first(folder: Path) -> Done:
    return evaluate(folder, "--json", str(folder / "results.json"))


def test_cases_are_of_every_kind() -> None:
    kinds = Counter(case.metadata["kind"] for case in cases())
    assert kinds == {"one": 37, "two": 3, "tool": 2, "absent": 6}


def test_each_expected_fact_is_in_a_skill_and_each_source_is_a_section() -> None:
    texts = "\n".join(
        path.read_text(encoding="utf-8") for path in (EXAMPLE / "skills").rglob("*.*")
    )
    skills = " ".join(texts.split())
    sections = {".".join(section.path) for section in prompt().descriptor.sections}
    for case in cases():
        if case.expected is not None:
            assert [fact for fact in case.expected.answer.splitlines() if fact not in skills] == []
            assert set(case.expected.sources) <= sections


@pytest.mark.parametrize("tag", TAGS)
def test_overrides_replace_the_summary_of_each_skill(tag: str) -> None:
    stored = LocalPromptOverridesStore(EXAMPLE).resolve(prompt().descriptor, tag)
    assert stored.stale == ()
    assert len(stored.texts) == 4


def test_topics_are_better_and_brief_summaries_are_not(first: Done) -> None:
    assert first.returncode == 0, first.stderr
    _, brief, topics = first.stdout.split(" against skills: 48 cases; ")
    for score in ("correct", "opened", "called_in_order"):
        assert [score, "inconclusive"] in [row[:2] for row in rows_of(brief)]
        assert [score, "better"] in [row[:2] for row in rows_of(topics)]
    rows = rows_of(first.stdout)
    for row in (
        ["skills", "correct", "54.2 %", "34.3-72.8 % over 22 clusters", "48 scored"],
        ["brief", "correct", "50.0 %", "30.7-69.3 % over 22 clusters", "48 scored"],
        ["topics", "correct", "75.0 %", "54.2-88.4 % over 22 clusters", "48 scored"],
        ["skills", "opened", "0.631", "0 to 1", "0.4693", "42 scored, 6 not applicable"],
        ["topics", "opened", "0.9167", "0 to 1", "0.2449", "42 scored, 6 not applicable"],
        ["correct", "better", "54.2 %", "75.0 %", "+20.8 points", "+8.2 to +33.5", "0.016"],
    ):
        assert row in rows
    called = ["topics", "called_in_order", "95.2 %", "73.7-99.3 % over 16 clusters"]
    assert [*called, "42 scored, 6 not applicable"] in rows
    assert (
        "  correct: 10 up: nightly-length, tables-compared, roll-back, leader-writes, "
        "nobody-signs-in, …; 0 down\n"
    ) in topics


def test_brief_summaries_save_tokens_and_topics_cost_more(first: Done, folder: Path) -> None:
    assert first.returncode == 0, first.stderr
    variants = load_experiment(folder / "results.json").variants
    tokens = {name: one.usage.usage.input_tokens for name, one in variants.items()}
    assert tokens["brief"] < tokens["skills"] < tokens["topics"]


def test_same_command_reuses_the_runs_and_selects_cases(first: Done, folder: Path) -> None:
    assert first.returncode == 0, first.stderr
    again = evaluate(folder, "--where", "kind=absent")
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("cases: 6 cases; spent $0, 18 runs reused\n")
    gated = evaluate(folder, "--fail-under", "correct=0.7")
    assert gated.returncode == 1
    assert "gate fails: skills correct: mean 0.5417; limit 0.7\n" in gated.stdout
    assert "gate holds: topics correct: mean 0.75; limit 0.7\n" in gated.stdout


def test_make_runs_the_same_script() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "sh examples/skills_assistant/evaluate.sh $(ARGS)" in makefile
