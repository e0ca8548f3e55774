"""W2: rendering S sections with three placeholders each, and a tool in every tenth."""

import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from benchmarks.measure import Row, measure_cpu, peer
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    Tool,
    ToolContext,
    ToolResult,
)

SIZES = (10, 100, 1000)
BODY = (
    "The account of $name is due on $date.\n\n"
    "Remind them that $amount is open, in one polite sentence."
)


@dataclass(frozen=True)
class Account:
    name: str
    date: str
    amount: int


@dataclass(frozen=True)
class Query:
    text: str


def look(params: Query, *, context: ToolContext) -> ToolResult[Query]:  # noqa: ARG001 - every handler takes it
    return ToolResult("found", params)


PARAMS = Account("Ada", "May 1", 20)


def template(size: int) -> PromptTemplate[None]:
    return PromptTemplate(
        ns="bench",
        key="render",
        sections=[
            MarkdownSection[Account](
                title=f"Part {i}",
                template=BODY,
                tools=[]
                if i % 10
                else [Tool[Query, Query](name=f"look_{i}", description="Looks.", handler=look)],
            )
            for i in range(size)
        ],
    )


def plain(size: int) -> list[string.Template]:
    return [string.Template(f"## {i + 1}. Part {i}\n\n{BODY}") for i in range(size)]


def substitute(parts: list[string.Template]) -> str:
    """The floor of W2."""
    return "\n\n".join([part.substitute(vars(PARAMS)) for part in parts])


def render_text(prompt: Prompt[None]) -> str:
    return prompt.render().text


def jinja(size: int) -> dict[str, Callable[[], object]]:
    jinja2 = peer("jinja2")
    if jinja2 is None:
        return {}
    body = (
        BODY.replace("$name", "{{ name }}")
        .replace("$date", "{{ date }}")
        .replace("$amount", "{{ amount }}")
    )
    texts = [f"## {i + 1}. Part {i}\n\n{body}" for i in range(size)]
    parts, whole = [jinja2.Template(text) for text in texts], jinja2.Template("\n\n".join(texts))
    return {
        "jinja2, each": lambda: "\n\n".join([part.render(vars(PARAMS)) for part in parts]),
        "jinja2, whole": lambda: whole.render(vars(PARAMS)),
    }


def rows() -> Iterator[Row]:
    for size in SIZES:
        prompt, parts = Prompt(template(size)).bind(PARAMS), plain(size)
        candidates: dict[str, Callable[[], object]] = {
            "floor": partial(substitute, parts),
            "ours": partial(render_text, prompt),
            **jinja(size),
        }
        assert len({str(run()) for run in candidates.values()}) == 1
        assert len(prompt.render().tools) == size // 10
        costs = measure_cpu(candidates, per=size)
        yield Row("W2", f"render, S = {size}, per section", "µs", costs, 0.5)
