"""The arguments of `evaluate`, and what it reports while it runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from os import PathLike
from typing import TypedDict

from ..adapters.core import LoopAdapter
from ..evaluation.approval import Approver
from ..evaluation.config import RunConfig
from ..limits import Budget, Prices, RunUsage
from ..model_settings import ModelSettings
from ..prompt.template import AnyPrompt, AnyTemplate
from .cases import Case
from .results import RunResult
from .scores import EvalRun, Evaluator, Judgement

__all__ = [
    "AnyEvaluator",
    "EvaluateOptions",
    "Progress",
    "Target",
    "Variant",
    "checked_budget",
    "known_prices",
]

_LIMITS = (
    *("max_cost", "max_tokens", "max_input_tokens", "max_output_tokens", "max_calls"),
    "max_seconds",
)

type AnyEvaluator = Evaluator | Callable[..., Judgement]

type Target = AnyTemplate | Callable[[Case], AnyPrompt | AnyTemplate]
"""A template, to which each case's params are bound, or a function that returns a case's prompt.

A `DurableTarget` is such a function, whose runs are performed by workers.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to run the cases: whatever is given here replaces the experiment's own.

    `tag` names overrides of the prompt's texts, as in `wink overrides`.
    """

    name: str
    tag: str = ""
    prompt: Target | None = None
    model: LoopAdapter | str | None = None
    settings: ModelSettings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far an experiment is.

    `reused` of the `done` runs were not performed because the folder has their logs. `seconds_left`
    is an estimate from the runs that were performed. `result` is that of the run that has ended,
    and `variant` is its variant if there are several; while a provider asks for a pause, there is
    no result, and `waiting_until` is its end.
    """

    done: int
    total: int
    reused: int
    failures: int
    spent: RunUsage
    result: RunResult | None = None
    variant: str = ""
    seconds_left: float | None = None
    waiting_until: datetime | None = None


class EvaluateOptions(TypedDict, total=False):
    """The arguments of `evaluate`, except the target and the dataset."""

    evaluators: Sequence[AnyEvaluator]
    variants: Sequence[Variant]
    model: LoopAdapter | str | None
    settings: ModelSettings | None
    config: RunConfig | None
    repeats: int
    concurrency: int
    budget: Budget | None
    prices: Prices | None
    timeout: float | None
    max_wait: float
    folder: str | PathLike[str] | None
    types: Sequence[type[object]]
    approver: Approver | None
    progress: Callable[[Progress], object] | None
    on_run: Callable[[RunResult, EvalRun], object] | None
    explain: bool


def checked_budget(budget: Budget | None) -> Budget | None:
    """Returns a budget; raises `ValueError` for limits that are not for experiments."""
    if budget is None:
        return None
    for name in ("max_tool_calls", "meter"):
        if getattr(budget, name) is not None:
            raise ValueError(
                f"the budget of an experiment cannot have {name}, which is for one run; pass it in "
                "config=RunConfig(budget=…)"
            )
    for name in _LIMITS:
        limit = getattr(budget, name)
        if limit is not None and limit <= 0:
            raise ValueError(f"the budget's {name} must be more than 0, got {limit}")
    return budget


def known_prices() -> Prices | None:
    """Returns the prices of the extra `prices`, if it is installed."""
    if find_spec("genai_prices") is None:
        return None
    from ..contrib.prices import cost

    return cost
