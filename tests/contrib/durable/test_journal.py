"""A later attempt of a run replays its records and runs the steps that have none."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import cycle
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.agents import Note
from support.deadlines import with_growing_limit
from support.durable_runs import STORY, Answer, Facts, Job, Model, Seen, agent, calls
from weakincentives.adapters.core import LoopAdapter
from weakincentives.content import text_of
from weakincentives.contrib.durable import (
    DurableAgent,
    RecordedSteps,
    ReplayError,
    durable,
    execute_run,
)
from weakincentives.contrib.durable.execution import to_execution, to_input
from weakincentives.contrib.durable.journal import StepFailedError
from weakincentives.errors import SerdeError
from weakincentives.evaluation.errors import (
    DeadlineExceededError,
    PromptEvaluationError,
    ThrottleError,
)
from weakincentives.evaluation.inner_loop import InnerLoopConfig
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage, UserMessage
from weakincentives.limits import Budget, Deadline, utc_now
from weakincentives.prompt import MarkdownSection, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say
from weakincentives.testing.scripted import Reply, SeenRequest
from weakincentives.visibility import SectionVisibility

INPUT = to_input(Job("it"))

# Any: records and results are JSON.
type Records = list[tuple[str, Any]]


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    return Facts(tmp_path / "facts")


def through_json(records: Sequence[tuple[str, Any]]) -> Records:
    return [(name, json.loads(json.dumps(record))) for name, record in records]


def attempt(
    agent: DurableAgent[Any], records: Sequence[tuple[str, Any]] = (), run_input: Any = INPUT
) -> tuple[Any, Records]:
    """Runs an attempt that begins with these records; returns the result and all records."""
    steps = RecordedSteps(through_json(records), run_id="run")
    return execute_run(agent, run_input, steps), steps.records


def without_times(records: Records) -> Records:
    """What does not differ from attempt to attempt: neither times nor the tokens of intents."""
    return [
        (
            name,
            None
            if name.startswith("intent:")
            else {key: record[key] for key in ("digest", "outcome", "state")},
        )
        for name, record in records
    ]


def inline(durable_agent: DurableAgent[Any]) -> tuple[Any, str]:
    """The same without a record: what came of it, and the session."""
    session = durable_agent.session("run")
    execution = durable_agent.main_loop.execute(
        durable_agent.prompt().bind(Job("it")), session=session
    )
    return execution, session.snapshot().to_json()


both = pytest.mark.parametrize("dynamic", [True, False])


# --- Chats


def chatting(facts: Facts, *, dynamic: bool) -> DurableAgent[Any]:
    """An agent that opens and closes a section, and runs one of its tools, in two turns."""

    def work(params: Job, *, context: ToolContext) -> ToolResult[object]:
        facts.add("worked", params.name)
        return ToolResult("Worked.")

    hidden = MarkdownSection(
        title="More",
        key="more",
        template="All about more.",
        summary="There is more.",
        visibility=SectionVisibility.SUMMARY,
        tools=[Tool[Job, object](name="work", description="Works.", handler=work)],
    )
    shown = MarkdownSection(title="Task", key="task", template="Chat.")
    template = PromptTemplate(ns="t", key="chat", sections=[shown, hidden], closable=True)
    key = {"section_key": "more"}

    def model(seen: SeenRequest) -> AssistantMessage:
        reply = {
            ("Hi", 0): call(("read_section", key), ("read_section", key)),
            ("Hi", 1): call(("work", {"name": "a"})),
            ("Go on", 0): call(("work", {"name": "b"}), ("close_section", key)),
        }
        words, said = "", 0
        for message in seen.messages:
            match message:
                case UserMessage(content):
                    words, said = text_of(content), 0
                case AssistantMessage():
                    said += 1
                case _:
                    pass
        if not dynamic and (words, said) == ("Hi", 0) and "work" in seen.tool_names:
            said = 1  # the run has started again with the section open
        step = reply.get((words, said), say(f"{words}: done"))
        calls = [
            replace(each, call_id=f"{words}:{said}:{number}")
            for number, each in enumerate(step.tool_calls)
        ]
        return replace(step, tool_calls=tuple(calls))

    adapter = ScriptedAdapter(cycle([model]), dynamic_tools=dynamic)
    return durable(MainLoop(adapter), template.bind)


@both
def test_a_chat_goes_on_in_another_run_wherever_the_runs_were_cut(
    facts: Facts, *, dynamic: bool
) -> None:
    conversation, texts = None, []
    plain, session = None, Session(session_id="run")
    for words in ("Hi", "Go on", "Bye"):
        chat = chatting(facts, dynamic=dynamic)
        run_input = to_input(message=words, conversation=conversation)
        whole, records = attempt(chat, run_input=json.loads(json.dumps(run_input)))
        for count in range(len(records)):
            again = chatting(facts, dynamic=dynamic)
            assert attempt(again, records[:count], run_input)[0] == whole
        execution = to_execution(chat, whole)
        conversation = execution.conversation
        texts.append(execution.text)
        plain = chatting(facts, dynamic=dynamic).main_loop.execute(
            chat.prompt(),
            session=session,
            message=words,
            conversation=None if plain is None else plain.conversation,
        )
        assert conversation == plain.conversation
    assert texts == ["Hi: done", "Go on: done", "Bye: done"]
    assert conversation is not None
    records_of_more = [each for each in conversation.sections if each.path == ("more",)]
    assert [each.visibility for each in records_of_more] == [SectionVisibility.SUMMARY]


def test_a_run_that_reached_a_limit_has_its_conversation(facts: Facts) -> None:
    chat = chatting(facts, dynamic=True)
    result, _ = attempt(chat, run_input=to_input(message="Hi", budget=Budget(max_calls=1)))
    with pytest.raises(PromptEvaluationError) as caught:
        to_execution(chat, result)
    stopped = caught.value.conversation
    result, _ = attempt(chat, run_input=to_input(conversation=stopped))
    assert to_execution(chat, result).text == "Hi: done"
    assert facts.read() == [["worked", "a"]]


# --- What is recorded


@both
def test_a_recorded_run_is_the_plain_run(facts: Facts, *, dynamic: bool) -> None:
    durable_agent = agent(facts, dynamic=dynamic)
    execution, session = inline(durable_agent)
    result, _ = attempt(durable_agent)
    replayed = to_execution(durable_agent, result)
    assert replayed.output == execution.output == Answer(12)
    assert replayed == execution
    assert result["session"] == session
    assert replayed.restarts == (0 if dynamic else 1)


def test_the_names_of_steps_are_pinned(facts: Facts) -> None:
    """They are compared with records that other versions wrote."""
    _, records = attempt(agent(facts))
    assert [name for name, _ in records] == [
        *("start", "provider", "tool:note", "tool:fail", "intent:send", "tool:send"),
        *("provider", "tool:unknown", "tool:note", "tool:look", "provider", "tool:read_section"),
        *(
            "provider",
            "tool:late",
            "tool:replace",
            "intent:later",
            "tool:later",
            "provider",
            "provider",
        ),
    ]
    assert all(set(record) == {"digest", "outcome", "state", "time"} for _, record in records)


def test_a_tool_step_holds_the_answer_and_what_became_of_the_session(facts: Facts) -> None:
    steps = dict(attempt(agent(facts))[1])
    assert steps["tool:read_section"]["outcome"]["call"]["tools"] == ["late", "later"]
    assert set(steps["tool:replace"]["state"]["set"]) == {
        "support.agents:Note",
        "support.durable_runs:Seen",
    }
    assert steps["tool:late"]["state"]["added"] == {"support.durable_runs:Amount": [{"a": 5}]}
    assert steps["tool:send"]["state"]["added"] == {"support.agents:Note": [{"text": "sent 3"}]}
    assert set(steps["provider"]["state"]) == set()


def test_what_a_handler_evaluates_is_a_part_of_its_own_step() -> None:
    inner = PromptTemplate(ns="tests", key="inner", sections=[])

    def nest(params: Job, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult(context.adapter.evaluate(inner.bind(), session=context.session).text)

    own = Tool[Any, Any](
        name="nest", description="x", handler=nest, params_type=Job, result_type=object
    )
    outer = MarkdownSection(title="Task", key="task", template="Go.", tools=[own])
    template = PromptTemplate(ns="tests", key="outer", sections=[outer])
    script = [calls(("nest", '{"name": "x"}')), say("from within"), say("done")]
    durable_agent = durable(MainLoop(ScriptedAdapter(script)), template.bind)
    result, records = attempt(durable_agent, run_input=to_input())
    assert [name for name, _ in records] == ["start", "provider", "tool:nest", "provider"]
    assert records[2][1]["outcome"]["call"]["message"]["content"] == "from within"
    assert records[2][1]["outcome"]["nested_usage"]["calls"] == 1
    assert result["usage"]["input_tokens"] == 30
    assert attempt(durable_agent, records, to_input())[0] == result


def test_a_replay_counts_what_nested_runs_have_used_in_the_budget() -> None:
    inner = PromptTemplate(ns="tests", key="inner", sections=[])
    tool = Tool.from_prompt(inner, name="inner")
    outer = MarkdownSection(title="Task", key="task", template="Go.", tools=[tool])
    template = PromptTemplate(ns="tests", key="outer", sections=[outer])
    script = [calls(("inner", '{"message": "x"}')), say("from within"), say("late")]
    durable_agent = durable(MainLoop(ScriptedAdapter(script)), template.bind)
    run_input = to_input(budget=Budget(max_calls=2))
    result, records = attempt(durable_agent, run_input=run_input)
    assert "max_calls=2 reached with 2" in result["error"]["message"]
    assert attempt(durable_agent, records, run_input)[0] == result


def test_each_call_of_a_turn_counts_once_in_the_budget_of_a_durable_run() -> None:
    def look(params: Job, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult("seen")

    tool = Tool[Any, Any](
        name="look", description="x", handler=look, params_type=Job, result_type=object
    )
    task = MarkdownSection(title="Task", key="task", template="Go.", tools=[tool])
    template = PromptTemplate(ns="tests", key="looks", sections=[task])
    script = [calls(*[("look", f'{{"name": "{name}"}}') for name in "abc"]), say("done")]
    for max_tool_calls, ends in ((3, True), (2, False)):
        durable_agent = durable(MainLoop(ScriptedAdapter(list(script))), template.bind)
        run_input = to_input(budget=Budget(max_tool_calls=max_tool_calls))
        result, records = attempt(durable_agent, run_input=run_input)
        assert [name for name, _ in records].count("tool:look") == max_tool_calls
        assert ("error" not in result or not result["error"]) is ends


def test_calls_that_could_run_at_once_are_a_step_each(facts: Facts) -> None:
    durable_agent = agent(facts, story=[calls(("note", "{}"), ("look", "{}")), STORY[-1]])
    durable_agent.adapter.config = InnerLoopConfig(parallel_tool_calls="isolated")
    _, records = attempt(durable_agent)
    assert [name for name, _ in records] == [
        "start",
        "provider",
        "tool:note",
        "tool:look",
        "provider",
    ]


# --- Replay


@both
def test_a_life_that_starts_anywhere_ends_the_same_and_repeats_nothing(
    facts: Facts, *, dynamic: bool
) -> None:
    durable_agent = agent(facts, dynamic=dynamic)
    whole, records = attempt(durable_agent)
    once = facts.read()
    for count in range(len(records) + 1):
        if count and records[count - 1][0].startswith("intent:"):
            continue  # whose outcome is unknown: see the next test
        facts.path.unlink(missing_ok=True)
        result, again = attempt(durable_agent, records[:count])
        assert facts.read() == once[len(once) - len(facts.read()) :]
        assert result == whole
        assert without_times(again) == without_times(records)


def test_an_at_most_once_call_that_was_begun_is_answered_as_unknown(facts: Facts) -> None:
    durable_agent = agent(facts)
    _, records = attempt(durable_agent)
    at = [name for name, _ in records].index("intent:send")
    facts.path.unlink()
    result, again = attempt(durable_agent, records[: at + 1])
    assert "send" not in {words[1] for words in facts.read()}
    answer = again[at + 1][1]["outcome"]["call"]["message"]
    assert answer["success"] is False
    assert "outcome is unknown" in answer["content"]
    assert "sent 3" not in result["session"]


def test_after_a_restart_of_evaluation_an_at_most_once_answer_from_the_record_is_known(
    facts: Facts,
) -> None:
    story = (*STORY[:1], *STORY[2:])
    durable_agent = agent(facts, story=story, dynamic=False)
    whole, records = attempt(durable_agent)
    names = [name for name, _ in records]
    again = names.index("tool:send", names.index("tool:read_section"))
    facts.path.unlink()
    assert attempt(durable_agent, records[:again])[0] == whole
    assert [words for words in facts.read() if words[1] == "send"] == []
    assert records[again][1]["outcome"]["call"]["message"]["content"].startswith("Sent.")


def swaps(records: Records) -> list[Records]:
    swapped = [
        [*records[:at], records[at + 1], records[at], *records[at + 2 :]]
        for at in range(len(records) - 1)
    ]
    return [mutant for mutant in swapped if without_times(mutant) != without_times(records)]


def test_no_two_steps_can_change_places(facts: Facts) -> None:
    durable_agent = agent(facts)
    _, records = attempt(durable_agent)
    mutants = swaps(records)
    assert len(mutants) >= len(records) - 2
    for mutant in mutants:
        with pytest.raises(ReplayError):
            attempt(durable_agent, mutant)


def test_a_record_of_another_prompt_is_refused(facts: Facts) -> None:
    durable_agent = agent(facts)
    _, records = attempt(durable_agent)
    other = agent(facts, extra=[Tool(name="new", handler=None, params_type=Job)])
    assert other.version != durable_agent.version
    with pytest.raises(
        ReplayError, match="'start' of run 'run' was recorded for another request or prompt"
    ):
        attempt(other, records)


def test_a_record_of_other_params_is_refused(facts: Facts) -> None:
    durable_agent = agent(facts)
    _, records = attempt(durable_agent)
    with pytest.raises(ReplayError, match="'provider'"):
        attempt(durable_agent, records, to_input(Job("something else")))


def test_the_version_tells_prompts_and_effects_apart_and_nothing_else(tmp_path: Path) -> None:
    durable_agent, same = agent(Facts(tmp_path / "a")), agent(Facts(tmp_path / "b"))
    assert durable_agent.version == same.version

    def other(effect: Any) -> DurableAgent[Any]:
        tool = Tool[Any, Any](
            name="t", description="x", params_type=Job, result_type=object, effect=effect
        )
        return agent(Facts(tmp_path / "a"), extra=[tool])

    assert len({durable_agent.version, other("pure").version, other("at_most_once").version}) == 3


# --- A crash between the effect and its record


class CrashError(BaseException):
    pass


@both
@pytest.mark.parametrize("place", ["before provider", "in provider", "before tool", "in tool"])
def test_a_crash_repeats_at_most_the_step_that_it_hit_and_with_the_same_key(
    facts: Facts, place: str, *, dynamic: bool
) -> None:
    whole, _ = attempt(agent(Facts(facts.path.with_suffix(".plain")), dynamic=dynamic))
    plain = Counter(map(tuple, Facts(facts.path.with_suffix(".plain")).read()))
    at = 0
    while True:
        facts.path.unlink(missing_ok=True)
        passed = 0

        def crash(here: str) -> None:
            nonlocal passed
            passed += here == place
            if here == place and passed == at + 1:  # noqa: B023 - called in this turn of the loop alone
                raise CrashError

        steps = RecordedSteps(run_id="run")
        try:
            execute_run(agent(facts, dynamic=dynamic, hook=crash), INPUT, steps)
        except CrashError:
            pass
        else:
            assert at > 5
            return
        result, _ = attempt(agent(facts, dynamic=dynamic), steps.records)
        happened = Counter(map(tuple, facts.read()))
        repeated, lost = happened - plain, plain - happened
        assert set(repeated) <= set(plain)  # the idempotency key is a part of the fact
        if steps.records[-1][0].startswith("intent:"):
            assert (sum(repeated.values()), sum(lost.values())) == (0, place == "before tool")
        else:
            assert (sum(repeated.values()), sum(lost.values())) == (place.startswith("in"), 0)
            assert result == whole
        at += 1


# --- Failures and limits are values


def failing(error: Reply) -> DurableAgent[Any]:
    made = PromptTemplate(ns="tests", key="fails", sections=[])
    return durable(MainLoop(ScriptedAdapter([error])), made.bind)


def throttled() -> ThrottleError:
    error = ThrottleError(
        "slow down", phase="request", code="rate_limit", provider="p", status=429, remedy="wait"
    )
    error.retry_after = timedelta(seconds=7)
    return error


@pytest.mark.parametrize(
    "error",
    [throttled(), PromptEvaluationError("down", phase="request", code="server_error", status=500)],
    ids=["throttled", "failed"],
)
def test_a_failure_of_the_provider_is_recorded_and_final(error: PromptEvaluationError) -> None:
    given = to_input()
    result, records = attempt(failing(error), run_input=given)
    again, _ = attempt(failing(ValueError("never asked")), records, given)
    assert again == result
    with pytest.raises(type(error)) as caught:
        to_execution(failing(error), result)
    assert str(caught.value) == str(error)
    assert getattr(caught.value, "retry_after", None) == getattr(error, "retry_after", None)
    assert caught.value.turns == 1


def test_a_text_that_no_file_could_hold_is_recorded_without_what_is_broken_in_it(
    facts: Facts,
) -> None:
    story = [
        calls(("n\udc00te", '{"a": "\udc00"}')),
        replace(STORY[-1], text=' {"total": 12}\udc00'),
    ]
    with pytest.raises(PromptEvaluationError, match="not the declared output"):
        to_execution(agent(facts), attempt(agent(facts, story=[*story, *story[1:] * 3]))[0])


def test_what_is_no_failure_of_an_evaluation_ends_every_life_the_same() -> None:
    steps = RecordedSteps()
    for error in (RuntimeError("a bug"), RuntimeError("another")):
        with pytest.raises(StepFailedError, match="RuntimeError: a bug"):
            execute_run(
                failing(error), to_input(), RecordedSteps(steps.records) if steps.records else steps
            )


def wait_for(deadline: Deadline) -> None:
    while not deadline.has_passed(utc_now()):
        sleep(0.01)


def test_limits_are_decided_by_recorded_times(facts: Facts) -> None:
    durable_agent = agent(facts)
    budget = Budget(max_seconds=100, max_calls=50)

    def run_in_time(seconds: float) -> tuple[Any, Records, Any] | None:
        deadline = Deadline.after(seconds)
        given = to_input(Job("it"), deadline=deadline, budget=budget)
        result, records = attempt(durable_agent, run_input=given)
        wait_for(deadline)
        return None if "error" in result else (result, records, given)

    result, records, given = with_growing_limit(run_in_time, 0.3)
    assert attempt(durable_agent, records, given)[0] == result


def test_a_request_that_fails_once_the_deadline_has_passed_ends_at_it_in_every_life() -> None:
    def run_until(seconds: float) -> tuple[Any, Records, Any] | None:
        deadline = Deadline.after(seconds)

        def slow(seen: SeenRequest) -> Exception:
            wait_for(deadline)
            return PromptEvaluationError("no answer in time", phase="request", code="timeout")

        given = to_input(deadline=deadline)
        result, records = attempt(failing(slow), run_input=given)
        names = [name for name, _ in records]
        return (result, records, given) if names == ["start", "provider"] else None

    result, records, given = with_growing_limit(run_until, 0.3)
    never = failing(ValueError("never asked"))
    again, _ = attempt(never, records, given)
    assert again == result
    with pytest.raises(DeadlineExceededError, match="during a request"):
        to_execution(never, result)


def test_a_spent_budget_ends_the_run_with_its_error_and_session(facts: Facts) -> None:
    durable_agent = agent(facts)
    result, _ = attempt(durable_agent, run_input=to_input(Job("it"), budget=Budget(max_calls=1)))
    with pytest.raises(PromptEvaluationError, match="max_calls=1"):
        to_execution(durable_agent, result)
    assert "sent 3" in result["session"]


# --- Sessions


def test_a_run_goes_on_from_a_session_and_hands_it_back(facts: Facts) -> None:
    durable_agent, before = agent(facts), Session()
    before.dispatch(Note("from before"))
    result, _ = attempt(durable_agent, run_input=to_input(Job("it"), session=before))
    after = durable_agent.session("x")
    after.restore(after.parse_snapshot(result["session"], types=durable_agent.types))
    assert [note.text for note in after[Note]] == ["from before", "sent 3"]
    assert after[Seen].latest() == Seen(10)


@dataclass(frozen=True)
class Stray:
    text: str


def test_state_that_no_life_could_read_back_is_refused_when_it_is_written() -> None:
    def stray(params: Job, *, context: Any) -> ToolResult[object]:
        context.session.dispatch(Stray("x"))
        return ToolResult("ok")

    own = Tool[Any, Any](
        name="stray", description="x", handler=stray, params_type=Job, result_type=object
    )
    facts = Facts(Path("/nonexistent"))
    durable_agent = agent(facts, extra=[own])
    durable_agent = replace(
        durable_agent, adapter=ScriptedAdapter([calls(("stray", '{"name": "x"}')), say("{}")])
    )
    with pytest.raises(
        SerdeError, match="Stray: no type of that name is known here; pass it in types="
    ):
        attempt(durable_agent)


@dataclass(frozen=True)
class Loose:
    """State that JSON may change."""

    what: str | bytes


def loose(*state: Loose, handler_state: Loose) -> DurableAgent[Any]:
    def keep(params: Job, *, context: Any) -> ToolResult[object]:
        context.session.dispatch(handler_state)
        return ToolResult("ok")

    def seeded(run_id: str) -> Session:
        session = Session(session_id=run_id)
        session[Loose].seed(*state)
        return session

    own = Tool[Any, Any](
        name="keep", description="x", handler=keep, params_type=Job, result_type=object
    )
    durable_agent = agent(Facts(Path("/nonexistent")), extra=[own])
    adapter = ScriptedAdapter([calls(("keep", '{"name": "x"}')), say('{"total": 1}')])
    return replace(
        durable_agent,
        adapter=adapter,
        types=frozenset({*durable_agent.types, Loose}),
        session=seeded,
    )


def test_state_that_json_would_change_is_refused_at_the_step_that_made_it() -> None:
    steps = RecordedSteps()
    with pytest.raises(SerdeError, match=r"Loose\.0\.what: JSON makes a str of this bytes"):
        execute_run(loose(handler_state=Loose(b"x")), INPUT, steps)
    assert [name for name, _ in steps.records] == ["start", "provider"]
    result, _ = attempt(loose(handler_state=Loose("x")))
    assert json.loads(result["session"])["slices"][f"{__name__}:Loose"] == [{"what": "x"}]


def test_state_that_json_would_change_is_refused_before_a_run_begins() -> None:
    steps = RecordedSteps([])
    with pytest.raises(SerdeError, match=r"Loose\.0\.what: JSON makes a str of this bytes"):
        execute_run(loose(Loose(b"x"), handler_state=Loose("x")), INPUT, steps)
    assert steps.records == []


@dataclass
class Twice:
    total: int

    def __post_init__(self) -> None:
        self.total *= 2


def test_an_answer_is_made_of_its_text_once() -> None:
    template = PromptTemplate[Twice](ns="tests", key="twice")
    durable_agent = durable(MainLoop(ScriptedAdapter([say('{"total": 2}')])), template.bind)
    execution = to_execution(durable_agent, execute_run(durable_agent, to_input(), RecordedSteps()))
    assert (
        execution.response.output
        == MainLoop(ScriptedAdapter([say('{"total": 2}')]))
        .execute(template.bind(), session=Session())
        .response.output
    )
    assert execution.response.output is not None
    assert execution.response.output.total == 4


def test_params_that_json_would_change_are_refused_when_they_are_given() -> None:
    with pytest.raises(SerdeError, match=r"what: JSON makes a str of this bytes"):
        to_input(Loose(b"x"))


def test_an_adapter_with_a_loop_of_its_own_is_refused() -> None:
    class Own(ScriptedAdapter):
        def evaluate(self, *args: Any, **options: Any) -> Any:
            raise AssertionError

    with pytest.raises(
        TypeError, match="Own runs its own loop, which cannot be recorded; use a LoopAdapter"
    ):
        durable(MainLoop(Own([])), PromptTemplate(ns="a", key="b").bind)


# --- Laws

NAMES = ["note", "fail", "send", "look", "replace", "late", "later", "read_section", "nonsense"]
CALL = st.tuples(
    st.sampled_from(NAMES), st.sampled_from(["{}", '{"a": 4}', '{"section_key": "more"}', "{"])
)
TURN = st.lists(CALL, min_size=1, max_size=4).map(lambda pairs: calls(*pairs))


@given(turns=st.lists(TURN, max_size=5), dynamic=st.booleans(), data=st.data())
def test_any_conversation_cut_anywhere_goes_on_as_if_it_had_not_been(
    turns: list[AssistantMessage], *, dynamic: bool, data: st.DataObject
) -> None:
    facts = Facts(Path("/dev/null"))
    durable_agent = agent(facts, story=[*turns, STORY[-1]], dynamic=dynamic)
    execution, session = inline(durable_agent)
    whole, records = attempt(durable_agent)
    assert (whole["session"], whole["text"]) == (session, execution.text)
    count = data.draw(st.integers(0, len(records)))
    if count and records[count - 1][0].startswith("intent:"):
        count -= 1
    result, again = attempt(durable_agent, records[:count])
    assert result == whole
    assert without_times(again) == without_times(records)


def test_calls_that_were_refused_or_repeated_before_a_cut_are_so_after_it() -> None:
    story = [
        calls(("later", "{}"), ("send", '{"a": 3}'), ("read_section", '{"section_key": "more"}')),
        calls(("send", '{"a": 3}'), ("later", '{"a": 7}')),
        STORY[-1],
    ]
    durable_agent = agent(Facts(Path("/dev/null")), story=story, dynamic=False)
    whole, records = attempt(durable_agent)
    for count in range(len(records)):
        if not records[count - 1][0].startswith("intent:"):
            assert attempt(durable_agent, records[:count])[0] == whole


def test_records_grow_with_the_steps_and_not_with_the_conversation(facts: Facts) -> None:
    def size(turns: int) -> int:
        _, records = attempt(
            agent(facts, story=[*[calls(("send", '{"a": 1}'))] * turns, STORY[-1]])
        )
        return len(json.dumps(records))

    small, middle, large = size(20), size(40), size(80)
    assert large - middle == pytest.approx(2 * (middle - small), rel=0.02)


def test_a_plain_run_has_no_journal() -> None:
    assert Model.journal is LoopAdapter.journal
