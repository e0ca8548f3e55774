"""The cost in dollars of logged runs, for `wink show` and `advise`; uses the `prices` extra."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from importlib.util import find_spec

from .. import serde
from ..displays import count_of
from ..inspection.event_log import Record
from ..limits import Prices, TokenUsage
from .printing import single_line

__all__ = ["Spending", "price_of", "spending"]


_SMALLEST = 0.0001


@dataclass(slots=True)
class Spending:
    """What requests cost in dollars, their input's share, and how many are `unpriced`."""

    dollars: float = 0.0
    input_dollars: float = 0.0
    input_tokens: int = 0
    requests: int = 0
    unpriced: Counter[str] = field(default_factory=Counter[str])

    @property
    def summary(self) -> str:
        """One line with the cost and the number of requests whose price is unknown."""
        known = f"{_amount(self.dollars, '$')} for {count_of(self.requests, 'request')}"
        if not self.unpriced:
            return f"cost: {known}"
        count = count_of(self.unpriced.total(), "request")
        models = single_line(", ".join([model or "an unnamed model" for model in self.unpriced]))
        unknown = f"no price is known for {count} to {models}"
        return f"cost: {known}; {unknown}" if self.requests else f"cost: unknown; {unknown}"

    def input_cost(self, tokens: int) -> str:
        """Returns the average cost of `tokens` input tokens, or `?` if any price is unknown."""
        if self.unpriced or not self.input_tokens:
            return "?"
        return _amount(tokens * self.input_dollars / self.input_tokens)


def _amount(dollars: float, sign: str = "") -> str:
    """Formats dollars with enough digits to show that a small amount is not zero."""
    if 0 < dollars < _SMALLEST:
        return f"<{sign}{_SMALLEST}"
    return f"{sign}{dollars:.4f}" if dollars else f"{sign}0"


def _prices() -> Prices | None:
    """Returns the price tables from the `prices` extra, if it is installed."""
    if find_spec("genai_prices") is None:
        return None
    from ..contrib.prices import cost

    return cost


def price_of(record: Record) -> float | None:
    """Returns the cost in dollars of a `ProviderCalled` record's request, or `None` if unknown.

    Prefers the cost that the run recorded over the tables from the `prices` extra.
    """
    if isinstance(dollars := record.get("cost"), int | float):
        return dollars
    usage = serde.parse(TokenUsage, record["usage"])
    if not usage.total_tokens:
        return 0.0  # the request failed
    cost = _prices()
    return cost(usage, str(record.get("model", ""))) if cost else None


def spending(records: Iterable[Record]) -> Spending | None:
    """Adds up the cost of the requests in the logs.

    Returns `None` if the `prices` extra is not installed, or if the logs do not name a model, as
    with scripted adapters.
    """
    if (cost := _prices()) is None:
        return None
    total = Spending()
    for record in records:
        if record["event"] != "ProviderCalled":
            continue
        usage, model = serde.parse(TokenUsage, record["usage"]), str(record.get("model", ""))
        if not usage.total_tokens:
            continue  # the request failed
        dollars = price_of(record)
        without_output = replace(usage, output_tokens=0, reasoning_tokens=0)
        if dollars is None or (input_dollars := cost(without_output, model)) is None:
            total.unpriced[model] += 1
            continue
        total.dollars += dollars
        total.input_dollars += input_dollars
        total.input_tokens += usage.input_tokens
        total.requests += 1
    return total if total.requests or any(total.unpriced) else None
