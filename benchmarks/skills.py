"""Counts how much models read of ten skills: `python -m benchmarks.skills FOLDER` prints the table.

`make bench-skills` fetches the skills and provides an environment with pydantic-ai-harness. Each
case is a task with the headings that it needs, as one list of keys per turn. Scripted models open
exactly these headings, in our prompt with all the skills of the package, and in a pydantic-ai agent
with the same skills. Nothing is timed: characters are counted, including the tools as JSON.
"""

# pydantic-ai is not installed where the type checkers run, so its classes are unknown there.
# mypy: disable-error-code="misc, no-any-return, unused-ignore"
# pyright: reportMissingImports=false, reportUnknownParameterType=false

import asyncio
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from weakincentives import PromptTemplate
from weakincentives.contrib.skills import SkillSection, skills
from weakincentives.evaluation.messages import AssistantMessage, Message, ToolsAdded
from weakincentives.evaluation.schemas import ToolSpec
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say

# The package, the skill, a task, and the headings to open for it, one list per turn.
CASES: list[tuple[str, str, str, list[list[str]]]] = [
    ("chrome-devtools-mcp", "chrome-devtools-cli", "fill in a form",
     [["input-automation-uid-from-snapshot"]]),
    ("chrome-devtools-mcp", "cookie-debugging", "a login that does not stick",
     [["workflow-patterns"]]),
    ("chrome-devtools-mcp", "debug-optimize-lcp", "a slow first screen", []),
    ("chrome-devtools-mcp", "troubleshooting", "DevToolsActivePort is missing", []),
    ("playwright-core", "playwright-cli", "keep cookies between runs", [["commands"]]),
    ("playwright-core", "playwright-component-testing", "set it up", [["setup-workflow"]]),
    ("pydantic-ai-harness", "pydantic-ai-harness", "build a coding agent",
     [["quick-start-patterns"]]),
    ("pydantic-ai-slim", "building-pydantic-ai-agents", "add a tool",
     [["quick-start-patterns"], ["quick-start-patterns.add-tools-to-an-agent"]]),
    ("pydantic-ai-slim", "migrating-langchain-to-pydantic-ai", "migrate, all of it",
     [["work-from-the-running-application", "match-rigor-to-risk", "pydantic-ai-defaults"]]),
    ("pydantic-ai-slim", "migrating-agno-to-pydantic-ai", "migrate, all of it", []),
]  # fmt: skip
QUESTION = "Help me with my task."


class Counts(NamedTuple):
    """The characters that each request added, and those left once the skill was closed."""

    added: list[int]
    left: int

    @property
    def loaded(self) -> int:
        return sum(self.added[1:])

    @property
    def sent(self) -> int:
        return sum(accumulate(self.added))


def tool_size(tools: Iterable[ToolSpec]) -> int:
    return sum(len(json.dumps(asdict(tool))) for tool in tools)


def message_size(message: Message) -> int:
    match message:
        case ToolsAdded(tools):
            return tool_size(tools)
        case AssistantMessage(text=text, tool_calls=calls):
            return len(text) + sum(len(made.name) + len(made.arguments) for made in calls)
        case _:
            return len(getattr(message, "content", ""))


def ours(folder: Path, name: str, turns: list[list[str]]) -> Counts:
    sections = skills(folder)
    prompt = PromptTemplate(ns="bench", key="skills", sections=sections, closable=True).bind()
    reads = [[name], *([f"{name}.{key}" for key in keys] for keys in turns)]
    replies = [call(*(("read_section", {"section_key": key}) for key in keys)) for keys in reads]
    session, adapter = Session(), ScriptedAdapter([*replies, say("Done.")])
    response = adapter.evaluate(prompt, session=session, message=QUESTION)
    sizes = [
        tool_size(request.request.tools) + sum(map(message_size, request.messages))
        for request in adapter.requests
    ]
    added = [size - before for size, before in zip(sizes, [0, *sizes], strict=False)]
    answers = [str(getattr(m, "content", "")) for m in response.transcript]
    for keys in reads:  # the model has read what it asked for
        assert all(any(f"'{key}':" in answer for answer in answers) for key in keys)
    closing = ScriptedAdapter([call(("close_section", {"section_key": name})), say("Closed.")])
    conversation = closing.evaluate(
        prompt, session=session, conversation=response.conversation, message="Thanks."
    ).conversation
    assert conversation is not None
    restated = conversation.restated(prompt, session)
    left = sum(map(message_size, restated.messages)) + tool_size(restated.tools)
    talk = len(QUESTION) + len("Thanks.") + len("Done.") + len("Closed.")
    return Counts(added, left - (sizes[0] - len(QUESTION)) - talk)


def theirs(folder: Path, name: str) -> Counts:
    from pydantic_ai import Agent
    from pydantic_ai.messages import (
        ModelMessage,
        ModelRequest,
        ModelResponse,
        TextPart,
        ToolCallPart,
    )
    from pydantic_ai.models.function import AgentInfo, FunctionModel
    from pydantic_ai.workspaces import LocalWorkspaceBackend
    from pydantic_ai_harness.skills import Skills

    sizes: list[int] = []

    def reply(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        size = len(info.instructions or "")
        for tool in info.function_tools:
            schema = tool.parameters_json_schema
            size += len(json.dumps([tool.name, tool.description, schema]))
        for message in messages:
            for part in message.parts:
                content: Any = getattr(part, "content", "")
                size += len(content if isinstance(content, str) else json.dumps(content))
                if isinstance(part, ToolCallPart):
                    size += len(part.tool_name) + len(part.args_as_json_str())
        sizes.append(size)
        if len(sizes) == 1:
            return ModelResponse(parts=[ToolCallPart("load_capability", {"id": name}, "call_1")])
        body = str([p for m in messages if isinstance(m, ModelRequest) for p in m.parts])
        assert len(body) > 4_000  # noqa: PLR2004 - the skill has been loaded
        return ModelResponse(parts=[TextPart("Done.")])

    workspace = LocalWorkspaceBackend(folder)
    agent = Agent(FunctionModel(reply), capabilities=[Skills(str(folder), workspace=workspace)])
    asyncio.run(agent.run(QUESTION))
    first, second = sizes
    return Counts([first, second - first], second - first)


def main(folder: Path) -> None:
    print(HEAD.format(version("pydantic-ai-harness"), version("pydantic-ai-slim")))
    totals = [0] * 9
    for package, name, task, turns in CASES:
        place = folder / package
        section = SkillSection(place / name)
        body = len(section.skill.source) - section.skill.start
        mine, other = ours(place, name, turns), theirs(place, name)
        pairs = [
            (counts.added[0], counts.loaded, counts.sent, counts.left) for counts in (other, mine)
        ]
        row = [body, *(value for pair in zip(*pairs, strict=True) for value in pair)]
        totals = [total + value for total, value in zip(totals, row, strict=True)]
        print_row(f"{name}: {task}", row, len(mine.added))
    print_row("all ten", totals, None)


def print_row(case: str, row: list[int], requests: int | None) -> None:
    """Prints the body's size and pairs of theirs and ours: start, loaded, sent, left."""
    body, *values = row
    start, loaded, sent, left = (
        f"{theirs:,} / {ours:,}" for theirs, ours in zip(values[::2], values[1::2], strict=True)
    )
    count = "" if requests is None else f"2 / {requests}"
    share = f"{values[3] / body:.0%}"
    print(f"| {case} | {body:,} | {loaded} | {share} | {count} | {start} | {sent} | {left} |")


HEAD = """\
pydantic-ai-harness {}, pydantic-ai-slim {}.

| skill: task | body | loaded | of the body | requests | start | sent | left |
| --- | --- | --- | --- | --- | --- | --- | --- |"""


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
