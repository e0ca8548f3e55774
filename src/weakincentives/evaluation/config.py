"""`RunConfig` sets the limits and options for a run."""

from dataclasses import dataclass
from typing import Literal

from ..limits import Budget, Deadline, Prices, check_count, check_limits
from ..model_settings import Layered, ModelSettings

__all__ = ["InnerLoopConfig", "RunConfig", "inherited", "layered", "with_settings"]

_MIN_CHARS = 1_000  # so that a rejection, and the note about truncated text, always fit


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig(Layered):
    """Limits and options for a run.

    `max_turns` limits the number of provider requests. `max_repairs` limits the number of requests
    to correct an answer that does not match the declared output. `max_depth` limits how deeply runs
    can be nested in each other's tool calls: a deeper run raises `DepthLimitError`, which makes the
    call that started it fail.

    With `parallel_tool_calls="isolated"`, calls in the same turn to `"pure"` or `"repeatable"`
    tools run in parallel, isolated from each other, and take effect in call order. A call with more
    than `max_argument_chars` is rejected before its arguments are parsed. The model sees at most
    `max_result_chars` of a tool's result, with a note on how much is missing; events keep the
    complete result. `None` means no limit. `prices` returns the cost of a request, for
    `Budget.max_cost`; `weakincentives.contrib.prices.cost` is one such function. `settings`
    determine how the model answers. With `raise_handler_errors=True`, an exception in a handler
    that is not a `ToolError` ends the run, for example in a test; by default, the model is told.

    An adapter, a `MainLoop`, a `Chat` and each call accept a config. For each field, the nearest
    config that was created with it applies: a call's, then the chat's or the loop's, then the
    adapter's. `dataclasses.replace` creates a config with all fields.

    Raises `ValueError` for a negative number, a limit of fewer than 1,000 characters or an unknown
    `parallel_tool_calls`, and `TypeError` for a value of the wrong type or a field that does not
    exist.
    """

    max_turns: int | None = 100
    max_repairs: int = 2
    max_depth: int = 10
    supports_dynamic_tools: bool = False
    parallel_tool_calls: Literal["in_order", "isolated"] = "in_order"
    max_argument_chars: int | None = 1_000_000
    max_result_chars: int | None = 100_000
    deadline: Deadline | None = None
    budget: Budget | None = None
    prices: Prices | None = None
    settings: ModelSettings | None = None
    raise_handler_errors: bool = False

    def __post_init__(self) -> None:
        if self.parallel_tool_calls not in ("in_order", "isolated"):
            raise ValueError(
                "parallel_tool_calls must be 'in_order' or 'isolated', got "
                f"{self.parallel_tool_calls!r}"
            )
        if self.max_turns is not None:
            check_count("max_turns", self.max_turns)
        check_count("max_repairs", self.max_repairs)
        check_count("max_depth", self.max_depth)
        _check_chars("max_argument_chars", self.max_argument_chars)
        _check_chars("max_result_chars", self.max_result_chars)
        check_limits(self.deadline, self.budget)
        if self.prices is not None and not callable(self.prices):
            raise TypeError(f"prices must be a function, got {self.prices!r}")
        if not isinstance(self.settings, ModelSettings | None):
            raise TypeError(f"settings must be ModelSettings, got {self.settings!r}")

    def check_prices(self) -> None:
        """Raises `ValueError` if a budget's cost cannot be limited."""
        if self.prices is None and self.budget is not None and self.budget.max_cost is not None:
            raise ValueError(
                f"cannot apply Budget.max_cost of {self.budget.max_cost} because there are no "
                "prices; pass config=RunConfig(prices=…), such as "
                "weakincentives.contrib.prices.cost"
            )


def layered(*configs: RunConfig | None) -> RunConfig | None:
    """Returns the fields of all configs; of a field that several have, the nearest, which is first.

    Returns `None` if there is no config.
    """
    merged = None
    for config in reversed(configs):
        if config is not None:
            merged = config if merged is None else config.over(merged)
    return merged


def inherited(config: RunConfig | None, prices: Prices | None) -> RunConfig | None:
    """Returns what a nested run inherits of a run's config, whose limits its parent enforces.

    Budget and deadline bind the parent and all its nested runs together. A forced tool call is for
    the parent's own tools.
    """
    if config is None:
        return None if prices is None else RunConfig(prices=prices)
    kept = config.without("budget", "deadline")
    if (settings := kept.settings) is not None:
        kept = RunConfig(settings=settings.without("tool_choice")).over(kept.without("settings"))
    if prices is not None:
        kept = RunConfig(prices=prices).over(kept)
    return kept if kept.given else None


def with_settings(config: RunConfig | None, settings: ModelSettings | None) -> RunConfig | None:
    """Returns a config with these settings over its own."""
    if settings is None:
        return config
    nearer = RunConfig(settings=settings)
    return layered(nearer, config) if settings.given else config


def _check_chars(name: str, limit: int | None) -> None:
    if limit is None:
        return
    check_count(name, limit)
    if limit < _MIN_CHARS:
        raise ValueError(f"{name} must be at least {_MIN_CHARS}, or None for no limit, got {limit}")


InnerLoopConfig = RunConfig  # the name until 0.2, still used by the seed documents
