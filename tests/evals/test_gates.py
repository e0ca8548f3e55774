"""Gates: what errors and few cases leave open is inconclusive."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.eval_results import variant
from weakincentives.evals.comparisons import compare
from weakincentives.evals.gates import (
    Gate,
    comparison_gate,
    mean_gate,
    missing_gate,
    rate_gate,
    rate_interval,
)
from weakincentives.evals.reports import comparison_lines
from weakincentives.evals.results import VariantResults
from weakincentives.evals.scores import Scale, Value

type Check = Callable[[VariantResults, str, float], Gate]

ERRORS = variant("base", {"ok": " ".join("1" * 80 + "0" * 10 + "E" * 10)})


@pytest.mark.parametrize(
    ("limit", "result"), [(0.85, "inconclusive"), (0.80, "holds"), (0.95, "fails")]
)
def test_gate_of_a_mean_considers_every_value_that_errors_could_have(
    limit: float, result: str
) -> None:
    gate = mean_gate(ERRORS, "ok", limit)
    assert gate.result == result
    assert gate.reason == f"base ok: mean 0.8 to 0.9, by its errors; limit {limit:g}"


def test_gate_of_a_mean_without_errors_is_decided_by_the_mean() -> None:
    exact = variant("base", {"ok": "11 10 10 11"})
    assert [mean_gate(exact, "ok", limit).result for limit in (0.75, 0.76)] == ["holds", "fails"]


def test_lower_is_better_makes_the_limit_the_highest_mean() -> None:
    costs: list[list[Value]] = [[0.01], [0.02]]
    scales = {"cost": Scale(higher_is_better=False)}
    cheap = variant("base", {"cost": costs}, scales=scales)
    assert [mean_gate(cheap, "cost", it).result for it in (0.02, 0.015, 0.01)] == [
        "holds",
        "holds",
        "fails",
    ]


def test_errors_of_a_score_without_bounds_leave_its_mean_open() -> None:
    numbers: list[list[Value]] = [[5.0], ["E"]]
    gate = mean_gate(variant("base", {"s": numbers}), "s", 1)
    assert gate.result == "inconclusive"
    assert gate.reason == "base s: 1 error, and the score has no bounds"


@pytest.mark.parametrize("gate", [mean_gate, rate_gate])
def test_gate_without_any_score_is_inconclusive(gate: Check) -> None:
    failed = variant("base", {"ok": "F F"})
    assert gate(failed, "ok", 0.5).reason == "base ok: 0 of 2 scored"
    assert gate(failed, "ok", 0.5).result == "inconclusive"


def test_few_cases_cannot_show_a_high_rate_and_the_gate_says_how_many_can() -> None:
    gate = rate_gate(variant("base", {"ok": "1 1 1 1 1"}), "ok", 0.9)
    assert gate.result == "inconclusive"
    assert gate.reason == (
        "base ok: rate 56.6% to 100.0% by 5 cases; limit 90.0%; 5 cases cannot show this rate, "
        "even if all are true: 35 of 35 needed"
    )
    scales = {"ok": Scale(higher_is_better=False)}
    gate = rate_gate(variant("base", {"ok": "0 0"}, scales=scales), "ok", 0.1)
    assert gate.reason.endswith("even if all are false: 0 of 35 needed")
    for count, result in ((34, "inconclusive"), (35, "holds")):
        assert rate_gate(variant("base", {"ok": "1 " * count}), "ok", 0.9).result == result
    assert rate_gate(variant("base", {"ok": "0 " * 20}), "ok", 0.9).result == "fails"


def test_gate_of_a_rate_considers_errors_and_counts_similar_cases_once() -> None:
    assert rate_gate(variant("base", {"ok": "1 " * 40}), "ok", 0.9).result == "holds"
    with_error = variant("base", {"ok": "1 " * 39 + "E"})
    assert rate_gate(with_error, "ok", 0.9).result == "inconclusive"
    similar = variant("base", {"ok": "1 " * 40}, clusters=["a"] * 20 + ["b"] * 20)
    assert "by 2 clusters; limit 90.0%; 2 clusters cannot" in rate_gate(similar, "ok", 0.9).reason
    assert rate_interval(similar, "ok") == pytest.approx((0.342380, 1), abs=1e-5)


def test_invalid_limits_of_rates_are_errors() -> None:
    with pytest.raises(ValueError, match="between 0 and 1, got 1"):
        rate_gate(ERRORS, "ok", 1)
    numbers: list[list[Value]] = [[0.5]]
    scales = {"s": Scale(bounds=(0, 1))}
    with pytest.raises(ValueError, match="'s' must be true or false"):
        rate_gate(variant("base", {"s": numbers}, scales=scales), "s", 0.5)


@pytest.mark.parametrize(
    ("word", "result"), [("1", "holds"), ("0", "fails"), ("E", "inconclusive")]
)
def test_gate_of_a_comparison_fails_for_worse_and_holds_for_better_or_equivalent(
    word: str, result: str
) -> None:
    base = variant("a", {"ok": "0 " * 20 if word == "1" else "1 " * 20})
    compared = compare(base, variant("b", {"ok": f"{word} " * 20}))
    assert comparison_gate(compared).result == result
    scales = {"ok": Scale(margin=0.1)}
    a, b = (variant(name, {"ok": "1 " * 60}, scales=scales) for name in "ab")
    gate = comparison_gate(compare(a, b))
    assert (gate.result, gate.reason) == ("holds", "b against a: ok is equivalent")


def with_keys(one: VariantResults, key: str) -> VariantResults:
    results = [replace(it, key=f"{key}{it.case}{it.repeat}") for it in one.results]
    return replace(one, results=results)


def test_gate_of_a_comparison_says_that_a_margin_is_missing() -> None:
    a, b = (variant(name, {"ok": "1 0 1", "other": "1 1 1"}) for name in "ab")
    gate = comparison_gate(compare(with_keys(a, "a"), with_keys(b, "b")))
    assert (gate.result, gate.reason) == (
        "inconclusive",
        (
            "b against a: ok is inconclusive, other is inconclusive; add cases, or pass --margin "
            "with the difference that does not matter"
        ),
    )
    gate = comparison_gate(compare(a, b, margin=0.1))
    assert gate.reason == "b against a: ok is inconclusive, other is inconclusive"


@pytest.mark.parametrize(
    ("word", "result"),
    [("1", "holds"), ("0", "fails"), ("E", "inconclusive"), ("U", "inconclusive")],
)
def test_gate_holds_if_nothing_differs_unless_the_score_is_worse(word: str, result: str) -> None:
    a, b = variant("a", {"ok": "1 " * 8}), variant("b", {"ok": "1 " + f"{word} " * 7})
    compared = compare(with_keys(a, "same"), with_keys(b, "same"))
    gate = comparison_gate(compared)
    assert gate.result == result
    said = "their prompts, models and settings do not differ"
    assert (said in gate.reason) is (result == "holds")
    assert f"nothing was changed: {said}" in [*comparison_lines(compared)]
    assert not compare(a, b).is_same  # saved without keys


def test_failures_of_an_unchanged_baseline_do_not_stop_its_gate() -> None:
    """Otherwise, no change would pass CI after one run of the baseline had failed."""
    a = with_keys(variant("a", {"ok": "1 " * 7 + "E"}), "same")
    for text, result in {"1 " * 7 + "E": "holds", "1 " * 6 + "E E": "inconclusive"}.items():
        b = with_keys(variant("b", {"ok": text}), "same")
        assert comparison_gate(compare(a, b)).result == result


def test_missing_runs_and_scores_are_inconclusive_without_any_limit() -> None:
    assert missing_gate(variant("a", {"ok": "1 0"})) is None
    for text, reason in {
        "F " * 40: "0 of 40 scored, because no run has an answer",
        "E " * 40: "0 of 40 scored for ok",
        "1 0 U": "1 of 3 runs are missing",
    }.items():
        gate = missing_gate(variant("a", {"ok": text}))
        assert gate is not None
        assert (gate.result, gate.reason) == ("inconclusive", f"a: {reason}")


@given(st.lists(st.sampled_from("10E"), min_size=1, max_size=12), st.floats(0.01, 0.99))
def test_no_value_of_the_errors_contradicts_a_gate(words: list[str], limit: float) -> None:
    def result(text: str, gate: Check) -> str:
        return gate(variant("a", {"ok": text}), "ok", limit).result

    text = " ".join(words)
    if set(words) != {"E"}:
        for gate in (mean_gate, rate_gate):
            found = result(text, gate)
            if found != "inconclusive":
                ends = [result(text.replace("E", bound), gate) for bound in "01"]
                assert ends == [found, found]
