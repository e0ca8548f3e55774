"""A durable run that waits for people ends as one that does not wait, wherever it is cut."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.test_approval import Which, asking
from support.agents import Args, Note, answers, prompt, tool
from support.programs import STATE, Program, programs, run, session
from weakincentives.adapters.core import PromptResponse
from weakincentives.contrib.durable import (
    DurableAgent,
    RecordedSteps,
    ReplayError,
    durable,
    execute_run,
    to_input,
    to_resumed,
)
from weakincentives.contrib.durable.execution import to_execution
from weakincentives.evaluation.approval import (
    Approve,
    Decision,
    Deny,
    Preview,
    ReplaceArguments,
)
from weakincentives.evaluation.errors import BudgetExceededError, DeadlineExceededError
from weakincentives.evaluation.main_loop import Execution, MainLoop
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.evaluation.suspension import RunSuspended, Suspension
from weakincentives.limits import Budget, Deadline, utc_now
from weakincentives.prompt import ToolContext, ToolResult
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say
from weakincentives.testing.scripted import SeenRequest

# Any: records and results are JSON.
type Records = list[tuple[str, Any]]


def script(*turns: AssistantMessage, call_id: str = "call_{}") -> ScriptedAdapter:
    """Says the turn that the conversation is at, as often as it is asked."""
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


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


@dataclass
class Attempts:
    """Attempts of the parts of one run; each part is a run of its own for the store."""

    agent: DurableAgent[Any]
    run_input: Any
    part: int = 0
    result: Any = None
    records: Sequence[tuple[str, Any]] = ()

    def attempt(self, kept: int = 0) -> Any:
        """Runs the present part, after a crash that has left `kept` records of it."""
        beginning = through_json(list(self.records[:kept]))
        steps = RecordedSteps([(name, record) for name, record in beginning], run_id=self.run_id)
        self.result = through_json(execute_run(self.agent, through_json(self.run_input), steps))
        self.records = steps.records
        return self.result

    @property
    def run_id(self) -> str:
        return f"run:{self.part}" if self.part else "run"

    @property
    def suspension(self) -> Suspension | None:
        text = self.result.get("suspension")
        return None if text is None else Suspension.from_json(text)

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.records]

    def decide(self, decisions: Mapping[str, Decision]) -> Any:
        """Begins the next part, with these decisions, and runs it."""
        self.run_input = to_resumed(self.run_input, self.result, decisions)
        self.part, self.records = self.part + 1, ()
        return self.attempt()

    def ended(self) -> Execution[Any]:
        return to_execution(self.agent, self.result)

    def session(self) -> Session:
        made = self.agent.session("run")
        made.restore(made.parse_snapshot(self.result["session"], types=self.agent.types))
        return made


def whole(execution: Execution[Any]) -> object:
    response: PromptResponse[Any] = execution.response
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
def test_waiting_with_any_cuts_comes_to_what_an_approver_comes_to(
    turns: list[list[tuple[Program, Any, bool]]], data: st.DataObject
) -> None:
    calls = [item for turn in turns for item in turn]

    def handler(params: Which, *, context: ToolContext) -> ToolResult[object]:
        return run(calls[params.number][0], context)

    def mode(params: Which) -> Any:
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
        kept = data.draw(st.integers(0, len(attempts.records)), label="kept")
        before = attempts.result
        attempts.attempt(kept)
        if kept == len(attempts.records):
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
    """What an at-most-once tool has really done, and how long it had."""

    amounts: list[int] = field(default_factory=list[int])
    deadlines: list[Deadline | None] = field(default_factory=list[Deadline | None])

    def agent(
        self, *turns: AssistantMessage, approval: Any = "arguments", call_id: str = "call_{}"
    ) -> DurableAgent[Any]:
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
    *turns: AssistantMessage, approval: Any = "arguments", **options: Any
) -> tuple[Sent, Attempts]:
    sent = Sent()
    attempts = Attempts(sent.agent(*turns, approval=approval), to_input(**options))
    attempts.attempt()
    return sent, attempts


def test_what_a_crash_cuts_before_the_decision_is_asked_and_not_unknown() -> None:
    sent, attempts = sending(three(), say("done"))
    assert attempts.names == ["start", "provider", "ask:run"]  # and no intent, as nothing began
    for kept in range(4):
        attempts.attempt(kept)
        suspension = attempts.suspension
        assert suspension is not None
        assert [item.call_id for item in suspension.pending] == ["call_1", "call_2", "call_3"]
    assert sent.amounts == []


def test_a_denied_call_has_not_begun_whatever_its_id_is() -> None:
    sent = Sent()
    attempts = Attempts(sent.agent(three(), say("done"), call_id="run/{}"), to_input())
    attempts.attempt()
    attempts.decide({"run~1": Approve(), "run~2": Deny("no"), "run~3": Approve()})
    attempts.attempt(attempts.names.index("tool:run") + 3)  # the intent of the second stands there
    assert attempts.names[6] == "tool:run"
    texts = [item.content for item in answers(attempts.ended().response.transcript)]
    assert texts == ["sent 1", "A person denied this call. no", "sent 3"]


@pytest.mark.parametrize("kept", range(13))
def test_each_call_runs_at_most_once_wherever_the_rest_is_cut(kept: int) -> None:
    sent, attempts = sending(three(), say("done"))
    attempts.decide({"call_1": Approve(), "call_2": Deny("no"), "call_3": Approve()})
    names = attempts.names
    assert names == ["start", *["ask:run", "intent:run", "tool:run"] * 3, "provider"]
    assert sent.amounts == [1, 3]
    undisturbed = attempts.result
    sent.amounts.clear()
    begun = names[kept - 1 : kept] == ["intent:run"]
    attempts.attempt(min(kept, len(names)))
    texts = [item.content for item in answers(attempts.ended().response.transcript)]
    assert texts[1] == "A person denied this call. no"  # also when its intent was recorded
    assert sent.amounts == [a for a in (1, 3) if kept < 2 + 3 * (a - 1) + 1]
    if begun and kept != 6:
        assert "outcome is unknown" in texts[(kept - 3) // 3]
    else:
        assert attempts.result == undisturbed


def test_some_decisions_run_the_first_calls_and_the_others_are_kept() -> None:
    sent, attempts = sending(three(), say("done"))
    attempts.decide({"call_1": Approve(), "call_3": ReplaceArguments({"a": 9})})
    assert sent.amounts == [1]
    suspension = attempts.suspension
    assert suspension is not None
    assert [item.call_id for item in suspension.pending] == ["call_2", "call_3"]
    attempts.decide({"call_2": Approve()})
    assert sent.amounts == [1, 2, 9]
    keys = [note.text for note in attempts.session()[Note]]
    assert keys == ["run:1:1", "run:2:1", "run:2:2"]


def test_replaced_arguments_that_the_tool_cannot_take_let_the_run_wait_again() -> None:
    sent, attempts = sending(three(), say("done"))
    attempts.decide({"call_1": ReplaceArguments({"a": "many"}), "call_2": Approve()})
    suspension = attempts.suspension
    assert suspension is not None
    assert [item.call_id for item in suspension.pending] == ["call_1", "call_2", "call_3"]
    assert sent.amounts == []
    attempts.decide({"call_1": Approve(), "call_3": Deny()})
    assert sent.amounts == [1, 2]


def test_calls_that_need_no_approval_run_before_the_wait_and_after_it() -> None:
    def large(params: Args) -> Any:
        return "arguments" if params.a == 2 else None

    sent, attempts = sending(three(), say("done"), approval=large)
    assert sent.amounts == [1]
    for kept in (0, len(attempts.records)):
        attempts.attempt(kept)
        suspension = attempts.suspension
        assert suspension is not None
        assert [item.call_id for item in suspension.pending] == ["call_2"]
    attempts.decide({"call_2": Approve()})
    assert sent.amounts[-2:] == [2, 3]
    assert attempts.ended().text == "done"


def test_the_version_tells_agents_with_other_approvals_apart() -> None:
    modes: list[Any] = [None, "arguments", lambda: "arguments"]
    assert len({Sent().agent(approval=mode).version for mode in modes}) == 3


def test_a_run_inside_a_call_cannot_wait_and_the_model_reads_why() -> None:
    sent = Sent()
    inner = sent.agent().prompt

    def nest(params: Args, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult(context.evaluate(inner()).text)

    turns = [call(("nest", {})), call(("run", {"a": 1})), say("done")]
    agent = durable(MainLoop(ScriptedAdapter(turns)), lambda: prompt(tool(nest, name="nest")))
    result = execute_run(agent, to_input(), RecordedSteps(run_id="run"))
    [answer] = answers(to_execution(agent, result).response.transcript)
    assert (answer.success, sent.amounts) == (False, [])
    assert "waits for the approval of 1 call (run)" in answer.content


def test_a_decision_counts_for_one_call_also_in_a_replay() -> None:
    """Providers may give the calls of all turns the same ids."""
    sent = Sent()
    adapter = script(call(("run", {"a": 1})), call(("run", {"a": 2})), say("done"), call_id="same")
    attempts = Attempts(replace(sent.agent(), adapter=adapter), to_input())
    attempts.attempt()
    attempts.decide({"same": Approve()})
    for kept in range(len(attempts.records) + 1):
        attempts.attempt(kept)
        suspension = attempts.suspension
        assert suspension is not None
        assert [item.arguments for item in suspension.pending] == ['{"a": 2}']
    assert set(sent.amounts) == {1}


# --- Limits


def test_time_in_which_a_run_waits_does_not_count() -> None:
    limits: list[Any] = [{"deadline": Deadline.after(3600)}, {"budget": Budget(max_seconds=3600)}]
    for limit in limits:
        sent, attempts = sending(three(), say("done"), **limit)
        assert 3500 < attempts.result["seconds_left"] <= 3600
        attempts.result["seconds_left"] -= 3000  # as if the first part had taken long
        before = utc_now()
        attempts.decide({"call_1": Approve()})
        [deadline] = sent.deadlines
        assert deadline is not None
        left = deadline.remaining(before).total_seconds()
        assert 500 < left < 3000  # and as much of it as the part itself has taken is gone
        assert 500 < attempts.result["seconds_left"] <= left


def test_a_run_whose_time_was_up_when_it_began_to_wait_ends_with_the_decision() -> None:
    _, attempts = sending(three(), say("done"), deadline=Deadline.after(3600))
    attempts.result["seconds_left"] = -1.0
    attempts.decide({"call_1": Approve()})
    with pytest.raises(DeadlineExceededError):
        attempts.ended()


def test_what_a_run_has_used_before_it_waits_counts() -> None:
    _, attempts = sending(three(), say("done"), budget=Budget(max_calls=1))
    attempts.decide({f"call_{n}": Deny() for n in (1, 2, 3)})
    with pytest.raises(BudgetExceededError, match="max_calls=1 reached with 1"):
        attempts.ended()


# --- Refusals


def test_wrong_decisions_are_refused_before_they_are_stored() -> None:
    _, attempts = sending(three(), say("done"))
    with pytest.raises(ValueError, match=r"call 'x' does not wait; decide on \['call_1'"):
        to_resumed(attempts.run_input, attempts.result, {"x": Approve()})
    no_decision: Any = "yes"
    with pytest.raises(TypeError, match=r"'call_1' is 'yes'; pass Approve\(\)"):
        to_resumed(attempts.run_input, attempts.result, {"call_1": no_decision})


def test_the_result_of_a_run_that_waits_is_no_execution() -> None:
    _, attempts = sending(three(), say("done"))
    with pytest.raises(RunSuspended) as waiting:
        attempts.ended()
    assert waiting.value.suspension == attempts.suspension


def test_other_records_are_refused_after_a_wait_too() -> None:
    _, attempts = sending(three(), say("done"))
    attempts.decide({"call_1": Approve()})
    records = [*attempts.records]
    records[1], records[2] = records[2], records[1]
    with pytest.raises(ReplayError):
        execute_run(attempts.agent, attempts.run_input, RecordedSteps(records, run_id="run:1"))
