"""The bridge offers a prompt's tools to the CLI as in-process MCP servers and tracks its calls.

This module does not run any tools. When the CLI calls a tool, the call waits until the inner loop
has run it, and then returns the result.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import cycle
from typing import Any

from ...evaluation.messages import ToolCall, ToolMessage
from ...evaluation.schemas import ToolSpec
from ...prompt.tool import JsonParams
from ..codec import AnyJson, JsonObject
from ..schema_dialects import OPENAI, encode_schema

__all__ = ["MAX_RESULT_CHARS", "Bridge"]

_SERVER = "wink"
_CALL_ID = "claudecode/toolUseId"
_SPARE_SERVERS = 4
# The longest result that the CLI sends to the model; it shortens longer ones to 2 kB and a path.
MAX_RESULT_CHARS = 500_000
_META = {"anthropic/maxResultSizeChars": MAX_RESULT_CHARS}  # the CLI's default is 50 kB

# Any: the `mcp` package and its objects; the package is often not installed where types are
# checked.
type AnyMCP = Any


@dataclass(slots=True)
class CLICall:
    """A call by the CLI, with its result and the permission that a built-in tool needs.

    For a built-in tool, `written` contains the arguments as the model wrote them. `media` contains
    the media in the result, as MCP content. `is_waiting` is true once the CLI has made the call.
    """

    answer: asyncio.Future[ToolMessage]
    allowed: asyncio.Future[JsonParams]
    written: AnyJson = None
    media: Sequence[JsonObject] = ()
    is_waiting: bool = False


class Bridge:
    """One evaluation's tools, by server, and the CLI's calls in progress.

    The first server has the conversation's initial tools. If `dynamic` is set, tools that are added
    later go to spare servers: the CLI reads a server's list again only when the server is switched
    off and on, which must not interrupt a call to it. `builtin_tools` run in the CLI itself; the
    inner loop uses their lower-case names. `on_call` is called whenever the CLI makes a call.
    """

    def __init__(
        self, builtin_tools: Iterable[str], *, dynamic: bool, on_call: Callable[[], None]
    ) -> None:
        numbers = range(2, 2 + _SPARE_SERVERS) if dynamic else ()
        spare_servers = [f"{_SERVER}{number}" for number in numbers]
        self.builtin_names = {name.lower(): name for name in builtin_tools}
        self._tools: dict[str, dict[str, ToolSpec]] = {
            name: {} for name in [_SERVER, *spare_servers]
        }
        self._next_spare_server = cycle(spare_servers)
        self._on_call = on_call
        self._calls: dict[str, CLICall] = {}
        self._ended = False

    def open(self, tools: Iterable[ToolSpec]) -> dict[str, object]:
        """Returns the servers in the SDK's form; the first one has `tools`."""
        self._tools[_SERVER] = {
            tool.name: tool for tool in tools if tool.name not in self.builtin_names
        }
        return {
            name: {"type": "sdk", "name": name, "instance": self._make_server(name)}
            for name in self._tools
        }

    def add(self, tools: Iterable[ToolSpec]) -> str:
        """Adds `tools` to a spare server and returns the server's name."""
        name = next(self._next_spare_server)
        self._tools[name].update({tool.name: tool for tool in tools})
        return name

    def find_tool(self, name: str) -> str | None:
        """Returns the tool's name from `mcp__server__name`, or `None` for any other tool."""
        head, _, rest = name.partition("__")
        server, _, tool = rest.partition("__")
        return tool if head == "mcp" and tool in self._tools.get(server, ()) else None

    def read_call(self, call_id: str, name: str, arguments: AnyJson) -> ToolCall:
        """Converts the model's call for the inner loop, with our tool name and JSON arguments."""
        match arguments:
            case {"__unparsedToolInput": {"raw": str() as text}}:  # how the CLI passes invalid JSON
                pass
            case _:
                text = json.dumps(arguments, ensure_ascii=False)
        if name in self.builtin_names.values():
            self.find_call(call_id).written = arguments
            return ToolCall(call_id, name.lower(), text)
        return ToolCall(call_id, self.find_tool(name) or name, text)

    def encode_call(self, call: ToolCall) -> JsonObject:
        """Returns the name and input of an earlier valid call, as the model would write them."""
        arguments: AnyJson = json.loads(call.arguments)
        if call.name in self.builtin_names:
            return {"name": self.builtin_names[call.name], "input": arguments}
        return {"name": f"mcp__{_SERVER}__{call.name}", "input": arguments}

    def answer(self, message: ToolMessage, media: Sequence[JsonObject] = ()) -> None:
        """Sets a call's result, with `media` as MCP content; ignores any later results."""
        call = self.find_call(message.call_id)
        if not call.answer.done():
            call.media = media
            call.answer.set_result(message)

    def allow(self, call_id: str, arguments: JsonParams) -> None:
        """Allows the CLI to run a built-in tool's call with these arguments."""
        allowed = self.find_call(call_id).allowed
        if not allowed.done():
            allowed.set_result(arguments)

    async def decision(self, call_id: str) -> JsonParams | str:
        """Returns the arguments with which the CLI can run a call, or the reason why it cannot.

        Waits until the inner loop has allowed the call or set its result.
        """
        call = self._begin(call_id)
        await asyncio.wait((call.allowed, call.answer), return_when=asyncio.FIRST_COMPLETED)
        return call.allowed.result() if call.allowed.done() else call.answer.result().content

    def replacement(self, call_id: str) -> JsonParams | None:
        """Returns the arguments with which a call was allowed, if they differ from the model's."""
        call = self.find_call(call_id)
        if not call.allowed.done() or call.allowed.result() == call.written:
            return None
        return call.allowed.result()

    def find_call(self, call_id: str) -> CLICall:
        """Returns the call with this id, creating it if necessary."""
        if call_id not in self._calls:
            loop = asyncio.get_running_loop()
            self._calls[call_id] = CLICall(loop.create_future(), loop.create_future())
            if self._ended:
                self.end()
        return self._calls[call_id]

    def _begin(self, call_id: str) -> CLICall:
        """Returns the call with this id and marks it as made by the CLI."""
        call = self.find_call(call_id)
        call.is_waiting = True
        self._on_call()
        return call

    def end(self) -> None:
        """Fails all waiting calls and any later ones, because the CLI has stopped."""
        self._ended = True
        for call_id in self._calls:
            self.answer(ToolMessage(call_id, "Not run: the CLI ended.", success=False))

    def _make_server(self, name: str) -> object:
        server: AnyMCP = import_module("mcp.server")
        types: AnyMCP = import_module("mcp.types")

        async def list_tools(*_: object) -> object:
            tools = [_describe(types, tool) for tool in self._tools[name].values()]
            return types.ListToolsResult(tools=tools)

        return server.Server(
            name, version="1", on_list_tools=list_tools, on_call_tool=partial(self._call, types)
        )

    async def _call(self, types: AnyMCP, _: object, params: AnyMCP) -> object:
        meta: Mapping[str, AnyJson] = params.meta or {}
        call = self._begin(str(meta.get(_CALL_ID)))
        answer = await call.answer
        content, call.media = [{"type": "text", "text": answer.content}, *call.media], ()
        return types.CallToolResult.model_validate(
            {"content": content, "isError": not answer.success}
        )


def _describe(types: AnyMCP, tool: ToolSpec) -> object:
    return types.Tool.model_validate(
        {
            "name": tool.name,
            "description": tool.description,
            "inputSchema": encode_schema(tool.parameters, OPENAI).sent,
            "_meta": _META,
        }
    )
