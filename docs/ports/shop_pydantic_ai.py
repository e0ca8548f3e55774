from dataclasses import dataclass, field

from pydantic_ai import Agent, ModelRetry, RunContext


@dataclass
class Shop:
    name: str
    paid: list[str] = field(default_factory=list)


@dataclass
class Answer:
    text: str
    paid: bool


agent = Agent("openai:gpt-5.2", deps_type=Shop, output_type=Answer)


@agent.instructions
def manner(ctx: RunContext[Shop]) -> str:
    return f"Help customers of {ctx.deps.name}."


@agent.tool
def refund(ctx: RunContext[Shop], order: str) -> str:
    """Refund an order."""
    if order != "A-7":
        raise ModelRetry(f"Order {order} does not exist.")
    ctx.deps.paid.append(order)
    return "Paid back."


shop = Shop("Tea & Co")
first = agent.run_sync("A-7 was cold.", deps=shop)
second = agent.run_sync("Thanks!", deps=shop, conversation=first.conversation)
print(first.output, second.output, shop.paid)
