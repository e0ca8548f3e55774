"""L11, L13 and L14 for durable runs: a run whose processes crash ends like an undisturbed one."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.agents import answers, ok, prompt, tool
from support.cut_runs import FACES, NESTING, SIBLINGS, Face, Outcome, law, uncut
from support.durable_cuts import Crash, play_durable
from support.run_trees import Outside, Shape, Tree, outside, trees
from weakincentives.contrib.durable import MemoryLogTable, durable, execute_run, to_input
from weakincentives.evaluation import MainLoop, RunConfig
from weakincentives.limits import Budget, Deadline, Meter, utc_now
from weakincentives.prompt import MarkdownSection, PromptTemplate
from weakincentives.runtime.events import (
    PromptExecuted,
    PromptRendered,
    ProviderCalled,
    ToolInvoked,
)
from weakincentives.runtime.session import Append, Session
from weakincentives.testing import ScriptedAdapter, call, say

FEATURES = ("coroutines", "chat", "failure", "repair", "accept", "compaction", "budget", "media")
KNOWN = tuple(tool for tool in NESTING if tool != "pay")  # no outcome is unknown after a crash
CRASHED = Shape(KNOWN, FEATURES, always=(("ask", "show"), ("ask",)))
RESTARTED = Shape(KNOWN, ("repair", "accept", "chat"), certain=("restart",), always=(("open",),))
FALLEN_BACK = Shape(KNOWN, ("coroutines", "chat"), certain=("fallback",))
IN_PARALLEL = replace(SIBLINGS, tools=("note", "fail", "ask", "delegate"))
PAID = Shape((*NESTING, "pay", "pay"), ("coroutines", "chat"), always=(("pay", "delegate"),))

some_crashes = st.lists(st.builds(Crash, st.integers(1, 12), st.booleans()), max_size=4)
some_faces = st.lists(st.sampled_from(FACES), min_size=1, max_size=4)


def crashed(
    tree: Tree, faces: list[Face], crashes: list[Crash], *, decides_all: bool = True
) -> tuple[Outcome, Outside]:
    with outside() as out:
        end = play_durable(tree, out, faces=faces, crashes=crashes, decides_all=decides_all)
        return without_files(end), out


def without_files(end: Outcome) -> Outcome:
    """Removes files in memory, which a crash drops, and repeated requests."""
    return end._replace(files={}, asked=sorted({*end.asked}))


SHAPES = {
    "any": CRASHED,
    "restart": RESTARTED,
    "fallback": FALLEN_BACK,
    "parallel nested runs": IN_PARALLEL,
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@law
@given(st.data(), some_faces, some_crashes, st.booleans())
def test_crashed_run_matches_the_uninterrupted_run(
    shape: Shape, data: st.DataObject, faces: list[Face], crashes: list[Crash], decides_all: bool
) -> None:
    tree = data.draw(trees(shape))
    end, _ = crashed(tree, faces, crashes, decides_all=decides_all)
    assert end == without_files(uncut(tree))


@law
@given(trees(PAID), some_faces, some_crashes)
def test_each_crash_repeats_at_most_one_request_and_no_payment(
    tree: Tree, faces: list[Face], crashes: list[Crash]
) -> None:
    end, out = crashed(tree, faces, crashes)
    assert len({*end.facts}) == len(end.facts)
    assert len(out.asked) - len({*out.asked}) <= sum(not crash.after for crash in crashes)


@law
@given(trees(replace(PAID, features=("coroutines", "chat", "media"))), some_faces)
def test_crashes_after_each_append_repeat_no_request_and_no_payment(
    tree: Tree, faces: list[Face]
) -> None:
    end, out = crashed(tree, faces, [Crash(1, after=True)] * 150)
    assert len({*out.asked}) == len(out.asked)
    assert len({*end.facts}) == len(end.facts)
    assert end.usage == asdict(out.used)


@dataclass(frozen=True)
class Heard:
    kind: str


def hearing(run_id: str) -> Session:
    """Returns a session whose state contains the kind of each event."""
    session = Session()
    for kind in (PromptRendered, ProviderCalled, ToolInvoked, PromptExecuted):
        session[Heard].register(kind, lambda _, event: Append(Heard(type(event).__name__)))
    return session


@pytest.mark.parametrize("rows", range(2, 6))
def test_event_counting_state_is_the_same_after_a_crash(rows: int) -> None:
    template = prompt(tool(ok, name="note")).template
    script = [
        lambda request: say("done") if answers(request.messages) else call(("note", {"a": 1}))
    ]
    agent = durable(
        MainLoop(ScriptedAdapter(script * 9)), template.bind, types=[Heard], session=hearing
    )
    uncut, cut = MemoryLogTable(), MemoryLogTable()
    ends = [execute_run(agent, to_input(), uncut, "1")["session"]]
    cut.rows["1"] = uncut.rows["1"][:rows]
    ends.append(execute_run(agent, to_input(), cut, "1")["session"])
    heard = [[event.kind for event in restored(agent.types, end)[Heard].all()] for end in ends]
    assert heard[0] == heard[1]
    assert heard[0].count("PromptRendered") == 1


def restored(types: Iterable[type[object]], text: str) -> Session:
    session = hearing("1")
    session.restore(session.parse_snapshot(text, types=types))
    return session


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        (RunConfig(max_turns=2), "TurnLimitError"),
        (RunConfig(budget=Budget(max_calls=2)), "BudgetExceededError"),
        (RunConfig(deadline=Deadline(utc_now() - timedelta(1))), "DeadlineExceededError"),
    ],
    ids=["max_turns", "budget", "deadline"],
)
def test_config_of_the_loop_applies_to_durable_runs(config: RunConfig, kind: str) -> None:
    def look(text: str) -> str:
        """Look it up."""
        return text

    section = MarkdownSection(title="Task", template="Look.", tools=[look])
    template = PromptTemplate[None](ns="tests", key="durable", sections=[section])
    calls = [call(("look", {"text": "a"}))] * 5
    loop = MainLoop(ScriptedAdapter([*calls, say("Done.")]), config=config)
    result = execute_run(durable(loop, template.bind), to_input(), MemoryLogTable(), "1")
    assert result["error"]["is"] == kind


def test_budget_with_a_meter_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot have a meter"):
        to_input(budget=Budget(max_calls=1, meter=Meter()))
