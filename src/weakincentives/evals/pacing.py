"""Keeps all runs of an experiment, and their judges, within one budget and one pace per provider.

`PacedAdapter` wraps an adapter's requests. A request waits while its provider asks for a pause, and
is counted against the budget before it is sent, with an estimate of its usage.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import ceil, inf
from threading import Lock

from ..adapters.core import Connection, LoopAdapter
from ..content import MediaSupport
from ..evaluation.errors import BudgetExceededError, PromptEvaluationError, ThrottleError
from ..evaluation.inner_loop import ProviderRequest, RunConfig
from ..evaluation.messages import AssistantMessage
from ..evaluation.response import AnswerRejected, Delta
from ..limits import Budget, Meter, Prices, RunUsage, TokenUsage, check_price
from ..model_settings import ModelSettings
from ..prompt.renderer import AnyRenderedPrompt

__all__ = ["OVER_BUDGET", "REFUSALS", "Ledger", "Pace", "PacedAdapter"]

OVER_BUDGET = "experiment_budget"
"""The code of the error for a request that would exceed the experiment's budget."""

REFUSALS = ContextVar[list[BudgetExceededError]]("refusals")
"""The requests of a run, and of its nested runs, that the experiment's budget did not allow."""

type Piece = Delta | AnswerRejected | AssistantMessage

_POLL = 0.05  # seconds between two looks at a pace that is paused
_RETRIES = {"connection": 2, "server_error": 2, "timeout": 2}
_FIRST_PAUSE = 1.0  # seconds after a refusal that names no time; doubled each time
_LEAST_PAUSE = 0.05  # seconds after a refusal that names a time, such as 0; doubled each time
_OUTPUT_TOKENS = 500  # a guess for the first answer of a run
_CHARACTERS_PER_TOKEN = 4
_NOTHING = RunUsage()
_LEAST = RunUsage(TokenUsage(1, 1), calls=1, cost=0.0)  # no request uses less


@dataclass(slots=True)
class Ledger:
    """The usage of an experiment, with what its open requests will probably use.

    `meter` counts answers, and `judges` the judges' part of them. `has_refused` is true once a
    request was not allowed, and `is_exhausted` once not even the smallest one is. Threads can share
    a ledger.
    """

    budget: Budget | None = None
    meter: Meter = field(default_factory=Meter)
    judges: Meter = field(init=False)
    has_refused: bool = False
    is_exhausted: bool = False
    _reserved: RunUsage = field(default_factory=RunUsage)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self.judges = Meter(parent=self.meter)

    @property
    def spent(self) -> RunUsage:
        """The usage of all answers."""
        return self.meter.usage if self.meter.calls else _NOTHING

    def reserve(self, estimate: RunUsage) -> bool:
        """Reserves the estimate; returns false if open requests must end first.

        Raises `BudgetExceededError` if the budget does not allow the request even after they end.
        """
        budget = self.budget
        if budget is None:
            return True
        with self._lock:
            if not self.meter.calls and self._reserved.calls:
                return False  # the first answer shows how much an answer uses
            if limit := _exceeded(budget, self.spent + estimate):
                self.has_refused = True
                self.is_exhausted |= bool(_exceeded(budget, self.spent + _LEAST))
                raise BudgetExceededError(
                    f"the budget of the experiment does not allow this request: {limit}",
                    phase="limit",
                    code=OVER_BUDGET,
                    remedy="start the experiment again to continue it with a new budget",
                )
            if _exceeded(budget, self.spent + self._reserved + estimate):
                return False
            self._reserved += estimate
            return True

    def release(self, estimate: RunUsage) -> None:
        """Removes the estimate of a request that has ended."""
        if self.budget is None:
            return
        with self._lock:
            left, ended = self._reserved, estimate
            calls = left.calls - ended.calls
            tokens = TokenUsage(
                left.usage.input_tokens - ended.usage.input_tokens,
                left.usage.output_tokens - ended.usage.output_tokens,
            )
            cost = (left.cost or 0.0) - (ended.cost or 0.0)
            # without open requests, what rounding has left of the cost is not reserved
            self._reserved = RunUsage(tokens, calls, cost=cost) if calls else _NOTHING


def _exceeded(budget: Budget, usage: RunUsage) -> str:
    tokens = usage.usage
    for name, limit, amount in (
        ("max_cost", budget.max_cost, inf if usage.cost is None else usage.cost),
        ("max_tokens", budget.max_tokens, tokens.total_tokens),
        ("max_input_tokens", budget.max_input_tokens, tokens.input_tokens),
        ("max_output_tokens", budget.max_output_tokens, tokens.output_tokens),
        ("max_calls", budget.max_calls, usage.calls),
    ):
        if limit is not None and not amount <= limit:  # or NaN
            return f"{name}={limit} would be exceeded with {amount:.6g}"
    return ""


@dataclass(slots=True)
class Pace:
    """How fast one provider may be asked; all runs of an experiment share it.

    After a refusal, no request is sent before the time that the provider names. Then one request is
    sent, and with each answer one more may be open at the same time.
    """

    until: float = 0.0
    limit: int | None = None
    open: int = 0
    _lock: Lock = field(default_factory=Lock)

    def enter(self) -> float:
        """Begins a request and returns 0, or returns how many seconds to wait before trying."""
        with self._lock:
            if self.limit is not None:
                if (left := self.until - time.monotonic()) > 0:
                    return left
                if self.open >= self.limit:
                    return _POLL
            self.open += 1
            return 0.0

    def leave(self, *, answered: bool) -> None:
        """Ends a request."""
        with self._lock:
            self.open -= 1
            if answered and self.limit is not None and time.monotonic() >= self.until:
                self.limit += 1

    def pause(self, seconds: float) -> None:
        """Stops all requests for this time."""
        with self._lock:
            self.until = max(self.until, time.monotonic() + seconds)
            self.limit = 1


class PacedAdapter(LoopAdapter):
    """An adapter whose requests keep an experiment's budget and pace.

    A request that the provider refuses because there are too many is sent again after the pause,
    for at most `max_wait` seconds in all. During a longer pause, requests fail without being sent.
    """

    def __init__(
        self,
        adapter: LoopAdapter,
        ledger: Ledger,
        pace: Pace,
        *,
        prices: Prices | None,
        max_wait: float,
        on_wait: Callable[[float], None],
        is_judge: bool = False,
    ) -> None:
        self.inner = adapter.without_retries()
        self.largest = 0  # the most output tokens of an answer so far
        self.ledger, self.pace = ledger, pace
        # each answer's cost is asked for twice, by its run and for the ledger
        self.prices = prices = lru_cache(maxsize=1_024)(prices) if prices else None
        self.max_wait, self.on_wait = max_wait, on_wait
        self.meter = ledger.judges if is_judge else ledger.meter
        self.name, self.model = adapter.name, adapter.model
        super().__init__(clock=adapter.clock)
        self.config = adapter.config
        if prices is not None:
            check_price(prices(TokenUsage(1, 1), self.model), self.model)
            self.config = replace(self.config, prices=prices)

    def priced(self, usage: RunUsage) -> RunUsage:
        """Returns the usage of a run with its cost, if the price is known."""
        if usage.cost is not None or self.prices is None or not usage.calls:
            return usage
        cost = self.prices(usage.usage, self.model)
        return usage if cost is None else RunUsage(usage.usage, usage.calls, usage.tool_calls, cost)

    def check_settings(self, settings: ModelSettings) -> None:
        self.inner.check_settings(settings)

    def limited(self, config: RunConfig) -> RunConfig:
        return self.inner.limited(config)

    @property
    def supports_dynamic_tools(self) -> bool:
        return self.inner.supports_dynamic_tools

    @property
    def media(self) -> MediaSupport:
        return self.inner.media

    def connect(self, rendered: AnyRenderedPrompt, /) -> Connection:
        size = len(rendered.text) // _CHARACTERS_PER_TOKEN
        return _PacedConnection(self, self.inner.connect(rendered), size)


class _PacedConnection(Connection):
    """The requests of one evaluation; the size of the last one is the estimate for the next.

    Each request is sent until it is answered, unless it fails too often or is to wait for too long.
    """

    def __init__(self, adapter: PacedAdapter, inner: Connection, size: int) -> None:
        self._adapter, self._inner = adapter, inner
        self.provider_tools = inner.provider_tools
        self._expected = TokenUsage(size, adapter.largest or _OUTPUT_TOKENS)
        self._reserved = _NOTHING
        self._failures, self._pauses = 0, 0.0  # of this request, and the seconds of its pauses

    def target(self) -> tuple[str, str]:
        return self._inner.target()

    def fall_back(self, error: PromptEvaluationError, /) -> bool:
        return self._inner.fall_back(error)

    def arrived(self) -> AssistantMessage | None:
        return self._inner.arrived()

    def close(self) -> None:
        self._inner.close()

    async def aclose(self) -> None:
        await self._inner.aclose()

    def _estimate(self) -> RunUsage:
        adapter = self._adapter
        model = self.target()[1] or adapter.model
        cost = adapter.prices(self._expected, model) if adapter.prices else None
        return RunUsage(self._expected, calls=1, cost=cost)

    def _wait(self) -> Iterator[float]:
        """Yields the seconds to wait until the request may be sent."""
        pace, ledger = self._adapter.pace, self._adapter.ledger
        self._reserved = estimate = _NOTHING if ledger.budget is None else self._estimate()
        while True:
            seconds = pace.enter()
            if not seconds:
                try:
                    if ledger.reserve(estimate):
                        return
                except BudgetExceededError as error:
                    pace.leave(answered=False)
                    REFUSALS.get([]).append(error)
                    raise
                pace.leave(answered=False)
            elif seconds > self._adapter.max_wait:
                raise ThrottleError(
                    f"the provider has asked for a pause, which ends in {seconds:.0f} seconds",
                    phase="request",
                    code="throttled",
                    provider=self._adapter.name,
                    remedy=f"continue later, or pass max_wait={ceil(seconds)} to evaluate",
                )
            elif seconds > _POLL:
                self._adapter.on_wait(seconds)
            yield min(seconds or _POLL, _POLL)

    def _end(self, answer: Piece | None) -> None:
        """Counts a request that has ended, and its answer."""
        adapter = self._adapter
        adapter.pace.leave(answered=isinstance(answer, AssistantMessage))
        try:
            if isinstance(answer, AssistantMessage):
                tokens, connected = answer.usage, self._inner.target()[1]
                model = connected or answer.model or adapter.model
                cost = adapter.prices(tokens, model) if adapter.prices else None
                requested = len(answer.tool_calls)
                adapter.meter.add(tokens, calls=1, tool_calls=requested, cost=cost, model=model)
                if adapter.ledger.budget is not None:
                    size = tokens.input_tokens + tokens.output_tokens
                    self._expected = TokenUsage(size, max(tokens.output_tokens, 1))
                    adapter.largest = max(adapter.largest, tokens.output_tokens)
        finally:  # even if `prices` raises
            adapter.ledger.release(self._reserved)

    def _is_sent_again(self, error: BaseException) -> bool:
        """Returns whether a request that failed is sent again, after a pause if it is asked for."""
        self._failures += 1
        if isinstance(error, ThrottleError):
            factor, asked = 2 ** (self._failures - 1), error.retry_after
            pause = _FIRST_PAUSE * factor
            if asked is not None:
                pause = max(asked.total_seconds(), _LEAST_PAUSE * factor)
            self._adapter.pace.pause(pause)
            self._pauses += pause
            return self._pauses <= self._adapter.max_wait
        code = error.code if isinstance(error, PromptEvaluationError) else ""
        return self._failures <= _RETRIES.get(code, 0)

    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        *_, answer = self._pieces(lambda: iter((self._inner.ask(request),)))
        assert isinstance(answer, AssistantMessage)
        return answer

    def ask_stream(self, request: ProviderRequest, /) -> Iterator[Piece]:
        return self._pieces(lambda: self._inner.ask_stream(request))

    def _pieces(self, ask: Callable[[], Iterator[Piece]]) -> Iterator[Piece]:
        self._failures, self._pauses = 0, 0.0
        while True:
            piece = None
            for seconds in self._wait():
                time.sleep(seconds)
            try:
                for piece in ask():
                    yield piece
                return
            except BaseException as error:
                if piece is not None or not self._is_sent_again(error):
                    raise
            finally:
                self._end(piece)

    async def ask_async(self, request: ProviderRequest, /) -> AssistantMessage:
        adapter = self._adapter
        self._failures, self._pauses = 0, 0.0
        while True:
            answer = None
            if adapter.ledger.budget is not None or adapter.pace.enter():
                await self._wait_async()
            try:
                answer = await self._inner.ask_async(request)
                return answer
            except BaseException as error:
                if not self._is_sent_again(error):
                    raise
            finally:
                self._end(answer)

    async def ask_stream_async(self, request: ProviderRequest, /) -> AsyncGenerator[Piece]:
        self._failures, self._pauses = 0, 0.0
        while True:
            piece = None
            await self._wait_async()
            try:
                async with aclosing(self._inner.ask_stream_async(request)) as stream:
                    async for piece in stream:
                        yield piece
                return
            except BaseException as error:
                if piece is not None or not self._is_sent_again(error):
                    raise
            finally:
                self._end(piece)

    async def _wait_async(self) -> None:
        for seconds in self._wait():
            await asyncio.sleep(seconds)
