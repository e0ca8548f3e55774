"""A nested run repeats its recorded steps, with the same state, sections and resources."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from support.agents import Args, Note, answers, prompt, tool
from support.approvals import asking
from support.suspensions import agent, delegating, notes, suspended, write_note
from weakincentives.evaluation.approval import Approve
from weakincentives.evaluation.errors import (
    DeadlineExceededError,
    LimitError,
    PromptEvaluationError,
)
from weakincentives.evaluation.main_loop import Execution, MainLoop
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import (
    Prompt,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.resources import Binding, ResourceRegistry
from weakincentives.runtime.session import Session
from weakincentives.testing.scripted import Reply, ScriptedAdapter, call, say


@dataclass(frozen=True)
class Balance:
    """State that a call sets."""

    amount: int


def spend(context: ToolContext, amount: int) -> None:
    latest = context.session[Balance].latest()
    context.session[Balance].seed(Balance((latest.amount if latest else 0) - amount))


def clear(context: ToolContext, amount: int) -> None:
    context.session[Note].clear()


def note(context: ToolContext, amount: int) -> None:
    context.session.dispatch(Note(f"paid {amount}"))
    context.session.dispatch(Note("thanks"))


def nothing(context: ToolContext, amount: int) -> None:
    pass


def paying(change: Callable[[ToolContext, int], None], paid: list[int]) -> Tool[Any, Any]:
    """Returns a tool that must not run twice and changes the session."""

    def pay(params: Args, *, context: ToolContext) -> ToolResult[object]:
        paid.append(params.a)
        change(context, params.a)
        return ToolResult(f"paid {params.a}")

    return replace(tool(pay, name="pay"), effect="at_most_once")


def resumed(loop: MainLoop, asked: Prompt[Any], at: Session) -> Execution[Any]:
    """Resumes a suspended run, approving everything."""
    suspension = suspended(loop, asked, at)
    decisions = {preview.call_id: Approve() for preview in suspension.pending}
    return loop.resume(asked, suspension, decisions, session=at)


@pytest.mark.parametrize("change", [spend, clear, note, nothing])
def test_state_changed_by_an_at_most_once_call_is_restored_after_a_resume(
    change: Callable[[ToolContext, int], None],
) -> None:
    paid: list[int] = []
    asked = prompt(delegating(agent(paying(change, paid), asking(write_note))))
    script = [
        call(("delegate", {"a": 7})),
        call(("pay", {"a": 5})),
        call(("run", {"a": 2})),
        say("inside"),
        say("done"),
    ]

    def state(at: Session) -> tuple[object, ...]:
        return at[Balance].all(), notes(at)

    ends: list[object] = []
    for waits in (False, True):
        loop, at = MainLoop(ScriptedAdapter(script)), Session()
        at[Balance].seed(Balance(100))
        at.dispatch(Note("before"))
        if waits:
            execution = resumed(loop, asked, at)
        else:
            execution = loop.execute(asked, session=at, approver=lambda _: Approve())
        ends.append((state(at), execution.text, execution.usage))
    assert ends[1] == ends[0]
    assert paid == [5, 5]  # once in each run


def test_state_changed_by_an_at_most_once_call_is_restored_in_a_preview() -> None:
    paid: list[int] = []
    inner = agent(paying(spend, paid), asking(write_note, "arguments"))
    asked = prompt(delegating(inner, approval="effects"))
    script = [
        call(("delegate", {"a": 7})),
        call(("pay", {"a": 5})),
        call(("run", {"a": 2})),
        say("inside"),
        say("done"),
    ]
    loop, at = MainLoop(ScriptedAdapter(script)), Session()
    at[Balance].seed(Balance(100))
    at.declare(Note)
    first = suspended(loop, asked, at)
    inside = {preview.call_id: Approve() for preview in first.pending}
    second = suspended(loop, asked, at, suspension=first, decisions=inside)
    [preview] = second.pending
    assert (preview.tool, preview.answer) == ("delegate", "inside")
    assert [change.name for change in preview.changes] == ["Balance", "Note"]
    assert at[Balance].latest() == Balance(100)
    loop.resume(asked, second, {preview.call_id: Approve()}, session=at)
    assert (at[Balance].latest(), notes(at), paid) == (Balance(95), ["delegates 7", "2"], [5])


def test_model_sees_the_same_answers_after_a_resume() -> None:
    numbers = iter(range(9))

    def count(params: Args, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult(f"number {next(numbers)}")

    asked = prompt(delegating(agent(tool(count, name="count"), asking(write_note))))
    script = [
        call(("delegate", {})),
        call(("count", {})),
        call(("run", {"a": 2})),
        say("inside"),
        say("done"),
    ]
    adapter, at = ScriptedAdapter(script), Session()
    resumed(MainLoop(adapter), asked, at)
    assert [item.content for item in answers(adapter.requests[3].messages)] == [
        "number 0",
        "wrote 2",
    ]


def test_nested_run_raises_not_repeated_if_a_repeated_call_fails() -> None:
    failures, caught = iter(["", "the service is gone"]), list[PromptEvaluationError]()

    def once(params: Args, *, context: ToolContext) -> ToolResult[object]:
        if failure := next(failures):
            raise ValueError(failure)
        return ToolResult("fine")

    inner = agent(tool(once, name="once"), asking(write_note))

    def delegate(params: Args, *, context: ToolContext) -> ToolResult[object]:
        try:
            return ToolResult(context.evaluate(inner.bind()).text)
        except PromptEvaluationError as error:
            caught.append(error)
            raise

    script = [call(("delegate", {})), call(("once", {})), call(("run", {})), say("done")]
    at = Session()
    resumed(MainLoop(ScriptedAdapter(script)), prompt(tool(delegate, name="delegate")), at)
    [error] = caught
    assert (error.phase, error.code) == ("response", "not_repeated")
    assert error.message.startswith(
        "cannot resume the run because the call of 'once' succeeded before the suspension "
        "and fails now: "
    )
    assert error.message.endswith("the service is gone")


def test_limit_error_of_a_nested_run_is_not_replayed_after_a_resume() -> None:
    first, second = agent(key="first", text="First."), agent(asking(write_note))

    def delegate(params: Args, *, context: ToolContext) -> ToolResult[object]:
        try:
            text = context.evaluate(first.bind()).text
        except LimitError:
            text = "late"
        return ToolResult(f"{text}, {context.evaluate(second.bind()).text}")

    late = DeadlineExceededError("late", phase="limit", code="deadline")
    replies: list[Reply] = [
        call(("delegate", {})),
        late,
        call(("run", {"a": 2})),
        say("in time"),
        say("inside"),
        say("done"),
    ]
    at = Session()
    execution = resumed(
        MainLoop(ScriptedAdapter(replies)), prompt(tool(delegate, name="delegate")), at
    )
    [answer] = answers(execution.response.transcript)
    assert answer.content == "in time, inside"


# --------------------------------------------------------------------------------------------------
# resources


class Ledger:
    """A resource that can be restored, but does not report its changes."""

    def __init__(self) -> None:
        self.entries: list[int] = []
        self.held = 0

    def snapshot(self) -> list[int]:
        self.held += 1
        return list(self.entries)

    def restore(self, snapshot: list[int], /) -> None:
        self.entries[:] = snapshot

    def release(self, snapshot: list[int], /) -> None:
        self.held -= 1


def use_nothing(context: ToolContext) -> None:
    pass


def read_file(context: ToolContext) -> None:
    context.resources.get(Filesystem).exists("receipt.txt")


def write_file(context: ToolContext) -> None:
    context.resources.get(Filesystem).write_text("receipt.txt", "paid")


def ask_for_ledger(context: ToolContext) -> None:
    context.resources.get(Ledger)


@pytest.mark.parametrize(
    ("before", "use", "waits"),
    [
        (use_nothing, use_nothing, True),
        (use_nothing, write_file, False),
        (use_nothing, ask_for_ledger, False),  # the call has created it
        (read_file, use_nothing, True),
        (read_file, read_file, True),
        (read_file, write_file, False),
        (read_file, ask_for_ledger, False),
        (ask_for_ledger, use_nothing, False),  # it does not know whether it has changed
    ],
)
def test_run_is_suspended_unless_an_at_most_once_call_may_change_resources(
    before: Callable[[ToolContext], None], use: Callable[[ToolContext], None], *, waits: bool
) -> None:
    ledger = Ledger()
    registry = ResourceRegistry.of(
        Binding.instance(Filesystem, InMemoryFilesystem()), Binding(Ledger, lambda _: ledger)
    )

    def look(params: Args, *, context: ToolContext) -> ToolResult[object]:
        before(context)
        return ToolResult("seen")

    def pay(params: Args, *, context: ToolContext) -> ToolResult[object]:
        use(context)
        return ToolResult("paid")

    once = replace(tool(pay, name="pay"), effect="at_most_once")
    tools = [tool(look, name="look"), once, asking(write_note, "arguments")]
    asked = prompt(Tool.from_prompt(agent(*tools), name="payer")).bind(resources=registry)
    script = [
        call(("payer", {"message": "Pay."})),
        call(("look", {})),
        call(("pay", {})),
        call(("run", {})),
        say("inside"),
        say("done"),
    ]
    loop, at = MainLoop(ScriptedAdapter(script)), Session()
    at.declare(Note)
    if waits:
        assert resumed(loop, asked, at).text == "done"
        assert notes(at) == ["3"]
    else:
        execution = loop.execute(asked, session=at)
        [answer] = answers(execution.response.transcript)
        assert answer.content.endswith(
            "the run needs approval for 1 call (run); "
            "it cannot be suspended because a call of 'pay', which must not run twice, has "
            "changed files; pass approver="
        )
    assert ledger.held == 0  # no snapshot is kept
