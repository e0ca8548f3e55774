"""`RunLimits` checks the deadline, turns and budget before each request and tool call."""

from ..limits import Clock, Meter, RunUsage, TokenUsage
from .config import RunConfig
from .errors import BudgetExceededError, DeadlineExceededError, LimitError, TurnLimitError
from .messages import ToolCall

__all__ = ["RunLimits"]


class RunLimits:
    """The limits for one evaluation by `model`, whose usage is counted in `meter`.

    `previous_turns` is the number of requests that the run sent before this evaluation. Each check
    raises a `LimitError`.
    """

    def __init__(
        self, config: RunConfig, meter: Meter, clock: Clock, model: str, previous_turns: int
    ) -> None:
        self._config = config
        self._meter = meter
        self.clock = clock
        self._model = model
        self._previous_turns = previous_turns

    def count(self, usage: TokenUsage, model: str = "") -> float | None:
        """Counts the tokens of an answer from `model`, by default the evaluation's model.

        Returns the cost of the tokens, if known.
        """
        prices, model = self._config.prices, model or self._model
        cost = prices and prices(usage, model)
        self._meter.add(usage, cost=cost, model=model)
        return cost

    def reserve_request(self, turns: int) -> None:
        """Counts a request that follows `turns` earlier ones."""
        self._check_deadline()
        self._check_turns(turns)
        if limit := self._meter.reserve_request():
            raise self._budget_error(limit)

    def check_again(self, turns: int, spent: TokenUsage) -> None:
        """Checks whether a request that is already counted may be sent again.

        `spent` contains the tokens of its discarded answers, which are added to the usage if a
        limit is reached.
        """
        try:
            self._check_deadline()
            self._check_turns(turns)
            further = RunUsage(spent, calls=-1, cost=0.0)
            if limit := self._meter.exceeded(before="request", further=further):
                raise self._budget_error(limit)
        except LimitError:
            self.count(spent)
            raise

    def reserve_calls(
        self, calls: tuple[ToolCall, ...], *, already_started: bool = False
    ) -> tuple[ToolCall, ...]:
        """Counts calls that are about to run, and returns the ones that the budget allows.

        `already_started` means that the calls had started before a crash. They run again regardless
        of their nested runs' usage.
        """
        self._check_deadline()
        if already_started:
            self._meter.add(TokenUsage(), tool_calls=len(calls))
            return calls
        count = self._meter.reserve_tool_calls(len(calls))
        if not count:
            raise self._budget_error(self._meter.exceeded(before="tool call") or "")
        return calls[:count]

    def check_calls(self, count: int, *, expired: bool = False) -> None:
        """Checks whether `count` reserved calls may still run; `expired` means that time is up.

        Time may have passed since `reserve_calls`, because an approver was deciding, a stream's
        reader was slow or a parallel call was running.
        """
        config, meter = self._config, self._meter
        if not (config.deadline or config.budget or meter.parent):
            return
        try:
            self._check_deadline(expired=expired)
            if limit := meter.exceeded(before="tool call", further=RunUsage(tool_calls=-count)):
                raise self._budget_error(limit)
        except LimitError:
            self.release_calls(count)
            raise

    def release_calls(self, count: int) -> None:
        """Releases `count` reserved calls that did not run."""
        self._meter.add(TokenUsage(), tool_calls=-count)

    def _check_deadline(self, *, expired: bool = False) -> None:
        deadline = self._config.deadline
        if deadline is not None and (expired or deadline.has_passed(self.clock())):
            message = f"the deadline {deadline.expires_at.isoformat()} has passed"
            raise _limit_error(DeadlineExceededError, "deadline", message, "allow more time")

    def _check_turns(self, turns: int) -> None:
        turns += self._previous_turns
        max_turns = self._config.max_turns
        if max_turns is not None and turns >= max_turns:
            message = f"the model is not done after {turns} turns"
            raise _limit_error(
                TurnLimitError, "turns", message, "raise max_turns or narrow the task"
            )

    def _budget_error(self, limit: str) -> LimitError:
        remedy = "raise the budget"
        if self._meter.unpriced and limit.startswith("max_cost"):
            remedy = "pass prices that know it to RunConfig"
        return _limit_error(BudgetExceededError, "budget", limit, remedy)


def _limit_error(kind: type[LimitError], code: str, message: str, remedy: str) -> LimitError:
    return kind(message, phase="limit", code=code, remedy=remedy)
