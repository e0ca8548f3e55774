"""Writes experiments as one HTML page that makes no requests: verdicts, scores, cases and runs.

The page has the reports of as many runs as its size allows, and says which ones it leaves out.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from html import escape
from itertools import chain
from pathlib import Path

from ..displays import count_of, cut
from ..inspection.event_log import Record
from ..inspection.logged_entries import records_of
from ..inspection.report import (
    ReportedRun,
    asset,
    data_tag,
    page_frame,
    readable,
    report_frame,
    run_data,
)
from ..inspection.run_timeline import read_run
from ..serde.json_types import AnyJson
from .comparisons import Comparisons, ScoreComparison
from .gates import rate_interval
from .reports import (
    comparison_lines,
    difference_text,
    experiment_lines,
    run_problems,
    summary_text,
    verdict_text,
)
from .results import Experiment, RunResult, VariantResults
from .run_logs import RunFile

__all__ = ["experiment_page"]

_MAX_BYTES = 18_000_000
_SMALLEST_RUN = 4_000  # bytes; no further log is read when less space is left
_MAX_TEXT = 200  # characters of a reason or an error in the table; a run's report has all of them
_FILES = Path(__file__).parent

type _Clean = Callable[[AnyJson], AnyJson]


def experiment_page(
    *experiments: Experiment,
    comparisons: Sequence[Comparisons] = (),
    mask: Callable[[str], str] = str,
    max_bytes: int = _MAX_BYTES,
) -> Iterator[str]:
    """Yields the parts of a page for one experiment, or for two side by side.

    The page has at most `max_bytes`, unless its table alone is larger: then it has no reports of
    runs. Apparent secrets are masked, as in the reports of runs, and `mask` masks others in JSON.
    """
    clean = partial(_cleaned, mask)
    table = _Table(experiments, comparisons)
    index = table.index()
    frame = data_tag("frame", report_frame("Run"))
    script = asset("elements.js") + _own("page.js")
    style = asset("report.css") + _own("page.css")
    title = str(clean(index["title"]))
    head, tail = page_frame(title, style, script, report_inside=True)
    lines = [line for one in experiments for line in experiment_lines(one)]
    lines += [line for one in comparisons for line in comparison_lines(one)]
    text = escape(str(clean("\n".join(lines))))
    tail = f"<noscript><pre>{text}</pre></noscript>\n{tail}"
    yield head + frame
    fixed = (head, frame, tail, data_tag("index", clean(index)))
    space = max_bytes - sum(len(part.encode()) for part in fixed) - _SMALLEST_RUN
    written = 0
    for number in table.most_interesting_first():
        if space < _SMALLEST_RUN:
            break
        tag = table.report(number, space, clean)
        if (size := len(tag.encode())) and size <= space:
            space, written = space - size, written + 1
            yield tag
    index["left_out"] = table.left_out(written, max_bytes)
    yield data_tag("index", clean(index)) + tail


def _own(name: str) -> str:
    return (_FILES / name).read_text(encoding="utf-8")


def _cleaned(mask: Callable[[str], str], value: AnyJson) -> AnyJson:
    return readable(json.loads(mask(json.dumps(value))))


class _Table:
    """The cases, variants and runs of experiments, with a number for each."""

    def __init__(
        self, experiments: Sequence[Experiment], comparisons: Sequence[Comparisons]
    ) -> None:
        self._experiments, self._comparisons = experiments, comparisons
        self._columns = [(one, it) for one in experiments for it in one.variants.values()]
        variants = [variant for _, variant in self._columns]
        self._names = [variant.name for variant in variants]
        self._scores = list(dict.fromkeys(chain.from_iterable(one.evaluators for one in variants)))
        self._cases = {case: info for one in variants for case, info in one.cases.items()}
        self._runs = [(column, it) for column, one in enumerate(variants) for it in one.results]
        self._changes: dict[str, tuple[list[str], list[str]]] = {}  # worse and better, by case
        for comparison in comparisons:
            label = self._label(comparison.b, 1)
            for score, one in comparison.scores.items():
                worse = {*one.worse}
                for case in (*one.result.up, *one.result.down) if one.result else ():
                    lists = self._changes.setdefault(case, ([], []))
                    lists[case not in worse].append(f"{score} ({label})")

    def _label(self, variant: VariantResults, experiment: int) -> str:
        """Returns a variant's name, which says its experiment if both have one of that name."""
        is_ambiguous = self._names.count(variant.name) > 1
        return f"{variant.name} ({'AB'[experiment]})" if is_ambiguous else variant.name

    def index(self) -> Record:
        """Returns all data but the runs' reports."""
        numbers = {case: number for number, case in enumerate(self._cases)}
        notes = [note for one in self._experiments for note in one.notes]
        if not all(one.is_complete for one in self._experiments):
            notes.append("The experiment is not complete.")
        return {
            "title": " and ".join(dict.fromkeys([one.dataset for one in self._experiments])),
            "facts": [next(experiment_lines(one)) for one in self._experiments],
            "notes": notes,
            "left_out": "",
            "scores": self._scores,
            "variants": [self._variant(*column) for column in self._columns],
            "cases": [
                [case, info.cluster, info.source, *self._changes.get(case, ([], []))]
                for case, info in self._cases.items()
            ],
            "runs": [self._run(column, numbers[it.case], it) for column, it in self._runs],
            "comparisons": [self._comparison(one) for one in self._comparisons],
        }

    def _variant(self, experiment: Experiment, variant: VariantResults) -> Record:
        number = [it is experiment for it in self._experiments].index(True)
        settings = [f"{name}: {value}" for name, value in variant.settings.items() if value]
        scores = [_score(variant, name) for name in self._scores]
        return {"name": self._label(variant, number), "settings": settings, "scores": scores}

    def _run(self, column: int, case: int, result: RunResult) -> list[object]:
        values = [
            [result.scores[name], cut(result.reasons.get(name, ""), _MAX_TEXT)]
            if name in result.scores
            else cut(result.score_errors.get(name, ""), _MAX_TEXT)
            for name in self._scores
        ]
        error = cut(result.error, _MAX_TEXT)
        return [column, case, result.repeat, result.outcome, values, error]

    def _comparison(self, comparison: Comparisons) -> Record:
        a, b = self._label(comparison.a, 0), self._label(comparison.b, 1)
        scores = [
            {
                "score": name,
                "verdict": one.result.verdict if one.result and one.is_tested else "",
                "words": _in_words(a, b, name, one),
                "text": difference_text(one) if one.is_tested else "",
                "difference": one.result and one.result.difference,
                "interval": one.result and one.result.interval,
            }
            for name, one in comparison.scores.items()
        ]
        return {"head": next(comparison_lines(comparison)), "scores": scores}

    def most_interesting_first(self) -> list[int]:
        """Returns the runs' numbers: first those of failures and of cases that changed."""

        def is_dull(number: int) -> bool:
            column, result = self._runs[number]
            problems = run_problems(self._columns[column][1], result)
            return not problems and result.case not in self._changes

        return sorted(range(len(self._runs)), key=is_dull)

    def report(self, number: int, space: int, clean: _Clean) -> str:
        """Returns a run's report as a tag, or `""` if the run has no log or a larger one."""
        column, result = self._runs[number]
        experiment, _ = self._columns[column]
        path = Path(experiment.folder, "runs", f"{result.key}.jsonl")
        try:
            if not experiment.folder or not result.key or path.stat().st_size > space:
                return ""
            log = RunFile.log(path)
        except OSError:
            return ""
        records = [clean(record) for record in records_of(log, result.key)]
        data = run_data(
            ReportedRun(name="run", run=read_run(records), price=lambda it: it.get("cost"))
        )
        texts = {"error": result.error, "reasons": result.reasons}
        return data_tag(f"run-{number}", {**data, "texts": clean(texts)})

    def left_out(self, written: int, max_bytes: int) -> str:
        """Says how many reports are not on the page, and where their logs are."""
        total = sum(result.outcome != "unrun" for _, result in self._runs)
        if written == total:
            return ""
        missing = f"{total - written:,} of {count_of(total, 'report')} of runs are not on this page"
        folders = dict.fromkeys(one.folder for one in self._experiments if one.folder)
        if not folders:
            return f"{missing}, because the experiment kept no logs."
        logs = " and ".join([f"{Path(folder) / 'runs'}" for folder in folders])
        return (
            f"{missing}, which has at most {max_bytes / 1e6:g} MB. Their logs are in {logs}. For a "
            "page with the reports of a case, run wink eval again with --case and --html: the runs "
            "are reused."
        )


def _score(variant: VariantResults, name: str) -> Record | None:
    """Returns the text of a score, and its mark on the scale if it has one."""
    if name not in variant.evaluators:
        return None
    summary, scale = variant.summary(name), variant.evaluators[name].scale
    bounds = (0.0, 1.0) if summary.is_rate else scale.bounds
    return {
        "text": summary_text(variant, name),
        "mean": summary.mean,
        "interval": rate_interval(variant, name),
        "bounds": None if summary.mean is None else bounds,
        "lower": not scale.higher_is_better,
    }


def _in_words(a: str, b: str, score: str, one: ScoreComparison) -> str:
    """Returns a verdict as a sentence."""
    verdict, _, reason = verdict_text(one).partition("; ")
    words = {
        "better": f"{b} is better than {a} in {score}",
        "worse": f"{b} is worse than {a} in {score}",
        "equivalent": f"{b} and {a} are equivalent within the margin in {score}",
        "inconclusive": f"It is not clear whether {b} is better or worse than {a} in {score}",
    }.get(verdict, f"{score}: {verdict}")  # it has labels, or applies to no case
    return f"{words}: {reason}." if reason else f"{words}."
