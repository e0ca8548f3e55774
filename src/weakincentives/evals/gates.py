"""Gates for CI: each holds, fails, or is inconclusive, as errors and few cases allow."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from typing import Literal

from ..displays import count_of
from .comparison import Interval
from .comparisons import NOTHING_DIFFERS, Comparisons
from .distributions import wilson, z_quantile
from .results import VariantResults

__all__ = [
    "Gate",
    "comparison_gate",
    "mean_gate",
    "missing_gate",
    "observations",
    "rate_gate",
    "rate_interval",
]

type GateResult = Literal["holds", "fails", "inconclusive"]

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Gate:
    """The result of a gate, and the reason in one line."""

    result: GateResult
    reason: str


def missing_gate(variant: VariantResults) -> Gate | None:
    """Returns the gate that is inconclusive because runs or all values of a score are missing."""
    summaries = {score: variant.summary(score) for score in variant.evaluators}
    unscored = [score for score, it in summaries.items() if it.errors and not it.scored]
    runs = len(variant.results)
    if not any(result.outcome == "answered" for result in variant.results):
        reason = f"0 of {runs} scored, because no run has an answer"
    elif unscored:
        reason = f"0 of {summaries[unscored[0]].errors} scored for {', '.join(unscored)}"
    elif unrun := [result for result in variant.results if result.outcome == "unrun"]:
        reason = f"{len(unrun):,} of {runs:,} runs are missing"
    else:
        return None
    return Gate("inconclusive", f"{variant.name}: {reason}")


def mean_gate(variant: VariantResults, score: str, limit: float) -> Gate:
    """Checks that the mean of a score is at least `limit`, whatever values the errors would have.

    If lower scores are better, the mean must be at most `limit`.
    """
    summary = variant.summary(score)
    if summary.mean is None:
        return _gate(variant, score, "inconclusive", f"0 of {summary.runs} scored")
    span = (summary.mean, summary.mean) if not summary.errors else summary.if_errors
    if span is None:
        errors = count_of(summary.errors, "error")
        return _gate(variant, score, "inconclusive", f"{errors}, and the score has no bounds")
    result = _judged(variant, score, span, limit)
    is_exact = not summary.errors
    found = f"{span[0]:.4g}" if is_exact else f"{span[0]:.4g} to {span[1]:.4g}, by its errors"
    return _gate(variant, score, result, f"mean {found}; limit {limit:g}")


def rate_gate(variant: VariantResults, score: str, limit: float) -> Gate:
    """Checks that the rate behind the cases is at least `limit`, with 95 % confidence.

    The cases are a sample of all possible ones, so a few of them cannot show a high rate. Raises
    `ValueError` if `limit` is not between 0 and 1, or the score is not true or false.
    """
    if not 0 < limit < 1:
        raise ValueError(f"a limit of a rate must be between 0 and 1, got {limit!r}")
    summary = variant.summary(score)
    if summary.mean is None or summary.if_errors is None:
        return _gate(variant, score, "inconclusive", f"0 of {summary.runs} scored")
    if not summary.is_rate:
        raise ValueError(f"the score {score!r} must be true or false for a limit of its rate")
    count = _independent(variant, variant.values(score))
    low, high = (wilson(mean * count, count) or (0.0, 1.0) for mean in summary.if_errors)
    result = _judged(variant, score, (low[0], high[1]), limit)
    is_higher = variant.evaluators[score].scale.higher_is_better
    odds = limit / (1 - limit) if is_higher else (1 - limit) / limit
    needed = ceil(z_quantile(0.975) ** 2 * odds)
    unit = _unit(count, len(variant.values(score)))
    wanted = ""
    if count < needed:
        best = "true" if is_higher else "false"
        wanted = f"; {count_of(count, unit)} cannot show this rate, even if all are {best}: "
        wanted += f"{needed if is_higher else 0} of {needed} needed"
    found = f"rate {low[0]:.1%} to {high[1]:.1%} by {count_of(count, unit)}"
    return _gate(variant, score, result, f"{found}; limit {limit:.1%}{wanted}")


def comparison_gate(comparisons: Comparisons, score: str = "") -> Gate:
    """Checks that no score is worse: each must be better, or equivalent within the margin.

    With `score`, only this one is checked. If nothing differs between the variants, a score with no
    more errors than before may also be inconclusive. Labels and scores that apply to no case are
    left out.
    """
    scores = comparisons.scores.items()
    tested = {name: one for name, one in scores if one.is_tested and score in ("", name)}
    results = {name: one.result for name, one in tested.items() if one.result is not None}
    verdicts = {it.verdict for it in results.values()}
    is_same = comparisons.is_same and all(it.b.errors <= it.a.errors for it in tested.values())
    result: GateResult = "holds"
    reason = ", ".join([f"{name} is {it.verdict}" for name, it in results.items()])
    if "worse" in verdicts:
        result = "fails"
    elif not verdicts:
        result, reason = "inconclusive", f"no score in common{f' is {score!r}' if score else ''}"
    elif "inconclusive" in verdicts and is_same:
        reason = f"{reason}, but {NOTHING_DIFFERS}"
    elif "inconclusive" in verdicts:
        result = "inconclusive"
        if any(results[it].verdict == result and one.margin is None for it, one in tested.items()):
            reason += "; add cases, or pass --margin with the difference that does not matter"
    before, after = comparisons.names
    return Gate(result, f"{after} against {before}: {reason}")


def rate_interval(variant: VariantResults, score: str) -> Interval | None:
    """Returns Wilson's interval of a rate by the cases that are scored, or `None` without any.

    Similar cases count once, as do the repeats of a case.
    """
    summary = variant.summary(score)
    if summary.mean is None or not summary.is_rate:
        return None
    count = _independent(variant, _scored(variant, score))
    return wilson(summary.mean * count, count)


def observations(variant: VariantResults, score: str) -> str:
    """Returns how many independent observations a score has, such as `5 clusters`."""
    scored = _scored(variant, score)
    count = _independent(variant, scored)
    return count_of(count, _unit(count, len(scored)))


def _scored(variant: VariantResults, score: str) -> list[str]:
    values = variant.values(score)
    return [case for case in values if any(value is not None for value in values[case])]


def _unit(count: int, cases: int) -> str:
    return "cluster" if count < cases else "case"


def _independent(variant: VariantResults, cases: Iterable[str]) -> int:
    """Returns the number of clusters of cases, where a case without a cluster is its own."""
    return len({variant.cases[case].cluster or (case,) for case in cases})


def _judged(variant: VariantResults, score: str, span: Interval, limit: float) -> GateResult:
    low, high = span
    if not variant.evaluators[score].scale.higher_is_better:
        low, high, limit = -high, -low, -limit
    if low >= limit - _ROUNDING:
        return "holds"
    return "fails" if high < limit - _ROUNDING else "inconclusive"


def _gate(variant: VariantResults, score: str, result: GateResult, reason: str) -> Gate:
    return Gate(result, f"{variant.name} {score}: {reason}")
