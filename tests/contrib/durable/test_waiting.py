"""A suspended durable run ends like an uninterrupted one, wherever it crashes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.agents import Args, Note, answers, prompt, tool
from support.approvals import Which, asking
from support.durable_cuts import perform
from support.durable_runs import Held, Json, WatchedTable, has_unknown, kind_of
from support.programs import STATE, Program, programs, run, session
from weakincentives.contrib.durable import (
    durable,
    execute_run,
    to_input,
    to_resumed,
)
from weakincentives.contrib.durable.agent import AnyAgent
from weakincentives.contrib.durable.execution import to_execution
from weakincentives.evaluation.approval import (
    Approve,
    Decision,
    Deny,
    Preview,
    ReplaceArguments,
)
from weakincentives.evaluation.errors import (
    BudgetExceededError,
    ChangedRunError,
    DeadlineExceededError,
)
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.main_loop import Execution, MainLoop
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.evaluation.suspension import RunSuspended, Suspension
from weakincentives.limits import Budget, Deadline, utc_now
from weakincentives.prompt import Prompt, ToolContext, ToolResult
from weakincentives.prompt.tool import Effect
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say
from weakincentives.testing.scripted import SeenRequest

type Mode = Any  # a tool's approval mode, including a wrong one


def script(*turns: AssistantMessage, call_id: str = "call_{}") -> ScriptedAdapter:
    """Replies with the conversation's current turn, however often it is asked."""
    said: list[AssistantMessage] = []
    first = 1
    for turn in turns:
        calls = [
            replace(item, call_id=call_id.format(n))
            for n, item in enumerate(turn.tool_calls, first)
        ]
        said.append(replace(turn, tool_calls=tuple(calls)))
        first += len(calls)

    def model(seen: SeenRequest) -> AssistantMessage:
        return said[sum(isinstance(message, AssistantMessage) for message in seen.messages)]

    return ScriptedAdapter(cycle([model]))


@dataclass
class Attempts:
    """Attempts for the parts of one run; each part has its own rows."""

    agent: AnyAgent
    run_input: Json
    part: int = 0
    result: Json = None
    table: WatchedTable = field(default_factory=WatchedTable)

    def attempt(self, held: Held | None = None) -> Json:
        """Runs the current part, after a crash that left these rows of it."""
        self.table = WatchedTable(held or {})
        self.result = perform(self.agent, self.table, self.run_input, run_id=self.run_id)
        return self.result

    @property
    def run_id(self) -> str:
        return f"run:wait-{self.part}" if self.part else "run"

    @property
    def held(self) -> list[Held]:
        """The rows of the current part that a crash may leave."""
        return self.table.held

    @property
    def suspension(self) -> Suspension | None:
        text = self.result.get("suspension")
        return None if text is None else Suspension.from_json(text)

    @property
    def pending(self) -> list[str]:
        """Returns the ids of the pending calls."""
        assert self.suspension is not None
        return [item.call_id for item in self.suspension.pending]

    @property
    def kinds(self) -> list[str]:
        """The kinds of the current part's entries, in order."""
        return [*map(kind_of, self.table.rows[self.run_id])]

    def decide(self, decisions: Mapping[str, Decision]) -> Json:
        """Begins the next part, with these decisions, and runs it."""
        self.run_input = to_resumed(self.run_input, self.result, decisions)
        self.part += 1
        return self.attempt()

    def ended(self) -> Execution[Json]:
        return to_execution(self.agent, self.result)

    @property
    def answers(self) -> list[str]:
        """Returns the answers to calls that the model gets, once the run has ended."""
        return [item.content for item in answers(self.ended().response.transcript)]

    def session(self) -> Session:
        made = self.agent.session("run")
        made.restore(made.parse_snapshot(self.result["session"], types=self.agent.types))
        return made


def whole(execution: Execution[Json]) -> object:
    response = execution.response
    return response.text, response.conversation, response.usage, response.turns, execution.usage


# --- The law


@settings(max_examples=60)
@given(
    turns=st.lists(
        st.lists(
            st.tuples(
                programs((None, None, False, ValueError), resources=False),
                st.sampled_from([None, "arguments", "effects"]),
                st.booleans(),
            ),
            min_size=1,
            max_size=3,
        ),
        min_size=1,
        max_size=2,
    ),
    data=st.data(),
)
def test_suspended_run_with_crashes_matches_the_run_with_an_approver(
    turns: list[list[tuple[Program, Mode, bool]]], data: st.DataObject
) -> None:
    calls = [item for turn in turns for item in turn]

    def handler(params: Which, *, context: ToolContext) -> ToolResult[object]:
        return run(calls[params.number][0], context)

    def mode(params: Which) -> Mode:
        return calls[params.number][1]

    def decide(preview: Preview) -> Decision:
        number = int("".join(filter(str.isdigit, preview.arguments)))
        return Deny("no") if calls[number][2] else Approve()

    numbers = iter(range(len(calls)))
    said = [call(*[("run", {"number": next(numbers)}) for _ in turn]) for turn in turns]
    loop = MainLoop(script(*said, say("done")))
    asked, at = prompt(asking(handler, mode, params=Which)), session()
    wanted = whole(loop.execute(asked, session=at, approver=decide))

    agent = durable(
        loop,
        lambda: prompt(asking(handler, mode, params=Which)),
        types=STATE,
        session=lambda run_id: session(),
    )
    attempts = Attempts(agent, to_input())
    attempts.attempt()
    while True:
        held = data.draw(st.sampled_from(attempts.held), label="held")
        before, last = attempts.result, attempts.held[-1]
        attempts.attempt(held)
        if held == last:
            assert attempts.result == before
        if (suspension := attempts.suspension) is None:
            break
        first, *others = suspension.pending
        some = [first, *[item for item in others if data.draw(st.booleans(), label="decided")]]
        attempts.decide({item.call_id: decide(item) for item in some})
    assert whole(attempts.ended()) == wanted
    assert attempts.result["session"] == at.snapshot().to_json()


# --- At most once


@dataclass
class Sent:
    """The real effects of an at-most-once tool, and the time that it had."""

    amounts: list[int] = field(default_factory=list[int])
    deadlines: list[Deadline | None] = field(default_factory=list[Deadline | None])

    def agent(
        self, *turns: AssistantMessage, approval: Mode = "arguments", call_id: str = "call_{}"
    ) -> AnyAgent:
        def send(params: Args, *, context: ToolContext) -> ToolResult[object]:
            self.amounts.append(params.a)
            self.deadlines.append(context.deadline)
            context.session[Note].append(Note(context.idempotency_key))
            return ToolResult(f"sent {params.a}")

        tool = asking(send, approval, effect="at_most_once")
        loop = MainLoop(script(*turns, call_id=call_id))
        return durable(loop, lambda: prompt(tool), types=[Note])


def three() -> AssistantMessage:
    return call(("run", {"a": 1}), ("run", {"a": 2}), ("run", {"a": 3}))


def sending(
    *turns: AssistantMessage, approval: Mode = "arguments", **options: Json
) -> tuple[Sent, Attempts]:
    sent = Sent()
    attempts = Attempts(sent.agent(*turns, approval=approval), to_input(**options))
    attempts.attempt()
    return sent, attempts


def test_call_interrupted_before_its_decision_is_pending_and_not_unknown() -> None:
    sent, attempts = sending(three(), say("done"))
    assert attempts.kinds == ["rendered", "answered", "asked"]  # no call began
    first = attempts.result
    assert len(attempts.held) == 3
    for held in attempts.held:
        assert attempts.attempt(held) == first
    assert attempts.pending == ["call_1", "call_2", "call_3"]
    assert sent.amounts == []


def test_denied_call_is_never_started_for_any_call_id() -> None:
    sent = Sent()
    attempts = Attempts(sent.agent(three(), say("done"), call_id="run/{}"), to_input())
    attempts.attempt()
    attempts.decide({"run~1": Approve(), "run~2": Deny("no"), "run~3": Approve()})
    assert attempts.kinds == ["began", "called", "called", "began", "called", "answered"]
    texts = ["sent 1", "A person denied this call. no", "sent 3"]
    assert attempts.answers == texts
    for held in attempts.held:
        attempts.attempt(held)
        assert attempts.answers[1] == texts[1]


@pytest.mark.parametrize("kept", range(7))
def test_each_call_runs_at_most_once_wherever_the_run_crashes(kept: int) -> None:
    sent, attempts = sending(three(), say("done"))
    attempts.decide({"call_1": Approve(), "call_2": Deny("no"), "call_3": Approve()})
    kinds, undisturbed = attempts.kinds, attempts.result
    assert kinds == ["began", "called", "called", "began", "called", "answered"]
    assert sent.amounts == [1, 3]
    sent.amounts.clear()
    begun = kinds[kept - 1 : kept] == ["began"]
    attempts.attempt(attempts.held[kept])
    texts = attempts.answers
    assert texts[1] == "A person denied this call. no"
    assert sent.amounts == [a for a, began in ((1, 1), (3, 4)) if kept < began]
    if begun:
        assert "outcome is unknown" in texts[0 if kept == 1 else 2]
    else:
        assert attempts.result == undisturbed


def test_partial_decisions_run_leading_calls_and_keep_the_others() -> None:
    sent, attempts = sending(three(), say("done"))
    attempts.decide({"call_1": Approve(), "call_3": ReplaceArguments({"a": 9})})
    assert sent.amounts == [1]
    assert attempts.pending == ["call_2", "call_3"]
    attempts.decide({"call_2": Approve()})
    assert sent.amounts == [1, 2, 9]
    keys = [note.text for note in attempts.session()[Note]]
    assert keys == ["run:1/call_1", "run:1/call_2", "run:1/call_3"]  # of the run, in all parts


def test_invalid_replacement_arguments_suspend_the_run_again() -> None:
    sent, attempts = sending(three(), say("done"))
    attempts.decide({"call_1": ReplaceArguments({"a": "many"}), "call_2": Approve()})
    assert attempts.pending == ["call_1", "call_2", "call_3"]
    assert sent.amounts == []
    attempts.decide({"call_1": Approve(), "call_3": Deny()})
    assert sent.amounts == [1, 2]


def test_calls_without_approval_run_before_and_after_the_suspension() -> None:
    def large(params: Args) -> Mode:
        return "arguments" if params.a == 2 else None

    sent, attempts = sending(three(), say("done"), approval=large)
    assert sent.amounts == [1]
    for held in (attempts.held[0], attempts.held[-1]):
        attempts.attempt(held)
        assert attempts.pending == ["call_2"]
    attempts.decide({"call_2": Approve()})
    assert sent.amounts[-2:] == [2, 3]
    assert attempts.ended().text == "done"


def test_version_depends_on_the_approval_mode() -> None:
    modes: list[Mode] = [None, "arguments", lambda: "arguments"]
    assert len({Sent().agent(approval=mode).version for mode in modes}) == 3


def test_decision_applies_to_one_call_wherever_the_run_crashes() -> None:
    """Providers may use the same call ids in every turn."""
    sent = Sent()
    adapter = script(call(("run", {"a": 1})), call(("run", {"a": 2})), say("done"), call_id="same")
    made = durable(MainLoop(adapter), sent.agent().prompt, types=[Note])
    attempts = Attempts(made, to_input())
    attempts.attempt()
    attempts.decide({"same": Approve()})
    assert attempts.kinds == ["began", "called", "answered", "asked"]
    for held in attempts.held:
        attempts.attempt(held)
        suspension = attempts.suspension
        assert suspension is not None
        assert [item.arguments for item in suspension.pending] == ['{"a": 2}']
    assert set(sent.amounts) == {1}


# --- Runs inside calls


def conversing(seen: SeenRequest) -> AssistantMessage:
    """Delegates twice; the model of each nested run first looks at notes, and then sends twice."""
    said = sum(isinstance(message, AssistantMessage) for message in seen.messages)
    if "delegate" in seen.tool_names:
        turns = [call(("delegate", {"a": 1}), ("delegate", {"a": 2})), say("all done")]
    else:
        turns = [call(("look", {})), call(("run", {"a": 3}), ("run", {"a": 4})), say("sent both")]
    named = [
        replace(item, call_id=f"{item.name}-{n}") for n, item in enumerate(turns[said].tool_calls)
    ]
    return replace(turns[said], tool_calls=tuple(named))


@dataclass
class Delegating:
    """An agent whose handler runs a prompt that needs approvals, and its real effects."""

    effect: Effect = "repeatable"
    parallel: bool = False
    keys: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        config = RunConfig(parallel_tool_calls="isolated" if self.parallel else "in_order")
        self.adapter = ScriptedAdapter(cycle([conversing]), config=config)
        self.agent = durable(MainLoop(self.adapter), self.prompt, types=[Note])

    def prompt(self) -> Prompt[Json]:
        def send(params: Args, *, context: ToolContext) -> ToolResult[object]:
            self.keys.append(context.idempotency_key)
            context.session[Note].append(Note(f"sent {params.a}"))
            return ToolResult(f"sent {params.a}")

        def look(params: Args, *, context: ToolContext) -> ToolResult[object]:
            return ToolResult(f"{len(context.session[Note])} notes")

        inner = (
            replace(asking(send, "arguments"), effect="at_most_once"),
            replace(tool(look, name="look"), effect="pure"),
        )

        def delegate(params: Args, *, context: ToolContext) -> ToolResult[object]:
            context.session[Note].append(Note(f"began {params.a}"))
            return ToolResult(context.evaluate(prompt(*inner)).text)

        return prompt(replace(tool(delegate, name="delegate"), effect=self.effect))

    def attempts(self) -> Attempts:
        begun = Attempts(self.agent, to_input())
        begun.attempt()
        return begun


ALL_KEYS = [f"run:1/delegate-{n}/1:2/run-{m}" for n in range(2) for m in range(2)]


def approve_all(attempts: Attempts) -> dict[str, Decision]:
    return {call_id: Approve() for call_id in attempts.pending}


@pytest.mark.parametrize("parallel", [False, True])
def test_suspended_nested_run_continues_wherever_the_run_crashes(parallel: bool) -> None:
    plain, at = Delegating(parallel=parallel), Session()
    at.declare(Note)
    wanted = whole(
        plain.agent.main_loop.execute(plain.prompt(), session=at, approver=lambda _: Approve())
    )
    attempts = Delegating(parallel=parallel).attempts()
    first = ["delegate-0/1/run-0", "delegate-0/1/run-1"]
    second = ["delegate-1/1/run-0", "delegate-1/1/run-1"]
    assert attempts.pending == ([*first, *second] if parallel else first)
    while True:
        for held in attempts.held:
            if has_unknown(held):
                continue
            cut = replace(attempts, agent=Delegating(parallel=parallel).agent)
            cut.attempt(held)
            if not parallel:
                assert cut.result == attempts.result
            while cut.suspension is not None:
                cut.decide(approve_all(cut))
            assert whole(cut.ended()) == wanted
            assert cut.result["session"] == at.snapshot().to_json()
        if attempts.suspension is None:
            break
        attempts.decide(approve_all(attempts))


@pytest.mark.parametrize("parallel", [False, True])
def test_resumed_nested_run_repeats_no_request_and_no_call(parallel: bool) -> None:
    delegating = Delegating(parallel=parallel)
    attempts = delegating.attempts()
    while attempts.suspension is not None:
        attempts.decide(approve_all(attempts))
    # two in the root run, and three in each nested run
    assert len(delegating.adapter.requests) == 8
    assert delegating.keys == ALL_KEYS
    assert attempts.ended().text == "all done"
    notes = [note.text for note in attempts.session()[Note]]
    assert notes == ["began 1", "sent 3", "sent 4", "began 2", "sent 3", "sent 4"]


def test_partial_decisions_on_a_nested_run_are_kept() -> None:
    delegating = Delegating()
    attempts = delegating.attempts()
    attempts.decide({"delegate-0/1/run-1": ReplaceArguments({"a": 9})})
    assert (attempts.pending, delegating.keys) == (["delegate-0/1/run-0", "delegate-0/1/run-1"], [])
    attempts.decide({"delegate-0/1/run-0": Deny("no")})
    assert attempts.pending == ["delegate-1/1/run-0", "delegate-1/1/run-1"]
    assert delegating.keys == ALL_KEYS[1:2]
    attempts.decide({call_id: Deny() for call_id in attempts.pending})
    notes = [note.text for note in attempts.session()[Note]]
    assert notes == ["began 1", "sent 9", "began 2"]


def test_nested_run_in_an_at_most_once_call_fails_instead_of_suspending() -> None:
    delegating = Delegating(effect="at_most_once")
    attempts = delegating.attempts()
    first, second = answers(attempts.ended().response.transcript)
    for answer in (first, second):
        assert not answer.success
        assert "needs approval for 2 calls (run, run)" in answer.content
        assert "it is nested in a call that must not run twice" in answer.content
    assert delegating.keys == []


# --- Limits


def test_time_while_suspended_is_not_deducted() -> None:
    limits: list[Json] = [{"deadline": Deadline.after(3600)}, {"budget": Budget(max_seconds=3600)}]
    for limit in limits:
        sent, attempts = sending(three(), say("done"), **limit)
        assert 3500 < attempts.result["seconds_left"] <= 3600
        attempts.result["seconds_left"] -= 3000  # as if the first part had taken long
        before = utc_now()
        attempts.decide({"call_1": Approve()})
        [deadline] = sent.deadlines
        assert deadline is not None
        left = deadline.remaining(before).total_seconds()
        assert 500 < left < 3000  # and the part's own time has been subtracted
        assert 500 < attempts.result["seconds_left"] <= left


def test_run_suspended_with_no_time_left_ends_when_decided() -> None:
    _, attempts = sending(three(), say("done"), deadline=Deadline.after(3600))
    attempts.result["seconds_left"] = -1.0
    attempts.decide({"call_1": Approve()})
    with pytest.raises(DeadlineExceededError):
        attempts.ended()


def test_usage_before_a_suspension_is_budgeted() -> None:
    _, attempts = sending(three(), say("done"), budget=Budget(max_calls=1))
    attempts.decide({f"call_{n}": Deny() for n in (1, 2, 3)})
    with pytest.raises(BudgetExceededError, match="max_calls=1 reached with 1"):
        attempts.ended()


# --- Refusals


def test_invalid_decisions_are_rejected_before_they_are_stored() -> None:
    _, attempts = sending(three(), say("done"))
    with pytest.raises(
        ValueError, match=r"decisions must be for suspended calls, .*, got one for 'x'"
    ):
        to_resumed(attempts.run_input, attempts.result, {"x": Approve()})
    no_decision: Json = "yes"
    with pytest.raises(TypeError, match=r"'call_1' must be Approve\(\), .*, got 'yes'"):
        to_resumed(attempts.run_input, attempts.result, {"call_1": no_decision})


def test_result_of_a_suspended_run_raises_run_suspended() -> None:
    _, attempts = sending(three(), say("done"))
    with pytest.raises(RunSuspended) as waiting:
        attempts.ended()
    assert waiting.value.suspension == attempts.suspension


def test_resumed_part_started_by_another_version_is_rejected() -> None:
    sent, attempts = sending(three(), say("done"))
    attempts.decide({"call_1": Approve()})
    other = Sent().agent(three(), say("done"), approval=lambda: "arguments")
    with pytest.raises(ChangedRunError, match="run 'run:wait-1' because it started with version"):
        execute_run(other, attempts.run_input, attempts.table, attempts.run_id)
    assert sent.amounts == [1]


def test_suspended_run_whose_tools_have_changed_is_rejected() -> None:
    _, attempts = sending(three(), say("done"))
    given = to_resumed(attempts.run_input, attempts.result, {"call_1": Approve()})
    table, other = WatchedTable(), Sent().agent(three(), say("done"))
    changed = durable(other.main_loop, lambda: prompt(tool(name="run")), types=[Note])
    with pytest.raises(ValueError, match=r"the tools \['run'\] have changed"):
        execute_run(changed, given, table, "run:wait-1")
    assert table.rows["run:wait-1"] == []
