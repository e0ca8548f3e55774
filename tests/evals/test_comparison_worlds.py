"""How often comparisons are wrong, in simulated worlds and by exact sums over all outcomes."""

import random
from collections.abc import Sequence
from math import comb, sqrt
from typing import Any

import pytest

from support.eval_results import variant
from weakincentives.evals.comparison import Comparison, compare_scores
from weakincentives.evals.comparisons import compare
from weakincentives.evals.scores import Value

type Scores = dict[str, list[float]]


def world(chance: random.Random, count: int, repeats: int, mean: float = 0.7) -> list[Scores]:
    """Returns the 0/1 scores of two equal variants on cases of very different difficulty."""
    rates = [chance.betavariate(1.5 * mean, 1.5 * (1 - mean)) for _ in range(count)]
    return [
        {
            str(index): [float(chance.random() < rate) for _ in range(repeats)]
            for index, rate in enumerate(rates)
        }
        for _ in range(2)
    ]


def covers_zero(result: Comparison) -> bool:
    """Returns whether the interval contains zero; without an interval, nothing is claimed."""
    return result.interval is None or result.interval[0] <= 0 <= result.interval[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "repeats", "mean", "most"),
    [(10, 1, 0.7, 1), (10, 3, 0.7, 1), (20, 1, 0.7, 0.985), (20, 3, 0.7, 0.975), (20, 1, 0.95, 1)],
)
def test_intervals_contain_the_difference_at_least_93_times_in_100(
    count: int, repeats: int, mean: float, most: float
) -> None:
    chance, worlds = random.Random(11), 600  # noqa: S311 - a simulation
    found = [compare_scores(*world(chance, count, repeats, mean)) for _ in range(worlds)]
    share = sum(map(covers_zero, found)) / worlds
    assert 0.93 <= share <= most


def equivalent_by_mistake(count: int, margin: float, repeats: int) -> float:
    """Returns the probability of "equivalent" if the margin's share of cases become better."""
    wrong = 0.0
    for up in range(count + 1):
        first = {str(index): [0.0] * repeats for index in range(count)}
        second = {str(index): [float(index < up)] * repeats for index in range(count)}
        if compare_scores(first, second, margin=margin).verdict == "equivalent":
            wrong += comb(count, up) * margin**up * (1 - margin) ** (count - up)
        elif up > 2 * margin * count:
            break  # further changes only add to the difference
    return wrong


@pytest.mark.parametrize("count", [20, 50, 100, 200])
@pytest.mark.parametrize("margin", [0.05, 0.1])
@pytest.mark.parametrize("repeats", [1, 2])
def test_difference_of_the_margin_is_rarely_called_equivalent(
    count: int, margin: float, repeats: int
) -> None:
    assert equivalent_by_mistake(count, margin, repeats) <= (0.06 if repeats == 1 else 0.1)


def test_few_cases_need_six_changes_in_one_direction() -> None:
    def verdict(up: int) -> str:
        second = {str(index): [float(index < up)] for index in range(10)}
        return compare_scores({case: [0.0] for case in second}, second).verdict

    assert [verdict(5), verdict(6)] == ["inconclusive", "better"]


SIZES: dict[str, tuple[list[int], float]] = {
    "two equal clusters": ([10] * 2, 0.985),
    "five equal clusters": ([10] * 5, 0.98),
    "twenty equal clusters": ([5] * 20, 0.98),
    "one large of five": ([30, 5, 5, 5, 5], 1),
    "two large of ten": ([40, 40] + [2] * 8, 1),
    "one large of twenty": ([50] + [2] * 19, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("similarity", [0.0, 0.6])
def test_intervals_over_clusters_contain_the_difference(name: str, similarity: float) -> None:
    sizes, most = SIZES[name]
    chance, worlds = random.Random(13), 500  # noqa: S311 - a simulation
    share = sum(covers_zero(similar(chance, sizes, similarity)) for _ in range(worlds)) / worlds
    assert 0.92 <= share <= most


def similar(chance: random.Random, sizes: Sequence[int], similarity: float) -> Comparison:
    """Compares variants whose differences are similar within clusters of these sizes."""
    clusters = [str(index) for index, size in enumerate(sizes) for _ in range(size)]
    shifts = [chance.gauss(0, sqrt(similarity)) for _ in sizes]
    changes = [shifts[int(it)] + chance.gauss(0, sqrt(1 - similarity)) for it in clusters]
    second = {str(index): [change] for index, change in enumerate(changes)}
    names = dict(zip(second, clusters, strict=True))
    return compare_scores({case: [0.0] for case in second}, second, clusters=names, bounds=None)


@pytest.mark.slow
def test_five_scores_of_equal_variants_are_rarely_called_different() -> None:
    chance, worlds = random.Random(17), 300  # noqa: S311 - a simulation
    wrong = alone = 0
    for _ in range(worlds):
        scores = [world(chance, 50, 3) for _ in range(5)]
        a, b = (
            variant(name, {str(index): rows(pair[side]) for index, pair in enumerate(scores)})
            for side, name in enumerate("ab")
        )
        results = [one.result for one in compare(a, b).scores.values()]
        wrong += any(result and result.verdict in ("better", "worse") for result in results)
        alone += any(result and (result.p or 0) < 0.05 for result in results)
    assert wrong / worlds <= 0.07
    assert alone / worlds >= 0.12  # so often without the correction


@pytest.mark.slow
@pytest.mark.parametrize("repeats", [1, 3])
def test_equal_variants_on_few_cases_are_called_different_at_most_6_times_in_100(
    repeats: int,
) -> None:
    chance = random.Random(19)  # noqa: S311 - a simulation
    found = [compare_scores(*world(chance, 3 + index % 8, repeats)) for index in range(200)]
    assert sum(result.verdict in ("better", "worse") for result in found) <= 0.06 * 200


# Any: numbers are values of scores
def rows(scores: Scores) -> Any:
    values: list[list[Value]] = [[bool(it) for it in case] for case in scores.values()]
    return values
