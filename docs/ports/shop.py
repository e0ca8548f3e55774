from dataclasses import dataclass

import weakincentives as wi


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


def refund(order: str, session: wi.Session) -> str:
    """Refund an order."""
    if order != "A-7":
        raise wi.ToolError(f"Order {order} does not exist.")
    session.dispatch(Refund(order))
    return "Paid back."


manner = wi.MarkdownSection[Shop](
    title="Task", template="Help customers of $name.", tools=[refund]
)
template = wi.PromptTemplate[Answer](ns="docs", key="shop", sections=[manner])
chat = wi.Chat("openai:gpt-5.2", template.bind(Shop("Tea & Co")))
first, second = chat.send("A-7 was cold."), chat.send("Thanks!")
print(first.output, second.output, chat.session[Refund].all())
