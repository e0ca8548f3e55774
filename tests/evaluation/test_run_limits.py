"""Limits end a run before the request or the call that would go over them."""

from datetime import datetime, timedelta

import pytest

from support.agents import Args, answers, check_answered, prompt, tool
from weakincentives.evaluation.errors import (
    BudgetExceededError,
    DeadlineExceededError,
    TurnLimitError,
)
from weakincentives.evaluation.inner_loop import ProviderRequest, RunConfig
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.limits import Budget, Deadline, TokenUsage, utc_now
from weakincentives.prompt import ToolContext, ToolResult
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say

ONE, TWO = ("probe", {"a": 1}), ("probe", {"a": 2})


class Hands:
    """A clock whose hands a tool moves."""

    def __init__(self) -> None:
        self.now = utc_now()
        self.deadline = Deadline(self.now + timedelta(seconds=5))

    def __call__(self) -> datetime:
        return self.now

    def pass_deadline(self, params: Args, *, context: ToolContext) -> ToolResult[object]:
        self.now += timedelta(seconds=6)
        return ToolResult("ok")


def test_a_deadline_that_has_passed_stops_before_the_first_request() -> None:
    clock = Hands()
    adapter = ScriptedAdapter([say("done")], clock=clock)
    with pytest.raises(DeadlineExceededError) as caught:
        adapter.evaluate(prompt(), session=Session(), deadline=Deadline(clock.now))
    assert (caught.value.turns, caught.value.usage) == (0, TokenUsage())
    assert (caught.value.code, caught.value.remedy) == ("deadline", "allow more time")
    assert len(caught.value.transcript) == 1
    assert not adapter.requests


def test_a_deadline_between_two_calls_keeps_the_first_and_answers_the_second() -> None:
    clock = Hands()
    adapter = ScriptedAdapter([call(ONE, TWO), say("done")], clock=clock)
    with pytest.raises(DeadlineExceededError) as caught:
        adapter.evaluate(
            prompt(tool(clock.pass_deadline)), session=Session(), deadline=clock.deadline
        )
    assert [answer.content for answer in answers(caught.value.transcript)] == [
        "ok",
        "Not run: the evaluation ended.",
    ]
    assert caught.value.turns == 1


def test_a_finished_answer_counts_even_after_the_deadline() -> None:
    clock = Hands()

    class Slow(ScriptedAdapter):
        def ask(self, request: ProviderRequest) -> AssistantMessage:
            clock.now += timedelta(hours=1)
            return super().ask(request)

    adapter = Slow([say("done")], clock=clock)
    response = adapter.evaluate(prompt(), session=Session(), deadline=clock.deadline)
    assert response.text == "done"


def test_a_budget_over_requests_stops_the_next_one() -> None:
    adapter = ScriptedAdapter([call(ONE), say("done")])
    with pytest.raises(BudgetExceededError, match="max_calls=1 reached with 1") as caught:
        adapter.evaluate(prompt(tool()), session=Session(), budget=Budget(max_calls=1))
    assert (caught.value.turns, len(adapter.requests)) == (1, 1)


def test_a_budget_over_tool_calls_leaves_the_model_its_answer() -> None:
    adapter = ScriptedAdapter([call(ONE), say("done")])
    response = adapter.evaluate(prompt(tool()), session=Session(), budget=Budget(max_tool_calls=1))
    assert response.text == "done"


def test_a_budget_over_tool_calls_stops_after_as_many() -> None:
    adapter = ScriptedAdapter([call(ONE, TWO), say("done")])
    with pytest.raises(BudgetExceededError, match="max_tool_calls=1 reached with 1") as caught:
        adapter.evaluate(prompt(tool()), session=Session(), budget=Budget(max_tool_calls=1))
    check_answered(caught.value.transcript)
    assert [answer.success for answer in answers(caught.value.transcript)] == [True, False]


def test_the_turn_limit_is_on_requests() -> None:
    adapter = ScriptedAdapter([call(ONE), call(ONE), say("done")], config=RunConfig(max_turns=2))
    with pytest.raises(TurnLimitError, match="not done after 2 turns") as caught:
        adapter.evaluate(prompt(tool()), session=Session())
    assert (caught.value.turns, len(adapter.requests)) == (2, 2)
