"""Statistics of comparisons: worked examples, simulations, and other libraries as judges."""

import random
import warnings
from collections.abc import Mapping, Sequence
from math import ceil, isnan, nan
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weakincentives.evals.comparison import (
    Comparison,
    anytime_interval,
    compare_scores,
    holm,
    kappa,
)
from weakincentives.evals.distributions import (
    beta_quantile,
    beta_share,
    sign_test,
    t_quantile,
    t_test,
    wilson,
    z_quantile,
)

TOLERANCE = 1e-6


def cases(text: str) -> dict[str, list[float | None]]:
    """Returns scores by case: words are cases, digits are repeats."""
    return {str(index): [int(digit) for digit in word] for index, word in enumerate(text.split())}


def differences(values: Sequence[float], **options: Any) -> Comparison:
    """Compares scores of 0 with these."""
    zeros = {str(index): [0.0] for index in range(len(values))}
    scores = {str(index): [value] for index, value in enumerate(values)}
    return compare_scores(zeros, scores, bounds=(-1, 1), **options)


def clusters(letters: str) -> Mapping[str, str]:
    return {str(index): letter for index, letter in enumerate(letters)}


def about(*values: float) -> Any:
    first, *others = values
    return pytest.approx(values if others else first, abs=TOLERANCE)


def test_paired_t_finds_what_unpaired_tests_miss() -> None:
    result = compare_scores(cases("101 000 111 010 110"), cases("111 010 111 110 111"))
    assert result.difference == about(0.266667)
    assert result.standard_error == about(0.066667)
    assert result.interval == about(0.081570, 0.451763)
    assert result.p == pytest.approx(0.016130, abs=1e-5)
    assert (result.verdict, result.test, result.df) == ("better", "paired t", 4)


def test_each_case_weighs_the_same_whatever_its_repeats() -> None:
    result = compare_scores(cases("111111 00 010 1"), cases("111110 10 111 1"))
    assert (result.difference, result.standard_error) == about(0.25, 0.198373)
    assert result.interval == about(-0.381311, 0.881311)
    assert result.p == pytest.approx(0.296689, abs=1e-5)
    assert result.verdict == "inconclusive"


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1.5, 1.5], "no standard error: no variation between cases"),
        ([0.4], "no standard error: 1 case"),
        ([], "no case has scores of both variants"),
    ],
)
def test_without_a_standard_error_the_verdict_is_inconclusive(
    values: list[float], reason: str
) -> None:
    result = differences(values)
    assert (result.verdict, result.reason, result.p) == ("inconclusive", reason, None)
    assert (result.standard_error, result.interval) == (None, None)
    assert result.difference == (sum(values) / len(values) if values else None)


def test_two_cases_have_a_very_wide_interval() -> None:
    result = differences([0.1, 0.3])
    assert (result.difference, result.standard_error) == about(0.2, 0.1)
    assert result.interval == about(-1.070620, 1.470620)
    assert result.p == pytest.approx(0.295167, abs=1e-5)
    assert result.verdict == "inconclusive"


@pytest.mark.parametrize(("count", "share"), [(20, 0.139108), (60, 0.048703)])
def test_ties_decide_by_the_largest_share_of_changes_that_they_allow(
    count: int, share: float
) -> None:
    assert beta_quantile(0.95, 1, count) == about(share)
    right = {str(index): [1.0, 1.0] for index in range(count)}
    verdicts = [compare_scores(right, right, margin=share + step).verdict for step in (-1e-4, 1e-4)]
    assert verdicts == ["inconclusive", "equivalent"]


@pytest.mark.parametrize("repeats", [1, 3])
@pytest.mark.parametrize("letters", ["", "ABCDEF", "AABBCCDDEEFF", "AAABCDEF"])
def test_total_breakage_is_worse_by_the_exact_sign_test(repeats: int, letters: str) -> None:
    count = len(letters) or 6
    right, wrong = (cases(f"{digit * repeats} " * count) for digit in "10")
    result = compare_scores(right, wrong, clusters=clusters(letters))
    assert (result.difference, result.p) == (-1, 2 / 2**6)
    assert (result.verdict, result.reason) == ("worse", "")
    is_clustered = len({*letters}) < len(letters)
    unit = "clusters" if is_clustered else "cases"
    is_one_rate = repeats == 1 and not is_clustered
    assert result.test == ("exact McNemar" if is_one_rate else f"exact sign test over {unit}")


@pytest.mark.parametrize("letters", ["ABCDE", "AABBCCDDEE", "AAAABBBBCDE"])
def test_five_equal_differences_are_not_enough(letters: str) -> None:
    right, wrong = (cases(f"{digit * 2} " * len(letters)) for digit in "10")
    result = compare_scores(right, wrong, clusters=clusters(letters))
    assert (result.verdict, result.p) == ("inconclusive", None)
    assert result.reason.startswith("no standard error: no variation between c")


def test_equal_small_differences_are_equivalent_within_the_margin() -> None:
    assert differences([0.01] * 10, margin=0.02).verdict == "equivalent"
    assert differences([0.01] * 10).verdict == "better"
    assert differences([0.01] * 10, margin=0.005).verdict == "better"
    assert differences([0.01] * 5, margin=0.02).verdict == "inconclusive"


def test_rounding_errors_are_not_changes() -> None:
    """0.1 + 0.2 is not 0.3, and the mean of three scores is rounded."""
    noisy = {str(index): [0.1 + 0.2, 1e-17, 0.7 + 0.1] for index in range(8)}
    exact = {str(index): [0.3, 0.0, 0.8] for index in range(8)}
    result = compare_scores(exact, noisy, margin=0.05)
    assert (result.difference, result.up, result.down) == (0, (), ())
    assert result.reason.startswith("no case changed, but 8 cases are too few")
    assert result.more_cases is None
    shifted = {str(index): [0.1 * index + 0.3] for index in range(8)}
    result = compare_scores({str(index): [0.1 * index] for index in range(8)}, shifted)
    assert (result.test, result.standard_error) == ("exact sign test over cases", None)
    dollars = {str(index): [1e-6 * (index + 1)] for index in range(8)}
    cheaper = {str(index): [0.5e-6 * (index + 1)] for index in range(8)}
    assert len(compare_scores(dollars, cheaper, bounds=None).down) == 8


def test_bounds_that_are_far_away_do_not_hide_differences() -> None:
    a = {str(number): [5.0 + number % 3] for number in range(20)}
    b = {case: [score + 0.5 + int(case) % 2 / 10] for case, [score] in a.items()}
    far = compare_scores(a, b, bounds=(0, 2**53), margin=1e-200)
    assert far == compare_scores(a, b, bounds=(0, 10), margin=1e-200)
    assert (far.verdict, far.more_cases) == ("better", None)


@pytest.mark.parametrize(("count", "verdict"), [(20, "inconclusive"), (60, "equivalent")])
def test_many_ties_are_equivalent_and_few_are_not(count: int, verdict: str) -> None:
    right = {str(index): [1.0] for index in range(count)}
    result = compare_scores(right, right, margin=0.05)
    assert (result.verdict, result.p) == (verdict, 1)
    assert compare_scores(right, right).verdict == "inconclusive"
    twice = {case: [1.0, 1.0] for case in right}
    assert compare_scores(twice, twice, margin=0.05).verdict == verdict


def test_reason_says_when_few_changes_do_not_show_equivalence() -> None:
    twice = {str(index): [1.0, 1.0] for index in range(20)}
    pairs = clusters("AABBCCDDEEFFGGHHIIJJ")
    options: dict[str, Any]
    for options, expected in (
        ({}, "20 cases are too few for the margin: about 59 are needed"),
        ({"clusters": pairs}, "10 clusters are too few for the margin: about 59 are needed"),
        ({"bounds": None}, "that shows equivalence only for a score with bounds"),
    ):
        result = compare_scores(twice, twice, margin=0.05, **options)
        assert (result.verdict, result.reason) == (
            "inconclusive",
            f"no case changed, but {expected}",
        )
    enough = {str(index): [1.0, 1.0] for index in range(59)}
    assert compare_scores(enough, enough, margin=0.05).verdict == "equivalent"
    tokens = {str(index): [200.0] for index in range(35)}
    few = compare_scores(tokens, tokens | {"0": [203.0]}, margin=40, bounds=None)
    assert few.interval is not None
    assert few.interval[1] < 1
    assert few.reason == "only 1 of 35 cases changed, which is too few to be certain"


def test_variant_without_failures_is_compared_by_the_pairs_that_changed() -> None:
    result = compare_scores(cases("1 1 1 1 1 1 1 1"), cases("1 1 1 0 1 1 0 1"))
    assert (result.difference, result.standard_error) == about(-0.25, 0.163663)
    assert result.interval == about(-0.637002, 0.137002)
    assert (result.p, result.test, result.verdict) == (0.5, "exact McNemar", "inconclusive")
    assert (result.up, result.down) == ((), ("3", "6"))
    assert t_test(0.25 / 0.163663, 7) == pytest.approx(0.170471, abs=1e-5)
    assert (wilson(8, 8), wilson(6, 8)) == (about(0.675592, 1), about(0.409275, 0.928521))


@pytest.mark.parametrize(
    ("up", "down", "p"),
    [(8, 1, 0.0390625), (6, 0, 0.03125), (5, 0, 0.0625), (3, 3, 1), (1, 0, 1), (0, 0, 1)],
)
def test_sign_test_is_exact(up: int, down: int, p: float) -> None:
    assert sign_test(up, down) == sign_test(down, up) == p


def test_kind_of_the_scores_decides_the_test_and_not_its_result() -> None:
    result = compare_scores(cases("0 0 0 0 0 1 1 1 1 1"), cases("1 1 1 1 1 1 1 1 1 1"))
    assert (result.p, result.verdict) == (0.0625, "inconclusive")
    assert result.interval is not None
    assert result.interval[0] > 0  # by the t test alone, it would be better


SIMILAR = [0.2, 0.4, 0.3, 0.1, 0, -0.1, 0.5, -0.2, -0.1, -0.3, 0, 0.1, 0.3]


def test_unequal_clusters_use_the_jackknife() -> None:
    result = differences(SIMILAR, clusters=clusters("AAAABBCDDDDDE"))
    assert (result.difference, result.standard_error) == about(0.092308, 0.131092)
    assert result.error_without_clusters == about(0.066469)
    assert result.df == pytest.approx(2.5957, abs=1e-4)
    assert result.interval == pytest.approx((-0.36416, 0.54878), abs=1e-5)
    assert (result.verdict, result.test) == ("inconclusive", "jackknife over clusters")


def test_equal_clusters_use_the_sums_of_their_cases() -> None:
    values = [0.5, -0.5, 0.4, -0.4, 0.3, -0.1, 0.6, -0.2]
    result = differences(values, clusters=clusters("AABBCCDD"))
    assert (result.difference, result.standard_error) == about(0.075, 0.047871)
    assert result.error_without_clusters == about(0.150890)
    assert result.interval == about(-0.077348, 0.227348)
    assert result.p == pytest.approx(0.215170, abs=1e-5)
    opposite = [0.5, -0.5, 0.4, -0.4, 0.3, -0.3, 0.6, -0.6]
    result = differences(opposite, clusters=clusters("AABBCCDD"))
    assert result.reason == "no standard error: no variation between clusters"


def test_one_cluster_is_inconclusive_and_clusters_of_one_case_change_nothing() -> None:
    values = [0.1, 0.2, 0.15, 0.3]
    assert differences(values, clusters=clusters("AAAA")).reason == "no standard error: 1 cluster"
    right, wrong = cases("1 1 1 1 1 1 1 0"), cases("0 0 0 0 0 0 1 1")
    for letters in ("ABCDEFGH", "A", "AB"):
        result = compare_scores(right, wrong, clusters=clusters(letters))
        assert result == compare_scores(right, wrong)
        assert result.test == "exact McNemar"
    result = differences(values, clusters=clusters("ABCD"))
    assert result == differences(values)
    assert (result.standard_error, result.verdict) == (about(0.042696), "better")
    assert (result.difference, result.df) == (about(0.1875), 3)
    assert result.p == pytest.approx(0.021875, abs=1e-5)


MARGINS: dict[str, tuple[list[float], str, float, float]] = {
    "above zero": (
        [.01, 0, .02, -.01, .01, 0, .01, .02, 0, .01, -.01, .02, .01, 0, .01, .01],
        "equivalent",
        0.006875,
        0.002366,
    ),
    "around zero": (
        [.03, -.02, .01, .02, -.03, .04, -.01, 0, .02, -.02],
        "equivalent",
        0.004,
        0.007483,
    ),
    "below": ([-.05, -.03, -.08, -.02, -.06, -.04, -.07, -.05], "worse", -0.05, 0.007071),
    "wide": ([.2, -.3, .1, .4, -.2, .3, 0, -.1, .2, .1], "inconclusive", 0.07, 0.07),
}  # fmt: skip


@pytest.mark.parametrize("name", MARGINS)
def test_equivalence_within_the_margin_comes_before_better_and_worse(name: str) -> None:
    values, verdict, difference, error = MARGINS[name]
    result = differences(values, margin=0.02)
    assert (result.difference, result.standard_error) == about(difference, error)
    assert result.verdict == verdict


@pytest.mark.parametrize(
    ("name", "interval", "narrower"),
    [
        ("above zero", (0.001832, 0.011918), (0.002727, 0.011023)),
        ("around zero", (-0.012928, 0.020928), (-0.009718, 0.017718)),
        ("below", (-0.066720, -0.033280), None),
        ("wide", (-0.088351, 0.228351), None),
    ],
)
def test_interval_of_95_percent_is_reported_and_that_of_90_percent_decides_equivalence(
    name: str, interval: tuple[float, float], narrower: tuple[float, float] | None
) -> None:
    values = MARGINS[name][0]
    result = differences(values, margin=0.02)
    assert result.interval == about(*interval)
    if name == "below":
        assert result.p == pytest.approx(0.000199, abs=1e-6)
    if narrower is not None:
        least = max(map(abs, narrower))
        verdicts = [differences(values, margin=least + step).verdict for step in (-1e-4, 1e-4)]
        assert verdicts[1] == "equivalent" != verdicts[0]


def test_lower_scores_are_better_if_the_score_says_so() -> None:
    values = MARGINS["below"][0]
    assert differences(values, higher_is_better=False).verdict == "better"


@pytest.mark.parametrize(("margin", "more"), [(0.1, 29), (0.05, 144), (0.02, 952)])
def test_inconclusive_comparison_says_how_many_more_cases_are_needed(
    margin: float, more: int
) -> None:
    assert differences(MARGINS["wide"][0], margin=margin).more_cases == more


def test_errors_are_left_out_and_bounded() -> None:
    right = cases("1 1 0 1 0 1 1 0 1 0")
    other = cases("1 1 1 1 0 1 1 0 1 1")
    other["4"] = other["7"] = [None]
    result = compare_scores(right, other)
    assert (result.cases, result.of) == (8, 10)
    assert (result.difference, result.if_errors) == (0.25, about(0.20, 0.40))
    assert result.standard_error == about(0.163663)
    assert t_test(0.25 / 0.163663, 7) == pytest.approx(0.170471, abs=1e-5)
    assert result.verdict == "inconclusive"


def test_verdict_that_errors_could_change_is_inconclusive() -> None:
    first: dict[str, list[float | None]] = {str(index): [0] for index in range(7)}
    second: dict[str, list[float | None]] = {str(index): [1] for index in range(7)}
    assert compare_scores(first, second).verdict == "better"
    first |= {"one": [1], "other": [1], "third": [1], "last": [1]}
    second |= {"one": [None], "other": [None], "third": [None], "last": [None]}
    result = compare_scores(first, second)
    reason = "4 cases have errors, which could change the verdict"
    assert (result.verdict, result.reason) == ("inconclusive", reason)


def test_case_that_loses_a_repeat_is_compared_by_its_other_repeats() -> None:
    """Otherwise, the difference would contradict the means, which include the case."""
    first, second = cases("000 000 111 111 111 111"), cases("111 111 111 111 111 111")
    first["0"] = first["1"] = [None, 0, 0]
    result = compare_scores(first, second)
    assert (result.cases, result.of, result.up) == (6, 6, ("0", "1"))
    assert result.difference == about(1 / 3)
    assert result.if_errors == about(2 / 9, 1 / 3)
    first["0"] = [None, None, None]
    assert compare_scores(first, second).cases == 5


def test_range_by_errors_moves_the_variants_in_opposite_directions() -> None:
    first, second = cases("1 1 1 1 1 1"), cases("1 1 1 1 1 1")
    first["4"] = second["5"] = [None]
    result = compare_scores(first, second)
    assert (result.difference, result.if_errors) == (0, about(-1 / 6, 1 / 6))


def test_errors_of_both_variants_that_could_hide_each_other_leave_no_verdict() -> None:
    first, second = cases("0 0 0 0 0 0 0 1 1 1 1"), cases("1 1 1 1 1 1 1 1 1 1 1")
    for case in "abc":
        first[case] = second[case] = [None]
    result = compare_scores(first, second)
    assert result.if_errors == about(4 / 14, 10 / 14)
    assert (result.verdict, result.reason) == (
        "inconclusive",
        "3 cases have errors, which could change the verdict",
    )


type Pairs = list[tuple[list[bool | None], list[bool | None]]]
REPEATS = st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=3)


@given(st.lists(st.tuples(REPEATS, REPEATS), min_size=1, max_size=8), st.randoms())
def test_range_by_errors_contains_the_difference_whatever_the_errors_hide(
    pairs: Pairs, chance: random.Random
) -> None:
    def scores_with(side: int, *, is_filled: bool) -> dict[str, list[float | None]]:
        return {
            str(index): [
                chance.randint(0, 1) if value is None and is_filled else value
                for value in pair[side]
            ]
            for index, pair in enumerate(pairs)
        }

    result = compare_scores(*(scores_with(side, is_filled=False) for side in (0, 1)))
    full = compare_scores(*(scores_with(side, is_filled=True) for side in (0, 1)))
    assert full.difference is not None
    if result.if_errors is not None:
        low, high = result.if_errors
        assert low - TOLERANCE <= full.difference <= high + TOLERANCE
        if result.cases == result.of:
            assert result.difference is not None
            assert low - TOLERANCE <= result.difference <= high + TOLERANCE
        if result.verdict != "inconclusive":
            assert low * high > 0
    elif result.cases:
        assert result.difference == full.difference


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=12), st.sampled_from([None, 0.05, 0.5]))
def test_inconclusive_comparison_has_a_reason(values: list[float], margin: float | None) -> None:
    result = differences(values, margin=margin)
    assert bool(result.reason) or result.verdict != "inconclusive"


@pytest.mark.parametrize(
    ("count", "verdict"), [(1, "inconclusive"), (20, "inconclusive"), (66, "equivalent")]
)
@pytest.mark.parametrize("sizes", [[4], [4, 3, 5]])
def test_equal_scores_are_equivalent_only_if_there_are_enough_clusters(
    count: int, verdict: str, sizes: list[int]
) -> None:
    names = [str(index) for index in range(count) for _ in range(sizes[index % len(sizes)])]
    groups = {str(index): name for index, name in enumerate(names)}
    zeros = {case: [0.0] for case in groups}
    result = compare_scores(zeros, zeros, margin=0.05, clusters=groups)
    assert (result.verdict, result.clusters) == (verdict, count)


def test_few_changed_clusters_are_not_many_changed_cases() -> None:
    """All changes of ten cases are in two of twenty clusters, so they are two observations."""
    values = [0.01] * 5 + [-0.01] * 5 + [0.0] * 90
    groups = {str(index): str(index // 5) for index in range(100)}
    assert differences(values, margin=0.3).verdict == "equivalent"
    assert differences(values, margin=0.3, clusters=groups).verdict == "inconclusive"


@pytest.mark.parametrize(
    ("ps", "corrected"),
    [
        ([0.012, 0.04, 0.03, 0.6], [0.048, 0.09, 0.09, 0.6]),
        ([0.01, 0.01, 0.04], [0.03, 0.03, 0.04]),
        ([0.05, 0.05], [0.1, 0.1]),
        ([], []),
    ],
)
def test_several_comparisons_are_corrected_by_holms_method(
    ps: list[float], corrected: list[float]
) -> None:
    assert holm(ps) == pytest.approx(corrected)


@pytest.mark.parametrize(
    ("successes", "count", "interval"),
    [
        (0, 5, (0, 0.434482)),
        (5, 5, (0.565518, 1)),
        (1, 1, (0.206549, 1)),
        (17, 20, (0.639581, 0.947631)),
        (40, 40, (0.912378, 1)),
        (0, 0, None),
    ],
)
def test_interval_of_a_rate_stays_within_0_and_1(
    successes: int, count: int, interval: tuple[float, float] | None
) -> None:
    found = wilson(successes, count)
    assert found == (interval and about(*interval))


def test_more_clusters_are_counted_where_cases_are_similar() -> None:
    a, b = cases("00 01 10 11 00 01 10 11"), cases("01 11 10 00 01 11 11 10")
    pairs = dict(zip(a, ["w", "w", "x", "x", "y", "y", "z", "z"], strict=True))
    result = compare_scores(a, b, margin=0.1, clusters=pairs)
    assert result.clusters == 4
    assert result.standard_error is not None
    needed = ((z_quantile(0.975) + z_quantile(0.8)) * result.standard_error / 0.1) ** 2 * 4
    assert result.more_cases == ceil(needed) - 4
    alone = compare_scores(a, b, margin=0.1)
    assert alone.more_cases != result.more_cases


def test_variance_is_split_between_cases_and_repeats() -> None:
    result = compare_scores(
        cases("110 000 111 010 111 101"), cases("111 110 111 000 010 111"), margin=0.1
    )
    assert (result.case_variance, result.repeat_variance) == about(0.148148, 0.092593)
    assert result.more_cases == 189 - 6
    assert (result.difference, result.standard_error) == about(0.055556, 0.200308)
    assert result.case_variance is not None
    assert result.repeat_variance is not None
    for repeats, needed in ((1, 335), (3, 189), (10, 139)):  # more repeats cost fewer cases
        spread = result.case_variance + result.repeat_variance * 3 / repeats
        exact = (z_quantile(0.975) + z_quantile(0.8)) ** 2 * spread / 0.1**2
        assert needed - 1 < exact <= needed
    result = compare_scores(
        cases("1011 0010 1111 0101 1101 0000"), cases("1110 0111 1111 1101 0111 0010")
    )
    assert (result.case_variance, result.repeat_variance) == about(-0.055556, 0.097222)
    assert (result.standard_error, result.p) == about(0.083333, 0.101939)
    assert result.difference == about(0.166667)


def test_kappa_subtracts_the_agreement_of_chance() -> None:
    table = [("y", "y")] * 20 + [("y", "n")] * 5 + [("n", "y")] * 10 + [("n", "n")] * 15
    result = kappa(table)
    assert (result.kappa, result.standard_error) == about(0.40, 0.126996)
    assert result.interval == about(0.151092, 0.648908)
    always = kappa([("pass", "pass")] * 9 + [("fail", "pass")])
    assert (always.agreement, always.kappa) == (0.9, about(0))
    assert kappa([("pass", "pass")] * 9).kappa is None
    high = kappa([("y", "y")] * 9 + [("y", "n")] + [("n", "n")] * 10)
    assert high.interval == about(0.709924, 1)  # 1.090076 without the limit


def test_invalid_comparisons_are_errors() -> None:
    with pytest.raises(ValueError, match=r"must have the same cases, got \['1'\]"):
        compare_scores({"0": [1], "1": [1]}, {"0": [1]})
    with pytest.raises(ValueError, match=r"must have scores, got none for \['0'\]"):
        compare_scores({"0": []}, {"0": [1]})
    with pytest.raises(ValueError, match="margin must be more than 0, got 0"):
        compare_scores({}, {}, margin=0)
    with pytest.raises(ValueError, match="margin must be more than 0, got nan"):
        compare_scores({}, {}, margin=nan)
    with pytest.raises(ValueError, match="at least one pair"):
        kappa([])


# --- Judged by scipy and statsmodels


@given(st.floats(0.5, 5_000), st.floats(0.5, 1_000), st.floats(0.001, 0.999))
def test_beta_distribution_agrees_with_scipy(a: float, b: float, x: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    share = beta_share(x, a, b)
    assert share == pytest.approx(stats.beta.cdf(x, a, b), abs=1e-10)
    assert beta_share(beta_quantile(x, a, b), a, b) == pytest.approx(x, abs=1e-9)


@given(st.floats(1, 5_000), st.floats(0.55, 0.9999), st.floats(0, 40))
@example(45.0, 0.75, 1.192092896e-07)
def test_t_distribution_agrees_with_scipy(df: float, share: float, t: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert t_quantile(share, df) == pytest.approx(stats.t.ppf(share, df), rel=1e-7)
    assert t_test(t, df) == pytest.approx(2 * stats.t.sf(t, df), abs=1e-10)


def test_p_value_of_a_large_difference_between_many_cases_is_not_0() -> None:
    assert 0 < t_test(12, 400) < t_test(10, 400) < 1e-15
    assert t_test(36, 5_000) > 0


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("ab")), min_size=4, max_size=60))
def test_kappa_agrees_with_statsmodels(pairs: list[tuple[str, str]]) -> None:
    rater = pytest.importorskip("statsmodels.stats.inter_rater")
    table = [[pairs.count((one, other)) for other in "ab"] for one in "ab"]
    result = kappa(pairs)
    if result.kappa is not None and result.standard_error:
        with warnings.catch_warnings():  # it divides by a standard error of 0
            warnings.simplefilter("ignore", RuntimeWarning)
            judge = rater.cohens_kappa(table)
        assert result.kappa == about(judge.kappa)
        if not isnan(judge.std_kappa):  # the root of a variance that is rounded below 0
            assert result.standard_error == about(judge.std_kappa)


# --- Simulations


def alarms(worlds: int, **world: Any) -> float:
    """Returns the share of comparisons without a difference that are better or worse."""
    verdicts = [compare_scores(*scores(seed, **world)).verdict for seed in range(worlds)]
    return sum(verdict in ("better", "worse") for verdict in verdicts) / worlds


def scores(
    seed: int, count: int = 20, repeats: int = 1, mean: float = 0.7, shift: float = 0.0
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Returns 0/1 scores of two variants on cases of very different difficulty."""
    chance = random.Random(seed)  # noqa: S311 - a simulation
    first: dict[str, list[float]] = {}
    second: dict[str, list[float]] = {}
    for index in range(count):
        rate = chance.betavariate(1.5 * mean, 1.5 * (1 - mean))
        first[str(index)] = [float(chance.random() < rate) for _ in range(repeats)]
        second[str(index)] = [float(chance.random() < rate + shift) for _ in range(repeats)]
    return first, second


@pytest.mark.slow
@pytest.mark.parametrize(("count", "repeats"), [(10, 1), (10, 3), (20, 1), (20, 3), (50, 3)])
def test_equal_variants_are_rarely_called_different(count: int, repeats: int) -> None:
    assert alarms(1_000, count=count, repeats=repeats) <= 0.07


@pytest.mark.slow
def test_looks_while_runs_go_on_do_not_add_up() -> None:
    worlds, wrong, naive = 300, 0, 0
    for seed in range(worlds):
        first, second = scores(seed, count=200)
        changes = [second[case][0] - first[case][0] for case in first]
        looks = [anytime_interval(changes[:count]) for count in range(10, 201, 10)]
        wrong += any(low > 0 or high < 0 for low, high in looks)
        naive += any(
            compare_scores(
                *({case: it[case] for case in [*it][:count]} for it in (first, second))
            ).verdict
            in ("better", "worse")
            for count in range(10, 201, 10)
        )
    assert wrong / worlds <= 0.05
    assert naive / worlds >= 0.10  # without the wider intervals


def test_interval_for_looks_narrows_to_the_mean() -> None:
    assert anytime_interval([]) == (-1, 1)
    low, high = anytime_interval([0.3] * 500)
    assert low < 0.3 < high
    assert high - low < 0.1
