"""A durable run that crashed resumes from its log and ends like an uninterrupted one."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import cycle, pairwise
from pathlib import Path
from time import sleep
from typing import Any, Never

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.agents import Args, Note, answers, prompt, tool
from support.cut_runs import FACES, Face, Outcome, play
from support.deadlines import with_growing_limit
from support.durable_cuts import INPUT, CrashError, perform, play_durable
from support.durable_runs import (
    STORY,
    Answer,
    Facts,
    Held,
    Job,
    Json,
    Seen,
    WatchedTable,
    agent,
    calls,
    has_unknown,
    kind_of,
)
from support.run_trees import Script, Step, Tree, outside
from support.sizes import FULL, TODAY
from weakincentives.content import text_of
from weakincentives.contrib.durable import (
    MemoryLogTable,
    durable,
    to_input,
)
from weakincentives.contrib.durable.agent import AnyAgent
from weakincentives.contrib.durable.execution import to_execution
from weakincentives.errors import SerdeError
from weakincentives.evaluation.errors import (
    BudgetExceededError,
    ChangedRunError,
    DeadlineExceededError,
    PromptEvaluationError,
    ThrottleError,
)
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage, Message, UserMessage
from weakincentives.evaluation.response import Completed, Execution, TextDelta
from weakincentives.evaluation.stored_log import Place, Row, StoppedAttempt
from weakincentives.limits import Budget, Deadline, TokenUsage, utc_now
from weakincentives.prompt import (
    MarkdownSection,
    OutputRejected,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.prompt.errors import VisibilityExpansionRequired
from weakincentives.prompt.tool import Effect
from weakincentives.runtime.events import ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say
from weakincentives.testing.scripted import Reply, SeenRequest


@pytest.fixture
def facts(tmp_path: Path) -> Facts:
    return Facts(tmp_path / "facts")


def attempt(
    agent: AnyAgent, held: Held | None = None, run_input: Json = INPUT
) -> tuple[Json, WatchedTable]:
    """Performs an attempt after a crash that left these rows; returns the result and the table."""
    table = WatchedTable(held or {})
    return perform(agent, table, run_input), table


def lines(held: Held) -> list[tuple[str, Json]]:
    """Returns the path and the line of each row."""
    return [(row.path, json.loads(row.line)) for rows in held.values() for row in rows]


def entries(held: Held) -> list[Json]:
    return [line["entry"] for _, line in lines(held)]


def kinds(held: Held) -> list[str]:
    return [entry["kind"] for entry in entries(held)]


def inline(durable_agent: AnyAgent) -> tuple[Execution[Answer], str]:
    """Executes the same run without a log; returns its result and the session."""
    session = durable_agent.session("run")
    execution = durable_agent.main_loop.execute(
        durable_agent.prompt().bind(Job("it")), session=session
    )
    return execution, session.snapshot().to_json()


both = pytest.mark.parametrize("dynamic", [True, False])
faces = pytest.mark.parametrize("face", FACES)


# --- Chats


def said_so_far(messages: Sequence[Message]) -> tuple[str, int]:
    """Returns the user's last message, and how often the model has answered since then."""
    words, said = "", 0
    for message in messages:
        match message:
            case UserMessage(content, repair=False):
                words, said = text_of(content), 0
            case AssistantMessage():
                said += 1
            case _:
                pass
    return words, said


# --- What is stored


@both
@faces
def test_durable_run_matches_the_plain_run(facts: Facts, face: Face, *, dynamic: bool) -> None:
    durable_agent = agent(facts, dynamic=dynamic)
    execution, session = inline(durable_agent)
    result = perform(durable_agent, MemoryLogTable(), face=face)
    stored = to_execution(durable_agent, result)
    assert stored.output == execution.output == Answer(12)
    assert stored == execution
    assert result["session"] == session
    assert stored.restarts == (0 if dynamic else 1)


@pytest.mark.parametrize("face", ["stream", "stream_async"])
def test_interrupted_streamed_run_streams_only_unstored_text(facts: Facts, face: Face) -> None:
    whole, table = attempt(agent(facts))
    for cut, texts in ((0, ["no json", '{"total": 12}']), (-2, ['{"total": 12}']), (-1, [])):
        events: list[Any] = []
        again = WatchedTable(table.held[cut])
        assert perform(agent(facts), again, face=face, events=events) == whole
        assert [event.text for event in events if isinstance(event, TextDelta)] == texts
        assert isinstance(events[-1], Completed)
        assert events[-1].response.text == whole["text"]
        assert again.held[-1] == table.held[-1]


def test_log_entry_format_is_pinned(facts: Facts) -> None:
    """Databases contain older rows, so a new format needs a new `_LOG_FORMAT`."""
    _, table = attempt(agent(facts))
    held = table.held[-1]
    assert [(row.path, row.position) for row in held["run"]] == [("", n) for n in range(19)]
    assert [
        (entry["kind"], entry.get("key"), entry["call"]["name"] if "call" in entry else None)
        for entry in entries(held)
    ] == [
        ("rendered", None, None),
        ("answered", None, None),
        ("called", "1/c0", "note"),
        ("called", "1/c1", "fail"),
        ("began", "1/c2", None),
        ("called", "1/c2", "send"),
        ("answered", None, None),
        ("called", "2/c0", "nonsense"),
        ("called", "2/c1", "note"),
        ("called", "2/c2", "look"),
        ("answered", None, None),
        ("called", "3/c0", "read_section"),
        ("answered", None, None),
        ("called", "4/c0", "late"),
        ("called", "4/c1", "replace"),
        ("began", "4/c2", None),
        ("called", "4/c2", "later"),
        ("answered", None, None),
        ("answered", None, None),
    ]
    assert all(set(line) == {"entry", "state", "head"} for _, line in lines(held))
    assert {entry["kind"]: {*entry} - {"kind"} for entry in entries(held)} == {
        "rendered": {"cause", "section_keys", "reason", "conversation"},
        "answered": {"reply", "cost"},
        "began": {"key"},
        "called": {
            *("key", "call", "answer", "error", "sections", "request", "state", "is_complete"),
            "has_run",
        },
    }


def test_row_of_a_call_has_its_answer_and_session_changes(facts: Facts) -> None:
    _, table = attempt(agent(facts))
    by_tool = {
        line["entry"]["call"]["name"]: line
        for _, line in lines(table.held[-1])
        if line["entry"]["kind"] == "called"
    }
    assert by_tool["read_section"]["entry"]["sections"]["tools"] == ["late", "later"]
    assert set(by_tool["replace"]["state"]["set"]) == {
        "support.agents:Note",
        "support.durable_runs:Seen",
    }
    assert by_tool["late"]["state"]["added"] == {"support.durable_runs:Amount": [{"a": 5}]}
    assert by_tool["send"]["state"]["added"] == {"support.agents:Note": [{"text": "sent 3"}]}
    assert by_tool["fail"]["entry"]["answer"]["success"] is False
    assert "added" not in by_tool["fail"]["state"]
    others = [line for _, line in lines(table.held[-1]) if line["entry"]["kind"] != "called"]
    [opened] = [line["state"] for line in others if line["state"]]  # before the next request
    assert set(opened["added"]) == {"weakincentives.visibility:VisibilityOverrides"}


@both
def test_every_entry_is_stored_before_the_next_request_or_call(
    facts: Facts, *, dynamic: bool
) -> None:
    table, places = WatchedTable(), list[tuple[str, int]]()

    def note(place: str) -> None:
        places.append((place, len(table.rows["run"])))

    perform(agent(facts, dynamic=dynamic, hook=note), table)
    found = kinds(table.held[-1])
    begins = [n for n, kind in enumerate(found) if kind == "rendered"]  # stored with its answer
    asked = [size + (size in begins) for place, size in places if place == "before provider"]
    assert asked == [n for n, kind in enumerate(found) if kind == "answered"]
    called = [size for place, size in places if place == "before tool"]
    assert {found[size] for size in called} == {"called"}
    assert {n + 1 for n, kind in enumerate(found) if kind == "began"} <= {*called}


def test_nested_runs_have_their_own_rows_and_usage() -> None:
    inner = PromptTemplate(ns="tests", key="inner", sections=[])

    def nest(params: Job, *, context: ToolContext) -> ToolResult[object]:
        texts = [context.evaluate(inner.bind()).text for _ in range(2)]
        return ToolResult(" and ".join(texts))

    own = Tool(name="nest", handler=nest)
    script = [calls(("nest", '{"name": "x"}')), say("one"), say("two"), say("done")]
    durable_agent = durable(MainLoop(ScriptedAdapter(script)), lambda: prompt(own))
    result, table = attempt(durable_agent, run_input=to_input())
    held = table.held[-1]
    assert [(row.path, row.position) for row in held["run"]] == [
        *[("", n) for n in range(4)],
        *[("1/c0/1:", n) for n in range(2)],
        *[("1/c0/2:", n) for n in range(2)],
    ]
    assert [line["head"] for _, line in lines(held)] == [
        *[None] * 4,
        *[{"tool": "nest", "arguments": '{"name": "x"}', "ns": "tests", "key": "inner"}] * 4,
    ]
    assert entries(held)[2]["answer"]["content"] == "one and two"
    assert result["usage"]["input_tokens"] == 40
    assert attempt(durable_agent, held, to_input())[0] == result


def test_parallel_calls_are_stored_together(facts: Facts) -> None:
    story = [calls(("note", "{}"), ("look", "{}"), ("send", "{}")), STORY[-1]]
    durable_agent = agent(facts, story=story)
    durable_agent.adapter.config = RunConfig(parallel_tool_calls="isolated")
    whole, table = attempt(durable_agent)
    assert [kinds(held)[len(before.get("run", ())) :] for before, held in pairs(table.held)] == [
        ["rendered", "answered"],
        ["called", "called"],
        ["began"],
        ["called"],
        ["answered"],
    ]
    for held in table.held:
        result, again = attempt(durable_agent, held)
        if not has_unknown(held):
            assert (result, again.held[-1]) == (whole, table.held[-1])


def test_rows_of_a_restarted_run_replace_its_and_its_nested_runs_rows() -> None:
    table = MemoryLogTable()
    number = table.begin("run", "v").number
    root, called, sibling = "", "1/a/1:", "1/a/10:"
    inside = "1/a/1:1/b/1:"
    for path in (root, called, inside, sibling):
        table.append("run", number, [Row(path, 0, "old"), Row(path, 1, "old")], first=True)

    def found() -> set[Row]:
        return {*table.rows["run"]}

    everything = found()
    table.append("run", number, [Row(called, 1, "new")], first=True)  # resumes from its first row
    assert found() == everything - {Row(called, 1, "old")} | {Row(called, 1, "new")}
    table.append("run", number, [Row(called, 2, "new")], first=False)
    assert Row(inside, 0, "old") in found()
    table.append("run", number, [Row(called, 0, "again")], first=True)
    kept = {row for row in everything if row.path in (root, sibling)}
    assert found() == kept | {Row(called, 0, "again")}
    table.append("run", number, [Row(root, 0, "again")], first=True)
    assert {Row(called, 0, "again"), Row(sibling, 1, "old")} < found()


def pairs(held: Sequence[Held]) -> list[tuple[Held, Held]]:
    return list(pairwise(held))


def test_log_size_grows_with_steps_and_not_with_the_conversation(facts: Facts) -> None:
    def size(turns: int) -> int:
        story = [*[calls(("send", '{"a": 1}'))] * turns, STORY[-1]]
        _, table = attempt(agent(facts, story=story))
        found = entries(table.held[-1])
        assert [n for n, entry in enumerate(found) if entry.get("conversation")] == [0]
        return sum(len(row.line) for row in table.rows["run"])

    small, middle, large = size(20), size(40), size(80)
    assert large - middle == pytest.approx(2 * (middle - small), rel=0.02)


# --- After a cut

REPEATABLE = ("note", "fail", "look", "replace", "late")


def facts_of(held: Held) -> int:
    """Returns the number of `Facts` lines for each stored entry with a known outcome."""
    done = 0
    for entry in entries(held):
        match entry:
            case {"kind": "answered" | "began"}:
                done += 1
            case {"kind": "called", "call": {"name": name}, "answer": answer}:
                done += name in REPEATABLE and (answer["success"] or name == "fail")
            case _:
                pass
    return done


@both
def test_interrupted_run_ends_the_same_and_repeats_nothing(facts: Facts, *, dynamic: bool) -> None:
    durable_agent = agent(facts, dynamic=dynamic)
    whole, table = attempt(durable_agent)
    once = facts.read()
    assert len(once) > 10
    for count in range(len(table.rows["run"]) + 1):
        held = {"run": table.held[-1]["run"][:count]}
        if has_unknown(held):
            continue  # see the next test
        facts.path.unlink(missing_ok=True)
        result, again = attempt(durable_agent, held)
        assert result == whole
        assert facts.read() == once[facts_of(held) :]
        assert again.held[-1] == table.held[-1]


def test_started_at_most_once_call_is_answered_as_unknown_after_a_crash(facts: Facts) -> None:
    durable_agent = agent(facts)
    _, table = attempt(durable_agent)
    at = kinds(table.held[-1]).index("began")
    facts.path.unlink()
    result, again = attempt(durable_agent, {"run": table.held[-1]["run"][: at + 1]})
    assert "send" not in {words[1] for words in facts.read()}
    answer = entries(again.held[-1])[at + 1]["answer"]
    assert answer["success"] is False
    assert "outcome is unknown" in answer["content"]
    assert "sent 3" not in result["session"]


def test_rejected_and_repeated_calls_replay_the_same_after_a_crash() -> None:
    story = [
        calls(("later", "{}"), ("send", '{"a": 3}'), ("read_section", '{"section_key": "more"}')),
        calls(("send", '{"a": 3}'), ("later", '{"a": 7}')),
        STORY[-1],
    ]
    durable_agent = agent(Facts(Path("/dev/null")), story=story, dynamic=False)
    whole, table = attempt(durable_agent)
    for held in table.held:
        if not has_unknown(held):
            assert attempt(durable_agent, held)[0] == whole


def test_run_of_another_version_is_rejected_and_left_unchanged(facts: Facts) -> None:
    durable_agent = agent(facts)
    whole, table = attempt(durable_agent)
    other = agent(facts, extra=[Tool(name="new", handler=None, params_type=Job)])
    assert other.version != durable_agent.version
    facts.path.unlink()
    held = table.held[-1]
    with pytest.raises(
        ChangedRunError,
        match=f"run 'run' because it started with version {durable_agent.version} of its agent, "
        f"and this is {other.version}; finish it with the code that started it",
    ):
        perform(other, table)
    assert (facts.read(), {"run": table.rows["run"]}) == ([], held)
    assert perform(durable_agent, table) == whole


def test_version_depends_only_on_prompts_and_effects(tmp_path: Path) -> None:
    durable_agent, same = agent(Facts(tmp_path / "a")), agent(Facts(tmp_path / "b"))
    assert durable_agent.version == same.version

    def other(effect: Effect) -> AnyAgent:
        own = Tool(name="t", params_type=Job, result_type=object, effect=effect)
        return agent(Facts(tmp_path / "a"), extra=[own])

    assert len({durable_agent.version, other("pure").version, other("at_most_once").version}) == 3


def test_each_answer_is_checked_by_accept_once_despite_crashes() -> None:
    checked: list[str] = []

    def accept(output: Answer, /, *, context: ToolContext) -> None:
        checked.append(str(output.total))
        context.session.dispatch(Note(f"checked {output.total}"))
        if output.total < 0:
            raise OutputRejected("Too small.")

    def bound() -> PromptTemplate[Answer]:
        task = MarkdownSection(title="Task", template="Go.", state=[Note])
        return PromptTemplate[Answer](ns="tests", key="checked", sections=[task], accept=accept)

    def model(seen: SeenRequest) -> AssistantMessage:
        said = [message for message in seen.messages if isinstance(message, AssistantMessage)]
        return say(f'{{"total": {len(said) - 2}}}')

    durable_agent = durable(MainLoop(ScriptedAdapter(cycle([model]))), lambda: bound().bind())
    whole, table = attempt(durable_agent, run_input=to_input())
    assert (to_execution(durable_agent, whole).output, checked) == (Answer(0), ["-2", "-1", "0"])
    assert whole["session"].count("checked") == 1
    called = [entry for entry in entries(table.held[-1]) if entry["kind"] == "called"]
    assert [entry["answer"]["success"] for entry in called] == [False, False, True]
    for held in table.held:
        checked.clear()
        result, again = attempt(durable_agent, held, to_input())
        assert (result, again.held[-1]) == (whole, table.held[-1])
        assert checked == ["-2", "-1", "0"][kinds(held).count("called") :]


def test_nested_run_in_accept_is_requested_once_despite_crashes() -> None:
    judge = prompt(text="Judge.").template

    def accept(output: Answer, /, *, context: ToolContext) -> None:
        verdict = context.evaluate(judge.bind(), message=str(output.total)).text
        context.session.dispatch(Note(verdict))
        if verdict == "bad":
            raise OutputRejected("Too small.")

    task = MarkdownSection(title="Task", template="Go.", state=[Note])
    template = PromptTemplate[Answer](ns="tests", key="judged", sections=[task], accept=accept)

    def model(seen: SeenRequest) -> AssistantMessage:
        if "Judge." in seen.messages[0].text:
            return say("good" if seen.messages[-1].text == "1" else "bad")
        said = [message for message in seen.messages if isinstance(message, AssistantMessage)]
        return say(f'{{"total": {len(said)}}}')

    def made() -> tuple[AnyAgent, ScriptedAdapter]:
        adapter = ScriptedAdapter(cycle([model]))
        return durable(MainLoop(adapter), template.bind), adapter

    durable_agent, _ = made()
    whole, table = attempt(durable_agent, run_input=to_input())
    assert to_execution(durable_agent, whole).output == Answer(1)
    assert {row.path for row in table.rows["run"]} == {"", "1/<accept>/1:", "2/<accept>/1:"}
    for held in table.held:
        durable_agent, adapter = made()
        result, again = attempt(durable_agent, held, to_input())
        assert (result, again.held[-1]) == (whole, table.held[-1])
        assert len(adapter.requests) == 4 - answered(held)


# --- A run cut anywhere, by its kind

INNER = Script(((Step("note", 1),), (Step("look", 0), Step("note", 5))))
ASKS = Script(((Step("note", 2),), (Step("ask", 4), Step("note", 6)), (Step("ask", 8),)))
PAYS = Script(((Step("look", 1), Step("pay", 101)), (Step("note", 5),), (Step("pay", 102),)))
DEEP = Script(((Step("note", 3),), (Step("delegate", 1, INNER), Step("ask", 5), Step("pay", 103))))
OPENS = Script(((Step("note", 1),), (Step("pay", 104), Step("open", 0)), (Step("keep", 2),)))
OPENS_AND_CLOSES = Script(((Step("open", 0), Step("read", 0)), (Step("keep", 2), Step("close", 0))))
ASKS_AND_PAYS = Script(((Step("ask", 4),), (Step("pay", 105),), (Step("note", 1),)))
MANY = Script(tuple([(Step("note", n), Step("note", n + 4)) for n in range(8)]))
FAILS = Script(((Step("note", 1),), (Step("note", 2),)), fails_at=1)
CHAT = [replace(MANY, turns=MANY.turns[n : n + 2]) for n in range(3)]


def one_turn(*steps: Step) -> Script:
    return Script((steps,))


def around(*inner: Script) -> Script:
    """Returns a run with a turn of several calls, each with a nested run."""
    return one_turn(*[Step("delegate", n, script) for n, script in enumerate(inner)])


def tree(*scripts: Script, features: str = "", max_tokens: int | None = None) -> Tree:
    return Tree(scripts, frozenset(features.split()), max_tokens)


TREES: Mapping[str, Tree] = {
    "chat": tree(INNER, Script(((Step("note", 1), Step("look", 0)), (Step("fail", 1),)))),
    "coroutines": tree(around(INNER, PAYS), features="coroutines"),
    "media": tree(Script(((Step("look", 1),), (Step("note", 2),))), INNER, features="media"),
    "sections": tree(OPENS_AND_CLOSES),
    "restart": tree(OPENS, features="restart"),
    "restart that repeats a payment": tree(OPENS, features="restart repeats"),
    "restart in a turn that reads": tree(
        one_turn(Step("note", 0), Step("open", 0), Step("read", 0)), features="restart"
    ),
    "restart inside": tree(around(OPENS, INNER), features="restart"),
    "restart in parallel": tree(around(OPENS, INNER), features="restart parallel"),
    "repair": tree(replace(INNER, answers=("wrong", "asks", "wrong", "right")), features="repair"),
    "rejection": tree(replace(INNER, answers=("rejected", "asks", "right")), features="accept"),
    "repair inside": tree(around(replace(INNER, answers=("wrong", "right"))), features="repair"),
    "compaction": tree(MANY, features="compaction"),
    "compaction of a chat": tree(*CHAT, features="compaction"),
    "compaction inside": tree(around(MANY), features="compaction"),
    "fallback": tree(FAILS, features="fallback"),
    "fallback inside": tree(around(FAILS, INNER), features="fallback"),
    "failure": tree(FAILS, INNER, features="failure"),
    "failure inside": tree(around(FAILS, INNER), features="failure"),
    "budget": tree(INNER, features="budget", max_tokens=100),
    "budget spent inside": tree(around(INNER), features="budget", max_tokens=300),
    "nested": tree(around(DEEP, PAYS)),
    "waiting": tree(one_turn(Step("note", 9), Step("ask", 1), Step("note", 4), Step("ask", 2))),
    "waiting inside": tree(around(INNER, ASKS)),
    "waiting two levels down": tree(around(around(ASKS_AND_PAYS))),
    "parallel": tree(
        one_turn(Step("note", 1), Step("look", 0), Step("fail", 1), Step("note", 4)),
        features="parallel",
    ),
    "nested in parallel": tree(around(INNER, PAYS), features="parallel"),
    "coroutines in parallel": tree(around(INNER, PAYS), features="parallel coroutines"),
    "waiting in parallel": tree(around(INNER, ASKS, PAYS), features="parallel"),
}


def comparable(end: Outcome) -> Outcome:
    """Returns an outcome without files, facts and requests, which differ after a crash."""
    return end._replace(files={}, facts=[], asked=[])


def places(held: Held) -> set[tuple[str, str, int, str]]:
    """Returns the places of entries; after a crash, pending calls may be in another part."""
    return {
        (run_id.partition(":")[0], row.path, row.position, kind_of(row))
        for run_id, rows in held.items()
        for row in rows
    }


def payments(held: Held) -> int:
    """Returns the number of started calls that must not run twice."""
    return kinds(held).count("began")


def answered(held: Held) -> int:
    """Returns the number of stored provider answers."""
    replies = [entry["reply"] for entry in entries(held) if entry["kind"] == "answered"]
    return sum(reply["kind"] == "assistant" for reply in replies)


# unless the run is full, a tree gets one of the two faces, and the other one the next day
CUT_RUNS = [
    pytest.param(tree, face, id=f"{name}-{face}")
    for number, (name, tree) in enumerate(TREES.items())
    for place, face in enumerate(("evaluate", "stream_async"), number + TODAY)
    if FULL or place % 2
]


@pytest.mark.parametrize(("tree", "face"), CUT_RUNS)
def test_run_interrupted_anywhere_ends_the_same_and_repeats_nothing(tree: Tree, face: Face) -> None:
    with outside() as out:
        plain = play(tree, out)
    table = WatchedTable()
    with outside() as out:
        whole = play_durable(tree, out, table=table, faces=[face])
    assert whole._replace(files={}) == plain._replace(files={})
    assert len(table.held) > 3
    for held in table.held:
        again = WatchedTable(held)
        with outside() as out:
            end = play_durable(tree, out, table=again, faces=[face])
        assert Counter(end.facts) <= Counter(whole.facts)
        assert len(end.facts) == payments(table.held[-1]) - payments(held)
        if has_unknown(held):
            continue  # the model calls again, and is told that the outcome is unknown
        assert comparable(end) == comparable(whole)
        assert places(again.held[-1]) == places(table.held[-1])
        assert Counter(end.asked) <= Counter(whole.asked)
        assert len(end.asked) == answered(table.held[-1]) - answered(held)


def test_concurrent_nested_runs_of_a_handler_continue_after_a_crash() -> None:
    inner = [PromptTemplate(ns="tests", key=f"part-{n}", sections=[]) for n in range(2)]

    async def both_runs(params: Args, *, context: ToolContext) -> ToolResult[object]:
        runs = [
            context.evaluate_async(template.bind(), session=Session(), message=f"part {n}")
            for n, template in enumerate(inner)
        ]
        first, second = await asyncio.gather(*runs)
        return ToolResult(f"{first.text}, {second.text}")

    def model(seen: SeenRequest) -> AssistantMessage:
        words, said = said_so_far(seen.messages)
        if words.startswith("part"):
            return say(f"done with {words}")
        return say("all done") if said else call(("both", {}))

    def made() -> tuple[AnyAgent, ScriptedAdapter]:
        adapter = ScriptedAdapter(cycle([model]))
        return durable(MainLoop(adapter), lambda: prompt(tool(both_runs, name="both"))), adapter

    durable_agent, _ = made()
    whole, table = attempt(durable_agent, run_input=to_input())
    [found] = [entry for entry in entries(table.held[-1]) if entry["kind"] == "called"]
    assert found["answer"]["content"] == "done with part 0, done with part 1"
    second_alone = {
        "run": [row for row in table.held[-1]["run"] if not row.path or "/2:" in row.path][:2]
        + [row for row in table.held[-1]["run"] if "/2:" in row.path]
    }
    for held in [*table.held, second_alone]:
        durable_agent, adapter = made()
        result, again = attempt(durable_agent, held, to_input())
        assert (result, again.held[-1]) == (whole, table.held[-1])
        assert len(adapter.requests) == 4 - answered(held)


# --- A crash between an effect and its row


@both
@pytest.mark.parametrize("place", ["before provider", "in provider", "before tool", "in tool"])
def test_crash_repeats_at_most_the_interrupted_step_with_the_same_key(
    facts: Facts, place: str, *, dynamic: bool
) -> None:
    undisturbed = Facts(facts.path.with_suffix(".plain"))
    whole, _ = attempt(agent(undisturbed, dynamic=dynamic))
    plain = Counter(map(tuple, undisturbed.read()))
    assert ("tool", "note", "run:1/c0") in plain
    at = 0
    while True:
        facts.path.unlink(missing_ok=True)
        passed = 0

        def crash(here: str) -> None:
            nonlocal passed
            passed += here == place
            if here == place and passed == at + 1:  # noqa: B023 - only called in this iteration
                raise CrashError

        table = WatchedTable()
        try:
            perform(agent(facts, dynamic=dynamic, hook=crash), table)
        except CrashError:
            pass
        else:
            assert at > 5
            return
        began = has_unknown(table.held[-1])
        result = perform(agent(facts, dynamic=dynamic), table)
        happened = Counter(map(tuple, facts.read()))
        repeated, lost = happened - plain, plain - happened
        assert set(repeated) <= set(plain)  # the idempotency key is part of the fact
        if began:
            assert (sum(repeated.values()), sum(lost.values())) == (0, place == "before tool")
        else:
            assert (sum(repeated.values()), sum(lost.values())) == (place.startswith("in"), 0)
            assert result == whole
        at += 1


def test_crash_in_a_nested_run_repeats_its_calls_with_the_same_keys(facts: Facts) -> None:
    keys: list[str] = []

    def work(params: Args, *, context: ToolContext) -> ToolResult[object]:
        keys.append(context.idempotency_key)
        if params.a == 2 and len(keys) == 2:
            raise CrashError
        return ToolResult("worked")

    def model(seen: SeenRequest) -> AssistantMessage:
        words, said = said_so_far(seen.messages)
        if words == "inside":
            return call(("work", {"a": said + 1})) if said < 2 else say("worked twice")
        return call(("delegate", {"message": "inside"})) if said < 1 else say("done")

    adapter = ScriptedAdapter(cycle([model]))
    inner = prompt(tool(work, name="work")).template
    delegate = Tool.from_prompt(inner, name="delegate")
    durable_agent, table = durable(MainLoop(adapter), lambda: prompt(delegate)), WatchedTable()
    with pytest.raises(CrashError):
        perform(durable_agent, table, to_input())
    asked = len(adapter.requests)
    assert perform(durable_agent, table, to_input())["text"] == "done"
    first, second = "run:1/call_1/1:1/call_2", "run:1/call_1/1:2/call_3"
    assert keys == [first, second, first, second]
    assert (asked, len(adapter.requests)) == (3, 5)  # none of them twice


# --- Transactions


class Retrying(WatchedTable):
    """A table whose database fails when a transaction commits, and then retries it."""

    def transact(
        self, name: str, place: Place, perform: Callable[[], bool], append: Callable[[], None]
    ) -> None:
        self.performed = [perform(), perform(), perform()]
        rows, held = [*self.rows["run"]], [*self.held]
        append()
        self.rows["run"], self.held = rows, held
        append()


@pytest.mark.parametrize("success", [True, False])
@faces
def test_retried_transactional_call_is_recorded_once(face: Face, success: bool) -> None:
    tries: list[str] = []

    def pay(params: Args, *, context: ToolContext) -> ToolResult[object]:
        tries.append(context.idempotency_key)
        context.session.dispatch(Note(f"paid {params.a}"))
        return ToolResult(f"try {len(tries)}", success=success)

    own = replace(tool(pay, name="pay"), effect="transactional")
    task = MarkdownSection(title="Task", template="Pay.", tools=[own], state=[Note])
    template = PromptTemplate(ns="tests", key="pays", sections=[task])
    script = [call(("pay", {"a": 1})), say("done")]
    durable_agent = durable(MainLoop(ScriptedAdapter(script)), template.bind, types=[Note])
    table = Retrying()
    whole = perform(durable_agent, table, to_input(), face)
    assert table.performed == [success] * 3
    assert tries == ["run:1/call_1"] * 3
    assert kinds(table.held[-1]) == ["rendered", "answered", "called", "answered"]
    assert [entry["answer"]["content"] for entry in entries(table.held[-1])[2:3]] == ["try 3"]
    assert whole["session"].count("paid 1") == success
    tries.clear()
    for held in table.held[-2:]:
        again = durable(MainLoop(ScriptedAdapter([say("done")])), template.bind, types=[Note])
        assert attempt(again, held, to_input())[0] == whole
    assert tries == []


def test_transactional_call_that_requests_sections_is_committed() -> None:
    def pay(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note(f"paid {params.a}"))
        raise VisibilityExpansionRequired(
            "more", requested_overrides={}, reason="", section_keys=()
        )

    own = replace(tool(pay, name="pay"), effect="transactional")
    script = [call(("pay", {"a": 1})), say("done")]
    table = Retrying()
    loop = MainLoop(ScriptedAdapter(script))
    perform(durable(loop, lambda: prompt(own), types=[Note]), table, to_input())
    assert table.performed == [True] * 3


def test_transactional_call_is_replayed_with_its_result_after_a_restart() -> None:
    def pay(params: Args, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult("paid", Note("receipt"))

    def watched(session_id: str) -> Session:
        session = Session(session_id=session_id)
        session.bus.subscribe(ToolInvoked, events.append)
        return session

    events: list[ToolInvoked] = []
    own = replace(tool(pay, name="pay"), effect="transactional")
    task = MarkdownSection(title="Task", template="Pay.", tools=[own])
    more = MarkdownSection(
        title="More",
        template="The rest.",
        summary="In short.",
        visibility=SectionVisibility.SUMMARY,
        tools=[tool(name="late")],
    )
    template = PromptTemplate(ns="tests", key="pays", sections=[task, more])
    pays, opens = call(("pay", {"a": 1})), call(("read_section", {"section_key": "more"}))
    adapter = ScriptedAdapter([pays, opens, pays, say("done")], dynamic_tools=False)
    durable_agent = durable(MainLoop(adapter), template.bind, session=watched)
    assert perform(durable_agent, MemoryLogTable(), to_input())["text"] == "done"
    paid = [event for event in events if event.name == "pay"]
    assert [(event.replayed, event.result.value) for event in paid] == [
        (False, Note("receipt")),
        (True, Note("receipt")),
    ]


# --- Attempts


@pytest.mark.parametrize("place", ["before provider", "in provider", "before tool", "in tool"])
@faces
def test_newer_attempt_stops_the_older_one_at_its_next_entry(
    facts: Facts, place: str, face: Face
) -> None:
    table, durable_agent = WatchedTable(), agent(facts)

    def hook(here: str) -> None:
        if here == place and not stopped:
            stopped.append(len(table.held))
            table.begin("run", durable_agent.version)

    stopped: list[int] = []
    whole, undisturbed = attempt(agent(Facts(Path("/dev/null"))))
    with pytest.raises(StoppedAttempt, match="run 'run' continues in a newer attempt") as caught:
        perform(agent(facts, hook=hook), table, face=face)
    assert not caught.value.cancelled
    assert stopped == [len(table.held)]  # nothing was stored any more
    assert perform(agent(facts), table, face=face) == whole
    assert table.held[-1] == undisturbed.held[-1]


@faces
def test_complete_second_attempt_during_the_first_keeps_its_rows(facts: Facts, face: Face) -> None:
    table, results = WatchedTable(), list[Json]()

    def hook(here: str) -> None:
        if here == "in tool" and not results:
            results.append(None)
            results[0] = perform(agent(facts), table)

    whole, undisturbed = attempt(agent(Facts(Path("/dev/null"))))
    with pytest.raises(StoppedAttempt):
        perform(agent(facts, hook=hook), table, face=face)
    assert results == [whole]
    assert table.held[-1] == undisturbed.held[-1]
    assert perform(agent(facts), table) == whole


class FailingTable(WatchedTable):
    """A table that fails at the first entries of a nested run as long as it has an error."""

    def __init__(self, error: BaseException | None) -> None:
        super().__init__()
        self.error = error

    def append(self, run_id: str, attempt: int, rows: Sequence[Row], *, first: bool) -> None:
        if self.error is not None and rows[0].path:
            raise self.error
        super().append(run_id, attempt, rows, first=first)


@faces
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    "error", [StoppedAttempt("run", cancelled=False), OSError("disk full")], ids=["stopped", "full"]
)
def test_unstored_nested_run_ends_the_run_even_if_a_handler_catches_it(
    error: BaseException, face: Face, *, parallel: bool, asynchronous: bool
) -> None:
    inner = PromptTemplate(ns="tests", key="inner", sections=[])
    table, caught = FailingTable(error), list[Exception]()

    def nest(params: Args, *, context: ToolContext) -> ToolResult[object]:
        try:
            return ToolResult(context.evaluate(inner.bind()).text)
        except Exception as failure:
            caught.append(failure)
            return ToolResult("caught")

    async def nest_async(params: Args, *, context: ToolContext) -> ToolResult[object]:
        try:
            return ToolResult((await context.evaluate_async(inner.bind())).text)
        except Exception as failure:
            caught.append(failure)
            return ToolResult("caught")

    def model(request: SeenRequest) -> AssistantMessage:
        if "nest" not in request.tool_names:
            return say("inside")
        count = 2 if parallel else 1
        return say("done") if answers(request.messages) else call(*[("nest", {})] * count)

    config = RunConfig(parallel_tool_calls="isolated" if parallel else "in_order")
    own = tool(nest_async if asynchronous else nest, name="nest")
    adapter = ScriptedAdapter(cycle([model]), config=config)
    durable_agent = durable(MainLoop(adapter), lambda: prompt(own))
    with pytest.raises(type(error), match=str(error)):
        perform(durable_agent, table, to_input(), face)
    assert "called" not in kinds(table.rows)
    assert isinstance(error, Exception) or not caught  # StoppedAttempt is not an Exception
    table.error = None
    assert perform(durable_agent, table, to_input(), face)["text"] == "done"


# --- Failures and limits are values


def failing(*replies: Reply) -> AnyAgent:
    made = PromptTemplate(ns="tests", key="fails", sections=[])
    return durable(MainLoop(ScriptedAdapter(list(replies))), made.bind)


def throttled() -> ThrottleError:
    error = ThrottleError(
        "slow down", phase="request", code="rate_limit", provider="p", status=429, remedy="wait"
    )
    error.retry_after = timedelta(seconds=7)
    return error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (throttled(), "slow down"),
        (PromptEvaluationError("down", phase="request", code="server_error", status=500), "down"),
        (replace(say("Half an ans"), finish="length"), "cut off at its length limit"),
        (replace(say("I will not."), finish="refusal"), "the model refused: I will not."),
    ],
    ids=["throttled", "failed", "cut off", "refused"],
)
def test_provider_failure_is_stored_and_final(error: Any, message: str) -> None:
    result, table = attempt(failing(error), run_input=to_input())
    assert kinds(table.held[-1]) == ["rendered", "answered"]
    again, _ = attempt(failing(ValueError("never asked")), table.held[-1], to_input())
    assert again == result
    kind = ThrottleError if isinstance(error, ThrottleError) else PromptEvaluationError
    with pytest.raises(kind, match=message) as caught:
        to_execution(failing(), result)
    assert getattr(caught.value, "retry_after", None) == getattr(error, "retry_after", None)
    assert caught.value.turns == 1
    assert caught.value.usage == getattr(error, "usage", TokenUsage())
    recovered, _ = attempt(failing(say("fine")), table.held[-2], to_input())  # nothing had failed
    assert recovered["text"] == "fine"


def test_lone_surrogates_are_removed_from_stored_text(
    facts: Facts,
) -> None:
    story = [
        calls(("n\udc00te", '{"a": "\udc00"}')),
        replace(STORY[-1], text=' {"total": 12}\udc00'),
    ]
    result, table = attempt(agent(facts, story=[*story, *story[1:] * 3]))
    with pytest.raises(PromptEvaluationError, match="not the declared output"):
        to_execution(agent(facts), result)
    assert "\\udc00" not in "".join([row.line for row in table.rows["run"]])


def test_unexpected_exception_propagates_and_stores_nothing() -> None:
    table, bug = WatchedTable(), RuntimeError("a bug")
    with pytest.raises(RuntimeError, match="a bug") as caught:
        perform(failing(bug), table, to_input())
    assert caught.value is bug
    assert table.rows == {"run": []}
    assert perform(failing(say("mended")), table, to_input())["text"] == "mended"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_run_continues_from_its_log_after_a_failing_progress_function(
    facts: Facts, asynchronous: bool
) -> None:
    whole, _ = attempt(agent(facts))
    once, table = facts.read(), WatchedTable()
    facts.path.unlink()
    face: Face = "stream_async" if asynchronous else "stream"

    class Closing(list[Any]):
        def append(self, event: Any) -> None:
            if isinstance(event, TextDelta):
                raise BrokenPipeError("the page was closed")

    with pytest.raises(BrokenPipeError, match="the page was closed"):
        perform(agent(facts), table, face=face, events=Closing())
    assert perform(agent(facts), table) == whole
    again = Counter(map(tuple, facts.read())) - Counter(map(tuple, once))
    assert again == Counter([("provider", "it", "first:4")])  # whose answer was not stored


@pytest.mark.parametrize(("max_tool_calls", "ends"), [(3, True), (2, False)])
def test_each_tool_call_is_budgeted_once_despite_crashes(max_tool_calls: int, ends: bool) -> None:
    def model(seen: SeenRequest) -> AssistantMessage:
        called = answers(seen.messages)
        return say("done") if called else calls(*[("probe", f'{{"a": {n}}}') for n in range(3)])

    durable_agent = durable(MainLoop(ScriptedAdapter(cycle([model]))), lambda: prompt(tool()))
    run_input = to_input(budget=Budget(max_tool_calls=max_tool_calls))
    result, table = attempt(durable_agent, run_input=run_input)
    assert kinds(table.held[-1]).count("called") == max_tool_calls
    assert ("error" not in result) is ends
    for held in table.held:
        again, later = attempt(durable_agent, held, run_input)
        assert (again, later.held[-1]) == (result, table.held[-1])


def wait_for(deadline: Deadline) -> None:
    while not deadline.has_passed(utc_now()):
        sleep(0.01)


def test_finished_run_replays_after_its_deadline_and_an_unfinished_one_raises(
    facts: Facts,
) -> None:
    durable_agent = agent(facts)
    budget = Budget(max_seconds=100, max_calls=50)

    def run_in_time(seconds: float) -> tuple[Json, WatchedTable, Json] | None:
        deadline = Deadline.after(seconds)
        given = to_input(Job("it"), deadline=deadline, budget=budget)
        result, table = attempt(durable_agent, run_input=given)
        wait_for(deadline)
        return None if "error" in result else (result, table, given)

    result, table, given = with_growing_limit(run_in_time, 0.3)
    facts.path.unlink()
    assert attempt(durable_agent, table.held[-1], given)[0] == result
    for held in table.held[:-1]:
        with pytest.raises(DeadlineExceededError):
            to_execution(durable_agent, attempt(durable_agent, held, given)[0])
    assert facts.read() == []


def test_request_failing_after_the_deadline_is_not_sent_again() -> None:
    def run_until(seconds: float) -> tuple[Json, WatchedTable, Json] | None:
        deadline = Deadline.after(seconds)

        def slow(seen: SeenRequest) -> Exception:
            wait_for(deadline)
            return PromptEvaluationError("no answer in time", phase="request", code="timeout")

        given = to_input(deadline=deadline)
        result, table = attempt(failing(slow), run_input=given)
        return (result, table, given) if "during a request" in str(result["error"]) else None

    result, table, given = with_growing_limit(run_until, 0.3)
    never = failing(ValueError("never asked"))
    with pytest.raises(DeadlineExceededError, match="during a request"):
        to_execution(never, result)
    for held in table.held:
        with pytest.raises(DeadlineExceededError):
            to_execution(never, attempt(never, held, given)[0])


def test_max_seconds_of_a_budget_start_with_the_first_attempt(facts: Facts) -> None:
    deadlines: list[Deadline | None] = []

    def work(params: Args, *, context: ToolContext) -> ToolResult[object]:
        deadlines.append(context.deadline)
        if len(deadlines) == 1:
            raise CrashError
        return ToolResult("worked")

    adapter = ScriptedAdapter([call(("work", {})), say("done")])
    durable_agent = durable(MainLoop(adapter), lambda: prompt(tool(work, name="work")))
    table, given = MemoryLogTable(), to_input(budget=Budget(max_seconds=3600))
    with pytest.raises(CrashError):
        perform(durable_agent, table, given)
    began = utc_now()
    perform(durable_agent, table, given)
    first, second = deadlines
    assert first is not None
    assert first == second
    assert first.expires_at <= began + timedelta(hours=1)


def test_exceeded_budget_ends_the_run_with_its_error_and_session(facts: Facts) -> None:
    durable_agent = agent(facts)
    run_input = to_input(Job("it"), budget=Budget(max_calls=1))
    result, table = attempt(durable_agent, run_input=run_input)
    with pytest.raises(BudgetExceededError, match="max_calls=1"):
        to_execution(durable_agent, result)
    assert "sent 3" in result["session"]
    assert attempt(durable_agent, table.held[-1], run_input)[0] == result


# --- Sessions


def test_run_continues_from_a_session_and_returns_it(facts: Facts) -> None:
    durable_agent, before = agent(facts), Session()
    before.dispatch(Note("from before"))
    run_input = to_input(Job("it"), session=before)
    result, table = attempt(durable_agent, run_input=run_input)
    after = durable_agent.session("x")
    after.restore(after.parse_snapshot(result["session"], types=durable_agent.types))
    assert [note.text for note in after[Note]] == ["from before", "sent 3"]
    assert after[Seen].latest() == Seen(10)
    for held in table.held:
        if not has_unknown(held):
            assert attempt(durable_agent, held, run_input)[0] == result


@dataclass(frozen=True)
class Stray:
    text: str


def test_state_of_an_unknown_type_raises_serde_error_when_stored() -> None:
    def stray(params: Job, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Stray("x"))
        return ToolResult("ok")

    own = Tool(name="stray", handler=stray)
    script = [calls(("stray", '{"name": "x"}')), say("{}")]
    durable_agent = durable(MainLoop(ScriptedAdapter(script)), lambda: prompt(own))
    table = WatchedTable()
    with pytest.raises(
        SerdeError, match="Stray: no type of that name is known here; pass it in types="
    ):
        perform(durable_agent, table, to_input())
    assert kinds(table.held[-1]) == ["rendered", "answered"]


@dataclass(frozen=True)
class Loose:
    """State that JSON may change."""

    what: str | bytes


def loose(*state: Loose, handler_state: Loose, inside: bool = False) -> AnyAgent:
    """Returns an agent whose tool stores state, itself or in a nested run."""

    def keep(params: Job, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(handler_state)
        return ToolResult("ok")

    def seeded(run_id: str) -> Session:
        session = Session(session_id=run_id)
        session[Loose].seed(*state)
        return session

    own = Tool(name="keep", handler=keep)
    script = [calls(("keep", '{"name": "x"}')), say("1")]
    if inside:
        script = [calls(("delegate", '{"message": "x"}')), *script, say("2")]
        own = Tool.from_prompt(prompt(own).template, name="delegate")
    return durable(
        MainLoop(ScriptedAdapter(script)), lambda: prompt(own), types=[Loose], session=seeded
    )


@pytest.mark.parametrize("inside", [False, True])
def test_state_that_json_would_change_is_rejected_at_its_tool_call(inside: bool) -> None:
    table = WatchedTable()
    with pytest.raises(SerdeError, match=r"Loose\.0\.what: JSON makes a str of this bytes"):
        perform(loose(handler_state=Loose(b"x"), inside=inside), table, to_input())
    own = [row for row in table.rows["run"] if not row.path]
    assert kinds({"run": own}) == ["rendered", "answered"]
    result, _ = attempt(loose(handler_state=Loose("x"), inside=inside), run_input=to_input())
    assert json.loads(result["session"])["slices"][f"{__name__}:Loose"] == [{"what": "x"}]


def test_state_that_json_would_change_is_rejected_before_the_run_starts() -> None:
    table = WatchedTable()
    with pytest.raises(SerdeError, match=r"Loose\.0\.what: JSON makes a str of this bytes"):
        perform(loose(Loose(b"x"), handler_state=Loose("x")), table, to_input())
    assert table.rows == {}


@dataclass
class Twice:
    total: int

    def __post_init__(self) -> None:
        self.total *= 2


def test_answer_is_parsed_from_its_text_once() -> None:
    template = PromptTemplate[Twice](ns="tests", key="twice")
    durable_agent = durable(MainLoop(ScriptedAdapter([say('{"total": 2}')])), template.bind)
    result, table = attempt(durable_agent, run_input=to_input())
    output = to_execution(durable_agent, result).response.output
    plain = MainLoop(ScriptedAdapter([say('{"total": 2}')])).execute(
        template.bind(), session=Session()
    )
    assert output == plain.response.output
    assert output is not None
    assert output.total == 4
    again, _ = attempt(durable_agent, table.held[-1], to_input())
    assert to_execution(durable_agent, again).response.output == output


def test_params_that_json_would_change_raise_serde_error() -> None:
    with pytest.raises(SerdeError, match=r"what: JSON makes a str of this bytes"):
        to_input(Loose(b"x"))


def test_adapter_with_its_own_loop_is_rejected() -> None:
    class Own(ScriptedAdapter):
        def evaluate(self, *args: object, **options: object) -> Never:
            raise AssertionError

    with pytest.raises(
        TypeError, match="cannot record Own because it runs its own loop; use a LoopAdapter"
    ):
        durable(MainLoop(Own([])), PromptTemplate(ns="a", key="b").bind)


# --- Laws

NAMES = ["note", "fail", "send", "look", "replace", "late", "later", "read_section", "nonsense"]
CALL = st.tuples(
    st.sampled_from(NAMES), st.sampled_from(["{}", '{"a": 4}', '{"section_key": "more"}', "{"])
)
TURN = st.lists(CALL, min_size=1, max_size=4).map(lambda pairs: calls(*pairs))


@given(
    turns=st.lists(TURN, max_size=5),
    dynamic=st.booleans(),
    parallel=st.booleans(),
    data=st.data(),
)
def test_any_conversation_interrupted_anywhere_ends_the_same(
    turns: list[AssistantMessage], *, dynamic: bool, parallel: bool, data: st.DataObject
) -> None:
    facts = Facts(Path("/dev/null"))
    durable_agent = agent(facts, story=[*turns, STORY[-1]], dynamic=dynamic)
    if parallel:
        durable_agent.adapter.config = RunConfig(parallel_tool_calls="isolated")
    execution, session = inline(durable_agent)
    whole, table = attempt(durable_agent)
    assert (whole["session"], whole["text"]) == (session, execution.text)
    held = data.draw(st.sampled_from([it for it in table.held if not has_unknown(it)]))
    result, again = attempt(durable_agent, held)
    assert result == whole
    assert again.held[-1] == table.held[-1]
