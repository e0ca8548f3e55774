"""Compares other libraries: `python -m benchmarks.peers LIBRARY…` prints their part of PEERS.md.

`make bench-peers` gives each library its own environment. Agent libraries run W1, W3 and W8: all
call the same function with the same arguments, one call per turn, with a model in the process that
takes no time. Each is set up as its documentation says, without telemetry, in one event loop for
the whole benchmark. Libraries that use OpenAI's SDK also run W10. jinja2 and msgspec run W2 and W7.
"""

# They are not installed where the type checkers run, so their classes are unknown there.
# mypy: disable-error-code="misc, no-any-return, unused-ignore"
# pyright: reportMissingImports=false, reportUntypedBaseClass=false
# pyright: reportUnknownParameterType=false
# pyright: reportMissingParameterType=false, reportUnknownLambdaType=false

import asyncio
import json
import platform
import sys
import tracemalloc
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from statistics import median
from typing import Any

from benchmarks import w2_render, w7_serde, w10_agents
from benchmarks.agents_server import TEXT
from benchmarks.measure import Row, measure_cpu
from benchmarks.tools import Instant, evaluate, template
from benchmarks.w1_import import FLOOR, IMPORTS, measure_import
from benchmarks.w3_tool_calls import ARGUMENTS, Hits, Search, floor, search

LENGTHS = (1, 10, 100, 1000)
IMPORT_ROUNDS = 7
TIMES = "\N{MULTIPLICATION SIGN}"

# Runs as many calls as there are arguments and returns how many were made. Any: the other
# libraries' types.
type Run = Callable[[Sequence[str]], Any]

calls = 0


def find(query: str, limit: int = 3, tags: tuple[str, ...] = ()) -> Hits:
    """Search the documents."""
    global calls  # noqa: PLW0603 - the proof that the tool ran, the cheapest one there is
    calls += 1
    hits = search(Search(query, limit, tags), context=None).value
    assert hits is not None
    return hits


def in_loop(run: Callable[[Sequence[str]], Coroutine[Any, Any, Any]]) -> Run:
    runner = asyncio.Runner()
    return lambda arguments: runner.run(run(arguments))


def pydantic_ai() -> Run:
    from pydantic_ai import Agent, UsageLimits
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    async def run(arguments: Sequence[str]) -> Any:
        def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:  # noqa: ARG001 - a model's function takes it
            turn = len(messages) // 2
            if turn == len(arguments):
                return ModelResponse(parts=[TextPart("done")])
            return ModelResponse(parts=[ToolCallPart("find", arguments[turn], f"call_{turn}")])

        with agent.override(model=FunctionModel(reply)):
            return await agent.run(
                "Search until you know.", usage_limits=UsageLimits(request_limit=None)
            )

    agent = Agent(tools=[find])
    return in_loop(run)


def openai_agents() -> Run:
    from agents import (
        Agent,
        Model,
        ModelResponse,
        Runner,
        Usage,
        function_tool,
        set_tracing_disabled,
    )
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )

    set_tracing_disabled(disabled=True)

    class Replies(Model):
        def __init__(self, arguments: Sequence[str]) -> None:
            self.arguments = arguments
            self.turn = 0

        async def get_response(self, *args: Any, **kwargs: Any) -> ModelResponse:
            turn, self.turn = self.turn, self.turn + 1
            if turn == len(self.arguments):
                text = ResponseOutputText(type="output_text", text="done", annotations=[])
                item: Any = ResponseOutputMessage(
                    id="m", type="message", role="assistant", status="completed", content=[text]
                )
            else:
                item = ResponseFunctionToolCall(
                    type="function_call",
                    name="find",
                    call_id=f"call_{turn}",
                    arguments=self.arguments[turn],
                )
            return ModelResponse(output=[item], usage=Usage(), response_id=None)

        def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("not streamed")

    tool = function_tool(find)

    async def run(arguments: Sequence[str]) -> Any:
        agent = Agent(name="bench", model=Replies(arguments), tools=[tool])
        return await Runner.run(agent, "Search until you know.", max_turns=len(arguments) + 1)

    return in_loop(run)


def langchain() -> Run:
    from langchain.agents import create_agent
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.outputs import ChatGeneration, ChatResult

    class Replies(BaseChatModel):
        arguments: Sequence[str] = ()

        @property
        def _llm_type(self) -> str:
            return "instant"

        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self

        def _generate(self, messages: Any, *args: Any, **kwargs: Any) -> ChatResult:
            turn = (len(messages) - 1) // 2
            if turn == len(self.arguments):
                message = AIMessage("done")
            else:
                call = {
                    "name": "find",
                    "args": json.loads(self.arguments[turn]),
                    "id": f"call_{turn}",
                }
                message = AIMessage("", tool_calls=[call])
            return ChatResult(generations=[ChatGeneration(message=message)])

    model = Replies()
    agent = create_agent(model, [find])

    def run(arguments: Sequence[str]) -> Any:
        model.arguments = arguments
        limit = {"recursion_limit": 10 * len(arguments) + 10}
        return agent.invoke(
            {"messages": [{"role": "user", "content": "Search until you know."}]}, limit
        )

    return run


AGENTS: dict[str, tuple[str, Callable[[], Run]]] = {
    "pydantic-ai-slim": ("from pydantic_ai import Agent", pydantic_ai),
    "openai-agents": ("from agents import Agent", openai_agents),
    "langchain": ("from langchain.agents import create_agent", langchain),  # on langgraph
}


def pydantic_ai_over_sdk(url: str) -> dict[str, w10_agents.Agent]:
    from pydantic_ai import Agent, Tool
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    model = OpenAIChatModel("m", provider=OpenAIProvider(base_url=url, api_key="k"))
    agent = Agent(model, tools=[Tool(find_async, name="search")])

    async def run() -> None:
        assert (await agent.run("Search until you know.")).output == TEXT

    async def stream() -> None:
        async with agent.run_stream("Search until you know.") as result:
            assert [text async for text in result.stream_text()][-1] == TEXT

    return {"": run, ", streamed": stream}


def openai_agents_over_sdk(url: str) -> dict[str, w10_agents.Agent]:
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool
    from openai import AsyncOpenAI

    model = OpenAIChatCompletionsModel("m", AsyncOpenAI(base_url=url, api_key="k"))
    tool = function_tool(find_async, name_override="search")
    agent = Agent(name="bench", model=model, tools=[tool])

    async def run() -> None:
        result = await Runner.run(agent, "Search until you know.", max_turns=20)
        assert result.final_output == TEXT

    async def stream() -> None:
        result = Runner.run_streamed(agent, "Search until you know.", max_turns=20)
        async for _ in result.stream_events():
            pass
        assert result.final_output == TEXT

    return {"": run, ", streamed": stream}


async def find_async(query: str, limit: int = 3, tags: tuple[str, ...] = ()) -> Hits:
    """Search the documents."""
    return find(query, limit, tags)


OVER_SDK: dict[str, Callable[[str], dict[str, w10_agents.Agent]]] = {
    "pydantic-ai-slim": pydantic_ai_over_sdk,
    "openai-agents": openai_agents_over_sdk,
}


async def agents_over_sdk(name: str, url: str) -> list[Row]:
    """Returns the rows of W10."""
    theirs = OVER_SDK[name](url)
    result: list[Row] = []
    async with w10_agents.over_sdk(url) as ways:
        for way, candidates in ways.items():
            for agents in w10_agents.AGENTS:
                found = await w10_agents.measure(candidates | {name: theirs[way]}, agents, 1)
                result.append(Row("W10", f"{agents} concurrent{way}, per run", "µs", found, 0))
    return result


def imports(code: str) -> Iterator[Row]:
    codes = (FLOOR, IMPORTS[1], code)
    samples: dict[str, list[tuple[float, int, float]]] = {code: [] for code in codes}
    for sample in codes:
        measure_import(sample)  # the first one writes bytecode
    for _ in range(IMPORT_ROUNDS):
        for sample in codes:
            samples[sample].append(measure_import(sample))
    least, ours, theirs = (
        [median(column) for column in zip(*samples[sample], strict=True)] for sample in codes
    )
    for unit, index in (("ms", 0), ("modules", 1), ("MB", 2)):
        costs = {"floor": least[index], "ours": ours[index], "theirs": theirs[index]}
        yield Row("W1", code, unit, costs, 0)


def peak(run: Callable[[], object]) -> float:
    """Returns the largest growth of memory during `run`, in megabytes."""
    tracemalloc.start()
    run()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most / 1e6


def rows(name: str) -> Iterator[Row]:
    global calls  # noqa: PLW0603 - as above
    code, build = AGENTS[name]
    yield from imports(code)
    run, prompt = build(), template("search", search)
    for length in LENGTHS:
        arguments = ARGUMENTS[:length]
        calls = 0
        run(arguments)
        assert calls == length, (name, calls)
        candidates: dict[str, Callable[[], object]] = {
            "floor": partial(floor, arguments),
            "ours": partial(evaluate, Instant("search", arguments), prompt),
            name: partial(run, arguments),
        }
        costs = measure_cpu(candidates, per=length, rounds=5 if length < LENGTHS[-1] else 1)
        yield Row("W3", f"run of K = {length}, per call", "µs", costs, 0)
    arguments = ARGUMENTS[:100]
    costs = {
        "floor": peak(partial(floor, arguments)),
        "ours": peak(partial(evaluate, Instant("search", arguments), prompt)),
        name: peak(partial(run, arguments)),
    }
    yield Row("W8", "peak growth in a run of K = 100", "MB", costs, 0)
    if name in OVER_SDK:
        with w10_agents.serve() as url:
            yield from asyncio.run(agents_over_sdk(name, url))


def main(names: Sequence[str]) -> None:
    agents = [name for name in names if name in AGENTS]
    table = [row for name in agents for row in rows(name)]
    if not agents:
        table = [*w2_render.rows(), *w7_serde.rows()]
    print(f"## {', '.join(f'{name} {version(name)}' for name in names)}\n")
    print(f"CPython {platform.python_version()}, {platform.system()} {platform.machine()}.\n")
    print("|     | case | floor | ours | theirs | theirs / ours |")
    print("| --- | --- | --- | --- | --- | --- |")
    for row in table:
        least, ours = row.costs["floor"], row.costs["ours"]
        for name, costs in row.costs.items():
            if name not in {"floor", "ours"}:
                label = "" if name in {"theirs", *agents} else f"{name}, "
                figures = f"{least:.2f} | {ours:.2f} | {costs:.2f} | {TIMES}{costs / ours:.2f}"
                print(f"| {row.workload} | {row.case} ({label}{row.unit}) | {figures} |")
    print()


if __name__ == "__main__":
    main(sys.argv[1:])
