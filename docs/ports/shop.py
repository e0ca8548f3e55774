from dataclasses import dataclass

from weakincentives import (
    Chat,
    MainLoop,
    MarkdownSection,
    PromptTemplate,
    Session,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.adapters.openai import OpenAIAdapter


@dataclass(frozen=True)
class Shop:
    name: str


@dataclass(frozen=True)
class Refund:
    order: str


@dataclass(frozen=True)
class Answer:
    text: str
    paid: bool


def refund(params: Refund, *, context: ToolContext) -> ToolResult[None]:
    """Refund an order."""
    if params.order != "A-7":
        return ToolResult(f"Order {params.order} does not exist.", success=False)
    context.session.dispatch(params)
    return ToolResult("Paid back.")


manner = MarkdownSection[Shop](
    title="Task",
    template="Help customers of $name.",
    tools=[Tool(name="refund", handler=refund)],
)
template = PromptTemplate[Answer](ns="docs", key="shop", sections=[manner])
loop = MainLoop(OpenAIAdapter("gpt-5.2"))
chat = Chat(loop, template.bind(Shop("Tea & Co")), session=Session())
first = chat.send("A-7 was cold.")
second = chat.send("Thanks!")
print(first.output, second.output, chat.session[Refund].all())
