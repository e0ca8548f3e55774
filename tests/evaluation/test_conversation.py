"""A conversation is a value: continued, saved as JSON, stopped and rebuilt."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any, get_args

import pytest

from weakincentives.adapters.core import PromptEvaluationError
from weakincentives.content import Image
from weakincentives.errors import SerdeError
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.main_loop import Execution, MainLoop
from weakincentives.evaluation.messages import (
    AssistantMessage,
    Instructions,
    Message,
    ToolCall,
    ToolMessage,
    ToolsAdded,
    ToolsRemoved,
    UserMessage,
)
from weakincentives.evaluation.response import Completed, Restarted
from weakincentives.evaluation.schemas import ToolSpec
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say

SUMMARY = SectionVisibility.SUMMARY
_CHANGED = (
    "These parts of your instructions have changed. What they say now replaces what they said "
    "before.\n\n"
)


@dataclass(frozen=True)
class Manner:
    word: str


@dataclass(frozen=True)
class Amount:
    n: int


PAID: list[int] = []


def pay(params: Amount, /, *, context: ToolContext) -> ToolResult[str]:
    PAID.append(params.n)
    if params.n < 0:
        raise KeyboardInterrupt
    return ToolResult(message=f"Paid {params.n}.")


def template(*, closable: bool = False, enabled: bool = True) -> PromptTemplate[None]:
    payments = Tool[Amount, str](
        name="pay", description="Pays.", handler=pay, effect="at_most_once"
    )
    return PromptTemplate(
        ns="tests",
        key="chat",
        closable=closable,
        sections=[
            MarkdownSection[Manner](title="Main", key="main", template="Be $word."),
            MarkdownSection(
                title="Payments",
                key="payments",
                template="Pay immediately.",
                summary="How to pay.",
                visibility=SectionVisibility.SUMMARY,
                tools=[payments],
            ),
            MarkdownSection(title="Last", key="last", template="Bye.", enabled=lambda: enabled),
        ],
    )


KIND = template().bind(Manner("kind"))
OPEN = call(("read_section", {"section_key": "payments"}))


def chat(
    replies: list[Any], *messages: str, conversation: Conversation | None = None, **options: Any
) -> Execution[None]:
    """Sends the messages one after another and returns the last execution."""
    loop, session, execution = MainLoop(ScriptedAdapter(replies)), Session(), None
    for message in messages:
        execution = loop.execute(
            KIND, session=session, message=message, conversation=conversation, **options
        )
        conversation = execution.conversation
    assert execution is not None
    return execution


def talk(*replies: Any, **options: Any) -> Conversation:
    conversation = chat([*replies], "Hi", **options).conversation
    assert conversation is not None
    return conversation


def kinds(messages: tuple[Message, ...]) -> list[str]:
    return [message.kind for message in messages]


def _rendered(prompt: Prompt[None], conversation: Conversation) -> str:
    return prompt.render(decisions=conversation.decisions_for(prompt)).text


def test_with_a_message_the_prompt_becomes_the_instructions() -> None:
    first, second = talk(say("Hello.")).messages[:2]
    assert first == Instructions(KIND.render().text)
    assert second == UserMessage("Hi")


def test_without_a_message_the_prompt_becomes_the_user_message() -> None:
    response = ScriptedAdapter([say("Hello.")]).evaluate(KIND, session=Session())
    assert response.transcript[0] == UserMessage(KIND.render().text)


def test_json_with_an_unanswered_call_raises_serde_error() -> None:
    asked = AssistantMessage(tool_calls=(ToolCall("c1", "pay", "{}"),))
    orphan = Conversation(ns="tests", key="chat", messages=(UserMessage("Hi"), asked))
    with pytest.raises(SerdeError, match="c1"):
        Conversation.from_json(orphan.to_json())


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ((), "no message"),
        ((UserMessage("Hi"), ToolMessage("c1", "Done.")), "'c1' answers no call"),
    ],
)
def test_json_of_an_invalid_conversation_raises_serde_error(
    messages: tuple[Message, ...], problem: str
) -> None:
    invalid = Conversation(ns="tests", key="chat", messages=messages)
    with pytest.raises(SerdeError, match=problem):
        Conversation.from_json(invalid.to_json())


def test_conversation_with_lone_surrogates_round_trips_through_json() -> None:
    broken = AssistantMessage(tool_calls=(ToolCall("c1\ud800", "pay", '{"n": "\ud800"}'),))
    conversation = talk(broken, say("So \ud800."))
    assert Conversation.from_json(conversation.to_json()) == conversation
    assert conversation.messages[-1] == say("So ?.")


def test_section_that_was_summarized_meanwhile_is_sent_again_in_full() -> None:
    section = MarkdownSection(title="Notes", key="notes", template="Be kind.", summary="More.")
    asked: Prompt[None] = PromptTemplate(ns="tests", key="notes", sections=[section]).bind()
    loop = MainLoop(ScriptedAdapter([say("one"), say("two"), say("three")]))
    session, conversation = Session(), None
    for visibility in (SectionVisibility.FULL, SUMMARY, SectionVisibility.FULL):
        conversation = loop.execute(
            asked,
            session=session,
            message="Hi",
            conversation=conversation,
            visibility_overrides={("notes",): visibility},
        ).conversation
    assert conversation is not None
    assert conversation.messages[-3] == Instructions(_CHANGED + "## 1. Notes\n\nBe kind.")


def test_section_quoted_by_another_tool_does_not_count_as_read() -> None:
    @dataclass(frozen=True)
    class Quote:
        section_key: str

    def quote(params: Quote, /, *, context: ToolContext) -> ToolResult[str]:
        return ToolResult(message="## 1. Notes\n\nBe kind.")

    section = MarkdownSection(
        title="Notes",
        key="notes",
        template="Be kind.",
        summary="More.",
        visibility=SUMMARY,
    )
    tools = [Tool[Quote, str](name="quote", description="Quotes.", handler=quote)]
    main = MarkdownSection(title="Main", template="Help.", tools=tools)
    asked: Prompt[None] = PromptTemplate(ns="tests", key="n", sections=[section, main]).bind()
    read, quoted = (call((name, {"section_key": "notes"})) for name in ("read_section", "quote"))
    adapter, session = ScriptedAdapter([read, say("one"), quoted, say("two")]), Session()
    first = adapter.evaluate(asked, session=session, message="Hi").conversation
    second = adapter.evaluate(
        asked, session=session, message="So?", conversation=first
    ).conversation
    assert second is not None
    texts = [second.restated(asked, session, keep_turns=turns).sections[0].full for turns in (2, 1)]
    assert texts == ["## 1. Notes\n\nBe kind.", None]


def test_changed_section_without_tools_is_sent_again_if_the_model_has_read_it() -> None:
    def notes(word: str) -> Prompt[None]:
        section = MarkdownSection[Manner](
            title="Notes", template="Be $word.", summary="More.", visibility=SUMMARY
        )
        bound: PromptTemplate[None] = PromptTemplate(ns="tests", key="notes", sections=[section])
        return bound.bind(Manner(word))

    read = call(("read_section", {"section_key": "notes"}))
    adapter, session = ScriptedAdapter([read, say("one"), say("two"), say("three")]), Session()
    first = adapter.evaluate(notes("kind"), session=session, message="Hi").conversation
    for on_change in ("append", "restate"):
        second = adapter.evaluate(
            notes("rude"),
            session=session,
            message="So?",
            conversation=first,
            on_change=on_change,
        ).conversation
        assert second is not None
        assert second.messages[-3] == Instructions(_CHANGED + "## 1. Notes\n\nBe rude.")
        assert [record.full for record in second.sections] == ["## 1. Notes\n\nBe rude."]


def test_section_that_the_model_read_is_not_sent_again_unless_it_changes() -> None:
    manner = MarkdownSection[Manner](title="Manner", template="Be $word.")
    section = MarkdownSection(
        title="Notes", template="Read.", summary="More.", visibility=SUMMARY, children=[manner]
    )
    notes = PromptTemplate[None](ns="tests", key="notes", sections=[section])
    read = call(("read_section", {"section_key": "notes"}))
    adapter, session = ScriptedAdapter([read, say("one"), say("two"), say("three")]), Session()
    conversation = adapter.evaluate(
        notes.bind(Manner("kind")), session=session, message="Hi"
    ).conversation
    # without the params, the section can no longer be rendered in full, but its summary can
    for asked in (notes.bind(Manner("kind")), notes.bind()):
        assert conversation is not None
        before = conversation.messages
        conversation = adapter.evaluate(
            asked, session=session, message="So?", conversation=conversation
        ).conversation
        assert conversation is not None
        assert kinds(conversation.messages[len(before) :]) == ["user", "assistant"]


def test_truncated_answer_is_replaced_when_the_run_continues() -> None:
    cut = AssistantMessage(text="So", finish="length")
    with pytest.raises(PromptEvaluationError) as caught:
        chat([cut], "Hi")
    assert caught.value.transcript[-1] == cut
    response = ScriptedAdapter([say("Whole.")]).evaluate(
        KIND, session=Session(), conversation=caught.value.conversation
    )
    assert kinds(tuple(response.transcript)) == ["instructions", "user", "assistant"]


def test_restate_applies_to_a_changed_prompt_after_a_truncated_answer() -> None:
    with pytest.raises(PromptEvaluationError) as caught:
        chat([AssistantMessage(text="So", finish="length")], "Hi")
    response = ScriptedAdapter([say("Whole.")]).evaluate(
        template().bind(Manner("rude")),
        session=Session(),
        conversation=caught.value.conversation,
        on_change="restate",
    )
    assert kinds(tuple(response.transcript)) == ["instructions", "user", "assistant"]
    assert "Be rude." in str(response.transcript[0])


def test_restated_accepts_keep_turns_above_the_number_of_turns() -> None:
    conversation = chat([say("one"), say("two")], "A", "B").conversation
    assert conversation is not None
    assert len(conversation.restated(KIND, keep_turns=9).turns) == 2


@pytest.mark.parametrize("keep_turns", [None, 1, 3])
def test_restated_keeps_provider_compaction_items_unchanged(keep_turns: int | None) -> None:
    compacted = AssistantMessage(
        tool_calls=(ToolCall("c1", "read_section", '{"section_key": "payments"}'),),
        wire=({"type": "compaction", "encrypted_content": "…"}, {"type": "function_call"}),
        wire_format="responses/openai",
    )
    conversation = chat([compacted, say("one"), say("two"), say("three")], "A", "B", "C")
    assert conversation.conversation is not None
    restated = conversation.conversation.restated(KIND, keep_turns=keep_turns)
    assert restated.messages.count(compacted) == 1
    assert isinstance(restated.messages[restated.messages.index(compacted) + 1], ToolMessage)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"message": " "}, "message is empty"),
        ({"on_change": "forget"}, "on_change must be 'append' or 'restate', got 'forget'"),
    ],
)
def test_empty_message_and_unknown_on_change_raise_value_error(
    options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        ScriptedAdapter([]).evaluate(KIND, session=Session(), **options)


def test_only_the_changed_section_is_sent_and_only_once() -> None:
    loop, session = MainLoop(ScriptedAdapter([say("one"), say("two"), say("three")])), Session()
    rude = template().bind(Manner("rude"))
    first = loop.execute(KIND, session=session, message="Hi")
    second = loop.execute(rude, session=session, message="So?", conversation=first.conversation)
    third = loop.execute(rude, session=session, message="And?", conversation=second.conversation)
    assert third.conversation is not None
    told = [message for message in third.conversation.messages if message.kind == "instructions"]
    assert len(told) == 2
    assert told[1].content.endswith("before.\n\n## 1. Main\n\nBe rude.")
    assert kinds(third.conversation.messages) == [
        *["instructions", "user", "assistant"],
        *["instructions", "user", "assistant"],
        *["user", "assistant"],
    ]


def test_disabled_section_is_reported_as_no_longer_applying() -> None:
    loop, session = MainLoop(ScriptedAdapter([say("one"), say("two")])), Session()
    first = loop.execute(KIND, session=session, message="Hi")
    without = template(enabled=False).bind(Manner("kind"))
    second = loop.execute(without, session=session, message="So?", conversation=first.conversation)
    assert second.conversation is not None
    told = second.conversation.messages[3]
    assert told == Instructions("These parts of your instructions no longer apply: 'last'.")


def test_on_change_restate_replaces_the_instructions_of_a_changed_prompt() -> None:
    first = talk(OPEN, call(("pay", {"n": 1})), say("one"))
    rude = template().bind(Manner("rude"))
    adapter = ScriptedAdapter([say("two")])
    second = adapter.evaluate(
        rude, session=Session(), message="So?", conversation=first, on_change="restate"
    ).conversation
    assert second is not None
    assert kinds(second.messages) == [
        *["instructions", "user", "assistant", "tool", "assistant", "user", "assistant"]
    ]
    assert second.messages[0] == Instructions(_rendered(rude, first))
    assert {tool.name for tool in second.tools} == {"pay"}


def test_closed_section_is_removed_from_a_restated_conversation() -> None:
    closable = template(closable=True).bind(Manner("kind"))
    close = call(("close_section", {"section_key": "payments"}))
    adapter, session = ScriptedAdapter([OPEN, close, say("one")]), Session()
    conversation = adapter.evaluate(closable, session=session, message="Hi").conversation
    assert conversation is not None
    restated = conversation.restated(closable, session)
    assert "Pay immediately." in conversation.to_json()
    assert "Pay immediately." not in restated.to_json()
    assert kinds(restated.messages) == ["instructions", "user", "assistant"]


def test_restated_reports_the_change_of_a_section_that_was_only_read() -> None:
    manner = MarkdownSection[Manner](title="Manner", key="manner", template="Be $word.")
    rules = MarkdownSection(
        title="Rules",
        key="rules",
        template="Obey.",
        summary="Rules there are.",
        visibility=SUMMARY,
        children=[manner],
    )
    chats = PromptTemplate[None](ns="tests", key="rules", sections=[rules])
    kind, rude = (chats.bind(Manner(word)) for word in ("kind", "rude"))
    read = call(("read_section", {"section_key": "rules"}))
    adapter = ScriptedAdapter([read, say("one"), say("two"), say("three")])
    session = Session()
    first = adapter.evaluate(kind, session=session, message="Hi").conversation
    second = adapter.evaluate(rude, session=session, message="So?", conversation=first).conversation
    assert second is not None
    restated = second.restated(rude, session)
    assert kinds(restated.messages) == [
        *["instructions", "user", "assistant", "tool", "assistant", "user", "assistant"],
        "instructions",
    ]
    assert restated.messages[-1] == Instructions(_CHANGED + "### 1.1. Manner\n\nBe rude.")
    assert restated.restated(rude, session) == restated
    third = adapter.evaluate(
        rude, session=session, message="And?", conversation=restated
    ).conversation
    assert third is not None
    assert third.messages == (*restated.messages, UserMessage("And?"), say("three"))


def test_restated_keeps_the_last_turns_after_the_summary() -> None:
    execution = chat([say("one"), say("two"), say("three")], "A", "B", "C")
    assert execution.conversation is not None
    restated = execution.conversation.restated(KIND, Session(), keep_turns=1, summary="A and B.")
    assert [
        message.content for message in restated.messages if isinstance(message, UserMessage)
    ] == [
        "A and B.",
        "C",
    ]


def test_conversation_can_continue_with_another_prompt() -> None:
    other = PromptTemplate(
        ns="tests",
        key="other",
        sections=[MarkdownSection(title="Other", key="main", template="Sell.")],
    )
    conversation = talk(OPEN, say("one"))
    adapter = ScriptedAdapter([say("two")])
    response = adapter.evaluate(
        other.bind(), session=Session(), message="So?", conversation=conversation
    )
    assert response.transcript[0] == Instructions("## 1. Other\n\nSell.")
    assert adapter.requests[0].tool_names == ()


def test_continuing_an_answered_conversation_requires_a_message() -> None:
    answered = talk(say("one"))
    with pytest.raises(ValueError, match="pass the user's next message as message="):
        ScriptedAdapter([]).evaluate(KIND, session=Session(), conversation=answered)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_main_loop_stream_yields_restarted(*, asynchronous: bool) -> None:
    loop = MainLoop(ScriptedAdapter([OPEN, say("done")], dynamic_tools=False))

    async def collect() -> list[Any]:
        stream = loop.stream_async(KIND, session=Session(), message="Hi")
        return [event async for event in stream]

    events: list[Any] = (
        asyncio.run(collect())
        if asynchronous
        else [*loop.stream(KIND, session=Session(), message="Hi")]
    )
    restarts = [event for event in events if isinstance(event, Restarted)]
    assert [restart.section_keys for restart in restarts] == [("payments",)]
    assert isinstance(events[-1], Completed)
    assert events[-1].response.usage.input_tokens == 20
    first = events[-1].response.transcript[0]
    assert isinstance(first, Instructions)
    assert "Pay immediately." in first.content


def test_tools_that_change_between_turns_are_added_and_removed() -> None:
    def with_tool(name: str) -> Any:
        tool = Tool[Amount, str](name=name, description="Pays.", handler=pay)
        section = MarkdownSection(title="Main", key="main", template="Go.", tools=[tool])
        return PromptTemplate(ns="tests", key="tools", sections=[section]).bind()

    adapter, session = ScriptedAdapter([say("one"), say("two")]), Session()
    first = adapter.evaluate(with_tool("old"), session=session, message="Hi")
    second = adapter.evaluate(
        with_tool("new"), session=session, message="So?", conversation=first.conversation
    )
    changes = second.transcript[3:5]
    assert changes[0] == ToolsRemoved(("old",))
    assert isinstance(changes[1], ToolsAdded)
    assert adapter.requests[-1].tool_names == ("new",)


def test_conversation_of_format_1_keeps_the_plain_schema_of_each_tool() -> None:
    plain = {
        "type": "object",
        "properties": {"n": {"type": "integer", "default": 1}, "at": {"$ref": "#/$defs/P"}},
        "required": ["at"],
        "additionalProperties": False,
        "$defs": {"P": {"type": "string"}},
    }
    sent = {**plain, "required": ["n", "at"]}
    tool = {"name": "pay", "description": "Pays.", "parameters": sent, "strict": True}
    text = json.dumps(
        {
            "ns": "shop",
            "key": "tea",
            "messages": [
                {"kind": "user", "content": "Hi."},
                {"kind": "tools_added", "tools": [{**tool, "name": "more", "plain": {}}]},
            ],
            "tools": [{**tool, "plain": plain}],
            "tool_changes": [1],
            "version": 1,
        }
    )
    conversation = Conversation.from_json(text)
    assert conversation.version == 2
    assert conversation.available_tools["pay"] == ToolSpec("pay", "Pays.", plain)
    assert conversation.available_tools["more"] == ToolSpec("more", "Pays.", sent)
    written = json.loads(conversation.to_json())
    assert written["tools"] == [{"name": "pay", "description": "Pays.", "parameters": plain}]
    assert Conversation.from_json(conversation.to_json()) == conversation


def test_conversation_of_a_later_format_is_rejected() -> None:
    conversation = Conversation(ns="", key="", messages=(UserMessage("Hi."),))
    with pytest.raises(SerdeError, match="version"):
        Conversation.from_json(conversation.to_json().replace('"version":2', '"version":3'))


def test_invalid_message_reports_only_issues_of_its_declared_kind() -> None:
    text = Conversation(ns="", key="", messages=(ToolMessage("call_1", "Done."),)).to_json()
    with pytest.raises(SerdeError) as caught:
        Conversation.from_json(text.replace('"content":"Done."', '"content":7'))
    assert len(caught.value.issues) == 1
    assert caught.value.issues[0].path[-1] == "content"


def test_every_kind_of_message_has_a_text() -> None:
    picture = Image.from_bytes(b"\x89PNG\r\n\x1a\n", name="dot.png")
    messages: list[Message] = [
        Instructions("Be kind."),
        UserMessage("Hello"),
        UserMessage(("What?", picture)),
        AssistantMessage(text="A dot."),
        ToolMessage("call_1", "Done."),
        ToolsAdded(()),
        ToolsRemoved(("pay",)),
    ]
    assert {type(message) for message in messages} == set(get_args(get_args(Message.__value__)[0]))
    assert [message.text for message in messages] == [
        "Be kind.",
        "Hello",
        f"What?\n\n{picture}",
        "A dot.",
        "Done.",
        "",
        "",
    ]
