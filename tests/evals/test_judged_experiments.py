"""Judges in an experiment: their runs are kept, paid for and paced like all others."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.eval_models import (
    FunctionAdapter,
    Question,
    echo,
    failed,
    is_right,
    question_cases,
    questions,
    say,
    throttled,
)
from weakincentives.evals import (
    Case,
    EvalRun,
    RunResult,
    Scale,
    evaluate,
    map_prompts,
    map_prompts_async,
)
from weakincentives.evals.judges import Judged, Verdict, judge
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.inner_loop import ProviderRequest
from weakincentives.limits import Budget, TokenUsage
from weakincentives.prompt import MarkdownSection, PromptTemplate


def price(usage: TokenUsage, model: str) -> float:
    return 1.0 if model == "judge" else 0.01


def passes(request: ProviderRequest, text: str) -> Any:
    return say('{"reason": "It is right.", "value": true}')


def test_a_judge_is_asked_again_only_if_its_request_changes(tmp_path: Path) -> None:
    model, judging = FunctionAdapter(echo), FunctionAdapter(passes, model="judge")

    def run(criterion: str, count: int) -> Any:
        result = evaluate(
            questions(),
            question_cases(count),
            evaluators=[judge(criterion, model=judging, name="good")],
            model=model,
            prices=price,
            folder=tmp_path,
        )
        assert [one.scores["good"] for one in result["base"].results] == [True] * count
        judged = sum(one.judges.cost or 0.0 for one in result["base"].results)
        assert judged == pytest.approx(count)
        assert result["base"].evaluators["good"].judge == "judge"
        return model.asked, judging.asked, result.spent.cost, result.judges.cost

    assert run("It is short.", 3) == (3, 3, pytest.approx(3.03), pytest.approx(3.0))
    assert run("It is short.", 3) == (3, 3, None, None)
    assert run("It is short.", 4) == (4, 4, pytest.approx(1.01), pytest.approx(1.0))
    assert run("It is long.", 4) == (4, 8, pytest.approx(4.0), pytest.approx(4.0))


def test_a_judge_without_a_model_uses_that_of_the_experiment() -> None:
    def answer(request: ProviderRequest, text: str) -> Any:
        return passes(request, text) if "criterion" in text else echo(request, text)

    model = FunctionAdapter(answer)
    result = evaluate(questions(), question_cases(2), evaluators=[judge("Short.")], model=model)
    assert model.asked == 4
    (info,) = result["base"].evaluators.values()
    assert info.judge == "m"


def test_failures_of_a_judge_are_score_errors_and_are_asked_again(tmp_path: Path) -> None:
    works = False
    model = FunctionAdapter(echo)

    def answer(request: ProviderRequest, text: str) -> Any:
        return passes(request, text) if works or "q1" in text else failed("quota")

    def run() -> list[RunResult]:
        judging = FunctionAdapter(answer, model="judge")
        result = evaluate(
            questions(),
            question_cases(3),
            evaluators=[judge("Short.", model=judging, name="good"), is_right],
            model=model,
            folder=tmp_path,
        )
        return list(result["base"].results)

    first = run()
    assert [one.scores.get("good") for one in first] == [None, True, None]
    assert [sorted(one.score_errors) for one in first] == [["good"], [], ["good"]]
    assert [one.scores["is_right"] for one in first] == [True] * 3
    works = True
    assert [one.scores["good"] for one in run()] == [True] * 3
    assert model.asked == 3


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ("I cannot say.", "no valid verdict"),
        ('{"reason": "Good.", "value": 90}', "must be from 0 to 1, got 90"),
    ],
)
def test_verdicts_that_are_score_errors_are_asked_again(
    tmp_path: Path, bad: str, problem: str
) -> None:
    works = False

    def answer(request: ProviderRequest, text: str) -> Any:
        return say('{"reason": "Good.", "value": 0.9}' if works else bad)

    section = MarkdownSection[Judged](title="Task", key="task", template="Grade: $output")
    prompt = PromptTemplate[Verdict](ns="evals", key="grade", sections=[section])
    judging = FunctionAdapter(answer, model="judge")

    def run() -> RunResult:
        result = evaluate(
            questions(),
            question_cases(1),
            evaluators=[judge(prompt, model=judging, scale=Scale(bounds=(0, 1)))],
            model=FunctionAdapter(echo),
            folder=tmp_path,
        )
        return result["base"].results[0]

    assert problem in run().score_errors["grade"]
    asked = judging.asked
    works = True
    assert run().scores == {"grade": 0.9}
    assert judging.asked == asked + 1
    assert run().scores == {"grade": 0.9}
    assert judging.asked == asked + 1


def test_an_experiment_whose_judges_exceed_the_budget_is_not_complete(tmp_path: Path) -> None:
    model, judging = FunctionAdapter(echo), FunctionAdapter(passes, model="judge")

    def run(max_calls: int) -> Any:
        return evaluate(
            questions(),
            question_cases(3),
            evaluators=[judge("It is good.", model=judging, name="good")],
            model=model,
            budget=Budget(max_calls=max_calls),
            concurrency=1,
            folder=tmp_path,
        )

    first = run(5)
    assert [one.outcome for one in first["base"].results] == ["answered"] * 3
    assert (first["base"].summary("good").scored, first.is_complete) == (2, False)
    second = run(5)
    assert (second["base"].summary("good").scored, second.is_complete) == (3, True)
    assert (model.asked, judging.asked) == (3, 3)


def test_a_verdict_that_runs_share_is_counted_once(tmp_path: Path) -> None:
    judging = FunctionAdapter(passes, model="judge")
    for spent in (1, 0):
        result = evaluate(
            questions(),
            question_cases(1),
            evaluators=[judge("Short.", model=judging)],
            model=FunctionAdapter(echo),
            repeats=4,
            prices=price,
            folder=tmp_path,
        )
        assert sum(one.judges.calls for one in result["base"].results) == 1
        assert sum(one.judges.cost or 0.0 for one in result["base"].results) == 1.0
        assert result.judges.calls == spent
    assert judging.asked == 1


def test_judges_and_runs_pause_together() -> None:
    times = list[float]()
    refused = list[float]()

    def answer(request: ProviderRequest, text: str) -> Any:
        times.append(time.monotonic())
        if "criterion" not in text:
            return echo(request, text)
        if not refused:
            refused.append(time.monotonic())
            return throttled(0.5)
        return passes(request, text)

    model = FunctionAdapter(answer)
    judging = FunctionAdapter(answer, model="judge")
    result = evaluate(
        questions(),
        question_cases(8),
        evaluators=[judge("Short.", model=judging, name="good")],
        model=model,
        concurrency=4,
    )
    assert [one.scores["good"] for one in result["base"].results] == [True] * 8
    assert min(at - refused[0] for at in times if at > refused[0]) >= 0.5


def test_prompts_are_mapped_over_cases_in_their_order(tmp_path: Path) -> None:
    async def answer(request: ProviderRequest, text: str) -> Any:
        await asyncio.sleep(0.01 if "q0" in text else 0)
        return failed("authentication") if "q2" in text else echo(request, text)

    model = FunctionAdapter(answer)
    cases = question_cases(4)
    for asked in (4, 5):  # the failure is asked again
        runs = map_prompts(questions(), cases, model=model, folder=tmp_path)
        assert [run.text for run in runs] == ["q0", "q1", "", "q3"]
        assert isinstance(runs[2].error, PromptEvaluationError)
        assert model.asked == asked
    again = asyncio.run(map_prompts_async(questions(), cases[:1], model=model))
    assert [run.text for run in again] == ["q0"]


def test_reused_runs_are_restored_for_whoever_asks(tmp_path: Path) -> None:
    seen = list[tuple[str, str]]()

    def see(result: RunResult, run: EvalRun) -> None:
        seen.append((result.case, run.text))

    for _ in range(2):
        evaluate(
            questions(),
            question_cases(2),
            model=FunctionAdapter(echo),
            concurrency=1,
            folder=tmp_path,
            on_run=see,
        )
    assert seen == [("0", "q0"), ("1", "q1")] * 2


def test_equal_cases_are_independent_of_each_other() -> None:
    answers = iter(["q0", "other"])
    model = FunctionAdapter(lambda *_: say(next(answers)))
    case = question_cases(1)[0]
    result = evaluate(
        questions(), [case, replace(case, id="again")], evaluators=[is_right], model=model
    )
    assert [one.scores["is_right"] for one in result["base"].results] == [True, False]


def test_text_of_a_case_reaches_the_request_as_it_is() -> None:
    text = "{{x}} ${x} {% raw %} {#"
    model = FunctionAdapter(echo)
    evaluate(questions(), [Case(id="1", params=(Question(text),))], model=model)
    assert text in model.prompts[0]
