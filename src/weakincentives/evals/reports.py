"""Reports of experiments and comparisons as lines of text."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import floor, inf, log10

from ..displays import count_of, cut, table_lines
from ..limits import RunUsage
from .comparison import Comparison
from .comparisons import NOTHING_DIFFERS, Comparisons, ScoreComparison
from .gates import observations, rate_interval
from .results import Experiment, Outcome, RunResult, ScoreSummary, VariantResults
from .scores import Value

__all__ = [
    "comparison_lines",
    "difference_text",
    "experiment_lines",
    "is_failing",
    "mean_text",
    "repeat_text",
    "run_problems",
    "score_rows",
    "summary_text",
    "value_text",
    "verdict_text",
]

_SMALLEST_P, _LINE = 0.0001, 300
_PROBLEMS, _NAMED, _ALL = 3, 5, 1_000
_ENDS: Mapping[Outcome, str] = {
    "answered": "answered",
    "failed": "failed",
    "provider": "provider failures",
    "unrun": "not run",
}
_NONE = "–"  # noqa: RUF001 - a dash represents a missing number


def experiment_lines(
    experiment: Experiment, by: str = "", *, verbose: bool = False
) -> Iterator[str]:
    """Yields the scores of all variants, also by their cases' values of a metadata key.

    The first three problems of each variant follow; with `verbose`, the first 1,000.
    """
    variants = experiment.variants.values()
    cases = max([len(variant.cases) for variant in variants], default=0)
    repeats = f", {count_of(experiment.repeats, 'repeat')}" * (experiment.repeats > 1)
    reused = f", {count_of(experiment.reused, 'run')} reused" * bool(experiment.reused)
    judges = f", of which {_cost(experiment.judges)} for judges" * bool(experiment.judges.calls)
    spent = f"spent {_cost(experiment.spent)}{judges}{reused}"
    yield f"{experiment.dataset}: {count_of(cases, 'case')}{repeats}; {spent}"
    for variant in variants:
        outcomes = Counter(result.outcome for result in variant.results)
        ends = ", ".join(
            [f"{outcomes[it]:,} {text}" for it, text in _ENDS.items() if it in outcomes]
        )
        usage = f"{_cost(variant.usage)}{_tokens(variant.usage)}"
        yield f"{variant.name}: {ends}; these runs cost {usage}"
    rows = [
        (variant, *row, row[2].summary(row[0]))
        for variant in variants
        for row in score_rows(variant, by)
    ]
    yield ""
    yield from _table(
        [
            ("variant", "score", "mean", "95 % interval", "range", "deviation", "runs"),
            *[
                (one.name, f"  {group}" if group else score, *_cells(part, score, summary))
                for one, score, group, part, summary in rows
            ],
        ]
    )
    for one, score, group, _, summary in rows:
        if _errors_matter(summary):
            of = ", ".join(filter(None, (one.name, score, group)))
            yield f"{of}: {mean_text(summary)}"
    yield ""
    most = _ALL if verbose else _PROBLEMS
    for variant in variants:
        problems = [
            f"{variant.name}, {result.case}{repeat_text(experiment, result)}: {_beginning(problem)}"
            for result in variant.results
            for problem in run_problems(variant, result)
        ]
        yield from problems[:most]
        if problems[most:]:
            yield f"{variant.name}: {count_of(len(problems) - most, 'more problem')}"
    yield from experiment.notes
    if not experiment.is_complete:
        runs = [run for variant in variants for run in variant.results]
        errors = [run.error for run in runs if run.outcome == "unrun" and run.error]
        yield " ".join(["The experiment is not complete.", *map(_beginning, errors[:1])])


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yields the lines of a table, without columns that are empty below their head."""
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    return table_lines([*zip(*columns, strict=True)])


def score_rows(variant: VariantResults, by: str) -> Iterator[tuple[str, str, VariantResults]]:
    """Yields each score of all cases, and then of each group of cases with the group's name."""
    groups = variant.groups(by) if by else {}
    for score in variant.evaluators:
        yield score, "", variant
        for value, part in groups.items():
            name = f"{by} {value}" if value else f"without {by}"
            yield score, f"{name}, {count_of(len(part.cases), 'case')}", part


def repeat_text(experiment: Experiment, result: RunResult) -> str:
    """Returns the number of a repeat, if cases have several."""
    return f" #{result.repeat + 1}" * (experiment.repeats > 1)


def _beginning(problem: str) -> str:
    return cut(" ".join(problem[: 10 * _LINE].split()), _LINE, counted=False)


def _cost(usage: RunUsage) -> str:
    if usage.cost is not None:
        return f"${usage.cost:.4f}"
    if not usage.known_cost:
        return "an unknown amount" if usage.calls else "$0"
    counts = [
        f"{count_of(count, 'request')} to {model or 'an unnamed model'}"
        for model, count in usage.unpriced.items()
    ]
    reason = f" (no price is known for {', '.join(counts)})" * bool(counts)
    return f"at least ${usage.known_cost:.4f}{reason}"


def _tokens(usage: RunUsage) -> str:
    tokens = usage.usage
    counts = f", {tokens.input_tokens:,} input and {tokens.output_tokens:,} output tokens"
    return counts * bool(tokens.input_tokens or tokens.output_tokens)


def mean_text(summary: ScoreSummary) -> str:
    """Returns a mean with the number of scored runs, and its range if there are errors.

    For example: `88.9 % of 90 scored (80.0-90.0 % if the 10 errors were all wrong or right)`.
    """
    if summary.labels or summary.mean is None:
        return _mean(summary)
    of = "of" if summary.is_rate else "over"
    text = f"{'' if summary.is_rate else 'mean '}{_mean(summary)} {of} {summary.scored:,} scored"
    if summary.if_errors is None or not _errors_matter(summary):
        return text
    (low, high), one = summary.if_errors, summary.errors == 1
    ends, were = f"{low:.4g} to {high:.4g}", "had the lowest or the highest score"
    if summary.is_rate:
        ends = f"{_percent(low)}-{_percent(high)} %"
        were = "was wrong or right" if one else "were all wrong or right"
    return f"{text} ({ends} if {'the error' if one else f'the {summary.errors:,} errors'} {were})"


def _errors_matter(summary: ScoreSummary) -> bool:
    """Whether a mean has a range, because some of its scores are missing."""
    has_range = summary.mean is not None and summary.if_errors is not None
    return has_range and summary.errors > 0


def _percent(rate: float) -> str:
    return f"{100 * rate:.1f}"


def _mean(summary: ScoreSummary) -> str:
    if summary.labels:
        return ", ".join([f"{label} {count:,}" for label, count in summary.labels.items()])
    if summary.mean is None:
        return "no score"
    return f"{_percent(summary.mean)} %" if summary.is_rate else f"{summary.mean:.4g}"


def _cells(
    variant: VariantResults, score: str, summary: ScoreSummary
) -> tuple[str, str, str, str, str]:
    """Returns a mean, its interval, the range, the standard deviation and how many are scored."""
    interval, spread, deviation = "", "", ""
    if (ends := rate_interval(variant, score)) is not None:
        found = observations(variant, score)
        over = f" over {found}" * (found != count_of(summary.scored, "case"))
        interval = f"{_percent(ends[0])}-{_percent(ends[1])} %{over}"
    elif not summary.is_rate and summary.least != summary.most:
        spread = f"{summary.least:.4g} to {summary.most:.4g}"
        deviation = f"{summary.deviation or 0:.4g}" * (summary.cases > 1)
    of = f" of {summary.scored + summary.errors:,}" * bool(summary.errors)
    scored = f"{summary.scored:,}{of} scored"
    return _mean(summary), interval, spread, deviation, f"{scored}{_inapplicable(summary)}"


def _inapplicable(summary: ScoreSummary) -> str:
    return f", {summary.inapplicable:,} not applicable" * bool(summary.inapplicable)


def summary_text(variant: VariantResults, score: str) -> str:
    """Returns a mean, the interval of a rate or the spread, and how many runs are scored."""
    summary = variant.summary(score)
    _, interval, spread, deviation, scored = _cells(variant, score, summary)
    parts = [
        mean_text(summary),
        f"from {spread}" * bool(spread),
        f"standard deviation {deviation}" * bool(deviation),
        f"95 % interval {interval}" * bool(interval),
        scored if summary.errors else _inapplicable(summary)[2:],
    ]
    return ", ".join(filter(None, parts))


def comparison_lines(comparisons: Comparisons, *, verbose: bool = False) -> Iterator[str]:
    """Yields the differences of two variants and the verdicts, as lines of text.

    Below the table are the reasons of the verdicts and the cases that changed, and with `verbose`
    the tests, the numbers of pairs and the parts of the variance.
    """
    b, (before, after) = comparisons.b, comparisons.names
    left_out = f" in common, {len(comparisons.left_out):,} left out" * bool(comparisons.left_out)
    family = count_of(comparisons.family, "comparison")
    count = count_of(len(b.cases), "case")
    yield f"{after} against {before}: {count}{left_out}; p-values are corrected for {family}"
    if comparisons.is_same:
        yield f"nothing was changed: {NOTHING_DIFFERS}"
    scores = comparisons.scores.items()
    head = ("score", "verdict", before, after, "difference", "95 % interval", "p")
    yield from _table([head, *[_comparison_row(score, one) for score, one in scores]])
    for score, one in scores:
        if (result := one.result) is not None and one.is_tested:
            _, *reasons = _verdict(one)
            reasons += _change_texts(result, _ALL if verbose else _NAMED)
            if verbose:
                reasons += [difference_text(one), *_detail_texts(result)]
            yield f"  {score}: {'; '.join(reasons)}"
            for name, summary in ((before, one.a), (after, one.b)):
                if _errors_matter(summary):
                    yield f"  {score}, {name}: {mean_text(summary)}"
    if comparisons.uncompared:
        yield f"only one variant has {', '.join(comparisons.uncompared)}"


def _comparison_row(score: str, one: ScoreComparison) -> tuple[str, ...]:
    lower = "" if one.higher_is_better else " (lower is better)"
    difference = _difference_cells(one) if one.is_tested else ("", "", "")
    return f"{score}{lower}", _verdict(one)[0], _mean(one.a), _mean(one.b), *difference


def verdict_text(one: ScoreComparison) -> str:
    """Returns a verdict and the reason for it."""
    return "; ".join(_verdict(one))


def _verdict(one: ScoreComparison) -> list[str]:
    """Returns a verdict, its reason and the number of cases that are needed."""
    result = one.result
    if result is None:
        return ["labels are not compared"]
    if not one.is_tested:
        return ["not applicable to any case"]
    more = ""
    if result.more_cases is not None:
        unit = "more cluster" if result.clusters else "more case"
        more = f"about {count_of(result.more_cases, unit)} needed for the margin"
    return [*filter(None, (result.verdict, result.reason, more))]


def difference_text(one: ScoreComparison) -> str:
    """Returns a difference with its interval and its p-value."""
    result = one.result
    if result is None or result.difference is None:
        return _NONE
    difference, interval, p = _difference_cells(one)
    parts = [f"{difference}, 95 % interval {interval}"]
    if p:
        parts.append(f"p {p if p.startswith('<') else f'= {p}'} ({result.test})")
    if result.if_errors is not None:
        low, high = [_difference_format(one, it) for it in result.if_errors]
        parts.append(f"{low} to {high} by errors")
    return ", ".join(parts)


def _difference_cells(one: ScoreComparison) -> tuple[str, str, str]:
    """Returns a difference, its interval and its p-value."""
    result = one.result
    if result is None or result.difference is None:
        return _NONE, _NONE, ""
    is_rate = one.a.is_rate and one.b.is_rate
    interval, p = _NONE, ""
    if result.interval is not None:
        ends = [max(-1.0, min(it, 1.0)) if is_rate else it for it in result.interval]
        interval = " to ".join([_difference_format(one, it) for it in ends])
    if one.corrected_p is not None:
        is_small = one.corrected_p < _SMALLEST_P
        p = f"< {_SMALLEST_P}" if is_small else f"{one.corrected_p:.2g}"
    return f"{_difference_format(one, result.difference)}{' points' * is_rate}", interval, p


def _difference_format(one: ScoreComparison, value: float) -> str:
    if one.a.is_rate and one.b.is_rate:
        return f"{100 * value:+.1f}"
    return f"{value:+{_decimals(one.result.interval if one.result else None)}}"


def _decimals(interval: tuple[float, float] | None) -> str:
    """Returns the format of a difference and of its interval, whose width has three digits."""
    width = 0.0 if interval is None else interval[1] - interval[0]
    return f".{max(0, 2 - floor(log10(width)))}f" if 0 < width < inf else ".4g"


def _change_texts(result: Comparison, most: int) -> list[str]:
    parts: list[str] = []
    for cases, direction in ((result.up, "up"), (result.down, "down")):
        names = f": {', '.join(cases[:most])}" * bool(cases)
        parts.append(f"{len(cases):,} {direction}{names}{', …' * (len(cases) > most)}")
    return parts


def _detail_texts(result: Comparison) -> list[str]:
    within = f" in {count_of(result.clusters, 'cluster')}" * bool(result.clusters)
    if result.standard_error and result.error_without_clusters:
        errors = (
            f"{result.standard_error:.3g}, without clusters {result.error_without_clusters:.3g}"
        )
        within += f" (standard error {errors})"
    parts = [f"{result.cases:,} of {result.of:,} pairs{within}"]
    if result.repeat_variance is not None and result.case_variance is not None:
        between = f"{max(result.case_variance, 0):.3g} by cases"
        parts.append(f"variance {between}, {result.repeat_variance:.3g} by repeats")
    return parts


def run_problems(variant: VariantResults, result: RunResult) -> list[str]:
    """Returns why a run has no answer, its score errors, and its failing scores."""
    has_failed = result.outcome in ("failed", "provider")
    ended = [f"{result.outcome}: {result.error}"] * has_failed
    errors = [f"{score}: {error}" for score, error in result.score_errors.items()]
    failing = [
        ", ".join(filter(None, (f"{score}: {value_text(value)}", result.reasons.get(score))))
        for score, value in result.scores.items()
        if is_failing(variant, score, value)
    ]
    return [*ended, *failing, *errors]


def is_failing(variant: VariantResults, score: str, value: Value) -> bool:
    """Returns whether a score is false, or true where false is better."""
    info = variant.evaluators.get(score)
    return isinstance(value, bool) and value is not (info is None or info.scale.higher_is_better)


def value_text(value: Value) -> str:
    """Returns the text of a value, which is never empty."""
    match value:
        case bool():
            return "pass" if value else "fail"
        case float() | int():
            return f"{value:.4g}"
        case _:
            return value or "not applicable"
