"""W3: an evaluation with K tool calls and a provider that takes no time; costs are per call."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.measure import Row, measure_cpu
from benchmarks.tools import Instant, answers, evaluate, last_tenth, template, to_json
from weakincentives.prompt import ToolContext, ToolResult

LENGTHS = (1, 10, 100, 1000)


@dataclass(frozen=True)
class Search:
    query: str
    limit: int = 3
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Hit:
    path: str
    score: float
    text: str


@dataclass(frozen=True)
class Hits:
    query: str
    total: int
    hits: tuple[Hit, ...]


def search(params: Search, *, context: ToolContext | None) -> ToolResult[Hits]:  # noqa: ARG001 - every handler takes it
    hits = tuple(
        [
            Hit(f"docs/{params.query}/{i}.md", 0.5, f"The content of line {i}.")
            for i in range(params.limit)
        ]
    )
    return ToolResult(f"{params.limit} of 40 for {params.query!r}", Hits(params.query, 40, hits))


ARGUMENTS = [
    json.dumps({"query": f"topic {i}", "limit": 3, "tags": ["api", "guide"]})
    for i in range(max(LENGTHS))
]


def floor(arguments: list[str]) -> list[str]:
    """The same calls and answers in plain Python."""
    contents: list[str] = []
    for text in arguments:
        fields: dict[str, Any] = json.loads(text)  # Any: plain Python does not check them
        fields["tags"] = tuple(fields["tags"])
        result = search(Search(**fields), context=None)
        contents.append(f"{result.message}\n\n{to_json(result.value)}")
    return contents


def rows() -> Iterator[Row]:
    prompt = template("search", search)
    for length in LENGTHS:
        arguments = ARGUMENTS[:length]
        adapter = Instant("search", arguments)
        assert answers(evaluate(adapter, prompt)) == floor(arguments)
        costs = measure_cpu(
            {"floor": partial(floor, arguments), "ours": partial(evaluate, adapter, prompt)},
            per=length,
        )
        target = 14 if length == 1 else 4
        yield Row("W3", f"run of K = {length}, per call", "µs", costs, target)
    yield last_tenth("W3", Instant("search", ARGUMENTS), prompt)
