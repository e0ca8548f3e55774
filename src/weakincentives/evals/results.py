"""The results of an experiment: values that are saved as JSON and compared."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Literal, Self

from ..limits import RunUsage
from .cases import Case, metadata_texts
from .scores import MAX_NUMBER, Scale, Value

__all__ = [
    "NO_SCORES",
    "NO_TEXTS",
    "NO_USAGE",
    "CaseInfo",
    "EvaluatorInfo",
    "Experiment",
    "Outcome",
    "RunResult",
    "ScoreSummary",
    "VariantResults",
]

type Outcome = Literal["answered", "failed", "provider", "unrun"]
"""How a run ended: with an answer, as a run failure, as a provider failure, or not at all."""


# shared, because they take a third of the memory of a result
NO_SCORES: Mapping[str, Value] = {}
NO_TEXTS: Mapping[str, str] = {}
_NO_METADATA: Mapping[str, Sequence[str]] = {}
NO_USAGE = RunUsage()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The result of one run of one case.

    `key` identifies the run's log. `scores` has the values by name, `None` for one that does not
    apply, and `score_errors` has the reasons why there is no value. `seconds` is the duration of
    the run. `judges` is the usage of the judges. Raises `ValueError` for a score that is too large.
    """

    case: str
    repeat: int
    outcome: Outcome
    key: str = ""
    error: str = ""
    scores: Mapping[str, Value] = field(default_factory=lambda: NO_SCORES)
    reasons: Mapping[str, str] = field(default_factory=lambda: NO_TEXTS)
    score_errors: Mapping[str, str] = field(default_factory=lambda: NO_TEXTS)
    usage: RunUsage = NO_USAGE
    judges: RunUsage = NO_USAGE
    seconds: float = 0.0

    def __post_init__(self) -> None:
        for score, value in self.scores.items():
            if isinstance(value, int | float) and not abs(value) <= MAX_NUMBER:
                raise ValueError(
                    f"the score {score!r} of {self.case!r} must be a finite number from "
                    f"-{MAX_NUMBER} to {MAX_NUMBER}, got {value:g}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseInfo:
    """A case as results need it; `digest` changes with its input and with what is expected.

    `metadata` has the short values as text, and those of a list one by one.
    """

    digest: str
    cluster: str = ""
    source: str = ""
    metadata: Mapping[str, Sequence[str]] = field(default_factory=lambda: _NO_METADATA)

    @classmethod
    def of(cls, case: Case, digest: str) -> Self:
        """Returns what results keep of a case."""
        metadata = metadata_texts(case) or _NO_METADATA
        return cls(digest=digest, cluster=case.cluster, source=case.source, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatorInfo:
    """A score's scale, and `key`, which changes with the evaluator; `judge` describes its model."""

    key: str
    scale: Scale
    judge: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSummary:
    """The mean of one score, or the counts of its labels.

    `scored` of `runs` have a value; `inapplicable` runs need none, and `errors` are score errors,
    failures and runs that did not take place. `if_errors` are the means if all errors had the
    lowest or the highest value; it is `None` if the scale has no bounds. Each case weighs the same.
    `deviation` is the standard deviation of the cases' means, for two or more cases, and `least`
    and `most` are the lowest and the highest value.
    """

    mean: float | None
    cases: int
    scored: int
    runs: int
    errors: int
    inapplicable: int
    if_errors: tuple[float, float] | None = None
    labels: Mapping[str, int] = field(default_factory=dict[str, int])
    is_rate: bool = False
    deviation: float | None = None
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantResults:
    """The results of one variant, by case and repeat, in the order of the dataset.

    `settings` describe the variant: its model, its override tag and its settings.
    """

    name: str
    cases: Mapping[str, CaseInfo]
    evaluators: Mapping[str, EvaluatorInfo]
    results: Sequence[RunResult]
    settings: Mapping[str, str] = field(default_factory=dict[str, str])

    def __repr__(self) -> str:  # short, because tracebacks and event loops show it
        return f"<VariantResults {self.name!r} of {len(self.results)} runs>"

    @property
    def usage(self) -> RunUsage:
        """What these runs have cost, even if they were reused from an earlier experiment."""
        return sum([result.usage for result in self.results], RunUsage())

    def groups(self, key: str) -> dict[str, "VariantResults"]:
        """Returns the results by the cases' values of this metadata key, or by `cluster`.

        A case with several values is in several groups, and one without any is in the group `""`.
        Raises `ValueError` if no case has the key.
        """
        groups: dict[str, dict[str, CaseInfo]] = {}
        for case, info in self.cases.items():
            own = [info.cluster] if key == "cluster" else info.metadata.get(key, ())
            for value in own or ("",):
                groups.setdefault(value, {})[case] = info
        if groups.keys() <= {""}:
            known = dict.fromkeys(key for info in self.cases.values() for key in info.metadata)
            listed = ", ".join(["cluster", *known])
            raise ValueError(f"no case has the key {key!r}; known: {listed}")
        return {
            value: replace(
                self, cases=cases, results=[it for it in self.results if it.case in cases]
            )
            for value, cases in sorted(groups.items())
        }

    def values(self, score: str) -> dict[str, list[float | None]]:
        """Returns the numbers of a score for each case and repeat, `None` for errors.

        A case is left out if the score does not apply to any of its runs.
        """
        values: dict[str, list[float | None]] = {}
        for result in self.results:
            value = result.scores.get(score)
            is_inapplicable = score in result.scores and value is None
            if not is_inapplicable and not isinstance(value, str):
                number = None if value is None else float(value)
                values.setdefault(result.case, []).append(number)
        return values

    def summary(self, score: str) -> ScoreSummary:
        """Returns the mean of a score and how much of it is missing.

        Raises `KeyError` for a score that the variant does not have.
        """
        if score not in self.evaluators:
            raise KeyError(f"no score {score!r}; there are {', '.join(self.evaluators)}")
        values, labels = self.values(score), Counter[str]()
        inapplicable = 0
        is_rate = True
        for result in self.results:
            value = result.scores.get(score)
            inapplicable += score in result.scores and value is None
            if isinstance(value, str):
                labels[value] += 1
            is_rate &= isinstance(value, bool | None)
        known = {
            case: [one for one in numbers if one is not None] for case, numbers in values.items()
        }
        means = [fmean(numbers) for numbers in known.values() if numbers]
        errors = sum(number is None for numbers in values.values() for number in numbers)
        bounds = (0.0, 1.0) if is_rate else self.evaluators[score].scale.bounds
        found = [number for numbers in known.values() for number in numbers]
        return ScoreSummary(
            mean=fmean(means) if means else None,
            cases=len(means),
            scored=len(found) + labels.total(),
            runs=len(self.results),
            errors=errors,
            inapplicable=inapplicable,
            if_errors=None if bounds is None or not values else _range(values, bounds),
            labels=dict(labels),
            is_rate=is_rate and bool(means),
            deviation=stdev(means) if len(means) > 1 else None,
            least=min(found, default=None),
            most=max(found, default=None),
        )


def _range(
    values: Mapping[str, Sequence[float | None]], bounds: tuple[float, float]
) -> tuple[float, float]:
    """Returns the means if all missing values were the lowest, and the highest, one."""
    low, high = (
        fmean([fmean([bound if it is None else it for it in case]) for case in values.values()])
        for bound in sorted(bounds)
    )
    return low, high


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """The results of all variants on one dataset.

    `spent` is what this experiment spent itself, without runs that it reused; `judges` is the
    judges' part of it. `reused` is the
    number of those runs. `is_complete` is false if it was interrupted or ran out of its budget.
    """

    dataset: str
    variants: Mapping[str, VariantResults]
    repeats: int
    folder: str = ""
    spent: RunUsage = field(default_factory=RunUsage)
    judges: RunUsage = field(default_factory=RunUsage)
    reused: int = 0
    is_complete: bool = True
    notes: Sequence[str] = ()

    def __repr__(self) -> str:
        return f"<Experiment {self.dataset!r}: {', '.join(self.variants)}>"

    def __getitem__(self, variant: str, /) -> VariantResults:
        try:
            return self.variants[variant]
        except KeyError:
            known = ", ".join(self.variants)
            raise KeyError(f"no variant {variant!r}; there are {known}") from None
