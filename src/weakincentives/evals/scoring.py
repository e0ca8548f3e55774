"""Calls evaluators on a run, and checks their scores: their values, bounds and kinds."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from traceback import extract_tb

from ..cancellation import as_exception
from ..displays import cut
from ..errors import WeakIncentivesError, message_of, plain_text
from ..inspection.secrets import mask_secrets
from ..serde.json_types import AnyValue
from ..signatures import signature_of
from .cases import Case
from .scores import (
    MAX_NUMBER,
    AskJudge,
    EvalRun,
    Evaluator,
    Judgement,
    Scale,
    Score,
    ScoreError,
    Value,
    evaluator,
)

__all__ = ["Kinds", "Scores", "check_evaluators", "kind", "score"]

_MAX_TEXT = 2_000


def kind(value: Value) -> str:
    """Returns the kind of a value: `bool`, `str` or `number`."""
    return "bool" if isinstance(value, bool) else "str" if isinstance(value, str) else "number"


class Kinds:
    """The kinds of an experiment's scores: a score is a bool, a number or a label in all cases.

    An experiment that continues must `check` the scores that it reuses.
    """

    def __init__(self) -> None:
        self._first: dict[str, tuple[str, Value, str]] = {}

    def check(self, name: str, value: Value, case_id: str) -> None:
        """Raises `ScoreError` if the score's value in an earlier case was of another kind."""
        if value is None:
            return
        found = kind(value)
        first, other, other_id = self._first.setdefault(name, (found, value, case_id))
        if first != found:
            raise ScoreError(
                f"the score {name!r} must have one kind of value, got {value!r} for the case "
                f"{case_id!r} but {other!r} for the case {other_id!r}"
            )


@dataclass(slots=True, kw_only=True)
class Scores:
    """The scores of one run by name: values, reasons, score errors, and the scales of the values.

    A failed run has neither values nor errors from evaluators without `on_failure`, only a reason.
    """

    values: dict[str, Value] = field(default_factory=dict[str, Value])
    reasons: dict[str, str] = field(default_factory=dict[str, str])
    errors: dict[str, str] = field(default_factory=dict[str, str])
    scales: dict[str, Scale] = field(default_factory=dict[str, Scale])


def check_evaluators(evaluators: Iterable[Evaluator | Callable[..., Judgement]]) -> list[Evaluator]:
    """Returns the evaluators, with those that are plain functions named after the function.

    Raises `TypeError` for a function that does not take `(case, run)`, and `ValueError` for a
    missing name, for two evaluators with the same name, and for names such as `a` and `a.b`,
    because a mapping of `a` could have the key `b`.
    """
    checked: dict[str, Evaluator] = {}
    for given in evaluators:
        one = given if isinstance(given, Evaluator) else evaluator()(given)
        try:
            signature_of(one.function).bind(*["case", "run", "ask"][: 2 + one.is_judge])
        except (TypeError, ValueError) as error:
            problem = f"the evaluator {one.name!r} must be a function (case, run): {error}"
            raise TypeError(problem) from None
        if one.name in checked:
            raise ValueError(f"two evaluators have the name {one.name!r}; rename one of them")
        checked[one.name] = one
    for name, other in permutations(checked, 2):
        if other.startswith(f"{name}."):
            raise ValueError(
                f"the evaluator {name!r} could give a score with the name of the evaluator "
                f"{other!r}; rename one of them"
            )
    return list(checked.values())


async def score(
    case: Case,
    run: EvalRun,
    one: Evaluator,
    ask: AskJudge | None = None,
    kinds: Kinds | None = None,
) -> Scores:
    """Calls an evaluator on a run; an exception is the error of its score.

    A plain function that blocks would keep other runs waiting, so it should be a coroutine that
    awaits `asyncio.to_thread(…)`.
    """
    scores, kinds = Scores(), kinds or Kinds()
    if run.error is not None and not one.on_failure:
        scores.reasons[one.name] = "not applicable: the run failed"
        return scores
    try:
        result = one(case, run, ask) if one.is_judge and ask else one(case, run)
        if isinstance(result, Awaitable):
            result = await result
    except BaseException as error:  # reported as the score's error
        scores.errors[one.name] = _describe(as_exception(error))
        return scores
    parts: Mapping[str, AnyValue] = {one.name: result}
    if isinstance(result, Mapping):
        parts = {f"{one.name}.{key}": part for key, part in result.items()}
    for name, part in parts.items():
        given = part if isinstance(part, Score) else Score(part)
        scale = given.scale or one.scale
        try:
            value = _checked(given.value, scale)
            kinds.check(name, value, case.id)
        except Exception as error:  # such as the `ValueError` of the text of a huge integer
            scores.errors[name] = _describe(error)
            continue
        scores.values[name], scores.scales[name] = value, scale
        if given.reason:
            scores.reasons[name] = mask_secrets(plain_text(given.reason))
    return scores


def _checked(value: object, scale: Scale) -> Value:
    """Returns a value without subclasses of its type; raises `ScoreError` if it is not valid."""
    match value:
        case bool() | None:
            return value
        case str():
            return plain_text(value)
        case int() | float():
            number = int(value) if isinstance(value, int) else float(value)
        case _:
            raise ScoreError(
                "an evaluator must return a bool, a number, a label, None, a Score or a mapping of "
                f"these, got {cut(repr(value), 200)}"
            )
    if not abs(number) <= MAX_NUMBER:  # or NaN
        raise ScoreError(
            f"the value must be a finite number from -{MAX_NUMBER} to {MAX_NUMBER}, "
            f"got {cut(str(number), 50)}"
        )
    low, high = sorted(scale.bounds or (number, number))
    if not low <= number <= high:
        raise ScoreError(f"the value must be from {low:g} to {high:g}, got {number}")
    return number


def _describe(error: Exception) -> str:
    """Returns the type and message of an exception, where it was raised, and no secrets."""
    text, kind = message_of(error), type(error).__name__
    if not isinstance(error, ScoreError) and text.partition(":")[0] != kind:
        text = f"{kind}: {text}"
    frames = extract_tb(error.__traceback__)
    if frames and not isinstance(error, WeakIncentivesError):
        text = f"{text} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
    return cut(mask_secrets(text), _MAX_TEXT)
