"""Reports for CI: JUnit XML, and Markdown for pull requests.

Texts of cases, scores and errors may contain anything: both formats show them literally.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from statistics import fmean

from ..displays import HIDDEN, code_span, escape_hidden
from .comparisons import Comparisons
from .gates import Gate
from .reports import (
    difference_text,
    is_failing,
    repeat_text,
    run_problems,
    score_rows,
    summary_text,
    value_text,
    verdict_text,
)
from .results import Experiment, RunResult, VariantResults

__all__ = ["junit_xml", "markdown"]

_MARKDOWN_CHARACTERS = 65_000  # a comment on GitHub has at most 65,536

# What XML 1.0 excludes or discourages, and all other hidden characters but those of emoji.
_NOT_XML = re.compile(rf"(?![\r\u200d])(?:{HIDDEN.pattern}|[\ufffe\uffff])")


def junit_xml(experiment: Experiment) -> Iterator[str]:
    """Yields the parts of a JUnit XML file: a suite for each variant, and a test for each run.

    A test fails if one of its scores is false, or true where false is better.
    """
    yield '<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n'
    for variant in experiment.variants.values():
        count = Counter(_junit_outcome(variant, result)[0] for result in variant.results)
        yield (
            f'<testsuite name={_attribute(variant.name)} tests="{len(variant.results)}" '
            f'failures="{count["failure"]}" errors="{count["error"]}" '
            f'skipped="{count["skipped"]}" time="{sum(it.seconds for it in variant.results):.3f}">'
            "\n<properties>\n"
        )
        for score in variant.evaluators:
            text = _attribute(summary_text(variant, score))
            yield f"<property name={_attribute(score)} value={text}/>\n"
        yield "</properties>\n"
        for result in variant.results:
            yield _junit_test(experiment, variant, result)
        yield "</testsuite>\n"
    yield "</testsuites>\n"


def _junit_test(experiment: Experiment, variant: VariantResults, result: RunResult) -> str:
    name = f"{result.case}{repeat_text(experiment, result)}"
    outcome, text = _junit_outcome(variant, result)
    scores = [
        f"{score}: {value_text(value)} {result.reasons.get(score, '')}".rstrip()
        for score, value in result.scores.items()
    ]
    first = _attribute(text.partition("\n")[0])
    end = f"<{outcome} message={first}>{_xml(text)}</{outcome}>\n" * bool(outcome)
    return (
        f"<testcase classname={_attribute(f'{experiment.dataset}.{variant.name}')} "
        f'name={_attribute(name)} time="{result.seconds:.3f}">\n'
        f"{end}<system-out>{_xml('\n'.join(scores))}</system-out>\n</testcase>\n"
    )


def _junit_outcome(variant: VariantResults, result: RunResult) -> tuple[str, str]:
    if result.outcome == "unrun":
        return "skipped", result.error or "not run"
    problems = "\n".join(run_problems(variant, result))
    if result.outcome != "answered":
        return "error", problems
    is_failure = any(is_failing(variant, score, it) for score, it in result.scores.items())
    return ("failure" if is_failure else "error" if problems else ""), problems


def _xml(text: str) -> str:
    def escaped(match: re.Match[str]) -> str:
        return match[0].encode("unicode_escape").decode()

    return escape(_NOT_XML.sub(escaped, text)).replace("\r", "&#13;")


def _attribute(text: str) -> str:
    return f'"{_xml(text).replace("\n", "&#10;").replace("\t", "&#9;")}"'


def markdown(
    experiment: Experiment,
    comparisons: Sequence[Comparisons] = (),
    by: str = "",
    gates: Sequence[Gate] = (),
) -> str:
    """Returns Markdown for a pull request, with at most 65,000 characters.

    After the gates, the verdicts and the scores, also by their cases' values of the metadata key
    `by`, it lists the cases that changed, those that became worst first, and the runs that failed;
    without comparisons, it lists all runs with problems.
    """
    variants, cell = experiment.variants.values(), _cell
    scores = [
        (cell(variant.name), cell(", ".join(filter(None, names))), _result_cell(part, names[0]))
        for variant in variants
        for *names, part in score_rows(variant, by)
    ]
    verdicts = [
        (
            cell(pair.names[1]),
            cell(pair.names[0]),
            cell(name),
            difference_text(one),
            verdict_text(one),
        )
        for pair in comparisons
        for name, one in pair.scores.items()
    ]
    changes = [change for pair in comparisons for change in _changed_cases(pair)]
    changes.sort(key=lambda change: change[0])
    problems = [
        (cell(variant.name), cell(f"{run.case}{repeat_text(experiment, run)}"), cell(problem))
        for variant in variants
        for run in variant.results
        if not comparisons or run.outcome in ("failed", "provider")
        for problem in run_problems(variant, run)
    ]
    text, limit = f"### {_cell(experiment.dataset)}\n", _MARKDOWN_CHARACTERS
    results = [(gate.result, cell(gate.reason)) for gate in gates]
    for head, rows, most in (
        (("gate", "reason"), results, limit // 4),
        (("variant", "against", "score", "difference", "verdict"), verdicts, limit // 4),
        (("variant", "score", "result"), scores, limit // 4),
        (("variant", "case", "score", "before", "after"), [row[1] for row in changes], limit),
        (("variant", "case", "problem"), problems, limit),
    ):
        text += _table(head, rows, min(most, limit - len(text)))
    return text


def _result_cell(variant: VariantResults, score: str) -> str:
    text = summary_text(variant, score)
    return _cell(text) if variant.summary(score).labels else text


def _changed_cases(pair: Comparisons) -> Iterator[tuple[float, Sequence[str]]]:
    """Yields each case's change as a share of its scale, positive if it is better, and cells."""
    for score, one in pair.scores.items():
        if one.result is None:
            continue
        before, after = pair.a.values(score), pair.b.values(score)
        is_rate, width = one.a.is_rate and one.b.is_rate, _width(pair, score)
        for case in (*one.result.up, *one.result.down):
            first, second = (
                fmean([it for it in values[case] if it is not None]) for values in (before, after)
            )
            cells = [f"{100 * it:.4g} %" if is_rate else f"{it:.4g}" for it in (first, second)]
            change = second - first if one.higher_is_better else first - second
            yield change / width, (_cell(pair.b.name), _cell(case), _cell(score), *cells)


def _width(pair: Comparisons, score: str) -> float:
    """Returns the width of a score's scale, so that changes of several scores can be sorted."""
    one, scale = pair.scores[score], pair.b.evaluators[score].scale
    if scale.bounds is not None and not one.a.is_rate:
        return abs(scale.bounds[1] - scale.bounds[0]) or 1.0
    ends = [it or 0.0 for it in (one.a.least, one.a.most, one.b.least, one.b.most)]
    return 1.0 if one.a.is_rate else max(map(abs, ends)) or 1.0


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], room: int) -> str:
    """Returns a table with as many rows as there is room for, and the number of other rows."""
    if not rows:
        return ""
    text = f"\n| {' | '.join(head)} |\n|{' --- |' * len(head)}\n"
    for index, row in enumerate(rows):
        line = f"| {' | '.join(row)} |\n"
        if len(text) + len(line) > room - 40:
            return f"{text}\nand {len(rows) - index:,} more\n"
        text += line
    return text


def _cell(text: str) -> str:
    """Returns Markdown that shows a text literally in a cell of a table."""
    return code_span(escape_hidden(text)).replace("|", "\\|")
