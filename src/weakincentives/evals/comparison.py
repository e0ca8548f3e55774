"""Compares the scores of two variants on the same cases, and says how sure the answer is.

The test depends on the kind of the scores: the exact McNemar test for one 0/1 score per case,
otherwise a paired t test on the means of the cases, over clusters of cases if there are any. Where
all differences are the same, there is no t test, and the exact sign test decides. Sources: Miller,
"Adding Error Bars to Evals" (2024), for pairs and clusters; Tango (1998) for equivalence of paired
rates; Waudby-Smith and Ramdas (2023) for looks while the runs go on.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, log, log1p, sqrt
from statistics import fmean, variance
from typing import Literal

from .distributions import beta_quantile, sign_test, t_quantile, t_test, z_quantile

__all__ = [
    "Comparison",
    "Interval",
    "Kappa",
    "Verdict",
    "anytime_interval",
    "compare_scores",
    "errors_matter",
    "holm",
    "kappa",
    "not_equivalent",
    "shared_clusters",
    "undecided",
]

type Interval = tuple[float, float]
type Scores = Mapping[str, Sequence[float | None]]
"""The scores of each case, one for each repeat; `None` for an error."""

type Verdict = Literal["better", "worse", "equivalent", "inconclusive"]

_LEVEL = 0.05
_POWER = 0.8
_NO_VARIATION = 1e-12
_NOISE = 1e-12  # of the largest score: smaller differences are rounding errors
_ENOUGH_EQUAL = 6  # equal differences for which the sign test can be below the level
_ENOUGH_CHANGED = 10  # below this, few changed cases make a t interval too narrow


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How variant B differs from A in one score.

    `difference` is the mean of B minus the mean of A, where every case weighs the same; it is based
    on `cases`, the cases in which both variants have a score in some repeat, out of `of`.
    `clusters` is the number of clusters of these cases, or 0 if no two cases are similar;
    `error_without_clusters` is the standard error that cases without clusters would have.
    `interval` is the 95 % interval of the difference, and `p` belongs to `test`. `up` and `down`
    are the cases that changed. `case_variance` and `repeat_variance` are the parts of the
    differences' variance; the first is 0 or less if repeats explain all of it. `if_errors` contains
    the lowest and the highest difference that the missing scores of `errors` cases allow, and
    `p_if_errors` is the higher one of their p-values. An inconclusive verdict has a `reason`.
    `more_cases` is the number of further cases, or clusters if there are any, with which a
    difference of the margin would be found four times in five.
    """

    cases: int
    of: int
    clusters: int = 0
    difference: float | None = None
    standard_error: float | None = None
    df: float | None = None
    interval: Interval | None = None
    p: float | None = None
    test: str = ""
    verdict: Verdict = "inconclusive"
    reason: str = ""
    more_cases: int | None = None
    up: tuple[str, ...] = ()
    down: tuple[str, ...] = ()
    case_variance: float | None = None
    repeat_variance: float | None = None
    if_errors: Interval | None = None
    p_if_errors: float | None = None
    errors: int = 0
    error_without_clusters: float | None = None


def compare_scores(
    a: Scores,
    b: Scores,
    *,
    margin: float | None = None,
    clusters: Mapping[str, str] | None = None,
    bounds: Interval | None = (0.0, 1.0),
    higher_is_better: bool = True,
) -> Comparison:
    """Compares two variants in one score.

    If the difference is certainly smaller than `margin`, the variants are equivalent, even if one
    is certainly better. `clusters` maps cases to groups of similar cases. Without `bounds`, errors
    count as the lowest and the highest score that any run has. Raises `ValueError` if the variants
    have different cases or a case has no scores.
    """
    if a.keys() != b.keys():
        raise ValueError(f"variants must have the same cases, got {sorted(a.keys() ^ b.keys())}")
    if empty := [case for case in a if not a[case] or not b[case]]:
        raise ValueError(f"cases must have scores, got none for {sorted(empty)}")
    if margin is not None and not margin > 0:
        raise ValueError(f"margin must be more than 0, got {margin!r}")
    is_single = all(len(scores) == 1 for scores in (*a.values(), *b.values()))
    first, second = _known(a), _known(b)
    known = [score for scores in (*first.values(), *second.values()) for score in scores]
    noise = _NOISE * max(map(abs, known), default=0.0)
    similar = shared_clusters(clusters or {}, a)
    rules = _Rules(margin, similar, bounds, higher_is_better, is_single, noise)
    paired = [case for case in a if first[case] and second[case]]
    result = rules.compare(
        {case: first[case] for case in paired}, {case: second[case] for case in paired}
    )
    errors = sum(None in a[case] or None in b[case] for case in a)
    result = replace(result, of=len(a), errors=errors)
    if not errors or not known:
        return result
    low, high = sorted(bounds or (min(known), max(known)))
    rules = replace(rules, noise=max(noise, _NOISE * abs(low), _NOISE * abs(high)))
    ends = [
        rules.compare(_filled(a, for_a), _filled(b, for_b))
        for for_a, for_b in ((high, low), (low, high))
    ]
    lowest, highest = [end.difference or 0.0 for end in ends]
    ps = [end.p for end in ends if end.p is not None]
    result = replace(result, if_errors=(lowest, highest), p_if_errors=max(ps, default=None))
    if result.verdict != "inconclusive" and {end.verdict for end in ends} != {result.verdict}:
        return errors_matter(result)
    return result


def shared_clusters(clusters: Mapping[str, str], cases: Collection[str]) -> dict[str, str]:
    """Returns the clusters of the cases, without clusters of one case."""
    sizes = Counter(clusters[case] for case in cases if case in clusters)
    return {case: clusters[case] for case in cases if sizes[clusters.get(case, "")] > 1}


def errors_matter(result: Comparison) -> Comparison:
    """Returns the result without a verdict, because errors could change it."""
    have = "1 case has" if result.errors == 1 else f"{result.errors} cases have"
    reason = f"{have} errors, which could change the verdict"
    return replace(result, verdict="inconclusive", reason=reason)


def undecided(p: float, margin: float | None, name: str = "p-value") -> str:
    """Returns the reason why neither a difference nor equivalence is certain."""
    return f"the {name} {p:.2g} is not below {_LEVEL}, and {not_equivalent(margin)}"


def not_equivalent(margin: float | None) -> str:
    """Returns the reason why a verdict is not `equivalent`."""
    if margin is None:
        return "there is no margin for equivalence"
    return f"equivalence within the margin {margin:g} is not certain"


def _known(scores: Scores) -> dict[str, tuple[float, ...]]:
    return {
        case: tuple([score for score in repeats if score is not None])
        for case, repeats in scores.items()
    }


def _filled(scores: Scores, bound: float) -> dict[str, tuple[float, ...]]:
    """Returns the scores with `bound` for the missing ones."""
    return {
        case: tuple([bound if score is None else score for score in repeats])
        for case, repeats in scores.items()
    }


@dataclass(frozen=True, slots=True)
class _Rules:
    margin: float | None
    clusters: Mapping[str, str]
    bounds: Interval | None
    higher_is_better: bool
    is_single: bool  # each case has one score of each variant, which may be missing
    noise: float

    def compare(
        self, a: Mapping[str, tuple[float, ...]], b: Mapping[str, tuple[float, ...]]
    ) -> Comparison:
        changes = {case: self._exact(fmean(b[case]) - fmean(a[case])) for case in a}
        count = len(changes)
        if not count:
            return Comparison(cases=0, of=0, reason="no case has scores of both variants")
        mean = self._exact(fmean(changes.values()))
        spreads = [
            variance(scores) / len(scores)
            for case in a
            for scores in (a[case], b[case])
            if len(scores) > 1
        ]
        repeated = sum(spreads) / count if len(spreads) == 2 * count else None
        total = variance(changes.values()) if count > 1 else None
        result = Comparison(
            cases=count,
            of=count,
            difference=mean,
            up=tuple([case for case, change in changes.items() if change > 0]),
            down=tuple([case for case, change in changes.items() if change < 0]),
            repeat_variance=repeated,
            case_variance=None if total is None or repeated is None else total - repeated,
            error_without_clusters=sqrt(total / count) if total and self.clusters else None,
        )
        is_one_rate = (
            not self.clusters
            and self.is_single
            and all(scores[0] in (0, 1) for scores in (*a.values(), *b.values()))
        )
        groups = _grouped(changes, self.clusters)
        result = self._with_error(result, groups)
        return self._one_rate(result) if is_one_rate else self._means(result, groups)

    def _exact(self, difference: float) -> float:
        return 0.0 if abs(difference) <= self.noise else difference

    def _with_error(self, result: Comparison, groups: Sequence[Sequence[float]]) -> Comparison:
        """Adds the clusters, the standard error, the interval and the p-value, if there are any."""
        count, mean = len(groups), result.difference or 0.0
        unit = "clusters" if count < result.cases else "cases"
        result = replace(result, clusters=count if count < result.cases else 0)
        if count == 1:
            return replace(result, reason=f"no standard error: 1 {unit[:-1]}")
        test, error, df = _standard_error(result, groups)
        if error > self.noise:
            half = t_quantile(1 - _LEVEL / 2, df) * error
            interval, p = (mean - half, mean + half), t_test(mean / error, df)
            result = replace(result, standard_error=error, df=df, interval=interval, p=p)
            result = replace(result, more_cases=self._more_cases(error, count))
        elif mean and count >= _ENOUGH_EQUAL:
            test = f"exact sign test over {unit}"
            result = replace(result, p=sign_test(count, 0))
        else:
            result = replace(result, reason=f"no standard error: no variation between {unit}")
        return replace(result, test=test)

    def _more_cases(self, error: float, count: int) -> int | None:
        if self.margin is None or self.margin <= self.noise:
            return None
        z = z_quantile(1 - _LEVEL / 2) + z_quantile(_POWER)
        return max(0, ceil((z * error / self.margin) ** 2 * count - 1e-9) - count) or None

    def _one_rate(self, result: Comparison) -> Comparison:
        """Decides on one 0/1 score per case."""
        up, down = len(result.up), len(result.down)
        result = replace(result, p=sign_test(up, down), test="exact McNemar")
        if self.margin is not None and _is_equivalent(up, down, result.cases, self.margin):
            return replace(result, verdict="equivalent", more_cases=None, reason="")
        return self._by_p(result)

    def _means(self, result: Comparison, groups: Sequence[Sequence[float]]) -> Comparison:
        """Decides on means of cases."""
        error, df, mean = result.standard_error, result.df, result.difference or 0.0
        # Similar cases count once; unequal clusters count as fewer ones of equal size.
        count = result.cases**2 / sum(len(group) ** 2 for group in groups)
        changed = count / result.cases * sum(len(group) for group in groups if any(group))
        if result.p is None:
            if not changed and self._changes_little(changed, count):
                return replace(result, verdict="equivalent", more_cases=None, reason="")
            return self._with_few(result, changed)
        half = 0.0 if error is None or df is None else t_quantile(1 - _LEVEL, df) * error
        if self.margin is not None and abs(mean) + half < self.margin:
            is_even = changed >= _ENOUGH_CHANGED or 2 * changed >= count
            if is_even or self._changes_little(changed, count):
                return replace(result, verdict="equivalent", more_cases=None)
            result = self._with_few(result, changed)
        return self._by_p(result)

    def _with_few(self, result: Comparison, changed: float) -> Comparison:
        """Adds the reason why few changes do not show equivalence."""
        moved = len(result.up) + len(result.down)
        if self.margin is None or moved == result.cases:
            return result
        unit, reason = "clusters" if result.clusters else "cases", "no case changed, but "
        count = result.clusters or result.cases
        if changed:
            reason = f"only {moved} of {result.cases} cases changed, which is too few to be certain"
        elif self.bounds is None:
            reason += "that shows equivalence only for a score with bounds"
        else:
            needed = ceil(log(_LEVEL) / log1p(-self.margin / abs(self.bounds[1] - self.bounds[0])))
            few = f"{count} {unit} are" if count > 1 else f"1 {unit[:-1]} is"
            reason += f"{few} too few for the margin: about {needed} are needed"
        return replace(result, reason=reason)

    def _changes_little(self, changed: float, count: float) -> bool:
        """Returns whether so few cases or clusters can change at all that the margin holds.

        The bound is Clopper and Pearson's, with 95 % confidence.
        """
        if self.margin is None or self.bounds is None or changed > count - _NO_VARIATION:
            return False
        share = beta_quantile(1 - _LEVEL, changed + 1, count - changed)
        return share * abs(self.bounds[1] - self.bounds[0]) <= self.margin

    def _by_p(self, result: Comparison) -> Comparison:
        if result.p is None:
            return result
        if result.p >= _LEVEL:
            return replace(result, reason=result.reason or undecided(result.p, self.margin))
        is_up = (result.difference or 0.0) > 0
        verdict: Verdict = "better" if is_up is self.higher_is_better else "worse"
        return replace(result, verdict=verdict, more_cases=None, reason="")


def _grouped(changes: Mapping[str, float], clusters: Mapping[str, str]) -> list[list[float]]:
    """Returns the changes by cluster, where a case without a cluster is its own."""
    groups: dict[object, list[float]] = {}
    for case, change in changes.items():
        groups.setdefault(clusters.get(case, (case,)), []).append(change)
    return list(groups.values())


def _standard_error(
    result: Comparison, groups: Sequence[Sequence[float]]
) -> tuple[str, float, float]:
    """Returns the test over groups of cases, the standard error, and the degrees of freedom."""
    count, mean = len(groups), result.difference or 0.0
    if len({len(group) for group in groups}) == 1:
        test = "paired t over clusters" if count < result.cases else "paired t"
        squares = sum(sum(change - mean for change in group) ** 2 for group in groups)
        return test, sqrt(count / (count - 1) * squares) / result.cases, count - 1
    # with unequal clusters, the formula is too sure
    rest = [(mean * result.cases - sum(group)) / (result.cases - len(group)) for group in groups]
    error = sqrt((count - 1) / count * sum((it - mean) ** 2 for it in rest))
    df = 1 / sum((len(group) / result.cases) ** 2 for group in groups) - 1
    return "jackknife over clusters", error, df


def _is_equivalent(up: int, down: int, count: int, margin: float) -> bool:
    """Returns whether two one-sided score tests by Tango exclude a difference of the margin."""
    return all(
        _score(more, fewer, count, margin) < -z_quantile(1 - _LEVEL)
        for more, fewer in ((up, down), (down, up))
    )


def _score(more: int, fewer: int, count: int, margin: float) -> float:
    b = (2 * count - more + fewer) * margin - more - fewer
    c = -fewer * margin * (1 - margin)
    share = (sqrt(max(b * b - 8 * count * c, 0)) - b) / (4 * count)
    spread = count * (2 * share + margin * (1 - margin))
    return (more - fewer - count * margin) / sqrt(max(spread, _NO_VARIATION))


def holm(ps: Sequence[float]) -> list[float]:
    """Returns the p-values, corrected for their number by Holm's method."""
    corrected, highest = [0.0] * len(ps), 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda it: ps[it])):
        highest = max(highest, min(1.0, (len(ps) - rank) * ps[index]))
        corrected[index] = highest
    return corrected


def anytime_interval(
    differences: Iterable[float], *, width: float = 1.0, level: float = _LEVEL
) -> Interval:
    """Returns an interval of the mean that holds however often you look before all runs end.

    Differences are between -`width` and `width`. With probability 1 - `level`, all intervals of a
    growing series contain the mean.
    """
    need = log(2 / level)
    weights = weighted = spread = total = squares = 0.0
    for count, difference in enumerate(differences, 1):
        value = (difference / width + 1) / 2
        before = (0.5 + total) / count
        guess = (0.25 + squares) / count
        weight = min(sqrt(2 * need / (guess * count * log1p(count))), 0.5)
        weights += weight
        weighted += weight * value
        spread += 4 * (value - before) ** 2 * (-log1p(-weight) - weight) / 4
        total += value
        squares += (value - (0.5 + total) / (count + 1)) ** 2
    if not weights:
        return -width, width
    center, half = weighted / weights, (need + spread) / weights
    low, high = max(center - half, 0.0), min(center + half, 1.0)
    return (2 * low - 1) * width, (2 * high - 1) * width


@dataclass(frozen=True, slots=True, kw_only=True)
class Kappa:
    """The agreement of two raters: the share, and Cohen's kappa, which subtracts chance.

    `kappa` is `None` if both raters give one label only.
    """

    agreement: float
    kappa: float | None = None
    standard_error: float | None = None
    interval: Interval | None = None


def kappa(pairs: Sequence[tuple[object, object]]) -> Kappa:
    """Returns the agreement of two raters on the same items; raises `ValueError` for no items."""
    if not pairs:
        raise ValueError("kappa takes at least one pair of labels")
    count = len(pairs)
    labels = list(dict.fromkeys(label for pair in pairs for label in pair))
    first = {label: sum(pair[0] == label for pair in pairs) / count for label in labels}
    second = {label: sum(pair[1] == label for pair in pairs) / count for label in labels}
    agreement = sum(one == other for one, other in pairs) / count
    chance = sum(first[label] * second[label] for label in labels)
    if chance > 1 - _NO_VARIATION:
        return Kappa(agreement=agreement)
    value = (agreement - chance) / (1 - chance)
    agreeing = disagreeing = 0.0
    for one, other in pairs:
        if one == other:
            agreeing += ((1 - chance) - (first[one] + second[one]) * (1 - agreement)) ** 2 / count
        else:
            disagreeing += (second[one] + first[other]) ** 2 / count
    rest = (agreement * chance - 2 * chance + agreement) ** 2
    spread = (agreeing + (1 - agreement) ** 2 * disagreeing - rest) / (count * (1 - chance) ** 4)
    error = sqrt(max(spread, 0.0))
    half = z_quantile(1 - _LEVEL / 2) * error
    return Kappa(
        agreement=agreement,
        kappa=value,
        standard_error=error,
        interval=(max(value - half, -1.0), min(value + half, 1.0)),
    )
