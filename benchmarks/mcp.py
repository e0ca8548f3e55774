"""Ten real MCP servers behind one agent, ours and others: `make bench-mcp` writes MCP.md.

Each agent is set up as its documentation says and gets one question; its model is in the process
and takes no time. At the first request to the model, the clock stops, the processes that were
started are counted, and the tools are measured as JSON. Imports are not counted.
"""

# The other libraries are not installed where the type checkers run, so their classes are unknown.
# mypy: disable-error-code="misc, no-any-return, unused-ignore"
# pyright: reportMissingImports=false, reportUntypedBaseClass=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false

import asyncio
import json
import os
import platform
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from benchmarks.w11_mcp import parents
from weakincentives import MarkdownSection, PromptTemplate
from weakincentives.adapters.core import Connection, LoopAdapter
from weakincentives.contrib.mcp import MCPSection
from weakincentives.contrib.mcp.lock import read_lock
from weakincentives.evaluation.inner_loop import ProviderRequest
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.prompt import RenderedPrompt
from weakincentives.runtime.session import Session

LOCKS = sorted((Path(__file__).parent.parent / "tests/data/mcp").glob("*.json"))

# Receives the tools of the first request as JSON values. Any: of each library, and coroutines.
type Arrived = Callable[[Iterable[Any]], None]


def commands() -> dict[str, list[str]]:
    """Returns the servers' commands by name."""
    return {path.stem: list(read_lock(path).command or ()) for path in LOCKS}


async def ours(arrived: Arrived) -> None:
    class Model(LoopAdapter, Connection):
        name = "model"

        def connect(self, rendered: RenderedPrompt[Any], /) -> Connection:
            return self

        def ask(self, request: ProviderRequest, /) -> AssistantMessage:
            arrived(tool.as_dict() for tool in request.tools)
            return AssistantMessage(text="done")

        async def ask_async(self, request: ProviderRequest, /) -> AssistantMessage:
            return self.ask(request)

    sections = [MCPSection(path.stem, lock=path) for path in LOCKS]
    task = MarkdownSection(title="Task", template="Help.")
    template = PromptTemplate(ns="benchmarks", key="mcp", sections=[task, *sections])
    await Model().evaluate_async(template.bind(), session=Session())


async def pydantic_ai(arrived: Arrived) -> None:
    from fastmcp.client.transports import StdioTransport
    from pydantic_ai import Agent
    from pydantic_ai.mcp import MCPToolset
    from pydantic_ai.messages import ModelResponse, TextPart
    from pydantic_ai.models.function import FunctionModel

    def reply(_: Any, info: Any) -> Any:
        arrived(
            {"name": tool.name, "description": tool.description, "parameters": schema}
            for tool in info.function_tools
            for schema in [tool.parameters_json_schema]
        )
        return ModelResponse(parts=[TextPart("done")])

    toolsets = [
        MCPToolset(StdioTransport(command[0], command[1:], env=dict(os.environ))).prefixed(name)
        for name, command in commands().items()
    ]
    await Agent(FunctionModel(reply), toolsets=toolsets).run("Help.")


async def openai_agents(arrived: Arrived) -> None:
    from agents import Agent, Model, ModelResponse, Runner, Usage, set_tracing_disabled
    from agents.mcp import MCPServerStdio
    from openai.types.responses import ResponseOutputMessage, ResponseOutputText

    set_tracing_disabled(disabled=True)

    class Reply(Model):
        async def get_response(self, *args: Any, **kwargs: Any) -> Any:
            tools = kwargs.get("tools") or args[3]
            arrived(
                {"name": tool.name, "description": tool.description, "parameters": schema}
                for tool in tools
                for schema in [tool.params_json_schema]
            )
            text = ResponseOutputText(type="output_text", text="done", annotations=[])
            item = ResponseOutputMessage(
                id="m", type="message", role="assistant", status="completed", content=[text]
            )
            return ModelResponse(output=[item], usage=Usage(), response_id=None)

        def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("not streamed")

    async with AsyncExitStack() as stack:
        servers: list[Any] = []
        for name, command in commands().items():
            params: Any = {"command": command[0], "args": command[1:], "env": dict(os.environ)}
            server = MCPServerStdio(params, name=name, client_session_timeout_seconds=60)
            servers.append(await stack.enter_async_context(server))
        await Runner.run(Agent(name="bench", model=Reply(), mcp_servers=servers), "Help.")


def measure(agent: Callable[[Arrived], Coroutine[Any, Any, None]]) -> tuple[float, int, int, int]:
    """Returns the seconds until the first request, processes, tools, and their characters."""
    figures: list[tuple[float, int, int, int]] = []

    def arrived(tools: Iterable[Any]) -> None:
        seconds = perf_counter() - start
        texts = [json.dumps(tool) for tool in tools]
        processes = sum(parent == os.getpid() for _, parent in parents())
        figures.append((seconds, processes, len(texts), sum(map(len, texts))))

    for _ in range(2):  # the first one imports
        start = perf_counter()
        asyncio.run(agent(arrived))
    return figures[-1]


def main() -> None:
    agents = {
        f"weakincentives {version('weakincentives')}": ours,
        f"pydantic-ai-slim {version('pydantic-ai-slim')}": pydantic_ai,
        f"openai-agents {version('openai-agents')}": openai_agents,
    }
    print("# Ten MCP servers behind one agent\n")
    print("Written by `make bench-mcp`: the costs up to the first request to the model.")
    print("`benchmarks/mcp.py` shows how each agent is set up.\n")
    print(f"CPython {platform.python_version()}, {platform.system()} {platform.machine()}.\n")
    print("| library | seconds | processes | tools | characters of tools |")
    print("| --- | --- | --- | --- | --- |")
    with TemporaryDirectory() as folder:
        os.chdir(folder)  # some servers create files where they run
        for name, agent in agents.items():
            seconds, processes, tools, characters = measure(agent)
            print(f"| {name} | {seconds:.2f} | {processes} | {tools} | {characters:,} |")


if __name__ == "__main__":
    main()
