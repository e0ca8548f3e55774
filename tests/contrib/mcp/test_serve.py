"""A prompt served by `wink mcp serve`, as the official client sees it."""

import asyncio
import os
import sys
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client import IncomingMessage
from mcp.types import (
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    Implementation,
    ResourceLink,
    TextContent,
    ToolListChangedNotification,
)

from support import mcp_shop
from support.mcp_prompts import section_of, template_of
from weakincentives.contrib.mcp.serve import PromptServer
from weakincentives.prompt import MarkdownSection, PromptTemplate, Tool
from weakincentives.runtime.events import ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.version import __version__
from weakincentives.visibility import SectionVisibility, VisibilityOverrides

type Call = tuple[str, dict[str, object]]

TARGETS: dict[str, Call] = {
    "read": ("read_section", {"section_key": "kitchen"}),
    "open_": ("open_sections", {"section_keys": ["kitchen"], "reason": "Très faim"}),
}


class Listener:
    """Counts a server's notifications about its list of tools."""

    def __init__(self) -> None:
        self.changes = 0

    async def __call__(self, message: IncomingMessage) -> None:
        self.changes += isinstance(message, ToolListChangedNotification)


@asynccontextmanager
async def client(
    template: PromptTemplate[Any],
    mode: str = "auto",
    session: Session | None = None,
    listener: Listener | None = None,
) -> AsyncGenerator[Client]:
    """Yields a client for a server in this process, over streams in memory."""
    prompt = template.bind()
    async with prompt.resources:
        server = PromptServer(prompt, session or Session()).server
        async with Client(server, mode=mode, message_handler=listener) as opened:
            yield opened


def command_of(target: str) -> StdioServerParameters:
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "weakincentives.cli", "mcp", "serve", f"support.mcp_shop:{target}"],
        env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


def lines_of(result: CallToolResult) -> list[str]:
    """Returns the lines of the file in an answer from `read_file`, without their numbers."""
    return [line.partition("\t")[2] for line in text_of(result).splitlines() if "\t" in line]


async def names(opened: Client) -> set[str]:
    listing = await opened.list_tools(cache_mode="bypass")
    return {tool.name for tool in listing.tools}


async def use_sections(opened: Client, disclosure: Call) -> None:
    assert "Order pizzas." in (opened.instructions or "")
    assert disclosure[0] in await names(opened)
    closed = await opened.call_tool("order", {"amount": 1})
    assert closed.is_error
    assert "is closed" in text_of(closed)
    read = await opened.call_tool(*disclosure)
    assert "Orders are final." in text_of(read)
    assert "order" in await names(opened)
    results = [await opened.call_tool("order", {"amount": n}) for n in (2, 20, 3)]
    assert [result.is_error for result in results] == [False, True, False]
    wrong = await opened.call_tool("order", {"amount": "many"})
    assert "Invalid arguments for 'order': amount" in text_of(wrong)
    orders = await opened.call_tool("read_file", {"path": "orders.txt"})
    assert lines_of(orders) == ["2", "3"]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
@pytest.mark.parametrize("target", TARGETS)
def test_client_opens_sections_and_calls_their_tools_in_transactions(
    mode: str, target: str
) -> None:
    async def use() -> None:
        listener = Listener()
        async with client(getattr(mcp_shop, target), mode, listener=listener) as opened:
            await use_sections(opened, TARGETS[target])
        assert listener.changes == (mode == "legacy")

    asyncio.run(use())


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_stdio_server_works_even_if_handlers_print(mode: str) -> None:
    async def use() -> None:
        listener = Listener()
        async with Client(command_of("read"), mode=mode, message_handler=listener) as opened:
            assert opened.server_info == Implementation(name="pizza", version=__version__)
            tools = opened.server_capabilities.tools
            assert tools is not None
            assert tools.list_changed
            await use_sections(opened, TARGETS["read"])
        assert listener.changes == (mode == "legacy")

    asyncio.run(use())


def test_closing_a_section_removes_its_tools() -> None:
    async def use() -> None:
        listener = Listener()
        async with client(mcp_shop.closable, "legacy", listener=listener) as opened:
            before = await names(opened)
            await opened.call_tool("read_section", {"section_key": "kitchen"})
            assert await names(opened) == {*before, "order"}
            await opened.call_tool("close_section", {"section_key": "kitchen"})
            assert await names(opened) == before
            assert (await opened.call_tool("order", {"amount": 1})).is_error
        assert listener.changes == 2

    asyncio.run(use())


def test_served_tools_have_their_schema_description_and_annotations() -> None:
    async def use() -> None:
        template = PromptTemplate(
            ns="shop",
            key="effects",
            sections=[
                MarkdownSection(
                    title="Kitchen",
                    template="",
                    tools=[
                        Tool(name=effect, handler=mcp_shop.order, effect=effect)
                        for effect in ("pure", "repeatable", "at_most_once")
                    ],
                )
            ],
        )
        async with client(template) as opened:
            tools = {tool.name: tool for tool in (await opened.list_tools()).tools}
            for name, hints in {
                "pure": (True, True),
                "repeatable": (False, True),
                "at_most_once": (False, False),
            }.items():
                tool = tools[name]
                assert tool.description == "Orders pizzas."
                assert tool.input_schema["required"] == ["amount"]
                assert tool.annotations is not None
                assert (tool.annotations.read_only_hint, tool.annotations.idempotent_hint) == hints

    asyncio.run(use())


def test_each_call_publishes_tool_invoked_in_the_session() -> None:
    async def use() -> None:
        session, events = Session(), list[ToolInvoked]()
        session.bus.subscribe(ToolInvoked, events.append)
        async with client(mcp_shop.open_, session=session) as opened:
            assert opened.instructions == mcp_shop.open_.render().text
            assert opened.server_info == Implementation(name="pizza", version=__version__)
            await opened.call_tool(*TARGETS["open_"])
            await opened.call_tool("order", {"amount": 2})
        assert [(event.name, event.call_id, event.prompt_name) for event in events] == [
            ("open_sections", "call_1", "pizza"),
            ("order", "call_2", "pizza"),
        ]
        assert '"reason": "Très faim"' in events[0].arguments
        assert events[1].params == mcp_shop.Order(2)
        (override,) = session[VisibilityOverrides].all()
        assert override.overrides == {("kitchen",): SectionVisibility.FULL}

    asyncio.run(use())


def test_sections_opened_together_are_returned_in_prompt_order() -> None:
    async def use() -> None:
        async with client(mcp_shop.open_) as opened:
            arguments = {"section_keys": ["cellar", "kitchen"], "reason": "Dinner"}
            texts = text_of(await opened.call_tool("open_sections", arguments)).split("\n\n")
            assert [text for text in texts if not text.startswith("#")] == [
                "Orders are final.",
                "Wine is poured by waiters.",
            ]

    asyncio.run(use())


def test_served_mcp_section_forwards_images_and_documents(tmp_path: Path) -> None:
    async def use() -> None:
        async with client(template_of(section_of(tmp_path))) as opened:
            text, image, document = (await opened.call_tool("plain_content")).content
            assert isinstance(text, TextContent)
            assert "which you cannot see" not in text.text
            assert isinstance(image, ImageContent)
            assert isinstance(document, EmbeddedResource)

    asyncio.run(use())


def test_concurrent_calls_run_as_sequential_transactions() -> None:
    async def use() -> None:
        async with client(mcp_shop.read) as opened:
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


def test_serving_tools_that_require_approval_is_rejected() -> None:
    words = (
        r"^cannot serve the tools \['order'\] because they require approval and this server has no "
        r"approver; "
        r"serve a prompt without approval=, and let the client ask$"
    )
    with pytest.raises(ValueError, match=words):
        PromptServer(mcp_shop.asking.bind(), Session())


def test_handler_that_evaluates_a_prompt_fails_without_a_model() -> None:
    async def use() -> None:
        async with client(mcp_shop.read) as opened:
            answer = await opened.call_tool("ask_model", {})
            assert answer.is_error
            words = "an MCP server has no model that evaluates prompts [request/no_model]"
            assert text_of(answer) == words

    asyncio.run(use())


def test_client_receives_images_documents_and_links() -> None:
    async def use() -> None:
        async with client(mcp_shop.read) as opened:
            text, image, menu, card = (await opened.call_tool("show")).content
            assert isinstance(text, TextContent)
            assert text.text.startswith("Here:\n\n[image ")
            assert isinstance(image, ImageContent)
            assert (image.mime_type, b64decode(image.data)) == ("image/gif", b"GIF87a")
            uri, blob = f"sha256:{sha256(b'Pizza').hexdigest()}", b64encode(b"Pizza").decode()
            resource = BlobResourceContents(uri=uri, blob=blob, mime_type="text/plain")
            assert menu == EmbeddedResource(type="resource", resource=resource)
            url = "https://pizza.example/card.pdf"
            assert card == ResourceLink(type="resource_link", name=url, uri=url)

    asyncio.run(use())
