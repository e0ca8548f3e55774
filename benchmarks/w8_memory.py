"""W8: 1,000 tool calls with results of 10 kB: peak memory beyond the results, CPU per call."""

import gc
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.measure import Row
from benchmarks.tools import Instant, answers, evaluate, last_tenth, template
from weakincentives.prompt import ToolContext, ToolResult

CALLS = 1_000
SIZE = 10_000


@dataclass(frozen=True)
class Page:
    number: int


@dataclass(frozen=True)
class Text:
    body: str


def read(params: Page, *, context: ToolContext | None) -> ToolResult[Text]:  # noqa: ARG001 - every handler takes it
    return ToolResult("read", Text(f"{params.number:05}" * (SIZE // 5)))


ARGUMENTS = [f'{{"number": {i}}}' for i in range(CALLS)]


def payload() -> list[ToolResult[Text]]:
    """The floor: only the results."""
    return [read(Page(i), context=None) for i in range(CALLS)]


def rows() -> Iterator[Row]:
    prompt, adapter = template("read", read), Instant("read", ARGUMENTS)
    contents = answers(evaluate(adapter, prompt))
    assert contents == [
        f'read\n\n{{"body":"{result.value.body}"}}' for result in payload() if result.value
    ]
    del contents
    megabytes: list[float] = []
    for run in (payload, lambda: evaluate(adapter, prompt)):
        gc.collect()
        tracemalloc.start()
        run()
        megabytes.append(tracemalloc.get_traced_memory()[1] / 1e6)
        tracemalloc.stop()
    floor, ours = megabytes
    yield Row("W8", "peak growth", "MB", {"floor": floor, "ours": ours}, 2.2)
    yield last_tenth("W8", adapter, prompt)
