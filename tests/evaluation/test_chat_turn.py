"""A chat's turn is in its session from the first step, so a stopped turn can always continue."""

import json
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import pytest

from support.agents import Args, Note, tool
from support.run_trees import PICTURE
from weakincentives.adapters.fallback import FallbackAdapter
from weakincentives.evaluation.approval import Approve
from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.chat_turn import ChatTurn
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.errors import ChangedRunError, PromptEvaluationError
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage, ToolMessage, media_of
from weakincentives.evaluation.response import AnswerRejected, ToolCallFinished
from weakincentives.evaluation.suspension import RunSuspended, SuspendedRun, Suspension
from weakincentives.limits import Budget
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.prompt.errors import VisibilityExpansionRequired
from weakincentives.runtime.events import (
    EvaluationStopped,
    Event,
    PromptExecuted,
    PromptRendered,
    ProviderCalled,
    ToolInvoked,
)
from weakincentives.runtime.session import Session
from weakincentives.testing import Reply, ScriptedAdapter, SeenRequest, call, say

PAID: list[int] = []


@dataclass(frozen=True)
class NoParams:
    pass


def note(params: Args, *, context: ToolContext) -> ToolResult[object]:
    context.session.dispatch(Note(f"did {params.a}"))
    return ToolResult(f"did {params.a}")


def pay(params: Args, *, context: ToolContext) -> ToolResult[object]:
    PAID.append(params.a)
    if params.a < 0:
        raise KeyboardInterrupt
    return ToolResult(f"paid {params.a}")


def prompt(key: str = "k", *more: Tool[Any, Any]) -> Prompt[Any]:
    paying = Tool[Args, object](name="pay", description="p", handler=pay, effect="at_most_once")
    section = MarkdownSection(
        title="Task",
        template="Do.",
        tools=[tool(note, name="note"), paying, *more],
        state=[Note],
    )
    return PromptTemplate[None](ns="tests", key=key, sections=[section]).bind()


def chat_of(*script: Reply) -> Chat[Any]:
    return Chat(MainLoop(ScriptedAdapter([*script])), prompt(), session=Session())


def session_of(chat: Chat[Any]) -> Session:
    assert isinstance(chat.session, Session)
    return chat.session


def in_another_process(text: str, *script: Reply) -> Chat[Any]:
    """Returns the chat whose session was stored as `text`."""
    chat = chat_of(*script)
    session = session_of(chat)
    session.restore(session.parse_snapshot(text))
    return chat


def stop(_: object) -> AssistantMessage:
    raise KeyboardInterrupt


def stopped(*script: Reply) -> Chat[Any]:
    """Returns a chat whose first turn stopped at the end of the script."""
    chat = chat_of(*script, stop)
    with pytest.raises(KeyboardInterrupt):
        chat.send("Go")
    return chat


def answers(chat: Chat[Any]) -> list[str]:
    assert chat.conversation is not None
    return [item.text for item in chat.conversation.messages if isinstance(item, ToolMessage)]


@pytest.fixture(autouse=True)
def _nothing_paid() -> None:
    PAID.clear()


def test_snapshots_within_a_turn_continue_elsewhere_without_repeating_calls() -> None:
    calls = call(("note", {"a": 1}), ("pay", {"a": 2})), call(("pay", {"a": 3}))
    chat, texts = chat_of(*calls, say("Done.")), list[str]()
    session = session_of(chat)
    session.bus.subscribe(ToolInvoked, lambda _: texts.append(session.snapshot().to_json()))
    chat.send("Go")
    paid = [*PAID]
    assert paid == [2, 3]
    for done, text in enumerate(texts, 1):
        PAID[:] = []
        script = [calls[1], say("Done.")] if done < len(texts) else [say("Done.")]
        again = in_another_process(text, *script)
        assert len(answers(again)) == done + (done == 1)  # the second call of the first turn
        assert again.send().text == "Done."
        assert answers(again) == answers(chat)
        assert again.session[Note].all() == chat.session[Note].all()
        assert paid[max(done - 1, 0) :] == PAID


def test_turn_budget_applies_across_a_stop() -> None:
    budget = Budget(max_calls=1)
    chat = chat_of(call(("note", {"a": 1})))
    session_of(chat).bus.subscribe(ToolInvoked, stop)
    with pytest.raises(KeyboardInterrupt):
        chat.send("Go", budget=budget)
    again = in_another_process(session_of(chat).snapshot().to_json(), say("Done."))
    with pytest.raises(PromptEvaluationError, match="calls"):
        again.send(budget=budget)
    assert again.send().text == "Done."  # a turn that was ended by an error starts counting at zero


def test_unsaved_answer_is_returned_without_another_request() -> None:
    whole = chat_of(call(("note", {"a": 1})), say("Done."))
    whole.send("Go")
    chat = chat_of(call(("note", {"a": 1})), say("Done."))
    session_of(chat).bus.subscribe(PromptExecuted, stop)
    with pytest.raises(KeyboardInterrupt):
        chat.send("Go")
    assert chat.conversation == whole.conversation
    again = in_another_process(session_of(chat).snapshot().to_json())
    assert again.send().text == "Done."
    assert again.conversation == whole.conversation


@pytest.mark.parametrize("copied", [deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copied_snapshot_of_a_stopped_turn_continues(copied: Callable[[object], Any]) -> None:
    chat = stopped(call(("note", {"a": 1})))
    again = chat_of(say("Done."))
    session_of(again).restore(copied(session_of(chat).snapshot()))
    assert again.send().text == "Done."
    assert answers(again) == ["did 1"]


def test_next_message_after_a_stop_keeps_the_results_of_the_stopped_turn() -> None:
    chat = stopped(call(("note", {"a": 1})))
    again = in_another_process(session_of(chat).snapshot().to_json(), say("Done."))
    assert again.send("Go on").text == "Done."
    assert answers(again) == ["did 1"]
    assert again.session[ChatTurn].all() == ()


def test_interrupted_at_most_once_call_is_not_repeated_when_the_chat_continues() -> None:
    chat = chat_of(call(("pay", {"a": -1}), ("note", {"a": 1})))
    with pytest.raises(KeyboardInterrupt):
        chat.send("Go")
    text = session_of(chat).snapshot().to_json()
    repeats = call(("pay", {"a": -1}))
    for message in ([], ["Go on"]):
        again = in_another_process(text, repeats, say("Done."))
        assert again.send(*message).text == "Done."
        assert PAID == [-1]
        assert "outcome is unknown" in answers(again)[0]


def test_stopped_turn_is_dropped_if_the_conversation_was_replaced() -> None:
    chat = stopped(call(("note", {"a": 1})))
    other = chat_of(say("Hello."))
    other.send("Hi")
    assert other.conversation is not None
    chat.session[Conversation].append(other.conversation)
    assert chat.conversation == other.conversation


def test_stopped_chat_inside_a_call_continues_in_the_same_call() -> None:
    session = Session()

    def ask(params: NoParams, *, context: ToolContext) -> ToolResult[object]:
        inner = Chat(MainLoop(context.adapter), prompt("inner"), session=session)
        with closing(inner.stream("Inside")) as events:
            next(event for event in events if isinstance(event, ToolCallFinished))
        return ToolResult(inner.send().text)

    asking = Tool[NoParams, object](name="ask", description="a", handler=ask)
    script = [call(("ask", {})), call(("note", {"a": 1})), say("In."), say("Out.")]
    adapter = ScriptedAdapter(script)
    chat = Chat(MainLoop(adapter), prompt("outer", asking), session=Session())
    assert chat.send("Outside").text == "Out."
    assert answers(chat) == ["In."]
    assert [item.text for item in session[Note]] == ["did 1"]


class Unreachable(ScriptedAdapter):
    """Connects only while there is no `failure`."""

    failure: BaseException | None = None

    def connect(self, rendered: Any) -> Any:
        if self.failure is not None:
            raise self.failure
        return super().connect(rendered)


def test_stopped_turn_is_unchanged_if_continuing_fails_to_connect() -> None:
    adapter = Unreachable([call(("pay", {"a": 2}), ("note", {"a": 1})), say("Done.")])
    chat = Chat(MainLoop(adapter), prompt(), session=Session())
    unsubscribe = session_of(chat).bus.subscribe(ToolInvoked, stop)
    with pytest.raises(KeyboardInterrupt):
        chat.send("Go")
    unsubscribe()
    before, adapter.failure = chat.conversation, ConnectionError("no network")
    with pytest.raises(ConnectionError):
        chat.send()
    assert chat.conversation == before
    adapter.failure = None
    assert chat.send().text == "Done."
    assert answers(chat) == ["paid 2", "did 1"]
    assert PAID == [2]


def test_message_of_a_turn_stopped_before_its_first_request_is_sent_later() -> None:
    chat = chat_of(say("Done."))
    session_of(chat).bus.subscribe(PromptRendered, stop)
    with pytest.raises(KeyboardInterrupt):
        chat.send(["See this.", PICTURE])
    again = in_another_process(session_of(chat).snapshot().to_json(), say("Done."))
    assert again.send().text == "Done."
    assert again.conversation is not None
    assert again.conversation.messages[1].text.startswith("See this.")


def test_image_of_a_turn_stopped_before_it_connects_is_sent_later() -> None:
    adapter = Unreachable([say("Done.")])
    adapter.failure = KeyboardInterrupt()
    chat = Chat(MainLoop(adapter), prompt(), session=Session())
    with pytest.raises(KeyboardInterrupt):
        chat.send(["See this.", PICTURE])
    adapter.failure = None
    assert chat.send().text == "Done."
    [request] = adapter.requests
    [sent] = media_of(request.messages[1])
    assert session_of(chat).content.load(sent) == PICTURE.data


def test_turn_with_a_lone_surrogate_is_stored() -> None:
    adapter = ScriptedAdapter([call(("note", {"a": 1})), stop])
    chat = Chat(MainLoop(adapter), prompt(), session=Session())
    with pytest.raises(KeyboardInterrupt):
        chat.send("Half \ud83d of it")
    again = in_another_process(session_of(chat).snapshot().to_json(), say("Done."))
    assert again.send().text == "Done."


@dataclass(frozen=True)
class Live:
    connect: Callable[[], None]


def test_nested_run_can_keep_state_that_is_not_json_serializable() -> None:
    def keep(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Live(lambda: None))
        return ToolResult("kept")

    inner = prompt("inner", Tool[Args, object](name="keep", description="k", handler=keep))
    asking = Tool.from_prompt(inner.template, name="ask", description="a")
    script = [call(("ask", {"message": "x"})), call(("keep", {"a": 1})), say("In."), say("Out.")]
    adapter = ScriptedAdapter(script)
    chat = Chat(MainLoop(adapter), prompt("outer", asking), session=Session())
    assert chat.send("Go").text == "Out."
    assert answers(chat) == ["In."]
    assert len(chat.session[Live]) == 1


def test_interrupted_call_stays_unknown_if_its_tool_was_removed() -> None:
    chat = chat_of(call(("pay", {"a": -1})))
    with pytest.raises(KeyboardInterrupt):
        chat.send("Go")
    task = MarkdownSection(title="Task", template="Do.", state=[Note])
    other = PromptTemplate[None](ns="tests", key="k", sections=[task]).bind()
    again = Chat(MainLoop(ScriptedAdapter([say("Done.")])), other, session=chat.session)
    assert again.send().text == "Done."
    assert "outcome is unknown" in answers(again)[0]


def test_conversation_can_be_read_from_another_thread_during_a_turn() -> None:
    asking = Tool.from_prompt(prompt("inner").template, name="ask", description="a")
    script = [call(("ask", {"message": "x"})), say("In.")] * 30
    adapter = ScriptedAdapter([*script, say("Out.")])
    chat = Chat(MainLoop(adapter), prompt("outer", asking), session=Session())
    with ThreadPoolExecutor(1) as threads:
        turn = threads.submit(chat.send, "Go")
        while not turn.done():
            known, text = chat.conversation, session_of(chat).snapshot().to_json()
            assert known is None or Conversation.from_json(known.to_json()) == known
            assert text
    assert turn.result().text == "Out."


@pytest.mark.parametrize("ends", [True, False])
def test_restoring_a_snapshot_taken_within_a_turn_restores_the_chat(*, ends: bool) -> None:
    again = call(("note", {"a": 2}))
    last: Reply = say("Done.") if ends else stop
    chat = chat_of(call(("note", {"a": 1})), again, last, again, say("Done."))
    session, snapshots = session_of(chat), list[Any]()
    session.bus.subscribe(ToolInvoked, lambda _: snapshots.append(session.snapshot()))
    with nullcontext() if ends else pytest.raises(KeyboardInterrupt):
        chat.send("Go")
    assert answers(chat) == ["did 1", "did 2"]
    session.restore(snapshots[0])
    assert answers(chat) == ["did 1"]
    assert [item.text for item in session[Note]] == ["did 1"]
    assert chat.send().text == "Done."
    assert answers(chat) == ["did 1", "did 2"]
    assert [item.text for item in session[Note]] == ["did 1", "did 2"]


def test_snapshot_serialized_later_contains_the_turn_as_of_its_creation() -> None:
    chat = chat_of(call(("note", {"a": 1})), call(("note", {"a": 2})), say("Done."))
    snapshots: list[Any] = []
    session_of(chat).bus.subscribe(
        ToolInvoked, lambda _: snapshots.append(session_of(chat).snapshot())
    )
    chat.send("Go")
    again = in_another_process(snapshots[0].to_json(), call(("note", {"a": 2})), say("Done."))
    assert answers(again) == ["did 1"]
    assert again.conversation is not None
    assert again.conversation.usage.total_tokens == 15  # of one request
    assert again.send().text == "Done."
    assert [item.text for item in again.session[Note]] == ["did 1", "did 2"]


def test_snapshots_around_a_restart_are_the_same_when_serialized_later() -> None:
    more = MarkdownSection(
        title="More",
        key="more",
        template="More.",
        summary="More?",
        visibility=SectionVisibility.SUMMARY,
        tools=[tool(note, name="late")],
    )
    asked = PromptTemplate[None](ns="tests", key="k", sections=[more]).bind()
    read = call(("read_section", {"section_key": "more"}))
    adapter = ScriptedAdapter([read, call(("late", {"a": 1})), say("Done.")], dynamic_tools=False)
    chat = Chat(MainLoop(adapter), asked, session=Session())
    session, snapshots, texts = session_of(chat), list[Any](), list[str]()

    def take(event: Event) -> None:
        snapshots.append(session.snapshot())
        texts.append(session.snapshot().to_json())

    session.bus.subscribe(Event, take)
    chat.send("Go")
    at_once, later = (
        [json.loads(text)["slices"] for text in each]
        for each in (texts, [snapshot.to_json() for snapshot in snapshots])
    )
    assert later == at_once
    assert len(later) > 6


@pytest.mark.parametrize("effect", ["undeclared", "repeatable"])
@pytest.mark.parametrize("kind", [ToolInvoked, ProviderCalled, PromptExecuted])
def test_snapshot_during_a_nested_run_excludes_the_unfinished_call(
    kind: type[Event], effect: Any
) -> None:
    asking = Tool.from_prompt(prompt("inner").template, name="ask", description="a", effect=effect)
    outer = call(("note", {"a": 1})), call(("ask", {"message": "x"})), say("Out.")
    inner = call(("note", {"a": 2})), say("In.")

    def answer(seen: SeenRequest) -> AssistantMessage:
        done = sum(isinstance(item, ToolMessage) for item in seen.messages)
        return (inner if seen.messages[1].text == "x" else outer)[done]

    def new_chat() -> Chat[Any]:
        loop = MainLoop(ScriptedAdapter([answer] * 9))
        return Chat(loop, prompt("outer", asking), session=Session())

    chat, texts = new_chat(), list[str]()
    session = session_of(chat)
    session.bus.subscribe(kind, lambda _: texts.append(session.snapshot().to_json()))
    chat.send("Go")
    assert texts
    for text in texts:
        again = new_chat()
        session_of(again).restore(session_of(again).parse_snapshot(text))
        assert again.send().text == "Out."
        assert [item.text for item in again.session[Note]] == ["did 1", "did 2"]


def test_reply_is_logged_before_provider_called_is_published() -> None:
    chat = chat_of(call(("note", {"a": 1})), say("Done."))
    unsubscribe = session_of(chat).bus.subscribe(ProviderCalled, stop)
    with pytest.raises(KeyboardInterrupt):
        chat.send("Go")
    unsubscribe()
    whole = chat_of(call(("note", {"a": 1})), say("Done.")).send("Go")
    assert chat.send().usage == whole.usage
    assert answers(chat) == ["did 1"]


def test_closing_a_stream_ends_the_turn_and_answers_its_open_calls() -> None:
    chat = chat_of(call(("note", {"a": 1}), ("note", {"a": 2})), say("Done."))
    with closing(chat.stream("Go")) as events:
        next(event for event in events if isinstance(event, ToolCallFinished))
    assert chat.session[ChatTurn].all() == ()
    assert chat.send().text == "Done."
    assert answers(chat) == ["did 1", "Not run: the evaluation ended."]


def test_parallel_calls_of_a_nested_run_see_the_state_of_the_outer_call() -> None:
    def look(params: Args, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult(f"saw {len(context.session[Note])}")

    looking = Tool[Args, object](name="look", description="l", handler=look, effect="repeatable")
    inner = prompt("inner", looking)

    def ask(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.session.dispatch(Note("from outer"))
        context.evaluate(inner)
        return ToolResult("asked")

    script = [
        call(("ask", {"a": 1})),
        call(("look", {"a": 1}), ("look", {"a": 2})),
        say("In."),
        say("Out."),
    ]
    seen: list[str] = []
    config = RunConfig(parallel_tool_calls="isolated")
    adapter = ScriptedAdapter(script, config=config)
    asking = Tool[Args, object](name="ask", description="a", handler=ask)
    chat = Chat(MainLoop(adapter), prompt("outer", asking), session=Session())
    session_of(chat).bus.subscribe(ToolInvoked, lambda event: seen.append(event.content))
    chat.send("Go")
    assert seen[:2] == ["saw 1", "saw 1"]


def test_chat_suspended_in_a_nested_run_resumes_in_another_session() -> None:
    def send(params: Args, *, context: ToolContext) -> ToolResult[object]:
        PAID.append(params.a)
        return ToolResult("sent")

    sending = Tool[Args, object](name="send", description="s", handler=send, approval="arguments")
    asking = Tool.from_prompt(prompt("inner", sending).template, name="ask", description="a")
    script = [call(("ask", {"message": "x"})), call(("send", {"a": 5})), say("In."), say("Out.")]
    loop = MainLoop(ScriptedAdapter([say("Hello."), *script]))
    chat = Chat(loop, prompt("outer", asking), session=Session())
    chat.send("Hi")
    with pytest.raises(RunSuspended) as waiting:
        chat.send("Go")
    suspension = Suspension.from_json(waiting.value.suspension.to_json())
    decisions = {preview.call_id: Approve() for preview in suspension.pending}
    again = Chat(loop, prompt("outer", asking), session=Session())
    assert again.resume(suspension, decisions).text == "Out."
    assert again.conversation is not None
    assert [item.text for item in again.conversation.messages][1:3] == ["Hi", "Hello."]
    assert PAID == [5]


def test_turn_survives_a_handler_that_restores_an_older_snapshot() -> None:
    start: list[Any] = []

    def reset(params: Args, *, context: ToolContext) -> ToolResult[object]:
        session_of(chat).restore(start[0])
        return ToolResult("reset")

    resetting = Tool[Args, object](name="reset", description="r", handler=reset)
    script = [say("One."), call(("reset", {"a": 1})), call(("pay", {"a": -1})), say("Two.")]
    loop = MainLoop(ScriptedAdapter(script))
    chat = Chat(loop, prompt("k", resetting), session=Session())
    start.append(session_of(chat).snapshot())
    chat.send("First")
    with pytest.raises(KeyboardInterrupt):
        chat.send("Second")
    assert answers(chat) == ["reset", "This call was interrupted and its outcome is unknown."]
    assert chat.send().text == "Two."
    assert chat.conversation is not None
    assert "First" in str(chat.conversation.messages)


def test_restore_within_a_turn_also_restores_the_turns_of_other_chats() -> None:
    def reset(params: Args, *, context: ToolContext) -> ToolResult[object]:
        session.restore(stopped_first if params.a else untouched)
        return ToolResult("reset")

    session = Session()
    script: list[Reply] = [call(("note", {"a": 1})), stop]
    first = Chat(MainLoop(ScriptedAdapter(script)), prompt("first"), session=session)
    untouched = session.snapshot()
    with pytest.raises(KeyboardInterrupt):
        first.send("Go")
    stopped_first = session.snapshot()
    resetting = Tool[Args, object](name="reset", description="r", handler=reset)
    resets = call(("reset", {"a": 0})), say("Done."), call(("reset", {"a": 1})), say("Done.")
    loop = MainLoop(ScriptedAdapter([*resets]))
    second = Chat(loop, prompt("second", resetting), session=session)
    assert second.send("Go").text == "Done."
    assert first.conversation is None
    assert session[Note].all() == ()
    assert second.send("Go").text == "Done."
    assert answers(first) == ["did 1"]
    assert len(session[Note]) == 1


def test_turn_interrupted_at_its_end_can_be_undone_by_restore() -> None:
    chat = chat_of(call(("note", {"a": 7})), say("Done."))
    before = session_of(chat).snapshot()
    session_of(chat).bus.subscribe(PromptExecuted, stop)
    with pytest.raises(KeyboardInterrupt):
        chat.send("Go")
    session_of(chat).restore(before)
    assert chat.conversation is None
    assert chat.session[Note].all() == ()


def test_output_error_hidden_by_a_stop_is_raised_without_another_request() -> None:
    section = MarkdownSection(title="Task", template="Count.")
    counting = PromptTemplate[Args](ns="tests", key="k", sections=[section])
    config = RunConfig(max_repairs=0)
    adapter = ScriptedAdapter([say("no JSON"), say("no JSON")], config=config)
    chat = Chat(MainLoop(adapter), counting.bind(), session=Session())
    unsubscribe = session_of(chat).bus.subscribe(AnswerRejected, stop)
    with pytest.raises(KeyboardInterrupt):
        chat.send("Go")
    unsubscribe()
    with pytest.raises(PromptEvaluationError, match="not the declared output"):
        chat.send()
    assert len(adapter.requests) == 1


def test_turn_stopped_after_a_handler_requested_sections_opens_them() -> None:
    more = MarkdownSection(
        title="More",
        template="The rest.",
        summary="In short.",
        visibility=SectionVisibility.SUMMARY,
    )

    def look(params: Args, *, context: ToolContext) -> ToolResult[object]:
        raise VisibilityExpansionRequired(
            requested_overrides={("more",): SectionVisibility.FULL},
            reason="needed",
            section_keys=("more",),
        )

    task = MarkdownSection(title="Task", template="Do.", tools=[tool(look, name="look")])
    asked = PromptTemplate[None](ns="tests", key="k", sections=[task, more]).bind()
    adapter = ScriptedAdapter([call(("look", {})), say("Done.")])
    chat = Chat(MainLoop(adapter), asked, session=Session())
    unsubscribe = session_of(chat).bus.subscribe(ToolInvoked, stop)
    with pytest.raises(KeyboardInterrupt):
        chat.send("Go")
    unsubscribe()
    execution = chat.send()
    assert [expansion.section_keys for expansion in execution.expansions] == [("more",)]
    assert [request.messages[0].text.endswith("The rest.") for request in adapter.requests] == [
        False,
        True,
    ]


def test_continued_turn_stays_with_the_provider_that_it_fell_back_to() -> None:
    cut = replace(say("Half"), finish="length")
    first = ScriptedAdapter([cut])
    second = ScriptedAdapter([call(("note", {"a": 1})), stop, say("Done.")])
    adapter = FallbackAdapter(first, second, on=("truncated",))
    chat = Chat(MainLoop(adapter), prompt(), session=Session())
    with pytest.raises(KeyboardInterrupt):
        chat.send("Go")
    assert chat.send().text == "Done."
    assert (len(first.requests), answers(chat)) == (1, ["did 1"])


def test_changed_nested_run_leaves_no_suspended_run_in_the_session() -> None:
    def outer(key: str) -> Prompt[Any]:
        asking = Tool.from_prompt(prompt(key).template, name="ask", description="a")
        return prompt("outer", asking)

    asks = call(("ask", {"message": "x"}))
    chat = Chat(MainLoop(ScriptedAdapter([asks, stop])), outer("inner"), session=Session())
    with pytest.raises(KeyboardInterrupt):
        chat.send("Go")
    again = Chat(MainLoop(ScriptedAdapter([])), outer("another"), session=chat.session)
    with pytest.raises(ChangedRunError):
        again.send()
    assert chat.session[SuspendedRun].all() == ()


def test_usage_of_replies_before_an_interrupt_is_counted_once() -> None:
    cut = replace(say("Half"), finish="length")
    adapter = FallbackAdapter(
        ScriptedAdapter([cut]), ScriptedAdapter([say("Done.")]), on=("truncated",)
    )
    chat = Chat(MainLoop(adapter), prompt(), session=Session())
    used: list[int] = []

    def hear(event: ProviderCalled) -> None:
        used.append(event.usage.total_tokens)
        if len(used) > 1:
            raise KeyboardInterrupt

    session_of(chat).bus.subscribe(ProviderCalled, hear)
    with pytest.raises(KeyboardInterrupt):
        chat.send("Go")
    [ended] = session_of(chat)[EvaluationStopped]
    assert ended.usage.total_tokens == sum(used)


def test_usage_of_a_truncated_reply_is_counted_if_the_next_request_is_interrupted() -> None:
    def interrupt(request: SeenRequest) -> AssistantMessage:
        raise KeyboardInterrupt

    cut = replace(say("Half"), finish="length")
    adapter = FallbackAdapter(
        ScriptedAdapter([cut]), ScriptedAdapter([interrupt]), on=("truncated",)
    )
    session = Session()
    with pytest.raises(KeyboardInterrupt):
        adapter.evaluate(prompt(), session=session)
    [ended] = session[EvaluationStopped]
    assert ended.usage == cut.usage
