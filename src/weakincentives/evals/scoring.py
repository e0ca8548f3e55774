"""Calls evaluators on a run, and checks their scores: their values, bounds and kinds."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from traceback import extract_tb

from ..displays import cut
from ..errors import WeakIncentivesError, message_of, plain_text
from ..inspection.secrets import mask_secrets
from ..record_types import AnyType
from ..signatures import signature_of
from .cases import Case
from .scores import (
    AskJudge,
    EvalRun,
    Evaluator,
    Judgement,
    Scale,
    Score,
    ScoreError,
    ScoreResult,
    Value,
)

__all__ = ["Kinds", "Scores", "check_evaluators", "score"]

_MAX_TEXT = 2_000


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
        kind = "bool" if isinstance(value, bool) else "str" if isinstance(value, str) else "number"
        first, other, other_id = self._first.setdefault(name, (kind, value, case_id))
        if first != kind:
            raise ScoreError(
                f"the score {name!r} must have one kind of value, got {value!r} for the case "
                f"{case_id!r} but {other!r} for the case {other_id!r}; return only bools, only "
                "numbers or only labels"
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
        one = given if isinstance(given, Evaluator) else _named(given)
        arguments = (None,) * (3 if one.is_judge else 2)
        try:
            signature_of(one.function).bind(*arguments)
        except TypeError as error:
            raise TypeError(
                f"the evaluator {one.name!r} must be a function (case, run): {error}"
            ) from None
        except ValueError:
            pass  # some built-in functions have no signature
        if one.name in checked:
            raise ValueError(
                f"two evaluators have the name {one.name!r}; give one of them another name="
            )
        checked[one.name] = one
    for name in checked:
        parts = name.split(".")
        if clash := checked.keys() & {".".join(parts[:end]) for end in range(1, len(parts))}:
            raise ValueError(
                f"the evaluator {clash.pop()!r} could give a score with the name of the evaluator "
                f"{name!r}; rename one of them"
            )
    return list(checked.values())


def _named(function: Callable[..., Judgement]) -> Evaluator:
    if not callable(function):
        raise TypeError(f"evaluators must be functions (case, run), got {function!r}")
    inner: AnyType = function
    while hasattr(inner, "func"):  # of a `partial`
        inner = inner.func
    name = getattr(inner, "__name__", type(inner).__name__)
    if name == "<lambda>":
        raise ValueError("a lambda has no name; use evaluator(name=…)(lambda case, run: …)")
    return Evaluator(function=function, name=name)


async def score(
    case: Case,
    run: EvalRun,
    evaluators: Sequence[Evaluator],
    ask: AskJudge | None = None,
    kinds: Kinds | None = None,
) -> Scores:
    """Calls all evaluators on a run; an exception is the error of that evaluator's score.

    Coroutines run at the same time. A plain function that blocks would keep other runs waiting, so
    it should be a coroutine that awaits `asyncio.to_thread(…)`.
    """
    scores, kinds = Scores(), kinds or Kinds()
    called = list[Evaluator]()
    for one in evaluators:
        if run.error is None or one.on_failure:
            called.append(one)
        else:
            scores.reasons[one.name] = "not applicable: the run failed"

    def check(name: str, value: Value) -> None:
        kinds.check(name, value, case.id)

    results = [_call(one, case, run, ask) for one in called]
    waiting = [_awaited(result) for result in results if isinstance(result, Awaitable)]
    finished = iter(await asyncio.gather(*waiting) if waiting else ())
    for one, started in zip(called, results, strict=True):
        result = next(finished) if isinstance(started, Awaitable) else started
        if isinstance(result, Exception):
            scores.errors[one.name] = _describe(result)
        elif not isinstance(result, Mapping):
            _add(scores, one.name, result, one.scale, check)
        else:
            for key, part in result.items():
                _add(scores, f"{one.name}.{key}", part, one.scale, check)
    return scores


def _add(
    scores: Scores,
    name: str,
    result: object,
    scale: Scale,
    check: Callable[[str, Value], None],
) -> None:
    """Adds the score, or the error if its value is not valid."""
    value, reason = result, ""
    if isinstance(result, Score):
        value, reason, scale = result.value, result.reason, result.scale or scale
    try:
        checked = _checked(value, scale)
        check(name, checked)
    except Exception as error:  # such as the `OverflowError` of a large integer
        scores.errors[name] = _describe(error)
        return
    scores.values[name], scores.scales[name] = checked, scale
    if reason:
        scores.reasons[name] = plain_text(reason)


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
    if not isfinite(number):
        raise ScoreError(f"the value must be a finite number, got {number}")
    if scale.bounds is not None and not min(scale.bounds) <= number <= max(scale.bounds):
        raise ScoreError(
            f"the value must be from {min(scale.bounds):g} to {max(scale.bounds):g}, got {number}; "
            "return another value, or change the bounds of the evaluator's scale"
        )
    return number


def _call(one: Evaluator, case: Case, run: EvalRun, ask: AskJudge | None) -> Judgement | Exception:
    try:
        return one(case, run, ask) if one.is_judge and ask else one(case, run)
    except Exception as error:  # reported as the score's error
        return error


async def _awaited(result: Awaitable[ScoreResult]) -> ScoreResult | Exception:
    try:
        return await result
    except Exception as error:
        return error


def _describe(error: Exception) -> str:
    """Returns the type and message of an exception, where it was raised, and no secrets."""
    text = message_of(error)
    if not isinstance(error, ScoreError):
        text = f"{type(error).__name__}: {text.removeprefix(f'{type(error).__name__}: ')}"
    frames = extract_tb(error.__traceback__)
    if frames and not isinstance(error, WeakIncentivesError):
        text = f"{text} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"
    return cut(mask_secrets(text), _MAX_TEXT)
