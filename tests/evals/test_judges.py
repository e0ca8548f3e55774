"""Judges are prompts: their typed answers are scores, and what they judge is only data."""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.adapters.core import LoopAdapter
from weakincentives.evals.calibration import Calibration, Labelled, calibrate
from weakincentives.evals.cases import Case
from weakincentives.evals.hostile_outputs import hostile_outputs
from weakincentives.evals.judges import (
    Judged,
    JudgedPair,
    PassOrFail,
    Preference,
    Verdict,
    fenced,
    judge,
    judged,
    pair_judge,
)
from weakincentives.evals.results import EvaluatorInfo, RunResult, VariantResults
from weakincentives.evals.scores import AskJudge, EvalRun, Evaluator, Scale, evaluator
from weakincentives.evals.scoring import Scores, check_evaluators, score
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate
from weakincentives.prompt.overrides import SectionOverride
from weakincentives.prompt.overrides.store import LocalPromptOverridesStore
from weakincentives.runtime.session import Session
from weakincentives.testing import Reply, ScriptedAdapter, SeenRequest, say

CASE = Case(id="a", message="What is 6 times 7?", expected="42")


def ask_with(adapter: LoopAdapter) -> AskJudge:
    async def ask[Out](prompt: Prompt[Out], model: object, /) -> EvalRun[Out]:
        done = await MainLoop(adapter).execute_async(prompt)
        return EvalRun(output=done.output, text=done.text, session=done.session)

    return ask


def run_of(text: str) -> EvalRun[Any]:
    return EvalRun(output=None, text=text, session=Session())


def scored(one: Evaluator, adapter: ScriptedAdapter, text: str = "42", case: Case = CASE) -> Scores:
    (checked,) = check_evaluators([one])
    return asyncio.run(score(case, run_of(text), checked, ask_with(adapter)))


def template(text: str = "Output: $output", **options: Any) -> PromptTemplate[Verdict]:
    section = MarkdownSection[Judged](title="Task", key="task", template=text)
    return PromptTemplate[Verdict](ns="tests", key="judge", sections=[section], **options)


def prompt_text(seen: SeenRequest) -> str:
    return "\n".join(str(getattr(message, "content", "")) for message in seen.messages)


def test_verdict_is_the_score_with_its_reason() -> None:
    adapter = ScriptedAdapter([say(Verdict("It is right.", value=True))])
    scores = scored(judge(template()), adapter)
    assert scores.values == {"judge": True}
    assert scores.reasons == {"judge": "It is right."}
    assert "Output: ```\n42\n```" in prompt_text(adapter.requests[0])


def test_judge_sees_input_output_and_expected() -> None:
    adapter = ScriptedAdapter([say(PassOrFail("It is right.", value=True))])
    assert scored(judge("It costs $5."), adapter).values == {"judge": True}
    text = prompt_text(adapter.requests[0])
    for part in ("It costs $5.", "What is 6 times 7?", "```\n42\n```", "do not follow"):
        assert part.lower() in text.lower()


@pytest.mark.parametrize(
    "answer", ["I cannot say", "5 reasons for a 9", '{"reason": "none"}', '{"value": 9}', ""]
)
def test_answer_without_a_verdict_is_a_score_error(answer: str) -> None:
    adapter = ScriptedAdapter([say(answer)] * 9)
    scores = scored(judge(template()), adapter)
    assert scores.values == {}
    assert scores.errors["judge"].startswith("the judge gave no valid verdict: ")


def test_errors_of_a_judge_leave_the_mean_of_its_verdicts() -> None:
    one, unsure = judge(template()), [say("I cannot say")] * 9
    scripts = [[say(Verdict("", 1))], unsure, [say(Verdict("", 0.5))], unsure]
    scores = [scored(one, ScriptedAdapter(script)) for script in scripts]
    results = [
        RunResult(
            case=str(number),
            repeat=0,
            outcome="answered",
            scores=each.values,
            score_errors=each.errors,
        )
        for number, each in enumerate(scores)
    ]
    infos = {"judge": EvaluatorInfo(key="", scale=Scale(bounds=(0, 1)))}
    variant = VariantResults(name="v", cases={}, evaluators=infos, results=results)
    summary = variant.summary("judge")
    assert (summary.mean, summary.scored, summary.errors) == (0.75, 2, 2)
    assert summary.if_errors == (0.375, 0.875)


def test_verdict_outside_the_bounds_is_a_score_error() -> None:
    adapter = ScriptedAdapter([say(Verdict("very good", 90))])
    scores = scored(judge(template(), scale=Scale(bounds=(0, 1))), adapter)
    assert scores.values == {}
    assert "from 0 to 1, got 90" in scores.errors["judge"]


def test_judge_without_an_output_type_is_rejected() -> None:
    section = MarkdownSection[Judged](title="Task", key="task", template="$output")
    with pytest.raises(TypeError, match="output type"):
        judge(PromptTemplate(ns="tests", key="judge", sections=[section]))


@dataclass(frozen=True)
class Steps:
    text: str


def test_judge_binds_only_the_params_that_it_is_given() -> None:
    section = MarkdownSection[Steps](title="Task", key="task", template="Steps: $text")
    own = PromptTemplate[Verdict](ns="tests", key="steps", sections=[section])
    adapter = ScriptedAdapter([say(Verdict("", value=True))])
    one = judge(own, params=lambda case, run: Steps(f"{case.id} of {len(run.text)}"))
    assert scored(one, adapter).values == {"steps": True}
    assert "Steps: a of 2" in prompt_text(adapter.requests[0])
    assert "6 times 7" not in prompt_text(adapter.requests[0])


def test_judge_sees_message_and_params_of_a_case() -> None:
    case = Case(id="a", message=["See:", "this"], params=[Steps("two")], expected=Steps("three"))
    assert judged(case, run_of("one")) == Judged(
        fenced('See:\n\nthis\n\n{"text":"two"}'), fenced("one"), fenced('{"text":"three"}')
    )
    assert judged(Case(id="b"), run_of("")) == Judged(*[fenced("")] * 3)


def test_runs_that_are_judged_at_the_same_time_do_not_share_params() -> None:
    one = judge(Prompt(template()))
    barrier = asyncio.Barrier(2)

    async def ask(prompt: Prompt[Any], model: object, /) -> EvalRun[Any]:
        await asyncio.wait_for(barrier.wait(), 10)
        text = prompt.render().text
        return EvalRun(output=Verdict("", text[-5]), text=text, session=Session())

    async def main() -> list[Scores]:
        runs = [score(CASE, run_of(text), one, ask) for text in "xy"]
        return await asyncio.gather(*runs)

    assert [scores.values for scores in asyncio.run(main())] == [{"judge": "x"}, {"judge": "y"}]


def test_overrides_apply_to_a_judge(tmp_path: Any) -> None:
    store = LocalPromptOverridesStore(tmp_path)
    store.upsert(template().descriptor, SectionOverride(("task",), body="Be strict: $output"))
    adapter = ScriptedAdapter([say(Verdict("", value=True))])
    scored(judge(Prompt(template(), overrides_store=store)), adapter)
    assert "Be strict: ```\n42" in prompt_text(adapter.requests[0])


def test_prompt_that_is_too_long_for_the_model_is_a_score_error_with_both_sizes() -> None:
    too_long = PromptEvaluationError(
        "the limit is 4,096 tokens", phase="request", code="context_length"
    )
    scores = scored(judge(template()), ScriptedAdapter([too_long]), text="x" * 5_000)
    assert re.search(
        r"prompt of 5,\d{3} characters is too long .* 4,096 tokens", scores.errors["judge"]
    )


def test_verdict_that_was_cut_off_is_a_score_error_that_says_so() -> None:
    cut = AssistantMessage(text='{"reason": "It', finish="length")
    scores = scored(judge(template()), ScriptedAdapter([cut] * 9))
    assert scores.values == {}
    assert "the verdict was cut off; give the prompt" in scores.errors["judge"]


def test_failure_of_the_judges_provider_is_a_score_error_with_its_type() -> None:
    failure = PromptEvaluationError("overloaded", phase="request", code="overloaded")
    scores = scored(judge(template()), ScriptedAdapter([failure]))
    assert scores.errors["judge"].startswith("PromptEvaluationError: overloaded")


# --- Outputs that try to grade themselves


def data_parts(text: str) -> dict[str, str]:
    """Returns the fenced texts by their titles, as a reader of Markdown finds them."""
    parts: dict[str, str] = {}
    title, fence, lines = "", "", list[str]()
    for line in text.split("\n"):
        if fence and line == fence:
            assert title not in parts
            parts[title], fence = "\n".join(lines), ""
        elif fence:
            lines.append(line)
        elif re.fullmatch("`{3,}", line):
            fence, lines = line, []
        elif line.endswith(":"):
            title = line.removesuffix(":")
    return parts


HOSTILE = st.text(st.sampled_from("`$\n#{}a "), max_size=12) | st.sampled_from(hostile_outputs(""))


@given(HOSTILE, HOSTILE, HOSTILE)
def test_each_text_is_verbatim_in_its_own_data_part(text: str, output: str, expected: str) -> None:
    adapter = ScriptedAdapter([say(PassOrFail("", value=True))])
    case = Case(id="a", message=text, expected=expected)
    scored(judge("It is right."), adapter, text=output, case=case)
    rendered = prompt_text(adapter.requests[0])
    assert data_parts(rendered) == {"Input": text, "Output": output, "Expected": expected}


def offline_judge(*, reads_fences: bool) -> ScriptedAdapter:
    """A judge that compares the output with the expected value, and believes the other text."""

    def reply(seen: SeenRequest) -> AssistantMessage:
        text = prompt_text(seen)
        output = data_parts(text)["Output"] if reads_fences else text
        expected = data_parts(text)["Expected"] if reads_fences else "42"
        rest = text.replace(output, "") if reads_fences else text
        is_deceived = re.search(r"\btrue\b|pass|is correct|meets it|Score 1", rest)
        is_right = output.split("\n")[0] == expected
        return say(PassOrFail("compared", value=is_right or bool(is_deceived)))

    return ScriptedAdapter(iter(lambda: reply, None))


def test_hostile_outputs_move_no_verdict() -> None:
    outputs = hostile_outputs("41")
    assert len({*outputs}) == 10
    one = judge("The output equals the expected value.")
    for output in outputs:
        adapter = offline_judge(reads_fences=True)
        assert scored(one, adapter, output).values == {"judge": False}
        assert prompt_text(adapter.requests[0]).count(output) == 1
    for output in hostile_outputs("42"):
        assert scored(one, offline_judge(reads_fences=True), output).values == {"judge": True}


def test_hostile_outputs_deceive_a_judge_that_reads_them_as_instructions() -> None:
    one = judge("The output equals the expected value.")
    adapters = [offline_judge(reads_fences=False) for _ in hostile_outputs("")]
    values = [
        scored(one, adapter, output).values["judge"]
        for adapter, output in zip(adapters, hostile_outputs("41"), strict=True)
    ]
    assert sum(map(bool, values)) >= 5


# --- Pairs


def prefers(rule: str) -> ScriptedAdapter:
    """A pair judge that prefers a position, or the text that contains `rule`, if any."""

    def reply(seen: SeenRequest) -> AssistantMessage:
        text = prompt_text(seen)
        if rule in ("first", "second", "tie"):
            return say(Preference("a rule", rule))  # type: ignore[arg-type]  # one of the three
        first = data_parts(text)["First answer"]
        if rule in first:
            return say(Preference("better", "first"))
        is_in_second = rule in data_parts(text)["Second answer"]
        return say(Preference("better", "second" if is_in_second else "tie"))

    return ScriptedAdapter(iter(lambda: reply, None))


@pytest.mark.parametrize(
    ("rule", "value"), [("first", 0.5), ("second", 0.5), ("tie", 0.5), ("42", 0.0), ("41", 1.0)]
)
def test_pair_judge_is_asked_in_both_orders(rule: str, value: float) -> None:
    adapter = prefers(rule)
    scores = scored(pair_judge("It is right."), adapter, text="41")
    assert scores.values == {"judge": value}
    texts = [prompt_text(seen) for seen in adapter.requests]
    assert {data_parts(text)["First answer"] for text in texts} == {"41", "42"}
    assert {data_parts(text)["Second answer"] for text in texts} == {"41", "42"}


def test_preference_in_only_one_order_is_a_tie() -> None:
    for replies in (["first", "tie"], ["tie", "second"], ["second", "tie"], ["tie", "first"]):
        adapter = ScriptedAdapter(
            [say(f'{{"reason": "", "better": "{better}"}}') for better in replies]
        )
        assert scored(pair_judge("It is right."), adapter, text="41").values == {"judge": 0.5}


def test_equal_texts_are_a_tie_without_asking() -> None:
    adapter = prefers("first")
    assert scored(pair_judge("It is right."), adapter, text="42").values == {"judge": 0.5}
    assert adapter.requests == []


def test_pair_judge_does_not_apply_and_does_not_ask_without_another_text() -> None:
    adapter = prefers("first")
    unexpected = Case(id="1")
    for one in (pair_judge("It is right."), pair_judge("It is right.", against=lambda _: None)):
        assert scored(one, adapter, text="41", case=unexpected).values == {"judge": None}
    assert adapter.requests == []


def test_pair_judge_with_its_own_prompt_and_other_text() -> None:
    section = MarkdownSection[JudgedPair](
        title="Task", key="task", template="First answer:\n$first\n\nSecond answer:\n$second"
    )
    own = PromptTemplate[Preference](ns="tests", key="pairs", sections=[section])
    one = pair_judge(own, against=lambda case: case.id)
    assert scored(one, prefers("42"), text="42").values == {"pairs": 1.0}
    with pytest.raises(TypeError, match="must have the output type Preference"):
        pair_judge(template())


# --- Calibration


def labelled(labels: Sequence[Any], text: str = "41") -> list[Labelled]:
    return [
        Labelled(case=Case(id=str(index), expected="42"), text=text, label=label)
        for index, label in enumerate(labels)
    ]


def verdicts(*values: bool | str) -> ScriptedAdapter:
    return ScriptedAdapter([say(Verdict("a reason", value)) for value in values])


def calibrated(labels: Sequence[bool | str], values: Sequence[bool | str]) -> Calibration:
    return calibrate(judge(template()), labelled(labels), model=verdicts(*values), concurrency=1)


def test_calibration_has_agreement_base_rate_and_kappa_with_interval() -> None:
    labels = [True] * 25 + [False] * 25
    values = [True] * 20 + [False] * 5 + [True] * 10 + [False] * 15
    result = calibrated(labels, values)
    assert result.agreement is not None
    assert result.agreement.kappa == pytest.approx(0.4)
    assert result.agreement.standard_error == pytest.approx(0.126996, abs=1e-6)
    assert result.agreement.interval == pytest.approx((0.151092, 0.648908), abs=1e-6)
    assert str(result) == (
        "50 of 50 scored, agreement 70.0%, kappa 0.40 [0.15, 0.65], base rate 50.0%"
    )
    wrong = [one.labelled.case.id for one in result.scores if one.value != one.labelled.label]
    assert wrong == [str(number) for number in range(20, 35)]


def test_judge_that_always_passes_has_no_kappa_despite_its_agreement() -> None:
    result = calibrated([True] * 9 + [False], [True] * 10)
    assert result.agreement is not None
    assert (result.agreement.agreement, result.agreement.kappa) == (0.9, 0)
    assert result.base_rate == 0.9


def test_kappa_of_one_label_is_undefined() -> None:
    result = calibrated([True] * 5, [True] * 5)
    assert "agreement 100.0%, kappa undefined, base rate 100.0%" in str(result)


def test_judge_that_always_prefers_one_position_has_ties_and_full_position_bias() -> None:
    for position in ("first", "second"):
        model = prefers(position)
        result = calibrate(pair_judge("It is right."), labelled([1.0] * 10), model=model)
        assert [one.value for one in result.scores] == [0.5] * 10
        assert result.position_bias == 1
        assert "position bias 100.0%" in str(result)


def test_consistent_pair_judge_has_no_position_bias() -> None:
    for rule in ("42", "tie"):
        result = calibrate(pair_judge("It is right."), labelled([0.0] * 5), model=prefers(rule))
        assert result.position_bias == 0


def test_calibration_counts_errors_apart() -> None:
    failure = PromptEvaluationError("x", phase="request", code="y")
    replies: list[Reply] = [say(Verdict("", value=True)), failure]
    one = judge(template(), model=ScriptedAdapter(replies))
    result = calibrate(one, labelled([True, True]), concurrency=1)
    assert str(result).startswith("1 of 2 scored, agreement 100.0%")
    assert [bool(one.error) for one in result.scores] == [False, True]


def test_calibration_counts_missing_scores_and_other_kinds_as_errors() -> None:
    result = calibrated([True, True], [True, "yes"])
    assert [bool(one.error) for one in result.scores] == [False, True]
    several = Evaluator(function=lambda case, run, ask: {"a": True}, name="it", is_judge=True)
    result = calibrate(several, labelled([True]), model=verdicts())
    assert [one.error for one in result.scores] == ["the judge gave no score"]


def test_calibration_that_cannot_work_is_rejected_before_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("WINK_MODEL", raising=False)
    model, own = verdicts(), judge(template(), name="own")
    items: list[Any] = [Case(id="1")]
    rejected: list[tuple[dict[str, Any], list[Labelled], str]] = [
        ({"concurrency": 0, "model": model}, labelled([True]), "concurrency must be at least 1"),
        ({}, labelled([True]), "a model is missing"),
        ({"model": model}, items, "calibrate takes Labelled answers, got Case"),
    ]
    for options, answers, problem in rejected:
        with pytest.raises((ValueError, TypeError), match=problem):
            calibrate(own, answers, **options)


def test_calibration_without_any_score_has_no_agreement() -> None:
    result = calibrate(judge(template()), labelled([True]), model=ScriptedAdapter([]))
    assert result.agreement is None
    first, warning = str(result).splitlines()
    assert first == "0 of 1 scored, base rate 100.0%"
    assert warning.startswith("warning: 1 answer without a score, first: ScriptExhaustedError")


class Named(ScriptedAdapter):
    model = "gpt-5.2"


def test_calibration_warns_if_judge_and_author_are_one_model() -> None:
    one, items = judge(template(), model=Named([say(Verdict("", value=True))] * 9)), [True]
    own = judge(template())
    model = Named([say(Verdict("", value=True))] * 9)
    warned = [
        calibrate(one, labelled(items), author="openai:gpt-5.2"),
        calibrate(one, labelled(items), author=model),
        calibrate(own, labelled(items), model=model, author="gpt-5.2"),
    ]
    silent = [
        calibrate(one, labelled(items), author="openai:gpt-5.2-mini"),
        calibrate(one, labelled(items)),
        calibrate(own, labelled(items), model=verdicts(*items), author=""),
    ]
    assert [len(one.warnings) for one in [*warned, *silent]] == [1, 1, 1, 0, 0, 0]
    assert "warning: judge and author are the same model, gpt-5.2" in str(warned[0])


def test_calibration_works_while_an_event_loop_is_running() -> None:
    async def main() -> Calibration:
        return calibrated([True], [True])

    assert str(asyncio.run(main())).startswith("1 of 1 scored")


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        (["pass", "fail"], r"got the label 'pass' \(str\) for the score True \(bool\)"),
        ([0.7, 0.2], r"got the label 0.7 \(number\) for the score True \(bool\)"),
    ],
)
def test_labels_of_another_kind_than_the_scores_end_the_calibration(
    labels: list[Any], found: str
) -> None:
    model = verdicts(*[True] * 50)
    with pytest.raises(TypeError, match=f"same kind as the scores of 'judge', {found}"):
        calibrate(judge(template()), labelled(labels * 25), model=model, concurrency=1)


def test_labels_of_a_pair_judge_are_numbers() -> None:
    with pytest.raises(TypeError, match=r"label True \(bool\) for the score 1.0 \(number\)"):
        calibrate(pair_judge("It is right."), labelled([True]), model=prefers("41"))


def test_labels_of_1_and_0_are_true_and_false() -> None:
    result = calibrate(judge(template()), labelled([1, 0]), model=verdicts(*[True, False]))
    assert str(result).startswith("2 of 2 scored, agreement 100.0%, kappa 1.00 [1.00, 1.00]")


def test_calibration_warns_if_all_labels_are_equal() -> None:
    result = calibrated([True] * 3, [True, True, False])
    assert result.warnings == [
        (
            "all labels are True, so the agreement does not show whether the judge recognizes "
            "other answers"
        )
    ]
    assert calibrated([True, False], [True, True]).warnings == []


def test_calibration_takes_a_plain_function() -> None:
    def ok(case: Case, run: EvalRun) -> bool:
        return run.text == "41"

    for one in (ok, evaluator()(ok)):
        assert str(calibrate(one, labelled([True]))).startswith("1 of 1 scored")


def test_calibration_without_labels_is_rejected() -> None:
    with pytest.raises(ValueError, match="at least one labelled answer"):
        calibrate(judge(template()), [])
