"""Tests marked `wink_eval`: each runs a case, all cases are one experiment, also in workers."""

import re

import pytest

from support.authors import PLUGIN
from weakincentives.evals.cases import Case
from weakincentives.evals.marked_tests import CaseEvaluation, EvalRule
from weakincentives.serde.json_types import AnyValue

MODULE = """
import pytest
from weakincentives.evals import Score, evaluator
from support.eval_models import FunctionAdapter, failed, question_cases, questions, say

def answer(request, text):
    number = int(text.partition(" q")[2].split()[0])
    if number in FAIL:
        raise failed()
    return say("no idea" if number in WRONG or "briefly" in text else f"q{number}")

MODEL = FunctionAdapter(answer)
CASES = question_cases(40)
FAIL = WRONG = ()

@evaluator(name="correct")
def correct(case, run):
    return Score(case.expected in run.text, f"expected {case.expected}")
"""
TEST = """
def test_support(evaluation):
    evaluation.evaluate(questions(), evaluators=[correct], model=MODEL)
"""


@pytest.mark.parametrize("cases", ["cases.yaml", ["c1"], 5, None])
def test_rule_takes_cases_and_not_a_path(cases: AnyValue) -> None:
    with pytest.raises(
        TypeError, match=r"takes cases, such as Dataset.load\(path, template\), got"
    ):
        EvalRule(cases)


@pytest.mark.parametrize(
    ("numbers", "problem"),
    [
        ({"share": "all"}, "share of the marker wink_eval must be from 0 to 1, got 'all'"),
        ({"fail_under": 90}, "fail_under of the marker wink_eval must be from 0 to 1, got 90"),
        ({"margin": float("nan")}, "margin of the marker wink_eval must be from 0 to .*, got nan"),
        ({"margin": -0.1}, "margin of the marker wink_eval must be from 0 to .*, got -0.1"),
        ({"repeats": 0}, "repeats of the marker wink_eval must be at least 1, got 0"),
    ],
)
def test_rule_with_a_number_out_of_range_is_rejected(
    numbers: dict[str, AnyValue], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        EvalRule([Case(id="1")], **numbers)


def test_rule_keeps_the_cases_of_an_iterator() -> None:
    cases: AnyValue = (Case(id=name) for name in "ab")
    rule = EvalRule(cases)
    assert [CaseEvaluation(rule, index).case.id for index in range(len(rule.cases))] == ["a", "b"]


class Project:
    """Runs pytest in a process of its own, with the marked test of forty cases."""

    def __init__(self, pytester: pytest.Pytester, pytestconfig: pytest.Config) -> None:
        self.pytester = pytester
        tests = pytestconfig.rootpath / "tests"
        pytester.makeini(f"[pytest]\npythonpath = {tests} {tests.parent / 'src'}")

    def runs(
        self, *options: str, mark: str = "", setup: str = "", test: str = TEST
    ) -> tuple[pytest.RunResult, str]:
        marker = f"@pytest.mark.wink_eval(CASES{mark and ', '}{mark})"
        self.pytester.makepyfile(test_evals=f"{MODULE}\n{setup}\n{marker}{test}")
        arguments = (*PLUGIN, "-p", "no:randomly", *options)
        ran = self.pytester.runpytest_subprocess(*arguments)
        return ran, "\n".join(ran.outlines)


@pytest.fixture
def project(pytester: pytest.Pytester, pytestconfig: pytest.Config) -> Project:
    return Project(pytester, pytestconfig)


@pytest.mark.parametrize("workers", ["0", "4"])
def test_forty_cases_are_one_experiment_with_one_report_and_one_gate(
    project: Project, workers: str
) -> None:
    ran, text = project.runs(
        "-n", workers, mark="fail_under=0.9, repeats=2", setup="WRONG = (3, 5)"
    )
    ran.assert_outcomes(passed=40)
    assert ran.ret == 0
    assert text.count("= evals =") == 1
    assert "test_evals.py::test_support: 40 cases, 2 repeats; spent " in text
    assert "base: 80 answered" in text
    assert text.count("gate ") == 1
    assert "gate holds: base passes: mean 0.95; limit 0.9; 95.0 % of 80 scored" in text
    assert "partial" not in text


def test_gate_over_all_cases_fails_the_run_with_verdict_interval_and_n(project: Project) -> None:
    ran, text = project.runs("-n", "2", mark="fail_under=0.9", setup="WRONG = range(10)")
    ran.assert_outcomes(passed=40)
    assert ran.ret == pytest.ExitCode.TESTS_FAILED
    assert (
        "gate fails: base passes: mean 0.75; limit 0.9; 75.0 % of 40 scored, "
        "95 % interval 59.8-85.8 %"
    ) in text


@pytest.mark.parametrize(
    ("options", "count"), [(("-k", "not 1 and not 2"), 16), (("-x",), 4), (("-x", "-n", "2"), None)]
)
def test_part_of_the_cases_says_so_and_checks_no_gate(
    project: Project, options: tuple[str, ...], count: int | None
) -> None:
    ran, text = project.runs(
        *options, mark="share=1, fail_under=0.99", setup="WRONG = range(3, 40)"
    )
    found = re.search(r"partial: (\d+) of 40 cases ran, so no gate was checked", text)
    assert found is not None, text
    assert count is None or int(found[1]) == count
    assert 0 < int(found[1]) < 40
    assert "gate fails" not in text
    assert ran.ret != 0


def test_cases_that_failed_last_time_are_a_partial_experiment(project: Project) -> None:
    project.runs(setup="WRONG = (3, 5)")
    ran, text = project.runs("--lf")
    ran.assert_outcomes(passed=2)
    assert "partial: 2 of 40 cases ran, so no gate was checked" in text
    assert ran.ret == 0


def test_first_failing_evaluator_does_not_hide_the_others(project: Project) -> None:
    setup = """
CASES = CASES[:1]

def polite(case, run):
    return Score(False, "no greeting")

def counted(case, run):
    raise ValueError("no number")
"""
    test = TEST.replace("[correct]", "[polite, correct, counted]")
    ran, text = project.runs(mark="share=1", setup=f"{setup}\nWRONG = (0,)", test=test)
    ran.assert_outcomes(failed=1)
    failure, report = text.split("= evals =")
    for part in (failure, report):
        for found in ("polite", "no greeting", "correct", "expected q0", "counted", "no number"):
            assert found in part


def test_test_fails_only_if_fewer_repeats_pass_than_its_share(project: Project) -> None:
    setup = """
CASES = CASES[:3]
passed = iter("1110100000 1111100000 1111110000".replace(" ", ""))

@evaluator(name="correct")
def correct(case, run):
    return Score(next(passed) == "1", "as written")
"""
    test = TEST.replace("model=MODEL", "model=MODEL, concurrency=1")
    ran, text = project.runs(mark="repeats=10, share=0.5", setup=setup, test=test)
    ran.assert_outcomes(passed=2, failed=1)
    assert (
        "0, base: fails: 4 of 10 scored repeats pass (95 % interval 16.8-68.7 %, n = 10), and 50 % "
        "must"
    ) in text
    assert "repeat 4: correct: fail, as written" in text


def test_provider_failures_make_a_test_inconclusive_and_not_wrong(project: Project) -> None:
    ran, text = project.runs(setup="CASES = CASES[:2]\nFAIL = (0,)")
    ran.assert_outcomes(passed=1, failed=1)
    assert "0, base: inconclusive: 0 of 0 scored repeats pass" in text
    assert "repeat 1: provider: " in text
    ran, text = project.runs(mark="fail_under=0.5", setup="CASES = CASES[:2]\nFAIL = (0, 1)")
    ran.assert_outcomes(passed=2)
    assert "gate inconclusive: base passes: 0 of 2 scored" in text
    assert ran.ret == pytest.ExitCode.TESTS_FAILED


def test_margin_compares_the_variants_of_all_cases(project: Project) -> None:
    test = """
def test_support(evaluation):
    from weakincentives.evals import Variant
    brief = questions(text="Answer briefly: $text")
    variants = [Variant(name="base"), Variant(name="brief", prompt=brief)]
    evaluation.evaluate(questions(), evaluators=[correct], model=MODEL, variants=variants)
"""
    ran, text = project.runs("-n", "2", mark="margin=0.1", test=test)
    ran.assert_outcomes(passed=40)
    assert ran.ret == pytest.ExitCode.TESTS_FAILED
    assert "brief against base: 40 cases" in text
    assert "gate fails: brief against base: correct is worse" in text


def test_test_that_evaluates_nothing_fails(project: Project) -> None:
    setup = "CASES = CASES[:1]"
    test = "\ndef test_support(evaluation):\n    pass\n"
    ran, text = project.runs(setup=setup, test=test)
    ran.assert_outcomes(failed=1)
    assert "the test evaluated nothing" in text
    test = TEST.replace("evaluation.evaluate(", "evaluation.evaluate_async(")
    ran, text = project.runs("-W", "ignore", setup=setup, test=test)
    ran.assert_outcomes(failed=1)
    assert "the test evaluated nothing" in text


@pytest.mark.parametrize("plugin", ["anyio", "no:anyio"])
def test_async_test_is_awaited_by_a_plugin_or_fails(project: Project, plugin: str) -> None:
    test = """
@pytest.mark.anyio
async def test_support(evaluation):
    await evaluation.evaluate_async(questions(), evaluators=[correct], model=MODEL)
"""
    ran, text = project.runs("-p", plugin, "-W", "ignore", setup="CASES = CASES[:1]", test=test)
    if plugin == "anyio":
        assert "base: 1 answered" in text
        assert ran.ret == 0
    else:
        ran.assert_outcomes(failed=1)
        assert "= evals =" not in text


def test_fixture_without_the_marker_and_marker_without_the_fixture_fail(project: Project) -> None:
    ran, text = project.runs(test="\ndef test_a(): pass\n\ndef test_b(evaluation): pass\n")
    ran.assert_outcomes(failed=1, errors=1)
    assert "mark the test with wink_eval(cases)" in text
    assert "marked wink_eval, but it does not use the fixture evaluation" in text


@pytest.mark.parametrize("workers", ["0", "2"])
def test_each_set_of_other_parameters_is_an_experiment_with_its_own_gate(
    project: Project, workers: str
) -> None:
    test = """
@pytest.mark.parametrize("is_right", [False, True])
@pytest.mark.parametrize("made", [object()], ids=["made"])
def test_support(evaluation, is_right, made):
    model = MODEL if is_right else FunctionAdapter(lambda *_: say("no idea"))
    evaluation.evaluate(questions(), evaluators=[correct], model=model)
"""
    setup = "CASES = CASES[:3]"
    ran, text = project.runs("-n", workers, mark="fail_under=0.9", setup=setup, test=test)
    ran.assert_outcomes(passed=6)
    assert "test_support[made-False]: 3 cases" in text
    assert "test_support[made-True]: 3 cases" in text
    assert (text.count("gate fails: "), text.count("gate holds: ")) == (1, 1)
    assert ran.ret == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(
    ("setup", "mark", "problem"),
    [
        ("CASES = []", "", "must have at least one case, got none"),
        ("", "share=90", "share of the marker wink_eval must be from 0 to 1, got 90"),
        ("", "fail_under=float('nan')", "fail_under of the marker wink_eval must be from 0 to 1"),
    ],
)
def test_marker_that_checks_nothing_is_an_error(
    project: Project, setup: str, mark: str, problem: str
) -> None:
    ran, text = project.runs(mark=mark, setup=setup)
    assert problem in text
    assert ran.ret != 0
