"""Ready-made evaluators, on runs with values of every kind and on failed runs."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.errors import SerdeError
from weakincentives.evals.cases import Case
from weakincentives.evals.evaluators import (
    called,
    called_in_order,
    contains,
    cost_below,
    equals,
    file_equals,
    matches_schema,
    not_called,
    not_contains,
    opened,
    seconds_below,
    state_equals,
)
from weakincentives.evals.scores import EvalCall, EvalRun, Evaluator, Value
from weakincentives.evals.scoring import Scores, score
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.limits import RunUsage
from weakincentives.runtime.session import Session

FAILURE = PromptEvaluationError("the tool failed", phase="response", code="output")


@dataclass(frozen=True)
class Order:
    product: str
    count: int = 1


def run_of(
    text: str = "",
    *calls: tuple[str, Mapping[str, Any]],
    cost: float | None = None,
    **options: Any,
) -> EvalRun[Any]:
    return EvalRun(
        output=options.pop("output", None),
        text=text,
        session=options.pop("session", None) or Session(),
        calls=tuple(
            EvalCall(name=name, arguments=arguments, text="", success=False)
            for name, arguments in calls
        ),
        usage=RunUsage(calls=1, cost=cost),
        **options,
    )


def scores_of(one: Evaluator, run: EvalRun[Any], case: Case = Case(id="1")) -> Scores:  # noqa: B008 - a value
    return asyncio.run(score(case, run, one))


def value_of(one: Evaluator, run: EvalRun[Any], case: Case = Case(id="1")) -> Value:  # noqa: B008 - a value
    """Returns the score, which always has a reason."""
    scores = scores_of(one, run, case)
    assert scores.errors == {}
    assert scores.reasons[one.name]
    return scores.values[one.name]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@given(JSON, JSON)
def test_equals_is_equality_as_json(output: Any, expected: Any) -> None:
    applies = expected is not None
    run = run_of("null" if output is None else "", output=output)
    value = value_of(equals(), run, Case(id="1", expected=expected))
    same = repr(output) == repr(expected) or (
        isinstance(output, dict | list) and repr(sorted_json(output)) == repr(sorted_json(expected))
    )
    assert value == (same if applies else None)


def sorted_json(value: Any) -> Any:
    match value:
        case dict():
            return {key: sorted_json(value[key]) for key in sorted(value)}
        case list():
            return [sorted_json(item) for item in value]
        case _:
            return value


def test_equals_compares_a_dataclass_with_a_mapping() -> None:
    case = Case(id="1", expected={"count": 2.0, "product": "tea"})
    assert value_of(equals(), run_of(output=Order("tea", 2)), case) is True
    assert value_of(equals(), run_of(output=Order("tea", 3)), case) is False


def test_equals_compares_the_text_of_a_prompt_without_an_output_type() -> None:
    assert value_of(equals("tea"), run_of("tea")) is True
    assert value_of(equals(lambda case: case.id), run_of("tea")) is False


def test_equals_does_not_apply_without_an_expected_value() -> None:
    assert value_of(equals(), run_of("tea")) is None


@pytest.mark.parametrize(
    "one",
    [
        equals(lambda _: None),
        contains("tea", lambda case: case.expected),
        not_contains(lambda case: case.expected),
        called_in_order(lambda case: case.expected),
        state_equals(Order, lambda case: case.expected),
        file_equals("a.txt", lambda case: case.expected),
    ],
)
def test_evaluator_does_not_apply_to_a_case_whose_expected_value_is_none(one: Evaluator) -> None:
    assert value_of(one, run_of("tea")) is None


def test_contains_all_texts() -> None:
    run = run_of("Tea and milk")
    assert value_of(contains("Tea", "milk"), run) is True
    assert value_of(contains("tea"), run) is False
    assert value_of(contains(lambda case: case.expected), run, Case(id="1", expected="Tea")) is True
    assert scores_of(contains("Tea", "sugar"), run).reasons == {"contains": "missing: ['sugar']"}


def test_empty_output_is_scored_and_a_failed_run_passes_no_negative_check() -> None:
    assert value_of(not_contains("sorry"), run_of("")) is True
    assert value_of(not_contains("sorry"), run_of("sorry!")) is False
    assert value_of(contains("sorry"), run_of("")) is False
    failed = run_of("", error=FAILURE, seconds=1.0, cost=0.1)
    for check in (
        not_contains("sorry"),
        not_called("buy"),
        cost_below(0.2),
        seconds_below(2),
        equals(""),
    ):
        assert scores_of(check, failed).values == {}


def test_failed_run_fails_checks_that_it_has_already_missed() -> None:
    failed = run_of("", ("buy", {}), error=FAILURE, seconds=1.0, cost=0.1)
    for check in (not_called("buy"), cost_below(0.1), seconds_below(0.5)):
        assert value_of(check, failed) is False


def test_called_ignores_ids_and_other_arguments() -> None:
    run = run_of("", ("buy", {"item": "tea", "count": 1.0}), ("buy", {"item": "milk"}))
    assert value_of(called("buy", {"count": 1}), run) is True
    assert value_of(called("buy", {"count": True}), run) is False
    assert value_of(called("buy", {"item": "tea", "size": None}), run) is False
    assert value_of(called("sell"), run) is False
    assert value_of(not_called("sell"), run) is True
    assert value_of(not_called("buy", {"item": "milk"}), run) is False
    from_case = called("buy", lambda case: {"item": case.expected})
    assert value_of(from_case, run, Case(id="1", expected="milk")) is True


def test_order_of_calls_matters_only_if_asked_for() -> None:
    run = run_of("", ("find", {"q": 1}), ("look", {}), ("buy", {"count": 1}))
    assert value_of(called("buy"), run) is value_of(called("find"), run) is True
    assert value_of(called_in_order(["find", ("buy", {"count": 1.0})]), run) is True
    assert value_of(called_in_order(["buy", "find"]), run) is False
    assert value_of(called_in_order(["find", "find"]), run) is False
    expected = called_in_order(lambda case: case.expected)
    assert value_of(expected, run, Case(id="1", expected=["find", "look"])) is True


@given(st.lists(st.sampled_from("abc"), max_size=6), st.lists(st.sampled_from("abc"), min_size=1))
def test_called_in_order_finds_exactly_the_subsequences(made: list[str], wanted: list[str]) -> None:
    rest = iter(made)
    is_subsequence = all(name in rest for name in wanted)
    run = run_of("", *[(name, {}) for name in made])
    assert value_of(called_in_order(wanted), run) is is_subsequence


def test_opened_section() -> None:
    run = run_of("", opened=("rules.returns",))
    assert value_of(opened("rules.returns"), run) is True
    assert value_of(opened("rules"), run) is False


def test_state_equals_the_values_of_a_type_in_order() -> None:
    session = Session()
    session[Order].append(Order("tea"))
    session[Order].append(Order("milk", 2))
    run = run_of(session=session)
    assert value_of(state_equals(Order, [Order("tea"), Order("milk", 2)]), run) is True
    assert value_of(state_equals(Order, [Order("milk", 2), Order("tea")]), run) is False
    assert value_of(state_equals(Order, [Order("tea")]), run) is False
    case = Case(id="1", expected=[{"product": "tea", "count": 1}, {"product": "milk", "count": 2}])
    assert value_of(state_equals(Order, lambda case: case.expected), run, case) is True


def test_state_and_files_of_a_failed_run_are_scored() -> None:
    files = InMemoryFilesystem()
    files.write_text("notes.txt", "ä\r\n")
    failed = run_of(error=FAILURE, files=files)
    assert value_of(state_equals(Order, []), failed) is True
    assert value_of(file_equals("notes.txt", "ä\r\n"), failed) is True
    assert value_of(opened("rules"), failed) is False


def test_file_equals_its_content() -> None:
    files = InMemoryFilesystem()
    files.write_text("notes.txt", "ä\r\n")
    run = run_of(files=files)
    assert value_of(file_equals("notes.txt", "ä\r\n".encode()), run) is True
    assert value_of(file_equals("notes.txt", "ä\n"), run) is False
    assert value_of(file_equals("other.txt", ""), run) is False
    assert (
        value_of(
            file_equals("notes.txt", lambda case: case.files["a"]),
            run,
            Case(id="1", files={"a": "ä\r\n".encode()}),
        )
        is True
    )


def test_file_of_a_prompt_without_a_filesystem_is_a_score_error() -> None:
    scores = scores_of(file_equals("notes.txt", ""), run_of())
    assert "has no filesystem" in scores.errors["file_notes.txt"]


def test_cost_and_time_are_below_a_limit() -> None:
    assert value_of(cost_below(0.01), run_of(cost=0.009)) is True
    assert value_of(cost_below(0.01), run_of(cost=0.01)) is False
    assert value_of(seconds_below(0.1), run_of(seconds=0.01)) is True
    assert value_of(seconds_below(0.1), run_of(seconds=0.2)) is False


def test_unknown_cost_is_a_score_error() -> None:
    scores = scores_of(cost_below(1), run_of(cost=None))
    assert (scores.values, [*scores.errors]) == ({}, ["cost_below"])


def test_matches_schema() -> None:
    schema = {"type": "object", "properties": {"count": {"maximum": 5}}, "required": ["count"]}
    check = matches_schema(schema)
    assert value_of(check, run_of(output=Order("tea", 2))) is True
    assert value_of(check, run_of(output=Order("tea", 9))) is False
    assert value_of(check, run_of('{"count": 1}')) is True
    assert value_of(check, run_of("five")) is False
    assert value_of(check, run_of("{}")) is False


def test_invalid_schema_is_rejected_before_any_run() -> None:
    with pytest.raises(SerdeError):
        matches_schema({"type": "text"})
