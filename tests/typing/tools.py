"""A tool knows its params and result types from a subscript, from its handler, or from its
arguments.
"""

from dataclasses import dataclass
from typing import assert_type

from weakincentives import Tool, ToolContext, ToolResult
from weakincentives.prompt import JsonParams, ToolExample, ToolHandler, ToolRenderableResult
from weakincentives.prompt.approval_rules import ApprovalMode
from weakincentives.serde import Json


@dataclass(frozen=True)
class Lookup:
    entity_id: str


@dataclass(frozen=True)
class Found:
    url: str

    def render(self) -> str:
        return self.url


@dataclass(frozen=True)
class Other:
    count: int


def lookup(params: Lookup, *, context: ToolContext) -> ToolResult[Found]:
    return ToolResult(message="found", value=Found(params.entity_id))


async def lookup_async(params: Lookup, *, context: ToolContext) -> ToolResult[Found]:
    return ToolResult(message="found", value=Found(params.entity_id))


class Lookups:
    def __call__(self, params: Lookup, *, context: ToolContext) -> ToolResult[Found]:
        return ToolResult(message="found", value=Found(params.entity_id))

    def method(self, params: Lookup, *, context: ToolContext) -> ToolResult[Found]:
        return self(params, context=context)


# Only from the handler, whatever kind of callable it is.
assert_type(Tool(name="lookup", handler=lookup), Tool[Lookup, Found])
assert_type(Tool(name="lookup", handler=lookup_async), Tool[Lookup, Found])
assert_type(Tool(name="lookup", handler=Lookups()), Tool[Lookup, Found])
assert_type(Tool(name="lookup", handler=Lookups().method), Tool[Lookup, Found])

# From the subscript, with and without a handler.
assert_type(Tool[Lookup, Found](name="lookup"), Tool[Lookup, Found])
assert_type(Tool[Lookup, Found](name="lookup", handler=lookup), Tool[Lookup, Found])
assert_type(Tool[Lookup, Found](name="lookup", handler=lookup_async), Tool[Lookup, Found])

# From the arguments.
assert_type(Tool(name="lookup", params_type=Lookup, result_type=Found), Tool[Lookup, Found])

tool = Tool(name="lookup", handler=lookup)
assert_type(tool.params_type, type[Lookup])
assert_type(tool.result_type, type[Found])
assert_type(tool.handler, ToolHandler[Lookup, Found] | None)
assert_type(tool.examples, tuple[ToolExample[Lookup, Found], ...])

# Results have the type of their value; a value that renders itself satisfies the protocol.
assert_type(ToolResult(message="found", value=Found("u")), ToolResult[Found])
assert_type(ToolResult[Found](message="failed", success=False).value, Found | None)
rendered: ToolRenderableResult = Found("u")
refused: ToolRenderableResult = Other(1)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]


def without_context(params: Lookup) -> ToolResult[Found]:
    return ToolResult(message="found", value=Found(params.entity_id))


def without_result(params: Lookup, *, context: ToolContext) -> Found:
    return Found(params.entity_id)


def takes_other(params: Other, *, context: ToolContext) -> ToolResult[Found]:
    return ToolResult(message="found", value=Found(str(params.count)))


Tool[Lookup, Found](
    name="lookup",
    handler=without_context,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
)
Tool[Lookup, Found](
    name="lookup",
    handler=without_result,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
)
Tool[Lookup, Found](
    name="lookup",
    handler=takes_other,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
)
Tool(name="lookup", params_type=Lookup, handler=takes_other)  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
Tool[Lookup, Found](name="lookup").name = "other"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


# The handler of a tool with a JSON Schema receives a mapping.
def read_json(params: JsonParams, *, context: ToolContext) -> ToolResult[Found]:
    assert_type(params["url"], Json)
    return ToolResult(message="read")


assert_type(
    Tool.from_schema(name="read", description="Reads.", parameters=None, handler=read_json),
    Tool[JsonParams, Found],
)
assert_type(
    Tool.from_schema(
        name="read",
        description="Reads.",
        parameters={"type": "object"},
        handler=None,
        result_type=str,
    ),
    Tool[JsonParams, str],
)
Tool.from_schema(name="read", description="Reads.", parameters=None, handler=lookup)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# A selector may be annotated with the modes or with str.
def large(params: Lookup) -> str | None:
    return "arguments" if len(params.entity_id) > 3 else None


def exact(params: Lookup) -> ApprovalMode | None:
    return "arguments"


Tool(name="lookup", handler=lookup, approval=large)
Tool(name="lookup", handler=lookup, approval=exact)
