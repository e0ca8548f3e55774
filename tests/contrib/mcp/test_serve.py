"""A prompt behind `wink mcp serve`, as the official client sees it."""

import asyncio
import os
import subprocess
import sys
from base64 import b64decode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client import IncomingMessage
from mcp.types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    ToolListChangedNotification,
)

SHOP = '''
from dataclasses import dataclass
from weakincentives.filesystem import Filesystem
from weakincentives.content import Document, Image
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.prompt import (
    Disclosure, MarkdownSection, PromptTemplate, Tool, ToolContext, ToolResult, WorkspaceSection,
)
from weakincentives.visibility import SectionVisibility

print("a module that prints")


@dataclass(frozen=True)
class Order:
    amount: int


def order(params: Order, *, context: ToolContext) -> ToolResult[None]:
    """Orders pizzas."""
    context.resources.get(Filesystem).append_text("orders.txt", f"{params.amount}\\n")
    print("a handler that prints")
    return ToolResult("Ordered." if params.amount < 10 else "Too many.", success=params.amount < 10)


@dataclass(frozen=True)
class Nothing:
    pass


def ask_model(params: Nothing, *, context: ToolContext) -> ToolResult[None]:
    """Asks the model."""
    try:
        answer = context.adapter.evaluate(context.prompt, session=context.session).text
    except PromptEvaluationError as error:
        return ToolResult(f"{error.code}: {error}", success=False)
    return ToolResult(answer)


def show(params: Nothing, *, context: ToolContext) -> ToolResult[None]:
    """Shows the menu."""
    menu = Document.from_bytes(b"Pizza", "text/plain", name="menu")
    card = Document.from_url("https://pizza.example/card.pdf")
    return ToolResult("Here:", media=[Image.from_bytes(b"GIF87a"), menu, card])


def shop(disclosure):
    kitchen = MarkdownSection(
        title="Kitchen",
        template="Orders are final.",
        summary="Order pizzas.",
        visibility=SectionVisibility.SUMMARY,
        tools=[Tool(name="order", handler=order)],
    )
    return PromptTemplate(
        ns="shop",
        key="pizza",
        sections=[
            kitchen,
            WorkspaceSection(),
            MarkdownSection(
                title="Model",
                template="",
                tools=[Tool(name="ask_model", handler=ask_model), Tool(name="show", handler=show)],
            ),
        ],
        disclosure=disclosure,
    )


read = shop(Disclosure.READ)
open_ = shop(Disclosure.OPEN)
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
'''


@asynccontextmanager
async def client(
    folder: Path, target: str, mode: str, changes: list[object]
) -> AsyncGenerator[Client]:
    (folder / "shop.py").write_text(SHOP)

    async def listen(message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            changes.append(message)

    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-m", "weakincentives.cli", "mcp", "serve", f"shop:{target}"],
        cwd=folder,
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    async with Client(parameters, mode=mode, message_handler=listen) as opened:
        yield opened


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


def lines_of(result: CallToolResult) -> list[str]:
    """Returns the lines of the file in an answer of `read_file`, without their numbers."""
    return [line.partition("\t")[2] for line in text_of(result).splitlines() if "\t" in line]


async def names(opened: Client) -> set[str]:
    listing = await opened.list_tools(cache_mode="bypass")
    return {tool.name for tool in listing.tools}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize(
    ("target", "disclosure"),
    [
        ("read", ("read_section", {"section_key": "kitchen"})),
        ("open_", ("open_sections", {"section_keys": ["kitchen"], "reason": "I am hungry"})),
    ],
)
def test_a_client_opens_sections_and_calls_their_tools_in_transactions(
    tmp_path: Path, mode: str, target: str, disclosure: tuple[str, dict[str, object]]
) -> None:
    async def use() -> None:
        changes: list[object] = []
        async with client(tmp_path, target, mode, changes) as opened:
            assert opened.instructions is not None
            assert "Order pizzas." in opened.instructions
            assert disclosure[0] in await names(opened)
            closed = await opened.call_tool("order", {"amount": 1})
            assert closed.is_error
            assert "is closed" in text_of(closed)
            read = await opened.call_tool(*disclosure)
            assert "Orders are final." in text_of(read)
            assert "order" in await names(opened)
            tools = {tool.name: tool for tool in (await opened.list_tools()).tools}
            assert tools["order"].input_schema["required"] == ["amount"]
            hints = {name: tools[name].annotations for name in ("order", "read_file")}
            assert [h.read_only_hint for h in hints.values() if h] == [False, True]
            assert [h.idempotent_hint for h in hints.values() if h] == [True, True]
            assert len(changes) == (mode == "legacy")
            results = [await opened.call_tool("order", {"amount": n}) for n in (2, 20, 3)]
            assert [result.is_error for result in results] == [False, True, False]
            wrong = await opened.call_tool("order", {"amount": "many"})
            assert "Invalid arguments for 'order': amount" in text_of(wrong)
            orders = await opened.call_tool("read_file", {"path": "orders.txt"})
            assert lines_of(orders) == ["2", "3"]

    asyncio.run(use())


def test_calls_at_once_are_transactions_one_after_the_other(tmp_path: Path) -> None:
    async def use() -> None:
        async with client(tmp_path, "read", "auto", []) as opened:
            async with opened.listen(tools_list_changed=True) as subscription:
                await opened.call_tool("read_section", {"section_key": "kitchen"})
                assert type(await anext(aiter(subscription))).__name__ == "ToolsListChanged"
            amounts = [1, 20, 2, 30, 3]
            calls = [opened.call_tool("order", {"amount": amount}) for amount in amounts]
            results = await asyncio.gather(*calls)
            assert [not result.is_error for result in results] == [n < 10 for n in amounts]
            orders = await opened.call_tool("read_file", {"path": "orders.txt"})
            assert sorted(lines_of(orders)) == ["1", "2", "3"]

    asyncio.run(use())


def test_tools_that_ask_for_approval_are_not_served(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    served = subprocess.run(
        [sys.executable, "-m", "weakincentives.cli", "mcp", "serve", "shop:asking"],
        cwd=tmp_path,
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert served.returncode != 0
    words = " ".join(served.stderr.replace("│", " ").split())
    assert "the tools ['order'] ask for approval, and this server has no approver" in words


def test_a_handler_that_evaluates_a_prompt_fails_for_want_of_a_model(tmp_path: Path) -> None:
    async def use() -> None:
        async with client(tmp_path, "read", "auto", []) as opened:
            answer = await opened.call_tool("ask_model", {})
            assert answer.is_error
            assert "no_model: an MCP server has no model" in text_of(answer)

    asyncio.run(use())


def test_a_client_receives_images_documents_and_links(tmp_path: Path) -> None:
    async def use() -> None:
        async with client(tmp_path, "read", "auto", []) as opened:
            text, image, menu, card = (await opened.call_tool("show", {})).content
            assert isinstance(text, TextContent)
            assert text.text.startswith("Here:\n\n[image ")
            assert isinstance(image, ImageContent)
            assert (image.mime_type, b64decode(image.data)) == ("image/gif", b"GIF87a")
            assert isinstance(menu, EmbeddedResource)
            assert isinstance(menu.resource, BlobResourceContents)
            assert b64decode(menu.resource.blob) == b"Pizza"
            assert isinstance(card, ResourceLink)
            assert str(card.uri) == "https://pizza.example/card.pdf"

    asyncio.run(use())
