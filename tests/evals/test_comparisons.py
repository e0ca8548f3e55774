"""Comparisons of variants: pairing, refusals, corrections, and errors."""

import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.eval_results import experiment, variant
from weakincentives.evals.comparisons import ComparisonError, compare, compare_all
from weakincentives.evals.gates import comparison_gate
from weakincentives.evals.page import experiment_page
from weakincentives.evals.reports import comparison_lines
from weakincentives.evals.scores import Scale, Value

BASE = variant("base", {"ok": "101 000 111 010 110"})


def verdict(a: str, b: str, **options: bool) -> str:
    result = compare(variant("a", {"ok": a}), variant("b", {"ok": b}), **options)
    return (result.scores["ok"].result or pytest.fail("nothing compared")).verdict


def test_variants_are_paired_by_case_and_not_by_position() -> None:
    other = variant("other", {"ok": "111 010 111 110 111"})
    shuffled = replace(other, results=other.results[::-1])
    for b in (other, shuffled):
        one = compare(BASE, b).scores["ok"]
        assert one.result is not None
        assert one.result.p == pytest.approx(0.016130, abs=1e-5)
        assert one.corrected_p == one.result.p
        assert one.result.verdict == "better"


def test_unequal_cases_are_refused_with_three_lists() -> None:
    a = variant("a", {"ok": "1 1 1"}, digests={"c1": "old"})
    b = variant("b", {"ok": "1 1 1"})
    a = replace(a, cases={"only": a.cases["c0"], "c1": a.cases["c1"], "c2": a.cases["c2"]})
    a = replace(a, results=[replace(a.results[0], case="only"), *a.results[1:]])
    with pytest.raises(ComparisonError) as caught:
        compare(a, b)
    error = caught.value
    assert (error.only_a, error.only_b, error.changed) == (("only",), ("c0",), ("c1",))
    assert str(error) == (
        "cannot compare a with b: only in a: only; only in b: c0; changed cases: c1; to compare "
        "the common cases, pass common_cases=True, or --common-cases to wink compare"
    )
    result = compare(a, b, common_cases=True)
    assert result.left_out == ("c0", "c1", "only")
    assert list(result.b.cases) == ["c2"]
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)


def test_other_judges_and_repeated_results_are_refused_even_for_common_cases() -> None:
    judged = variant("judged", {"ok": "1 1"}, judge="gpt-5")
    with pytest.raises(ComparisonError, match=r"other evaluators or judges: ok$"):
        compare(judged, variant("other", {"ok": "1 1"}, judge="gpt-5-mini"), common_cases=True)
    twice = replace(judged, results=[*judged.results, judged.results[1]])
    with pytest.raises(ComparisonError, match=r"two results for one repeat: c1$"):
        compare(judged, twice, common_cases=True)


def test_long_lists_are_shortened_and_equal_names_are_told_apart() -> None:
    long = variant("base", {"ok": " ".join("1" * 40)})
    with pytest.raises(
        ComparisonError, match=r"with base \(B\): only in base \(B\): .*c14 and 25 more"
    ):
        compare(BASE, long)


def test_another_margin_is_not_another_evaluator() -> None:
    b = variant("b", {"ok": "101 000 111 010 110"}, scales={"ok": Scale(margin=0.4)})
    assert compare(BASE, b).scores["ok"].result is not None


def test_score_of_one_variant_is_named_and_not_compared() -> None:
    b = variant("b", {"ok": "1 1 1 1 1", "new": "1 1 1 1 1"})
    result = compare(variant("a", {"ok": "1 1 1 1 1"}), b)
    assert (list(result.scores), result.uncompared) == (["ok"], ("new",))


def test_errors_that_could_change_the_verdict_make_it_inconclusive() -> None:
    one = compare(
        variant("a", {"ok": "1 1 0 1 0 1 1 0 1 0"}), variant("b", {"ok": "1 1 1 1 E 1 1 E 1 1"})
    ).scores["ok"]
    result = one.result
    assert result is not None
    assert (result.cases, result.of, result.difference) == (8, 10, 0.25)
    assert result.if_errors == pytest.approx((0.2, 0.4))
    assert result.verdict == "inconclusive"


def test_inapplicable_score_in_one_variant_only_counts_as_missing() -> None:
    one = compare(variant("a", {"ok": "1 - - 1"}), variant("b", {"ok": "1 - 1 1"})).scores["ok"]
    assert one.result is not None
    assert (one.result.cases, one.result.of) == (2, 3)


@pytest.mark.parametrize("anytime", [False, True])
def test_score_that_applies_to_no_case_changes_no_verdict(anytime: bool) -> None:
    better = " ".join(["1"] * 8 + ["0"] * 8)
    scores = {"ok": (" ".join("0" * 16), better)}
    alone, more = (
        compare(
            variant("a", {name: a for name, (a, _) in it.items()}),
            variant("b", {name: b for name, (_, b) in it.items()}),
            anytime=anytime,
        )
        for it in (scores, scores | {"none": (" ".join("-" * 16),) * 2})
    )
    assert more.family == alone.family == 1
    assert more.scores["ok"] == alone.scores["ok"]
    assert not more.scores["none"].is_tested
    [row] = [line for line in comparison_lines(more) if line.startswith("none ")]
    assert "  not applicable to any case" in row
    page = "".join(experiment_page(experiment(more.a, more.b), comparisons=[more]))
    assert "none: not applicable to any case." in page
    assert comparison_gate(more) == comparison_gate(alone)


def test_family_is_all_scores_of_all_variants() -> None:
    better = " ".join(["1"] * 8 + ["0"] * 8)
    base = {score: " ".join("0" * 16) for score in ("one", "two", "three")}
    scores = {"one": better, "two": base["two"], "three": better}
    a = variant("a", base)
    [alone, last] = compare_all((a, variant("b", scores)), (a, variant("c", base)))
    assert (alone.family, last.family) == (6, 6)
    one = alone.scores["one"]
    assert one.result is not None
    assert (one.result.p, one.corrected_p) == (0.0078125, 0.046875)
    assert one.result.verdict == "better"
    # with one more score, the same p-value does not suffice
    more = base | {"four": base["one"]}
    a, b, c = (variant(name, it) for name, it in {"a": more, "b": more | scores, "c": more}.items())
    [again, _] = compare_all((a, b), (a, c))
    result = again.scores["one"].result
    assert result is not None
    assert (again.family, result.verdict) == (8, "inconclusive")
    assert result.reason == "p = 0.062 after the correction for 8 comparisons"


def test_errors_are_judged_by_the_corrected_p_value_too() -> None:
    """Alone, the score is better whatever its errors hide; among three, only without errors."""
    worse, better = "0 " * 9 + "1 " * 10, "1 " * 19
    b = {"ok": "1 " * 18 + "E"}
    alone = compare(variant("a", {"ok": worse}), variant("b", b)).scores["ok"].result
    more = dict.fromkeys(("two", "three", "four"), "1 0 " * 9 + "1")
    a, b = {"ok": worse, **more}, {**b, **more}
    several = compare(variant("a", a), variant("b", b)).scores["ok"]
    assert (several.corrected_p or 1) < 0.05
    full = compare(variant("a", a), variant("b", {"ok": better, **more})).scores["ok"].result
    for result, verdict in ((alone, "better"), (full, "better"), (several.result, "inconclusive")):
        assert result is not None
        assert result.verdict == verdict
    assert several.result is not None
    assert several.result.reason == "1 case has errors, which could change the verdict"


def test_inconclusive_verdict_has_the_corrected_p_value_as_its_reason() -> None:
    base: dict[str, Any] = dict.fromkeys(("one", "two"), "0 0 0 0 0 0 0 0")
    scores = {"one": "1 1 1 0 0 0 0 0", "two": "1 1 1 1 0 0 0 0"}
    a, b = variant("a", base), variant("b", scores, scales={"two": Scale(margin=0.1)})
    found = compare(a, b).scores
    assert [one.result and one.result.reason for one in found.values()] == [
        "the corrected p-value 0.25 is not below 0.05, and there is no margin for equivalence",
        (
            "the corrected p-value 0.25 is not below 0.05, and equivalence within the margin 0.1 "
            "is not certain"
        ),
    ]


@given(
    st.lists(st.tuples(st.sampled_from("10EU-"), st.sampled_from("10EU-")), max_size=20),
    st.sampled_from([None, 0.05]),
    st.booleans(),
)
def test_every_inconclusive_verdict_has_a_reason(
    pairs: list[tuple[str, str]], margin: float | None, anytime: bool
) -> None:
    a, b = (variant("ab"[side], {"ok": " ".join(it[side] for it in pairs)}) for side in (0, 1))
    result = compare(a, b, margin=margin, anytime=anytime).scores["ok"].result
    assert result is not None
    assert bool(result.reason) is (result.verdict == "inconclusive") or result.p is not None
    assert result.reason or result.verdict != "inconclusive"


def test_variant_has_no_difference_from_itself() -> None:
    result = compare(BASE, BASE).scores["ok"].result
    assert result is not None
    assert (result.difference, result.cases, result.up, result.down) == (0, 5, (), ())


def test_margin_of_a_score_wins_over_its_scale_and_the_scale_over_the_margin_of_all() -> None:
    rows: dict[str, Any] = dict.fromkeys(("one", "two", "three"), "1 " * 60)
    scales = {"one": Scale(margin=0.001), "two": Scale(margin=0.001)}
    a, b = (variant(name, rows, scales=scales) for name in "ab")

    def margins(margin: float | dict[str, float] | None) -> list[float | None]:
        return [one.margin for one in compare(a, b, margin=margin).scores.values()]

    assert margins(None) == [0.001, 0.001, None]
    assert margins(0.05) == [0.001, 0.001, 0.05]
    assert margins({"": 0.05, "two": 0.02}) == [0.001, 0.02, 0.05]
    result = compare(a, b, margin=0.05).scores
    assert [one.result and one.result.verdict for one in result.values()] == [
        "inconclusive",
        "inconclusive",
        "equivalent",
    ]
    with pytest.raises(ValueError, match=r"no score is 'four', .* the scores are one, two, three"):
        compare(a, b, margin={"four": 0.02})


def test_lower_is_better_turns_the_verdict_and_the_worse_cases() -> None:
    costs: list[list[Value]] = [[0.010 + index / 1e5] for index in range(6)]
    lower: list[list[Value]] = [[0.008 + index / 2e5] for index in range(6)]
    scales = {"cost": Scale(higher_is_better=False)}
    one = compare(
        variant("a", {"cost": costs}, scales=scales), variant("b", {"cost": lower}, scales=scales)
    ).scores["cost"]
    assert one.result is not None
    assert (one.result.verdict, one.worse) == ("better", ())
    assert len(one.result.down) == 6


def test_unbounded_score_with_errors_is_bounded_by_the_values_that_were_found() -> None:
    first: list[list[Value]] = [[float(index)] for index in range(10)]
    second: list[list[Value]] = [[index + 1.5 + index % 2] for index in range(9)]
    one = compare(variant("a", {"s": first}), variant("b", {"s": [*second, ["E"]]})).scores["s"]
    assert one.result is not None
    total = sum(index + 1.5 + index % 2 for index in range(9)) - sum(range(10))
    assert one.result.if_errors == pytest.approx((total / 10, (total + 9.5) / 10))


def test_equal_rates_name_the_repaired_and_the_broken_case() -> None:
    one = compare(
        variant("a", {"ok": " ".join("1111111110")}), variant("b", {"ok": " ".join("0111111111")})
    ).scores["ok"]
    assert one.result is not None
    assert (one.result.difference, one.result.up, one.result.down) == (0, ("c9",), ("c0",))
    assert one.worse == ("c0",)


def test_labels_are_counted_and_not_compared() -> None:
    words: list[list[Value]] = [["formal"], ["casual"], ["formal"]]
    result = compare(variant("a", {"tone": words}), variant("b", {"tone": words}))
    assert (result.family, result.scores["tone"].result) == (0, None)
    assert result.scores["tone"].b.labels == {"formal": 2, "casual": 1}


def test_missing_runs_leave_no_verdict_unless_the_interval_is_for_every_look() -> None:
    zeros, ones = " ".join("0" * 60), " ".join("1" * 58 + "UU")
    assert verdict(zeros, ones) == "inconclusive"
    result = (
        compare(variant("a", {"ok": zeros}), variant("b", {"ok": ones}), anytime=True)
        .scores["ok"]
        .result
    )
    assert result is not None
    assert (result.verdict, result.test, result.p) == ("better", "confidence sequence", None)
    assert verdict(zeros, zeros, anytime=True) == "inconclusive"
    assert verdict(" ".join("1" * 60), " ".join("0" * 60), anytime=True) == "worse"


def test_case_without_results_is_missing_too() -> None:
    a, b = variant("a", {"ok": "0 " * 20}), variant("b", {"ok": "1 " * 20})
    result = compare(a, replace(b, results=b.results[:-2])).scores["ok"].result
    assert result is not None
    assert (result.verdict, result.reason) == ("inconclusive", "runs of 2 cases are missing")


def test_looks_at_more_scores_need_wider_intervals() -> None:
    def width(scores: int) -> float:
        rows = {f"s{index}": "1 0 1 1 0 1 " * 20 for index in range(scores)}
        a, b = variant("a", rows), variant("b", rows)
        result = compare(a, b, anytime=True).scores["s0"].result
        assert result is not None
        assert result.interval is not None
        return result.interval[1] - result.interval[0]

    assert width(1) < width(2) < width(10)


def test_looks_while_runs_are_missing_require_bounds_and_independent_cases() -> None:
    numbers: list[list[Value]] = [[0.5]] * 30
    ones, groups = "1 " * 30, ["a", "b"] * 15
    for scores, clusters in (({"s": numbers}, []), ({"s": ones}, groups)):
        a, b = (variant(name, scores, clusters=clusters) for name in "ab")
        result = compare(a, b, anytime=True).scores["s"].result
        assert result is not None
        assert (result.verdict, result.interval) == ("inconclusive", None)
        assert result.reason.endswith("require a score with bounds, and no clusters")


def test_looks_are_possible_if_each_cluster_has_one_case() -> None:
    a, b = (
        variant(name, {"ok": f"{word} " * 60}, clusters=[f"k{index}" for index in range(60)])
        for name, word in {"a": "0", "b": "1"}.items()
    )
    result = compare(a, b, anytime=True).scores["ok"].result
    assert result is not None
    assert (result.verdict, result.test) == ("better", "confidence sequence")


def test_error_may_be_any_difference_in_looks_while_runs_are_missing() -> None:
    many = " ".join("0" * 40)
    assert verdict(many, " ".join("1" * 40), anytime=True) == "better"
    assert verdict(many, " ".join("1" * 20 + "E" * 20), anytime=True) == "inconclusive"


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_exchanging_the_variants_mirrors_the_comparison(pairs: list[tuple[bool, bool]]) -> None:
    a = variant("a", {"ok": [[one] for one, _ in pairs]})
    b = variant("b", {"ok": [[other] for _, other in pairs]})
    there, back = compare(a, b).scores["ok"], compare(b, a).scores["ok"]
    assert there.result is not None
    assert back.result is not None
    mirrored = {"better": "worse", "worse": "better"}
    verdict = there.result.verdict
    assert back.result.verdict == mirrored.get(verdict, verdict)
    assert back.result.difference == pytest.approx(-(there.result.difference or 0))
    assert (back.result.up, back.result.p) == (there.result.down, there.result.p)


@given(st.integers(1, 5), st.integers(1, 5), st.booleans())
def test_repeating_the_same_result_changes_no_difference(
    first: int, second: int, value: bool
) -> None:
    rows: list[list[Value]] = [[value], [not value], [True]]
    a = variant("a", {"ok": [row * first for row in rows]})
    b = variant("b", {"ok": [row * second for row in rows]})
    result = compare(a, b).scores["ok"].result
    assert result is not None
    assert (result.difference, result.up, result.down) == (0, (), ())
