"""The values of pytest's marker `wink_eval`: each test runs one case, all cases one experiment.

Each test's report carries the experiment of its case, also from the workers of pytest-xdist.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Unpack

from ..displays import count_of
from ..limits import RunUsage, check_count
from ..serde.json_types import AnyValue
from .cases import Case, Dataset
from .comparisons import compare
from .distributions import wilson
from .experiment import evaluate, evaluate_async
from .experiment_files import experiment_json, parse_experiment
from .gates import Gate, comparison_gate, mean_gate
from .options import EvaluateOptions, Target
from .reports import (
    comparison_lines,
    experiment_lines,
    is_failing,
    run_problems,
    summary_text,
)
from .results import EvaluatorInfo, Experiment, RunResult, VariantResults
from .scores import MAX_NUMBER, Scale

__all__ = ["CaseEvaluation", "CaseReport", "EvalRule", "MarkedTest"]

_PASSES = "passes"
_MAX_REASONS = 5


@dataclass(frozen=True, slots=True)
class EvalRule:
    """The arguments of the marker: the cases, the repeats of each, and when tests fail.

    A repeat passes if all its true-or-false scores are true, or false where lower scores are
    better. A test fails if less than `share` of its repeats pass. `fail_under` is the least mean
    share over all cases, and `margin` the difference by which no variant may be worse than the
    first one; both are checked when all cases have run. Without any of the three, `share` is 1.
    Raises `TypeError` for anything but cases, and `ValueError` for no cases, two with the same id,
    and numbers that are out of range.
    """

    cases: Sequence[Case]
    repeats: int = field(default=1, kw_only=True)
    share: float | None = field(default=None, kw_only=True)
    fail_under: float | None = field(default=None, kw_only=True)
    margin: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        try:
            cases = self.cases if isinstance(self.cases, Dataset) else Dataset(self.cases)
        except TypeError as error:
            raise TypeError(
                "wink_eval takes cases, such as Dataset.load(path, template), "
                f"got {self.cases!r:.100}"
            ) from error
        if not cases:
            raise ValueError("the marker wink_eval must have at least one case, got none")
        object.__setattr__(self, "cases", cases)  # an iterator can only be read once
        check_count("repeats of the marker wink_eval", self.repeats, least=1)
        for name, most in (("share", 1), ("fail_under", 1), ("margin", MAX_NUMBER)):
            value: AnyValue = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if value is not None and not (is_number and 0 <= value <= most):
                raise ValueError(
                    f"{name} of the marker wink_eval must be from 0 to {most}, got {value!r}"
                )

    @property
    def least_share(self) -> float:
        """The least share of a case's repeats that must pass; 0 if only all cases matter."""
        has_gate = self.fail_under is not None or self.margin is not None
        return self.share if self.share is not None else 0.0 if has_gate else 1.0


@dataclass(slots=True)
class CaseEvaluation:
    """Runs one case of a marked test; `experiment` is the result."""

    rule: EvalRule = field(repr=False)
    index: int
    experiment: Experiment | None = field(default=None, repr=False)

    @property
    def case(self) -> Case:
        """The case of this test."""
        return self.rule.cases[self.index]

    def as_report(self, test: str) -> "CaseReport | None":
        """Returns the experiment for the test's report, as values that JSON can represent."""
        if self.experiment is None:
            return None
        rule, text = self.rule, "".join(experiment_json(self.experiment))
        return test, self.index, len(rule.cases), rule.fail_under, rule.margin, text

    def evaluate(self, target: Target, /, **options: Unpack[EvaluateOptions]) -> Experiment:
        """Runs the case like `weakincentives.evals.evaluate`, as often as the marker says.

        Raises `AssertionError` if fewer repeats pass than the marker's `share`.
        """
        __tracebackhide__ = True
        options["repeats"] = self.rule.repeats
        return self._checked(evaluate(target, [self.case], **options))

    async def evaluate_async(
        self, target: Target, /, **options: Unpack[EvaluateOptions]
    ) -> Experiment:
        """Like `evaluate`, without blocking the event loop."""
        __tracebackhide__ = True
        options["repeats"] = self.rule.repeats
        return self._checked(await evaluate_async(target, [self.case], **options))

    def _checked(self, experiment: Experiment) -> Experiment:
        __tracebackhide__ = True
        self.experiment, share = experiment, self.rule.least_share
        problems = [line for one in experiment.variants.values() for line in _problems(one, share)]
        if problems:
            raise AssertionError("\n".join(problems))
        return experiment


def _with_passes(variant: VariantResults) -> VariantResults:
    """Adds the score that says which repeats pass; it is missing if that is unknown."""
    results: list[RunResult] = []
    for result in variant.results:
        known = {name: it for name, it in result.scores.items() if isinstance(it, bool)}
        passes = not any(is_failing(variant, name, value) for name, value in known.items())
        is_certain = known and not result.score_errors and result.outcome == "answered"
        scored = {_PASSES: passes} if is_certain or not passes else {}
        results.append(replace(result, scores={**result.scores, **scored}))
    info = EvaluatorInfo(key=_PASSES, scale=Scale(bounds=(0, 1)))
    return replace(variant, results=results, evaluators={**variant.evaluators, _PASSES: info})


def _problems(variant: VariantResults, share: float) -> Iterator[str]:
    """Yields the verdict on a case, and the reasons of its repeats, unless enough of them pass."""
    passing = _with_passes(variant)
    gate = mean_gate(passing, _PASSES, share)
    if gate.result == "holds" or not share:
        return
    scores = [result.scores.get(_PASSES) for result in passing.results]
    passed, known = scores.count(True), len(scores) - scores.count(None)
    low, high = wilson(passed, known) or (0.0, 1.0)
    yield (
        f"{variant.results[0].case}, {variant.name}: {gate.result}: {passed} of {known} scored "
        f"repeats pass (95 % interval {100 * low:.1f}-{100 * high:.1f} %, n = {len(scores)}), and "
        f"{100 * share:g} % must"
    )
    failing = [it for it, score in zip(variant.results, scores, strict=True) if not score]
    for result in failing[:_MAX_REASONS]:
        reasons = "; ".join(run_problems(variant, result)) or "no true or false score"
        yield f"  repeat {result.repeat + 1}: {reasons}"


type CaseReport = tuple[str, int, int, float | None, float | None, str]
"""A test's name, its case's index, the number of cases, `fail_under`, `margin`, and JSON."""


@dataclass(slots=True)
class MarkedTest:
    """One marked test of `total` cases, with the experiments that ran, as JSON by case."""

    name: str
    total: int
    fail_under: float | None
    margin: float | None
    ran: dict[int, str] = field(default_factory=dict[int, str])

    def report(self) -> tuple[list[str], bool]:
        """Returns the lines of the report of all cases, and whether all gates hold."""
        parts = [parse_experiment(self.ran[index]) for index in sorted(self.ran)]
        experiment = _merged(self.name, parts)
        lines, first, *others = [*experiment_lines(experiment)], *experiment.variants.values()
        if len(parts) < self.total:
            ran = f"{len(parts):,} of {count_of(self.total, 'case')} ran"
            return [*lines, f"partial: {ran}, so no gate was checked"], True
        gates: list[Gate] = []
        if (limit := self.fail_under) is not None:
            for variant in map(_with_passes, (first, *others)):
                gate = mean_gate(variant, _PASSES, limit)
                found = summary_text(variant, _PASSES)
                gates.append(Gate(gate.result, f"{gate.reason}; {found}"))
        if self.margin is not None:
            for other in others:
                comparisons = compare(first, other, margin=self.margin)
                lines += comparison_lines(comparisons)
                gates.append(comparison_gate(comparisons))
        lines += [f"gate {gate.result}: {gate.reason}" for gate in gates]
        return lines, all(gate.result == "holds" for gate in gates)


def _merged(name: str, parts: Sequence[Experiment]) -> Experiment:
    """Returns one experiment with the cases of all parts."""
    variants: dict[str, VariantResults] = {}
    for part in parts:
        for key, one in part.variants.items():
            known = variants.get(key, replace(one, cases={}, evaluators={}, results=()))
            variants[key] = replace(
                known,
                cases={**known.cases, **one.cases},
                evaluators={**known.evaluators, **one.evaluators},
                results=[*known.results, *one.results],
            )
    return Experiment(
        dataset=name,
        variants=variants,
        repeats=max(part.repeats for part in parts),
        spent=sum([part.spent for part in parts], RunUsage()),
        judges=sum([part.judges for part in parts], RunUsage()),
        reused=sum(part.reused for part in parts),
        is_complete=all(part.is_complete for part in parts),
        notes=[],  # the folder of one case's runs also has those of the others
    )
