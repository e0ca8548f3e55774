"""`Score` is what an evaluator says about a run, and `Evaluator` is a function that says it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol

from ..errors import WeakIncentivesError
from ..evaluation.logged_run import LoggedRun
from ..evaluation.loop_adapter import LoopAdapter
from ..filesystem import Filesystem
from ..generics import Parametrized
from ..limits import RunUsage
from ..prompt.template import Prompt
from ..protocols import SessionProtocol
from ..serde.json_types import AnyJson
from .cases import Case

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    OutT = TypeVar("OutT", default=Any)
else:  # the default is for type checkers; the TypeVar of Python 3.12 does not support it
    from typing import TypeVar

    OutT = TypeVar("OutT")

__all__ = [
    "MAX_NUMBER",
    "AskJudge",
    "EvalCall",
    "EvalRun",
    "Evaluator",
    "JudgeModel",
    "Judgement",
    "Scale",
    "Score",
    "ScoreError",
    "ScoreResult",
    "Value",
    "evaluator",
    "model_name",
]

MAX_NUMBER = 2**53  # larger integers have no exact float; sums of larger numbers can overflow

type Value = bool | float | str | None
"""A score's value; text is a label, which is counted, and `None` means that it does not apply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How the values of a score are read.

    Values outside `bounds` are score errors; a bool has the bounds 0 and 1. `margin` is the
    difference between two variants that does not matter. Raises `ValueError` for bounds that are
    equal, not finite or too large to be added, and for a margin that is not positive.
    """

    bounds: tuple[float, float] | None = None
    higher_is_better: bool = True
    margin: float | None = None

    def __post_init__(self) -> None:
        low, high = self.bounds or (0.0, 1.0)
        if low == high or not all(abs(bound) <= MAX_NUMBER for bound in (low, high)):
            raise ValueError(
                f"bounds must be None or two different numbers from -{MAX_NUMBER} to {MAX_NUMBER}, "
                f"got {self.bounds}"
            )
        if self.margin is not None and not 0 < self.margin <= MAX_NUMBER:
            raise ValueError(f"margin must be more than 0, got {self.margin}")


@dataclass(frozen=True, slots=True)
class Score:
    """A score with the reason for it; `scale` replaces the evaluator's.

    A score has no truth value: use `score.value`.
    """

    value: Value
    reason: str = ""
    scale: Scale | None = field(default=None, kw_only=True)

    def __bool__(self) -> bool:
        raise TypeError("a Score has no truth value; use score.value")


class ScoreError(WeakIncentivesError):
    """A run has no score; the message is the reason.

    Any other exception of an evaluator has the same effect, but is reported with its type.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalCall:
    """A tool call of a run: its tool, its arguments, and the text that the model received."""

    name: str
    arguments: Mapping[str, AnyJson]
    text: str
    success: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalRun(Parametrized, Generic[OutT]):
    """A run that an evaluator judges: what it answered, and what it did.

    `session` and `files` are in the state in which the run left them; `files` is `None` for a
    prompt without a filesystem. `calls` are the run's own tool calls, in order, and `opened` are
    the keys of the sections that the model opened. `log` has all entries. `cost` is in dollars, or
    `None` if a price is unknown. A run that failed has an `error` and no `output`.
    """

    output: OutT | None
    text: str
    session: SessionProtocol
    files: Filesystem | None = None
    calls: tuple[EvalCall, ...] = ()
    opened: tuple[str, ...] = ()
    log: LoggedRun = field(default_factory=LoggedRun, repr=False)
    usage: RunUsage = field(default_factory=RunUsage)
    seconds: float = 0.0
    error: Exception | None = None

    @property
    def cost(self) -> float | None:
        """The cost of the run in dollars; `None` if it is unknown."""
        return self.usage.cost


class AskJudge(Protocol):
    """Runs a judge's prompt within the experiment's budget and pace.

    Answers that are in the experiment's folder are not asked again. Raises
    `PromptEvaluationError`.
    """

    async def __call__[Out](self, prompt: Prompt[Out], model: object, /) -> EvalRun[Out]: ...


type ScoreResult = Value | Score | Mapping[str, Value | Score]
"""The result of an evaluator; a mapping has several scores, which are named `evaluator.key`."""

type Judgement = ScoreResult | Awaitable[ScoreResult]

type JudgeModel = LoopAdapter | str | None
"""A judge's model; `None` is the model of the experiment."""


def model_name(model: JudgeModel) -> str:
    """Returns the name of a model without its provider."""
    return model.rpartition(":")[2] if isinstance(model, str) else model.model if model else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """A function that scores runs, with the name of its score.

    If `on_failure` is true, the function also receives runs that failed. `settings` are whatever
    else determines its scores, such as a threshold; if they or the function's source change, runs
    are scored again. A judge takes a third argument, which runs its prompt, and may have its own
    `model`.
    """

    function: Callable[..., Judgement]
    name: str
    scale: Scale = field(default_factory=Scale)
    on_failure: bool = False
    settings: AnyJson = None
    is_judge: bool = False
    model: JudgeModel = None

    def __call__(self, case: Case, run: EvalRun, /, *ask: AskJudge) -> Judgement:
        return self.function(case, run, *ask)


def evaluator(
    *,
    name: str = "",
    scale: Scale | None = None,
    on_failure: bool = False,
    settings: AnyJson = None,
) -> Callable[[Callable[[Case, EvalRun], Judgement]], Evaluator]:
    """Makes a function `(case, run)` an evaluator, which is named after it by default.

    A function without this decorator is an evaluator too. Raises `ValueError` for a lambda without
    `name`.
    """

    def make(function: Callable[[Case, EvalRun], Judgement]) -> Evaluator:
        inner = function.func if isinstance(function, partial) else function
        own_name = name or getattr(inner, "__name__", type(inner).__name__)
        if own_name == "<lambda>":
            raise ValueError("a lambda has no name; use evaluator(name=…)(lambda case, run: …)")
        return Evaluator(
            function=function,
            name=own_name,
            scale=scale or Scale(),
            on_failure=on_failure,
            settings=settings,
        )

    return make
