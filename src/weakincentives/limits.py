"""What an evaluation may take and has taken: deadline, budget, token usage. Plain values, no clock
inside.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal

__all__ = [
    "Budget",
    "Clock",
    "Deadline",
    "Spent",
    "TokenUsage",
    "check_count",
    "check_limits",
    "utc_now",
]

type Clock = Callable[[], datetime]
"""Gives the present time, timezone-aware."""


def utc_now() -> datetime:
    """The present time in UTC; the default `Clock`."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, order=True)
class Deadline:
    """A moment by which an evaluation must have ended.

    Raises `ValueError` for a time without a zone.
    """

    expires_at: datetime

    def __post_init__(self) -> None:
        if self.expires_at.utcoffset() is None:
            raise ValueError(
                f"Deadline needs a timezone-aware datetime, got {self.expires_at!r}; use datetime.now(UTC) + …"
            )

    @classmethod
    def after(cls, span: timedelta | float, *, now: datetime | None = None) -> "Deadline":
        """The deadline `span` (a timedelta or seconds) from `now`, by default from the present
        time.
        """
        delta = span if isinstance(span, timedelta) else timedelta(seconds=span)
        return cls((now or utc_now()) + delta)

    def remaining(self, now: datetime) -> timedelta:
        """Time left at `now`; negative once it has passed."""
        return self.expires_at - now

    def has_passed(self, now: datetime) -> bool:
        """Whether `now` is at or beyond the deadline."""
        return now >= self.expires_at


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Tokens of one or more provider calls; `cached_tokens` is the part of `input_tokens` served
    from a cache.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        return TokenUsage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
        )


@dataclass(frozen=True, slots=True)
class Spent:
    """What one or more evaluations have taken: tokens, provider requests (`calls`) and tool calls."""

    usage: TokenUsage = TokenUsage()
    calls: int = 0
    tool_calls: int = 0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            self.usage + other.usage, self.calls + other.calls, self.tool_calls + other.tool_calls
        )


_NOTHING = Spent()


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Upper bounds of an evaluation; `None` means unbounded. Raises `ValueError` for one that is
    negative or infinite.

    `max_calls` counts provider requests and `max_tool_calls` tool calls; `max_seconds` is
    wall-clock time from the start of the evaluation. Bounds are checked before each provider
    request and each tool call, `max_calls` before the former and `max_tool_calls` before the latter
    alone. Tokens count as providers report them, so the request that crosses a bound is still paid
    for. `spent` is what evaluations before have taken of the budget.
    """

    max_tokens: int | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    max_calls: int | None = None
    max_tool_calls: int | None = None
    max_seconds: float | None = None
    spent: Spent = _NOTHING

    def __post_init__(self) -> None:
        for name in self.__slots__:
            bound = None if name == "spent" else getattr(self, name)
            if bound is not None and not 0 <= bound < float("inf"):  # NaN fails this too
                raise ValueError(
                    f"Budget.{name} must be finite and not negative, got {bound!r}; None means unbounded"
                )

    def exceeded(self, spent: Spent, *, before: Literal["request", "tool call"]) -> str | None:
        """Names the first bound that leaves no room for one more request or tool call, or gives
        `None`.
        """
        if self.spent is not _NOTHING:
            spent += self.spent
        reached = [
            ("max_tokens", self.max_tokens, spent.usage.total_tokens),
            ("max_input_tokens", self.max_input_tokens, spent.usage.input_tokens),
            ("max_output_tokens", self.max_output_tokens, spent.usage.output_tokens),
            ("max_calls", self.max_calls, spent.calls)
            if before == "request"
            else ("max_tool_calls", self.max_tool_calls, spent.tool_calls),
        ]
        for name, bound, amount in reached:
            if bound is not None and amount >= bound:
                return f"{name}={bound} reached with {amount}"
        return None

    def tool_calls_left(self, spent: Spent) -> int | None:
        """How many more tool calls there is room for; `None` for any number."""
        return (
            None
            if self.max_tool_calls is None
            else self.max_tool_calls - (self.spent + spent).tool_calls
        )

    def less(self, spent: Spent) -> "Budget":
        """This budget after `spent`; `max_seconds` is dropped, a deadline carries it."""
        return replace(self, spent=self.spent + spent, max_seconds=None)

    def deadline(self, now: datetime) -> Deadline | None:
        """The deadline that `max_seconds` sets for an evaluation that starts at `now`; none beyond
        the calendar.
        """
        try:
            return None if self.max_seconds is None else Deadline.after(self.max_seconds, now=now)
        except OverflowError:
            return None


def check_count(name: str, count: object) -> None:
    """Raises `TypeError` for what is no whole number and `ValueError` for a negative one."""
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f"{name} is {count!r}; give a whole number")
    if count < 0:
        raise ValueError(f"{name} must not be negative, got {count}")


def check_limits(deadline: object, budget: object) -> None:
    """Raises `TypeError` for what is neither a limit nor `None`, such as a bare number of seconds."""
    if not isinstance(deadline, Deadline | None):
        raise TypeError(f"deadline is {deadline!r}; give a Deadline, such as Deadline.after(30)")
    if not isinstance(budget, Budget | None):
        raise TypeError(f"budget is {budget!r}; give a Budget, such as Budget(max_tokens=50_000)")
