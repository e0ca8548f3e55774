"""A suspended run resumes as if it had never stopped."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.agents import Args, Note, answers, ok, prompt, tool
from support.approvals import Which, asking
from support.programs import STATE, Program, programs, run, session
from support.suspensions import opening
from weakincentives.errors import SerdeError
from weakincentives.evaluation.approval import (
    Approve,
    Approver,
    Decision,
    Deny,
    Preview,
    ReplaceArguments,
)
from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.errors import BudgetExceededError, DeadlineExceededError
from weakincentives.evaluation.main_loop import Execution, MainLoop
from weakincentives.evaluation.messages import AssistantMessage, ToolCall
from weakincentives.evaluation.response import ApprovalRequested
from weakincentives.evaluation.suspension import RunSuspended, Suspension
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.limits import Budget, Deadline, utc_now
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.prompt.approval_rules import ApprovalMode
from weakincentives.runtime.session import Session
from weakincentives.testing.scripted import ScriptedAdapter, call, say


def execute_suspended(
    loop: MainLoop, asked: Prompt[Any], at: Session, decide: Approver, **options: Any
) -> tuple[Execution[Any], int]:
    """Runs to the end; resumes each suspended run from JSON, with all decisions."""
    resumed: dict[str, Any] = options
    for times in range(100):
        try:
            return loop.execute(asked, session=at, **resumed), times
        except RunSuspended as waiting:
            text = waiting.suspension.to_json()
            suspension = Suspension.from_json(text)
            if suspension != waiting.suspension:
                raise AssertionError("JSON has changed the suspension") from None
            decisions = {item.call_id: decide(item) for item in suspension.pending}
            resumed = {
                **{name: value for name, value in options.items() if name == "budget"},
                "suspension": suspension,
                "decisions": decisions,
            }
    raise AssertionError("the run waits for ever")


ASKING = prompt(asking(ok))


def test_call_that_needs_approval_suspends_a_run_without_an_approver() -> None:
    saved: list[Conversation] = []
    with pytest.raises(RunSuspended) as waiting:
        ScriptedAdapter([call(("run", {}))]).evaluate(ASKING, session=Session(), save=saved.append)
    [preview], [conversation] = waiting.value.suspension.pending, saved
    [answer] = answers(conversation.messages)
    assert (preview.call_id, answer.success) == (answer.call_id, False)


# --------------------------------------------------------------------------------------------------
# the law


@settings(max_examples=80)
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
    )
)
def test_suspended_run_gives_the_same_result_as_with_an_approver(
    turns: list[list[tuple[Program, Any, bool]]],
) -> None:
    calls = [item for turn in turns for item in turn]

    def handler(params: Which, *, context: ToolContext) -> ToolResult[object]:
        return run(calls[params.number][0], context)

    def mode(params: Which) -> Any:
        return calls[params.number][1]

    def decide(preview: Preview) -> Decision:
        number = int("".join(filter(str.isdigit, preview.arguments)))
        return Deny("no") if calls[number][2] else Approve()

    def outcome(how: str) -> object:
        numbers = iter(range(len(calls)))
        script = [call(*[("run", {"number": next(numbers)}) for _ in turn]) for turn in turns]
        loop = MainLoop(ScriptedAdapter([*script, say("done")]))
        at, asked = session(), prompt(asking(handler, mode, params=Which))
        if how == "approver":
            execution = loop.execute(asked, session=at, approver=decide)
        else:
            execution, _ = execute_suspended(loop, asked, at, decide)
        response = execution.response
        return (
            response.conversation,
            response.usage,
            response.turns,
            execution.usage,
            [at[kind].all() for kind in STATE],
            at.snapshot().to_json(),
        )

    wanted, suspended = outcome("approver"), outcome("suspended")
    assert suspended == wanted


# --------------------------------------------------------------------------------------------------
# pending calls


def writing(params: Args, *, context: ToolContext) -> ToolResult[object]:
    context.session.dispatch(Note(str(params.a)))
    return ToolResult(f"wrote {params.a}")


def suspended(
    *calls: Any, tools: Sequence[Tool[Any, Any]] = (), at: Session | None = None, **options: Any
) -> tuple[MainLoop, Prompt[Any], Session, Suspension]:
    """Returns a run whose calls in one turn are pending."""
    loop = MainLoop(ScriptedAdapter([call(*calls), say("done")]))
    asked = prompt(*(tools or (asking(writing),)))
    at = at or Session()
    with pytest.raises(RunSuspended) as waiting:
        loop.execute(asked, session=at, **options)
    return loop, asked, at, waiting.value.suspension


def test_resume_with_some_decisions_runs_the_first_calls_and_suspends_again() -> None:
    loop, asked, at, suspension = suspended(
        ("run", {"a": 1}),
        ("run", {"a": 2}),
        ("run", {"a": 3}),
        tools=[asking(writing, "arguments")],
    )
    decisions: dict[str, Decision] = {"call_1": Approve(), "call_3": Deny("not 3")}
    with pytest.raises(RunSuspended) as waiting:
        loop.resume(asked, suspension, decisions, session=at)
    assert [note.text for note in at[Note].all()] == ["1"]
    again = Suspension.from_json(waiting.value.suspension.to_json())
    assert [preview.call_id for preview in again.pending] == ["call_2", "call_3"]
    assert again.decisions == {"call_3": Deny("not 3")}
    execution = loop.resume(asked, again, {"call_2": Approve()}, session=at)
    assert [note.text for note in at[Note].all()] == ["1", "2"]
    assert answers(execution.response.transcript)[-1].content == "A person denied this call. not 3"


def test_changed_call_is_previewed_again_with_a_reason() -> None:
    def counting(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note(f"note {len(context.session[Note])}"))
        return ToolResult("ok")

    loop, asked, at, suspension = suspended(("run", {}), tools=[asking(counting)])
    at.dispatch(Note("meanwhile"))
    with pytest.raises(RunSuspended) as waiting:
        loop.resume(asked, suspension, {"call_1": Approve()}, session=at)
    [preview] = waiting.value.suspension.pending
    assert "asked about again" in preview.reason
    loop.resume(asked, waiting.value.suspension, {"call_1": Approve()}, session=at)
    assert [note.text for note in at[Note].all()] == ["meanwhile", "note 1"]


def test_early_approval_of_a_changed_call_is_dropped() -> None:
    words = ["old"]

    def write(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note(f"{params.a} {words[-1]}"))
        return ToolResult("ok")

    def wait(**resumed: Any) -> Suspension:
        with pytest.raises(RunSuspended) as waiting:
            loop.execute(prompt(asking(write)), session=at, **resumed)
        return waiting.value.suspension

    calls = call(*[("run", {"a": a}) for a in (1, 2, 3)])
    loop, at = MainLoop(ScriptedAdapter([calls, say("done")])), Session()
    early: dict[str, Decision] = {"call_2": Approve(), "call_3": Deny("no")}
    kept = wait(suspension=wait(), decisions=early)
    assert kept.decisions == early
    words.append("new")
    assert wait(suspension=kept, decisions={}).decisions == {"call_3": Deny("no")}


def test_resume_asks_the_approver_where_a_decision_is_missing() -> None:
    loop, asked, at, suspension = suspended(("run", {"a": 1}), ("run", {"a": 2}))
    loop.resume(asked, suspension, {"call_1": Deny()}, session=at, approver=lambda _: Approve())
    assert [note.text for note in at[Note].all()] == ["2"]


def test_replaced_arguments_are_previewed_before_they_take_effect() -> None:
    loop, asked, at, suspension = suspended(("run", {"a": 1}))
    with pytest.raises(RunSuspended) as waiting:
        loop.resume(asked, suspension, {"call_1": ReplaceArguments({"a": 9})}, session=at)
    again = Suspension.from_json(waiting.value.suspension.to_json())
    assert [item.arguments for item in again.pending] == ['{"a": 9}']
    execution = loop.resume(asked, again, {"call_1": Approve()}, session=at)
    assert [note.text for note in at[Note].all()] == ["9"]
    [answer] = answers(execution.response.transcript)
    assert answer.content == 'The arguments were replaced by {"a": 9}\n\nwrote 9'


@pytest.mark.parametrize("decision", [Deny(), Approve()], ids=["denied", "approved"])
def test_replaced_arguments_require_a_decision_even_if_the_approval_changes(
    decision: Decision,
) -> None:
    def by_state(params: Args, *, session: Session) -> ApprovalMode:
        return "arguments" if session[Note].all() else "effects"

    tools = [replace(asking(writing), approval=by_state)]
    loop, asked, at, suspension = suspended(("run", {"a": 1}), tools=tools)
    with pytest.raises(RunSuspended) as waiting:
        loop.resume(asked, suspension, {"call_1": ReplaceArguments({"a": 9})}, session=at)
    at.dispatch(Note("meanwhile"))
    try:
        loop.resume(asked, waiting.value.suspension, {"call_1": decision}, session=at)
    except RunSuspended as again:  # approving effects does not approve arguments
        [preview] = again.suspension.pending
        assert (preview.approval, preview.arguments) == ("arguments", '{"a": 9}')
        loop.resume(asked, again.suspension, {"call_1": decision}, session=at)
    approved = ["9"] if isinstance(decision, Approve) else []
    assert [note.text for note in at[Note].all()] == ["meanwhile", *approved]


@pytest.mark.parametrize("how", ["selector", "tool"])
@pytest.mark.parametrize("waits_on", [False, True])
@pytest.mark.parametrize(
    ("decision", "outcome"), [(Deny("no"), []), (ReplaceArguments({"a": 9}), ["9"])]
)
def test_denial_or_replacement_applies_even_if_approval_is_no_longer_required(
    decision: Decision, outcome: list[str], how: str, *, waits_on: bool
) -> None:
    def by_state(params: Args, *, session: Session) -> ApprovalMode | None:
        return None if session[Note].all() else "effects"

    first = replace(asking(writing), name="first")
    tools = [first, replace(asking(writing), approval=by_state)]
    loop, asked, at, suspension = suspended(("first", {"a": 1}), ("run", {"a": 2}), tools=tools)
    if how == "tool":
        asked = prompt(first, replace(asking(writing), approval=None))
    decisions: dict[str, Decision] = {"call_2": decision}
    if waits_on:
        at.dispatch(Note("meanwhile"))
        with pytest.raises(RunSuspended) as waiting:
            loop.resume(asked, suspension, decisions, session=at)
        suspension, decisions = waiting.value.suspension, {}
        assert suspension.decisions == {"call_2": decision}
    loop.resume(asked, suspension, {"call_1": Approve(), **decisions}, session=at)
    notes = [note.text for note in at[Note].all() if note.text != "meanwhile"]
    assert notes == ["1", *outcome]


def test_at_most_once_call_is_not_run_again_after_a_restart() -> None:
    ran: list[int] = []

    def once(params: Args, *, context: ToolContext) -> ToolResult[object]:
        ran.append(params.a)
        return ToolResult("sent")

    more = MarkdownSection(
        title="More",
        template="Plan.",
        summary="A plan.",
        tools=[tool(ok, name="late")],
        visibility=SectionVisibility.SUMMARY,
    )
    mail = replace(asking(once, "arguments", effect="at_most_once"), name="mail")
    task = MarkdownSection(title="Task", template="Do it.", tools=[mail])
    template = PromptTemplate[str](ns="tests", key="agent", sections=[task, more])
    script = [
        call(("mail", {"a": 1})),
        call(("read_section", {"section_key": "more"})),
        call(("mail", {"a": 1})),
        say("done"),
    ]
    adapter = ScriptedAdapter(script, dynamic_tools=False)
    execution, times = execute_suspended(
        MainLoop(adapter), template.bind(), Session(), lambda _: Approve()
    )
    assert (ran, times, execution.restarts) == ([1], 1, 1)


@pytest.mark.parametrize("message", [None, "Go on."])
@pytest.mark.parametrize("max_calls", [None, 4, 3])
def test_run_suspended_after_a_restart_matches_a_run_with_an_approver(
    message: str | None, max_calls: int | None
) -> None:
    asked = opening([tool(ok, name="late")], [asking(writing)])
    script = [
        call(("read_section", {"section_key": "more"})),
        call(("run", {"a": 1})),
        call(("late", {})),
        say("done"),
    ]
    budget = None if max_calls is None else Budget(max_calls=max_calls)

    def outcome(*, waits: bool) -> object:
        loop, at = MainLoop(ScriptedAdapter(list(script), dynamic_tools=False)), Session()
        options: dict[str, Any] = {"message": message, "budget": budget}
        try:
            if waits:
                execution, _ = execute_suspended(loop, asked, at, lambda _: Approve(), **options)
            else:
                execution = loop.execute(asked, session=at, approver=lambda _: Approve(), **options)
        except BudgetExceededError as error:
            return str(error), error.usage, error.turns, at[Note].all()
        whole = execution.whole_response
        return execution.expansions, execution.usage, whole.turns, execution.conversation

    assert outcome(waits=True) == outcome(waits=False)


@pytest.mark.parametrize("message", [None, "Hi"])
def test_suspension_contains_the_message_of_the_run(
    message: str | None,
) -> None:
    _, _, _, suspension = suspended(("run", {"a": 1}), message=message)
    assert suspension.message == message


def test_resume_requires_a_suspension() -> None:
    loop, asked, at, suspension = suspended(("run", {"a": 1}))
    wrong: Any = suspension.to_json()
    with pytest.raises(
        TypeError, match=r"^suspension must be the suspension of a RunSuspended error, got '"
    ):
        loop.resume(asked, wrong, {}, session=at)


def test_suspended_time_is_not_charged_to_max_seconds() -> None:
    late, budget = timedelta(), Budget(max_seconds=600)

    def clock() -> datetime:
        return utc_now() + late

    script = [call(("run", {"a": 1})), say("done"), call(("run", {"a": 1}))]
    loop = MainLoop(ScriptedAdapter(script, clock=clock), clock=clock)
    asked = prompt(asking(writing))
    for passed in (False, True):
        late = timedelta()
        first = Deadline(clock() + timedelta(seconds=600))
        with pytest.raises(RunSuspended) as waiting:
            loop.execute(asked, session=Session(), deadline=first, budget=budget)
        late = timedelta(days=2)
        suspension = waiting.value.suspension
        decisions = {preview.call_id: Approve() for preview in suspension.pending}
        resume = partial(loop.resume, asked, suspension, decisions, budget=budget)
        if passed:
            with pytest.raises(DeadlineExceededError):
                resume(session=Session(), deadline=first)
        else:
            later = Deadline(clock() + timedelta(seconds=600))
            assert resume(session=Session(), deadline=later).response.text == "done"


# --------------------------------------------------------------------------------------------------
# rejections


@pytest.mark.claim("N-12")
def test_run_can_be_resumed_only_once() -> None:
    loop, asked, at, suspension = suspended(("run", {"a": 1}))
    loop.resume(asked, suspension, {"call_1": Approve()}, session=at)
    with pytest.raises(
        ValueError,
        match=r"^the run of 'tests/agent' is not suspended in this session",
    ):
        loop.resume(asked, suspension, {"call_1": Approve()}, session=at)
    assert len(at[Note]) == 1


def test_run_without_state_can_be_resumed_only_once() -> None:
    sent = list[str]()

    def send(params: Args, context: ToolContext) -> ToolResult[None]:
        sent.append("letter")
        return ToolResult(message="Sent.")

    loop = MainLoop(ScriptedAdapter([call(("run", {"a": 1})), say("done")]))
    asked, at = prompt(asking(send, "arguments")), Session()
    with pytest.raises(RunSuspended) as waiting:
        loop.execute(asked, session=at)
    suspension = waiting.value.suspension
    loop.resume(asked, suspension, {"call_1": Approve()}, session=at)
    with pytest.raises(
        ValueError, match="is not suspended in this session: it was already resumed"
    ):
        loop.resume(asked, suspension, {"call_1": Approve()}, session=at)
    assert sent == ["letter"]


@pytest.mark.parametrize(
    ("decisions", "message"),
    [
        (
            {"call_9": Approve()},
            "^decisions must be for suspended calls, \\['call_1'\\], got one for 'call_9'",
        ),
        ({"call_1": True}, "^the decision on 'call_1' must be Approve.*, got True"),
    ],
    ids=["unknown call", "no decision"],
)
def test_resume_rejects_decisions_on_unknown_calls_or_of_another_type(
    decisions: Any, message: str
) -> None:
    loop, asked, at, suspension = suspended(("run", {"a": 1}))
    with pytest.raises((ValueError, TypeError), match=message):
        loop.resume(asked, suspension, decisions, session=at)
    with pytest.raises((ValueError, TypeError), match=message):
        suspension.decide(decisions)
    loop.resume(asked, suspension, {"call_1": Approve()}, session=at)  # it is still suspended


def test_resume_rejects_another_prompt_a_changed_tool_and_a_message() -> None:
    loop, _, at, suspension = suspended(("run", {"a": 1}))
    section = MarkdownSection(title="Task", template="Do it.", tools=[asking(writing)])
    other = PromptTemplate[str](ns="tests", key="other", sections=[section]).bind()
    with pytest.raises(
        ValueError,
        match=r"^the suspended run is of prompt 'tests/agent', not of 'tests/oth",
    ):
        loop.resume(other, suspension, {}, session=at)
    changed = prompt(replace(asking(writing), description="Writes everything."))
    with pytest.raises(ValueError, match=r"^the tools \['run'\] have changed since the run of "):
        loop.resume(changed, suspension, {}, session=at)
    with pytest.raises(ValueError, match="message= cannot be passed when resuming"):
        loop.resume(prompt(asking(writing)), suspension, {}, session=at, message="hello")


def test_json_of_another_format_or_version_raises_serde_error() -> None:
    _, _, _, suspension = suspended(("run", {"a": 1}))
    text = suspension.to_json()
    other_version = text.replace('"version":2', '"version":3')
    for wrong in ("{}", other_version, text.replace('"key":"1/call_1"', '"key":"1/x"', 1)):
        with pytest.raises(SerdeError):
            Suspension.from_json(wrong)


NOT_PENDING = "log: the log does not end with calls that are pending approval"
NO_PROMPT = "log: the log does not contain a rendered prompt"
NOT_MADE = "log: an answer belongs to a call that was not made"
NOT_NESTED = "log: a run is nested in a call that was not made"
CALLED = {
    "kind": "called",
    "key": "1/call_3",
    "call": {"call_id": "call_3", "name": "run", "arguments": "{}"},
    "answer": {"kind": "tool", "call_id": "call_3", "content": "forged"},
}


INSIDE = {"tool": "run", "arguments": "{}", "runs": []}


def edited(suspension: Suspension, **changes: object) -> str:
    """Returns the suspension's JSON with other values at paths such as `pending__0__tool`."""
    value: Any = json.loads(suspension.to_json())
    for path, new in changes.items():
        *parents, last = [int(key) if key.isdigit() else key for key in path.split("__")]
        at = value
        for key in parents:
            at = at[key]
        at[last] = new
    return json.dumps(value)


@pytest.mark.parametrize(
    ("changes", "issue"),
    [
        ({"log__entries": []}, NO_PROMPT),
        ({"log__entries__3": {"kind": "answered", "reply": {"kind": "assistant"}}}, NOT_PENDING),
        ({"log__entries__2__preview__call_id": "call_2"}, "log: a preview belongs to another call"),
        ({"log__entries__2__preview__tool": "read"}, "log: a preview belongs to another call"),
        ({"log__entries__2__key": "1/call_2"}, "log: a preview belongs to another call"),
        ({"log__entries__2": CALLED}, NOT_MADE),
        ({"log__inside": {"x/call_1": INSIDE}}, NOT_NESTED),
        ({"log__inside": {"9" * 5_000: INSIDE}}, NOT_NESTED),
        ({"log__entries__0__conversation": None}, NO_PROMPT),
        ({"log__entries__0__conversation__messages": []}, NO_PROMPT),
        ({"unknown": 1}, "unknown"),
        ({"log__on_change": "forget"}, "log.on_change"),
        ({"log__entries__2__kind": "perhaps"}, "log.entries"),
    ],
    ids=str,
)
def test_inconsistent_suspension_json_raises_serde_error(
    changes: dict[str, object], issue: str
) -> None:
    _, _, _, suspension = suspended(("run", {"a": 1}), ("run", {"a": 2}))
    assert Suspension.from_json(edited(suspension)) == suspension
    with pytest.raises(SerdeError) as refused:
        Suspension.from_json(edited(suspension, **changes))
    assert str(refused.value.issues[0]).startswith(issue)


@pytest.mark.parametrize(
    "text",
    ["", "null", "3", b"\xff\xfe{", "[" * 200_000, '{"a":' * 100_000, f'{{"turns":{"9" * 5_000}}}'],
    ids=["nothing", "null", "number", "no UTF-8", "lists", "objects", "digits"],
)
def test_malformed_suspension_text_raises_serde_error(text: str | bytes) -> None:
    with pytest.raises(SerdeError):
        Suspension.from_json(text)
    loop, asked, _, suspension = suspended(("run", {"a": 1}))
    wrong = text.decode(errors="replace") if isinstance(text, bytes) else text
    with pytest.raises(SerdeError):
        loop.resume(asked, replace(suspension, session=wrong), {}, session=Session())


def test_suspension_can_contain_only_state_types_of_the_prompt_and_session() -> None:
    loop, asked, _, suspension = suspended(("run", {"a": 1}))
    slices = {**json.loads(suspension.session)["slices"], "os:system": [{"command": "true"}]}
    forged = replace(suspension, session=json.dumps({"version": 1, "slices": slices}))
    with pytest.raises(SerdeError, match="no type of that name is known here"):
        loop.resume(asked, forged, {"call_1": Approve()}, session=Session())


def test_unserializable_state_raises_serde_error_on_suspension() -> None:
    at = Session()
    at[object].append(object())
    loop = MainLoop(ScriptedAdapter([call(("run", {})), say("done")]))
    with pytest.raises(SerdeError):
        loop.execute(prompt(asking(writing)), session=at)


def test_suspension_does_not_contain_resources() -> None:
    files = InMemoryFilesystem({"key": "hunter2-very-secret"})
    loop = MainLoop(ScriptedAdapter([call(("run", {})), say("done")]))
    asked = prompt(asking(writing)).bind(resources={Filesystem: files})
    with pytest.raises(RunSuspended) as waiting:
        loop.execute(asked, session=Session())
    assert "hunter2" not in waiting.value.suspension.to_json()


# --------------------------------------------------------------------------------------------------
# every way to run


def test_async_runs_and_streams_can_be_suspended_and_resumed() -> None:
    decisions: Mapping[str, Decision] = {"call_1": Approve()}

    async def both() -> None:
        loop = MainLoop(ScriptedAdapter([call(("run", {"a": 1})), say("done")]))
        asked, at = prompt(asking(writing)), Session()
        with pytest.raises(RunSuspended) as waiting:
            await loop.execute_async(asked, session=at)
        await loop.resume_async(asked, waiting.value.suspension, decisions, session=at)
        assert len(at[Note]) == 1

    asyncio.run(both())
    loop = MainLoop(ScriptedAdapter([call(("run", {"a": 1})), say("done")]))
    asked, at = prompt(asking(writing)), Session()
    events: list[Any] = []
    with pytest.raises(RunSuspended) as waiting:
        events.extend(loop.stream(asked, session=at))
    suspension = waiting.value.suspension
    requested = [event for event in events if isinstance(event, ApprovalRequested)]
    assert tuple([event.preview for event in requested]) == suspension.pending
    assert [event.call for event in requested] == [ToolCall("call_1", "run", '{"a": 1}')]
    stream = loop.stream(asked, session=at, suspension=suspension, decisions=decisions)
    events = list(stream)
    assert events[-1].response.text == "done"
    assert not [event for event in events if isinstance(event, ApprovalRequested)]


def test_suspended_chat_turn_resumes_and_the_chat_continues() -> None:
    loop = MainLoop(ScriptedAdapter([call(("run", {"a": 1})), say("done"), say("more")]))
    chat = Chat(loop, prompt(asking(writing)), session=Session())
    with pytest.raises(RunSuspended) as waiting:
        chat.send("Write it.")
    assert chat.conversation is not None
    assert answers(chat.conversation.messages)[0].content.startswith("Not run: a person has not")
    assert chat.resume(waiting.value.suspension, {"call_1": Approve()}).text == "done"
    assert chat.send("And now?").text == "more"
    with pytest.raises(ValueError, match="the chat has continued"):
        chat.resume(waiting.value.suspension, {"call_1": Approve()})


def test_arguments_encoded_twice_are_previewed_as_the_tool_receives_them() -> None:
    ran: list[int] = []

    def run_it(params: Args, *, context: ToolContext) -> ToolResult[object]:
        ran.append(params.a)
        return ToolResult("ok")

    asked = prompt(asking(run_it, "arguments"))
    twice = ToolCall("c1", "run", json.dumps('{"\\u0061": 4}'))
    replies = [AssistantMessage(tool_calls=(twice,), finish="tool_calls"), say("done")]
    session, loop = Session(), MainLoop(ScriptedAdapter(replies))
    with pytest.raises(RunSuspended) as waiting:
        loop.execute(asked, session=session)
    suspension = Suspension.from_json(waiting.value.suspension.to_json())
    [preview] = suspension.pending
    assert json.loads(preview.arguments) == {"a": 4}
    loop.resume(asked, suspension, {"c1": Approve()}, session=session)
    assert ran == [4]


def test_resume_accepts_the_models_own_arguments_as_replacement() -> None:
    asked = prompt(asking(ok, "arguments"))
    replies = [call(("run", {"a": None})), say("done")]
    session, loop = Session(), MainLoop(ScriptedAdapter(replies))
    with pytest.raises(RunSuspended) as waiting:
        loop.execute(asked, session=session)
    [preview] = waiting.value.suspension.pending
    same = ReplaceArguments(json.loads(preview.arguments))
    done = loop.resume(asked, waiting.value.suspension, {preview.call_id: same}, session=session)
    assert done.text == "done"
