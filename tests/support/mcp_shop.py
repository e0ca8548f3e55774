"""Prompts to serve: a shop whose kitchen is closed at first, and whose handlers print."""

from dataclasses import dataclass

from weakincentives.content import Document, Image
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.filesystem import Filesystem
from weakincentives.prompt import (
    Disclosure,
    MarkdownSection,
    PromptTemplate,
    Tool,
    ToolContext,
    ToolResult,
    WorkspaceSection,
)
from weakincentives.visibility import SectionVisibility

print("a module that prints")  # noqa: T201


@dataclass(frozen=True)
class Order:
    amount: int


def order(params: Order, *, context: ToolContext) -> ToolResult[None]:
    """Orders pizzas."""
    context.resources.get(Filesystem).append_text("orders.txt", f"{params.amount}\n")
    print("a handler that prints")  # noqa: T201
    return ToolResult("Ordered." if params.amount < 10 else "Too many.", success=params.amount < 10)


@dataclass(frozen=True)
class Nothing:
    pass


def ask_model(params: Nothing, *, context: ToolContext) -> ToolResult[None]:
    """Asks the model."""
    try:
        answer = context.adapter.evaluate(context.prompt, session=context.session).text
    except PromptEvaluationError as error:
        return ToolResult(str(error), success=False)
    return ToolResult(answer)


def show(params: Nothing, *, context: ToolContext) -> ToolResult[None]:
    """Shows the menu."""
    menu = Document.from_bytes(b"Pizza", "text/plain", name="menu")
    card = Document.from_url("https://pizza.example/card.pdf")
    return ToolResult("Here:", media=[Image.from_bytes(b"GIF87a"), menu, card])


def shop(disclosure: Disclosure, *, closable: bool = False) -> PromptTemplate[str]:
    kitchen = MarkdownSection(
        title="Kitchen",
        template="Orders are final.",
        summary="Order pizzas.",
        visibility=SectionVisibility.SUMMARY,
        tools=[Tool(name="order", handler=order)],
    )
    cellar = MarkdownSection(
        title="Cellar",
        template="Wine is poured by waiters.",
        summary="See the wine.",
        visibility=SectionVisibility.SUMMARY,
    )
    return PromptTemplate(
        ns="shop",
        key="pizza",
        sections=[
            kitchen,
            cellar,
            WorkspaceSection(),
            MarkdownSection(
                title="Model",
                template="",
                tools=[Tool(name="ask_model", handler=ask_model), Tool(name="show", handler=show)],
            ),
        ],
        disclosure=disclosure,
        closable=closable,
    )


read = shop(Disclosure.READ)
open_ = shop(Disclosure.OPEN)
closable = shop(Disclosure.READ, closable=True)
asking = PromptTemplate(
    ns="shop",
    key="asking",
    sections=[
        MarkdownSection(
            title="Kitchen",
            template="",
            tools=[Tool(name="order", handler=order, approval="arguments")],
        )
    ],
)
