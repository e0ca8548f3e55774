"""Deadlines have a time zone, budgets name the limit that was reached, and usage adds up."""

from dataclasses import FrozenInstanceError, fields, replace
from datetime import UTC, datetime, timedelta, timezone
from inspect import signature
from math import inf, nan
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.limits import Budget, Deadline, Meter, RunUsage, TokenUsage, utc_now

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
NAIVE = datetime(2030, 1, 1, 12)  # noqa: DTZ001 - must be rejected
BOUNDS = [field.name for field in fields(Budget) if field.name.startswith("max_")]

usages = st.builds(TokenUsage, st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
amounts = st.integers(0, 300)
bounds = st.none() | amounts
budgets = st.builds(
    Budget,
    max_tokens=bounds,
    max_input_tokens=bounds,
    max_output_tokens=bounds,
    max_calls=bounds,
    max_tool_calls=bounds,
    max_seconds=bounds,
)


@pytest.mark.claim("U-05")
def test_naive_deadline_is_rejected_with_a_fix() -> None:
    with pytest.raises(ValueError, match=r"timezone-aware.*datetime\.now\(UTC\)"):
        Deadline(NAIVE)
    with pytest.raises(ValueError, match="timezone-aware"):
        Deadline.after(1, now=NAIVE)


def test_deadline_of_the_wrong_type_is_rejected_with_a_fix() -> None:
    wrong: Any = "3"
    with pytest.raises(
        TypeError, match=r"Deadline takes a datetime, got '3'; .* use Deadline\.after\(seconds\)"
    ):
        Deadline(wrong)
    with pytest.raises(TypeError, match=r"Deadline\.after must be seconds or a timedelta, got '3'"):
        Deadline.after(wrong)


def test_deadline_has_passed_exactly_at_its_expiry() -> None:
    deadline = Deadline.after(60, now=NOON)
    assert (
        deadline
        == Deadline.after(timedelta(minutes=1), now=NOON)
        == Deadline(NOON + timedelta(minutes=1))
    )
    assert not deadline.has_passed(NOON + timedelta(seconds=59.999))
    assert deadline.has_passed(NOON + timedelta(seconds=60))
    assert deadline.remaining(NOON) == timedelta(seconds=60)
    assert deadline.remaining(NOON + timedelta(seconds=61)) == timedelta(seconds=-1)


def test_deadlines_in_different_time_zones_compare_by_instant() -> None:
    later_by_the_clock = Deadline(datetime(2030, 1, 1, 13, tzinfo=timezone(timedelta(hours=2))))
    assert later_by_the_clock < Deadline(NOON)
    assert min(Deadline(NOON), later_by_the_clock) is later_by_the_clock


def test_deadline_after_starts_from_the_current_time() -> None:
    before = utc_now()
    deadline = Deadline.after(0)
    assert before <= deadline.expires_at <= utc_now()
    assert deadline.expires_at.utcoffset() == timedelta(0)


def budget(name: str, bound: float) -> Budget:
    bounds: dict[str, Any] = {name: bound}  # Any: an int or a float, depending on the name
    return Budget(**bounds)


@given(st.lists(usages))
def test_usage_adds_up_field_by_field(parts: list[TokenUsage]) -> None:
    total = sum(parts, TokenUsage())
    assert total.input_tokens == sum(part.input_tokens for part in parts)
    assert total.output_tokens == sum(part.output_tokens for part in parts)
    assert total.cached_tokens == sum(part.cached_tokens for part in parts)
    assert total.total_tokens == total.input_tokens + total.output_tokens


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("bound", [-1, -0.5, inf, -inf, nan])
def test_budget_limit_must_be_finite_and_not_negative(name: str, bound: float) -> None:
    with pytest.raises(ValueError, match=rf"Budget\.{name} must be finite and not negative"):
        budget(name, bound)


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("bound", ["3", True])
def test_budget_limit_must_be_a_number(name: str, bound: Any) -> None:
    with pytest.raises(
        TypeError, match=rf"Budget\.{name} must be a number, or None for no limit, got {bound!r}"
    ):
        budget(name, bound)


@pytest.mark.parametrize("name", BOUNDS)
def test_misspelt_limit_of_a_budget_is_rejected_with_the_nearest_one(name: str) -> None:
    limits: Any = {name[:-1]: 3}
    with pytest.raises(TypeError, match=rf"Budget\(\) got .* '{name[:-1]}'; did you mean '{name}'"):
        Budget(**limits)


def test_signature_of_a_budget_lists_its_limits() -> None:
    assert [*signature(Budget).parameters] == [field.name for field in fields(Budget)]


@pytest.mark.parametrize("name", BOUNDS)
def test_budget_limit_can_be_zero(name: str) -> None:
    assert getattr(budget(name, 0), name) == 0


@pytest.mark.parametrize(
    ("name", "amount"),
    [
        ("max_tokens", 5),
        ("max_input_tokens", 3),
        ("max_output_tokens", 2),
        ("max_calls", 7),
        ("max_tool_calls", 11),
    ],
)
def test_each_budget_limit_is_reached_only_by_its_own_amount(name: str, amount: int) -> None:
    so_far = RunUsage(
        TokenUsage(input_tokens=3, output_tokens=2, cached_tokens=3), calls=7, tool_calls=11
    )
    before: Literal["request", "tool call"] = "tool call" if name == "max_tool_calls" else "request"
    assert budget(name, amount + 1).exceeded(so_far, before=before) is None
    reached = budget(name, amount).exceeded(so_far, before=before)
    assert reached == f"{name}={amount} reached with {amount}"


def test_max_calls_limits_only_requests_and_max_tool_calls_only_tool_calls() -> None:
    so_far = RunUsage(calls=1, tool_calls=1)
    assert Budget(max_calls=1).exceeded(so_far, before="tool call") is None
    assert Budget(max_tool_calls=1).exceeded(so_far, before="request") is None


run_usages = st.builds(RunUsage, usages, amounts, amounts)


@given(budgets, run_usages, run_usages, st.sampled_from(["request", "tool call"]))
def test_remaining_budget_is_exceeded_exactly_when_the_total_budget_is(
    budget: Budget, used: RunUsage, more: RunUsage, before: Literal["request", "tool call"]
) -> None:
    left = budget.after(used)
    rest = left.exceeded(more, before=before)
    whole = budget.exceeded(used + more, before=before)
    assert rest == whole
    assert left.max_seconds is None


def test_tool_calls_left_includes_calls_of_earlier_evaluations() -> None:
    assert (
        Budget(max_tool_calls=5)
        .after(RunUsage(tool_calls=2))
        .tool_calls_left(RunUsage(tool_calls=1))
        == 2
    )
    assert Budget(max_calls=1).tool_calls_left(RunUsage(tool_calls=9)) is None


def test_max_seconds_sets_a_deadline_from_the_start() -> None:
    assert Budget(max_seconds=90).deadline(NOON) == Deadline(NOON + timedelta(seconds=90))
    assert Budget(max_tokens=1).deadline(NOON) is None


@pytest.mark.parametrize("seconds", [1e12, 1e300, 10**20])
def test_max_seconds_beyond_the_calendar_sets_no_deadline(seconds: float) -> None:
    assert Budget(max_seconds=seconds).deadline(NOON) is None


@pytest.mark.parametrize("value", [Deadline(NOON), TokenUsage(), Budget()])
def test_limits_are_frozen_and_hashable(value: object) -> None:
    names = [field.name for field in fields(value)]  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert hash(value) == hash(type(value)(**{name: getattr(value, name) for name in names}))
    with pytest.raises(FrozenInstanceError):
        setattr(value, fields(value)[0].name, None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_budgets_with_one_meter_share_an_allowance() -> None:
    shared = Meter()
    budget = Budget(max_tokens=100, max_tool_calls=2, meter=shared)
    first, second = Meter(budget), Meter(replace(budget, max_calls=1))
    first.add(TokenUsage(60, 0), calls=1)
    assert second.exceeded(before="tool call") is None
    assert second.exceeded(before="request") == "max_calls=1 reached with 1"
    second.add(TokenUsage(40, 5), calls=1)
    assert first.reserve_request() == "max_tokens=100 reached with 105"
    assert second.reserve_tool_calls(1) == 0
    assert (first.usage.usage, second.usage.usage) == (TokenUsage(60, 0), TokenUsage(40, 5))
    assert shared.usage.usage == TokenUsage(100, 5)
    assert budget == Budget(max_tokens=100, max_tool_calls=2)
    assert hash(budget) == hash(Budget(max_tokens=100, max_tool_calls=2))


def test_nested_run_with_the_same_budget_counts_once() -> None:
    shared = Meter()
    budget = Budget(max_calls=10, max_tool_calls=3, meter=shared)
    outer = Meter(budget)
    inner = Meter(budget, outer)
    assert inner.reserve_request() is None
    assert inner.reserve_tool_calls(2) == 2
    assert outer.reserve_tool_calls(2) == 1
    inner.add(TokenUsage(3, 4), cost=0.5)
    assert shared.usage == outer.usage == RunUsage(TokenUsage(3, 4), 1, 3, 0.5)


def test_cost_of_an_unknown_model_ends_an_allowance() -> None:
    budget = Budget(max_cost=1.0, meter=Meter())
    first, second = Meter(budget), Meter(budget)
    first.add(TokenUsage(1, 1), calls=1, cost=None, model="new")
    assert "the model 'new' answered" in str(second.exceeded(before="request"))


def test_rest_of_an_allowance_counts_all_runs() -> None:
    shared = Meter()
    first, second = (Meter(Budget(max_tokens=10, meter=shared)) for _ in "ab")
    first.add(TokenUsage(4, 0), calls=1)
    assert second.left == Budget(max_tokens=10, run_usage=RunUsage(TokenUsage(4, 0), 1, 0, 0.0))
    assert second.left is not None
    assert second.left.meter is None
