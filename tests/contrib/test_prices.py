"""Dollars: from genai-prices' tables, as a budget limit, and never 0 for unknown models."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.agents import prompt, tool
from weakincentives.adapters.core import PromptEvaluationError
from weakincentives.evaluation.errors import BudgetExceededError
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.limits import Budget, RunUsage, TokenUsage
from weakincentives.prompt import Disclosure, MarkdownSection, Prompt, SectionVisibility
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say

pytest.importorskip("genai_prices", reason="the extra `prices` is not installed")
from weakincentives.cli.spending import price_of, spending
from weakincentives.contrib.prices import cost

USAGE = TokenUsage(1_000, 100, 500, 100)


@pytest.mark.parametrize(
    ("model", "dollars"),
    [
        # 400 at 5, 500 at 0.5, 100 at 6.25, 100 at 25 dollars per million
        ("claude-opus-4-8", (400 * 5 + 500 * 0.5 + 100 * 6.25 + 100 * 25) / 1e6),
        # 500 at 1.75, 500 at 0.175, 100 at 14; writing costs nothing extra
        ("gpt-5.2", (500 * 1.75 + 500 * 0.175 + 100 * 14) / 1e6),
    ],
)
def test_each_kind_of_token_has_its_price(model: str, dollars: float) -> None:
    assert cost(USAGE, model) == pytest.approx(dollars)


def test_one_hour_cache_writes_have_their_own_price() -> None:
    usage = TokenUsage(1_000, 0, 0, 500, cache_write_1h_tokens=200)
    dollars = (500 * 5 + 300 * 6.25 + 200 * 10) / 1e6
    assert cost(usage, "claude-opus-4-8") == pytest.approx(dollars)
    assert cost(usage + usage, "claude-opus-4-8") == pytest.approx(2 * dollars)


@pytest.mark.parametrize(
    ("model", "same"),
    [
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("anthropic/claude-sonnet-4-5", "claude-sonnet-4-5"),
        ("openai/gpt-5.2", "gpt-5.2"),
        ("openrouter/openai/gpt-5.2", "gpt-5.2"),
    ],
)
def test_model_name_can_include_a_date_or_a_route(model: str, same: str) -> None:
    assert cost(USAGE, model) == cost(USAGE, same) is not None


def test_bedrock_model_names_have_bedrock_prices() -> None:
    name = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
    dollars = cost(USAGE, name)
    assert dollars is not None
    assert dollars > (cost(USAGE, "claude-sonnet-4-5") or 1)
    assert cost(USAGE, f"bedrock/{name}") == dollars


@pytest.mark.parametrize("model", ["", "no-such-model", "route/no-such-model"])
def test_unknown_model_has_no_price(model: str) -> None:
    assert cost(USAGE, model) is None


@pytest.mark.parametrize("usage", [TokenUsage(1, 1, 5), TokenUsage(-1, 1), TokenUsage(1, -1)])
def test_inconsistent_token_counts_have_no_price(usage: TokenUsage) -> None:
    assert cost(usage, "gpt-5.2") is None


# --- Budgets


def priced(*replies: Any, prices: Callable[..., float | None] = cost) -> ScriptedAdapter:
    return ScriptedAdapter(replies, config=RunConfig(prices=prices))


def by(model: str, message: AssistantMessage) -> AssistantMessage:
    return replace(message, model=model)


A_DOLLAR = TokenUsage(200_000, 0)  # of claude-opus-4-8
PROBE = by("claude-opus-4-8", call(("probe", {}), usage=A_DOLLAR))


def test_max_cost_ends_a_run_before_the_next_request() -> None:
    adapter = priced(PROBE, PROBE, PROBE, PROBE)
    with pytest.raises(BudgetExceededError, match=r"max_cost=2\.5 reached with 3\.0") as caught:
        adapter.evaluate(prompt(tool()), session=Session(), budget=Budget(max_cost=2.5))
    assert (caught.value.turns, caught.value.code) == (3, "budget")


def test_run_within_max_cost_succeeds() -> None:
    adapter = priced(PROBE, by("claude-opus-4-8", say("done", usage=A_DOLLAR)))
    response = adapter.evaluate(prompt(tool()), session=Session(), budget=Budget(max_cost=1.5))
    assert response.text == "done"


@pytest.mark.claim("N-25")
def test_max_cost_ends_a_run_after_a_request_without_a_known_price() -> None:
    adapter = priced(PROBE, by("no-such-model", call(("probe", {}))), say("done"))
    with pytest.raises(BudgetExceededError, match="'no-such-model' answered") as caught:
        adapter.evaluate(prompt(tool()), session=Session(), budget=Budget(max_cost=100))
    assert caught.value.turns == 2
    assert "RunConfig" in caught.value.remedy


def test_requested_model_is_priced_if_the_answer_names_none() -> None:
    adapter = priced(call(("probe", {}), usage=A_DOLLAR), say("done"))
    adapter.model = "claude-opus-4-8"
    with pytest.raises(BudgetExceededError, match="max_cost=1 reached with 1"):
        adapter.evaluate(prompt(tool()), session=Session(), budget=Budget(max_cost=1))


def test_max_cost_without_prices_is_rejected_before_any_request() -> None:
    adapter = ScriptedAdapter([say("done")])
    with pytest.raises(ValueError, match=r"pass config=RunConfig\(prices=…\)"):
        adapter.evaluate(prompt(), session=Session(), budget=Budget(max_cost=1))
    assert adapter.requests == []


@pytest.mark.parametrize("bound", [-1, float("inf"), float("nan")])
def test_max_cost_must_be_finite_and_not_negative(bound: float) -> None:
    with pytest.raises(ValueError, match=r"Budget\.max_cost must be finite"):
        Budget(max_cost=bound)


@pytest.mark.parametrize(("known", "match"), [(True, "reached with 2"), (False, "is unknown")])
def test_restarts_share_max_cost(known: bool, match: str) -> None:
    section = MarkdownSection(
        title="More",
        template="The rest.",
        summary="There is more.",
        visibility=SectionVisibility.SUMMARY,
        tools=[tool(name="late")],
    )
    asked: Prompt[None] = Prompt(
        ns="tests", key="restarts", sections=[section], disclosure=Disclosure.OPEN
    )
    opening = ("open_sections", {"section_keys": ["more"], "reason": "need it"})
    model = "claude-opus-4-8" if known else "no-such-model"
    first = by(model, call(opening, usage=A_DOLLAR))
    adapter = priced(first, by("claude-opus-4-8", call(("late", {}), usage=A_DOLLAR)), say("x"))
    with pytest.raises(PromptEvaluationError, match=match):
        MainLoop(adapter).execute(asked, session=Session(), budget=Budget(max_cost=1.5))


def test_run_usage_sums_costs_and_an_unknown_cost_makes_the_sum_unknown() -> None:
    one, other = RunUsage(USAGE, 1, 0, 0.5), RunUsage(USAGE, 2, 1, 0.25)
    assert (one + other).cost == 0.75
    assert (RunUsage() + one).cost == 0.5
    assert (one + RunUsage(USAGE, 1)).cost is None
    assert (RunUsage() + RunUsage()).cost is None


# --- Logs


def called(model: str, usage: TokenUsage = A_DOLLAR) -> dict[str, Any]:
    counts = {name: getattr(usage, name) for name in TokenUsage.__slots__}
    return {"event": "ProviderCalled", "model": model, "usage": counts}


def test_spending_summary_names_models_without_a_known_price() -> None:
    known = spending([called("claude-opus-4-8")] * 2)
    assert known is not None
    assert known.summary == "cost: $2.0000 for 2 requests"
    assert known.input_cost(1_000) == "0.0050"
    mixed = spending([called("claude-opus-4-8"), called("x\x1b"), called(""), called("x\x1b")])
    assert mixed is not None
    assert mixed.summary == (
        "cost: $1.0000 for 1 request; no price is known for 3 requests to x?, an unnamed model"
    )
    assert mixed.input_cost(1_000) == "?"
    unknown = spending([called("x")])
    assert unknown is not None
    assert unknown.summary == "cost: unknown; no price is known for 1 request to x"
    assert spending([called("")]) is None
    assert spending([called("claude-opus-4-8", TokenUsage())]) is None


def test_log_without_models_has_no_spending() -> None:
    record = json.loads(json.dumps(called("")))
    del record["model"], record["usage"]["cache_write_tokens"]
    assert spending([record]) is None


def test_wink_show_and_advise_report_dollars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from support.commands import Wink

    (tmp_path / "shop.py").write_text(SHOP)
    wink = Wink(tmp_path, monkeypatch, capsys)
    done = wink("run", "shop:template", "--adapter", "shop:adapter", "--log", "run.jsonl")
    assert done.returncode == 0, done.stderr
    assert (
        wink("show", "run.jsonl").stdout.splitlines()[-1].strip() == "cost: $1.0000 for 1 request"
    )
    table = wink("advise", "run.jsonl").stdout.splitlines()
    assert table[0].split()[3:7] == ["requests", "characters", "tokens*", "dollars*"]
    assert table[1].split()[4:6] == ["4", "<0.0001"]
    assert "cost: $1.0000 for 1 request" in table


SHOP = """
from dataclasses import replace
from weakincentives import MarkdownSection, PromptTemplate, TokenUsage
from weakincentives.testing import ScriptedAdapter, say

template = PromptTemplate(
    ns="shop", key="desk", sections=[MarkdownSection(title="Task", template="Go.")]
)

def adapter():
    reply = say("Hello.", usage=TokenUsage(200_000, 0))
    return ScriptedAdapter([replace(reply, model="claude-opus-4-8")])
"""


def test_recorded_cost_takes_precedence_over_the_price_table() -> None:
    record = called("claude-opus-4-8") | {"cost": 0.25}
    assert price_of(record) == 0.25
    total = spending([record])
    assert total is not None
    assert total.summary == "cost: $0.2500 for 1 request"
    assert price_of(called("claude-opus-4-8", TokenUsage())) == 0.0
