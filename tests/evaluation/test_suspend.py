"""The state that a suspended run stores, and that the resumed run restores."""

import pickle
from dataclasses import replace
from typing import Any

import pytest

from support.agents import Args, Note, answers, ok, prompt, tool
from support.approvals import asking
from support.media import PNG
from support.suspensions import agent, delegating, notes, opening, suspended, write_note
from weakincentives.content import Image
from weakincentives.errors import SerdeError
from weakincentives.evaluation.approval import Approve, Decision, Deny, ReplaceArguments
from weakincentives.evaluation.compaction import Compaction
from weakincentives.evaluation.errors import PromptEvaluationError, TurnLimitError
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.logged_run import LoggedCall
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.evaluation.suspension import RunSuspended, SuspendedRun, Suspension
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime.session import Session
from weakincentives.testing.scripted import Reply, ScriptedAdapter, SeenRequest, call, say

WAITS = call(("run", {"a": 1}))


def approvals(suspension: Suspension) -> dict[str, Decision]:
    return {preview.call_id: Approve() for preview in suspension.pending}


def called(suspension: Suspension) -> int:
    """Returns the number of calls that have an answer."""
    return sum(isinstance(entry, LoggedCall) for entry in suspension.log.entries)


def mailing(sent: list[int]) -> Tool[Any, Any]:
    """Returns a tool that must not run twice."""

    def send(params: Args, *, context: ToolContext) -> ToolResult[object]:
        sent.append(params.a)
        return ToolResult(f"sent {len(sent)}")

    return replace(tool(send, name="mail"), effect="at_most_once")


# --------------------------------------------------------------------------------------------------
# limits and arguments


@pytest.mark.parametrize("max_turns", [4, 5])
def test_max_turns_includes_requests_before_the_suspended_evaluation(
    max_turns: int,
) -> None:
    asked = prompt(asking(write_note), tool(ok, name="free"))
    config = RunConfig(max_turns=max_turns)
    refused = PromptEvaluationError("too long", phase="request", code="context_length")
    replies: list[Reply] = [call(("free", {})), refused, WAITS, WAITS, say("done")]
    loop = MainLoop(ScriptedAdapter(replies, config=config), compaction=Compaction(100_000, 1))
    at = Session()
    talk = MainLoop(ScriptedAdapter([say("Hello."), say("Yes.")]))
    earlier = talk.execute(asked, session=at, message="Hi").conversation
    earlier = talk.execute(asked, session=at, message="So?", conversation=earlier).conversation
    suspension = suspended(loop, asked, at, message="Go on", conversation=earlier)
    assert suspension.log.conversation == earlier
    again = suspended(loop, asked, at, suspension=suspension, decisions=approvals(suspension))
    assert again.log.conversation == earlier
    if max_turns == 5:
        assert loop.resume(asked, again, approvals(again), session=at).text == "done"
    else:
        with pytest.raises(TurnLimitError, match="after 4 turns"):
            loop.resume(asked, again, approvals(again), session=at)


def test_suspension_keeps_the_earlier_conversation_and_on_change() -> None:
    asked = prompt(asking(write_note))
    loop, at = MainLoop(ScriptedAdapter([say("hello"), WAITS, say("done")])), Session()
    first = suspended(
        MainLoop(ScriptedAdapter([WAITS])), asked, Session(), message="Hi", on_change="append"
    )
    assert (first.log.conversation, first.log.on_change) == (None, "append")
    earlier = loop.execute(asked, session=at, message="Hi").conversation
    suspension = suspended(
        loop, asked, at, message="Go on", conversation=earlier, on_change="restate"
    )
    assert (suspension.log.conversation, suspension.log.on_change) == (earlier, "restate")
    execution = loop.resume(asked, suspension, approvals(suspension), session=at)
    assert execution.text == "done"


# --------------------------------------------------------------------------------------------------
# calls before the suspension


def test_at_most_once_calls_run_as_often_with_a_suspension_as_without() -> None:
    script = [
        call(("mail", {"a": 1})),
        WAITS,
        call(("mail", {"a": 1})),
        call(("mail", {"a": 1}), ("mail", {"a": 2})),
        say("done"),
    ]

    def outcome(*, waits: bool) -> tuple[list[int], object]:
        sent: list[int] = []
        loop, at = MainLoop(ScriptedAdapter(script)), Session()
        asked = prompt(mailing(sent), asking(write_note))
        if waits:
            suspension = suspended(loop, asked, at)
            execution = loop.resume(asked, suspension, approvals(suspension), session=at)
        else:
            execution = loop.execute(asked, session=at, approver=lambda _: Approve())
        return sent, execution.conversation

    assert outcome(waits=True) == outcome(waits=False)
    assert outcome(waits=True)[0] == [1, 1, 1, 2]


@pytest.mark.parametrize("success", [True, False])
def test_at_most_once_call_run_without_a_main_loop_is_replayed_on_restart(*, success: bool) -> None:
    sent: list[int] = []

    def send(params: Args, *, context: ToolContext) -> ToolResult[object]:
        sent.append(params.a)
        return ToolResult("the outcome", success=success, media=(Image.from_bytes(PNG),))

    mail = replace(tool(send, name="mail"), effect="at_most_once")
    script: list[Reply] = [
        call(("mail", {"a": 1})),
        WAITS,
        call(("read_section", {"section_key": "more"})),
        call(("mail", {"a": 1})),
        say("done"),
    ]
    adapter, at = ScriptedAdapter(script, dynamic_tools=False), Session()
    asked = opening([tool(ok, name="late")], [mail, asking(write_note)])
    with pytest.raises(RunSuspended) as waiting:
        adapter.evaluate(asked, session=at)
    suspension = waiting.value.suspension
    assert suspension.conversation is not None
    before = answers(suspension.conversation.messages)[0]
    execution = MainLoop(adapter).resume(asked, suspension, approvals(suspension), session=at)
    assert (sent, execution.restarts) == ([1], 1)
    after = answers(execution.response.transcript)[0]
    assert (after.content, after.success) == (before.content, before.success)
    assert (after.success, after.media) == (success, before.media)


def test_invalid_calls_before_the_suspended_call_are_answered_once() -> None:
    script = [call(("run", {"a": "x"}), ("walk", {}), ("run", {"a": 1})), say("done")]

    def outcome(*, waits: bool) -> object:
        loop, at = MainLoop(ScriptedAdapter(script)), Session()
        asked = prompt(asking(write_note))
        if not waits:
            return loop.execute(asked, session=at, approver=lambda _: Approve()).conversation
        suspension = suspended(loop, asked, at)
        assert called(suspension) == 2
        return loop.resume(asked, suspension, approvals(suspension), session=at).conversation

    assert outcome(waits=True) == outcome(waits=False)


def test_tool_without_pending_calls_may_change_before_a_resume() -> None:
    free = tool(write_note, name="free")
    script = [call(("run", {"a": 1}), ("free", {"a": 2})), say("done")]
    loop, at = MainLoop(ScriptedAdapter(script)), Session()
    suspension = suspended(loop, prompt(asking(write_note), free), at)
    assert suspension.tool_digests.keys() == {"run"}
    changed = prompt(asking(write_note), replace(free, description="Writes freely."))
    loop.resume(changed, suspension, approvals(suspension), session=at)
    assert notes(at) == ["1", "2"]


# --------------------------------------------------------------------------------------------------
# the mark in the session


@pytest.mark.parametrize("decision", [Approve(), Deny("no"), ReplaceArguments({"a": 9})])
def test_decided_call_of_a_disabled_section_is_answered_as_unknown(decision: Decision) -> None:
    def agent_with(*, enabled: bool) -> Prompt[Any]:
        writing = MarkdownSection(
            title="Writing",
            template="Write.",
            tools=[asking(write_note)],
            enabled=lambda: enabled,
            state=[Note],
        )
        task = MarkdownSection(title="Task", template="Do it.")
        return PromptTemplate[None](ns="tests", key="k", sections=[task, writing]).bind()

    loop, at = MainLoop(ScriptedAdapter([WAITS, say("done")])), Session()
    suspension = suspended(loop, agent_with(enabled=True), at)
    decisions = {"call_1": decision}
    execution = loop.resume(agent_with(enabled=False), suspension, decisions, session=at)
    [answer] = answers(execution.response.transcript)
    assert (execution.text, answer.success, notes(at)) == ("done", False, [])
    assert "Unknown tool 'run'" in answer.content


def test_two_suspended_runs_of_one_session_can_be_resumed_in_sequence() -> None:
    asked, at = prompt(asking(write_note, "arguments")), Session()
    loops = [MainLoop(ScriptedAdapter([call(("run", {"a": a})), say("done")])) for a in (1, 2)]
    waiting = [(loop, suspended(loop, asked, at)) for loop in loops]
    assert len(at[SuspendedRun]) == 2
    for loop, suspension in waiting:
        assert loop.resume(asked, suspension, approvals(suspension), session=at).text == "done"
    assert notes(at) == ["1", "2"]
    assert not at[SuspendedRun]


def test_unserializable_state_keeps_the_marks_of_other_suspended_runs() -> None:
    asked, at = prompt(asking(write_note, "arguments")), Session()
    loop = MainLoop(ScriptedAdapter([WAITS, WAITS, say("done")]))
    suspension = suspended(loop, asked, at)
    at[object].append(object())
    with pytest.raises(SerdeError):
        loop.execute(asked, session=at)
    assert at[SuspendedRun].all() == (SuspendedRun(suspension.suspension_id),)
    assert loop.resume(asked, suspension, approvals(suspension), session=at).text == "done"


# --------------------------------------------------------------------------------------------------
# rejections


@pytest.mark.parametrize("first", ["free", "run"])
def test_rejected_nested_run_stays_suspended_if_nothing_has_run_since(first: str) -> None:
    def asked(description: str) -> Prompt[Any]:
        inner = agent(replace(asking(write_note, "arguments"), description=description))
        return prompt(
            tool(write_note, name="free"), asking(write_note, "arguments"), delegating(inner)
        )

    script = [
        call((first, {"a": 1}), ("delegate", {"a": 2})),
        call(("run", {"a": 3})),
        say("inside"),
        say("done"),
    ]
    loop, at = MainLoop(ScriptedAdapter(script)), Session()
    suspension = suspended(loop, asked("Writes."), at)
    if first == "run":  # the nested call is known only after this one has run
        suspension = suspended(
            loop, asked("Writes."), at, suspension=suspension, decisions=approvals(suspension)
        )
    assert called(suspension) == 1
    with pytest.raises(ValueError, match="have changed since the nested run"):
        loop.resume(asked("Reads."), suspension, approvals(suspension), session=at)
    execution = loop.resume(asked("Writes."), suspension, approvals(suspension), session=at)
    assert (execution.text, notes(at)) == ("done", ["1", "delegates 2", "3"])


def test_nested_rejection_reaches_the_caller_even_if_handlers_catch_it() -> None:
    def asked(description: str) -> Prompt[Any]:
        deep = agent(replace(asking(write_note), description=description), key="deep")

        def careful(inner: PromptTemplate[str]) -> Any:
            def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
                try:
                    return ToolResult(context.evaluate(inner.bind()).text)
                except Exception as error:
                    return ToolResult(f"caught {error}")

            return handler

        middle = agent(tool(careful(deep), name="dig"), key="middle")
        return prompt(tool(careful(middle), name="start"))

    script = [
        call(("start", {})),
        call(("dig", {})),
        call(("run", {"a": 1})),
        say("deep"),
        say("middle"),
        say("done"),
    ]
    loop, at = MainLoop(ScriptedAdapter(script)), Session()
    suspension = suspended(loop, asked("Writes."), at)
    assert [preview.inside for preview in suspension.pending] == [("start", "dig")]
    with pytest.raises(ValueError, match="have changed since the nested run of 'tests/deep'"):
        loop.resume(asked("Reads."), suspension, approvals(suspension), session=at)
    execution = loop.resume(asked("Writes."), suspension, approvals(suspension), session=at)
    assert [answer.content for answer in answers(execution.response.transcript)] == ["middle"]


def test_handler_can_catch_run_suspended_and_read_the_pending_previews() -> None:
    seen: list[RunSuspended] = []

    def handler(params: Args, *, context: ToolContext) -> ToolResult[object]:
        try:
            return ToolResult(context.evaluate(agent(asking(write_note)).bind()).text)
        except RunSuspended as error:
            seen.append(error)
            raise

    script = [call(("delegate", {})), WAITS]
    suspended(MainLoop(ScriptedAdapter(script)), prompt(tool(handler, name="delegate")), Session())
    [error] = seen
    assert [preview.tool for preview in error.suspension.pending] == ["run"]
    assert str(error) == (
        "the run needs approval for 1 call (run); "
        "resume it with MainLoop.resume(prompt, suspension, decisions) or "
        "Chat.resume(suspension, decisions), or pass approver="
    )


def test_parallel_suspended_calls_resume_in_order_and_keep_later_decisions() -> None:
    sent: list[int] = []
    mail = replace(mailing(sent), name="run", approval="arguments")

    def delegate(params: Args, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult(context.evaluate(agent(mail, text=f"Mail {params.a}.").bind()).text)

    def answer(seen: SeenRequest) -> AssistantMessage:
        first, *later = map(str, seen.messages)
        if "Do it." in first:
            return say("done") if later else call(("delegate", {"a": 1}), ("delegate", {"a": 2}))
        return say("sent") if later else call(("run", {"a": 1 if "Mail 1." in first else 2}))

    config = RunConfig(parallel_tool_calls="isolated")
    loop, at = MainLoop(ScriptedAdapter([answer] * 9, config=config)), Session()
    at.declare(Note)
    asked = prompt(tool(delegate, name="delegate"))
    both = suspended(loop, asked, at)
    first, second = both.pending
    again = suspended(loop, asked, at, suspension=both, decisions={second.call_id: Approve()})
    assert sent == []  # the first call is not decided, so the second has to wait
    assert again.decisions == {second.call_id: Approve()}
    assert loop.resume(asked, again, {first.call_id: Approve()}, session=at).text == "done"
    assert sent == [1, 2]


def test_rejected_nested_run_does_not_stay_suspended_after_a_call_has_run() -> None:
    def asked(description: str) -> Prompt[Any]:
        first = agent(asking(write_note, "arguments"))
        second = agent(replace(asking(write_note, "arguments"), description=description))

        def delegate(params: Args, *, context: ToolContext) -> ToolResult[object]:
            inner = first if params.a == 1 else second
            return ToolResult(context.evaluate(inner.bind()).text)

        return prompt(tool(delegate, name="delegate"))

    def answer(seen: SeenRequest) -> AssistantMessage:
        first, *later = seen.messages
        turn = sum(isinstance(message, AssistantMessage) for message in later)
        if "Inner" in str(first):
            return [call(("run", {"a": 3})), say("inside")][turn]
        return [call(("delegate", {"a": 1}), ("delegate", {"a": 2})), say("done")][turn]

    config = RunConfig(parallel_tool_calls="isolated")
    loop, at = MainLoop(ScriptedAdapter([answer] * 9, config=config)), Session()
    at.declare(Note)
    suspension = suspended(loop, asked("Writes."), at)
    assert len(suspension.pending) == 2
    with pytest.raises(ValueError, match="have changed since the nested run"):
        loop.resume(asked("Reads."), suspension, approvals(suspension), session=at)
    assert notes(at) == ["3"]  # of the first call
    with pytest.raises(ValueError, match="it was already resumed"):
        loop.resume(asked("Writes."), suspension, approvals(suspension), session=at)


def test_run_suspended_names_all_pending_calls_and_can_be_pickled() -> None:
    script = [call(("run", {"a": 1}), ("free", {"a": 2}), ("other", {"a": 3}))]
    other = replace(asking(write_note), name="other")
    asked = prompt(asking(write_note), tool(write_note, name="free"), other)
    with pytest.raises(RunSuspended) as waiting:
        MainLoop(ScriptedAdapter(script)).execute(asked, session=Session())
    again = pickle.loads(pickle.dumps(waiting.value))
    for error in (waiting.value, again):
        assert str(error) == (
            "the run needs approval for 2 calls (run, other); "
            "resume it with MainLoop.resume(prompt, suspension, decisions) or "
            "Chat.resume(suspension, decisions), or pass approver="
        )
    assert again.suspension == waiting.value.suspension


# --------------------------------------------------------------------------------------------------
# what the approver sees


def test_nested_run_of_a_later_call_starts_only_in_its_turn() -> None:
    asked = prompt(asking(write_note), delegating(agent(asking(write_note)), approval="effects"))
    script = [
        call(("run", {"a": 1}), ("delegate", {"a": 2})),
        call(("run", {"a": 3})),
        say("inside"),
        say("done"),
    ]
    adapter, at = ScriptedAdapter(script), Session()
    loop, waited = MainLoop(adapter), list[tuple[list[str], int]]()
    resumed: dict[str, Any] = {}
    for _ in range(3):
        suspension = suspended(loop, asked, at, **resumed)
        waiting = [preview.call_id for preview in suspension.pending]
        waited.append((waiting, len(adapter.requests)))
        resumed = {"suspension": suspension, "decisions": approvals(suspension)}
    assert waited == [(["call_1"], 1), (["call_2/1/call_3"], 2), (["call_2"], 3)]
    assert loop.execute(asked, session=at, **resumed).text == "done"
    assert notes(at) == ["1", "delegates 2", "3"]


def test_previewed_handler_that_catches_all_exceptions_is_still_suspended() -> None:
    def careful(params: Args, *, context: ToolContext) -> ToolResult[object]:
        try:
            return ToolResult(context.evaluate(agent(asking(write_note)).bind()).text)
        except Exception as error:
            return ToolResult(f"caught {error}")

    asked = prompt(asking(careful))
    script = [call(("run", {"a": 1})), call(("run", {"a": 2})), say("inside"), say("done")]
    loop, at = MainLoop(ScriptedAdapter(script)), Session()
    at.declare(Note)
    first = suspended(loop, asked, at)
    assert [preview.call_id for preview in first.pending] == ["call_1/1/call_2"]
    second = suspended(loop, asked, at, suspension=first, decisions=approvals(first))
    [preview] = second.pending
    assert (preview.call_id, preview.answer) == ("call_1", "inside")


def test_pending_previews_of_calls_with_one_id_have_unique_ids() -> None:
    turn = call(("run", {"a": 1}), ("run", {"a": 2}))
    same = replace(
        turn, tool_calls=tuple([replace(item, call_id="a/b") for item in turn.tool_calls])
    )
    loop, at = MainLoop(ScriptedAdapter([same, say("done")])), Session()
    asked = prompt(asking(write_note))
    suspension = suspended(loop, asked, at)
    assert [preview.call_id for preview in suspension.pending] == ["a~b", "a~b#2"]
    decisions: dict[str, Decision] = {"a~b": Deny("no"), "a~b#2": Approve()}
    try:
        loop.resume(asked, suspension, decisions, session=at)
    except RunSuspended as again:
        loop.resume(asked, again.suspension, approvals(again.suspension), session=at)
    assert notes(at) == ["2"]
