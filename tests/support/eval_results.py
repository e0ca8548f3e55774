"""Results of experiments for tests, written as one word per case and one character per repeat."""

import re
from collections.abc import Mapping, Sequence

from weakincentives.evals.results import (
    CaseInfo,
    EvaluatorInfo,
    Experiment,
    RunResult,
    VariantResults,
)
from weakincentives.evals.scores import Scale, Value

__all__ = ["experiment", "rows_of", "variant"]

_VALUES: Mapping[str, Value] = {"1": True, "0": False, "-": None}


def variant(
    name: str,
    scores: Mapping[str, str | Sequence[Sequence[Value]]],
    *,
    scales: Mapping[str, Scale] | None = None,
    clusters: Sequence[str] = (),
    digests: Mapping[str, str] | None = None,
    judge: str = "",
) -> VariantResults:
    """Returns a variant with these scores.

    In text, `1` and `0` are true and false, `-` does not apply, `E` is a score error, `F` a run
    that failed, and `U` a run that did not take place.
    """
    rows = {score: _rows(values) for score, values in scores.items()}
    first = next(iter(rows.values()), [])
    ids = [f"c{index}" for index in range(len(first))]
    results = [
        _result(case, repeat, {score: row[index][repeat] for score, row in rows.items()})
        for index, case in enumerate(ids)
        for repeat in range(len(first[index]))
    ]
    return VariantResults(
        name=name,
        cases={
            case: CaseInfo(
                digest=(digests or {}).get(case, "same"),
                cluster=clusters[index] if clusters else "",
            )
            for index, case in enumerate(ids)
        },
        evaluators={
            score: EvaluatorInfo(key="same", scale=(scales or {}).get(score, Scale()), judge=judge)
            for score in rows
        },
        results=results,
    )


def rows_of(report: str) -> list[list[str]]:
    """Returns the cells of each line of a report."""
    return [re.split(" {2,}", line.strip()) for line in report.splitlines()]


def experiment(*variants: VariantResults, repeats: int = 1) -> Experiment:
    return Experiment(
        dataset="cases", variants={one.name: one for one in variants}, repeats=repeats
    )


def _rows(values: str | Sequence[Sequence[Value]]) -> Sequence[Sequence[Value]]:
    if not isinstance(values, str):
        return values
    return [[_VALUES.get(char, char) for char in word] for word in values.split()]


def _result(case: str, repeat: int, found: Mapping[str, Value]) -> RunResult:
    if "F" in found.values():
        return RunResult(case=case, repeat=repeat, outcome="failed", error="the tool broke")
    if "U" in found.values():
        return RunResult(case=case, repeat=repeat, outcome="unrun", error="budget")
    return RunResult(
        case=case,
        repeat=repeat,
        outcome="answered",
        scores={score: value for score, value in found.items() if value != "E"},
        score_errors={score: "no verdict" for score, value in found.items() if value == "E"},
    )
