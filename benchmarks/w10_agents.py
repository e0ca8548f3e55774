"""W10: 1, 50 and 200 concurrent agents in one event loop, ten tool calls each, over OpenAI's SDK.

The server is another process on 127.0.0.1. The floor sends the same requests by hand through the
SDK's own `post`; only the CPU time of this process is measured. If `aiohttp` is installed, 200
agents also run over the SDK's client for it.
"""

import asyncio
import gc
import json
import subprocess
import sys
import tracemalloc
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, Self

from benchmarks.agents_server import CALLS, TEXT
from benchmarks.measure import MICRO, SINGLE_ROUND, Row
from benchmarks.tools import template, to_json
from benchmarks.w3_tool_calls import Hits, Search, search
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.evaluation.response import Completed, PromptResponse
from weakincentives.prompt import ToolContext, ToolResult
from weakincentives.runtime.session import Session

AGENTS = {1: 25, 50: 5, 200: 3}  # the number of rounds by the number of agents
TARGETS = {"": 1.12, ", streamed": 1.17}
MEMORY = 30  # kB per run above the floor
MANY = max(AGENTS)

type Agent = Callable[[], Awaitable[object]]
type AnyClient = Any  # an `openai.AsyncOpenAI`, which is imported on first use


# a plain handler would run in a thread, which the floor does not use
async def find(params: Search, *, context: ToolContext | None) -> ToolResult[Hits]:
    return search(params, context=context)


@contextmanager
def serve() -> Generator[str]:
    """Yields the base URL of the provider."""
    root = Path(__file__).parent.parent
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.agents_server"],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
        finally:
            process.stdin.close()  # the server ends


class ByHand:
    """An agent without a library: `first` is its first request."""

    def __init__(self, client: AnyClient, first: Mapping[str, Any]) -> None:
        self._client, self._first = client, first

    async def run(self) -> list[Any]:  # Any: JSON, as everywhere below
        """Returns the messages of a run."""
        messages = list(self._first["messages"])
        body = {**self._first, "messages": messages}
        while True:
            reply = await self._client.post("/chat/completions", body=body, cast_to=object)
            [choice] = reply["choices"]
            if not await self._answer(choice["message"], messages):
                return messages

    async def stream(self) -> list[Any]:
        """Like `run`, with the answers as streams."""
        from openai import AsyncStream

        kind = AsyncStream[object]
        messages = list(self._first["messages"])
        asked = {"stream": True, "stream_options": {"include_usage": True}}
        body = {**self._first, "messages": messages, **asked}
        while True:
            events = await self._client.post(
                "/chat/completions", body=body, cast_to=object, stream=True, stream_cls=kind
            )
            texts: list[str] = []
            calls: dict[int, Any] = {}
            async for event in events:
                for choice in event["choices"]:
                    delta = choice["delta"]
                    if delta.get("content"):
                        texts.append(delta["content"])
                    for call in delta.get("tool_calls", ()):
                        known = calls.setdefault(call["index"], call)
                        if known is not call:
                            known["function"]["arguments"] += call["function"]["arguments"]
            message = {"content": "".join(texts) or None, "tool_calls": [*calls.values()]}
            if not await self._answer(message, messages):
                return messages

    async def _answer(self, message: Mapping[str, Any], messages: list[Any]) -> bool:
        """Adds the model's message and its calls' results; returns whether there are any calls."""
        calls: list[dict[str, Any]] = [
            {"id": call["id"], "type": "function", "function": call["function"]}
            for call in message.get("tool_calls") or ()
        ]
        if not calls:
            messages.append({"role": "assistant", "content": message["content"]})
            return False
        messages.append({"role": "assistant", "tool_calls": calls})
        for call in calls:
            fields = json.loads(call["function"]["arguments"])
            fields["tags"] = tuple(fields["tags"])
            result = await find(Search(**fields), context=None)
            content = f"{result.message}\n\n{to_json(result.value)}"
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
        return True


class Ours:
    """The same agent as a prompt."""

    def __init__(self, adapter: OpenAIAdapter) -> None:
        self._adapter, self._prompt = adapter, template("search", find)

    async def run(self) -> PromptResponse[None]:
        return await self._adapter.evaluate_async(self._prompt.bind(), session=Session())

    async def stream(self) -> PromptResponse[None]:
        events = self._adapter.stream_async(self._prompt.bind(), session=Session())
        *_, last = [event async for event in events]
        assert isinstance(last, Completed)
        return last.response


class Recorder:
    """A client that keeps the bodies of its requests."""

    def __init__(self, url: str) -> None:
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        self.bodies: list[bytes] = []
        http = DefaultAsyncHttpxClient(event_hooks={"request": [self._keep]})
        self.client = AsyncOpenAI(base_url=url, api_key="k", http_client=http)

    async def _keep(self, request: Any) -> None:  # Any: a request of the SDK's HTTP library
        self.bodies.append(request.content)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.client.close()


async def first_request(url: str) -> Mapping[str, Any]:
    """Returns our first request, after a check that the floor sends exactly our requests."""
    async with Recorder(url) as recorder:
        ours = Ours(OpenAIAdapter("m", api="chat", async_client=recorder.client))
        for run in (ours.run, ours.stream):
            response = await run()
            assert (response.text, response.turns) == (TEXT, CALLS + 1)
        bodies = [json.loads(body) for body in recorder.bodies]
        recorder.bodies.clear()
        floor = ByHand(recorder.client, bodies[0])
        for by_hand in (floor.run, floor.stream):
            await by_hand()
        assert [json.loads(body) for body in recorder.bodies] == bodies
    first: Mapping[str, Any] = bodies[0]
    return first


async def at_once(agent: Agent, agents: int) -> float:
    """Returns the CPU microseconds of a run."""
    agents = min(agents, 2) if SINGLE_ROUND else agents
    started = process_time()
    await asyncio.gather(*[agent() for _ in range(agents)])
    return (process_time() - started) / agents * MICRO


async def measure(candidates: Mapping[str, Agent], agents: int, rounds: int) -> dict[str, float]:
    """Returns the median CPU microseconds of a run; the candidates take turns."""
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    for agent in candidates.values():
        await at_once(agent, agents)  # opens connections
    gc.collect()
    gc.freeze()
    for _ in range(1 if SINGLE_ROUND else rounds):
        for name, agent in candidates.items():
            samples[name].append(await at_once(agent, agents))
    gc.unfreeze()
    return {name: median(times) for name, times in samples.items()}


async def peak(agent: Agent, agents: int) -> float:
    """Returns the peak memory growth of the process, in kB per run."""
    gc.collect()
    tracemalloc.start()
    await at_once(agent, agents)
    most = tracemalloc.get_traced_memory()[1] / agents / 1e3
    tracemalloc.stop()
    return most


@asynccontextmanager
async def over_sdk(url: str) -> AsyncGenerator[dict[str, dict[str, Agent]]]:
    """Yields the floor and ours, by the end of a row's name."""
    from openai import AsyncOpenAI

    first = await first_request(url)
    ours = Ours(OpenAIAdapter("m", api="chat", base_url=url, api_key="k"))
    async with AsyncOpenAI(base_url=url, api_key="k") as client:
        floor = ByHand(client, first)
        yield {
            "": {"floor": floor.run, "ours": ours.run},
            ", streamed": {"floor": floor.stream, "ours": ours.stream},
        }


async def table(url: str) -> list[Row]:
    """Returns the rows; each has new clients, as idle connections from a burst slow requests."""
    result: list[Row] = []
    for way, target in TARGETS.items():
        for agents, rounds in AGENTS.items():
            async with over_sdk(url) as ways, over_aiohttp(url) as others:
                more = others if agents == MANY and not way else {}
                costs = await measure(ways[way] | more, agents, rounds)
            case = f"{agents} concurrent{way}, per run"
            result.append(Row("W10", case, "µs", costs, target))
        async with over_sdk(url) as ways:
            costs = {name: await peak(agent, MANY) for name, agent in ways[way].items()}
        case = f"{MANY} concurrent{way}, peak growth, per run"
        result.append(Row("W10", case, "kB", costs, MEMORY, "difference"))
    return result


@asynccontextmanager
async def over_aiohttp(url: str) -> AsyncGenerator[dict[str, Agent]]:
    """Yields our agent over the SDK's other transport, or nothing if it is not installed."""
    from openai import AsyncOpenAI, DefaultAioHttpClient

    try:
        http = DefaultAioHttpClient()
    except RuntimeError:  # it is not installed
        yield {}
        return
    async with AsyncOpenAI(base_url=url, api_key="k", http_client=http) as client:
        ours = Ours(OpenAIAdapter("m", api="chat", async_client=client))
        yield {"ours over aiohttp": ours.run}


def rows() -> Iterator[Row]:
    with serve() as url:
        yield from asyncio.run(table(url))
