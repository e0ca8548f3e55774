"""`calibrate` compares a judge's scores with labels given by people."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ..adapters.model_names import adapter_for
from ..displays import count_of
from ..evaluation.loop_adapter import LoopAdapter
from ..evaluation.main_loop import MainLoop
from ..event_loops import portal, run_on
from ..limits import check_count
from ..prompt.template import Prompt
from ..runtime.session import Session
from ..serde.json_types import AnyValue
from .cases import Case
from .comparison import Kappa, kappa
from .judges import Preference
from .options import AnyEvaluator
from .scores import EvalRun, JudgeModel, Value, model_name
from .scoring import Kinds, check_evaluators, kind, score

__all__ = ["Calibration", "Labelled", "LabelledScore", "calibrate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """An answer to a case, and the score that people give it."""

    case: Case
    text: str
    label: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledScore:
    """A judge's score of a labelled answer; `preferred` are a pair judge's answers to both orders.

    `error` is the reason why there is no value.
    """

    labelled: Labelled
    value: Value
    reason: str = ""
    error: str = ""
    preferred: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How well a judge agrees with people; read all of its numbers together."""

    scores: Sequence[LabelledScore]
    warnings: Sequence[str] = ()

    @property
    def scored(self) -> Sequence[LabelledScore]:
        """The scores that are not errors."""
        return [one for one in self.scores if not one.error]

    @property
    def agreement(self) -> Kappa | None:
        """The share of equal scores, and kappa with its interval; `None` without scores."""
        pairs = [(one.labelled.label, one.value) for one in self.scored]
        return kappa(pairs) if pairs else None

    @property
    def base_rate(self) -> float:
        """The share of the most frequent label, which is the agreement of always giving it."""
        labels = Counter(one.labelled.label for one in self.scores)
        return labels.most_common(1)[0][1] / len(self.scores)

    @property
    def position_bias(self) -> float | None:
        """The share of pairs in which the judge prefers the same position in both orders."""
        pairs = [one.preferred for one in self.scored if one.preferred]
        biased = sum({*pair} in ({"first"}, {"second"}) for pair in pairs)
        return biased / len(pairs) if pairs else None

    def __str__(self) -> str:
        parts = [f"{len(self.scored)} of {len(self.scores)} scored"]
        if found := self.agreement:
            shown = "undefined" if found.kappa is None else f"{found.kappa:.2f}"
            interval = " [{:.2f}, {:.2f}]".format(*found.interval) if found.interval else ""
            parts += [f"agreement {found.agreement:.1%}", f"kappa {shown}{interval}"]
        parts.append(f"base rate {self.base_rate:.1%}")
        if (bias := self.position_bias) is not None:
            parts.append(f"position bias {bias:.1%}")
        return "\n".join([", ".join(parts), *[f"warning: {text}" for text in self.warnings]])


def calibrate(
    judge: AnyEvaluator,
    labelled: Iterable[Labelled],
    *,
    model: JudgeModel = None,
    author: LoopAdapter | str = "",
    concurrency: int = 8,
) -> Calibration:
    """Compares the scores of a judge with labels that people have given.

    Labels must be of the kind of the judge's scores: true or false, numbers, or texts.
    `model` is the model of a judge that names none. `author` is the model that wrote the answers;
    the calibration has a warning if it is also the judge's, because models prefer their own
    answers. It also has a warning if all labels are equal, and for answers without a score. This
    function blocks, and can also be called while an event loop is running. Raises `ValueError` for
    no labels and for a judge without a model, and `TypeError` for labels of another kind than the
    judge's scores.
    """
    check_count("concurrency", concurrency, least=1)
    [checked] = check_evaluators([judge])
    name, items = checked.name, list(labelled)
    for item in items:
        if not isinstance(item, Labelled):
            raise TypeError(f"calibrate takes Labelled answers, got {item!r:.100}")
    if not items:
        raise ValueError("calibrate takes at least one labelled answer")
    if checked.is_judge and checked.model is None and model is None:
        adapter_for(None)  # raises `ValueError` unless a variable has the model
    kinds, turn = Kinds(), asyncio.Semaphore(concurrency)

    async def score_one(item: Labelled) -> LabelledScore:
        preferred: list[str] = []

        async def ask[Out](prompt: Prompt[Out], of: object, /) -> EvalRun[Out]:
            adapter: AnyValue = model if of is None else of  # `MainLoop` checks it
            done = await MainLoop(adapter).execute_async(prompt)
            if isinstance(done.output, Preference):
                preferred.append(done.output.better)
            return EvalRun(output=done.output, text=done.text, session=done.session)

        run: EvalRun = EvalRun(output=None, text=item.text, session=Session())
        async with turn:
            scores = await score(item.case, run, checked, ask, kinds)
        value, reason = scores.values.get(name), scores.reasons.get(name, "")
        if value is not None:
            _check_kind(name, value, item.label)
        error = scores.errors.get(name, "the judge gave no score" if value is None else "")
        return LabelledScore(
            labelled=item, value=value, reason=reason, error=error, preferred=preferred
        )

    async def score_all() -> list[LabelledScore]:
        return await asyncio.gather(*map(score_one, items))

    scores = run_on(portal.loop(), score_all())
    return Calibration(scores=scores, warnings=[*_warnings(scores, checked.model or model, author)])


def _warnings(
    scores: Sequence[LabelledScore], model: JudgeModel, author: LoopAdapter | str
) -> Iterator[str]:
    items = [one.labelled for one in scores]
    if errors := [one.error for one in scores if one.error]:
        yield f"{count_of(len(errors), 'answer')} without a score, first: {errors[0]}"
    if (own := model_name(model)) and own == model_name(author):
        yield f"judge and author are the same model, {own}, and models prefer their own answers"
    if items[1:] and all(item.label == items[0].label for item in items):
        yield (
            f"all labels are {items[0].label!r}, so the agreement does not show whether the judge "
            "recognizes other answers"
        )


def _check_kind(name: str, value: Value, label: Value) -> None:
    """Raises `TypeError` for a label that cannot be equal to the judge's scores."""
    found, given = kind(value), kind(label)
    is_bool = found == "bool" and label in (0, 1)  # 1 and 0 are true and false
    if found != given and not is_bool and label is not None:
        raise TypeError(
            f"labels must be of the same kind as the scores of {name!r}, got the label {label!r} "
            f"({given}) for the score {value!r} ({found})"
        )
