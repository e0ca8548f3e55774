"""The agent: a tea shop's clerk, with a summarized catalogue, and with orders as state."""

from dataclasses import dataclass, field

from weakincentives import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)

__all__ = ["CLERK", "Order", "clerk"]

TEAS = {
    "Keemun": "black, China. Cocoa and a little smoke; forgiving to brew.",
    "Assam": "black, India. Strong and malty, made for milk.",
    "Darjeeling": "black, India. Light, with muscat; short infusions.",
    "Sencha": "green, Japan. Fresh grass and sea; water at 70 °C.",
    "Longjing": "green, China. Chestnut and butter; water at 80 °C.",
    "Rooibos": "red, South Africa. Sweet, and without caffeine.",
}


@dataclass(frozen=True)
class Search:
    words: str = field(metadata={"description": "What the tea should be like, in a few words."})


@dataclass(frozen=True)
class Teas:
    teas: dict[str, str]


@dataclass(frozen=True)
class Order:
    """A tea that the customer wants."""

    tea: str = field(metadata={"description": "A name from the catalogue."})
    grams: int = field(default=100, metadata={"description": "How much."})


def find_teas(params: Search, *, context: ToolContext) -> ToolResult[Teas]:  # noqa: ARG001 - each handler takes it
    """Find teas by name, kind, country or taste."""
    words = {word.strip(".,?!").rstrip("s") for word in params.words.lower().split()}
    matches = {name: about for name, about in TEAS.items() if _score(words, name, about)}
    best = dict(sorted(matches.items(), key=lambda item: -_score(words, *item))[:3])
    return ToolResult(message=f"{len(best)} teas.", value=Teas(best))


def _score(words: set[str], name: str, about: str) -> int:
    text = f"{name} {about}".lower()
    return sum(len(word) > 2 and word in text for word in words)  # noqa: PLR2004 - no "a", no "of"


def order_tea(params: Order, *, context: ToolContext) -> ToolResult[Order]:
    """Put a tea on the customer's order."""
    if params.tea not in TEAS:
        names = ", ".join(TEAS)
        return ToolResult(message=f"No tea {params.tea!r}. There are: {names}.", success=False)
    context.session.dispatch(params)
    return ToolResult(message=f"{params.grams} g of {params.tea} ordered.", value=params)


CLERK = PromptTemplate[None](
    ns="examples/web_chat",
    key="clerk",
    sections=[
        MarkdownSection(
            title="Task",
            template="You are the clerk of a tea shop. Advise customers in a few sentences.",
        ),
        MarkdownSection(
            title="Catalogue",
            key="catalogue",
            summary="The teas of the shop, with a tool to find them.",
            template="Look teas up before you recommend them.",
            visibility=SectionVisibility.SUMMARY,
            tools=[Tool(name="find_teas", handler=find_teas)],
        ),
        MarkdownSection(
            title="Orders",
            key="orders",
            summary="How to order for a customer.",
            template="Order only what the customer has asked for.",
            visibility=SectionVisibility.SUMMARY,
            state=[Order],
            tools=[
                Tool(name="order_tea", handler=order_tea, approval="effects", effect="repeatable")
            ],
        ),
    ],
)


def clerk() -> Prompt[None]:
    """Returns the prompt of one chat."""
    return CLERK.bind()
