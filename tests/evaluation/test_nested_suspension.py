"""A nested run that needs approval suspends its root run, which resumes like any other run."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import repeat
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.agents import Args, Note, answers, nested_adapter, prompt, text_of, tool
from support.approvals import asking, tree
from support.suspensions import (
    WAYS,
    Way,
    agent,
    delegating,
    notes,
    opening,
    run,
    suspended,
    write_note,
)
from weakincentives import serde
from weakincentives.errors import SerdeError
from weakincentives.evaluation.approval import (
    Approve,
    Decision,
    Deny,
    Preview,
    ReplaceArguments,
)
from weakincentives.evaluation.compaction import Compaction
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.errors import PromptEvaluationError, ThrottleError
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.logged_run import Asked, ProviderFailure
from weakincentives.evaluation.main_loop import Execution, MainLoop
from weakincentives.evaluation.messages import AssistantMessage, ToolMessage
from weakincentives.evaluation.response import ToolCallStarted
from weakincentives.evaluation.suspension import RunSuspended, Suspension
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.limits import Budget, Meter, TokenUsage
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.prompt.tool import Effect
from weakincentives.runtime.events import PromptExecuted
from weakincentives.runtime.session import Session
from weakincentives.testing.scripted import Reply, ScriptedAdapter, SeenRequest, call, say


def run_suspended(
    loop: MainLoop,
    asked: Callable[[], Prompt[Any]],
    at: Session,
    way: Way,
    decide: Callable[[Preview], Decision | None],
    **options: Any,
) -> tuple[Execution[Any], int]:
    """Runs to the end; another process resumes each suspended run with some decisions."""
    resumed: dict[str, Any] = {}
    for times in range(200):
        try:
            return run(loop, asked(), at, way, **options, **resumed), times
        except RunSuspended as waiting:
            suspension = Suspension.from_json(waiting.suspension.to_json())
            if suspension != waiting.suspension:
                raise AssertionError("JSON has changed the suspension") from None
        decisions = {item.call_id: decide(item) for item in suspension.pending}
        made = {name: decision for name, decision in decisions.items() if decision is not None}
        resumed = {"suspension": suspension, "decisions": made}
    raise AssertionError("the run waits for ever")


# --------------------------------------------------------------------------------------------------
# the law: a run that is suspended anywhere in its tree ends like a run with an approver


@dataclass(frozen=True)
class Step:
    """One call, which may be denied: a note, or runs that a handler starts one after another."""

    number: int
    approval: Literal["arguments", "effects"] | None = None
    is_denied: bool = False
    runs: tuple["Agent", ...] = ()


@dataclass(frozen=True)
class Agent:
    """A run: the calls of each turn."""

    turns: tuple[tuple[Step, ...], ...] = ()


def steps(agents: st.SearchStrategy[Agent] | None) -> st.SearchStrategy[Step]:
    runs = st.just(()) if agents is None else st.lists(agents, max_size=2).map(tuple)
    approvals = st.sampled_from([None, "arguments", "effects"])
    return st.builds(Step, st.integers(0, 2), approvals, st.booleans(), runs)


def agents(inner: st.SearchStrategy[Agent] | None, turns: int) -> st.SearchStrategy[Agent]:
    calls = st.lists(steps(inner), min_size=1, max_size=2).map(tuple)
    return st.builds(Agent, st.lists(calls, max_size=turns).map(tuple))


TREES = agents(agents(agents(None, 1), 2), 2)


@dataclass(frozen=True)
class Work:
    path: str


@dataclass
class Office:
    """Plays a tree of runs; the path of a call leads to its step."""

    root: Agent
    effect: Effect
    requests: list[tuple[str, tuple[str, ...]]] = field(
        default_factory=list[tuple[str, tuple[str, ...]]]
    )

    def agent_at(self, path: str) -> Agent:
        agent = self.root
        for place in path.split("/")[1:]:
            turn, index, number = map(int, place.split("."))
            agent = agent.turns[turn][index].runs[number]
        return agent

    def step_at(self, path: str) -> Step:
        agent, _, place = path.rpartition(":")
        turn, index = map(int, place.split("."))
        return self.agent_at(agent).turns[turn][index]

    def answer(self, seen: SeenRequest) -> AssistantMessage:
        path = text_of(seen.messages[0]).split()[-1]
        texts = [item.content for item in seen.messages if isinstance(item, ToolMessage)]
        self.requests.append((path, tuple(texts)))
        turn = sum(isinstance(message, AssistantMessage) for message in seen.messages)
        usage, agent = TokenUsage(len(path), 1), self.agent_at(path)
        if turn == len(agent.turns):
            return say(f"{path} is done", usage=usage)
        paths = [f"{path}:{turn}.{index}" for index in range(len(agent.turns[turn]))]
        return call(*[("work", Work(item)) for item in paths], usage=usage)

    def work(self, params: Work, *, context: ToolContext) -> ToolResult[str]:
        step = self.step_at(params.path)
        before = len(context.session[Note])
        context.session.dispatch(Note(f"{step.number} begins"))
        texts: list[str] = []
        for number in range(len(step.runs)):
            inner = f"{params.path.replace(':', '/')}.{number}"
            texts.append(context.evaluate(self.prompt(inner)).text)
            context.session.dispatch(Note(f"{step.number} has run {number}"))
        return ToolResult(f"{before} notes; {texts}")

    async def work_async(self, params: Work, *, context: ToolContext) -> ToolResult[str]:
        step = self.step_at(params.path)
        before = len(context.session[Note])
        context.session.dispatch(Note(f"{step.number} begins"))
        texts: list[str] = []
        for number in range(len(step.runs)):
            inner = f"{params.path.replace(':', '/')}.{number}"
            texts.append((await context.evaluate_async(self.prompt(inner))).text)
            context.session.dispatch(Note(f"{step.number} has run {number}"))
        return ToolResult(f"{before} notes; {texts}")

    def prompt(self, path: str = "root") -> Prompt[Any]:
        handler = self.work_async if path.count("/") % 2 else self.work
        made = Tool[Work, str](
            name="work",
            description="x",
            handler=handler,
            approval=lambda params: self.step_at(params.path).approval,
            effect=self.effect,
        )
        section = MarkdownSection(title="Task", key="task", template=f"Do {path}", tools=[made])
        return Prompt(ns="tests", key="office", sections=[section])

    def decide(self, preview: Preview) -> Decision:
        path = preview.arguments.split('"')[3]
        return Deny("no") if self.step_at(path).is_denied else Approve()


@settings(max_examples=60)
@given(
    root=TREES,
    way=st.sampled_from(WAYS),
    patience=st.lists(st.booleans(), max_size=6),
    effect=st.sampled_from(["repeatable", "undeclared"]),
)
def test_suspended_tree_of_runs_gives_the_same_result_as_with_an_approver(
    root: Agent, way: Way, patience: list[bool], effect: Effect
) -> None:
    def outcome(*, waits: bool) -> tuple[object, list[object]]:
        office, later = Office(root, effect), iter(patience)

        def decide_some(preview: Preview) -> Decision | None:
            return None if next(later, False) else office.decide(preview)

        loop, at = MainLoop(ScriptedAdapter(repeat(office.answer))), Session()
        if waits:
            execution, _ = run_suspended(loop, office.prompt, at, way, decide_some)
        else:
            execution = run(loop, office.prompt(), at, way, approver=office.decide)
        response = execution.response
        seen: list[object] = [*office.requests]
        return (
            response.text,
            [answer.content for answer in answers(response.transcript)],
            execution.usage,
            response.turns,
            [note.text for note in at[Note].all()],
        ), seen

    wanted, requests = outcome(waits=False)
    suspended, made = outcome(waits=True)
    assert suspended == wanted
    assert made == requests


# --------------------------------------------------------------------------------------------------
# pending calls, and resuming


ASK_TWICE = [
    call(("delegate", {"a": 7})),
    call(("free", {"a": 1})),
    call(("run", {"a": 2}), ("run", {"a": 3})),
    say("inside"),
    say("done"),
]


def test_nested_run_suspends_its_root_run_without_effects() -> None:
    asked = prompt(delegating(agent(tool(write_note, name="free"), asking(write_note))))
    adapter, at = ScriptedAdapter(ASK_TWICE), Session()
    suspension = suspended(MainLoop(adapter), asked, at)
    assert [item.call_id for item in suspension.pending] == ["call_1/1/call_3", "call_1/1/call_4"]
    assert [item.inside for item in suspension.pending] == [("delegate",), ("delegate",)]
    assert "A call of run, inside delegate, waits for approval" in str(suspension.pending[0])
    assert notes(at) == []
    some: dict[str, Decision] = {"call_1/1/call_4": Deny("not 3")}
    later = suspended(MainLoop(adapter), asked, at, suspension=suspension, decisions=some)
    assert [item.call_id for item in later.pending] == ["call_1/1/call_3", "call_1/1/call_4"]
    assert later.decisions == some
    assert notes(at) == []
    elsewhere = Session()
    elsewhere.declare(Note)
    execution = MainLoop(adapter).resume(
        asked, later, {"call_1/1/call_3": Approve()}, session=elsewhere
    )
    assert notes(elsewhere) == ["delegates 7", "1", "2"]
    assert execution.text == "done"
    assert execution.usage == TokenUsage(50, 25)
    assert len(adapter.requests) == 5
    read = [answer.content for answer in answers(adapter.requests[3].messages)]
    assert read == ["wrote 1", "wrote 2", "A person denied this call. not 3"]


def test_tool_from_prompt_with_at_most_once_calls_can_be_resumed() -> None:
    paid: list[int] = []

    def pay(params: Args, *, context: ToolContext) -> ToolResult[object]:
        paid.append(params.a)
        return write_note(params, context=context)

    payer = agent(replace(asking(pay, "arguments", effect="at_most_once"), name="pay"))
    made = Tool.from_prompt(payer, name="payer")
    assert made.effect == "at_most_once"
    script = [
        call(("payer", {"message": "Pay."})),
        call(("pay", {"a": 1})),
        call(("pay", {"a": 2})),
        say("paid"),
        say("done"),
    ]
    at, adapter = Session(), ScriptedAdapter(script)
    execution, times = run_suspended(
        MainLoop(adapter), lambda: prompt(made), at, "execute", lambda _: Approve()
    )
    assert (paid, times, len(adapter.requests)) == ([1, 2], 2, 5)
    assert notes(at) == ["1", "2"]
    assert execution.usage == TokenUsage(50, 25)


def test_pending_approval_inside_an_at_most_once_handler_fails_its_call() -> None:
    asked = prompt(delegating(agent(asking(write_note)), effect="at_most_once"))
    script = [call(("delegate", {})), call(("run", {"a": 1})), say("stopped")]
    at = Session()
    execution = MainLoop(ScriptedAdapter(script)).execute(asked, session=at)
    [answer] = answers(execution.response.transcript)
    assert "needs approval for 1 call (run); it cannot be suspended" in answer.content
    assert "it is nested in a call that must not run twice" in answer.content
    assert "pass approver=, or create the enclosing tool with Tool.from_prompt" in answer.content
    assert notes(at) == []


def test_nested_run_is_not_suspended_after_an_at_most_once_call_changed_files() -> None:
    def pay(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.resources.get(Filesystem).write_text("receipt.txt", "paid")
        return ToolResult("paid")

    pays = replace(tool(pay, name="pay"), effect="at_most_once")
    made = Tool.from_prompt(agent(pays, asking(write_note)), name="payer")
    files = InMemoryFilesystem()
    asked = prompt(made).bind(resources={Filesystem: files})
    script = [
        call(("payer", {"message": "Pay."})),
        call(("pay", {})),
        call(("run", {})),
        say("stopped"),
    ]
    execution = MainLoop(ScriptedAdapter(script)).execute(asked, session=Session())
    [answer] = answers(execution.response.transcript)
    assert "a call of 'pay', which must not run twice, has changed files" in answer.content


def test_files_written_by_a_nested_run_are_committed_with_its_call() -> None:
    def edit(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.resources.get(Filesystem).write_text(f"{params.a}.txt", "hunter2\n")
        return ToolResult("ok")

    made = Tool.from_prompt(agent(tool(edit, name="free"), asking(edit)), name="editor")
    files = InMemoryFilesystem()
    asked = prompt(made).bind(resources={Filesystem: files})
    script = [
        call(("editor", {"message": "Edit."})),
        call(("free", {"a": 1})),
        call(("run", {"a": 2})),
        say("inside"),
        say("done"),
    ]
    loop, at = MainLoop(ScriptedAdapter(script)), Session()
    suspension = suspended(loop, asked, at)
    assert tree(files) == {}
    assert "hunter2" in str(suspension.pending[0])  # the reviewer sees it
    [inside] = suspension.log.inside.values()
    entries = [entry for entry in inside.runs[0].log.entries if not isinstance(entry, Asked)]
    assert "hunter2" not in str(entries)
    loop.resume(asked, suspension, {"call_1/1/call_3": Approve()}, session=at)
    assert tree(files) == {"1.txt": "hunter2\n", "2.txt": "hunter2\n"}


def test_arguments_approval_around_a_nested_run_is_requested_once() -> None:
    inner = agent(asking(write_note, "arguments"))
    asked = prompt(delegating(inner, approval="arguments"))
    script = [call(("delegate", {"a": 7})), call(("run", {"a": 1})), say("inside"), say("done")]
    for decision, begins in (
        (Approve(), "delegates 7"),
        (ReplaceArguments({"a": 8}), "delegates 8"),
    ):
        loop, at = MainLoop(ScriptedAdapter(script)), Session()
        first = suspended(loop, asked, at)
        assert [item.call_id for item in first.pending] == ["call_1"]
        second = suspended(loop, asked, at, suspension=first, decisions={"call_1": decision})
        assert [item.call_id for item in second.pending] == ["call_1/1/call_2"]
        loop.resume(asked, second, {"call_1/1/call_2": Approve()}, session=at)
        assert notes(at) == [begins, "1"]


def test_nested_run_fails_if_a_repeated_call_no_longer_succeeds() -> None:
    failures = iter(["", "the service is gone"])

    def once(params: Args, *, context: ToolContext) -> ToolResult[object]:
        if failure := next(failures):
            raise ValueError(failure)
        return ToolResult("fine")

    asked = prompt(delegating(agent(tool(once, name="once"), asking(write_note))))
    script = [call(("delegate", {})), call(("once", {})), call(("run", {})), say("done")]
    loop, at = MainLoop(ScriptedAdapter(script)), Session()
    suspension = suspended(loop, asked, at)
    [preview] = suspension.pending
    execution = loop.resume(asked, suspension, {preview.call_id: Approve()}, session=at)
    [answer] = answers(execution.response.transcript)
    assert "the call of 'once' succeeded before the suspension and fails now" in answer.content
    assert "the service is gone" in answer.content
    assert notes(at) == []


def test_budget_includes_nested_usage_before_the_suspension() -> None:
    asked = prompt(
        delegating(agent(tool(write_note, name="free"), asking(write_note, "arguments")))
    )
    for max_calls, text in ((5, "done"), (4, "max_calls=4 reached with 4")):
        loop, at = MainLoop(ScriptedAdapter(list(ASK_TWICE))), Session()
        budget = Budget(max_calls=max_calls, max_tool_calls=4)
        suspension = suspended(loop, asked, at, budget=budget)
        decisions = {item.call_id: Approve() for item in suspension.pending}
        try:
            found = loop.resume(asked, suspension, decisions, session=at, budget=budget).text
        except PromptEvaluationError as error:
            found = error.message
        assert text in found


def test_usage_of_a_nested_run_is_kept_if_its_handler_does_not_start_it_again() -> None:
    inner = agent(tool(write_note, name="free"), asking(write_note))
    script = [
        call(("fickle", {"a": 7})),
        call(("free", {"a": 1})),
        call(("run", {"a": 2})),
        call(("free", {"a": 3})),
        call(("free", {"a": 4})),
        say("done"),
    ]
    for budget, reached in (
        (Budget(max_tool_calls=4), ""),
        (Budget(max_tool_calls=3), "max_tool_calls=3 reached"),
        (Budget(max_calls=6), ""),
        (Budget(max_calls=5), "max_calls=5 reached"),
    ):
        begins = iter([True, False])

        def fickle(params: Args, *, context: ToolContext, begins: Any = begins) -> Any:
            return ToolResult(context.evaluate(inner.bind()).text if next(begins) else "nothing")

        asked = prompt(tool(fickle, name="fickle"), tool(write_note, name="free"))
        loop, at = MainLoop(ScriptedAdapter(script)), Session()
        suspension = suspended(loop, asked, at, budget=budget)
        decisions = {item.call_id: Approve() for item in suspension.pending}
        resume = partial(loop.resume, asked, suspension, decisions, session=at, budget=budget)
        if reached:
            with pytest.raises(PromptEvaluationError, match=reached):
                resume()
        else:
            assert resume().usage == TokenUsage(60, 30)


def test_usage_of_two_nested_runs_is_counted_once_if_only_one_is_repeated() -> None:
    first, second = agent(key="first"), agent(asking(write_note))
    script = [call(("fickle", {})), say("one"), call(("run", {"a": 2})), say("done")]
    for max_calls, reached in ((4, ""), (3, "max_calls=3 reached")):
        both = iter([True, False])

        def fickle(params: Args, *, context: ToolContext, both: Any = both) -> Any:
            text = context.evaluate(first.bind()).text
            return ToolResult(context.evaluate(second.bind()).text if next(both) else text)

        loop, at = MainLoop(ScriptedAdapter(script)), Session()
        asked, budget = prompt(tool(fickle, name="fickle")), Budget(max_calls=max_calls)
        suspension = suspended(loop, asked, at, budget=budget)
        decisions = {item.call_id: Approve() for item in suspension.pending}
        resume = partial(loop.resume, asked, suspension, decisions, session=at, budget=budget)
        if reached:
            with pytest.raises(PromptEvaluationError, match=reached):
                resume()
        else:
            assert resume().usage == TokenUsage(40, 20)


@pytest.mark.parametrize("repeats", [True, False])
def test_cost_of_nested_runs_before_a_suspension_is_counted_once(*, repeats: bool) -> None:
    inner = agent(tool(write_note, name="free"), asking(write_note))
    after = [call(("free", {"a": 3})), say("done")]
    script = [
        call(("fickle", {"a": 7})),
        call(("free", {"a": 1})),
        call(("run", {"a": 2})),
        *([say("inside")] if repeats else []),
        *after,
    ]
    for max_cost, ends in ((len(script), True), (len(script) - 1, False)):
        begins = iter([True, repeats])

        def fickle(params: Args, *, context: ToolContext, begins: Any = begins) -> Any:
            return ToolResult(context.evaluate(inner.bind()).text if next(begins) else "nothing")

        asked = prompt(tool(fickle, name="fickle"), tool(write_note, name="free"))
        config = RunConfig(prices=lambda usage, model: 1.0)
        loop, at = MainLoop(ScriptedAdapter(script, config=config)), Session()
        budget = Budget(max_cost=max_cost)
        suspension = suspended(loop, asked, at, budget=budget)
        decisions = {item.call_id: Approve() for item in suspension.pending}
        resume = partial(loop.resume, asked, suspension, decisions, session=at, budget=budget)
        if ends:
            assert resume().text == "done"
        else:
            with pytest.raises(PromptEvaluationError, match=rf"reached with {max_cost}\.0"):
                resume()


def test_changed_nested_call_is_previewed_again() -> None:
    def write(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note(f"note {len(context.session[Note])}"))
        return ToolResult("ok")

    asked = prompt(Tool.from_prompt(agent(asking(write)), name="agent"))
    script = [call(("agent", {"message": "x"})), call(("run", {})), say("inside"), say("done")]
    loop, at = MainLoop(ScriptedAdapter(script)), Session()
    first = suspended(loop, asked, at)
    at.dispatch(Note("meanwhile"))
    decisions: dict[str, Decision] = {"call_1/1/call_2": Approve()}
    second = suspended(loop, asked, at, suspension=first, decisions=decisions)
    [preview] = second.pending
    assert preview.reason == (
        "What this call would change is different now, so it is asked about again."
    )
    loop.resume(asked, second, decisions, session=at)
    assert notes(at) == ["meanwhile", "note 1"]


def test_summary_of_a_nested_run_is_not_requested_again_after_a_resume() -> None:
    inner, summaries = agent(asking(write_note)), agent(key="summary", text="Sum up.")
    long = [say(text * 4_000, usage=TokenUsage(900, 900)) for text in "xy"]
    loop, earlier = MainLoop(ScriptedAdapter(long)), None
    for message in ("One?", "Two?"):
        earlier = loop.execute(
            inner.bind(), session=Session(), message=message, conversation=earlier
        ).conversation

    def delegate(params: Args, *, context: ToolContext) -> ToolResult[object]:
        loop = MainLoop(nested_adapter(context), compaction=Compaction(400, 1, summaries))
        return ToolResult(
            loop.execute(
                inner.bind(), session=context.session, message="Now?", conversation=earlier
            ).text
        )

    script = [
        call(("delegate", {})),
        say("They asked."),
        call(("run", {"a": 2})),
        say("inside"),
        say("done"),
    ]
    adapter, at = ScriptedAdapter(script), Session()
    asked = prompt(tool(delegate, name="delegate"))
    suspension = suspended(MainLoop(adapter), asked, at)
    decisions = {item.call_id: Approve() for item in suspension.pending}
    execution = MainLoop(adapter).resume(asked, suspension, decisions, session=at)
    assert (execution.text, len(adapter.requests)) == ("done", 5)
    assert "They asked." in str(adapter.requests[3].messages)
    assert execution.usage == TokenUsage(50, 25)
    straight = Session()
    MainLoop(ScriptedAdapter(script)).execute(asked, session=straight, approver=lambda _: Approve())
    assert ended(at) == ended(straight)


def test_compacted_nested_run_reports_the_same_usage_with_a_suspension() -> None:
    def read(params: Args, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult("word " * 2_000)

    inner = agent(tool(read, name="free"), asking(write_note))
    compaction = Compaction(1_500, 1, agent(key="summary", text="Sum up."))
    loop, earlier = MainLoop(ScriptedAdapter([say("x" * 1_000), say("y" * 1_000)])), None
    for message in ("One?", "Two?"):
        earlier = loop.execute(
            inner.bind(), session=Session(), message=message, conversation=earlier
        ).conversation

    def delegate(params: Args, *, context: ToolContext) -> ToolResult[object]:
        loop = MainLoop(nested_adapter(context), compaction=compaction)
        execution = loop.execute(
            inner.bind(), session=context.session, message="Now?", conversation=earlier
        )
        return ToolResult(execution.text)

    script = [
        call(("delegate", {})),
        call(("free", {"a": 1})),
        say("They asked."),
        call(("run", {"a": 3})),
        say("inside"),
        say("done"),
    ]
    adapter, at, straight = ScriptedAdapter(script), Session(), Session()
    asked = prompt(tool(delegate, name="delegate"))
    suspension = suspended(MainLoop(adapter), asked, at)
    decisions = {item.call_id: Approve() for item in suspension.pending}
    MainLoop(adapter).resume(asked, suspension, decisions, session=at)
    MainLoop(ScriptedAdapter(script)).execute(asked, session=straight, approver=lambda _: Approve())
    assert {name for name, _, _ in ended(at)} == {"agent", "inner", "summary"}
    assert ended(at) == ended(straight)


def ended(session: Session) -> set[tuple[str, TokenUsage, int]]:
    """Returns the usage of each prompt's evaluations; a repeated evaluation reports it again."""
    return {(event.prompt_name, event.usage, event.turns) for event in session[PromptExecuted]}


# --------------------------------------------------------------------------------------------------
# records


def provider_errors() -> st.SearchStrategy[PromptEvaluationError]:
    words = st.text("ab \u00e4", max_size=5)
    parts: dict[str, st.SearchStrategy[Any]] = {
        "phase": st.sampled_from(["request", "response", "limit"]),
        "code": words,
        "provider": words,
        "status": st.none() | st.integers(400, 599),
        "remedy": words,
    }

    def throttle(error: ThrottleError, seconds: int | None) -> ThrottleError:
        error.retry_after = None if seconds is None else timedelta(seconds=seconds)
        return error

    throttled = st.builds(ThrottleError, words, **parts)
    return st.builds(PromptEvaluationError, words, **parts) | st.builds(
        throttle, throttled, st.none() | st.integers(0, 90)
    )


@given(provider_errors())
def test_provider_failure_record_restores_the_same_error(
    error: PromptEvaluationError,
) -> None:
    text = serde.dump_json_lossless(ProviderFailure, ProviderFailure.of(error))
    again = serde.parse_json(ProviderFailure, text).to_error()
    assert type(again) is type(error)
    assert vars(again) == vars(error)
    assert str(again) == str(error)


def test_repeated_nested_run_fails_with_the_conversation_of_its_failure() -> None:
    seen: list[Conversation | None] = []

    def delegate(params: Args, *, context: ToolContext) -> ToolResult[object]:
        try:
            context.evaluate(agent().bind())
        except PromptEvaluationError as error:
            seen.append(error.conversation)
        return ToolResult(context.evaluate(agent(asking(write_note)).bind()).text)

    down = PromptEvaluationError("down", phase="request", code="connection")
    waits = call(("run", {"a": 1}))
    script: list[Reply] = [call(("delegate", {})), down, waits, say("inside"), say("done")]
    loop, at = MainLoop(ScriptedAdapter(script)), Session()
    asked = prompt(tool(delegate, name="delegate"))
    suspension = suspended(loop, asked, at)
    decisions = {preview.call_id: Approve() for preview in suspension.pending}
    assert loop.resume(asked, suspension, decisions, session=at).text == "done"
    first, again = seen
    assert first is not None
    assert again == first


# --------------------------------------------------------------------------------------------------
# ids


def test_calls_with_one_id_are_distinguished_across_turns_and_nested_runs() -> None:
    """A provider gives every call the same id: in a turn, in later turns and in nested runs."""

    def same_ids(seen: SeenRequest) -> AssistantMessage:
        first, *later = seen.messages
        inside, turn = (
            "Inner" in text_of(first),
            sum(isinstance(m, AssistantMessage) for m in later),
        )
        if turn == 2:
            return say("done")
        calls = [("run", {"a": turn}), ("run", {"a": turn + 10})]
        if not inside:
            calls = [("delegate", {"a": turn}), *calls]
        made = call(*calls)
        calls_ = tuple([replace(item, call_id="id") for item in made.tool_calls])
        return replace(made, tool_calls=calls_)

    inner = agent(asking(write_note, "arguments"), text="Inner.")
    asked = prompt(delegating(inner), asking(write_note, "arguments"))
    shown: list[tuple[str, str]] = []

    def decide(preview: Preview) -> Decision:
        shown.append((preview.call_id, preview.arguments))
        return Deny("no") if preview.arguments == '{"a": 10}' else Approve()

    at = Session()
    adapter = ScriptedAdapter(repeat(same_ids))
    run_suspended(MainLoop(adapter), lambda: asked, at, "execute", decide)
    turn_0 = ["delegates 0", "0", "1", "11", "0"]
    assert notes(at) == [*turn_0, "delegates 1", "0", "1", "11", "1", "11"]
    assert {name for name, _ in shown} == {"id/1/id", "id/1/id#2", "id#2", "id#3"}


def test_decision_does_not_apply_to_a_later_call_with_the_same_id() -> None:
    modes = iter(["arguments", None, "arguments"])  # the pending call needs no approval later
    asked = prompt(asking(write_note, lambda params: next(modes)))
    same = replace(call(("run", {"a": 1})), tool_calls=(call(("run", {"a": 1})).tool_calls[0],))
    same = replace(same, tool_calls=(replace(same.tool_calls[0], call_id="id"),))
    loop, at = MainLoop(ScriptedAdapter([same, same, say("done")])), Session()
    first = suspended(loop, asked, at)
    second = suspended(loop, asked, at, suspension=first, decisions={"id": Approve()})
    assert [item.call_id for item in second.pending] == ["id"]
    assert notes(at) == ["1"]


# --------------------------------------------------------------------------------------------------
# rejections


def test_resume_rejects_changed_nested_prompts_and_unknown_call_ids() -> None:
    def asked(inner: PromptTemplate[str], *, by_hand: bool) -> Prompt[Any]:
        return prompt(delegating(inner) if by_hand else Tool.from_prompt(inner, name="delegate"))

    inner = agent(asking(write_note))
    script = [call(("run", {})), say("in"), say("out")]
    decisions: dict[str, Decision] = {"call_1/1/call_2": Approve()}
    for by_hand in (True, False):
        first = call(("delegate", {"a": 7} if by_hand else {"message": "x"}))
        loop, at = MainLoop(ScriptedAdapter([first, *script])), Session()
        suspension = suspended(loop, asked(inner, by_hand=by_hand), at)
        before = notes(at)
        changed = agent(replace(asking(write_note), description="Writes all."))
        for other, message in (
            (changed, r"the tools \['run'\] have changed since the nested run of 'tests/inner'"),
            (agent(asking(write_note), key="other"), "of prompt 'tests/inner', not of 'tests/oth"),
        ):
            with pytest.raises(ValueError, match=message):
                loop.resume(asked(other, by_hand=by_hand), suspension, decisions, session=at)
        with pytest.raises(
            ValueError, match=r"decisions must be for suspended calls, .*, got one for 'call_2'"
        ):
            loop.resume(
                asked(inner, by_hand=by_hand), suspension, {"call_2": Approve()}, session=at
            )
        assert notes(at) == before == []
        execution = loop.resume(asked(inner, by_hand=by_hand), suspension, decisions, session=at)
        assert execution.text == "out"
        with pytest.raises(ValueError, match="it was already resumed"):
            loop.resume(asked(inner, by_hand=by_hand), suspension, decisions, session=at)


def test_changed_nested_prompt_is_rejected_before_sibling_calls_resume() -> None:
    def asked(*descriptions: str) -> Prompt[Any]:
        inner = [agent(replace(asking(write_note), description=text)) for text in descriptions]
        names = zip(inner, ("first", "second"), strict=True)
        return prompt(*[Tool.from_prompt(each, name=name) for each, name in names])

    def answer(seen: SeenRequest) -> AssistantMessage:
        first, *later = seen.messages
        if "Inner" in str(first):
            return say("in") if later[1:] else call(("run", {"a": 1}))
        message = {"message": "x"}
        return say("out") if later else call(("first", message), ("second", message))

    config = RunConfig(parallel_tool_calls="isolated")
    adapter, at = ScriptedAdapter(repeat(answer), config=config), Session()
    loop = MainLoop(adapter)
    suspension = suspended(loop, asked("One.", "Two."), at)
    decisions = {item.call_id: Approve() for item in suspension.pending}
    assert (len(decisions), len(adapter.requests)) == (2, 3)
    with pytest.raises(ValueError, match="have changed since the nested run"):
        loop.resume(asked("One.", "Other."), suspension, decisions, session=at)
    assert (notes(at), len(adapter.requests)) == ([], 3)
    execution = loop.resume(asked("One.", "Two."), suspension, decisions, session=at)
    assert (execution.text, notes(at)) == ("out", ["1", "1"])


def test_suspension_json_with_mismatched_nested_calls_raises_serde_error() -> None:
    asked = prompt(delegating(agent(asking(write_note))))
    script = [call(("delegate", {"a": 7})), call(("run", {"a": 1}))]
    suspension = suspended(MainLoop(ScriptedAdapter(script)), asked, Session())
    text = suspension.to_json()
    for old, new in (
        ('"key":"1/call_2","preview"', '"key":"1/call_9","preview"'),
        ('"inside":{"1/call_1"', '"inside":{"1/x"'),
    ):
        assert old in text
        with pytest.raises(SerdeError, match=r"to another call|does not end with calls"):
            Suspension.from_json(text.replace(old, new, 1))


def test_approved_nested_call_is_not_repeated_if_a_later_call_is_suspended() -> None:
    paid: list[int] = []

    def pay(params: Args, *, context: ToolContext) -> ToolResult[object]:
        paid.append(params.a)
        context.session.dispatch(Note(f"paid {params.a}"))
        return ToolResult("Paid.")

    approved = Tool[Args, object](name="pay", description="p", handler=pay, approval="arguments")
    asked = prompt(Tool.from_prompt(agent(approved), name="sub", description="Sub."))
    replies = [call(("sub", {"message": "x"})), call(("pay", {"a": 1})), call(("pay", {"a": 2}))]
    loop = MainLoop(ScriptedAdapter([*replies, say("Inner."), say("Done.")]))
    at = Session()
    first = suspended(loop, asked, at)
    with pytest.raises(RunSuspended) as waiting:
        loop.resume(asked, first, {first.pending[0].call_id: Approve()}, session=at)
    second = waiting.value.suspension
    loop.resume(asked, second, {second.pending[0].call_id: Deny("No.")}, session=at)
    assert (paid, notes(at)) == ([1], ["paid 1"])


def test_resumed_nested_run_has_the_tools_of_the_sections_that_it_read() -> None:
    inner = opening([asking(write_note)], [])

    def delegate(params: Args, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult(context.evaluate(inner).text)

    read = call(("read_section", {"section_key": "more"}))
    replies = [call(("delegate", {})), read, call(("run", {"a": 1})), say("in"), say("out")]
    asked, at = prompt(tool(delegate, name="delegate")), Session()
    loop = MainLoop(ScriptedAdapter(replies))
    suspension = suspended(loop, asked, at)
    decisions = {preview.call_id: Approve() for preview in suspension.pending}
    loop.resume(asked, suspension, decisions, session=at)
    assert notes(at) == ["1"]


def test_stream_of_a_resumed_nested_run_reports_the_same_calls_again() -> None:
    started: list[str] = []
    inner = agent(tool(write_note, name="note"), asking(write_note))

    def delegate(params: Args, *, context: ToolContext) -> ToolResult[object]:
        events = nested_adapter(context).stream(inner.bind())
        started.extend(event.call.name for event in events if isinstance(event, ToolCallStarted))
        return ToolResult("ok")

    replies = [call(("delegate", {})), call(("note", {}), ("run", {})), say("in"), say("out")]
    asked, at = prompt(tool(delegate, name="delegate")), Session()
    loop = MainLoop(ScriptedAdapter(replies))
    suspension = suspended(loop, asked, at)
    assert started == ["note", "run"]
    decisions = {preview.call_id: Approve() for preview in suspension.pending}
    loop.resume(asked, suspension, decisions, session=at)
    assert started == ["note", "run"] * 2


def test_parallel_call_that_is_suspended_is_not_counted_in_the_budget() -> None:
    meter = Meter()
    asked = prompt(tool(write_note, name="note"), delegating(agent(asking(write_note))))
    replies = [call(("note", {"a": 1}), ("delegate", {"a": 2})), call(("run", {"a": 3}))]
    config = RunConfig(parallel_tool_calls="isolated", budget=Budget(meter=meter))
    at = Session()
    suspended(MainLoop(ScriptedAdapter(replies, config=config)), asked, at)
    assert (meter.usage.tool_calls, notes(at)) == (1, ["1"])


def test_resume_rejects_replaced_arguments_of_a_nested_call_that_are_not_json() -> None:
    asked, at = prompt(delegating(agent(asking(write_note)))), Session()
    loop = MainLoop(ScriptedAdapter([call(("delegate", {})), call(("run", {}))]))
    suspension = suspended(loop, asked, at)
    [preview] = suspension.pending
    arguments: Any = {"a": {1}}
    with pytest.raises(TypeError, match="takes a mapping of JSON values"):
        loop.resume(asked, suspension, {preview.call_id: ReplaceArguments(arguments)}, session=at)
