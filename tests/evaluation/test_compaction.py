"""`Compaction`: a conversation that is too long is shortened and continues."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from support import sizes
from support.agents import answers
from support.media import PNG
from weakincentives.adapters.core import PromptEvaluationError
from weakincentives.content import Image, text_of
from weakincentives.evaluation.adapter import ProviderAdapter
from weakincentives.evaluation.approval import Approve
from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.compaction import (
    Compaction,
    Plan,
    plan_compaction,
    request_tokens,
)
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.errors import TurnLimitError
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.main_loop import Execution, MainLoop
from weakincentives.evaluation.messages import (
    AssistantMessage,
    Instructions,
    Message,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from weakincentives.evaluation.response import Completed
from weakincentives.evaluation.schemas import ToolSpec
from weakincentives.evaluation.suspension import RunSuspended
from weakincentives.limits import Budget, TokenUsage
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime.events import Compacted
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, SeenRequest, call, say
from weakincentives.visibility import VisibilityOverrides

FULL, SUMMARY = SectionVisibility
TEXT = "Everything about topic {0}. " * 8


@dataclass(frozen=True)
class Page:
    number: int


def look(params: Page, /, *, context: ToolContext) -> ToolResult[str]:
    return ToolResult(message=f"Page {params.number}: " + "words " * 100)


PAID: list[int] = []


def pay(params: Page, /, *, context: ToolContext) -> ToolResult[str]:
    PAID.append(params.number)
    return ToolResult(message=f"Paid {params.number}. " + "thanks " * 100)


def prompt(topics: int = 4) -> Prompt[None]:
    tools = [
        Tool[Page, str](name=f"look_{topic}", description="Looks.", handler=look)
        for topic in range(topics)
    ]
    paying = Tool[Page, str](name="pay", description="Pays.", handler=pay, effect="at_most_once")
    template: PromptTemplate[None] = PromptTemplate(
        ns="tests",
        key="long",
        closable=True,
        sections=[
            MarkdownSection(title="Main", template="Help.", tools=[paying]),
            *[
                MarkdownSection(
                    title=f"Topic {topic}",
                    template=TEXT.format(topic),
                    summary="More.",
                    visibility=SUMMARY,
                    tools=[tools[topic]],
                )
                for topic in range(topics)
            ],
        ],
    )
    return template.bind()


SUMMARIES: PromptTemplate[None] = PromptTemplate(
    ns="tests",
    key="summary",
    sections=[MarkdownSection(title="Task", template="Sum up what the user sends.")],
)


def size(request: SeenRequest) -> int:
    """Returns the tokens of a request, at four characters each."""
    said = sum([_length(message) for message in request.messages])
    return (said + sum(map(_tool_length, request.tools))) // 4


def _tool_length(tool: ToolSpec) -> int:
    return len(tool.name + tool.description + json.dumps(tool.parameters))


def _length(message: Message) -> int:
    match message:
        case Instructions(content) | UserMessage(content) | ToolMessage(content=content):
            return len(content)
        case AssistantMessage(text=text, tool_calls=calls):
            return len(text) + sum([len(made.name) + len(made.arguments) for made in calls])
        case _:
            return 0


def counted(
    reply: AssistantMessage | Callable[[SeenRequest], AssistantMessage],
) -> Callable[[SeenRequest], AssistantMessage]:
    """Returns the reply with the usage that a provider would report."""

    def answer(request: SeenRequest) -> AssistantMessage:
        message = reply(request) if callable(reply) else reply
        return replace(message, usage=TokenUsage(size(request), 10))

    return answer


def check_answered(messages: tuple[Message, ...]) -> None:
    waiting: set[str] = set()
    for message in messages:
        match message:
            case ToolMessage(call_id):
                waiting.remove(call_id)
            case AssistantMessage(tool_calls=calls):
                assert not waiting
                waiting = {made.call_id for made in calls}
            case _:
                assert not waiting
    assert not waiting


def open_topics(session: Session) -> set[int]:
    latest = session[VisibilityOverrides].latest()
    shown = {} if latest is None else latest.overrides
    return {topic for topic in range(4) if shown.get((f"topic-{topic}",)) is FULL}


@pytest.mark.claim("N-04")
def test_compacted_chat_stays_under_its_limit_and_keeps_tools_and_sections() -> None:
    session, bound, turns = Session(), 2_500, 1_000 if sizes.FULL else 250
    conversation: Conversation | None = None
    adapter = ScriptedAdapter([])
    loop = MainLoop(adapter, compaction=Compaction(bound, 6))
    compactions: list[Compacted] = []
    restated: list[set[int]] = []  # the open topics at a compaction, until the next request
    session.bus.subscribe(Compacted, compactions.append)
    session.bus.subscribe(Compacted, lambda _: restated.append(open_topics(session)))

    def check(request: SeenRequest, reply: AssistantMessage) -> AssistantMessage:
        assert size(request) <= bound
        check_answered(request.messages)
        topics = open_topics(session)
        own = {name for name in request.tool_names if name.startswith(("look", "pay"))}
        assert own == {"pay", *[f"look_{topic}" for topic in topics]}
        if restated:
            assert restated.pop() == topics
            assert request.messages[0] == Instructions(prompt().render(session=session).text)
            texts = str(request.messages)
            assert {topic for topic in range(4) if TEXT.format(topic).strip() in texts} == topics
        return reply

    for turn in range(turns):
        topic = turn // 7 % 4
        key = {"section_key": f"topic-{topic}"}
        replies = [
            *([call(("read_section", key))] if topic not in open_topics(session) else []),
            *[call((f"look_{topic}", {"number": page})) for page in range(turn % 4)],
            *([call(("close_section", key))] if turn % 7 == 6 else []),
            say(f"Answer {turn}."),
        ]
        adapter.replies = iter([counted(partial(check, reply=reply)) for reply in replies])
        adapter.requests.clear()
        execution = loop.execute(
            prompt(), session=session, message=f"Question {turn}?", conversation=conversation
        )
        conversation = execution.conversation
        assert len(adapter.requests) == len(replies)
        assert execution.text == f"Answer {turn}."
    assert len(compactions) > turns / 20
    assert all(event.tokens_after < event.tokens_before for event in compactions)


def long_chat(
    turns: int, *, text: int = 400, asked: Callable[[], Prompt[None]] = prompt
) -> Conversation:
    """Returns a conversation of that many turns, in which each answer has `text` characters."""
    replies = [counted(say(f"{turn} " + "x" * text)) for turn in range(turns)]
    loop, conversation = MainLoop(ScriptedAdapter(replies)), None
    for turn in range(turns):
        conversation = loop.execute(
            asked(), session=Session(), message=f"Question {turn}?", conversation=conversation
        ).conversation
    assert conversation is not None
    return conversation


def go_on(
    adapter: ScriptedAdapter, compaction: Compaction, conversation: Conversation, **options: Any
) -> Execution[None]:
    return MainLoop(adapter, compaction=compaction).execute(
        prompt(), session=Session(), message="Now?", conversation=conversation, **options
    )


def users(execution: Execution[None]) -> list[str]:
    messages = execution.response.transcript
    return [text_of(message.content) for message in messages if isinstance(message, UserMessage)]


def test_compaction_without_a_summary_keeps_only_the_last_turns() -> None:
    execution = go_on(ScriptedAdapter([say("So.")]), Compaction(1_000, 2), long_chat(20))
    assert users(execution) == ["Question 18?", "Question 19?", "Now?"]


def test_compaction_keeps_fewer_turns_if_they_exceed_half_of_the_limit() -> None:
    execution = go_on(ScriptedAdapter([say("So.")]), Compaction(2_000, 20), long_chat(30))
    assert 2 < len(users(execution)) < 12
    assert users(execution)[-2:] == ["Question 29?", "Now?"]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_summary_replaces_the_older_turns(*, is_async: bool) -> None:
    adapter = ScriptedAdapter([say("They asked.", usage=TokenUsage(7, 3)), say("So.")])
    loop = MainLoop(adapter, compaction=Compaction(1_000, 2, SUMMARIES))
    session, compactions = Session(), list[Compacted]()
    session.bus.subscribe(Compacted, compactions.append)
    options: Any = {"session": session, "message": "Now?", "conversation": long_chat(12)}
    if is_async:
        execution = asyncio.run(loop.execute_async(prompt(), **options))
    else:
        execution = loop.execute(prompt(), **options)
    instructions, older = adapter.requests[0].messages
    assert instructions == Instructions("## 1. Task\n\nSum up what the user sends.")
    assert isinstance(older, UserMessage)
    assert "User: Question 9?\n\nAssistant: 9 xxx" in older.content
    assert "Question 10?" not in older.content
    assert users(execution) == [
        "[What was said before, in short:]\n\nThey asked.",
        "Question 10?",
        "Question 11?",
        "Now?",
    ]
    assert execution.usage == TokenUsage(17, 8)
    [event] = compactions
    assert (event.ns, event.key, event.session_id) == ("tests", "long", session.session_id)
    assert (event.dropped_turns, event.dropped_calls) == (10, 0)
    assert event.summary == "They asked."


@pytest.mark.parametrize("code", ["connection", "context_length"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_failed_summary_leaves_the_conversation_unchanged(code: str, *, is_async: bool) -> None:
    failure = PromptEvaluationError("down", phase="request", code=code)
    adapter, conversation = ScriptedAdapter([failure]), long_chat(12)
    loop = MainLoop(adapter, compaction=Compaction(1_000, 2, SUMMARIES))
    options: Any = {"session": Session(), "message": "Now?", "conversation": conversation}
    ways: list[Callable[[], object]] = [
        lambda: loop.execute(prompt(), **options),
        lambda: asyncio.run(loop.execute_async(prompt(), **options)),
    ]
    with pytest.raises(PromptEvaluationError, match="down") as caught:
        ways[is_async]()
    assert list(caught.value.transcript) == [*conversation.messages, UserMessage("Now?")]
    assert len(adapter.requests) == 1  # a text that is too long to summarize is not tried again


def test_compaction_starts_only_above_the_limit_including_the_new_message() -> None:
    conversation = long_chat(3)
    tokens = request_tokens((*conversation.messages, UserMessage("Now?")), conversation.tools)
    assert tokens > request_tokens(conversation.messages, conversation.tools)
    for bound, stay in ((tokens, 3), (tokens - 1, 1)):
        execution = go_on(ScriptedAdapter([say("So.")]), Compaction(bound, 1), conversation)
        assert len(users(execution)) == stay + 1


def test_summary_error_includes_the_usage_of_the_run() -> None:
    def note(params: Page, /, *, context: ToolContext) -> ToolResult[str]:
        return ToolResult("noted")

    tool = Tool[Page, str](name="note", description="Notes.", handler=note)
    section = MarkdownSection(title="Main", template="Help.", tools=[tool])
    asked = PromptTemplate[None](ns="tests", key="long", sections=[section]).bind()
    refused = PromptEvaluationError("too long", phase="request", code="context_length")
    down = PromptEvaluationError("down", phase="request", code="server_error")
    noted = replace(call(("note", {"number": 1})), usage=TokenUsage(30, 4))
    loop = MainLoop(
        ScriptedAdapter([noted, refused, down]), compaction=Compaction(100_000, 1, SUMMARIES)
    )
    with pytest.raises(PromptEvaluationError, match="down") as caught:
        loop.execute(asked, session=Session(), message="Now?", conversation=long_chat(3))
    assert caught.value.usage == TokenUsage(30, 4)


def test_error_of_the_first_request_includes_the_usage_of_the_summary_before_it() -> None:
    down = PromptEvaluationError("down", phase="request", code="server_error")
    adapter = ScriptedAdapter([say("So far.", usage=TokenUsage(30, 4)), down])
    with pytest.raises(PromptEvaluationError, match="down") as caught:
        go_on(adapter, Compaction(10, 1, SUMMARIES), long_chat(3))
    assert caught.value.usage == TokenUsage(30, 4)


class FewArguments(ProviderAdapter):
    """An adapter that accepts conversations, in addition to the arguments of all adapters."""

    def __init__(self, inner: ProviderAdapter) -> None:
        self.inner = inner

    def evaluate(  # Any: every output
        self,
        prompt: Any,
        /,
        *,
        session: Any,
        bus: Any = None,
        deadline: Any = None,
        budget: Any = None,
        message: Any = None,
        conversation: Any = None,
    ) -> Any:
        options: dict[str, Any] = {"message": message, "conversation": conversation}
        return self.inner.evaluate(
            prompt, session=session, bus=bus, deadline=deadline, budget=budget, **options
        )


class NoConversation(ProviderAdapter):
    """An adapter that accepts a message, but no conversation."""

    def __init__(self, inner: ProviderAdapter) -> None:
        self.inner = inner

    def evaluate(  # Any: every output
        self,
        prompt: Any,
        /,
        *,
        session: Any,
        bus: Any = None,
        deadline: Any = None,
        budget: Any = None,
        message: Any = None,
    ) -> Any:
        options: dict[str, Any] = {"message": message}
        return self.inner.evaluate(
            prompt, session=session, bus=bus, deadline=deadline, budget=budget, **options
        )


def test_compaction_requires_only_the_conversation_parameter_of_an_adapter() -> None:
    loop = MainLoop(FewArguments(ScriptedAdapter([say("So.")])), compaction=Compaction(1_000, 2))
    earlier = long_chat(20, asked=SUMMARIES.bind)
    execution = loop.execute(
        SUMMARIES.bind(),
        session=Session(),
        message="Now?",
        conversation=earlier,
    )
    assert users(execution) == ["Question 18?", "Question 19?", "Now?"]
    refused = PromptEvaluationError("too long", phase="request", code="context_length")
    adapter = ScriptedAdapter([refused, say("So.")])
    execution = MainLoop(FewArguments(adapter), compaction=Compaction(100_000, 50)).execute(
        SUMMARIES.bind(),
        session=Session(),
        message="Now?",
        conversation=earlier,
    )
    assert execution.text == "So."
    assert len(adapter.requests) == 2


def test_adapter_without_a_conversation_parameter_is_called_once() -> None:
    refused = PromptEvaluationError("too long", phase="request", code="context_length")
    adapter = ScriptedAdapter([refused, say("So.")])
    loop = MainLoop(NoConversation(adapter), compaction=Compaction(1_000, 2))
    with pytest.raises(PromptEvaluationError, match="too long"):
        loop.execute(SUMMARIES.bind(), session=Session(), message="Now?")
    assert len(adapter.requests) == 1


def test_resumed_run_continues_with_its_compacted_conversation() -> None:
    def note(params: Page, /, *, context: ToolContext) -> ToolResult[str]:
        return ToolResult("noted")

    asking = Tool[Page, str](name="note", description="Notes.", handler=note, approval="arguments")
    section = MarkdownSection(title="Main", template="Help.", tools=[asking])
    asked = PromptTemplate[None](ns="tests", key="long", sections=[section]).bind()
    adapter = ScriptedAdapter([call(("note", {"number": 1})), say("So.")])
    loop, session = MainLoop(adapter, compaction=Compaction(1_000, 2)), Session()
    compactions: list[Compacted] = []
    session.bus.subscribe(Compacted, compactions.append)
    with pytest.raises(RunSuspended) as waiting:
        loop.execute(asked, session=session, message="Now?", conversation=long_chat(20))
    suspension = waiting.value.suspension
    decisions = {preview.call_id: Approve() for preview in suspension.pending}
    execution = loop.resume(asked, suspension, decisions, session=session)
    assert users(execution) == ["Question 18?", "Question 19?", "Now?"]
    assert (execution.text, len(compactions)) == ("So.", 1)


def test_turn_suspended_in_its_summary_cannot_be_resumed_after_another_message() -> None:
    def look(params: Page, /, *, context: ToolContext) -> ToolResult[str]:
        return ToolResult("looked")

    looking = Tool[Page, str](
        name="look", handler=look, approval="arguments", effect="repeatable", description="Looks."
    )
    section = MarkdownSection(title="Sum", template="Sum up.", tools=[looking])
    summary = PromptTemplate[str](ns="tests", key="summary", sections=[section])
    long = [say(word * 4_000, usage=TokenUsage(900, 900)) for word in "xy"]
    adapter = ScriptedAdapter([*long, call(("look", {"number": 1})), say("So far."), say("Four.")])
    loop = MainLoop(adapter, compaction=Compaction(1_000, 1, summary))
    chat = Chat(loop, PromptTemplate[str](ns="tests", key="chat").bind(), session=Session())
    for message in ("One?", "Two?"):
        chat.send(message)
    with pytest.raises(RunSuspended) as waiting:
        chat.send("Three?")
    suspension = waiting.value.suspension
    assert chat.send("Four?").text == "Four."
    decisions = {preview.call_id: Approve() for preview in suspension.pending}
    with pytest.raises(ValueError, match="the chat has continued since"):
        chat.resume(suspension, decisions)


@pytest.mark.parametrize("compaction", [3, "soon", (1_000, 2)])
def test_compaction_of_another_type_raises_type_error(compaction: Any) -> None:
    with pytest.raises(
        TypeError,
        match=r"^compaction must be a Compaction, such as Compaction\(at_tokens, keep.*, got",
    ):
        MainLoop(ScriptedAdapter([]), compaction=compaction)


def paying_run(adapter: ScriptedAdapter, way: str, **options: Any) -> list[Any]:
    """Returns the events of a run with one long turn."""
    loop = MainLoop(adapter, compaction=Compaction(2_500, 3))
    options = {"session": Session(), "message": "Pay.", **options}

    async def collect() -> list[Any]:
        return [event async for event in loop.stream_async(prompt(), **options)]

    match way:
        case "execute":
            return [loop.execute(prompt(), **options)]
        case "execute_async":
            return [asyncio.run(loop.execute_async(prompt(), **options))]
        case "stream":
            return [*loop.stream(prompt(), **options)]
        case _:
            return asyncio.run(collect())


PAYING = [*[call(("pay", {"number": number})) for number in range(30)], say("Paid all.")]


@pytest.mark.parametrize("way", ["execute", "execute_async", "stream", "stream_async"])
def test_compaction_within_a_turn_drops_the_oldest_calls_and_adds_a_note(way: str) -> None:
    PAID.clear()
    adapter = ScriptedAdapter([counted(reply) for reply in PAYING])
    events = paying_run(adapter, way)
    assert sorted(PAID) == [*range(30)]
    for request in adapter.requests:
        assert size(request) <= 2_500
        check_answered(request.messages)
    last = getattr(events[-1], "response", None)
    assert last is not None
    assert last.text == "Paid all."
    instructions, user, note = last.transcript[:3]
    assert isinstance(instructions, Instructions)
    assert user == UserMessage("Pay.")
    assert note.repair
    lines = note.content.splitlines()
    assert len(lines) > 5
    dropped = (
        len(PAYING) - 1 - len([message for message in last.transcript if message.kind == "tool"])
    )
    assert lines[-1].startswith(f'- pay({{"number": {dropped - 1}}}): Paid {dropped - 1}. thanks')
    assert lines[-1].endswith("thanks…")
    if way.startswith("stream"):
        assert isinstance(events[-1], Completed)
        compacted = [event for event in events if isinstance(event, Compacted)]
        assert sum([event.dropped_calls for event in compacted]) == dropped


def test_repeatedly_compacted_run_still_ends_at_its_limits() -> None:
    PAID.clear()
    config = RunConfig(max_turns=20)
    with pytest.raises(TurnLimitError, match="after 20 turns"):
        paying_run(ScriptedAdapter([counted(reply) for reply in PAYING], config=config), "execute")
    adapter = ScriptedAdapter([counted(reply) for reply in PAYING])
    with pytest.raises(PromptEvaluationError) as caught:
        paying_run(adapter, "execute", budget=Budget(max_calls=12))
    assert (caught.value.code, caught.value.turns) == ("budget", 12)


def test_context_length_error_compacts_the_conversation_once() -> None:
    refused = PromptEvaluationError("too long", phase="request", code="context_length")
    conversation = long_chat(12)
    adapter = ScriptedAdapter([refused, say("So.")])
    execution = go_on(adapter, Compaction(100_000, 50), conversation)
    assert execution.text == "So."
    assert 2 < len(users(execution)) < 9
    assert size(adapter.requests[1]) < 0.6 * size(adapter.requests[0])
    with pytest.raises(PromptEvaluationError, match="too long"):
        go_on(ScriptedAdapter([refused, refused]), Compaction(100_000, 50), conversation)


def test_compaction_keeps_calls_with_unknown_outcome() -> None:
    calls = [call(("pay", {"number": number})) for number in range(6)]
    execution = MainLoop(ScriptedAdapter([*map(counted, calls), say("So.")])).execute(
        prompt(), session=Session(), message="Pay."
    )
    assert execution.conversation is not None
    messages = list(execution.conversation.messages[:-1])
    at = next(index for index, message in enumerate(messages) if isinstance(message, ToolMessage))
    second = messages[at + 2]
    assert isinstance(second, ToolMessage)
    messages[at + 2] = replace(second, unknown=True)
    stopped = replace(execution.conversation, messages=tuple(messages))
    adapter = ScriptedAdapter([say("So.")])
    execution = MainLoop(adapter, compaction=Compaction(700, 1)).execute(
        prompt(), session=Session(), conversation=stopped
    )
    assert execution.conversation is not None
    [unknown] = execution.conversation.unknown_calls
    assert json.loads(unknown.arguments) == {"number": 1}


# --- Laws of the plan: texts of whole tokens, so that the estimate of a part is exact


RENDERED = SUMMARIES.bind().render(session=Session())
PROMPT = Instructions(RENDERED.text)


def tokens(*messages: Message) -> int:
    return request_tokens(messages, ())


def plan(at_tokens: int, keep_turns: int, *messages: Message) -> Plan | None:
    conversation = Conversation(ns="tests", key="summary", messages=(PROMPT, *messages))
    return plan_compaction(Compaction(at_tokens, keep_turns), conversation, RENDERED)


@given(
    sizes=st.lists(st.integers(1, 12) | st.integers(1, 600), min_size=1, max_size=12),
    at_tokens=st.integers(1, 4_000),
    keep_turns=st.integers(1, 12),
    counted_as=st.sampled_from([1, 2, 8]),
)
def test_plan_keeps_the_most_turns_that_fit_half_of_the_room_at_any_token_scale(
    sizes: list[int], at_tokens: int, keep_turns: int, counted_as: int
) -> None:
    turns = [(UserMessage("Why?"), AssistantMessage(text="why " * size)) for size in sizes]
    messages: list[Message] = [message for turn in turns for message in turn]
    estimate = tokens(PROMPT, *messages)
    messages[-1] = replace(turns[-1][1], usage=TokenUsage(estimate * counted_as, 0))
    found = plan(at_tokens * counted_as, keep_turns, *messages)
    if len(sizes) == 1:
        assert found is None
        return
    budget = (min(at_tokens, estimate) - tokens(PROMPT)) / 2
    fitting = [
        count
        for count in range(1, min(keep_turns, len(sizes)) + 1)
        if count == 1 or sum([tokens(*turn) for turn in turns[-count:]]) <= budget
    ]
    assert found is not None
    assert (found.kept_turns, found.dropped_calls) == (max(fitting), 0)
    assert found.tokens == estimate * counted_as
    older = [part for size in sizes[: -max(fitting)] for part in ("User: Why?", _said(size))]
    assert found.older_text() == "\n\n".join(older)[-2 * at_tokens :]
    shorter = found.apply(RENDERED, "")
    kept_turns = [message for turn in turns[-max(fitting) :] for message in turn]
    assert shorter.messages == (PROMPT, *kept_turns)
    kept = tokens(PROMPT) + sum([tokens(*turn) for turn in turns[-max(fitting) :]])
    assert found.tokens_of(shorter) == kept * counted_as


def _said(size: int) -> str:
    return "Assistant: " + "why " * size


type Round = tuple[AssistantMessage, ToolMessage]


def a_round(number: int, size: int, *, unknown: bool = False, text: str = "") -> Round:
    """Returns one call of 10 tokens and its answer."""
    made = ToolCall(f"call_{number}", "look", f'{{"a page of the book": {number:012}}}')
    return (
        AssistantMessage(text=text, tool_calls=(made,), finish="tool_calls"),
        ToolMessage(made.call_id, f"{number:03} " * size, unknown=unknown),
    )


@given(
    sizes=st.lists(st.integers(1, 60) | st.integers(1, 300), min_size=1, max_size=14),
    unknown=st.sets(st.integers(0, 13), max_size=1),
    at_tokens=st.integers(50, 3_000) | st.none(),
    older_size=st.integers(1, 2_000),
)
@example([1] * 6 + [29, 60, 1, 1, 1, 1, 144, 300], set(), 1_367, 672)  # half a token decides
def test_plan_drops_the_fewest_oldest_calls_that_let_the_last_turn_fit(
    sizes: list[int], unknown: set[int], at_tokens: int | None, older_size: int
) -> None:
    rounds = [a_round(at, size, unknown=at in unknown) for at, size in enumerate(sizes)]
    older: list[Message] = [UserMessage("Hi! "), AssistantMessage(text="Yes?" * older_size)]
    asked = UserMessage("Look")
    turn: list[Message] = [asked, *[message for made in rounds for message in made]]
    if at_tokens is None:  # the turn fits exactly, with enough older messages
        at_tokens = tokens(PROMPT) + 2 * tokens(*turn)
    found = plan(at_tokens, 3, *older, *turn)
    budget = (min(at_tokens, tokens(PROMPT, *older, *turn)) - tokens(PROMPT)) / 2
    assert found is not None  # the older turn, which never fits, is dropped
    assert list(map(list, found.older)) == [older]
    if tokens(*turn) <= budget:
        assert found.dropped_calls == 0
        return
    cost = [tokens(*made) for made in rounds]
    note = max(round(budget), 200) / 4  # the most tokens that the note may take
    last = min([*unknown, len(sizes) - 1])  # must be kept
    enough = [n for n in range(last) if tokens(asked) + sum(cost[n:]) + note <= budget]
    count = min([*enough, last])
    assert found.dropped_calls == count
    if count == 0:
        assert found.conversation.messages == (PROMPT, *older, *turn)
        return
    head, told, *kept = found.conversation.turns[-1]
    assert head == asked
    assert kept == [message for made in rounds[count:] for message in made]
    assert isinstance(told, UserMessage)
    lines = text_of(told.content).splitlines()[1:]
    max_note = max(round(budget), 200)
    assert sum(map(len, lines)) <= max_note
    expected = [f"- look({made.tool_calls[0].arguments}): " for made, _ in rounds[:count]]
    for line, start in zip(lines, expected[-len(lines) :], strict=True):
        assert line.startswith(start)
        assert len(line) <= 100
    if len(lines) < count:
        assert sum(map(len, lines)) + 100 > max_note


def test_plan_drops_only_calls_if_there_are_no_older_turns() -> None:
    turn = [message for number in range(9) for message in a_round(number, 100)]
    found = plan(1_000, 1, UserMessage("Look"), *turn)
    assert found is not None
    assert (found.older, found.older_text()) == ([], "")
    assert found.dropped_calls > 1


def test_second_note_includes_the_calls_of_the_first_note() -> None:
    rounds = [a_round(number, 1, text="word " * 200) for number in range(16)]
    turn = [UserMessage("Look"), *[message for made in rounds for message in made]]
    first = plan(4_000, 1, *turn[:25])
    assert first is not None
    shorter = first.apply(RENDERED, "")
    second = plan(4_000, 1, *shorter.messages[1:], *turn[25:])
    assert second is not None
    messages = second.apply(RENDERED, "").messages
    notes = [item for item in messages if isinstance(item, UserMessage)]
    assert [note.repair for note in notes] == [False, True]
    dropped = first.dropped_calls + second.dropped_calls
    assert dropped > first.dropped_calls > 1
    assert text_of(notes[1].content).splitlines()[1:] == [
        f'- look({{"a page of the book": {number:012}}}): {number:03}' for number in range(dropped)
    ]
    assert len(answers(messages)) == len(rounds) - dropped


def test_request_tokens_adds_an_estimate_to_the_usage_of_the_provider() -> None:
    answer = AssistantMessage(text="x" * 999, usage=TokenUsage(100, 20))
    messages: list[Message] = [UserMessage("x" * 999), answer, UserMessage("ä" * 20)]
    assert request_tokens(messages, ()) == 130
    uncounted = AssistantMessage(text="x" * 40, tool_calls=(ToolCall("1", "look", '{"number":1}'),))
    assert request_tokens([*messages, uncounted], ()) == 130 + 14
    tool = ToolSpec("look", "Looks up.", {"type": "object"})
    picture = Image.from_bytes(PNG)
    seen = [UserMessage(("Hi! ", picture)), UserMessage(text_of(("Hi! ", picture)))]
    assert tokens(seen[0]) == 1_600 + tokens(seen[1])
    assert request_tokens([], [tool]) == -(-(len("lookLooks up.") + len('{"type": "object"}')) // 4)


def test_request_tokens_ignores_image_size_and_accepts_lone_surrogates() -> None:
    small, large = Image.from_bytes(PNG), Image.from_bytes(PNG + b"\0" * 200_000)
    assert tokens(UserMessage((large,))) == tokens(UserMessage((small,)))
    assert tokens(UserMessage("\ud800" * 4)) == 1


def test_plan_includes_the_tokens_of_the_tools() -> None:
    conversation = long_chat(20)
    uncounted = [
        replace(message, usage=TokenUsage()) if isinstance(message, AssistantMessage) else message
        for message in conversation.messages
    ]
    conversation = replace(conversation, messages=tuple(uncounted))
    assert conversation.tools
    found = plan_compaction(Compaction(1_000, 2), conversation, prompt().render(session=Session()))
    assert found is not None
    assert found.scale == pytest.approx(1, abs=0.01)  # a fraction of a token for each message
    shorter = found.apply(prompt().render(session=Session()), "")
    estimate = request_tokens(shorter.messages, shorter.tools)
    assert found.tokens_of(shorter) == pytest.approx(estimate, rel=0.02)


def test_summary_input_contains_calls_and_their_answers() -> None:
    made = tuple([ToolCall(name, name, "{}") for name in ("look", "pay")])
    older: list[Message] = [
        UserMessage("Pay."),
        AssistantMessage(text="Both.", tool_calls=made),
        ToolMessage("look", "seen"),
        ToolMessage("pay", "paid"),
        AssistantMessage(tool_calls=made[:1]),
        ToolMessage("look", "seen"),
        AssistantMessage(text="Done."),
    ]
    found = plan(10_000, 1, *older, UserMessage("And?"), AssistantMessage(text="No. " * 300))
    assert found is not None
    assert found.older_text() == (
        "User: Pay.\n\n"
        "Assistant: Both.\nAssistant calls look({})\nAssistant calls pay({})\n\n"
        "Tool: seen\n\nTool: paid\n\n"
        "Assistant calls look({})\n\nTool: seen\n\n"
        "Assistant: Done."
    )


@pytest.mark.parametrize("numbers", [(0, 1), (1, 0)])
def test_at_tokens_and_keep_turns_below_one_raise_value_error(numbers: tuple[int, int]) -> None:
    name = ("at_tokens", "keep_turns")[numbers.index(0)]
    with pytest.raises(ValueError, match=f"^{name} must be at least 1, got 0"):
        Compaction(*numbers)


@pytest.mark.parametrize("number", [1.5, "3", True, None])
def test_at_tokens_and_keep_turns_must_be_integers(number: Any) -> None:
    with pytest.raises(TypeError, match=r"^at_tokens must be an int, got"):
        Compaction(number, 1)
    with pytest.raises(TypeError, match=r"^keep_turns must be an int, got"):
        Compaction(1, number)
