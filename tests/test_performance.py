"""Costs, checked by counting: the numbers of modules, calls and schemas are the same on every
machine. W1-W3 of PERF.
"""

import asyncio
import gc
import logging
import re
import string
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

import pytest

from benchmarks.captured import APIS, Captured, talk
from benchmarks.w12_chat import PROMPT
from weakincentives import serde
from weakincentives.adapters.codec import Codec
from weakincentives.adapters.core import Connection, LoopAdapter
from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.inner_loop import ProviderRequest, RunConfig
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage, ToolCall
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    RenderedPrompt,
    Section,
    SectionPath,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime.session import Session

SOURCE = Path(__file__).parent.parent / "src"
HEAVY = {"asyncio", "importlib.metadata", "logging", "openai", "pydantic", "typing_extensions"}


def calls_during(run: Callable[[], object]) -> Counter[CodeType]:
    """Returns how often each Python function is entered, or a generator resumed, during `run`."""
    entered: Counter[CodeType] = Counter()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            entered[frame.f_code] += 1

    before = sys.getprofile()
    gc.disable()  # its callbacks, such as Hypothesis's, run at any time
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
        gc.enable()
    return entered


def calls_into(calls: Counter[CodeType], module: ModuleType) -> int:
    """Returns how many of `calls` enter `module`, or a module in that package."""
    place = (module.__file__ or "").removesuffix("__init__.py")
    return sum(count for code, count in calls.items() if code.co_filename.startswith(place))


# --------------------------------------------------------------------------------------------------
# to import


@pytest.mark.parametrize(
    "entry_point",
    ["import weakincentives", "from weakincentives.prompt import MarkdownSection, Tool"],
)
def test_import_loads_few_modules_and_no_heavy_ones(entry_point: str) -> None:
    # -S: an environment's .pth files are not imported.
    code = f"import sys; sys.path.append({str(SOURCE)!r}); {entry_point}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True
    )
    modules = done.stdout.split()
    assert HEAVY.isdisjoint(modules)
    assert len(modules) <= 106


# --------------------------------------------------------------------------------------------------
# to render


@dataclass
class Account:
    """Params that count how often they are read."""

    name: str
    owed: int

    def __post_init__(self) -> None:
        self.reads: Counter[str] = Counter()

    # Any: a field of any type.
    def __getattribute__(self, name: str) -> Any:
        if name in {"name", "owed"}:
            object.__getattribute__(self, "reads")[name] += 1
        return object.__getattribute__(self, name)


class Probe(Section[Account]):
    """A user-defined section that counts its calls."""

    def __init__(self, key: str, children: Sequence[Section[Any]] = ()) -> None:
        self.asked: Counter[str] = Counter()
        super().__init__(
            title=key,
            key=key,
            summary="in short",
            children=children,
            enabled=self.enable,
            visibility=self.choose,
        )

    def enable(self, params: Account) -> bool:
        self.asked["enabled"] += 1
        return True

    def choose(self, params: Account) -> SectionVisibility:
        self.asked["visibility"] += 1
        return SectionVisibility.SUMMARY if self.key.endswith("short") else SectionVisibility.FULL

    def render_body(self, params: Account | None, *, path: SectionPath) -> str:
        self.asked["body"] += 1
        return "body"

    def render_summary(self, params: Account | None, *, path: SectionPath) -> str:
        self.asked["summary"] += 1
        return "summary"


def written(size: int) -> Prompt[None]:
    """Returns a prompt with `size` sections, each of which uses both fields; every other section is
    a child of the preceding one.
    """
    sections = [
        MarkdownSection[Account](
            title=f"Part {i}",
            template="$name owes $owed.",
            tools=[Tool(name=f"echo_{i}", handler=echo)],
            children=[MarkdownSection[Account](title="Detail", template="$name, not $owed more.")],
        )
        for i in range(size // 2)
    ]
    return Prompt(PromptTemplate(ns="costs", key="render", sections=sections))


@pytest.mark.claim("PR-40")
def test_selectors_and_bodies_are_called_once_per_section() -> None:
    shown = [Probe(f"shown-{i}") for i in range(500)]
    hidden = [Probe(f"hidden-{i}") for i in range(250)]
    short = [Probe(f"{i}-short", [section]) for i, section in enumerate(hidden)]
    Prompt(PromptTemplate(ns="costs", key="probes", sections=[*shown, *short])).bind(
        Account("Ada", 3)
    ).render()
    assert all(section.asked == {"enabled": 1, "visibility": 1, "body": 1} for section in shown)
    assert all(section.asked == {"enabled": 1, "visibility": 1, "summary": 1} for section in short)
    assert all(section.asked == {"enabled": 1} for section in hidden)


def test_each_placeholder_reads_its_field_once() -> None:
    prompt, account = written(1000), Account("Ada", 3)
    prompt.bind(account)
    account.reads.clear()
    prompt.render()
    assert account.reads == {"name": 1000, "owed": 1000}


def test_rendering_cost_per_section_does_not_grow_with_the_prompt() -> None:
    written(4).bind(Account("Ada", 3)).render()  # imports the modules for a first render
    calls = {
        size: calls_during(written(size).bind(Account("Ada", 3)).render).total()
        for size in (200, 400, 1000)
    }
    assert calls[1000] - calls[400] == 3 * (calls[400] - calls[200])


def test_construction_cost_per_section_does_not_grow_with_the_prompt() -> None:
    written(2)  # the tools' schema is built once and cached
    calls = {size: calls_during(partial(written, size)).total() for size in (200, 400, 1000)}
    assert calls[1000] - calls[400] == 3 * (calls[400] - calls[200])


def test_rendering_does_not_compile_templates_patterns_or_schemas() -> None:
    prompt = written(100).bind(Account("Ada", 3))
    calls = calls_during(prompt.render)
    assert [calls_into(calls, module) for module in (string, re, serde)] == [0, 0, 0]


# --------------------------------------------------------------------------------------------------
# to run


@dataclass(frozen=True)
class Echo:
    text: str


def echo(params: Echo, *, context: ToolContext) -> ToolResult[Echo]:
    return ToolResult("heard", params)


class Instant(LoopAdapter, Connection):  # Any: prompts with any output type
    """Calls `echo_0` in `calls` turns, at no cost of its own, and is then done."""

    def __init__(self, calls: int) -> None:
        super().__init__(config=RunConfig(max_turns=None))
        self._calls = [ToolCall(f"call_{i}", "echo_0", '{"text": "hello"}') for i in range(calls)]
        self._replies = [
            AssistantMessage(tool_calls=(call,), finish="tool_calls") for call in self._calls
        ]

    def connect(self, rendered: RenderedPrompt[Any], /) -> "Instant":  # Any: as above
        return self

    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        done = request.turn > len(self._replies)
        return AssistantMessage(text="done") if done else self._replies[request.turn - 1]

    async def ask_async(self, request: ProviderRequest, /) -> AssistantMessage:
        return self.ask(request)


def evaluation(calls: int) -> Callable[[], object]:
    adapter, prompt, session = Instant(calls), written(2).bind(Account("Ada", 3)), Session()
    return lambda: adapter.evaluate(prompt, session=session)


def test_tool_call_cost_does_not_grow_with_the_conversation() -> None:
    evaluation(1)()
    calls = {length: calls_during(evaluation(length)).total() for length in (10, 20, 1000)}
    each = (calls[20] - calls[10]) / 10
    assert (calls[1000] - calls[20]) / 980 == each
    assert each <= 154


async def read_async(prompt: Prompt[None], session: Session) -> None:
    async for _ in Instant(3).stream_async(prompt, session=session):
        pass


@pytest.mark.parametrize(
    "run",
    [
        lambda prompt, session: Instant(3).evaluate(prompt, session=session),
        lambda prompt, session: asyncio.run(Instant(3).evaluate_async(prompt, session=session)),
        lambda prompt, session: list(Instant(3).stream(prompt, session=session)),
        lambda prompt, session: asyncio.run(read_async(prompt, session)),
        lambda prompt, session: MainLoop(Instant(3)).execute(prompt, session=session),
        lambda prompt, session: Chat(MainLoop(Instant(3)), prompt, session=session).send("Hi."),
    ],
    ids=["evaluate", "evaluate_async", "stream", "stream_async", "execute", "send"],
)
def test_run_and_session_create_no_reference_cycles(
    run: Callable[[Prompt[None], Session], object],
) -> None:
    prompt = written(2).bind(Account("Ada", 3))
    run(prompt, Session())
    gc.collect()
    gc.disable()
    try:
        run(prompt, Session())
        assert gc.collect() == 0
    finally:
        gc.enable()


def fail(params: Echo, *, context: ToolContext) -> ToolResult[Echo]:
    raise ValueError("Nobody is here.")


def test_failed_call_creates_no_reference_cycles(
    caplog: pytest.LogCaptureFixture,
) -> None:
    section = MarkdownSection(
        title="Task", template="Look.", tools=[Tool[Echo, Echo](name="echo_0", handler=fail)]
    )
    prompt = Prompt(PromptTemplate[None](ns="tests", key="fails", sections=[section]))
    # pytest keeps log records, which keep their exceptions
    caplog.set_level(logging.CRITICAL + 1, "weakincentives")
    Instant(1).evaluate(prompt, session=Session())
    gc.collect()
    gc.disable()
    try:
        Instant(1).evaluate(prompt, session=Session())
        assert gc.collect() == 0
    finally:
        gc.enable()


@pytest.mark.claim("U-13")
def test_tool_call_cost_does_not_grow_with_the_session() -> None:
    run = evaluation(100)
    run()
    second = calls_during(run)
    for _ in range(5):
        run()
    assert calls_during(run) == second


def generators(calls: Counter[CodeType]) -> int:
    """Returns how often pydantic worked on schemas, not counting parsing and dumping with one."""
    return sum(count for code, count in calls.items() if "Generate" in code.co_qualname)


@pytest.mark.parametrize("codec", APIS, ids=APIS.values())
def test_turn_cost_does_not_grow_with_the_chat(
    codec: type[Codec],
) -> None:
    adapter, counts = Captured(codec), list[Counter[CodeType]]()
    conversation = talk(adapter, PROMPT, 3).conversation
    for turns in (0, 1, 200):
        if turns:
            conversation = talk(adapter, PROMPT, turns, conversation).conversation
        counts.append(calls_during(partial(talk, adapter, PROMPT, 1, conversation)))
    assert counts[0].total() > 100
    assert counts[1].total() == counts[2].total()


def test_second_evaluation_builds_no_schema_or_parser() -> None:
    evaluation(1)()
    assert generators(calls_during(evaluation(1))) == 0  # also with another template and session


def test_schema_is_built_once() -> None:
    @dataclass
    class Fresh:
        text: str

    assert generators(calls_during(lambda: serde.json_schema(Fresh))) > 0
    assert generators(calls_during(lambda: serde.json_schema(Fresh))) == 0
