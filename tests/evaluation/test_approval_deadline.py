"""No call runs after the deadline or the budget has ended, whatever the approver decides then."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from threading import Event
from time import perf_counter
from typing import Any

import pytest

from support.agents import Args, Note, ok, prompt
from support.suspensions import WAYS, Way, run
from weakincentives.evaluation.approval import Approve, Decision, Deny, Preview, ReplaceArguments
from weakincentives.evaluation.errors import DeadlineExceededError, LimitError
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.evaluation.response import ToolCallStarted
from weakincentives.evaluation.suspension import RunSuspended, Suspension
from weakincentives.limits import Budget, Deadline, TokenUsage
from weakincentives.prompt import Tool, ToolContext, ToolResult
from weakincentives.runtime.session import Session
from weakincentives.testing.scripted import ScriptedAdapter, SeenRequest, call, say

START = datetime(2026, 1, 1, tzinfo=UTC)
DEADLINE = Deadline.after(30, now=START)
TWO_CALLS = [call(("run", {"a": 1}), ("run", {"a": 2})), say("done")]


class Time:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now

    def decide_late(self, decision: Decision) -> Callable[[Preview], Decision]:
        def decide(preview: Preview) -> Decision:
            self.now += timedelta(seconds=20)
            return decision

        return decide


def note(params: Args, *, context: ToolContext) -> ToolResult[object]:
    context.session.dispatch(Note(str(params.a)))
    return ToolResult("noted")


def asking(approval: Any = "arguments", handler: Any = note) -> Tool[Any, Any]:
    return Tool[Args, Any](name="run", handler=handler, approval=approval, effect="repeatable")


def notes(session: Session) -> list[str]:
    return [item.text for item in session[Note].all()]


@pytest.mark.claim("N-11")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("approval", ["arguments", "effects"])
@pytest.mark.parametrize(
    ("decision", "noted"),
    [(Approve(), ["1"]), (ReplaceArguments({"a": 7}), ["7"]), (Deny("no"), [])],
)
def test_call_approved_after_the_deadline_does_not_run(
    way: Way, approval: str, decision: Decision, noted: list[str]
) -> None:
    clock, session = Time(), Session()
    if (approval, type(decision)) == ("effects", ReplaceArguments):
        noted = []  # the second approval of the first call ends after the deadline
    loop = MainLoop(ScriptedAdapter(TWO_CALLS, clock=clock), clock=clock)
    options: Any = {"deadline": DEADLINE, "approver": clock.decide_late(decision)}
    with pytest.raises(DeadlineExceededError):
        run(loop, prompt(asking(approval)), session, way, **options)
    assert notes(session) == noted


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("parallel", ["in_order", "isolated"])
def test_nested_call_approved_after_the_deadline_does_not_run(way: Way, parallel: Any) -> None:
    clock, session = Time(), Session()
    config = RunConfig(parallel_tool_calls=parallel)
    agent = Tool.from_prompt(prompt(asking()).template, name="agent")
    delegation = call(*[("agent", {"message": "Go."})] * 2)
    replies = [delegation, *[TWO_CALLS[0]] * 2]
    loop = MainLoop(ScriptedAdapter(replies, clock=clock, config=config), clock=clock)
    approver = clock.decide_late(Approve())
    with pytest.raises(DeadlineExceededError):
        run(loop, prompt(agent), session, way, deadline=DEADLINE, approver=approver)
    assert notes(session) == []  # the first call was undone with the agent's


@pytest.mark.parametrize("way", WAYS)
def test_call_of_a_resumed_run_approved_after_the_deadline_does_not_run(way: Way) -> None:
    clock, session = Time(), Session()
    loop = MainLoop(ScriptedAdapter(TWO_CALLS, clock=clock), clock=clock)
    with pytest.raises(RunSuspended) as waiting:
        loop.execute(prompt(asking()), session=session)
    suspension = Suspension.from_json(waiting.value.suspension.to_json())
    clock.now += timedelta(seconds=25)
    options: Any = {"suspension": suspension, "decisions": {"call_1": Approve()}}
    approver = clock.decide_late(Approve())
    with pytest.raises(DeadlineExceededError):
        run(loop, prompt(asking()), session, way, deadline=DEADLINE, approver=approver, **options)
    assert notes(session) == ["1"]


@pytest.mark.parametrize("way", WAYS)
def test_async_approver_is_cancelled_at_the_deadline(way: Way) -> None:
    cancelled: list[str] = []

    async def decide(preview: Preview) -> Decision:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(preview.tool)
            raise
        return Approve()

    session, started = Session(), perf_counter()
    with pytest.raises(DeadlineExceededError):
        run(
            MainLoop(ScriptedAdapter(TWO_CALLS)),
            prompt(asking()),
            session,
            way,
            deadline=Deadline.after(0.1),
            approver=decide,
        )
    assert perf_counter() - started < 30
    assert (cancelled, notes(session)) == (["run"], [])


def test_async_run_does_not_wait_for_a_sync_approver_after_the_deadline() -> None:
    answer, answered = Event(), Event()

    def decide(preview: Preview) -> Decision:
        answer.wait(60)
        answered.set()
        return Approve()

    session = Session()

    async def execute() -> None:
        loop = MainLoop(ScriptedAdapter(TWO_CALLS))
        with pytest.raises(DeadlineExceededError):
            await loop.execute_async(
                prompt(asking()),
                session=session,
                deadline=Deadline.after(0.1),
                approver=decide,
            )
        assert not answered.is_set()
        answer.set()
        await asyncio.to_thread(answered.wait, 60)

    asyncio.run(execute())
    assert notes(session) == []


def test_timeout_error_in_the_approver_is_not_a_deadline_error() -> None:
    def decide(preview: Preview) -> Decision:
        raise TimeoutError("the browser")

    with pytest.raises(TimeoutError, match="the browser"):
        MainLoop(ScriptedAdapter(TWO_CALLS)).execute(
            prompt(asking()), session=Session(), deadline=Deadline.after(60), approver=decide
        )


@pytest.mark.parametrize("approval", [None, "arguments", "effects"])
def test_call_does_not_run_if_the_stream_consumer_passes_the_deadline(
    approval: Any,
) -> None:
    clock, session = Time(), Session()
    loop = MainLoop(ScriptedAdapter(TWO_CALLS, clock=clock), clock=clock)
    events = loop.stream(
        prompt(asking(approval)),
        session=session,
        deadline=DEADLINE,
        approver=lambda preview: Approve(),
    )

    def read() -> None:
        for event in events:
            if isinstance(event, ToolCallStarted):
                clock.now += timedelta(seconds=20)

    with pytest.raises(DeadlineExceededError):
        read()
    assert notes(session) == ["1"]


def test_call_does_not_run_if_the_budget_runs_out_during_approval() -> None:
    """Two agents run concurrently: the second one spends the tokens while the first is pending."""
    spent, session = Event(), Session()

    def decide(preview: Preview) -> Decision:
        assert spent.wait(60)
        return Approve()

    def answer(seen: SeenRequest) -> AssistantMessage:
        if "Ask." in str(seen.messages):
            return call(("run", {"a": 1}))
        asked = any(isinstance(message, AssistantMessage) for message in seen.messages)
        if asked:
            spent.set()
        usage = TokenUsage(500, 500) if asked else TokenUsage()
        return say("spent", usage=usage) if asked else call(("look", {"a": 1}))

    inner = prompt(asking(), Tool[Args, Any](name="look", handler=ok, effect="pure")).template
    agents = [Tool.from_prompt(inner, name=name) for name in ("first", "second")]
    delegation = call(("first", {"message": "Ask."}), ("second", {"message": "Spend."}))
    config = RunConfig(parallel_tool_calls="isolated")
    adapter = ScriptedAdapter([delegation, *[answer] * 4], config=config)
    with pytest.raises(LimitError):
        MainLoop(adapter).execute(
            prompt(*agents), session=session, budget=Budget(max_tokens=900), approver=decide
        )
    assert notes(session) == []


def test_call_after_the_deadline_is_answered_as_not_run() -> None:
    clock, session = Time(), Session()
    calls: list[int] = []

    def outer(params: Args, *, context: ToolContext) -> ToolResult[object]:
        calls.append(1)
        return ToolResult("ok")

    loop = MainLoop(ScriptedAdapter(TWO_CALLS, clock=clock), clock=clock)
    approver = clock.decide_late(Approve())
    with pytest.raises(DeadlineExceededError) as ended:
        loop.execute(
            prompt(asking("arguments", outer)),
            session=session,
            deadline=DEADLINE,
            approver=approver,
        )
    conversation = ended.value.conversation
    assert conversation is not None
    texts = [getattr(message, "content", "") for message in conversation.messages[-2:]]
    assert texts == ["ok", "Not run: the evaluation ended."]


def test_parallel_call_started_after_the_deadline_does_not_run() -> None:
    clock, session = Time(), Session()

    def slow(params: Args, *, context: ToolContext) -> ToolResult[object]:
        clock.now += timedelta(seconds=2)
        context.session.dispatch(Note(str(params.a)))
        return ToolResult("noted")

    tool = Tool[Args, Any](name="run", handler=slow, effect="repeatable")
    config = RunConfig(parallel_tool_calls="isolated")
    calls = call(*[("run", {"a": number}) for number in range(60)])
    adapter = ScriptedAdapter([calls, say("done")], clock=clock, config=config)
    with pytest.raises(DeadlineExceededError):
        MainLoop(adapter, clock=clock).execute(prompt(tool), session=session, deadline=DEADLINE)
    assert len(notes(session)) <= 15 + 16  # one more for each thread
