"""The prompt with which weakincentives 0.2.0 wrote the files in `tests/data/0.2`.

It uses only names that exist in 0.2.0, so that the script next to those files can import it.
"""

import os
import signal
from dataclasses import dataclass

from weakincentives import MainLoop, MarkdownSection, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.content import Image
from weakincentives.contrib.durable import DurableAgent, durable
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.testing import ScriptedAdapter, call, say
from weakincentives.visibility import SectionVisibility

__all__ = ["STAMP", "Ordered", "Paid", "delegating_template", "durable_agents", "template"]

STAMP = Image.from_bytes(b"GIF87a stamp")


@dataclass(frozen=True)
class Shop:
    name: str


@dataclass(frozen=True)
class Ordered:
    item: str
    grams: int = 100


@dataclass(frozen=True)
class Paid:
    cents: int


@dataclass(frozen=True)
class Nothing:
    pass


def order(params: Ordered, *, context: ToolContext) -> ToolResult[Ordered]:
    """Orders tea."""
    context.session.dispatch(params)
    return ToolResult("Ordered.", value=params)


def stamp(params: Nothing, *, context: ToolContext) -> ToolResult[None]:
    """Shows the shop's stamp."""
    return ToolResult("The stamp:", media=[STAMP])


def pay(params: Paid, *, context: ToolContext) -> ToolResult[None]:
    """Pays the bill."""
    context.session.dispatch(params)
    if "CRASH" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    return ToolResult("Paid.")


_shop = MarkdownSection[Shop](
    title="Shop",
    template="You sell tea at $name.",
    tools=[Tool(name="order", handler=order), Tool(name="stamp", handler=stamp)],
    state=[Ordered],
)
_desk = MarkdownSection(
    title="Desk",
    template="Pay what is due.",
    summary="Payments.",
    visibility=SectionVisibility.SUMMARY,
    tools=[Tool(name="pay", handler=pay, effect="at_most_once", approval="arguments")],
    state=[Paid],
)
template = PromptTemplate(ns="shop", key="tea", sections=[_shop, _desk])

_specialist = PromptTemplate(
    ns="shop",
    key="specialist",
    sections=[
        MarkdownSection[Paid](
            title="Pay",
            template="Pay $cents.",
            tools=[Tool(name="pay", handler=pay, effect="at_most_once", approval="arguments")],
            state=[Paid],
        )
    ],
)
delegating_template = PromptTemplate(
    ns="shop",
    key="manager",
    sections=[
        MarkdownSection(
            title="Manager",
            template="Delegate.",
            tools=[Tool.from_prompt(_specialist, name="delegate", description="Delegates.")],
        )
    ],
)

_counter = PromptTemplate(
    ns="shop",
    key="counter",
    sections=[
        MarkdownSection[Shop](
            title="Counter",
            template="You stand at the counter of $name.",
            tools=[
                Tool(name="order", handler=order),
                Tool(name="pay", handler=pay, effect="repeatable"),
                Tool(name="refund", handler=pay, effect="at_most_once", approval="arguments"),
            ],
            state=[Ordered, Paid],
        )
    ],
)


def _model(*turns: AssistantMessage) -> ScriptedAdapter:
    """Returns an adapter whose model chooses its reply by the number of messages."""
    return ScriptedAdapter([lambda request: turns[len(request.messages) // 2]] * 20)


def durable_agents() -> dict[str, DurableAgent[None]]:
    """Returns the agents of the durable runs in `runs.db`."""
    item, cents = {"item": "tea"}, {"cents": 250}
    finishing = _model(call(("order", item)), say("It is on its way."))
    crashing = _model(call(("order", item)), call(("pay", cents)), say("It is paid."))
    waiting = _model(call(("order", item)), call(("refund", cents)), say("It is paid back."))
    return {
        name: durable(MainLoop(adapter), _counter.bind, types=[Ordered, Paid])
        for name, adapter in [("ends", finishing), ("crashes", crashing), ("waits", waiting)]
    }
