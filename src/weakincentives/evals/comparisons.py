"""Compares the variants of experiments in all their scores, or says why that is impossible."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean
from typing import TypedDict, Unpack

from ..displays import count_of
from ..errors import WeakIncentivesError
from .comparison import (
    Comparison,
    Interval,
    Verdict,
    anytime_interval,
    compare_scores,
    errors_matter,
    holm,
    not_equivalent,
    shared_clusters,
    undecided,
)
from .results import ScoreSummary, VariantResults
from .scores import Scale

__all__ = [
    "NOTHING_DIFFERS",
    "CompareOptions",
    "ComparisonError",
    "Comparisons",
    "ScoreComparison",
    "compare",
    "compare_all",
]

type _Values = Sequence[float | None]

_LEVEL = 0.05
_NAMED = 10
NOTHING_DIFFERS = "their prompts, models and settings do not differ"


class ComparisonError(WeakIncentivesError, ValueError):
    """Two variants cannot be compared, because they were not run or scored alike.

    `only_a` and `only_b` are the cases of one variant only, `changed` are the cases with the same
    id and another content, `evaluators` are the scores whose evaluators or judges differ, and
    `repeated` are the cases with two results for one repeat.
    """

    def __init__(self, names: tuple[str, str], problems: Mapping[str, Sequence[str]]) -> None:
        super().__init__(names, problems)
        self.names = names
        self.only_a = tuple(problems.get("only_a", ()))
        self.only_b = tuple(problems.get("only_b", ()))
        self.changed = tuple(problems.get("changed", ()))
        self.evaluators = tuple(problems.get("evaluators", ()))
        self.repeated = tuple(problems.get("repeated", ()))

    def __str__(self) -> str:
        a, b = self.names
        lists = {
            f"only in {a}": self.only_a,
            f"only in {b}": self.only_b,
            "changed cases": self.changed,
            "other evaluators or judges": self.evaluators,
            "two results for one repeat": self.repeated,
        }
        parts = [f"{title}: {_listed(items)}" for title, items in lists.items() if items]
        is_about_cases = not (self.evaluators or self.repeated)
        remedy = "; to compare the common cases, pass common_cases=True, or --common-cases to "
        remedy = f"{remedy}wink compare" * is_about_cases
        return f"cannot compare {a} with {b}: {'; '.join(parts)}{remedy}"


def _listed(items: Sequence[str]) -> str:
    more = f" and {len(items) - _NAMED:,} more" if items[_NAMED:] else ""
    return f"{', '.join(items[:_NAMED])}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreComparison:
    """One score of two variants.

    `result` is `None` for labels, which are counted but not compared. `corrected_p` is its p-value,
    corrected for the number of comparisons. `margin` is the margin of its verdict.
    """

    a: ScoreSummary
    b: ScoreSummary
    higher_is_better: bool = True
    result: Comparison | None = None
    corrected_p: float | None = None
    margin: float | None = None

    @property
    def is_tested(self) -> bool:
        """Whether the score applies to any case and is not a label."""
        return self.result is not None and self.result.of > 0

    @property
    def worse(self) -> tuple[str, ...]:
        """The cases in which B is worse than A."""
        if self.result is None:
            return ()
        return self.result.down if self.higher_is_better else self.result.up


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparisons:
    """How variant `b` differs from `a` in all their scores.

    p-values are corrected for all comparisons of the `family`. `left_out` are the cases that only
    one variant has or that have changed, and `uncompared` the scores that only one variant has.
    """

    a: VariantResults
    b: VariantResults
    scores: Mapping[str, ScoreComparison]
    family: int
    left_out: tuple[str, ...] = ()
    uncompared: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, str]:
        """The names of both variants, marked with A and B if they are equal."""
        return _names(self.a, self.b)

    @property
    def is_same(self) -> bool:
        """Whether all runs have the same keys: prompts, models and settings do not differ."""
        a, b = ({(it.case, it.repeat): it.key for it in one.results} for one in (self.a, self.b))
        return bool(a) and all(a.values()) and (a.items() <= b.items() or b.items() <= a.items())


class CompareOptions(TypedDict, total=False):
    """How variants are compared; see `compare`."""

    margin: float | Mapping[str, float] | None
    common_cases: bool
    anytime: bool


def compare(
    a: VariantResults, b: VariantResults, /, **options: Unpack[CompareOptions]
) -> Comparisons:
    """Compares two variants by the cases and scores that both have.

    `margin` is the margin of all scores whose scale has none. A mapping has margins by score, which
    replace those of the scales; its key `""` stands for all scores whose scale has none. With
    `common_cases`, the variants may have different cases. While runs are missing, there is no
    verdict, unless you pass `anytime`: then, verdicts come from an interval that remains valid
    however often you look.

    Raises `ComparisonError` if the variants have different cases, evaluators or judges, and
    `ValueError` for a margin that is not positive or not of one of the scores.
    """
    [result] = compare_all((a, b), **options)
    return result


def compare_all(
    *variants: tuple[VariantResults, VariantResults], **options: Unpack[CompareOptions]
) -> list[Comparisons]:
    """Compares several pairs of variants; the family is all their scores together."""
    is_common = options.get("common_cases", False)
    pairs = [_paired(a, b, common_cases=is_common) for a, b in variants]
    anytime, scores = options.get("anytime", False), [it for pair in pairs for it in pair.scores]
    family = sum(_applies(pair, score) for pair in pairs for score in pair.scores)
    rules = _Rules(_margins(options.get("margin"), scores), anytime, max(1, family))
    found = [{score: rules.compared(pair, score) for score in pair.scores} for pair in pairs]
    tested = [one.result for scores in found for one in scores.values() if one.is_tested]
    ps = [1.0 if it is None or it.p is None else it.p for it in tested]
    errors = [(it and it.p_if_errors) or 0.0 for it in tested]
    highest = holm([max(pair) for pair in zip(ps, errors, strict=True)])
    corrected = iter(zip(holm(ps), highest, strict=True))
    family = len(tested)
    return [
        Comparisons(
            a=pair.a,
            b=pair.b,
            scores={
                name: _corrected(one, *next(corrected), family) if one.is_tested else one
                for name, one in scores.items()
            },
            family=family,
            left_out=pair.left_out,
            uncompared=tuple(sorted(pair.a.evaluators.keys() ^ pair.b.evaluators.keys())),
        )
        for pair, scores in zip(pairs, found, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Pair:
    """Two variants with the same cases; the runs of `unrun` cases are not complete."""

    a: VariantResults
    b: VariantResults
    left_out: tuple[str, ...]
    unrun: frozenset[str]

    @property
    def scores(self) -> list[str]:
        return [score for score in self.b.evaluators if score in self.a.evaluators]


def _paired(a: VariantResults, b: VariantResults, *, common_cases: bool) -> _Pair:
    """Checks that two variants can be compared, and removes the cases that are not common."""
    runs = Counter(
        (side, run.case, run.repeat) for side, one in enumerate((a, b)) for run in one.results
    )
    cases = {
        "only_a": [case for case in a.cases if case not in b.cases],
        "only_b": [case for case in b.cases if case not in a.cases],
        "changed": [
            case
            for case, info in a.cases.items()
            if case in b.cases and info.digest != b.cases[case].digest
        ],
    }
    others = {
        "evaluators": [it for it in a.evaluators if it in b.evaluators and _differ(it, a, b)],
        "repeated": [case for (_, case, _), count in runs.items() if count > 1],
    }
    left_out = frozenset(chain.from_iterable(cases.values()))
    if any(others.values()) or (left_out and not common_cases):
        raise ComparisonError(_names(a, b), {**cases, **others})
    a, b = _without(a, left_out), _without(b, left_out)
    unrun = {run.case for one in (a, b) for run in one.results if run.outcome == "unrun"}
    for one in (a, b):
        unrun |= one.cases.keys() - {run.case for run in one.results}
    return _Pair(a, b, tuple(sorted(left_out)), frozenset(unrun))


def _names(a: VariantResults, b: VariantResults) -> tuple[str, str]:
    return (a.name, b.name) if a.name != b.name else (f"{a.name} (A)", f"{b.name} (B)")


def _differ(score: str, a: VariantResults, b: VariantResults) -> bool:
    """Returns whether a score has another meaning; its margin does not change the meaning."""
    first, second = a.evaluators[score], b.evaluators[score]
    scale = replace(first.scale, margin=second.scale.margin)
    return replace(first, scale=scale) != second


def _without(variant: VariantResults, left_out: Collection[str]) -> VariantResults:
    cases = {name: case for name, case in variant.cases.items() if name not in left_out}
    results = [result for result in variant.results if result.case not in left_out]
    return replace(variant, cases=cases, results=results)


@dataclass(frozen=True, slots=True)
class _Rules:
    margins: Mapping[str, float]
    anytime: bool
    family: int

    def compared(self, pair: _Pair, score: str) -> ScoreComparison:
        a, b = pair.a.summary(score), pair.b.summary(score)
        scale = pair.b.evaluators[score].scale
        default = self.margins.get("") if scale.margin is None else scale.margin
        margin = self.margins.get(score, default)
        result = ScoreComparison(a=a, b=b, higher_is_better=scale.higher_is_better, margin=margin)
        if a.labels or b.labels:
            return result
        bounds = (0.0, 1.0) if a.is_rate or b.is_rate else scale.bounds
        clusters = {name: case.cluster for name, case in pair.b.cases.items() if case.cluster}
        first, second = _values(pair, score)
        found = compare_scores(
            first,
            second,
            margin=margin,
            clusters=clusters,
            bounds=bounds,
            higher_is_better=scale.higher_is_better,
        )
        if self.anytime:
            scores = [(first[case], second[case]) for case in first if case not in pair.unrun]
            is_similar = bool(shared_clusters(clusters, first))
            found = self._by_interval(found, scores, None if is_similar else bounds, margin, scale)
        elif pair.unrun:
            reason = f"runs of {count_of(len(pair.unrun), 'case')} are missing"
            found = replace(found, verdict="inconclusive", reason=reason)
        return replace(result, result=found)

    def _by_interval(
        self,
        found: Comparison,
        scores: Sequence[tuple[_Values, _Values]],
        bounds: Interval | None,
        margin: float | None,
        scale: Scale,
    ) -> Comparison:
        """Decides by an interval that is valid at every look; an error may be any difference."""
        verdict: Verdict = "inconclusive"
        if bounds is None:
            reason = "looks while runs are missing require a score with bounds, and no clusters"
            return replace(found, interval=None, p=None, verdict=verdict, reason=reason)
        width, level = abs(bounds[1] - bounds[0]), _LEVEL / self.family
        changes = [_change(one, other) for one, other in scores]
        low, high = (
            anytime_interval(
                [bound if it is None else it for it in changes], width=width, level=level
            )[side]
            for side, bound in enumerate((-width, width))
        )
        if margin is not None and -margin < low and high < margin:
            verdict = "equivalent"
        elif low > 0 or high < 0:
            verdict = "better" if (low > 0) is scale.higher_is_better else "worse"
        reason = f"the interval contains 0, and {not_equivalent(margin)}"
        reason *= verdict == "inconclusive"
        test = "confidence sequence"
        return replace(
            found, interval=(low, high), p=None, test=test, verdict=verdict, reason=reason
        )


def _margins(
    margin: float | Mapping[str, float] | None, scores: Collection[str]
) -> Mapping[str, float]:
    """Returns the margins by score, with `""` for scores whose scale has none."""
    margins = margin if isinstance(margin, Mapping) else {} if margin is None else {"": margin}
    if unknown := [name for name in margins if name and name not in scores]:
        known = ", ".join(dict.fromkeys(scores)) or "not there"
        raise ValueError(f"no score is {unknown[0]!r}, which has a margin; the scores are {known}")
    return margins


def _change(a: _Values, b: _Values) -> float | None:
    first, second = ([it for it in scores if it is not None] for scores in (a, b))
    if len(first) < len(a) or len(second) < len(b):
        return None
    return fmean(second) - fmean(first)


def _values(pair: _Pair, score: str) -> tuple[dict[str, list[float | None]], ...]:
    """Returns the scores of both variants in the order of the cases.

    A case in which the score applies to one variant only has a missing score in the other.
    """
    both = pair.a.values(score), pair.b.values(score)
    cases = [case for case in pair.b.cases if case in both[0] or case in both[1]]
    return tuple([{case: values.get(case) or [None] for case in cases} for values in both])


def _applies(pair: _Pair, score: str) -> bool:
    return bool(pair.a.values(score) or pair.b.values(score))


def _corrected(one: ScoreComparison, p: float, highest: float, family: int) -> ScoreComparison:
    """Applies the correction for several comparisons; `highest` is p as far as errors allow."""
    result = one.result
    if result is None or result.p is None:
        return one
    before = undecided(result.p, one.margin)
    if result.verdict in ("better", "worse") and p >= _LEVEL:
        reason = f"p = {p:.2g} after the correction for {family} comparisons"
        result = replace(result, verdict="inconclusive", reason=reason)
    elif result.verdict in ("better", "worse") and highest >= _LEVEL:
        result = errors_matter(result)
    elif result.reason == before:
        reason = undecided(p, one.margin, "corrected p-value")
        result = replace(result, reason=reason)
    return replace(one, result=result, corrected_p=p)
