"""A function tool is called and typed like the original function."""

from typing import Protocol, assert_type, overload

from weakincentives import MarkdownSection, Resource, Tool, ToolContext, ToolResult, tool


class Db(Protocol):
    def find(self, order: str, /) -> str: ...


class Fake:
    def find(self, order: str, /) -> str:
        return order


type MyDb = Resource[Db]


@tool
def add(a: int, b: int = 2) -> int:
    return a + b


@tool(name="sum", effect="pure", approval="arguments", examples=[{"a": 1}])
async def add_later(a: int, b: int = 2) -> int:
    return a + b


def look(order: str, db: Resource[Db], other: MyDb | None = None) -> str:
    return f"{db.find(order)} {other.find(order) if other else ''}"


class Shop:
    @tool(effect="pure")
    def find(self, order: str) -> str:
        return order

    @tool
    @classmethod
    def make(cls, order: str) -> str:
        return order

    @classmethod
    @tool
    def build(cls, order: str) -> str:
        return order

    @tool
    @staticmethod
    def parse(order: str) -> str:
        return order


@overload
def pick(order: int) -> int: ...
@overload
def pick(order: str) -> str: ...
@tool
def pick(order: int | str) -> int | str:
    return order


def hand(params: Fake, *, context: ToolContext) -> ToolResult[None]:
    return ToolResult(context.call_id)


assert_type(add(1, 2), int)
assert_type(tool(add, name="plus")(1), int)
assert_type(Shop().find("1"), str)
assert_type(Shop.make("1"), str)
assert_type(Shop.build("1"), str)
assert_type(Shop.parse("1"), str)
assert_type(pick(1), int)
assert_type(look("1", Fake()), str)
assert_type(look(order="1", db=Fake(), other=Fake()), str)


async def awaited() -> None:
    assert_type(await add_later(1), int)


add("x", 2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
look("1", "db")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
tool(efect="pure")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
tool(3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]

MarkdownSection(
    title="Shop",
    template="",
    tools=[add, add_later, look, Shop().find, Shop.make, Tool(name="hand", handler=hand)],
)
MarkdownSection(title="Shop", template="", tools=[3])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
