"""Prompts as tasks of pydantic-evals, as on the page about other tools."""
# pyright: reportMissingImports=false

import asyncio
from dataclasses import dataclass
from typing import Any

from pydantic_evals import Case, Dataset
from pydantic_evals import evaluators as evals

from weakincentives import MainLoop, MarkdownSection, PromptTemplate, Session
from weakincentives.adapters.provider_errors import error_from_status
from weakincentives.evaluation import Execution
from weakincentives.testing import ScriptedAdapter, call, say

BASE: Any = evals.Evaluator


@dataclass(frozen=True)
class Found:
    order: str


def find_order(order: str, session: Session) -> str:
    """Look up an order."""
    session.dispatch(Found(order))
    return f"Order {order} has shipped."


template = PromptTemplate(
    ns="evals",
    key="shop",
    sections=[MarkdownSection(title="Task", template="Help.", tools=[find_order])],
)


@dataclass
class FoundOnce(BASE):  # type: ignore[misc]  # a class of Any, where the package is missing
    order: str

    def evaluate(self, ctx: Any) -> bool:
        session: Session = ctx.output.response.session
        return session[Found].all() == (Found(self.order),)


async def answer(order: str) -> Execution[None]:
    if order == "down":
        adapter = ScriptedAdapter([error_from_status("scripted", 500, message="down")])
    else:
        adapter = ScriptedAdapter([call(("find_order", {"order": order})), say("It has shipped.")])
    await asyncio.sleep(0)
    return await MainLoop(adapter).execute_async(template, f"Where is {order}?")


def evaluate(*orders: str, repeat: int = 1) -> Any:
    cases: list[Any] = [
        Case(name=order, inputs=order, evaluators=(FoundOnce(order),)) for order in orders
    ]
    dataset: Any = Dataset(name="orders", cases=cases)
    return dataset.evaluate_sync(answer, progress=False, repeat=repeat)


def test_each_repeat_has_a_session_of_its_own() -> None:
    report = evaluate("A", "B", repeat=3)
    assert len(report.cases) == 6
    assert report.averages().assertions == 1


def test_failed_run_is_a_failure_and_not_a_wrong_answer() -> None:
    report = evaluate("A", "down")
    [failure] = report.failures
    assert failure.name == "down"
    assert "down; try again later [request/server_error]" in failure.error_message
    assert report.averages().assertions == 1
