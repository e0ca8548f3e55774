"""Deadlines, budgets and usage of evaluations: plain values that read no clock by themselves."""

# `threading` has the same lock, and takes longer to import
from _thread import allocate_lock
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import total_ordering
from math import inf
from typing import Literal

__all__ = [
    "Budget",
    "Clock",
    "Deadline",
    "Meter",
    "Prices",
    "RunUsage",
    "TokenUsage",
    "check_count",
    "check_limits",
    "utc_now",
]

type Clock = Callable[[], datetime]
"""Returns the present time, timezone-aware."""


def utc_now() -> datetime:
    """Returns the present time in UTC; the default `Clock`."""
    return datetime.now(UTC)


@total_ordering
@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment by which an evaluation must have ended.

    Raises `TypeError` if it is not a `datetime` and `ValueError` for one without a time zone.
    """

    expires_at: datetime

    def __post_init__(self) -> None:
        if not isinstance(self.expires_at, datetime):
            raise TypeError(
                f"Deadline takes a datetime, got {self.expires_at!r}; for a number of seconds, "
                "use Deadline.after(seconds)"
            )
        if self.expires_at.utcoffset() is None:
            raise ValueError(
                f"Deadline takes a timezone-aware datetime, got {self.expires_at!r}; use "
                "datetime.now(UTC) + …"
            )

    @classmethod
    def after(cls, span: timedelta | float, *, now: datetime | None = None) -> "Deadline":
        """Returns the deadline `span` (a timedelta or seconds) after `now`, by default the present.

        Raises `TypeError` for another type of `span`.
        """
        if not isinstance(span, timedelta):
            _check_number("the span of Deadline.after", span, "seconds or a timedelta")
            span = timedelta(seconds=span)
        return cls((now or utc_now()) + span)

    def __lt__(self, other: "Deadline") -> bool:
        return self.expires_at < other.expires_at

    def remaining(self, now: datetime) -> timedelta:
        """Returns the time left at `now`, negative after the deadline."""
        return self.expires_at - now

    def has_passed(self, now: datetime) -> bool:
        """Tells whether `now` is at or after the deadline."""
        return now >= self.expires_at


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """The tokens of provider calls, as the provider reports them.

    `cached_tokens` are the input tokens that it read from its cache, `cache_write_tokens` those
    that it wrote there, and `reasoning_tokens` the output tokens that the model used to think. They
    are parts of the input and the output, and 0 where a provider does not report them.
    `cache_write_1h_tokens` are those of the written tokens that it stores for an hour, at a higher
    price.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_1h_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        return TokenUsage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.cache_write_1h_tokens + other.cache_write_1h_tokens,
        )


type Prices = Callable[[TokenUsage, str], float | None]
"""Returns the dollars of one request's usage by the model of that name; `None` if unknown."""


@dataclass(frozen=True, slots=True)
class RunUsage:
    """What evaluations used: tokens, provider requests (`calls`), tool calls and dollars.

    `cost` is `None` when nobody counted it or the price of a request is unknown.
    """

    usage: TokenUsage = TokenUsage()
    calls: int = 0
    tool_calls: int = 0
    cost: float | None = None

    def __add__(self, other: "RunUsage") -> "RunUsage":
        costs = [part.cost for part in (self, other) if part.calls]
        known = [cost for cost in costs if cost is not None]
        return RunUsage(
            self.usage + other.usage,
            self.calls + other.calls,
            self.tool_calls + other.tool_calls,
            sum(known) if known and len(known) == len(costs) else None,
        )


_NO_USAGE = RunUsage()


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Upper bounds of an evaluation; `None` means unbounded.

    `max_calls` counts provider requests and `max_tool_calls` tool calls: a request that a
    `FallbackAdapter` sends to several providers counts once. `max_seconds` is wall-clock time from
    the start of the evaluation. Each bound is checked before every request and tool call, except
    that `max_calls` applies only to requests, and `max_tool_calls` to tool calls. Tokens count as
    providers report them, so the request that crosses a bound is still paid for. `max_cost` is in
    dollars, by `RunConfig.prices`; after a request of unknown price it does not allow
    another. `run_usage` is what earlier evaluations used of the budget.

    Raises `TypeError` if a limit is not a number, `ValueError` for a negative or infinite one.
    """

    max_tokens: int | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    max_calls: int | None = None
    max_tool_calls: int | None = None
    max_seconds: float | None = None
    max_cost: float | None = None
    run_usage: RunUsage = _NO_USAGE

    def __post_init__(self) -> None:
        for name in self.__slots__:
            bound = getattr(self, name)
            if name == "run_usage" or bound is None:
                continue
            _check_number(f"Budget.{name}", bound, "a number, or None for no limit")
            if not 0 <= bound < inf:  # NaN fails this too
                raise ValueError(
                    f"Budget.{name} must be finite and not negative, got {bound!r}; use None for "
                    "no limit"
                )

    def exceeded(
        self, run_usage: RunUsage, *, before: Literal["request", "tool call"]
    ) -> str | None:
        """Names the first limit that one more request or tool call would exceed, or `None`."""
        total = run_usage if self.run_usage is _NO_USAGE else self.run_usage + run_usage
        amounts = [
            ("max_tokens", self.max_tokens, total.usage.total_tokens),
            ("max_input_tokens", self.max_input_tokens, total.usage.input_tokens),
            ("max_output_tokens", self.max_output_tokens, total.usage.output_tokens),
            ("max_calls", self.max_calls, total.calls)
            if before == "request"
            else ("max_tool_calls", self.max_tool_calls, total.tool_calls),
        ]
        for name, bound, amount in amounts:
            if bound is not None and amount >= bound:
                return f"{name}={bound} reached with {amount}"
        if self.max_cost is None or not total.calls:
            return None
        if total.cost is None:
            return f"max_cost={self.max_cost} cannot be kept: the price of a request is unknown"
        if total.cost >= self.max_cost:
            return f"max_cost={self.max_cost} reached with {total.cost:.6f} dollars"
        return None

    def tool_calls_left(self, run_usage: RunUsage) -> int | None:
        """Returns how many more tool calls are allowed; `None` if there is no limit."""
        if self.max_tool_calls is None:
            return None
        return max(0, self.max_tool_calls - (self.run_usage + run_usage).tool_calls)

    def after(self, run_usage: RunUsage) -> "Budget":
        """Returns the budget after `run_usage`, without `max_seconds`, which a deadline carries."""
        return replace(self, run_usage=self.run_usage + run_usage, max_seconds=None)

    def deadline(self, now: datetime) -> Deadline | None:
        """Returns the deadline of `max_seconds` after `now`; `None` beyond the calendar."""
        try:
            return None if self.max_seconds is None else Deadline.after(self.max_seconds, now=now)
        except OverflowError:
            return None


# One for all meters: a meter stays a plain value that can be copied and pickled.
_counting = allocate_lock()


@dataclass(slots=True)
class Meter:
    """Counts what a run and the runs nested in it use, and keeps them within their budgets.

    The meter of a nested run has its caller's as `parent`: what it counts, every meter above
    counts too, and each budget on the way must have room. Threads may share meters. `cost` is that
    of the answers with a price; `unpriced` is the last model that gave one without.
    """

    budget: Budget | None = None
    parent: "Meter | None" = None
    tokens: TokenUsage = TokenUsage()
    calls: int = 0
    tool_calls: int = 0
    cost: float = 0.0
    unpriced: str | None = None

    @property
    def usage(self) -> RunUsage:
        """The usage of the run and of the runs nested in it."""
        cost = self.cost if self.unpriced is None else None
        return RunUsage(self.tokens, self.calls, self.tool_calls, cost)

    @property
    def left(self) -> Budget | None:
        """What is left of the nearest budget, for an adapter that does not count in a meter."""
        if self.budget is None:
            return None if self.parent is None else self.parent.left
        return self.budget.after(self.usage)

    def exceeded(
        self, *, before: Literal["request", "tool call"], further: RunUsage | None = None
    ) -> str | None:
        """Names the first limit that one more request or tool call would exceed, or `None`.

        `further` is usage to include in this check only.
        """
        if (budget := self.budget) is not None:
            if self.unpriced is not None and budget.max_cost is not None:
                return (
                    f"max_cost={budget.max_cost} cannot be kept: the model "
                    f"{self.unpriced!r} answered, and its price is unknown"
                )
            usage = self.usage if further is None else self.usage + further
            if bound := budget.exceeded(usage, before=before):
                return bound
        if self.parent is None:
            return None
        return self.parent.exceeded(before=before, further=further)

    def tool_calls_left(self, count: int) -> int:
        """Returns how many of `count` more tool calls are allowed."""
        left = None if self.budget is None else self.budget.tool_calls_left(self.usage)
        if left is not None and left < count:
            count = left
        return count if self.parent is None else self.parent.tool_calls_left(count)

    def reserve_request(self) -> str | None:
        """Counts one more request, or names the limit that it would exceed."""
        with _counting:
            bound, meter = self.exceeded(before="request"), None
            if bound is None:
                meter = self
            while meter is not None:
                meter.calls += 1
                meter = meter.parent
        return bound

    def reserve_tool_calls(self, count: int) -> int:
        """Counts as many of `count` tool calls as the limits allow; returns how many."""
        with _counting:
            if self.exceeded(before="tool call"):
                return 0
            if count > 1:  # one is allowed
                count = self.tool_calls_left(count)
            meter: Meter | None = self
            while meter is not None:
                meter.tool_calls += count
                meter = meter.parent
        return count

    def add(
        self,
        tokens: TokenUsage,
        *,
        calls: int = 0,
        tool_calls: int = 0,
        cost: float | None = 0.0,
        model: str = "",
    ) -> None:
        """Counts what was used; without a cost, the price of `model` is unknown."""
        with _counting:
            meter: Meter | None = self
            while meter is not None:
                meter.tokens += tokens
                meter.calls += calls
                meter.tool_calls += tool_calls
                if cost is None:
                    meter.unpriced = model
                else:
                    meter.cost += cost
                meter = meter.parent

    def load(self, usage: RunUsage, model: str) -> None:
        """Counts what the meters above have counted already, such as that of a recorded run."""
        with _counting:
            self.tokens += usage.usage
            self.calls += usage.calls
            self.tool_calls += usage.tool_calls
            self.cost += usage.cost or 0.0
            if usage.calls and usage.cost is None:
                self.unpriced = model

    def add_run(self, usage: RunUsage, model: str) -> None:
        """Counts the usage of a run of `model` that another process or adapter has counted."""
        calls, tool_calls, cost = usage.calls, usage.tool_calls, usage.cost
        self.add(usage.usage, calls=calls, tool_calls=tool_calls, cost=cost, model=model)


def _check_number(name: str, value: object, remedy: str) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be {remedy}, got {value!r}")


def check_count(name: str, count: object) -> None:
    """Raises `TypeError` unless `count` is a whole number and `ValueError` if it is negative."""
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f"{name} must be an int, got {count!r}")
    if count < 0:
        raise ValueError(f"{name} must not be negative, got {count}")


def check_limits(deadline: object, budget: object) -> None:
    """Raises `TypeError` unless both are limits or `None`; seconds are not a deadline."""
    if deadline is not None and not isinstance(deadline, Deadline):
        raise TypeError(
            f"deadline must be a Deadline, such as Deadline.after(30), got {deadline!r}"
        )
    if budget is not None and not isinstance(budget, Budget):
        raise TypeError(
            f"budget must be a Budget, such as Budget(max_tokens=50_000), got {budget!r}"
        )
