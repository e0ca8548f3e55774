"""A provider without latency, and a search tool, for W3 and W8."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from time import process_time
from typing import Any

from benchmarks.measure import MICRO, ROUNDS, Row
from weakincentives.adapters.core import Connection, LoopAdapter, PromptResponse
from weakincentives.evaluation.inner_loop import ProviderRequest, RunConfig
from weakincentives.evaluation.messages import AssistantMessage, ToolCall, ToolMessage
from weakincentives.prompt import MarkdownSection, Prompt, PromptTemplate, RenderedPrompt, Tool
from weakincentives.prompt.tool import ToolHandler
from weakincentives.runtime.session import Session


@dataclass(frozen=True)
class Replies(Connection):
    """An `Instant` adapter's connection: gives replies in order and times each request (CPU)."""

    replies: Sequence[AssistantMessage]
    request_times: list[float]

    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        self.request_times.append(process_time())
        return self.replies[request.turn - 1]

    async def ask_async(self, request: ProviderRequest, /) -> AssistantMessage:
        return self.ask(request)


class Instant(LoopAdapter):  # Any: prompts with any output type
    """Calls `tool` once for each of `arguments`, one call per turn, and then answers."""

    name = "instant"

    def __init__(self, tool: str, arguments: Sequence[str]) -> None:
        super().__init__(config=RunConfig(max_turns=None))
        calls = [ToolCall(f"call_{i}", tool, text) for i, text in enumerate(arguments)]
        messages = [AssistantMessage(tool_calls=(call,), finish="tool_calls") for call in calls]
        self._replies = [*messages, AssistantMessage(text="done")]
        self.request_times: list[float] = []

    def connect(self, rendered: RenderedPrompt[Any], /) -> Replies:  # Any: as above
        self.request_times = []
        return Replies(self._replies, self.request_times)


# Any: handlers of all types.
def template(tool: str, handler: ToolHandler[Any, Any]) -> PromptTemplate[None]:
    tools: list[Tool[Any, Any]] = [Tool(name=tool, handler=handler)]
    section = MarkdownSection(title="Task", template="Search until you know.", tools=tools)
    return PromptTemplate(ns="bench", key="run", sections=[section])


def evaluate(adapter: Instant, prompt: PromptTemplate[None]) -> PromptResponse[None]:
    """Evaluates the prompt in a new session."""
    return adapter.evaluate(Prompt(prompt), session=Session())


def answers(response: PromptResponse[None]) -> list[str]:
    """Returns the answer to each call."""
    return [message.content for message in response.transcript if isinstance(message, ToolMessage)]


def last_tenth(workload: str, adapter: Instant, prompt: PromptTemplate[None]) -> Row:
    """Compares the costs of the last calls of a long run with those of the first."""
    tenths: list[list[float]] = []
    for _ in range(ROUNDS):
        evaluate(adapter, prompt)
        tenth = len(adapter.request_times) // 10
        spans = pairwise(adapter.request_times[::tenth])
        tenths.append([(after - before) / tenth * MICRO for before, after in spans])
    first, *_, last = map(median, zip(*tenths, strict=True))
    case = "last tenth of K = 1000 (floor: its first tenth), per call"
    return Row(workload, case, "µs", {"floor": first, "ours": last}, 1.2)


to_json = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=vars).encode
