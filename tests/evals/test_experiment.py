"""`evaluate` runs each case as often as it says, and never pays twice for what its folder has."""

import asyncio
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Any

import pytest

from support.eval_models import (
    FunctionAdapter,
    Note,
    Question,
    Topic,
    calls,
    echo,
    failed,
    is_right,
    notebook,
    question_cases,
    questions,
    say,
    throttled,
    turn_of,
    write_notes,
)
from weakincentives import tool
from weakincentives.adapters.core import LoopAdapter
from weakincentives.adapters.model_names import adapter_for
from weakincentives.evals import (
    Case,
    Dataset,
    EvalRun,
    EvaluateOptions,
    Experiment,
    Progress,
    RunResult,
    Variant,
    evaluate,
    evaluate_async,
    evaluator,
)
from weakincentives.evals.experiment_files import experiment_json, parse_experiment
from weakincentives.evals.judges import judge
from weakincentives.evaluation.config import RunConfig
from weakincentives.evaluation.inner_loop import ProviderRequest
from weakincentives.evaluation.messages import AssistantMessage, Finish
from weakincentives.limits import Budget, TokenUsage
from weakincentives.model_settings import ModelSettings
from weakincentives.prompt import MarkdownSection, PromptTemplate, Tool
from weakincentives.visibility import SectionVisibility


def values(experiment: Experiment, variant: str = "base", score: str = "is_right") -> list[Any]:
    return [result.scores.get(score) for result in experiment[variant].results]


# --- what is asked, and what is reused


def test_each_case_has_a_run_for_each_repeat_and_none_is_asked_again(tmp_path: Path) -> None:
    numbers = iter(range(100))
    model = FunctionAdapter(lambda *_: say(f"q{next(numbers)}"))

    def run(repeats: int) -> list[str]:
        result = evaluate(
            questions(),
            question_cases(2),
            evaluators=[evaluator(name="text")(lambda case, run: run.text)],
            model=model,
            repeats=repeats,
            folder=tmp_path,
        )
        assert [one.repeat for one in result["base"].results] == [*range(repeats)] * 2
        return values(result, score="text")

    five = run(5)
    assert len(set(five)) == 10
    assert run(5) == five
    assert model.asked == 10
    eight = run(8)
    assert model.asked == 16
    assert run(5) == five == eight[:5] + eight[8:13]
    assert model.asked == 16


def test_another_model_asks_again(tmp_path: Path) -> None:
    first, second = FunctionAdapter(echo, model="a"), FunctionAdapter(echo, model="b")
    for model in (first, second, first, second):
        evaluate(questions(), question_cases(10), model=model, folder=tmp_path)
    assert (first.asked, second.asked) == (10, 10)


def test_another_server_asks_again() -> None:
    one, other = (
        adapter_for("openai:m", base_url=f"http://127.0.0.1:{port}/v1", api_key="a-secret-key")
        for port in (8001, 8002)
    )
    assert isinstance(one, LoopAdapter)
    assert isinstance(other, LoopAdapter)
    assert one.identity() != other.identity()
    assert "a-secret-key" not in str(one.identity())


def described(text: str) -> PromptTemplate[None]:
    def find(key: str) -> str:
        return key

    find.__doc__ = text
    return PromptTemplate(
        ns="evals",
        key="tools",
        sections=[MarkdownSection[Question](title="Q", template="$text", tools=[find], key="q")],
    )


@pytest.mark.parametrize(
    ("before", "after", "part"),
    [
        ({"settings": ModelSettings(temperature=0)}, {"settings": ModelSettings(temperature=0.7)},
         "setting temperature"),
        ({}, {"settings": ModelSettings(tool_choice="none")}, "setting tool_choice"),
        ({}, {"settings": ModelSettings(max_output_tokens=9)}, "setting max_output_tokens"),
        ({}, {"config": RunConfig(max_turns=3)}, "limits"),
        ({"target": described("Find.")}, {"target": described("Look up.")}, "tool find"),
        ({}, {"target": questions(text="Now answer: $text")}, "section question"),
        ({"target": PromptTemplate[str](ns="a", key="b")},
         {"target": PromptTemplate[list[str]](ns="a", key="b")},
         "output"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_whatever_can_change_an_answer_is_asked_again_and_named(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], part: str
) -> None:
    model = FunctionAdapter(lambda *_: say('{"items": ["x"]}'))
    cases = [Case(id="1", params=(Question("q1"),)), Case(id="2", params=(Question("q2"),))]

    def run(options: dict[str, Any]) -> Experiment:
        given = dict(options)
        target = given.pop("target", questions())
        asked = cases if target.registry.params_types else [Case(id="1"), Case(id="2")]
        return evaluate(target, asked, model=model, folder=tmp_path, explain=True, **given)

    assert not run(before).notes
    changed = run(after)
    assert model.asked == 4
    (explanation,) = [note for note in changed.notes if "new" in note]
    assert "2 runs of variant 'base' are new" in explanation
    assert part in explanation
    assert not [note for note in run(after).notes if "new" in note]
    assert model.asked == 4


def test_a_changed_case_is_named_as_the_reason(tmp_path: Path) -> None:
    model = FunctionAdapter(echo)
    evaluate(questions(), question_cases(2), model=model, folder=tmp_path)
    cases = [question_cases(2)[0], Case(id="1", params=(Question("another"),))]
    result = evaluate(questions(), cases, model=model, folder=tmp_path, explain=True)
    assert model.asked == 3
    assert [note for note in result.notes if "1 run of variant 'base' is new: the case" in note]


def test_time_limits_and_concurrency_do_not_ask_again(tmp_path: Path) -> None:
    model = FunctionAdapter(echo)
    every: list[dict[str, Any]] = [
        {"timeout": 5.0, "concurrency": 1},
        {"timeout": 60.0, "concurrency": 4},
        {"settings": ModelSettings(timeout=3)},
        {"prices": lambda usage, model: 0.1, "budget": Budget(max_cost=5)},
    ]
    for options in every:
        evaluate(questions(), question_cases(3), model=model, folder=tmp_path, **options)
    assert model.asked == 3


CALLED = SimpleQueue[str]()  # whose content is not part of an evaluator's key, unlike a list's


def test_a_changed_evaluator_scores_again_without_asking(tmp_path: Path) -> None:
    model = FunctionAdapter(echo)

    def length(limit: int) -> Any:
        @evaluator(name="short", settings=limit)
        def short(case: Case, run: EvalRun) -> bool:
            CALLED.put(case.id)
            return len(run.text) < limit

        return short

    def run(limit: int, cases: list[Case]) -> list[Any]:
        result = evaluate(
            questions(), cases, evaluators=[length(limit)], model=model, folder=tmp_path
        )
        return values(result, score="short")

    cases = question_cases(3)
    assert run(2, cases) == [False] * 3
    assert run(2, cases) == [False] * 3
    assert CALLED.qsize() == 3
    assert run(9, cases) == [True] * 3
    assert CALLED.qsize() == 6
    run(9, [replace(case, expected="another") for case in cases])
    assert CALLED.qsize() == 9
    assert model.asked == 3


# --- what ends early


class Stop(BaseException):
    pass


def test_an_experiment_that_was_stopped_continues(tmp_path: Path) -> None:
    def numbered(case: Case, run: EvalRun) -> float:
        return len(case.id) * 0.1

    def run(folder: Path, stops: bool) -> tuple[Experiment | None, int]:
        count = 0

        def answer(request: ProviderRequest, text: str) -> AssistantMessage:
            nonlocal count
            if stops and count == 37:
                raise Stop
            count += 1
            return echo(request, text)

        model = FunctionAdapter(answer)
        try:
            result = evaluate(
                questions(),
                question_cases(100),
                evaluators=[is_right, numbered],
                model=model,
                concurrency=4,
                folder=folder,
            )
        except Stop:
            return None, count
        return result, count

    assert run(tmp_path / "cut", stops=True)[0] is None
    resumed, asked = run(tmp_path / "cut", stops=False)
    uncut, _ = run(tmp_path / "uncut", stops=False)
    assert asked <= 63 + 4
    assert resumed is not None
    assert uncut is not None
    assert without_times(resumed) == without_times(uncut)
    assert 100 - 4 <= resumed.reused + asked <= 100  # some had an answer, but no end
    assert resumed.spent.calls == asked


def without_times(experiment: Experiment) -> Any:
    return [
        (variant.name, [replace(result, seconds=0.0) for result in variant.results], variant.usage)
        for variant in experiment.variants.values()
    ]


def notes_written(case: Case, run: EvalRun) -> dict[str, Any]:
    """Returns what the run has left, in its session, its files and its log."""
    assert run.files is not None
    return {
        "notes": " ".join(note.text for note in run.session[Note].all()),
        "file": run.files.read_text("notes.txt"),
        "given": run.files.read_text("given.txt"),
        "calls": " ".join(call.name for call in run.calls),
        "opened": " ".join(run.opened),
        "output": f"{run.output}",
        "entries": float(len(run.log.entries)),
    }


def test_a_log_cut_at_any_byte_ends_like_the_uncut_run(tmp_path: Path) -> None:
    case = Case(id="1", params=(Question("the sky"),), files={"given.txt": b"given"})

    def run(folder: Path) -> tuple[Any, int]:
        model = FunctionAdapter(write_notes)
        result = evaluate(
            notebook(), [case], evaluators=[notes_written], model=model, folder=folder
        )
        return without_times(result), model.asked

    expected, asked = run(tmp_path / "uncut")
    assert asked == 5
    (result,) = expected[0][1]
    assert result.scores["notes_written.file"] == "first\nsecond\n", result
    (log,) = (tmp_path / "uncut/runs").iterdir()
    data = log.read_bytes()
    assert len(data) <= 20_000
    ends = [index for index, byte in enumerate(data) if byte == ord("\n")]
    cuts = {0, *(end + step for end in ends for step in (-1, 0, 1)), len(data)}
    if os.environ.get("EVAL_CUTS") == "all":
        cuts = {*range(len(data) + 1)}
    cuts |= set(Random(7).sample(range(len(data)), 60))  # noqa: S311 - which bytes and delays, not secrets
    for cut in sorted(cuts):
        folder = tmp_path / f"cut-{cut}"
        (folder / "runs").mkdir(parents=True)
        (folder / "runs" / log.name).write_bytes(data[:cut])
        answers = len(answered_in(data[:cut]))
        again, asked = run(folder)
        assert again == expected, cut
        assert asked == 5 - answers, cut
        assert run(folder) == (expected, 0)
        shutil.rmtree(folder)


def answered_in(data: bytes) -> list[Any]:
    answers = list[Any]()
    for line in data.splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if entry.get("line", {}).get("entry", {}).get("kind") == "answered":
            answers.append(entry)
    return answers


def test_failures_of_a_provider_and_cut_answers_are_asked_again(tmp_path: Path) -> None:
    broken = True

    def answer(request: ProviderRequest, text: str) -> Any:
        if not broken or "q0" in text:
            return echo(request, text)
        if "q1" in text:
            return failed("server_error")
        if "q2" in text:
            return AssistantMessage(text="half", finish="error", usage=TokenUsage(10, 5))
        return AssistantMessage(text="no", finish="refusal", usage=TokenUsage(10, 5))

    model = FunctionAdapter(answer)

    def run() -> Experiment:
        return evaluate(
            questions(), question_cases(4), evaluators=[is_right], model=model, folder=tmp_path
        )

    first = run()
    assert [one.outcome for one in first["base"].results] == ["answered", *["provider"] * 3]
    assert values(first) == [True, None, None, None]
    assert first["base"].summary("is_right").errors == 3
    broken, asked = False, model.asked
    second = run()
    assert values(second) == [True] * 4
    assert second.reused == 1
    assert model.asked == asked + 3


def test_an_answer_that_is_too_long_is_a_failure_of_the_run_and_is_kept(tmp_path: Path) -> None:
    finishes: list[Finish] = ["length", "stop"]
    left = iter(finishes)
    model = FunctionAdapter(lambda *_: AssistantMessage(text="q0", finish=next(left)))
    for _ in range(2):
        result = evaluate(
            questions(), question_cases(1), evaluators=[is_right], model=model, folder=tmp_path
        )
        assert [one.outcome for one in result["base"].results] == ["failed"]
        assert "cut off at its length limit" in result["base"].results[0].error
    assert model.asked == 1


def test_a_reused_failure_has_the_type_and_the_code_of_the_first(tmp_path: Path) -> None:
    errors = list[Any]()

    def answer(request: ProviderRequest, text: str) -> AssistantMessage:
        if "q0" in text:
            return AssistantMessage(text="cut", finish="length")
        return calls(("note", '{"text": "again"}'))

    @evaluator(name="kept", on_failure=True)
    def kept(case: Case, run: EvalRun) -> bool:
        errors.append((type(run.error), str(run.error), vars(run.error)["code"]))
        return True

    for number in range(2):
        evaluate(
            notebook(),
            question_cases(2),
            evaluators=[replace(kept, settings=number)],
            model=FunctionAdapter(answer),
            config=RunConfig(max_turns=2),
            concurrency=1,
            folder=tmp_path,
        )
    assert [code for _, _, code in errors] == ["truncated", "turns", "truncated", "turns"]
    assert errors[:2] == errors[2:]


def test_a_failing_run_does_not_end_the_others(tmp_path: Path) -> None:
    def answer(request: ProviderRequest, text: str) -> Any:
        if "q4" in text:
            raise ZeroDivisionError("the adapter has a bug")
        return echo(request, text)

    result = evaluate(
        questions(), question_cases(10), evaluators=[is_right], model=FunctionAdapter(answer)
    )
    outcomes = Counter(one.outcome for one in result["base"].results)
    assert outcomes == {"answered": 9, "failed": 1}
    assert "ZeroDivisionError: the adapter has a bug" in result["base"].results[4].error
    assert "Traceback" in result["base"].results[4].error
    assert values(result) == [True] * 4 + [None] + [True] * 5


async def wait_for_a_cancelled_task() -> None:
    task = asyncio.ensure_future(asyncio.sleep(9))
    task.cancel()
    await task


@pytest.mark.parametrize("timeout", [None, 5.0])
@pytest.mark.parametrize("concurrency", [1, 8])
def test_a_task_that_a_run_has_cancelled_fails_this_run_alone(
    concurrency: int, timeout: float | None
) -> None:
    async def answer(request: ProviderRequest, text: str) -> AssistantMessage:
        if "q1" in text:
            await wait_for_a_cancelled_task()
        return say("warm" if request.settings else "cold")

    async def is_scored(case: Case, run: EvalRun) -> bool:
        if case.id == "2" and run.text == "cold":
            await wait_for_a_cancelled_task()
        return True

    result = evaluate(
        questions(),
        question_cases(4),
        variants=[Variant(name="cold"), Variant(name="warm", settings=ModelSettings(seed=1))],
        evaluators=[is_scored],
        model=FunctionAdapter(answer),
        concurrency=concurrency,
        timeout=timeout,
    )
    for variant in ("cold", "warm"):
        results = result[variant].results
        assert [one.case for one in results] == ["0", "1", "2", "3"]
        assert [one.outcome for one in results].count("answered") == 3
        assert results[1].outcome == "failed"
        assert "was cancelled" in results[1].error
    assert "was cancelled" in result["cold"].results[2].score_errors["is_scored"]
    assert values(result, "warm", "is_scored") == [True, None, True, True]


def test_workers_that_were_cancelled_are_not_missing_from_the_result() -> None:
    async def main() -> None:
        own = asyncio.current_task()

        def stop(case: Case, run: EvalRun) -> bool:
            for task in asyncio.all_tasks() - {own}:
                task.cancel()
            return True

        with pytest.raises(RuntimeError, match="were cancelled; start the experiment again"):
            await evaluate_async(
                questions(), question_cases(9), evaluators=[stop], model=FunctionAdapter(echo)
            )

    asyncio.run(main())


def test_a_run_that_does_not_end_in_time_frees_its_worker_and_is_not_kept(tmp_path: Path) -> None:
    cancelled = list[bool]()

    async def wait(context: Any = None) -> str:
        """Wait."""
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return "late"

    template = PromptTemplate(
        ns="evals",
        key="slow",
        sections=[MarkdownSection[Question](title="Q", template="$text", tools=[wait], key="q")],
    )

    def answer(request: ProviderRequest, text: str) -> AssistantMessage:
        slow = "q0" in text and not turn_of(request)
        return calls(("wait", "{}")) if slow else say("done")

    started = time.monotonic()
    result = evaluate(
        template,
        question_cases(3),
        model=FunctionAdapter(answer),
        concurrency=1,
        timeout=0.5,
        folder=tmp_path,
    )
    assert time.monotonic() - started < 2
    assert [one.outcome for one in result["base"].results] == ["failed", "answered", "answered"]
    assert result["base"].results[0].error == (
        "the run did not end within the timeout of 0.5 seconds"
    )
    assert cancelled == [True]
    assert (
        evaluate(
            template, question_cases(3), model=FunctionAdapter(answer), timeout=0.5, folder=tmp_path
        ).reused
        == 2
    )


# --- order, isolation and checks


def test_results_are_in_the_order_of_the_dataset_whatever_ends_first() -> None:
    random = Random(3)  # noqa: S311 - which bytes and delays, not secrets

    async def answer(request: ProviderRequest, text: str) -> Any:
        await asyncio.sleep(random.random() / 100)
        return (
            failed("authentication")
            if text.endswith("q7\n\n## 2. Rules\n\nBe brief.")
            else echo(request, text)
        )

    result = evaluate(
        questions(),
        question_cases(200),
        evaluators=[is_right],
        model=FunctionAdapter(answer),
        concurrency=16,
    )
    assert [one.case for one in result["base"].results] == [str(number) for number in range(200)]
    assert [one.case for one in result["base"].results if one.error] == ["7"]
    assert sum(map(bool, values(result))) == 199


def test_cases_do_not_see_each_other(tmp_path: Path) -> None:
    def left(case: Case, run: EvalRun) -> str:
        assert run.files is not None
        return f"{run.files.read_text('notes.txt')}/{len(run.session[Note].all())}"

    def answer(request: ProviderRequest, text: str) -> AssistantMessage:
        name = text.partition("about ")[2].partition(".")[0]
        if turn_of(request):
            return say('{"text": "x", "notes": 1}')
        return calls(("note", json.dumps({"text": name})))

    cases = question_cases(12)
    for order in (cases, cases[::-1]):
        result = evaluate(
            notebook(), order, evaluators=[left], model=FunctionAdapter(answer), concurrency=12
        )
        by_id = {one.case: one.scores["left"] for one in result["base"].results}
        assert by_id == {case.id: f"q{case.id}\n/1" for case in cases}


def test_evaluators_cannot_change_what_others_see() -> None:
    @dataclass
    class Words:
        words: list[str]

    words = MarkdownSection[Words](title="W", template="Answer: $words", key="w")
    template = PromptTemplate[Words](ns="evals", key="words", sections=[words])

    def spoils(case: Case, run: EvalRun[Words]) -> bool:
        (given,) = case.params
        assert isinstance(given, Words)
        assert run.output is not None
        tags: Any = case.metadata["tags"]
        for values in (given.words, case.expected["words"], run.output.words, tags):
            values.append("spoilt")
        case.expected.clear()
        return True

    def sees(case: Case, run: EvalRun[Words]) -> str:
        return f"{case.params} {case.expected} {case.metadata} {run.output}"

    case = Case(id="1", params=[Words(["a"])], expected={"words": ["a"]}, metadata={"tags": ["b"]})
    model = FunctionAdapter(lambda *_: say('{"words": ["c"]}'))
    result = evaluate(
        template, [case], evaluators=[spoils, sees], model=model, repeats=2, concurrency=1
    )
    assert [one.scores["spoils"] for one in result["base"].results] == [True] * 2
    (seen,) = {one.scores["sees"] for one in result["base"].results}
    assert "spoilt" not in f"{seen} {case}"
    assert len(set(model.prompts)) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeats": 0}, "repeats must be at least 1, got 0"),
        ({"repeats": -1}, "repeats must be at least 1, got -1"),
        ({"concurrency": 0}, "concurrency must be at least 1, got 0"),
        ({"timeout": 0}, "timeout must be more than 0 seconds"),
        ({"max_wait": float("nan")}, "max_wait must be more than 0 seconds"),
        ({"budget": Budget(max_tool_calls=3)}, "cannot have max_tool_calls"),
        ({"budget": Budget(max_input_tokens=0)}, "max_input_tokens must be more than 0"),
        ({"budget": Budget(max_cost=0)}, "max_cost must be more than 0, got 0"),
        ({"budget": Budget(max_cost=1.0)}, "the price of 'm' is unknown"),
        ({"variants": [Variant(name="a"), Variant(name="a")]}, "two variants have the name 'a'"),
        ({"variants": [Variant(name="a"), Variant(name="b", settings=ModelSettings(timeout=3))]},
         "the variants 'a' and 'b' do not differ"),
        ({"variants": [Variant(name="a", tag="missing")]}, "no overrides are stored under the tag"),
        ({"model": None, "variants": [Variant(name="a", model=FunctionAdapter(echo))],
          "evaluators": [judge("Short.")]}, "the judge 'judge' has no model"),
        ({"evaluators": [is_right, is_right]}, "two evaluators have the name 'is_right'"),
        ({"cases": []}, "has no cases"),
        ({"cases": [Case(id="1"), Case(id="2"), *question_cases(1)]},
         "2 cases cannot be run:\ncase '1': the prompt needs params of Question\ncase '2'"),
        ({"cases": [Case(id="1"), Case(id="2")]},
         "^no case can be run: the prompt needs params of Question$"),
        ({"cases": [Case(id="1", params=(Note("x"),))]}, "No section uses Note"),
        ({"cases": [replace(question_cases(1)[0], files={"a": b""})]}, "no filesystem"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_cannot_work_is_rejected_before_the_first_request(
    options: dict[str, Any], message: str
) -> None:
    model = FunctionAdapter(echo)
    given = dict(options)
    cases = given.pop("cases", question_cases(1))
    given.setdefault("model", model)
    with pytest.raises(ValueError, match=message):
        evaluate(questions(), cases, **given)
    assert model.asked == 0


def test_a_misspelt_option_is_named() -> None:
    options: Any = {"repeat": 5}
    with pytest.raises(TypeError, match="did you mean 'repeats'"):
        evaluate(questions(), question_cases(1), model=FunctionAdapter(echo), **options)


def test_evaluate_in_a_running_loop_names_the_async_function() -> None:
    async def main() -> Experiment:
        with pytest.raises(RuntimeError, match="await evaluate_async"):
            evaluate(questions(), question_cases(1), model=FunctionAdapter(echo))
        return await evaluate_async(questions(), question_cases(1), model=FunctionAdapter(echo))

    assert len(asyncio.run(main())["base"].results) == 1


def test_a_plain_tool_that_blocks_does_not_keep_its_worker() -> None:
    def block() -> str:
        """Blocks."""
        time.sleep(3)
        return "late"

    template = PromptTemplate(
        ns="evals",
        key="blocking",
        sections=[MarkdownSection[Question](title="Q", template="$text", tools=[block], key="q")],
    )

    async def main() -> tuple[Experiment, float]:
        started = time.monotonic()
        result = await evaluate_async(
            template,
            question_cases(2),
            model=FunctionAdapter(lambda *_: calls(("block", "{}"))),
            concurrency=1,
            timeout=0.3,
        )
        return result, time.monotonic() - started

    result, seconds = asyncio.run(main())
    assert [one.outcome for one in result["base"].results] == ["failed"] * 2
    assert seconds < 2


def test_code_that_decides_about_the_prompt_is_part_of_the_key(tmp_path: Path) -> None:
    def template(days: int, visible: bool, summary: bool) -> PromptTemplate[None]:
        def first() -> str:
            """Find."""
            return "1"

        def second() -> str:
            """Find."""
            return "2"

        def yes() -> bool:
            return True

        def no() -> bool:
            return False

        tool = replaced(first if days == 1 else second, "find")
        return PromptTemplate(
            ns="evals",
            key="code",
            sections=[
                MarkdownSection[Question](title="Q", template="$text", tools=[tool], key="q"),
                MarkdownSection(title="A", template="a", enabled=yes if visible else no, key="a"),
                MarkdownSection(
                    title="B",
                    template="b",
                    summary="B.",
                    key="b",
                    visibility=SectionVisibility.SUMMARY if summary else SectionVisibility.FULL,
                ),
            ],
        )

    model = FunctionAdapter(lambda *_: say("x"))
    for number, arguments in enumerate(
        [(1, True, True), (2, True, True), (1, False, True), (1, True, False)], start=1
    ):
        for _ in range(2):
            evaluate(template(*arguments), question_cases(1), model=model, folder=tmp_path)
        assert model.asked == number


def replaced(function: Callable[[], str], name: str) -> Callable[[], str]:
    function.__name__ = name
    return function


def asking(**options: Any) -> PromptTemplate[None]:
    """Returns a prompt with one section, whose other arguments are given."""
    given: dict[str, Any] = {"title": "Q", "template": "Answer: $text", "key": "q", **options}
    return PromptTemplate(ns="evals", key="k", sections=[MarkdownSection[Question](**given)])


def look() -> str:
    """Look."""
    return "1"


def look_again() -> str:
    """Look."""
    return "2"


def look_at(number: int) -> Callable[[], str]:
    def look() -> str:
        """Look."""
        return f"{number}"

    return look


def looking(number: int) -> str:
    """Look."""
    return f"{number}"


@dataclass(frozen=True)
class Shelf:
    number: int

    def look(self) -> str:
        """Look."""
        return f"{self.number}"

    def __call__(self) -> bool:
        return self.number > 1


def nesting(number: int) -> PromptTemplate[None]:
    inner = asking(title=f"{number}", key="inner")
    return asking(tools=[Tool.from_prompt(inner, name="ask")])


@pytest.mark.parametrize(
    ("part", "make"),
    [
        ("title", lambda number: asking(title=f"{number}")),
        ("default params", lambda number: asking(default_params=Question(f"{number}"))),
        ("literal text", lambda number: asking(literal=number > 1, params_type=Question)),
        ("condition's value", lambda number: asking(enabled=number == 1)),
        ("condition's closure", lambda number: asking(enabled=lambda: number == 1)),
        ("condition's object", lambda number: asking(enabled=Shelf(number))),
        ("named function", lambda number: asking(
            tools=[tool(look if number == 1 else look_again, name="look")]
        )),
        ("closure", lambda number: asking(tools=[look_at(number)])),
        ("partial", lambda number: asking(tools=[tool(partial(looking, number), name="look")])),
        ("method's object", lambda number: asking(tools=[Shelf(number).look])),
        ("nested prompt", nesting),
    ],
)  # fmt: skip
def test_all_parts_of_a_prompt_and_the_values_of_its_functions_are_part_of_the_key(
    tmp_path: Path, part: str, make: Callable[[int], PromptTemplate[None]]
) -> None:
    model = FunctionAdapter(lambda *_: say(part))
    for asked, number in enumerate((1, 2), start=1):
        for _ in range(2):
            evaluate(make(number), question_cases(1), model=model, folder=tmp_path)
        assert model.asked == asked


def test_params_that_a_function_binds_are_part_of_the_key(tmp_path: Path) -> None:
    template = questions()
    model = FunctionAdapter(echo)
    result = evaluate(
        lambda case: template.bind(Question("quiet")),
        [Case(id="1", message="hello")],
        evaluators=[evaluator(name="text")(lambda case, run: run.text)],
        variants=[
            Variant(name="quiet"),
            Variant(name="loud", prompt=lambda case: template.bind(Question("LOUD"))),
        ],
        model=model,
        folder=tmp_path,
    )
    assert values(result, "quiet", "text") == ["quiet"]
    assert values(result, "loud", "text") == ["LOUD"]


def test_two_processes_that_score_one_folder_do_not_mix_their_runs(tmp_path: Path) -> None:
    model = FunctionAdapter(echo)
    evaluate(questions(), question_cases(4), model=model, folder=tmp_path)

    @evaluator(name="slow")
    async def slow(case: Case, run: EvalRun) -> bool:
        await asyncio.sleep(0.4)
        return case.expected in run.text

    async def main() -> list[Experiment]:
        return await asyncio.gather(
            *[
                evaluate_async(
                    questions(), question_cases(4), evaluators=[slow], model=model, folder=tmp_path
                )
                for _ in range(2)
            ]
        )

    for result in asyncio.run(main()):
        assert values(result, score="slow") == [True] * 4


@pytest.mark.parametrize("damage", ["middle", "left", "format"])
def test_a_damaged_log_is_never_scored(tmp_path: Path, damage: str) -> None:
    model = FunctionAdapter(echo)
    evaluate(questions(), question_cases(1), model=model, folder=tmp_path)
    (log,) = (tmp_path / "runs").iterdir()
    lines = log.read_text().splitlines(keepends=True)
    if damage == "middle":
        lines[1] = lines[1][:-9] + "\n"
    elif damage == "left":
        lines = [line for line in lines if '"left"' not in line]
    else:
        lines[0] = lines[0].replace('"format": 1', '"format": 2')
    log.write_text("".join(lines))
    result = evaluate(
        questions(), question_cases(1), evaluators=[is_right], model=model, folder=tmp_path
    )
    (one,) = result["base"].results
    if damage == "format":
        assert "of another version; use another folder" in one.error
        assert log.read_text() == "".join(lines)
    else:
        assert one.scores == {"is_right": True}


@pytest.mark.parametrize(
    "tail", ['{"ended": {}}', '{"ended": 5}', '{"scores": 5}', '{"scores": {"a": {}}}', '{"ended"']
)
def test_line_that_no_experiment_wrote_after_a_runs_end_changes_nothing(
    tmp_path: Path, tail: str
) -> None:
    model = FunctionAdapter(echo)
    for _ in range(2):
        result = evaluate(
            questions(), question_cases(1), evaluators=[is_right], model=model, folder=tmp_path
        )
        (one,) = result["base"].results
        assert (one.scores, one.error) == ({"is_right": True}, "")
        (log,) = (tmp_path / "runs").iterdir()
        log.write_text(f"{log.read_text()}{tail}\n")
    assert model.asked == 1


def test_a_run_that_cannot_begin_fails_alone(tmp_path: Path) -> None:
    first, second = (
        Case(id="1", params=(Question("q1"),), files={"a": b"", "a/b": b""}),
        Case(id="2", params=(Question("q2"),), files={"given.txt": b"x"}),
    )
    result = evaluate(
        notebook(), [first, second], model=FunctionAdapter(write_notes), folder=tmp_path
    )
    assert [one.outcome for one in result["base"].results] == ["failed", "answered"]
    assert "a/b" in result["base"].results[0].error


# --- budget and pace

PRICE = 0.01


def price(usage: TokenUsage, model: str) -> float | None:
    return usage.total_tokens * PRICE / 15 if model == "m" else None


def test_the_budget_holds_for_all_runs_together_and_inside_a_run() -> None:
    async def answer(request: ProviderRequest, text: str) -> AssistantMessage:
        await asyncio.sleep(0.001)
        return calls(("note", '{"text": "again"}'))

    model = FunctionAdapter(answer)
    result = evaluate(
        notebook(),
        question_cases(16),
        model=model,
        concurrency=16,
        prices=price,
        budget=Budget(max_cost=50 * PRICE),
    )
    assert 40 <= model.asked <= 51  # the estimate of a run's first request is rough
    assert result.spent.cost is not None
    assert result.spent.cost <= 51 * PRICE
    assert not result.is_complete
    assert {one.outcome for one in result["base"].results} == {"unrun"}
    assert "start the experiment again" in result["base"].results[0].error


def test_a_budget_of_tokens_works_without_prices() -> None:
    model = FunctionAdapter(echo)
    result = evaluate(
        questions(), question_cases(200), model=model, budget=Budget(max_tokens=1_500)
    )
    assert not result.is_complete
    assert 1_500 - 600 <= result.spent.usage.total_tokens <= 1_500


@pytest.mark.parametrize("concurrency", [1, 8])
def test_a_request_that_is_too_large_does_not_stop_those_that_fit(concurrency: int) -> None:
    long = Case(id="long", params=(Question("x" * 80_000),))

    async def answer(request: ProviderRequest, text: str) -> AssistantMessage:
        await asyncio.sleep(0.001)
        return echo(request, text)

    model = FunctionAdapter(answer)
    result = evaluate(
        questions(),
        [question_cases(1)[0], long, *question_cases(20)[1:]],
        model=model,
        concurrency=concurrency,
        budget=Budget(max_tokens=10_000),
    )
    outcomes = {one.case: one.outcome for one in result["base"].results}
    assert outcomes.pop("long") == "unrun"
    assert set(outcomes.values()) == {"answered"}
    assert not result.is_complete
    assert model.asked == 20


def test_a_run_whose_nested_run_was_not_allowed_is_not_run_and_begins_again(tmp_path: Path) -> None:
    text = f"Research: $topic {'x' * 40_000}"
    research = PromptTemplate(
        ns="evals",
        key="long",
        sections=[MarkdownSection[Topic](title="T", template=text, key="t")],
    )
    tools = [Tool.from_prompt(research, name="research")]
    template = PromptTemplate(
        ns="evals",
        key="nested",
        sections=[MarkdownSection[Question](title="Q", template="$text", key="q", tools=tools)],
    )

    def answer(request: ProviderRequest, text: str) -> AssistantMessage:
        if "Research:" in text:
            return say("blue")
        if not turn_of(request):
            return calls(("research", '{"topic": "the sky"}'))
        return say("blue" if "blue" in str(request.transcript) else "not allowed")

    def run(tokens: int) -> RunResult:
        result = evaluate(
            template,
            question_cases(1),
            evaluators=[evaluator(name="text")(lambda case, run: run.text)],
            model=FunctionAdapter(answer),
            budget=Budget(max_tokens=tokens),
            folder=tmp_path,
        )
        return result["base"].results[0]

    assert run(5_000).outcome == "unrun"
    assert run(50_000).scores == {"text": "blue"}


def test_requests_that_fit_wait_for_reservations_to_be_returned() -> None:
    async def answer(request: ProviderRequest, text: str) -> AssistantMessage:
        await asyncio.sleep(0.01)
        return echo(request, text)

    long = [Case(id=f"long{number}", params=(Question("x" * 20_000),)) for number in range(3)]
    result = evaluate(
        questions(),
        [*long, *question_cases(20)],
        model=FunctionAdapter(answer),
        concurrency=23,
        prices=price,
        budget=Budget(max_tokens=6_000, max_cost=4.1),
    )
    assert result.is_complete  # each fits, but not with the estimates of the others
    assert result.spent.calls == 23


def test_a_budget_is_that_of_one_call(tmp_path: Path) -> None:
    model = FunctionAdapter(echo)

    def run() -> Experiment:
        return evaluate(
            questions(),
            question_cases(25),
            model=model,
            budget=Budget(max_calls=10),
            folder=tmp_path,
        )

    every = [run() for _ in range(3)]
    assert [result.spent.calls for result in every] == [10, 10, 5]
    assert [result.is_complete for result in every] == [False, False, True]


def test_what_is_spent_now_is_not_what_the_runs_cost(tmp_path: Path) -> None:
    model = FunctionAdapter(echo)
    for count, spent in ((3, 3), (4, 1), (4, 0)):
        result = evaluate(
            questions(), question_cases(count), model=model, prices=price, folder=tmp_path
        )
        assert result.spent.calls == spent
        assert result["base"].usage.cost == pytest.approx(count * PRICE)
        assert result["base"].usage.calls == count


def test_cached_tokens_are_part_of_the_input() -> None:
    def full_price(usage: TokenUsage, model: str) -> float:
        fresh = usage.input_tokens - usage.cached_tokens
        return fresh * 1.0 + usage.cached_tokens * 0.1 + usage.output_tokens * 2.0

    usage = TokenUsage(10, 20, cached_tokens=5)
    result = evaluate(
        questions(),
        question_cases(1),
        model=FunctionAdapter(lambda *_: say("x", usage)),
        prices=full_price,
    )
    assert result.spent.usage.total_tokens == 30
    assert result.spent.cost == pytest.approx(5 + 0.5 + 40)


def test_spent_tool_calls_are_those_of_this_experiment(tmp_path: Path) -> None:
    def answer(request: ProviderRequest, text: str) -> AssistantMessage:
        both = ("find", '{"key": "a"}'), ("find", '{"key": "b"}')
        return say("x") if turn_of(request) else calls(*both)

    for count, spent in ((1, 2), (1, 0), (3, 4)):
        result = evaluate(
            described("Find."),
            question_cases(count),
            model=FunctionAdapter(answer),
            folder=tmp_path,
        )
        assert result.spent.tool_calls == spent
        assert result["base"].usage.tool_calls == 2 * count


def test_an_unknown_price_is_never_zero() -> None:
    result = evaluate(
        questions(), question_cases(2), model=FunctionAdapter(echo, model="x"), prices=price
    )
    assert result.spent.cost is None
    assert result["base"].usage.cost is None


def test_all_workers_pause_when_one_is_refused() -> None:
    times = list[float]()
    refused = list[float]()

    async def answer(request: ProviderRequest, text: str) -> Any:
        times.append(time.monotonic())
        number = len(times)
        await asyncio.sleep(0.01)
        if number == 20:
            refused.append(time.monotonic())
            return throttled(0.6)
        return echo(request, text)

    waits = list[Progress]()
    result = evaluate(
        questions(),
        question_cases(60),
        evaluators=[is_right],
        model=FunctionAdapter(answer),
        concurrency=16,
        progress=waits.append,
    )
    assert values(result) == [True] * 60
    later = [at - refused[0] for at in times if at > refused[0]]  # those before had begun
    assert min(later) >= 0.6
    assert sum(at < min(later) + 0.009 for at in later) == 1  # then one, not all of them
    assert any(progress.waiting_until for progress in waits)


def test_a_pause_that_is_too_long_is_a_failure_of_the_provider(tmp_path: Path) -> None:
    refuses = True

    def answer(request: ProviderRequest, text: str) -> Any:
        return throttled(3600) if refuses and "q1" in text else echo(request, text)

    model = FunctionAdapter(answer)
    started = time.monotonic()
    options: dict[str, Any] = {"model": model, "folder": tmp_path, "concurrency": 1}
    result = evaluate(questions(), question_cases(3), **options)
    assert time.monotonic() - started < 2
    assert [one.outcome for one in result["base"].results] == ["answered", "provider", "provider"]
    assert "pass max_wait=3600 to evaluate" in result["base"].results[2].error
    assert model.asked == 2  # the provider is not asked before the time that it has named
    refuses = False
    assert evaluate(questions(), question_cases(3), **options).reused == 1


def test_a_provider_that_always_asks_for_no_pause_is_not_asked_forever() -> None:
    model = FunctionAdapter(lambda *_: throttled(0))
    result = evaluate(questions(), question_cases(1), model=model, max_wait=1)
    assert result["base"].results[0].outcome == "provider"
    assert model.asked == 5  # after pauses of 0.05, 0.1, 0.2 and 0.4 seconds


@pytest.mark.parametrize("budget", [None, Budget(max_cost=5)])
@pytest.mark.parametrize("price", [float("nan"), float("inf"), -1.0, "1"])
def test_price_that_cannot_be_one_is_rejected_before_the_first_request(
    price: Any, budget: Budget | None
) -> None:
    model = FunctionAdapter(echo)
    options: EvaluateOptions = {"model": model, "prices": lambda *_: price, "budget": budget}
    with pytest.raises(ValueError, match=r"^prices returned .* for a request to 'm'"):
        evaluate(questions(), question_cases(1), **options)
    assert model.asked == 0


def test_prices_that_raise_for_an_answer_do_not_keep_other_runs_waiting() -> None:
    def fails(usage: TokenUsage, model: str) -> float:
        return 0.001 if usage.total_tokens != 15 else 1 / 0

    result = evaluate(
        questions(),
        question_cases(3),
        model=FunctionAdapter(echo),
        prices=fails,
        budget=Budget(max_cost=5),
    )
    assert [one.outcome for one in result["base"].results] == ["failed"] * 3
    assert "ZeroDivisionError" in result["base"].results[0].error


def test_cost_of_a_run_keeps_its_known_part_and_counts_the_requests_without_a_price() -> None:
    def named(request: ProviderRequest, text: str) -> AssistantMessage:
        model = "m" if turn_of(request) % 2 else "other"
        return replace(write_notes(request, text), model=model)

    cases = [Case(id="1", params=(Question("q"),))]
    result = evaluate(notebook(), cases, model=FunctionAdapter(named), prices=price)
    spent = result.spent
    assert (spent.calls, spent.cost) == (5, None)
    assert spent.known_cost == pytest.approx(2 * PRICE)
    assert spent.unpriced == {"other": 3}
    usage = result["base"].usage
    assert (usage.known_cost, usage.unpriced) == (spent.known_cost, spent.unpriced)
    again = parse_experiment("".join(experiment_json(result)))
    assert (again.spent, again["base"].usage) == (spent, usage)


def test_waiting_for_other_requests_does_not_use_up_the_patience_of_a_request() -> None:
    refused = dict[str, bool]()
    model_is_free = time.monotonic()

    async def answer(request: ProviderRequest, text: str) -> Any:
        """Refuses each question once, and takes long to answer, one at a time."""
        nonlocal model_is_free
        if not refused.setdefault(text, False) and "q0" not in text:
            refused[text] = True
            return throttled(0.05)
        model_is_free = max(model_is_free, time.monotonic()) + 0.15
        await asyncio.sleep(model_is_free - time.monotonic())
        return echo(request, text)

    result = evaluate(
        questions(),
        question_cases(8),
        evaluators=[is_right],
        model=FunctionAdapter(answer),
        concurrency=8,
        max_wait=0.3,
    )
    assert values(result) == [True] * 8


def test_a_request_that_is_refused_at_random_has_one_result() -> None:
    random = Random(5)  # noqa: S311 - which bytes and delays, not secrets

    def answer(request: ProviderRequest, text: str) -> Any:
        return throttled(0.001) if random.random() < 0.3 else echo(request, text)

    result = evaluate(
        questions(),
        question_cases(30),
        evaluators=[is_right],
        model=FunctionAdapter(answer),
        repeats=2,
        concurrency=8,
    )
    pairs = [(one.case, one.repeat) for one in result["base"].results]
    assert len(pairs) == len(set(pairs)) == 60
    assert values(result) == [True] * 60
    assert result.spent.calls == 60


# --- variants


def test_variants_run_beside_each_other_on_the_same_cases(tmp_path: Path) -> None:
    loud = questions(text="Answer loudly: $text")
    result = evaluate(
        questions(),
        question_cases(3),
        evaluators=[is_right],
        model=FunctionAdapter(echo),
        variants=[
            Variant(name="plain"),
            Variant(name="loud", prompt=loud),
            Variant(name="other", model=FunctionAdapter(lambda *_: say("?"), model="n")),
            Variant(name="cold", settings=ModelSettings(temperature=0, seed=7)),
        ],
        folder=tmp_path,
    )
    assert values(result, "plain") == [True] * 3
    assert values(result, "other") == [False] * 3
    assert result["loud"].cases == result["plain"].cases
    assert result["other"].settings["model"] == "n"
    assert result["cold"].settings["settings"] == "temperature=0, seed=7"


def test_a_function_makes_the_prompt_of_each_case() -> None:
    template = questions()
    model = FunctionAdapter(echo)
    result = evaluate(
        lambda case: template.bind(Question(f"{case.message}!")),
        Dataset([Case(id="a", message="hello")]),
        evaluators=[evaluator(name="text")(lambda case, run: run.text)],
        model=model,
    )
    assert values(result, score="text") == ["hello!"]


def test_two_experiments_in_one_folder_at_once_keep_their_own_results(tmp_path: Path) -> None:
    model = FunctionAdapter(echo)

    async def main() -> list[Experiment]:
        return await asyncio.gather(
            *[
                evaluate_async(
                    questions(text=f"{number}. Answer: $text"),
                    question_cases(5),
                    evaluators=[is_right],
                    model=model,
                    folder=tmp_path,
                )
                for number in (1, 2, 1)
            ]
        )

    first, second, third = asyncio.run(main())
    assert values(first) == values(second) == values(third) == [True] * 5
    assert without_times(first) == without_times(third) != without_times(second)
    assert model.asked == 10


def test_logs_of_other_cases_are_named_and_not_mixed_in(tmp_path: Path) -> None:
    model = FunctionAdapter(echo)
    evaluate(questions(), question_cases(5), model=model, folder=tmp_path)
    log = next((tmp_path / "runs").iterdir())
    shutil.copy(log, log.with_name("copy.jsonl"))
    result = evaluate(
        questions(), question_cases(2), evaluators=[is_right], model=model, folder=tmp_path
    )
    assert len(values(result)) == 2
    assert any("4 runs" in note and "not of this experiment" in note for note in result.notes)


def test_the_progress_counts_runs_and_leaves_out_reused_ones_from_the_time(tmp_path: Path) -> None:
    seen = list[Progress]()
    model = FunctionAdapter(echo)
    evaluate(questions(), question_cases(6), model=model, folder=tmp_path)
    evaluate(
        questions(),
        question_cases(10),
        model=model,
        folder=tmp_path,
        progress=seen.append,
        concurrency=1,
    )
    assert [one.done for one in seen] == [*range(1, 11)]
    assert [one.reused for one in seen] == [1, 2, 3, 4, 5, 6, 6, 6, 6, 6]
    assert all(one.seconds_left is None for one in seen[:6])
    assert seen[-1].seconds_left == 0
    assert seen[-1].total == 10
