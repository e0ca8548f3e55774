"""An agent for tests of durable runs: it records what really happened in a file that is never
rolled back.

Its model looks only at the conversation, like a provider, so all attempts of a run take the same
steps.
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.agents import Note
from weakincentives.adapters.core import Connection, LoopAdapter
from weakincentives.content import text_of
from weakincentives.contrib.durable import DurableAgent, MemoryLogTable, durable
from weakincentives.evaluation.inner_loop import ProviderRequest, RunConfig
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import (
    AssistantMessage,
    Instructions,
    ToolCall,
    UserMessage,
)
from weakincentives.evaluation.stored_log import Row
from weakincentives.limits import TokenUsage
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.prompt.renderer import RenderedPrompt
from weakincentives.prompt.tool import AnyTool
from weakincentives.runtime.events import ToolInvoked
from weakincentives.runtime.session import Append, Replace, Session
from weakincentives.visibility import SectionVisibility

type Json = Any  # JSON that is read key by key


@dataclass(frozen=True)
class Amount:
    a: int = 0


@dataclass(frozen=True)
class Answer:
    total: int


@dataclass(frozen=True)
class Seen:
    """The number of tool calls that the session was told about, reduced from telemetry."""

    calls: int = 0


@dataclass(frozen=True)
class Job:
    name: str


@dataclass(frozen=True)
class Help:
    """The params of a nested run in run `name`."""

    name: str
    a: int


class Facts:
    """Lines in a file, each appended in one write, so that a kill loses none that was written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, *words: object) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, (" ".join(map(str, words)) + "\n").encode())
        finally:
            os.close(file)

    def read(self) -> list[list[str]]:
        return (
            [line.split() for line in self.path.read_text().splitlines()]
            if self.path.exists()
            else []
        )


def calls(*pairs: tuple[str, str]) -> AssistantMessage:
    made = tuple(ToolCall(f"c{at}", name, arguments) for at, (name, arguments) in enumerate(pairs))
    return AssistantMessage(tool_calls=made, finish="tool_calls", usage=TokenUsage(10, 5))


# The model's answer in each turn, of which one opens a section.
STORY: tuple[AssistantMessage, ...] = (
    calls(("note", '{"a": 1}'), ("fail", '{"a": 2}'), ("send", '{"a": 3}')),
    calls(("nonsense", "{}"), ("note", '{"a": "x"}'), ("look", "{}")),
    calls(("read_section", '{"section_key": "more"}')),
    calls(("late", '{"a": 5}'), ("replace", '{"a": 6}'), ("later", '{"a": 7}')),
    AssistantMessage(text="no json", usage=TokenUsage(10, 5)),
    AssistantMessage(text='{"total": 12}', usage=TokenUsage(10, 5)),
)

NESTED: tuple[AssistantMessage, ...] = (
    calls(("note", '{"a": 1}'), ("delegate", '{"a": 1}')),
    calls(("delegate_async", '{"a": 2}')),
    calls(("consult", '{"name": "run", "a": 4}'), ("look", "{}")),
    STORY[-1],
)


PAID: tuple[AssistantMessage, ...] = (
    calls(("note", '{"a": 1}'), ("pay", '{"a": 2}'), ("draft", '{"a": 3}')),
    calls(("pay", '{"a": 4}')),
    STORY[-1],
)


def help_with(a: int) -> tuple[AssistantMessage, ...]:
    """Returns the model's answers in a nested run: an odd run delegates once more, and runs from
    200 upwards book.
    """
    further = ("delegate", f'{{"a": {100 + a}}}') if a % 2 and a < 100 else ("send", '{"a": 3}')
    if a >= 200:
        further = "book", f'{{"a": {a}}}'
    return (
        calls(("note", f'{{"a": {10 * a}}}')),
        calls(("look", "{}"), further),
        AssistantMessage(text=f"helped with {a}", usage=TokenUsage(10, 5)),
    )


type Hook = Callable[[str], None]


def nothing(place: str) -> None:
    """The hook of an undisturbed run."""


class Model(LoopAdapter, Connection):
    """Gives the next answer of `story`, or of a nested run; `hook` is told about each place that a
    run passes.
    """

    name = "model"

    def __init__(
        self,
        facts: Facts,
        *,
        story: Sequence[AssistantMessage] = STORY,
        dynamic: bool = True,
        parallel: bool = False,
        hook: Hook = nothing,
    ) -> None:
        super().__init__(
            config=RunConfig(parallel_tool_calls="isolated" if parallel else "in_order")
        )
        self._facts, self._story, self._dynamic, self._hook = facts, story, dynamic, hook

    @property
    def supports_dynamic_tools(self) -> bool:
        return self._dynamic

    def connect(self, rendered: RenderedPrompt[Any], /) -> "Model":
        return self

    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        turn = sum(isinstance(message, AssistantMessage) for message in request.transcript)
        first = request.transcript[0]
        assert isinstance(first, UserMessage | Instructions)
        text = text_of(first.content)
        job = re.findall(r"Do (\S+)\.", text)[0]
        again = "All about more." in text and not self._dynamic
        conversation, story = "again" if again else "first", self._story
        if helped := re.findall(r"Help with (\d+)\.", text):
            conversation, story = f"helper-{helped[0]}", help_with(int(helped[0]))
        self._hook("before provider")
        self._facts.add("provider", job, f"{conversation}:{turn}")
        self._hook("in provider")
        return story[turn]

    async def ask_async(self, request: ProviderRequest, /) -> AssistantMessage:
        return self.ask(request)


def own_tools(facts: Facts, hook: Hook) -> dict[str, AnyTool]:
    """Returns tools that record their actions, by name."""

    def effect(name: str, context: ToolContext) -> None:
        hook("before tool")
        facts.add("tool", name, context.idempotency_key)
        hook("in tool")

    def note(params: Amount, *, context: ToolContext) -> ToolResult[Amount]:
        context.session.dispatch(Note(f"noted {params.a}"))
        effect("note", context)
        return ToolResult("Noted.", value=params)

    def fail(params: Amount, *, context: ToolContext) -> ToolResult[Amount]:
        context.session.dispatch(Note("undone"))
        effect("fail", context)
        raise ValueError(f"no {params.a}")

    def send(params: Amount, *, context: ToolContext) -> ToolResult[Amount]:
        effect("send", context)
        context.session.dispatch(Note(f"sent {params.a}"))
        return ToolResult("Sent.", value=params)

    async def look(params: Amount, *, context: ToolContext) -> ToolResult[object]:
        effect("look", context)
        return ToolResult(f"{len(context.session[Note])} notes")

    def replace(params: Amount, *, context: ToolContext) -> ToolResult[object]:
        effect("replace", context)
        context.session[Note].clear(lambda note: note.text.startswith("noted"))
        return ToolResult("Cleared.")

    def late(params: Amount, *, context: ToolContext) -> ToolResult[object]:
        effect("late", context)
        context.session[Amount].append(params)
        return ToolResult("Late.")

    def later(params: Amount, *, context: ToolContext) -> ToolResult[object]:
        effect("later", context)
        context.session[Amount].append(params)
        return ToolResult("Later.")

    tools: list[AnyTool] = [
        Tool(name="note", handler=note, effect="repeatable"),
        Tool(name="fail", handler=fail, effect="repeatable"),
        Tool(name="send", handler=send, effect="at_most_once"),
        Tool(name="look", handler=look, effect="pure"),
        Tool(name="replace", handler=replace, effect="repeatable"),
        Tool(name="late", handler=late, effect="repeatable"),
        Tool(name="later", handler=later, effect="at_most_once"),
    ]
    return {made.name: made for made in tools}


def template(
    facts: Facts, hook: Hook = nothing, extra: Sequence[AnyTool] = ()
) -> PromptTemplate[Answer]:
    own = own_tools(facts, hook)
    more = MarkdownSection(
        title="More",
        key="more",
        template="All about more.",
        summary="More.",
        visibility=SectionVisibility.SUMMARY,
        tools=[own.pop("late"), own.pop("later")],
    )
    task = MarkdownSection[Job](
        title="Task", key="task", template="Do $name.", tools=[*own.values(), *extra]
    )
    return PromptTemplate[Answer](ns="tests", key="durable", sections=[task, more])


def helper_template(facts: Facts, hook: Hook, further: AnyTool) -> PromptTemplate[None]:
    """Returns the prompt of a nested run."""
    own = own_tools(facts, hook)
    task = MarkdownSection[Help](
        title="Task",
        key="task",
        template="Do $name. Help with $a.",
        tools=[own["note"], own["look"], own["send"], further],
    )
    return PromptTemplate[None](ns="tests", key="helper", sections=[task])


def helping(facts: Facts, hook: Hook = nothing) -> list[AnyTool]:
    """Returns tools with nested runs: a plain handler, a coroutine, and a tool from a prompt."""

    def delegate(params: Amount, *, context: ToolContext) -> ToolResult[object]:
        run_id = context.idempotency_key.partition(":")[0]
        context.session.dispatch(Note(f"delegated {params.a}"))
        return ToolResult(context.evaluate(helper.bind(Help(run_id, params.a))).text)

    async def delegate_async(params: Amount, *, context: ToolContext) -> ToolResult[object]:
        run_id = context.idempotency_key.partition(":")[0]
        response = await context.evaluate_async(helper.bind(Help(run_id, params.a)))
        context.session.dispatch(Note(f"delegated {params.a}"))
        return ToolResult(response.text)

    further = Tool(name="delegate", handler=delegate, effect="repeatable")
    helper = helper_template(facts, hook, further)
    return [
        further,
        Tool(name="delegate_async", handler=delegate_async, effect="repeatable"),
        Tool.from_prompt(helper, name="consult", description="x"),
    ]


def asking(facts: Facts, hook: Hook = nothing) -> list[AnyTool]:
    """Returns tools that need approval: `pay` of its arguments, `draft` of its effects."""

    def pay(params: Amount, *, context: ToolContext) -> ToolResult[object]:
        hook("before tool")
        facts.add("tool", "pay", params.a, context.idempotency_key)
        hook("in tool")
        context.session.dispatch(Note(f"paid {params.a}"))
        return ToolResult("Paid.")

    def draft(params: Amount, *, context: ToolContext) -> ToolResult[object]:
        hook("before tool")
        context.session.dispatch(Note(f"drafted {params.a}"))
        hook("in tool")
        return ToolResult("Drafted.")

    return [
        Tool(name="pay", handler=pay, effect="at_most_once", approval="arguments"),
        Tool(name="draft", handler=draft, approval="effects", effect="repeatable"),
    ]


def session(run_id: str) -> Session:
    made = session_that_counts_nothing(run_id)
    made[Seen].register(
        ToolInvoked, lambda view, event: Replace((Seen((view.latest() or Seen()).calls + 1),))
    )
    return made


def session_that_counts_nothing(run_id: str) -> Session:
    made = Session(session_id=run_id)
    made[Note].register(Note, lambda view, event: Append(event))
    return made


def agent(
    facts: Facts,
    *,
    story: Sequence[AssistantMessage] = STORY,
    dynamic: bool = True,
    parallel: bool = False,
    hook: Hook = nothing,
    extra: Sequence[AnyTool] = (),
    session: Callable[[str], Session] = session,
) -> DurableAgent[Answer]:
    made = template(facts, hook, extra)

    def prompt() -> Prompt[Answer]:
        return made.bind()

    loop = MainLoop(Model(facts, story=story, dynamic=dynamic, parallel=parallel, hook=hook))
    return durable(loop, prompt, types=[Note, Amount], session=session)


type Held = Mapping[str, Sequence[Row]]
"""The rows of each run."""


def kind_of(row: Row) -> str:
    """Returns the kind of the entry in a row."""
    kind: str = json.loads(row.line)["entry"]["kind"]
    return kind


def has_unknown(held: Held) -> bool:
    """Returns whether a call that must not run twice has begun and has no answer."""
    latest = {(run_id, row.path): row for run_id, rows in held.items() for row in rows}
    return "began" in map(kind_of, latest.values())


_NOTHING: Held = {}


class WatchedTable(MemoryLogTable):
    """A table that begins with the rows left by a crash.

    `held` contains its rows at the start and after each append: the places where a run can crash.
    """

    def __init__(self, held: Held = _NOTHING) -> None:
        super().__init__()
        self.rows = {run_id: [*rows] for run_id, rows in held.items()}
        self.held: list[Held] = [self._now()]

    def append(self, run_id: str, attempt: int, rows: Sequence[Row], *, first: bool) -> None:
        super().append(run_id, attempt, rows, first=first)
        self.held.append(self._now())

    def _now(self) -> Held:
        return {run_id: sorted(rows) for run_id, rows in self.rows.items() if rows}
