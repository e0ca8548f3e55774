"""A typed prompt, and a scripted model that writes its answers in chunks of a given size."""

from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from weakincentives import MarkdownSection, PromptTemplate
from weakincentives.evaluation import AssistantMessage, ProviderRequest, TextDelta
from weakincentives.testing import ScriptedAdapter

__all__ = ["ANSWER", "ORDER", "Chunks", "Line", "Order", "template"]


@dataclass
class Line:
    name: str
    count: int = 1


@dataclass
class Order:
    number: int
    state: Literal["open", "closed"]
    lines: list[Line] = field(default_factory=list[Line])
    note: str = ""


ANSWER = '{"number": 12, "state": "open", "lines": [{"name": "tea"}, {"name": "milk", "count": 3}]}'
ORDER = Order(12, "open", [Line("tea"), Line("milk", 3)])


class Chunks(ScriptedAdapter):
    """Plays a script, and streams each text in chunks of `size` characters."""

    size = 1

    def ask_stream(self, request: ProviderRequest, /) -> Iterator[TextDelta | AssistantMessage]:
        answer = self.ask(request)
        for start in range(0, len(answer.text), self.size):
            yield TextDelta(answer.text[start : start + self.size])
        yield answer

    async def ask_stream_async(
        self, request: ProviderRequest, /
    ) -> AsyncGenerator[TextDelta | AssistantMessage]:
        for chunk in self.ask_stream(request):
            yield chunk


# Any: prompts, outputs and events of all types.
def template(output: Any, **options: Any) -> PromptTemplate[Any]:
    task = MarkdownSection(title="Task", template="Go.")
    options = {"sections": [task]} | options
    return PromptTemplate[output](ns="tests", key="partial", **options)
