"""Serves a prompt as an MCP server over stdio, with transactions and progressive disclosure."""

import asyncio
import json
import sys
from base64 import b64encode
from contextlib import redirect_stdout
from itertools import count
from typing import Any, NoReturn

from mcp.server import NotificationOptions, Server, ServerRequestContext
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.types import (
    BlobResourceContents,
    CallToolRequestParams,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ListToolsResult,
    PaginatedRequestParams,
    ResourceLink,
    TextContent,
    Tool,
    ToolAnnotations,
)

from ...content import MAX_CONTENT_BYTES, Document, Image, Media, MediaSupport
from ...evaluation.adapter import ProviderAdapter
from ...evaluation.effects import Effects, perform_async
from ...evaluation.errors import PromptEvaluationError
from ...evaluation.inner_loop import RunConfig
from ...evaluation.messages import ToolCall, ToolExecutionOutcome
from ...evaluation.schemas import tool_to_spec
from ...evaluation.tool_executor import ToolExecutor, same_adapter
from ...prompt.template import AnyPrompt
from ...prompt.tool import AnyTool
from ...runtime.events import Operation
from ...runtime.session import Session
from ...version import __version__
from ...visibility import SetVisibilityOverride

__all__ = ["PromptServer", "serve_stdio"]

_CONFIG = RunConfig(supports_dynamic_tools=True)

type _Context = ServerRequestContext[Any, Any]  # Any: its contents depend on the transport


async def serve_stdio(prompt: AnyPrompt) -> None:
    """Serves `prompt` on standard input and output until the input ends."""
    async with prompt.resources, stdio_server() as (reading, writing):
        server = PromptServer(prompt, Session()).server
        options = server.create_initialization_options(NotificationOptions(tools_changed=True))
        with redirect_stdout(sys.stderr):  # output that handlers print is not part of the protocol
            await server.run(reading, writing, options)


class PromptServer:
    """A prompt's tools, served to one client; `server` is the SDK's server.

    The prompt's text becomes the server's instructions. Calls run one at a time, each in a
    transaction over `session` and the prompt's resources, which must be open. When the client opens
    or closes a section, the server notifies it that the list of tools has changed.
    """

    def __init__(self, prompt: AnyPrompt, session: Session) -> None:
        self._prompt = prompt
        self._session = session
        self._one_call = asyncio.Lock()
        self._ids = map("call_{}".format, count(1))
        self._changes = InMemorySubscriptionBus()
        self._begin()
        # Any: the server has no lifespan state.
        self.server: Server[Any] = Server(
            prompt.name,
            version=__version__,
            instructions=self._rendered.text,
            on_list_tools=self._list,
            on_call_tool=self._call,
            on_subscriptions_listen=ListenHandler(self._changes),
        )

    def _begin(self) -> None:
        """Renders the prompt with the sections that are open in the session."""
        self._rendered = self._prompt.render(session=self._session)
        tools = [tool for node in self._rendered.registry.sections for tool in node.tools]
        if asking := [tool.name for tool in tools if tool.approval is not None]:
            raise ValueError(
                f"cannot serve the tools {asking} because they require approval and this server "
                "has no approver; serve a prompt without approval=, and let the client ask"
            )
        bus = self._session.bus
        self._executor = ToolExecutor(
            prompt=self._prompt,
            rendered=self._rendered,
            adapter=same_adapter(_NoModel()),
            config=_CONFIG,
            session=self._session,
            publish=bus.publish,
            operation=Operation(bus=bus, kind="evaluation", name=self._prompt.name),
        )

    async def _list(self, _: _Context, params: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=list(map(self._describe, self._executor.available.tools)))

    def _describe(self, tool: AnyTool) -> Tool:
        spec = tool_to_spec(tool, self._rendered.tool_param_descriptions.get(tool.name))
        pure, repeatable = tool.effect == "pure", tool.effect in {"pure", "repeatable"}
        return Tool(
            name=spec.name,
            description=spec.description,
            input_schema=spec.parameters,
            annotations=ToolAnnotations(read_only_hint=pure, idempotent_hint=repeatable),
        )

    async def _call(self, context: _Context, params: CallToolRequestParams) -> CallToolResult:
        arguments = json.dumps(params.arguments or {}, ensure_ascii=False)
        call = ToolCall(next(self._ids), params.name, arguments)
        async with self._one_call:
            before = self._executor.available.tools
            outcome = await _perform(self._executor.execute(call))
            self._executor.log.entries.clear()
            content: list[ContentBlock] = [TextContent(text=self._apply(outcome))]
            content += map(self._encode, outcome.message.media)
            changed = self._executor.available.tools != before
        if changed:
            await self._changes.publish(ToolsListChanged())  # for the newer protocol
            await context.session.send_tool_list_changed()  # for the older protocol
        return CallToolResult(content=content, is_error=not outcome.success)

    def _encode(self, media: Image | Document) -> ContentBlock:
        if media.url:
            return ResourceLink(name=media.name or media.url, uri=media.url)
        data = b64encode(self._session.content.load(media)).decode()
        if isinstance(media, Image):
            return ImageContent(data=data, mime_type=media.mime)
        uri = f"sha256:{media.digest}"
        resource = BlobResourceContents(uri=uri, blob=data, mime_type=media.mime)
        return EmbeddedResource(resource=resource)

    def _apply(self, outcome: ToolExecutionOutcome) -> str:
        """Opens and closes sections as a call requested, and returns the reply to the client."""
        if outcome.request is None:
            self._executor.available.apply(outcome)
            return outcome.message.content
        requested = outcome.request.requested_overrides
        for path, visibility in requested.items():
            self._session.dispatch(SetVisibilityOverride(path=path, visibility=visibility))
        self._begin()
        shown = zip(self._rendered.sections, self._rendered.section_texts, strict=True)
        return "\n\n".join(text for node, text in shown if node.path in requested)


class _NoModel(ProviderAdapter):
    """The adapter that handlers receive; it has no model to evaluate prompts with."""

    @property
    def media(self) -> MediaSupport:
        """All media types that MCP supports."""
        return MediaSupport(types={"*": MAX_CONTENT_BYTES}, urls=(Media,))

    def evaluate(self, prompt: object, /, **_: object) -> NoReturn:
        message = "an MCP server has no model that evaluates prompts"
        raise PromptEvaluationError(message, phase="request", code="no_model")


async def _perform[T](effects: Effects[T]) -> T:
    results: list[T] = []

    def collect() -> Effects[None]:
        results.append((yield from effects))

    async for _ in perform_async(collect()):
        pass
    return results.pop()
