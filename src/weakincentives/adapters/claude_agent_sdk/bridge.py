"""A prompt's tools as in-process MCP servers: what the CLI is told of them, and the answers that
its calls wait for.

No tool runs here. The CLI's call of a tool waits until the loop has run it and brings the answer.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib import import_module
from itertools import cycle
from typing import Any

from ...evaluation.messages import ToolMessage
from ...evaluation.schemas import ToolSpec

__all__ = ["MAX_RESULT_CHARS", "Bridge"]

_SERVER = "wink"
_CALL_ID = "claudecode/toolUseId"
_SPARES = 4
# the most that the CLI passes on; of a longer result it shows 2 kB and a path
MAX_RESULT_CHARS = 500_000
_WHOLE = {"anthropic/maxResultSizeChars": MAX_RESULT_CHARS}  # else it does so beyond 50 kB


class Bridge:
    """The tools of one evaluation, by server, and the calls of the CLI under way.

    The first server has the tools that the conversation begins with. `spares` take those that come
    later: a server's list is read anew when it is switched off and on, and that must not cut off a
    call under way on it.
    """

    def __init__(self, *, dynamic: bool, called: Callable[[], None]) -> None:
        spares = [f"{_SERVER}{number}" for number in range(2, 2 + _SPARES)] if dynamic else []
        self._tools: dict[str, dict[str, ToolSpec]] = {name: {} for name in [_SERVER, *spares]}
        self._next_spare = cycle(spares)
        self._called = called
        self._answers: dict[str, asyncio.Future[ToolMessage]] = {}
        self._waiting: set[str] = set()
        self._ended = False

    def open(self, tools: Iterable[ToolSpec]) -> dict[str, object]:
        """The servers as the SDK takes them, the first one with `tools`."""
        self._tools[_SERVER] = {tool.name: tool for tool in tools}
        return {
            name: {"type": "sdk", "name": name, "instance": self._server(name)}
            for name in self._tools
        }

    def own_name(self, name: str) -> str:
        """The prompt's name of the tool that the model calls `mcp__server__name`; any other name as
        it is.
        """
        head, _, rest = name.partition("__")
        server, _, tool = rest.partition("__")
        return tool if head == "mcp" and tool in self._tools.get(server, ()) else name

    def add(self, tools: Iterable[ToolSpec]) -> str:
        """Puts `tools` on a spare server, and names it."""
        name = next(self._next_spare)
        self._tools[name].update({tool.name: tool for tool in tools})
        return name

    def awaits(self, call_id: str) -> bool:
        """Whether the CLI has made this call."""
        return call_id in self._waiting

    def answer(self, message: ToolMessage) -> None:
        """Gives a call its answer; the first one stands."""
        future = self.reply(message.call_id)
        if not future.done():
            future.set_result(message)

    def reply(self, call_id: str) -> asyncio.Future[ToolMessage]:
        """The answer to a call, now or later."""
        if call_id not in self._answers:
            self._answers[call_id] = asyncio.get_running_loop().create_future()
            if self._ended:
                self.end()
        return self._answers[call_id]

    def end(self) -> None:
        """Answers what waits and what will: nothing comes any more."""
        self._ended = True
        for call_id in self._answers:
            self.answer(ToolMessage(call_id, "Not run: the CLI ended.", success=False))

    def _server(self, name: str) -> object:
        server: Any = import_module("mcp.server")  # Any: as in `adapter`
        types: Any = import_module("mcp.types")

        async def list_tools(*_: object) -> object:
            return types.ListToolsResult(
                tools=[_listed(types, tool) for tool in self._tools[name].values()]
            )

        return server.Server(
            name, version="1", on_list_tools=list_tools, on_call_tool=partial(self._call, types)
        )

    async def _call(self, types: Any, _: object, params: Any) -> object:  # Any: mcp's own
        meta: Mapping[str, Any] = params.meta or {}
        call_id = str(meta.get(_CALL_ID))
        self._waiting.add(call_id)
        self._called()
        answer = await self.reply(call_id)
        text = types.TextContent(type="text", text=answer.content)
        return types.CallToolResult(content=[text], is_error=not answer.success)


def _listed(types: Any, tool: ToolSpec) -> object:  # Any: mcp's own
    described = {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.parameters,
        "_meta": _WHOLE,
    }
    return types.Tool.model_validate(described)
