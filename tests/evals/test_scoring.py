"""All evaluators are called on a run, and each gives a value, a score error, or neither."""

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.evals.cases import Case
from weakincentives.evals.comparison import compare_scores
from weakincentives.evals.evaluators import called, cost_below, equals
from weakincentives.evals.results import (
    CaseInfo,
    EvaluatorInfo,
    RunResult,
    ScoreSummary,
    VariantResults,
)
from weakincentives.evals.scores import (
    EvalRun,
    Evaluator,
    Scale,
    Score,
    ScoreError,
    evaluator,
)
from weakincentives.evals.scoring import Kinds, Scores, check_evaluators, score
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.limits import RunUsage
from weakincentives.runtime.session import Session

CASE = Case(id="a")
FAILURE = PromptEvaluationError("the tool failed", phase="response", code="output")


def run_of(output: object = None, text: str = "", **options: Any) -> EvalRun[Any]:
    return EvalRun(output=output, text=text, session=Session(), **options)


def returning(result: object, name: str = "it", scale: Scale | None = None) -> Evaluator:
    def check(case: Case, run: EvalRun) -> Any:
        return result

    return Evaluator(function=check, name=name, scale=scale or Scale())


def scored(
    *evaluators: Evaluator | Callable[..., Any],
    run: EvalRun[Any] | None = None,
    case: Case = CASE,
    kinds: Kinds | None = None,
) -> Scores:
    scores, kinds = Scores(), kinds or Kinds()
    for one in check_evaluators(evaluators):
        new = asyncio.run(score(case, run or run_of(), one, kinds=kinds))
        for name in ("values", "reasons", "errors", "scales"):
            getattr(scores, name).update(getattr(new, name))
    return scores


def summary_of(*scores: Scores, name: str = "it") -> ScoreSummary:
    """Returns the summary of a score over one case for each of `scores`."""
    results = [
        RunResult(
            case=str(index),
            repeat=0,
            outcome="answered",
            scores=one.values,
            score_errors=one.errors,
        )
        for index, one in enumerate(scores)
    ]
    variant = VariantResults(
        name="v",
        cases={result.case: CaseInfo(digest="") for result in results},
        evaluators={name: EvaluatorInfo(key="", scale=Scale())},
        results=results,
    )
    return variant.summary(name)


VALUES = st.one_of(
    st.booleans(),
    st.integers(-3, 3),
    st.floats(-3, 3),
    st.text(max_size=3),
    st.none(),
    st.sampled_from([math.nan, math.inf, -math.inf, 10**400, object(), b"x", [1], ValueError("x")]),
)


def is_valid(value: object) -> bool:
    is_number = isinstance(value, int | float) and abs(value) <= 3
    return value is None or isinstance(value, str) or is_number


@given(st.lists(VALUES, max_size=5), st.lists(st.sampled_from("sea"), min_size=5, max_size=5))
def test_each_evaluator_gives_exactly_one_value_or_error(
    values: list[Any], forms: list[str]
) -> None:
    def make(index: int, value: Any, form: str) -> Evaluator:
        def plain(case: Case, run: EvalRun) -> Any:
            if isinstance(value, Exception):
                raise value
            return Score(value, "why") if form == "s" else value

        async def coroutine(case: Case, run: EvalRun) -> Any:
            await asyncio.sleep(0)
            return plain(case, run)

        return Evaluator(function=coroutine if form == "a" else plain, name=str(index))

    triples = zip(range(len(values)), values, forms, strict=False)
    scores = scored(*[make(*triple) for triple in triples])
    valid = {str(index) for index, value in enumerate(values) if is_valid(value)}
    assert scores.values.keys() == valid
    assert scores.errors.keys() == {str(index) for index in range(len(values))} - valid
    assert all(scores.values[name] == values[int(name)] for name in valid)
    json.dumps(scores.values, allow_nan=False)


def test_an_evaluator_that_raises_leaves_the_others_their_single_scores() -> None:
    def fails(case: Case, run: EvalRun) -> bool:
        if case.id == "2":
            raise ZeroDivisionError("no samples")
        return True

    evaluators = returning(value := True, "first"), fails, returning(value, "third")
    scores = [scored(*evaluators, case=Case(id=str(number))) for number in range(1, 5)]
    assert sum(len(one.values) for one in scores) == 11
    errors = [one.errors for one in scores if one.errors]
    assert [[*error] for error in errors] == [["fails"]]
    assert errors[0]["fails"].startswith("ZeroDivisionError: no samples (test_scoring.py, line ")


def test_all_failing_evaluators_are_reported() -> None:
    scores = scored(
        returning(result=False, name="one"), returning(result=False, name="two"), returning(0, "3")
    )
    assert scores.values == {"one": False, "two": False, "3": 0}


def test_errors_and_none_are_not_values_of_the_mean() -> None:
    summary = summary_of(
        scored(returning(1)),
        scored(returning(math.nan)),
        scored(returning(1)),
        scored(returning(None)),
    )
    assert (summary.mean, summary.scored, summary.errors, summary.inapplicable) == (1.0, 2, 1, 1)


def test_range_of_the_mean_counts_errors_as_wrong_and_as_right() -> None:
    values = [*[True] * 80, *[False] * 10, *[math.nan] * 10]
    summary = summary_of(*[scored(returning(value)) for value in values])
    assert summary.mean == pytest.approx(80 / 90)
    assert summary.scored == 90
    assert summary.if_errors == pytest.approx((0.8, 0.9))


def test_failed_run_is_missing_from_the_score_instead_of_inapplicable() -> None:
    failed = scored(returning(result=True), run=run_of(error=FAILURE))
    assert (failed.values, failed.errors) == ({}, {})
    assert failed.reasons == {"it": "not applicable: the run failed"}
    summary = summary_of(scored(returning(result=True)), failed)
    assert (summary.mean, summary.errors, summary.if_errors) == (1.0, 1, (0.5, 1.0))


def test_failed_run_reaches_the_evaluators_that_ask_for_it() -> None:
    @evaluator(on_failure=True)
    def failure_code(case: Case, run: EvalRun) -> str:
        assert isinstance(run.error, PromptEvaluationError)
        return run.error.code

    scores = scored(failure_code, equals(), called("search"), run=run_of(error=FAILURE))
    assert scores.values == {"failure_code": "output", "called_search": False}


@pytest.mark.parametrize("value", [90, -0.1, 1.001])
def test_value_outside_the_bounds_is_an_error_with_value_and_bounds(value: float) -> None:
    scores = scored(returning(value, scale=Scale(bounds=(0, 1))))
    assert scores.values == {}
    assert f"must be from 0 to 1, got {value}" in scores.errors["it"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_value_that_is_not_finite_is_an_error_of_this_score_only(value: float) -> None:
    scores = scored(returning(value, "bad"), returning(0.5, "good"))
    assert scores.values == {"good": 0.5}
    assert "must be a finite number" in scores.errors["bad"]
    assert "NaN" not in json.dumps([scores.values, scores.errors])


@pytest.mark.parametrize("value", [1e308, -1e16, 2**53 + 1, 10**400])
def test_number_without_an_exact_mean_is_a_score_error(value: float) -> None:
    scores = scored(returning(value, "bad"), returning(2**53, "good"), returning(-(2.0**53), "low"))
    assert scores.values == {"good": 2**53, "low": -(2.0**53)}
    assert "from -9007199254740992 to 9007199254740992, got" in scores.errors["bad"]
    assert len(scores.errors["bad"]) < 200


def test_mean_of_the_largest_numbers_is_strict_json() -> None:
    summary = summary_of(*[scored(returning(sign * 2**53)) for sign in (1, -1, 1, -1)])
    assert (summary.mean, summary.least, summary.most) == (0, -(2**53), 2**53)
    json.dumps([summary.mean, summary.deviation, summary.if_errors], allow_nan=False)


@pytest.mark.parametrize(
    "bounds", [(0, math.inf), (math.nan, 1), (0, math.nan), (1, 1), (-1.7e308, 1.7e308)]
)
def test_scale_has_finite_bounds_and_a_positive_margin(bounds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="bounds must be None or two different numbers from"):
        Scale(bounds=bounds)
    for margin in (0, -1, math.nan, math.inf):
        with pytest.raises(ValueError, match="margin must be more than 0, got"):
            Scale(margin=margin)


def test_score_of_another_kind_is_rejected_and_names_both_cases() -> None:
    kinds = Kinds()
    assert scored(returning(result=True), case=Case(id="first"), kinds=kinds).values == {"it": True}
    scores = scored(returning(0.5), case=Case(id="second"), kinds=kinds)
    assert scores.values == {}
    assert "got 0.5 for the case 'second' but True for the case 'first'" in scores.errors["it"]


def test_kinds_of_reused_scores_apply_to_new_ones() -> None:
    kinds = Kinds()
    kinds.check("it", value=True, case_id="reused")
    assert "'reused'" in scored(returning("yes"), kinds=kinds).errors["it"]
    assert scored(returning(None), kinds=kinds).values == {"it": None}


def test_text_is_a_label_which_is_counted_and_never_averaged() -> None:
    summary = summary_of(scored(returning("0.8")), scored(returning("0.8")))
    assert (summary.mean, summary.labels) == (None, {"0.8": 2})


def test_whole_numbers_are_not_rates() -> None:
    summary = summary_of(scored(returning(49)))
    assert (summary.mean, summary.is_rate) == (49, False)


def test_score_has_no_truth_value() -> None:
    with pytest.raises(TypeError, match=r"use score\.value"):
        bool(Score(value=False))


@pytest.mark.parametrize("value", [0, 0.0, False])
def test_lowest_scores_are_values(value: float) -> None:
    scores = scored(returning(Score(value)))
    assert scores.values == {"it": value}
    assert type(scores.values["it"]) is type(value)


def test_mapping_gives_one_score_for_each_key() -> None:
    result = {"polite": True, "length": Score(3, "three words"), "bad": math.inf}
    scores = scored(returning(result))
    assert scores.values == {"it.polite": True, "it.length": 3}
    assert scores.reasons == {"it.length": "three words"}
    assert scores.errors.keys() == {"it.bad"}


@pytest.mark.parametrize(("name", "other"), [("a", "a.b"), ("a.b.c", "a.b"), ("a.b.c", "a")])
def test_names_that_a_mapping_could_repeat_are_rejected(name: str, other: str) -> None:
    with pytest.raises(ValueError, match="could give a score with the name of the evaluator"):
        check_evaluators([returning({}, name), returning({}, other)])
    assert (
        len(check_evaluators([returning({}, "a.b"), returning({}, "a_b"), returning({}, "b")])) == 3
    )


def test_scale_of_a_score_replaces_the_evaluators() -> None:
    lower = Scale(higher_is_better=False)
    scores = scored(returning({"cost": Score(0.008, scale=lower), "ok": True}))
    assert scores.scales == {"it.cost": lower, "it.ok": Scale()}


def test_lower_cost_is_better_by_the_scale_of_its_score() -> None:
    @evaluator(scale=Scale(higher_is_better=False))
    def cost(case: Case, run: EvalRun) -> float | None:
        return run.cost

    def costs(*values: float) -> tuple[dict[str, list[float | None]], Scale]:
        usages = [RunUsage(calls=1, cost=value) for value in values]
        scores = [scored(cost, run=run_of(usage=usage)) for usage in usages]
        numbers = [[float(str(one.values["cost"]))] for one in scores]
        return {str(case): [*one] for case, one in enumerate(numbers)}, scores[0].scales["cost"]

    (before, scale), (after, _) = costs(0.010, 0.011, 0.012), costs(0.008, 0.008, 0.009)
    result = compare_scores(before, after, higher_is_better=scale.higher_is_better)
    assert result.verdict == "better"
    assert result.difference == pytest.approx(-0.008 / 3)


def test_error_text_masks_secrets() -> None:
    def fails(case: Case, run: EvalRun) -> bool:
        raise RuntimeError("401 for api_key=sk-proj-abcdefghijklmnopqrstuvwxyz")

    assert "abcdefghijklmnop" not in scored(fails).errors["fails"]


def test_score_error_is_reported_by_its_message_alone() -> None:
    def fails(case: Case, run: EvalRun) -> bool:
        raise ScoreError("the file has no header")

    assert scored(fails).errors == {"fails": "the file has no header"}


def test_score_error_of_a_run_failure_names_the_type() -> None:
    def fails(case: Case, run: EvalRun) -> bool:
        raise FAILURE

    text = scored(fails).errors["fails"]
    assert text == "PromptEvaluationError: the tool failed [response/output]"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupts_are_not_score_errors(error: type[BaseException]) -> None:
    async def interrupted(case: Case, run: EvalRun) -> bool:
        raise error

    with pytest.raises(error):
        scored(interrupted)


def is_short(case: Case, run: EvalRun, *, limit: int = 10) -> bool:
    return len(run.text) < limit


def test_plain_functions_and_partials_are_named_after_the_function() -> None:
    (checked,) = check_evaluators([is_short])
    assert checked.name == "is_short"
    assert [one.name for one in check_evaluators([partial(is_short, limit=3)])] == ["is_short"]


def test_two_evaluators_with_one_name_are_rejected() -> None:
    with pytest.raises(ValueError, match="two evaluators have the name 'is_short'"):
        check_evaluators([is_short, partial(is_short, limit=3)])


def test_function_without_name_is_rejected() -> None:
    with pytest.raises(ValueError, match="a lambda has no name"):
        check_evaluators([lambda case, run: True])


@pytest.mark.parametrize("wrong", [equals, cost_below, lambda: True, len])
def test_function_that_does_not_take_case_and_run_is_rejected(wrong: Any) -> None:
    named = Evaluator(function=wrong, name="wrong")
    with pytest.raises(TypeError, match=r"'wrong' must be a function \(case, run\)"):
        check_evaluators([named])


def test_value_that_is_not_callable_is_rejected() -> None:
    wrong: Any = 3
    with pytest.raises(TypeError, match=r"must be a function \(case, run\): 3 is not"):
        check_evaluators([wrong])


def test_result_that_is_not_a_score_is_an_error() -> None:
    result: Mapping[str, object] = {"it": [1]}
    assert "must return a bool, a number" in scored(returning(result["it"])).errors["it"]
