"""The page of an experiment as text: what it has, leaves out, masks and allows."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.eval_models import (
    FunctionAdapter,
    Note,
    Question,
    failed,
    notebook,
    question_cases,
    questions,
    say,
    write_notes,
)
from support.eval_results import experiment, variant
from weakincentives.evals import Case, EvalRun, Experiment, Score, evaluate
from weakincentives.evals.comparisons import compare
from weakincentives.evals.page import experiment_page
from weakincentives.evals.scores import Scale, Value
from weakincentives.redaction import Redactor

TAG = re.compile(r'<script type="application/json" id="([^"]*)">(.*)</script>')
KEY = "sk-proj-0123456789abcdefghij"


def page(*experiments: Experiment, **options: Any) -> str:
    return "".join(experiment_page(*experiments, **options))


def tags(text: str) -> dict[str, Any]:
    return {name: json.loads(value) for name, value in TAG.findall(text)}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """Eight runs, of which two are wrong and one is a provider failure."""

    def answer(request: object, text: str) -> Any:
        if "q3" in text:
            raise failed()
        return say("no" if "q1" in text or "q2" in text else text.partition(": ")[2][:2])

    def is_right(case: Case, run: EvalRun) -> Score:
        return Score(case.expected in run.text, "compared")

    folder = tmp_path_factory.mktemp("evals")
    cases = question_cases(8)
    model = FunctionAdapter(answer)
    return evaluate(questions(), cases, evaluators=[is_right], model=model, folder=folder)


@given(limit=st.integers(0, 200_000))
@settings(max_examples=40, deadline=None)
def test_page_is_as_small_as_asked_and_says_how_many_reports_it_leaves_out(
    small: Experiment, limit: int
) -> None:
    text = page(small, max_bytes=limit)
    found = tags(text)
    reports = [name for name in found if name.startswith("run-")]
    assert len(text.encode()) <= limit or not reports
    left_out = found["index"]["left_out"]
    assert left_out.startswith(f"{8 - len(reports)} of 8 reports") or (len(reports) == 8) == (
        left_out == ""
    )
    if left_out:
        assert str(Path(small.folder, "runs")) in left_out


def test_reports_of_failures_and_wrong_answers_come_first(small: Experiment) -> None:
    whole = page(small, max_bytes=10_000_000)
    assert [name for name in tags(whole) if name.startswith("run-")] == [
        f"run-{number}" for number in (1, 2, 3, 0, 4, 5, 6, 7)
    ]
    counts = set[int]()
    size = len(whole.encode())
    reports = sum(len(tag[0]) for tag in TAG.finditer(whole) if tag[1].startswith("run-"))
    for limit in range(size - reports, size + 10_000, 2_000):
        names = [name for name in tags(page(small, max_bytes=limit)) if name.startswith("run-")]
        assert names == [f"run-{number}" for number in (1, 2, 3, 0, 4, 5, 6, 7)][: len(names)]
        counts.add(len(names))
    assert len(counts) > 3


def test_report_of_a_run_has_its_nested_run_and_reading_changes_no_file(tmp_path: Path) -> None:
    case = Case(id="1", params=(Question("sky"),), state=(Note("zero"),))
    done = evaluate(notebook(), [case], model=FunctionAdapter(write_notes), folder=tmp_path)
    [path] = (tmp_path / "runs").iterdir()
    before = path.read_bytes()
    run = tags(page(done))["run-0"]["index"]["runs"][0]
    assert [turn["calls"] for turn in run["turns"]][:2] == [["note", "read_section"], ["research"]]
    assert len(run["evaluations"]) == 2
    for cut in (0, 1, len(before) // 3, len(before) // 2, len(before) - 3):
        path.write_bytes(before[:cut])
        assert len(tags(page(done))["index"]["runs"]) == 1
        assert path.read_bytes() == before[:cut]
    path.unlink()
    assert tags(page(done))["index"]["left_out"].startswith("1 of 1 report of runs are not")


def test_experiment_without_a_folder_has_a_page_without_reports() -> None:
    found = tags(page(experiment(variant("base", {"ok": "1 0 E F"}))))
    assert found["index"]["left_out"].endswith("because the experiment kept no logs.")
    assert [run[3] for run in found["index"]["runs"]] == ["answered"] * 3 + ["failed"]


def test_secrets_are_masked_in_all_texts(tmp_path: Path) -> None:
    plain = "correct-horse-battery"  # known from the environment only

    def answer(request: object, text: str) -> Any:
        if "q1" in text:
            error = failed()
            error.add_note(f"Bearer {KEY}")
            raise error
        return say(f"the key is {KEY}, and {plain}")

    def leaks(case: Case, run: EvalRun) -> Score:
        if case.id == "2":
            raise RuntimeError(f"{KEY} {plain}")
        return Score(value=True, reason=f"found {KEY} {plain}")

    cases = [*question_cases(3), Case(id=f"{KEY} {plain}", params=(Question(plain),))]
    model = FunctionAdapter(answer)
    done = evaluate(questions(), cases, evaluators=[leaks], model=model, folder=tmp_path)
    assert KEY in str(done["base"].results)
    text = page(done, mask=Redactor((plain,)))
    assert KEY not in text
    assert plain not in text
    assert "found sk-*** ***" in text
    assert "run-0" in tags(text)


def test_two_experiments_with_the_same_variant_are_told_apart() -> None:
    a, b = variant("base", {"ok": "1 1 0 1"}), variant("base", {"ok": "1 0 1 1"})
    index = tags(page(experiment(a), experiment(b), comparisons=[compare(a, b)]))["index"]
    assert [one["name"] for one in index["variants"]] == ["base (A)", "base (B)"]
    assert [case[3:] for case in index["cases"]] == [
        [[], []],
        [["ok (base (B))"], []],
        [[], ["ok (base (B))"]],
        [[], []],
    ]
    words = index["comparisons"][0]["scores"][0]["words"]
    assert words.startswith("It is not clear whether base (B) is better or worse than base (A)")


def test_marks_of_cases_follow_the_direction_of_the_score() -> None:
    scales = {"cost": Scale(higher_is_better=False)}
    costs: list[list[list[Value]]] = [[[0.010], [0.010], [0.010]], [[0.008], [0.012], [0.010]]]
    a, b = (
        variant(name, {"cost": cost}, scales=scales) for name, cost in zip("ab", costs, strict=True)
    )
    index = tags(page(experiment(a, b), comparisons=[compare(a, b)]))["index"]
    assert [case[3:] for case in index["cases"]] == [
        [[], ["cost (b)"]],
        [["cost (b)"], []],
        [[], []],
    ]
    assert all(one["scores"][0]["lower"] for one in index["variants"])


def test_policy_allows_only_the_pages_own_scripts_and_styles() -> None:
    text = page(experiment(variant("base", {"ok": "1"})))
    [policy] = re.findall(r'Content-Security-Policy" content="([^"]*)"', text.partition("<body")[0])
    assert policy.startswith("default-src 'none'; img-src data:; ")
    assert re.search(r"style-src ('sha256-\S+' ?){2}; script-src ('sha256-\S+' ?){2}$", policy)
    assert "unsafe" not in policy


def test_lone_surrogates_and_separators_do_not_break_the_data() -> None:
    one = variant("b \ud800 \u2028", {"ok": "1"})
    [result] = one.results
    broken = replace(one, results=[replace(result, reasons={"ok": "</script>\ud800\u2029"})])
    text = page(experiment(broken))
    assert text.encode()
    assert "</script>" not in TAG.findall(text)[-1][1]
    assert "\u2028" not in text
    assert tags(text)["index"]["runs"][0][4] == [[True, "</script>\\ud800\\u2029"]]
