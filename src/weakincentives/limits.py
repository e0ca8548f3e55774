"""Deadlines, budgets and usage of evaluations: plain values that never read the clock."""

# the same lock as in `threading`, which takes longer to import
from _thread import allocate_lock
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache, total_ordering
from itertools import chain
from math import inf
from typing import Literal, Self

from .signatures import check_names

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
    "check_price",
    "utc_now",
]

type Clock = Callable[[], datetime]
"""Returns the current time as a timezone-aware `datetime`."""


def utc_now() -> datetime:
    """Returns the current time in UTC; the default `Clock`."""
    return datetime.now(UTC)


@total_ordering
@dataclass(frozen=True, slots=True)
class Deadline:
    """The time by which an evaluation must end.

    Raises `TypeError` if it is not a `datetime`, and `ValueError` if it has no time zone.
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
        """Returns the deadline `span` after `now`, which defaults to the current time.

        `span` is a timedelta or a number of seconds; raises `TypeError` for any other type.
        """
        if not isinstance(span, timedelta):
            _check_number("the span of Deadline.after", span, "seconds or a timedelta")
            span = timedelta(seconds=span)
        return cls((now or utc_now()) + span)

    def __lt__(self, other: "Deadline") -> bool:
        return self.expires_at < other.expires_at

    def remaining(self, now: datetime) -> timedelta:
        """Returns the time left at `now`, which is negative after the deadline."""
        return self.expires_at - now

    def has_passed(self, now: datetime) -> bool:
        """Returns whether `now` is at or after the deadline."""
        return now >= self.expires_at


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """The tokens used by provider calls, as reported by the provider.

    `cached_tokens` are the input tokens read from the provider's cache, `cache_write_tokens` are
    the input tokens written to it, and `reasoning_tokens` are the output tokens that the model used
    to think. They are included in the input and output tokens, and are 0 if a provider does not
    report them. `cache_write_1h_tokens` are the written tokens that the provider stores for an
    hour, at a higher price.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_1h_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """The sum of input and output tokens."""
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


_ALL_PRICED: Mapping[str, int] = {}  # shared, because there is one for each run

type Prices = Callable[[TokenUsage, str], float | None]
"""Returns the cost of a request in dollars, by usage and model name; `None` if unknown."""


@dataclass(frozen=True, slots=True)
class RunUsage:
    """The usage of evaluations: tokens, provider requests (`calls`), tool calls and dollars.

    `cost` is `None` if it was not counted or the price of a request is unknown. `known_cost` is
    then the sum of the known prices, and `unpriced` the number of the other requests by model.
    """

    usage: TokenUsage = TokenUsage()
    calls: int = 0
    tool_calls: int = 0
    cost: float | None = None
    known_cost: float = 0.0
    unpriced: Mapping[str, int] = field(default_factory=lambda: _ALL_PRICED, hash=False)

    def __post_init__(self) -> None:
        if self.unpriced:
            object.__setattr__(self, "unpriced", _shared(tuple(self.unpriced.items())))

    def __add__(self, other: "RunUsage") -> "RunUsage":
        paid = [part for part in (self, other) if part.calls]
        known = sum([part.cost or part.known_cost for part in paid], 0.0)
        is_known = bool(paid) and all(part.cost is not None for part in paid)
        return RunUsage(
            self.usage + other.usage,
            self.calls + other.calls,
            self.tool_calls + other.tool_calls,
            known if is_known else None,
            0.0 if is_known else known,
            _joined(self.unpriced, other.unpriced),
        )


@lru_cache(maxsize=1_024)
def _shared(counts: tuple[tuple[str, int], ...]) -> Mapping[str, int]:
    return dict(counts)  # one for all runs that are alike


def _joined(some: Mapping[str, int], others: Mapping[str, int]) -> Mapping[str, int]:
    if not some or not others:
        return some or others
    return {model: some.get(model, 0) + others.get(model, 0) for model in {**some, **others}}


_NO_USAGE = RunUsage()


class _CheckedNames:
    """Rejects a misspelt field and names the nearest one."""

    # In a base class, because a class's own `__new__` would hide its fields from `help(Budget)`.
    __slots__ = ()

    def __new__(cls, **given: object) -> Self:
        check_names(f"{cls.__name__}()", given, cls.__slots__)
        return object.__new__(cls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget(_CheckedNames):
    """Limits on the usage of an evaluation; `None` means no limit.

    `max_calls` limits provider requests, and `max_tool_calls` limits tool calls. A request that a
    `FallbackAdapter` sends to several providers counts once. `max_seconds` is wall-clock time from
    the start of the evaluation. Each limit is checked before every request and tool call, except
    that `max_calls` applies only to requests, and `max_tool_calls` only to tool calls. Tokens are
    counted when a provider reports them, so the request that exceeds a limit is still paid for.
    `max_cost` is in dollars, calculated with `RunConfig.prices`; after a request with an unknown
    price, no further requests are allowed. `run_usage` is the part of the budget that earlier
    evaluations used. Runs whose budgets have the same `meter` share one allowance: the limits apply
    to the sum of their usage, which the meter counts, even if they run at the same time.

    Raises `TypeError` for a limit that does not exist or is not a number, and `ValueError` if it is
    negative or infinite.
    """

    max_tokens: int | None = None
    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    max_calls: int | None = None
    max_tool_calls: int | None = None
    max_seconds: float | None = None
    max_cost: float | None = None
    run_usage: RunUsage = _NO_USAGE
    meter: "Meter | None" = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name in self.__slots__:
            bound = getattr(self, name)
            if name in ("run_usage", "meter") or bound is None:
                continue
            _check_number(f"Budget.{name}", bound, "a number, or None for no limit")
            if not 0 <= bound < inf:  # also false for NaN
                raise ValueError(
                    f"Budget.{name} must be finite and not negative, got {bound!r}; use None for "
                    "no limit"
                )

    def exceeded(
        self, run_usage: RunUsage, *, before: Literal["request", "tool call"]
    ) -> str | None:
        """Returns the first limit that one more request or tool call would exceed, or `None`."""
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
        """Returns the budget after `run_usage`, without `max_seconds`, which becomes a deadline."""
        left = self.run_usage + run_usage
        return replace(self, run_usage=left, max_seconds=None, meter=None)

    def deadline(self, now: datetime) -> Deadline | None:
        """Returns the deadline `max_seconds` after `now`; `None` if that is out of range."""
        try:
            return None if self.max_seconds is None else Deadline.after(self.max_seconds, now=now)
        except OverflowError:
            return None


# One lock for all meters, so that a meter remains a plain value that can be copied and pickled.
_counting = allocate_lock()


@dataclass(slots=True)
class Meter:
    """Counts the usage of a run and its nested runs, and enforces their budgets.

    The `parent` of a nested run's meter is the calling run's meter. All meters above, and those of
    their budgets, count the same usage once, and none of the budgets may be exceeded. Threads can
    share meters. `cost` is the total cost of answers with a known price; `unpriced` is the number
    of the other answers by model.
    """

    budget: Budget | None = None
    parent: "Meter | None" = None
    tokens: TokenUsage = TokenUsage()
    calls: int = 0
    tool_calls: int = 0
    cost: float = 0.0
    unpriced: Mapping[str, int] = field(default_factory=lambda: _ALL_PRICED)
    above: "tuple[Meter, ...]" = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        shared = None if self.budget is None else self.budget.meter
        others = [(meter, *meter.above) for meter in (shared, self.parent) if meter is not None]
        self.above = tuple({id(meter): meter for meter in chain(*others)}.values())

    @property
    def usage(self) -> RunUsage:
        """The usage of the run, including nested runs."""
        used = RunUsage(self.tokens, self.calls, self.tool_calls, self.cost)
        if not self.unpriced:
            return used
        return replace(used, cost=None, known_cost=self.cost, unpriced=self.unpriced)

    @property
    def left(self) -> Budget | None:
        """The remaining part of the nearest budget, for adapters that do not use a meter."""
        if self.budget is None:
            return None if self.parent is None else self.parent.left
        return self.budget.after((self.budget.meter or self).usage)

    def exceeded(
        self, *, before: Literal["request", "tool call"], further: RunUsage | None = None
    ) -> str | None:
        """Returns the first limit that one more request or tool call would exceed, or `None`.

        `further` is usage to include in this check only.
        """
        for meter in (self, *self.above):
            if (budget := meter.budget) is None:
                continue
            counter = budget.meter or meter
            if counter.unpriced and budget.max_cost is not None:
                *_, model = counter.unpriced
                return (
                    f"max_cost={budget.max_cost} cannot be kept: the model {model!r} answered, "
                    "and its price is unknown"
                )
            usage = counter.usage if further is None else counter.usage + further
            if bound := budget.exceeded(usage, before=before):
                return bound
        return None

    def tool_calls_left(self, count: int) -> int:
        """Returns how many of `count` further tool calls are allowed."""
        for meter in (self, *self.above):
            if (budget := meter.budget) is not None:
                left = budget.tool_calls_left((budget.meter or meter).usage)
                count = count if left is None else min(left, count)
        return count

    def reserve_request(self) -> str | None:
        """Counts one more request, or returns the limit that it would exceed."""
        with _counting:
            bound = self.exceeded(before="request")
            for meter in () if bound else (self, *self.above):
                meter.calls += 1
        return bound

    def reserve_tool_calls(self, count: int) -> int:
        """Counts as many of `count` tool calls as the limits allow; returns how many."""
        with _counting:
            if self.exceeded(before="tool call"):
                return 0
            if count > 1:  # one call is allowed
                count = self.tool_calls_left(count)
            for meter in (self, *self.above):
                meter.tool_calls += count
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
        """Counts usage; a `cost` of `None` means that the price of `model` is unknown.

        Raises `ValueError` for a cost that cannot be one.
        """
        if cost:
            check_price(cost, model)
        with _counting:
            for meter in (self, *self.above):
                meter.tokens += tokens
                meter.calls += calls
                meter.tool_calls += tool_calls
                if cost is None:
                    meter.unpriced = _joined(meter.unpriced, {model: 1})
                else:
                    meter.cost += cost

    def load(self, usage: RunUsage, model: str) -> None:
        """Counts usage that the meters above have already counted, such as a recorded run's."""
        _count_run((self,), usage, model)

    def add_run(self, usage: RunUsage, model: str) -> None:
        """Counts the usage of a run with `model` that another process or adapter has reported."""
        _count_run((self, *self.above), usage, model)


def _count_run(meters: tuple[Meter, ...], usage: RunUsage, model: str) -> None:
    check_price(usage.cost, model)
    unpriced = usage.unpriced
    if usage.cost is None and usage.calls:
        unpriced = unpriced or {model: usage.calls}
    with _counting:
        for meter in meters:
            meter.tokens += usage.usage
            meter.calls += usage.calls
            meter.tool_calls += usage.tool_calls
            meter.cost += usage.cost or usage.known_cost
            meter.unpriced = _joined(meter.unpriced, unpriced)


def check_price(cost: object, model: str) -> None:
    """Raises `ValueError` if a function of prices has returned what cannot be a cost."""
    if cost is not None and not (isinstance(cost, int | float) and 0 <= cost < inf):  # or NaN
        raise ValueError(
            f"prices returned {cost!r} for a request to {model!r}; it must return dollars, which "
            "are finite and not negative, or None if the price is unknown"
        )


def _check_number(name: str, value: object, remedy: str) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be {remedy}, got {value!r}")


def check_count(name: str, count: object, *, least: Literal[0, 1] = 0) -> None:
    """Raises `TypeError` if `count` is not an integer, and `ValueError` if it is below `least`."""
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f"{name} must be an int, got {count!r}")
    if count < least:
        expected = "be at least 1" if least else "not be negative"
        raise ValueError(f"{name} must {expected}, got {count}")


def check_limits(deadline: object, budget: object) -> None:
    """Raises `TypeError` if either has the wrong type; a number of seconds is not a deadline."""
    if deadline is not None and not isinstance(deadline, Deadline):
        raise TypeError(
            f"deadline must be a Deadline, such as Deadline.after(30), got {deadline!r}"
        )
    if budget is not None and not isinstance(budget, Budget):
        raise TypeError(
            f"budget must be a Budget, such as Budget(max_tokens=50_000), got {budget!r}"
        )
