"""L11, L13-L16: a run that is cut anywhere ends as if it had never been cut.

A run is cut by a suspension and by Ctrl-C, and continues in another process with another entry
point. The part of a law that the engine currently breaks is a separate test with the mark `fault`:
with the change that makes it pass, remove the mark, or widen the shape of the law above it.
`make test-cuts` tries 4,000 trees for each law and as many interrupts.

Without durable runs, L11 and L13 have no crashes. L15 is stated for the positions that current
values can name: the end of a chat's message, and a suspension. Forks at other entries, and forks
with a changed prompt, will need `MainLoop.fork(log, at=…)`. The part of L12 about `Began` and
`Called` also needs the log.
"""

import gc
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import CodeType
from typing import Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

import weakincentives
from support.agents import Note
from support.cut_runs import (
    CUTS,
    CUTS_SEED,
    FACES,
    NESTING,
    SIBLINGS,
    TOOLS,
    Face,
    Outcome,
    Process,
    Way,
    decide,
    ignore,
    law,
    message_of,
    play,
    resumption,
    suspend,
    uncut,
)
from support.own_thread import in_own_thread
from support.run_trees import Outside, Script, Shape, Step, Tree, done_calls, outside, seeded, trees
from weakincentives.evaluation.approval import Approve, Decision, Deny
from weakincentives.evaluation.errors import ChangedRunError
from weakincentives.evaluation.suspension import Suspension

LIBRARY = Path(weakincentives.__file__).parent
ENGINE = tuple(str(LIBRARY / name) for name in ("evaluation", "runtime", "filesystem", "resources"))
TOOL_ID = 4  # of sys.monitoring: none of those that debuggers, coverage and profilers use


APPROVED = (("ask", "show"), ("ask",))
SUSPENDED = Shape(
    NESTING,
    ("coroutines", "chat", "failure", "repair", "accept", "compaction", "budget", "media"),
    always=APPROVED,
)
ONE_MESSAGE = Shape(NESTING, ("coroutines", "repair", "accept"), always=APPROVED)
RESTARTED = Shape(
    NESTING,
    ("repeats", "repair", "accept", "chat"),
    APPROVED,
    certain=("restart",),
)


def scripted(*turns: str) -> Script:
    """Returns a script with calls of these tools, all with approved numbers."""
    numbers = count(0, 4)
    return Script(
        tuple([tuple([Step(tool, next(numbers)) for tool in turn.split()]) for turn in turns])
    )


TURN = Tree((scripted("note fail", "pay show"),))
INTERRUPTED = Shape(NESTING, ("coroutines", "repair", "accept", "media"), certain=("chat",))
INTERRUPTED_ANYHOW = replace(
    INTERRUPTED, features=(*INTERRUPTED.features, "failure", "compaction", "budget", "restart")
)


def fault(entry: str, reason: str, error: type[Exception] = AssertionError) -> pytest.MarkDecorator:
    return pytest.mark.xfail(strict=True, raises=error, reason=f"{entry}: {reason}")


def drawn(shape: Shape, count: int) -> Iterator[Tree]:
    """Draws the same trees each time."""
    yield from [seeded(shape, seed) for seed in range(count)]


def suspended(
    tree: Tree, way: Way = "MainLoop", faces: Sequence[Face] = FACES, *, decides_all: bool = True
) -> tuple[Outcome, Outside]:
    with outside() as out:
        outcome = play(tree, out, way=way, faces=faces, suspends=True, decides_all=decides_all)
        return outcome, out


# --------------------------------------------------------------------------------- L11: suspensions

a_face = st.sampled_from(FACES)
some_faces = st.lists(a_face, min_size=1, max_size=4)
some_ways = st.sampled_from(["MainLoop", "Chat"])


@law
@given(tree=trees(SUSPENDED), way=some_ways, faces=some_faces, decides_all=st.booleans())
def test_suspended_run_ends_like_an_uninterrupted_run(
    tree: Tree, way: Way, faces: list[Face], *, decides_all: bool
) -> None:
    cut, _ = suspended(tree, way, faces, decides_all=decides_all)
    assert cut == uncut(tree)


@law
@given(tree=trees(SUSPENDED), faces=some_faces)
def test_suspended_run_repeats_no_request_or_payment(tree: Tree, faces: list[Face]) -> None:
    cut, out = suspended(tree, faces=faces)
    requests = [place for place in out.asked if place != "summary"]
    assert len({*requests}) == len(requests)
    assert len({*cut.facts}) == len(cut.facts)


@law
@given(tree=trees(SUSPENDED), suspends=st.booleans())
def test_denied_calls_and_replaced_arguments_have_no_effects(tree: Tree, *, suspends: bool) -> None:
    with outside() as out:
        end = play(tree, out, suspends=suspends)
    done = [*end.state, *end.files.get("log.txt", b"").decode().splitlines()]
    approved = [text for text in done if text.startswith(("asked", "showed"))]
    assert not [text for text in approved if int(text.split()[1]) % 4 > 1]


@law
@given(tree=trees(RESTARTED), faces=some_faces)
def test_run_suspended_after_a_restart_ends_like_an_uninterrupted_run(
    tree: Tree, faces: list[Face]
) -> None:
    assert suspended(tree, faces=faces)[0] == uncut(tree)


def test_chat_suspended_after_a_restart_ends_like_an_uninterrupted_chat() -> None:
    tree = Tree((scripted("open", "ask"),), frozenset({"restart"}))
    assert suspended(tree, "Chat")[0] == uncut(tree)


def test_second_message_suspended_after_a_restart_can_close_the_section() -> None:
    scripts = scripted("note"), scripted("open", "ask close")
    tree = Tree(scripts, frozenset({"restart"}))
    assert suspended(tree)[0] == uncut(tree)


def test_decision_is_not_applied_to_a_call_that_opens_a_section() -> None:
    tree = Tree((scripted("ask open read ask"),), frozenset({"restart"}))
    assert suspended(tree)[0] == uncut(tree)


def test_run_suspended_after_a_fallback_stays_with_the_fallback_provider() -> None:
    shape = Shape(("note", "ask"), always=(("ask",),), certain=("fallback",))
    for tree in drawn(shape, 10):
        assert suspended(tree)[0] == uncut(tree)


def test_run_resumes_in_another_process(tmp_path: Path) -> None:
    tree, face = seeded(ONE_MESSAGE, 1), "stream_async"
    file, out = tmp_path / "cut", Outside(tmp_path)
    suspension = suspend(tree, out)
    file.write_bytes(pickle.dumps((tree, out, suspension, face)))
    command = [sys.executable, "-m", "support.cut_runs", str(file)]
    subprocess.run(command, cwd=Path(__file__).parents[1], check=True, timeout=60)
    assert pickle.loads(file.read_bytes()) == uncut(tree)


# ------------------------------------------------------------------------------------- L11: Ctrl-C


def interrupted(
    tree: Tree, at: int, face: Face = "evaluate", watch: Callable[[Process, str], object] = ignore
) -> tuple[Outcome, Outside]:
    """Plays a chat that is interrupted at one moment and continues in another process."""
    with outside() as out:
        out.interrupt_at = at
        return play(tree, out, way="Chat", faces=[face], watch=watch), out


def moments(tree: Tree) -> list[str]:
    with outside() as out:
        play(tree, out, way="Chat")
        return out.moments


@law
@given(tree=trees(INTERRUPTED_ANYHOW), data=st.data())
def test_interrupted_chat_ends_like_an_uninterrupted_chat(tree: Tree, data: st.DataObject) -> None:
    known = [
        number for number, name in enumerate(moments(tree), 1) if not name.startswith("call of pay")
    ]
    cut, _ = interrupted(tree, data.draw(st.sampled_from(known)), data.draw(a_face))
    assert cut == uncut(tree)


@law
@given(tree=trees(replace(INTERRUPTED, tools=TOOLS)), data=st.data())
def test_interrupted_chat_repeats_no_request_or_payment(tree: Tree, data: st.DataObject) -> None:
    at = data.draw(st.integers(1, len(moments(tree))))
    cut, out = interrupted(tree, at, data.draw(a_face))
    assert len({*out.asked}) == len(out.asked)
    assert len({*cut.facts}) == len(cut.facts)


def test_interrupted_nested_run_repeats_no_payment() -> None:
    inner = Step("delegate", 0, Script(((Step("pay", 1),), (Step("note", 2),))))
    tree = Tree((Script(((inner,),)),))
    for at in range(1, len(moments(tree)) + 1):
        cut, _ = interrupted(tree, at)
        assert len({*cut.facts}) == len(cut.facts)


# -------------------------------------------------------------------------- L13: nested in parallel


@law
@given(tree=trees(SIBLINGS), way=some_ways, faces=some_faces, decides_all=st.booleans())
def test_suspended_parallel_nested_runs_end_like_uninterrupted_runs(
    tree: Tree, way: Way, faces: list[Face], *, decides_all: bool
) -> None:
    assert suspended(tree, way, faces, decides_all=decides_all)[0] == uncut(tree)


def test_conflicting_parallel_nested_runs_repeat_no_request() -> None:
    for tree in drawn(replace(SIBLINGS, tools=NESTING), 10):
        with outside() as out:
            play(tree, out)
        assert len({*out.asked}) == len(out.asked)


@law
@given(tree=trees(replace(SIBLINGS, features=("coroutines",))))
def test_changed_nested_tool_is_rejected_and_the_run_resumes_with_the_old_code(
    tree: Tree,
) -> None:
    refusals = 0

    def resume_with_changed_tool(process: Process, suspension: str) -> None:
        nonlocal refusals
        pending = Suspension.from_json(suspension).pending
        kind = ChangedRunError if all(preview.inside for preview in pending) else ValueError
        changed = Process(tree, process.out, asked_for="Asks for something else.")
        before = process.out.facts, [*process.out.asked]
        with pytest.raises(kind, match="have changed since"):
            changed.run("MainLoop", "evaluate", resumption(suspension))
        assert (process.out.facts, process.out.asked) == before
        refusals += 1

    with outside() as out:
        cut = play(tree, out, suspends=True, watch=resume_with_changed_tool)
    assert cut == uncut(tree)
    assert refusals == out.suspensions > 0


# --------------------------------------------------------------------------------------- L14: usage


@law
@given(tree=trees(SUSPENDED), way=some_ways, faces=some_faces)
def test_usage_of_a_suspended_run_is_the_sum_of_all_replies(
    tree: Tree, way: Way, faces: list[Face]
) -> None:
    cut, out = suspended(tree, way, faces)
    assert cut.usage == asdict(out.used) == uncut(tree).usage


@law
@given(tree=trees(INTERRUPTED), data=st.data())
def test_usage_of_an_interrupted_chat_is_the_sum_of_all_replies(
    tree: Tree, data: st.DataObject
) -> None:
    at = data.draw(st.integers(1, len(moments(tree))))
    cut, out = interrupted(tree, at, data.draw(a_face))
    assert cut.conversation["usage"] == asdict(out.used)


@law
@given(tree=trees(replace(SUSPENDED, features=("repair",), certain=("budget",))), faces=some_faces)
def test_no_request_is_sent_once_the_budget_is_spent(tree: Tree, faces: list[Face]) -> None:
    _, out = suspended(tree, faces=faces)
    assert tree.max_tokens is not None
    assert all(spent < tree.max_tokens for spent in out.spent)


# --------------------------------------------------------------------------------------- L15: forks


@law
@given(tree=trees(replace(SUSPENDED, certain=("chat",))), faces=some_faces)
def test_fork_after_a_message_equals_the_chat_and_sends_only_later_requests(
    tree: Tree, faces: list[Face]
) -> None:
    with outside() as out:
        assert play(tree, out, way="Chat", faces=faces, forks=True) == uncut(tree)


@law
@given(tree=trees(ONE_MESSAGE))
def test_forks_of_a_suspended_run_match_runs_with_the_same_decision(tree: Tree) -> None:
    with outside() as out:
        suspension = suspend(tree, out)
        for decision in (Approve(), Deny("no")):

            def approver(_: object, decision: Decision = decision) -> Decision:
                return decision

            with TemporaryDirectory() as folder, outside() as whole:
                copy = out.copied(Path(folder) / "fork")
                fork = play(tree, copy, suspends=True, resumed=suspension, approver=approver)
                assert fork == play(tree, whole, approver=approver)


# ------------------------------------------------------------------------------ L16: all or nothing


def check_agreement(process: Process, _: str = "") -> None:
    """Checks that state and files match the answers in the conversation exactly."""
    said = process.chat.conversation
    done = [] if said is None else done_calls(said.messages)
    notes = [note.text for note in process.session[Note].all() if note.text != "accepted"]
    log = process.files.read_text("log.txt") if process.files.exists("log.txt") else ""
    in_files = "wrote", "showed"
    assert notes == [text for text in done if not text.startswith(in_files)]
    assert log.splitlines() == [text for text in done if text.startswith(in_files)]


@law
@given(tree=trees(INTERRUPTED), data=st.data())
def test_state_files_and_conversation_agree_after_an_interrupt_at_any_effect(
    tree: Tree, data: st.DataObject
) -> None:
    at = data.draw(st.integers(1, len(moments(tree))))
    interrupted(tree, at, data.draw(a_face), check_agreement)


def test_state_and_conversation_agree_after_an_interrupt_of_parallel_calls() -> None:
    shape = Shape(("note", "look"), certain=("parallel",))
    for tree in drawn(shape, 10):
        for at in range(1, len(moments(tree)) + 1):
            interrupted(tree, at, watch=check_agreement)


def test_state_and_conversation_agree_while_a_chat_is_suspended() -> None:
    for tree in drawn(ONE_MESSAGE, 10):
        with outside() as out:
            play(tree, out, way="Chat", suspends=True, watch=check_agreement)


class Interrupter:
    """Raises `KeyboardInterrupt` before one bytecode of the engine, and counts them."""

    def __init__(self, at: int = 0) -> None:
        self.at, self.count, self.where = at, 0, ""

    def event(self, code: CodeType, offset: int) -> object:
        if not code.co_filename.startswith(ENGINE):
            return sys.monitoring.DISABLE
        self.count += 1
        if self.count == self.at:
            self.where = f"{code.co_qualname}+{offset}"
            raise KeyboardInterrupt
        return None

    def __enter__(self) -> Self:
        event = sys.monitoring.events.INSTRUCTION
        sys.monitoring.use_tool_id(TOOL_ID, "interrupts")
        sys.monitoring.register_callback(TOOL_ID, event, self.event)
        sys.monitoring.set_events(TOOL_ID, event)
        return self

    def __exit__(self, *_: object) -> None:
        self.at = 0
        sys.monitoring.set_events(TOOL_ID, 0)
        sys.monitoring.free_tool_id(TOOL_ID)
        sys.monitoring.restart_events()


def interrupt_turn(at: int) -> Interrupter:
    """Interrupts a chat's turn before one bytecode and checks the state that it leaves.

    The turn then continues in another process.
    """
    with outside() as out:
        process, interrupter = Process(TURN, out), Interrupter(at)
        message = {"message": message_of(TURN, 0), "approver": decide}
        try:
            with interrupter:
                process.run("Chat", "evaluate", message)
        except KeyboardInterrupt:
            try:
                check_agreement(process)
                if not process.is_answered:
                    begun, process = process.has_message(0), process.next(keeps_session=True)
                    process.run("Chat", "evaluate", {"approver": decide} if begun else message)
                    check_agreement(process)
                assert len({*out.facts}) == len(out.facts)
            except AssertionError as error:
                error.add_note(f"interrupted before bytecode {at}, {interrupter.where}")
                raise
        return interrupter


# An interrupt can arrive between the creation of a generator or coroutine and its first step.
unfinished = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::RuntimeWarning"
)


@unfinished
def test_state_files_and_conversation_agree_after_an_interrupt_at_any_bytecode() -> None:
    rng, whole = Random(CUTS_SEED), in_own_thread(partial(interrupt_turn, 0))  # noqa: S311 - reproducible
    try:
        for at in rng.sample(range(1, whole.count), min(max(10 * CUTS, 100), whole.count - 1)):
            in_own_thread(partial(interrupt_turn, at))
    finally:
        gc.collect()  # in the test, which ignores its warnings
