"""A handler's evaluation is a nested run in its call: its sections open there, its usage counts
towards each budget above it, and it is undone with the call.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import repeat
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.agents import Args, Note, answers, nested_adapter, prompt, text_of, tool
from support.deadlines import SOON
from support.scripted_server import Say, ScriptedServer
from weakincentives.adapters.core import PromptResponse
from weakincentives.adapters.fallback import FallbackAdapter
from weakincentives.evaluation.approval import Deny, Preview
from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.errors import (
    BudgetExceededError,
    DeadlineExceededError,
    DepthLimitError,
    PromptEvaluationError,
)
from weakincentives.evaluation.inner_loop import ProviderRequest, RunConfig
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage, Instructions
from weakincentives.evaluation.response import Completed
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.limits import Budget, Deadline, TokenUsage
from weakincentives.prompt import (
    Disclosure,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    PromptValidationError,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime.events import (
    PromptRendered,
    ProviderCalled,
    ToolInvoked,
    VisibilityExpanded,
)
from weakincentives.runtime.session import Session, reducer
from weakincentives.testing import ScriptedAdapter, call, say
from weakincentives.testing.scripted import Reply, SeenRequest

type Way = Literal["evaluate", "evaluate_async", "stream", "stream_async", "execute"]

WAYS: list[Way] = ["evaluate", "evaluate_async", "stream", "stream_async", "execute"]


def evaluate(
    adapter: ScriptedAdapter, prompt: Prompt[Any], session: Session, way: Way, **options: Any
) -> PromptResponse[Any]:
    """Evaluates with one of the methods of an adapter and a `MainLoop`."""

    async def last() -> Any:
        events = adapter.stream_async(prompt, session=session, **options)
        return [event async for event in events][-1]

    match way:
        case "evaluate":
            return adapter.evaluate(prompt, session=session, **options)
        case "evaluate_async":
            return asyncio.run(adapter.evaluate_async(prompt, session=session, **options))
        case "stream":
            event: Any = list(adapter.stream(prompt, session=session, **options))[-1]
        case "stream_async":
            event = asyncio.run(last())
        case _:
            return MainLoop(adapter).execute(prompt, session=session, **options).whole_response
    assert isinstance(event, Completed)
    return event.response


# --- Law: no tree of nested runs makes more requests or tool calls than any budget allows


@dataclass(frozen=True)
class Run:
    """A run in the tree: each turn delegates to further runs, and the last turn answers."""

    turns: tuple[tuple["Run", ...], ...] = ()
    max_calls: int | None = None
    max_tool_calls: int | None = None

    @property
    def budget(self) -> Budget | None:
        if self.max_calls is self.max_tool_calls is None:
            return None
        return Budget(max_calls=self.max_calls, max_tool_calls=self.max_tool_calls)


BOUNDS = st.none() | st.integers(0, 8)
RUNS = st.recursive(
    st.builds(Run, max_calls=BOUNDS, max_tool_calls=BOUNDS),
    lambda runs: st.builds(
        Run, st.lists(st.lists(runs, max_size=3).map(tuple), max_size=2).map(tuple), BOUNDS, BOUNDS
    ),
    max_leaves=8,
)


@dataclass(frozen=True)
class Delegation:
    path: str


@dataclass
class Tree:
    """Plays a tree of runs and records the paths of all requests and tool calls."""

    root: Run
    requests: list[str] = field(default_factory=list[str])
    calls: list[str] = field(default_factory=list[str])
    spent: list[TokenUsage] = field(default_factory=list[TokenUsage])

    def run_at(self, path: str) -> Run:
        run = self.root
        for step in path.split("/")[1:]:
            turn, index = step.split(".")
            run = run.turns[int(turn)][int(index)]
        return run

    def answer(self, seen: SeenRequest) -> AssistantMessage:
        path = text_of(seen.messages[0]).split()[-1]
        self.requests.append(path)
        usage = TokenUsage(len(path), 1)
        self.spent.append(usage)
        turn = sum(isinstance(message, AssistantMessage) for message in seen.messages)
        run = self.run_at(path)
        if turn == len(run.turns):
            return say("done", usage=usage)
        paths = [f"{path}/{turn}.{index}" for index in range(len(run.turns[turn]))]
        return call(*[("delegate", Delegation(path)) for path in paths], usage=usage)

    def delegate(self, params: Delegation, *, context: ToolContext) -> ToolResult[str]:
        self.calls.append(params.path)
        response = context.adapter.evaluate(
            self.prompt(params.path),
            session=context.session,
            budget=self.run_at(params.path).budget,
        )
        return ToolResult(response.text)

    async def delegate_async(self, params: Delegation, *, context: ToolContext) -> ToolResult[str]:
        self.calls.append(params.path)
        response = await context.adapter.evaluate_async(
            self.prompt(params.path),
            session=context.session,
            budget=self.run_at(params.path).budget,
        )
        return ToolResult(response.text)

    def prompt(self, path: str = "root") -> Prompt[Any]:
        handler = self.delegate_async if len(path) % 2 else self.delegate
        tool = Tool[Delegation, str](name="delegate", description="x", handler=handler)
        section = MarkdownSection(title="Task", key="task", template=f"Do {path}", tools=[tool])
        return Prompt(ns="tests", key="tree", sections=[section])

    def replies(self) -> Iterator[Callable[[SeenRequest], AssistantMessage]]:
        return repeat(self.answer)


def within(paths: list[str], path: str) -> int:
    return sum(f"{other}/".startswith(f"{path}/") for other in paths)


@pytest.mark.claim("N-14")
@given(root=RUNS, way=st.sampled_from(WAYS), parallel=st.sampled_from(["in_order", "isolated"]))
def test_no_nested_run_exceeds_a_budget_and_all_usage_is_counted(
    root: Run, way: Way, parallel: Any
) -> None:
    tree = Tree(root)
    adapter = ScriptedAdapter(tree.replies(), config=RunConfig(parallel_tool_calls=parallel))
    try:
        usage = evaluate(adapter, tree.prompt(), Session(), way, budget=root.budget).usage
    except PromptEvaluationError as error:
        usage = error.usage
    assert usage == sum(tree.spent, TokenUsage())
    for path in {"root", *tree.requests, *tree.calls}:
        run = tree.run_at(path)
        if len(set(tree.calls)) == len(tree.calls):  # no call was repeated automatically
            assert run.max_calls is None or within(tree.requests, path) <= run.max_calls
            below = within(tree.calls, path) - (path in tree.calls)
            assert run.max_tool_calls is None or below <= run.max_tool_calls
    if root.max_calls is not None:
        assert len(tree.requests) <= root.max_calls
    if root.max_tool_calls is not None:
        assert len(set(tree.calls)) <= root.max_tool_calls


# --- Cases


def outer(handler: Any, **options: Any) -> Prompt[Any]:
    tool = Tool[Args, str](name="delegate", description="x", handler=handler, **options)
    section = MarkdownSection(title="Task", key="task", template="Outer.", tools=[tool])
    return Prompt(ns="tests", key="outer", sections=[section])


def inner(*tools: Tool[Any, Any], disclosure: Disclosure = Disclosure.OPEN) -> Prompt[Any]:
    """Returns a prompt whose section `lore` is summarized."""
    lore = MarkdownSection(
        title="Lore",
        key="lore",
        template="All of it.",
        summary="Some lore.",
        visibility=SectionVisibility.SUMMARY,
        tools=tools,
    )
    task = MarkdownSection(title="Task", key="task", template="Inner.")
    return Prompt(ns="tests", key="inner", sections=[task, lore], disclosure=disclosure)


OPEN = call(("open_sections", {"section_keys": ["lore"], "reason": "to know"}))


def ask_inner(params: Args, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult(context.adapter.evaluate(inner(), session=context.session).text)


@pytest.mark.parametrize("way", WAYS)
def test_sections_requested_by_a_nested_run_open_in_that_run(way: Way) -> None:
    session = Session()
    adapter = ScriptedAdapter([call(("delegate", {})), OPEN, say("lore"), say("done")])
    response = evaluate(adapter, outer(ask_inner), session, way)
    assert response.text == "done"
    assert [message.content for message in answers(response.transcript)] == ["lore"]
    assert "All of it." in text_of(adapter.requests[2].messages[0])
    assert [event.section_keys for event in session[VisibilityExpanded].all()] == [("lore",)]
    rendered = session[PromptRendered].all()
    assert [event.key for event in rendered] == ["outer", "inner", "inner"]
    [outer_path, *paths] = [event.run_path for event in rendered]
    assert (outer_path, paths) == ("", ["1/call_1/1:"] * 2)
    assert {event.run_id for event in session[ProviderCalled]} == {rendered[0].run_id}


@pytest.mark.parametrize("way", WAYS)
def test_handler_can_evaluate_a_prompt_by_every_entry_point(way: Way) -> None:
    def ask(params: Args, *, context: ToolContext) -> ToolResult[str]:
        nested: Any = context.adapter  # Any: an adapter with the methods of `ScriptedAdapter`
        session: Any = context.session
        return ToolResult(evaluate(nested, inner(), session, way).text)

    adapter = ScriptedAdapter([call(("delegate", {})), OPEN, say("lore"), say("done")])
    response = adapter.evaluate(outer(ask), session=Session(), budget=Budget(max_calls=4))
    assert [message.content for message in answers(response.transcript)] == ["lore"]
    assert (response.text, response.usage) == ("done", TokenUsage(40, 20))


def test_main_loop_in_a_handler_spends_the_budget_of_the_parent_run() -> None:
    def run_loop(params: Args, *, context: ToolContext) -> ToolResult[str]:
        adapter: Any = context.adapter
        execution = MainLoop(adapter).execute(inner(), session=context.session)
        assert execution.restarts == 1
        return ToolResult(execution.text)

    adapter = ScriptedAdapter([call(("delegate", {})), OPEN, say("lore"), say("done")])
    with pytest.raises(BudgetExceededError, match="max_calls=3 reached with 3") as caught:
        adapter.evaluate(outer(run_loop), session=Session(), budget=Budget(max_calls=3))
    assert caught.value.usage == TokenUsage(30, 15)
    assert caught.value.turns == 1


def test_failed_call_rolls_back_its_nested_runs() -> None:
    def note(params: Args, *, context: ToolContext) -> ToolResult[str]:
        context.session.dispatch(Note("inside"))
        return ToolResult("noted")

    def fail(params: Args, *, context: ToolContext) -> ToolResult[str]:
        tool = Tool[Args, str](name="note", description="x", handler=note)
        context.adapter.evaluate(inner(tool), session=context.session)
        assert context.session[Note].all() == (Note("inside"),)
        raise ValueError("after all")

    session = Session()
    before = session.snapshot()
    script = [call(("delegate", {})), OPEN, call(("note", {})), say("inside"), say("done")]
    response = ScriptedAdapter(script).evaluate(outer(fail), session=session)
    assert response.text == "done"
    assert response.usage == TokenUsage(50, 25)
    assert session.snapshot().to_json() == before.to_json()


def test_cost_of_nested_runs_is_charged_to_the_budget() -> None:
    config = RunConfig(prices=lambda usage, model: 1.0)
    adapter = ScriptedAdapter(
        [call(("delegate", {})), say("in"), call(("delegate", {})), say("in"), say("done")],
        config=config,
    )
    with pytest.raises(BudgetExceededError, match=r"max_cost=4 reached with 4\.0"):
        adapter.evaluate(outer(ask_inner), session=Session(), budget=Budget(max_cost=4))


# --- `ToolContext.evaluate` and `Tool.from_prompt`


@dataclass(frozen=True)
class Topic:
    name: str


@dataclass(frozen=True)
class Summary:
    text: str


@dataclass(frozen=True)
class Seen:
    """State that the inner prompt declares: the topics that its tool has seen."""

    topics: tuple[str, ...] = ()

    @reducer(on=Topic)
    def add(self, topic: Topic) -> "Seen":
        return Seen((*self.topics, topic.name))


def see(params: Topic, *, context: ToolContext) -> ToolResult[str]:
    context.session.dispatch(params)
    context.resources.get(Filesystem).write_text(f"{params.name}.txt", "seen")
    return ToolResult("seen")


RESEARCH = PromptTemplate[Summary](
    ns="tests",
    key="research",
    sections=[
        MarkdownSection[Topic](
            title="Task",
            key="task",
            template="Research $name.",
            tools=[Tool(name="see", description="x", handler=see, effect="repeatable")],
            state=[Seen],
        )
    ],
)


def delegating(*tools: Tool[Any, Any]) -> Prompt[Any]:
    section = MarkdownSection(title="Task", key="task", template="Outer.", tools=tools)
    template = PromptTemplate(ns="tests", key="outer", sections=[section])
    return template.bind(resources={Filesystem: InMemoryFilesystem()})


def test_tool_from_prompt_takes_its_params_and_returns_its_output() -> None:
    tool = Tool.from_prompt(RESEARCH, name="research", description="Research a topic.")
    assert (tool.params_type, tool.result_type, tool.effect) == (Topic, Summary, "repeatable")
    session, prompt = Session(), delegating(tool)
    adapter = ScriptedAdapter(
        [
            call(("research", {"name": "tea"})),
            call(("see", {"name": "tea"})),
            say(Summary("Hot.")),
            say("done"),
        ]
    )
    with prompt.resources:
        response = adapter.evaluate(prompt, session=session)
        assert prompt.resources.get(Filesystem).read_text("tea.txt") == "seen"
    assert text_of(adapter.requests[1].messages[0]) == "## 1. Task\n\nResearch tea."
    [answer] = answers(response.transcript)
    assert answer.content == '{"text":"Hot."}'
    assert [event.result.value for event in session[ToolInvoked].all()] == [None, Summary("Hot.")]
    assert session[Seen].latest() == Seen(("tea",))
    assert response.usage == TokenUsage(40, 20)


def test_tool_from_prompt_without_params_takes_a_message_and_returns_text() -> None:
    section = MarkdownSection(title="Task", key="task", template="You answer in verse.")
    poet = PromptTemplate(ns="tests", key="poet", sections=[section])
    tool = Tool.from_prompt(poet, name="poet")
    adapter = ScriptedAdapter([call(("poet", {"message": "Tea!"})), say("O tea."), say("done")])
    response = adapter.evaluate(delegating(tool), session=Session())
    instructions, message = adapter.requests[1].messages
    assert isinstance(instructions, Instructions)
    assert instructions.content == "## 1. Task\n\nYou answer in verse."
    assert text_of(message) == "Tea!"
    assert [answer.content for answer in answers(response.transcript)] == ["O tea."]
    assert tool == Tool.from_prompt(poet, name="poet")
    assert hash(tool) == hash(Tool.from_prompt(poet, name="poet"))


def test_tool_from_prompt_asks_its_own_model_within_its_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    section = MarkdownSection(title="Task", key="task", template="You answer in verse.")
    poet = PromptTemplate(ns="tests", key="poet", sections=[section])
    cheap = ScriptedAdapter([say("O tea."), say("O rain.")])
    tool = Tool.from_prompt(poet, name="poet", adapter=cheap, budget=Budget(max_calls=0))
    calls = call(("poet", {"message": "Tea!"}))
    response = ScriptedAdapter([calls, say("done")]).evaluate(delegating(tool))
    assert "max_calls=0" in answers(response.transcript)[0].content
    tool = Tool.from_prompt(poet, name="poet", adapter=cheap, budget=Budget(max_calls=1))
    response = ScriptedAdapter([calls, say("done")]).evaluate(delegating(tool))
    assert [answer.content for answer in answers(response.transcript)] == ["O tea."]
    assert response.usage == TokenUsage(30, 15)
    with ScriptedServer(Say("O snow.")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.openai_url)
        monkeypatch.setenv("OPENAI_API_KEY", "test-key")
        tool = Tool.from_prompt(poet, name="poet", adapter="openai:small")
        response = ScriptedAdapter([calls, say("done")]).evaluate(delegating(tool))
    assert [answer.content for answer in answers(response.transcript)] == ["O snow."]
    assert server.requests[0].json["model"] == "small"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"adapter": "gpt-5.2"}, "tool 'poet': model 'gpt-5.2' names no provider; did you mean"),
        ({"adapter": 3}, "tool 'poet': adapter must be an adapter or the name of a model, got 3"),
        ({"adapter": ScriptedAdapter}, "tool 'poet': adapter must be an adapter or the name"),
        ({"budget": 3}, "tool 'poet': budget must be a Budget"),
    ],
)
def test_tool_from_prompt_with_a_wrong_adapter_or_budget_is_rejected(
    options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(PromptValidationError, match=problem):
        Tool.from_prompt(RESEARCH, name="poet", **options)


def test_adapter_of_one_call_can_be_the_name_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = delegating().template
    loop = MainLoop(ScriptedAdapter([]))
    chat = Chat(loop, asked)
    with ScriptedServer(Say("1"), Say("2"), Say("3")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.openai_url)
        monkeypatch.setenv("OPENAI_API_KEY", "test-key")
        texts = [
            loop.execute(asked, "Hi", adapter="openai:a").text,
            chat.send("Hi", adapter="openai:b").text,
        ]
        *_, last = chat.stream("Hi", adapter="openai:c")
    assert isinstance(last, Completed)
    assert [*texts, last.response.text] == ["1", "2", "3"]
    assert [request.json["model"] for request in server.requests] == ["a", "b", "c"]
    with pytest.raises(ValueError, match=r"did you mean 'openai:gpt-5\.2'"):
        chat.send("Hi", adapter="gpt-5.2")
    for run in (chat.send, partial(loop.execute, asked)):
        with pytest.raises(ValueError, match="a model is missing"):
            run("Hi", adapter="")
    wrong: Any = 3
    with pytest.raises(TypeError, match=r"adapter= takes an adapter, such as .*, got 3"):
        loop.execute(asked, adapter=wrong)


def test_tool_from_prompt_inherits_the_effect_and_rejects_two_params_types() -> None:
    once = Tool[Args, str](name="pay", description="x", effect="at_most_once")
    section = MarkdownSection(title="Pay", key="pay", template="Pay.", tools=[once])
    payer = PromptTemplate(ns="tests", key="payer", sections=[section])
    assert Tool.from_prompt(payer, name="payer").effect == "at_most_once"
    assert Tool.from_prompt(payer, name="payer", effect="pure").effect == "pure"
    two = PromptTemplate(
        ns="tests",
        key="two",
        sections=[
            MarkdownSection[Topic](title="A", key="a", template="$name"),
            MarkdownSection[Summary](title="B", key="b", template="$text"),
        ],
    )
    with pytest.raises(PromptValidationError, match="requires Summary, Topic; give"):
        Tool.from_prompt(two, name="two")


def test_parallel_calls_of_a_prompt_run_on_forks_and_merge_their_state() -> None:
    tool = Tool.from_prompt(RESEARCH, name="research")
    both, barrier = asyncio.Barrier(2), list[int]()

    class Meeting(ScriptedAdapter):
        """Answers once both runs have started: they share an event loop."""

        async def ask_async(self, request: ProviderRequest) -> AssistantMessage:
            if len(request.transcript) == 1:
                async with asyncio.timeout(SOON):
                    barrier.append(await both.wait())
            return await super().ask_async(request)

    def answer(seen: SeenRequest) -> AssistantMessage:
        path = text_of(seen.messages[0]).split()[-1]
        if path == "Outer.":
            turns = len(seen.messages)
            names = [] if turns > 1 else ["tea", "rice"]
            return call(*[("research", Topic(name)) for name in names]) if names else say("done")
        if len(seen.messages) == 1:
            return call(("see", Topic(path.rstrip("."))))
        return say(Summary(path))

    session = Session()
    config = RunConfig(parallel_tool_calls="isolated")
    adapter = Meeting(repeat(answer), config=config)
    prompt = delegating(tool)
    with prompt.resources:
        response = adapter.evaluate(prompt, session=session)
        files = prompt.resources.get(Filesystem)
        assert [files.exists(f"{name}.txt") for name in ("tea", "rice")] == [True, True]
    assert sorted(barrier) == [0, 1], "no call ran again by itself"
    assert session[Seen].latest() == Seen(("tea", "rice"))
    assert response.usage == TokenUsage(60, 30)


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_failed_call_rolls_back_state_and_files_of_its_nested_run(
    way: Way, *, asynchronous: bool
) -> None:
    def fail(params: Args, *, context: ToolContext) -> ToolResult[str]:
        files = context.resources.get(Filesystem)
        prompt = RESEARCH.bind(Topic("tea"), resources={Filesystem: files})
        assert context.evaluate(prompt).output == Summary("Hot.")
        assert files.exists("tea.txt")
        return ToolResult("no", success=False)

    async def fail_async(params: Args, *, context: ToolContext) -> ToolResult[str]:
        files = context.resources.get(Filesystem)
        prompt = RESEARCH.bind(Topic("tea"), resources={Filesystem: files})
        assert (await context.evaluate_async(prompt)).output == Summary("Hot.")
        assert files.exists("tea.txt")
        raise ValueError("no")

    handler = fail_async if asynchronous else fail
    prompt = delegating(Tool[Args, str](name="delegate", description="x", handler=handler))
    session = Session()
    session.declare(Seen)
    before = session.snapshot().to_json()
    script = [
        call(("delegate", {})),
        call(("see", {"name": "tea"})),
        say(Summary("Hot.")),
        say("done"),
    ]
    with prompt.resources:
        response = evaluate(ScriptedAdapter(script), prompt, session, way)
        assert not prompt.resources.get(Filesystem).exists("tea.txt")
    assert [answer.content for answer in answers(response.transcript)] == ["no"]
    assert session.snapshot().to_json() == before
    assert response.usage == TokenUsage(40, 20)


def test_nested_run_with_another_adapter_shares_the_budget() -> None:
    cheap = ScriptedAdapter([say("cheap")])

    def ask(params: Args, *, context: ToolContext) -> ToolResult[str]:
        with pytest.raises(BudgetExceededError, match="max_calls=0"):
            context.evaluate(inner(), budget=Budget(max_calls=0))
        return ToolResult(context.evaluate(inner(), adapter=cheap, message="Hi").text)

    adapter = ScriptedAdapter([call(("delegate", {})), say("done")])
    with pytest.raises(BudgetExceededError, match="max_calls=2 reached with 2"):
        adapter.evaluate(outer(ask), session=Session(), budget=Budget(max_calls=2))
    assert (len(adapter.requests), len(cheap.requests)) == (1, 1)


def test_main_loop_in_a_handler_with_another_adapter_shares_the_budget() -> None:
    def nest(params: Args, *, context: ToolContext) -> ToolResult[object]:
        loop = MainLoop(nested_adapter(context))
        return ToolResult(loop.execute(prompt(), session=context.session, adapter=other).text)

    other = ScriptedAdapter([say("inside"), say("never")])
    adapter = ScriptedAdapter([call(("nest", {}), ("nest", {})), say("never")])
    with pytest.raises(BudgetExceededError):
        adapter.evaluate(
            prompt(tool(nest, name="nest")), session=Session(), budget=Budget(max_calls=2)
        )
    assert len(adapter.requests) + len(other.requests) == 2


def test_nested_run_ends_at_the_deadline_of_its_parent_run() -> None:
    now = [datetime(2026, 1, 1, tzinfo=UTC)]

    def ask(params: Args, *, context: ToolContext) -> ToolResult[str]:
        now[0] += timedelta(hours=1)
        return ToolResult(context.evaluate(inner(), deadline=Deadline.after(9e9)).text)

    adapter = ScriptedAdapter([call(("delegate", {}))], clock=lambda: now[0])
    session = Session()
    with pytest.raises(DeadlineExceededError):
        adapter.evaluate(outer(ask), session=session, deadline=Deadline.after(60, now=now[0]))
    assert len(adapter.requests) == 1
    [event] = session[ToolInvoked].all()
    assert "deadline" in event.content


def test_nested_run_uses_the_clock_of_its_parent_run() -> None:
    now = [datetime(2026, 1, 1, tzinfo=UTC)]

    def open_slowly(request: SeenRequest) -> AssistantMessage:
        now[0] += timedelta(hours=1)
        return OPEN

    def ask(params: Args, *, context: ToolContext) -> ToolResult[str]:
        return ToolResult(context.evaluate(inner(), budget=Budget(max_seconds=60)).text)

    script: list[Reply] = [call(("delegate", {})), open_slowly, say("done")]
    adapter, session = ScriptedAdapter(script, clock=lambda: now[0]), Session()
    assert adapter.evaluate(outer(ask), session=session).text == "done"
    [event] = session[ToolInvoked].all()
    assert "the deadline 2026-01-01T00:01:00+00:00 has passed" in event.content


def test_approver_of_the_parent_run_decides_in_nested_runs() -> None:
    def note(params: Args, *, context: ToolContext) -> ToolResult[str]:
        context.session.dispatch(Note("paid"))
        return ToolResult("noted")

    tool = Tool[Args, str](name="note", description="x", handler=note, approval="arguments")
    section = MarkdownSection(title="Task", key="task", template="Inner.", tools=[tool])
    agent = PromptTemplate(ns="tests", key="inner", sections=[section])
    session, asked = Session(), list[str]()

    def decide(preview: Preview) -> Deny:
        asked.append(preview.tool)
        return Deny("not today")

    script = [call(("agent", {"message": "Pay"})), call(("note", {})), say("no"), say("done")]
    prompt = delegating(Tool.from_prompt(agent, name="agent"))
    ScriptedAdapter(script).evaluate(prompt, session=session, approver=decide)
    assert asked == ["note"]
    assert session[Note].all() == ()


def test_chat_usage_with_a_fallback_adapter_includes_nested_runs() -> None:
    down = PromptEvaluationError("down", phase="request", code="server_error")
    second = ScriptedAdapter([say("inside"), say("first"), say("second")])
    loop = MainLoop(FallbackAdapter(ScriptedAdapter([call(("delegate", {})), down, down]), second))
    chat = Chat(loop, outer(ask_inner), session=Session())
    turn = chat.send("Hi")
    assert (turn.text, turn.usage) == ("first", TokenUsage(30, 15))
    with pytest.raises(BudgetExceededError):
        chat.send("More", budget=Budget(max_calls=0))
    assert chat.conversation is not None
    assert chat.conversation.usage == TokenUsage(30, 15)


@pytest.mark.parametrize("is_rendered", [False, True])
@pytest.mark.parametrize("parallel", ["in_order", "isolated"])
@pytest.mark.parametrize("is_async", [False, True])
def test_nested_run_in_a_handler_uses_the_resources_of_the_parent_run(
    is_rendered: bool, parallel: Any, is_async: bool
) -> None:
    see_it = Tool(name="see", description="x", handler=see, effect="repeatable")
    section = MarkdownSection(title="Inner", template="Look.", tools=[see_it])
    inner = PromptTemplate[str](ns="tests", key="inner", sections=[section]).bind()

    def handler(params: Topic, *, context: ToolContext) -> ToolResult[None]:
        return ToolResult(context.evaluate(inner.render() if is_rendered else inner).text)

    async def handler_async(params: Topic, *, context: ToolContext) -> ToolResult[None]:
        asked = inner.render() if is_rendered else inner
        return ToolResult((await context.evaluate_async(asked)).text)

    tools = [
        Tool[Topic, None](
            name="look",
            description="x",
            handler=handler_async if is_async else handler,
            effect="repeatable",
        )
    ]
    config = RunConfig(parallel_tool_calls=parallel)
    replies = [call(("look", Topic("tea"))), call(("see", Topic("tea"))), say("seen"), say("done")]
    prompt, adapter = delegating(*tools), ScriptedAdapter(replies, config=config)
    with prompt.resources:
        [answer] = answers(adapter.evaluate(prompt, session=Session()).transcript)
        assert answer.content == "seen"
        assert prompt.resources.get(Filesystem).read_text("tea.txt") == "seen"
    assert not inner.resources.registry.bindings


def recursive(adapter: ScriptedAdapter) -> Prompt[None]:
    """Returns a prompt whose tool runs the prompt again."""

    def recurse(_: Args, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult(context.evaluate(recursive(adapter)).text)

    return prompt(tool(recurse))


def recursing() -> ScriptedAdapter:
    """Returns an adapter whose model always calls the tool, and answers with its first result."""

    def answer(seen: SeenRequest) -> AssistantMessage:
        results = answers_of(seen)
        return say(results[-1]) if results else call(("probe", {"a": 1}))

    return ScriptedAdapter(repeat(answer))


def answers_of(seen: SeenRequest) -> list[str]:
    return [message.content for message in seen.messages if message.kind == "tool"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("max_depth", [0, 1, 3])
def test_run_nested_deeper_than_max_depth_fails_its_call_with_a_remedy(
    way: Way, max_depth: int
) -> None:
    adapter = recursing()
    adapter.config = RunConfig(max_depth=max_depth)
    response = evaluate(adapter, recursive(adapter), Session(), way)
    assert len(adapter.requests) == 2 * (max_depth + 1)
    assert "max_depth" in response.text
    assert "[limit/depth]" in response.text


@pytest.mark.claim("N-15")
def test_recursion_without_limits_ends_at_the_default_max_depth() -> None:
    adapter = recursing()
    adapter.evaluate(recursive(adapter), session=Session())
    assert len(adapter.requests) == 2 * (RunConfig().max_depth + 1)


def test_strictest_max_depth_of_all_parent_runs_applies() -> None:
    inner = recursing()
    inner.config = RunConfig(max_depth=50)

    def delegate(_: Args, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult(context.evaluate(recursive(inner), adapter=inner).text)

    outer = ScriptedAdapter([call(("probe", {"a": 1})), say("done")], config=RunConfig(max_depth=2))
    outer.evaluate(prompt(tool(delegate)), session=Session())
    assert len(inner.requests) == 2 * 2


def test_handler_can_catch_depth_limit_error() -> None:
    caught: list[DepthLimitError] = []

    def delegate(_: Args, *, context: ToolContext) -> ToolResult[object]:
        try:
            context.evaluate(prompt())
        except DepthLimitError as error:
            caught.append(error)
        return ToolResult("handled")

    adapter = ScriptedAdapter(
        [call(("probe", {"a": 1})), say("done")], config=RunConfig(max_depth=0)
    )
    adapter.evaluate(prompt(tool(delegate)), session=Session())
    [error] = caught
    assert (error.phase, error.code) == ("limit", "depth")
    assert "RunConfig.max_depth" in error.remedy
