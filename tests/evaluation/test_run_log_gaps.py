"""State that a run's log keeps, and that was lost without one."""

import sys
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

import pytest

from support.agents import Args, Note, prompt, tool
from support.own_thread import in_own_thread
from weakincentives.evaluation.approval import Approve, Deny
from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.compaction import Compaction
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.response import TextDelta
from weakincentives.evaluation.suspension import RunSuspended
from weakincentives.limits import TokenUsage
from weakincentives.prompt import (
    Disclosure,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime.events import ProviderCalled
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say


@dataclass(frozen=True)
class NoParams:
    pass


def note(params: Args, *, context: ToolContext) -> ToolResult[object]:
    context.session.dispatch(Note(f"did {params.a}"))
    return ToolResult(f"did {params.a}")


def book_and_pay(*, hidden: bool = False) -> Prompt[Any]:
    """Returns a prompt whose call of `pay` needs approval, in a summarized section if `hidden`."""
    book = Tool[Args, object](name="book", description="b", handler=note, effect="at_most_once")
    pay = Tool[Args, object](name="pay", description="p", handler=note, approval="arguments")
    if not hidden:
        task = MarkdownSection(title="Task", template="Do.", tools=[book, pay], state=[Note])
        return PromptTemplate[None](ns="tests", key="pay", sections=[task]).bind()
    money = MarkdownSection(
        title="Money",
        template="Pay.",
        summary="Money.",
        visibility=SectionVisibility.SUMMARY,
        tools=[pay],
        state=[Note],
    )
    return PromptTemplate[None](
        ns="tests", key="pay", sections=[money], disclosure=Disclosure.OPEN
    ).bind()


def seen_by_model(adapter: ScriptedAdapter) -> str:
    return str(adapter.requests[-1].messages)


def test_message_during_a_suspension_follows_the_suspended_turn() -> None:
    turns = [call(("book", {"a": 4})), call(("pay", {"a": 9})), say("Seat 4.")]
    adapter = ScriptedAdapter(turns)
    chat = Chat(MainLoop(adapter), book_and_pay(), session=Session())
    with pytest.raises(RunSuspended):
        chat.send("Seat 4, please, and pay for it.")
    chat.send("Hold on, which seat did you book?")
    assert "Seat 4, please" in seen_by_model(adapter)
    assert "did 4" in seen_by_model(adapter)


def test_chat_resumes_a_call_suspended_after_a_restart() -> None:
    opening = call(("open_sections", {"section_keys": ["money"], "reason": "r"}))
    adapter = ScriptedAdapter([opening, call(("pay", {"a": 5})), say("Done.")])
    chat = Chat(MainLoop(adapter), book_and_pay(hidden=True), session=Session())
    with pytest.raises(RunSuspended) as waiting:
        chat.send("Pay 5.")
    suspension = waiting.value.suspension
    decisions = {preview.call_id: Approve() for preview in suspension.pending}
    assert chat.resume(suspension, decisions).text == "Done."


class Words(ScriptedAdapter):
    """Its answers come word by word; at the word `ctrl-c`, the user presses these keys."""

    def ask_stream(self, request: Any) -> Any:
        answer = self.ask(request)
        for word in answer.text.split():
            if word == "ctrl-c":
                raise KeyboardInterrupt
            yield TextDelta(f"{word} ")
        yield answer


def test_continued_turn_requests_an_interrupted_answer_again_without_its_text() -> None:
    adapter = Words([say("alpha beta ctrl-c"), say("Short.")])
    chat = Chat(MainLoop(adapter), prompt(), session=Session())
    with pytest.raises(KeyboardInterrupt):
        list(chat.stream("Explain."))
    assert chat.conversation is not None
    assert chat.conversation.messages[-1].text == "alpha beta "
    assert chat.send().text == "Short."
    first, again = adapter.requests
    assert again.messages == first.messages


def test_text_streamed_before_a_stop_is_in_the_next_request() -> None:
    adapter = Words([say("alpha beta gamma"), say("Short.")])
    chat = Chat(MainLoop(adapter), prompt(), session=Session())
    events = chat.stream("Explain.")
    shown = [next(events), next(events)]
    events.close()
    assert shown == [TextDelta("alpha "), TextDelta("beta ")]
    chat.send("Shorter than that, please.")
    assert "alpha beta" in seen_by_model(adapter)


def test_interrupt_while_a_turn_is_saved_keeps_state_and_conversation_together() -> None:
    adapter = ScriptedAdapter([call(("note", {"a": 1})), say("Done.")])
    section = MarkdownSection(
        title="Task", template="Do.", tools=[tool(note, name="note")], state=[Note]
    )
    asked = PromptTemplate[None](ns="tests", key="k", sections=[section]).bind()
    chat = Chat(MainLoop(adapter), asked, session=Session())

    def interrupt(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_qualname == "ChatTurn.end":
            sys.settrace(None)
            raise KeyboardInterrupt

    def send() -> None:
        sys.settrace(interrupt)
        try:
            chat.send("Go")
        finally:
            sys.settrace(None)

    with pytest.raises(KeyboardInterrupt):
        in_own_thread(send)
    conversation = chat.conversation
    known = conversation is not None and "did 1" in str(conversation.messages)
    assert known is bool(chat.session[Note])


def test_message_whose_summary_failed_is_kept_and_the_chat_continues() -> None:
    summary = PromptTemplate[None](
        ns="tests", key="sum", sections=[MarkdownSection(title="T", template="Sum up.")]
    )
    down = PromptEvaluationError("down", phase="request", code="connection")
    long = [replace(say(text), usage=TokenUsage(500, 50)) for text in ("1", "2")]
    adapter = ScriptedAdapter([*long, down, say("Summary."), say("3")])
    compaction = Compaction(at_tokens=100, keep_turns=1, summary=summary)
    session, asked = Session(), prompt()
    chat = Chat(MainLoop(adapter), asked, session=session)
    chat.send("one")
    chat.send("two")
    compacted = Chat(MainLoop(adapter, compaction=compaction), asked, session=session)
    with pytest.raises(PromptEvaluationError) as failed:
        compacted.send("three")
    assert failed.value.conversation is not None
    assert "three" in str(failed.value.conversation.messages)
    assert compacted.send().text == "3"


def delegating(approval: Any = None) -> Prompt[Any]:
    """Returns a prompt whose tool runs an agent, with the given `approval`."""
    inner = prompt(text="Inner.")

    def delegate(_: NoParams, *, context: ToolContext) -> ToolResult[object]:
        context.evaluate(inner)
        return ToolResult("ok")

    agent = Tool[NoParams, object](
        name="agent", description="a", handler=delegate, approval=approval, effect="repeatable"
    )
    return prompt(agent)


def test_requests_in_a_denied_preview_are_recorded_in_the_session() -> None:
    adapter = ScriptedAdapter([call(("agent", {})), say("Inner."), say("Done.")])
    session = Session()
    MainLoop(adapter).execute(delegating("effects"), session=session, approver=lambda _: Deny("no"))
    assert len(session[ProviderCalled]) == len(adapter.requests) == 3


def test_requests_in_an_approved_call_are_recorded_once() -> None:
    adapter = ScriptedAdapter([call(("agent", {})), say("Inner."), say("Done.")])
    session = Session()
    MainLoop(adapter).execute(delegating("effects"), session=session, approver=lambda _: Approve())
    assert len(session[ProviderCalled]) == len(adapter.requests) == 3


def test_requests_in_a_resumed_call_are_recorded_once() -> None:
    adapter = ScriptedAdapter([call(("agent", {})), say("Inner."), say("Done.")])
    session, asked = Session(), delegating("effects")
    loop = MainLoop(adapter)
    with pytest.raises(RunSuspended) as waiting:
        loop.execute(asked, session=session)
    suspension = waiting.value.suspension
    decisions = {preview.call_id: Approve() for preview in suspension.pending}
    loop.resume(asked, suspension, decisions, session=session)
    assert len(session[ProviderCalled]) == len(adapter.requests) == 3


def test_requests_in_a_suspended_call_are_recorded_in_the_session() -> None:
    adapter = ScriptedAdapter([call(("agent", {})), say("Inner.")])
    session = Session()
    with pytest.raises(RunSuspended):
        MainLoop(adapter).execute(delegating("effects"), session=session)
    assert len(session[ProviderCalled]) == len(adapter.requests) == 2


def test_requests_in_conflicting_parallel_calls_are_recorded_in_the_session() -> None:
    inner = prompt(text="Inner.")

    def delegate(params: Args, *, context: ToolContext) -> ToolResult[object]:
        context.evaluate(inner)
        context.session.dispatch(Note(f"{params.a} after {len(context.session[Note])}"))
        return ToolResult("ok")

    agent = Tool[Args, object](name="agent", description="a", handler=delegate, effect="repeatable")
    calls = call(("agent", {"a": 1}), ("agent", {"a": 2}))
    adapter = ScriptedAdapter(
        [calls, *[say("Inner.")] * 3, say("Done.")],
        config=RunConfig(parallel_tool_calls="isolated"),
    )
    session = Session()
    MainLoop(adapter).execute(prompt(agent), session=session)
    assert len(session[ProviderCalled]) == len(adapter.requests)
