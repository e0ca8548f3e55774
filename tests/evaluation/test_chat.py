"""A chat keeps its conversation in the session, across turns, failures and processes."""

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from support.commands import environment
from weakincentives.adapters.core import (
    PromptEvaluationError,
    PromptResponse,
    ProviderAdapter,
)
from weakincentives.content import text_of
from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage, ToolMessage, UserMessage
from weakincentives.evaluation.response import Completed, Restarted
from weakincentives.limits import Budget
from weakincentives.locks import ConcurrentRunError
from weakincentives.prompt import (
    MarkdownSection,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime.events import ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.testing import Reply, ScriptedAdapter, SeenRequest, call, say


@dataclass(frozen=True)
class Amount:
    n: int


PAID: list[int] = []


def pay(params: Amount, /, *, context: ToolContext) -> ToolResult[str]:
    PAID.append(params.n)
    if params.n < 0:
        raise KeyboardInterrupt
    return ToolResult(message=f"Paid {params.n}.")


def template(key: str = "chat", *tools: Tool[Any, Any]) -> PromptTemplate[None]:
    payments = Tool[Amount, str](
        name="pay", description="Pays.", handler=pay, effect="at_most_once"
    )
    return PromptTemplate(
        ns="tests",
        key=key,
        sections=[
            MarkdownSection(title="Main", template="Be kind.", tools=tools),
            MarkdownSection(
                title="Payments",
                key="payments",
                template="Pay immediately.",
                summary="How to pay.",
                visibility=SectionVisibility.SUMMARY,
                tools=[payments],
            ),
        ],
    )


OPEN = call(("read_section", {"section_key": "payments"}))


def chat_of(*replies: Reply, key: str = "chat", session: Session | None = None) -> Chat[None]:
    prompt = template(key).bind()
    return Chat(MainLoop(ScriptedAdapter(replies)), prompt, session=session or Session())


def send(chat: Chat[None], message: str) -> str:
    return chat.send(message).text


def send_async(chat: Chat[None], message: str) -> str:
    return asyncio.run(chat.send_async(message)).text


def stream(chat: Chat[None], message: str) -> str:
    *_, last = chat.stream(message)
    assert isinstance(last, Completed)
    return last.response.text


def stream_async(chat: Chat[None], message: str) -> str:
    async def read() -> str:
        events = [event async for event in chat.stream_async(message)]
        assert isinstance(events[-1], Completed)
        return events[-1].response.text

    return asyncio.run(read())


MODES = [send, send_async, stream, stream_async]
any_mode = pytest.mark.parametrize("mode", MODES)
type Mode = Callable[[Chat[None], str], str]


def words(conversation: Conversation | None) -> list[str]:
    """Returns the messages of user and model."""
    assert conversation is not None
    return [
        text_of(message.content) if isinstance(message, UserMessage) else message.text
        for message in conversation.messages
        if isinstance(message, UserMessage | AssistantMessage)
    ]


@any_mode
def test_chat_continues_the_conversation_across_messages(mode: Mode) -> None:
    chat = chat_of(say("Hello."), OPEN, call(("pay", {"n": 1})), say("Paid."), say("Bye."))
    assert chat.conversation is None
    assert [mode(chat, message) for message in ("Hi", "Pay", "Thanks")] == [
        "Hello.",
        "Paid.",
        "Bye.",
    ]
    assert words(chat.conversation) == ["Hi", "Hello.", "Pay", "", "", "Paid.", "Thanks", "Bye."]


def test_session_keeps_only_the_latest_conversation_of_a_chat() -> None:
    chat = chat_of(*[say("Yes.")] * 5)
    for message in "abcde":
        chat.send(message)
    assert chat.session[Conversation].all() == (chat.conversation,)


def test_chats_with_different_prompts_share_a_session_without_mixing() -> None:
    session = Session()
    one = chat_of(say("one"), say("two"), session=session)
    other = chat_of(say("ONE"), say("TWO"), key="other", session=session)
    for message in ("Hi", "So"):
        one.send(message)
        other.send(message.upper())
    assert words(one.conversation) == ["Hi", "one", "So", "two"]
    assert words(other.conversation) == ["HI", "ONE", "SO", "TWO"]


def test_session_snapshot_restores_the_complete_chat_without_any_types() -> None:
    chat = chat_of(say("one"), OPEN, say("two"))
    chat.send("Hi")
    chat.send("So")
    session = Session()
    session.restore(session.parse_snapshot(chat.session.snapshot().to_json()))
    later = chat_of(say("three"), session=session)
    assert later.conversation == chat.conversation
    assert later.send("And").text == "three"


def test_restoring_an_earlier_snapshot_removes_later_turns() -> None:
    chat = chat_of(say("one"), say("two"), say("another two"))
    chat.send("Hi")
    before = chat.session.snapshot()
    chat.send("So")
    chat.session.restore(before)
    assert chat.send("Or").text == "another two"
    assert words(chat.conversation) == ["Hi", "one", "Or", "another two"]


PROGRAM = '''
"""Takes one message of a chat whose snapshot is in the database; prints the answer."""

import asyncio
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass

from weakincentives import MarkdownSection, PromptTemplate, SectionVisibility, Tool, ToolResult
from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import UserMessage
from weakincentives.locks import ConcurrentRunError
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say

form, message = sys.argv[1:]


@dataclass(frozen=True)
class Order:
    item: str


def order(params: Order, *, context) -> ToolResult[Order]:
    """Order an item."""
    context.session.dispatch(params)
    return ToolResult(message="Ordered.", value=params)


orders = MarkdownSection(
    title="Orders",
    template="Order what they want.",
    summary="How to order.",
    visibility=SectionVisibility.SUMMARY,
    tools=[Tool(name="order", handler=order)],
)
prompt = PromptTemplate(ns="shop", key="clerk", sections=[orders]).bind()


def answer(seen):
    """Opens the section for the first order, orders what is asked for, and counts messages."""
    asked = [item.content for item in seen.messages if isinstance(item, UserMessage)]
    wanted = asked[-1].removeprefix("order ")
    if wanted == asked[-1] or getattr(seen.messages[-1], "content", "").startswith("Ordered"):
        return say(f"{len(asked)}: {asked[-1]}, {len(seen.tool_names)} tools")
    if "order" in seen.tool_names:
        return call(("order", {"item": wanted}))
    return call(("read_section", {"section_key": "orders"}))


with closing(sqlite3.connect("chats.db", autocommit=True)) as database:
    database.execute("CREATE TABLE IF NOT EXISTS chats (name TEXT PRIMARY KEY, snapshot TEXT)")
    row = database.execute("SELECT snapshot FROM chats WHERE name = 'ann'").fetchone()
    session = Session()
    if row is not None:
        session.restore(session.parse_snapshot(row[0], types=[Order]))
    chat = Chat(MainLoop(ScriptedAdapter([answer] * 4)), prompt, session=session)
    if form == "async":
        execution = asyncio.run(chat.send_async(message))
    else:
        execution = chat.send(message)
    database.execute("REPLACE INTO chats VALUES ('ann', ?)", [session.snapshot().to_json()])
print(execution.text, [order.item for order in session[Order].all()])
'''


@pytest.mark.parametrize("form", ["sync", "async"])
def test_chat_continues_in_a_new_process_for_each_message(tmp_path: Path, form: str) -> None:
    (tmp_path / "turn.py").write_text(PROGRAM)
    messages = "Hello", "order tea", "order milk", "Thanks"
    answers: list[str] = []
    for message in messages:
        done = subprocess.run(
            [sys.executable, "turn.py", form, message],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        answers.append(done.stdout.strip())
    assert answers == [
        "1: Hello, 1 tools []",
        "2: order tea, 2 tools ['tea']",
        "3: order milk, 2 tools ['tea', 'milk']",
        "4: Thanks, 2 tools ['tea', 'milk']",
    ]
    with closing(sqlite3.connect(tmp_path / "chats.db")) as database:
        [(snapshot,)] = database.execute("SELECT snapshot FROM chats").fetchall()
    slices = json.loads(snapshot)["slices"]
    [[conversation]] = [values for name, values in slices.items() if name.endswith("Conversation")]
    said = [item["content"] for item in conversation["messages"] if item["kind"] == "user"]
    assert said == [*messages]


# --------------------------------------------------------------------------------------------------
# stopped turns


@any_mode
def test_chat_continues_from_the_partial_turn_after_an_error(mode: Mode) -> None:
    failure = PromptEvaluationError("busy", phase="request", code="overloaded")
    chat = chat_of(say("one"), OPEN, failure, say("three"))
    mode(chat, "Hi")
    with pytest.raises(PromptEvaluationError) as raised:
        mode(chat, "Pay")
    stopped = chat.conversation
    assert stopped == raised.value.conversation
    assert words(stopped) == ["Hi", "one", "Pay", ""]
    assert mode(chat, "And now?") == "three"
    assert words(chat.conversation) == ["Hi", "one", "Pay", "", "And now?", "three"]


@any_mode
def test_send_without_a_message_continues_a_stopped_turn(mode: Mode) -> None:
    failure = PromptEvaluationError("busy", phase="request", code="overloaded")
    chat = chat_of(failure, say("one"))
    with pytest.raises(PromptEvaluationError):
        mode(chat, "Hi")
    assert chat.send().text == "one"
    assert words(chat.conversation) == ["Hi", "one"]
    with pytest.raises(ValueError, match="pass the user's next message as message="):
        chat.send()


@any_mode
def test_turn_stopped_by_ctrl_c_in_a_tool_continues_without_rerunning_the_tool(
    mode: Mode,
) -> None:
    PAID.clear()
    paying = call(("pay", {"n": -1}), ("pay", {"n": 5}))
    chat = chat_of(OPEN, paying, call(("pay", {"n": -1})), say("Done."))
    with pytest.raises(KeyboardInterrupt):
        mode(chat, "Pay")
    assert chat.conversation is not None
    answers = [item for item in chat.conversation.messages if isinstance(item, ToolMessage)]
    assert [answer.unknown for answer in answers] == [False, True, False]
    assert chat.send().text == "Done."
    assert PAID == [-1, 5]


def test_cancelled_turn_keeps_its_messages_and_the_chat_continues() -> None:
    begun = asyncio.Event()

    async def wait(params: Amount, *, context: ToolContext) -> ToolResult[str]:
        """Waits forever."""
        begun.set()
        await asyncio.Event().wait()
        return ToolResult(message="")

    tool = Tool[Amount, str](name="wait", handler=wait)
    script = [call(("wait", {"n": 1})), say("two")]
    prompt = template("chat", tool).bind()
    chat = Chat(MainLoop(ScriptedAdapter(script)), prompt, session=Session())

    async def cancel() -> None:
        turn = asyncio.create_task(chat.send_async("Hi"))
        await begun.wait()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        assert chat.conversation is not None
        assert [message.kind for message in chat.conversation.messages] == [
            *["instructions", "user", "assistant", "tool"]
        ]
        assert (await chat.send_async("So?")).text == "two"

    asyncio.run(cancel())


def test_closing_a_stream_ends_the_turn_and_the_chat_continues() -> None:
    chat = chat_of(OPEN, say("never read"), say("two"))
    events = chat.stream("Hi")
    next(events)
    events.close()
    assert words(chat.conversation) == ["Hi", ""]
    assert chat.send("So?").text == "never read"


def test_closing_an_async_stream_ends_the_turn_and_the_chat_continues() -> None:
    chat = chat_of(OPEN, say("one"), say("two"))

    async def close_early() -> None:
        events: AsyncGenerator[Any] = chat.stream_async("Hi")
        await anext(events)
        await events.aclose()
        assert words(chat.conversation) == ["Hi", ""]
        assert (await chat.send_async("So?")).text == "one"

    asyncio.run(close_early())


# --------------------------------------------------------------------------------------------------
# turns do not overlap


def test_second_message_during_a_turn_raises_concurrent_run_error() -> None:
    asked, answer = Event(), Event()

    def slowly(seen: SeenRequest) -> AssistantMessage:
        asked.set()
        assert answer.wait(60)
        return say("one")

    chat = chat_of(slowly, say("two"))
    turn = Thread(target=chat.send, args=["Hi"])
    turn.start()
    assert asked.wait(60)
    for mode in MODES:
        with pytest.raises(ConcurrentRunError, match="in use by a run of"):
            mode(chat, "Hello?")
    answer.set()
    turn.join(60)
    assert words(chat.conversation) == ["Hi", "one"]
    assert chat.send("So").text == "two"


def test_next_message_can_be_sent_as_soon_as_the_stream_yields_completed() -> None:
    chat = chat_of(say("one"), say("two"))
    events = chat.stream("Hi")
    while not isinstance(next(events), Completed):
        pass
    assert chat.send("So").text == "two"

    async def send_at_the_end() -> str:
        async for event in chat.stream_async("And"):
            if isinstance(event, Completed):
                return (await chat.send_async("Now")).text
        return "no end"

    chat = chat_of(say("three"), say("four"))
    assert asyncio.run(send_at_the_end()) == "four"


# --------------------------------------------------------------------------------------------------
# options and adapters


def test_turn_options_apply_only_to_their_turn() -> None:
    chat = chat_of(OPEN, say("one"))
    with pytest.raises(PromptEvaluationError):
        chat.send("Hi", budget=Budget(max_calls=1))
    assert chat.send("Go on").text == "one"


def test_chat_stream_yields_restarted() -> None:
    adapter = ScriptedAdapter([OPEN, say("one")], dynamic_tools=False)
    chat = Chat(MainLoop(adapter), template().bind(), session=Session())
    events = [*chat.stream("Hi")]
    assert [event.section_keys for event in events if isinstance(event, Restarted)] == [
        ("payments",)
    ]


class Delegates(ProviderAdapter):
    """A user's own adapter, which delegates to another one."""

    def __init__(self, adapter: ScriptedAdapter) -> None:
        self.adapter = adapter

    # Any: arguments and results for any prompt
    def evaluate(self, prompt: Any, /, **options: Any) -> PromptResponse[Any]:
        return self.adapter.evaluate(prompt, **options)


def test_chat_keeps_the_conversation_of_an_adapter_with_its_own_loop() -> None:
    adapter = Delegates(ScriptedAdapter([say("one"), say("two")]))
    section = MarkdownSection(title="Main", template="Be kind.")
    prompt = PromptTemplate[None](ns="tests", key="chat", sections=[section]).bind()
    chat = Chat(MainLoop(adapter), prompt, session=Session())
    chat.send("Hi")
    chat.send("So")
    assert words(chat.conversation) == ["Hi", "one", "So", "two"]


def test_chat_takes_an_adapter_and_a_template_and_creates_a_session() -> None:
    adapter = ScriptedAdapter([say("Hi."), say("Bye."), say("Hi.")])
    chat, other = Chat(adapter, template()), Chat(MainLoop(adapter), template())
    assert chat.send("Hello").text == "Hi."
    assert chat.send("Ciao").session is chat.session
    assert other.send("Hello").text == "Hi."
    assert len(adapter.requests[-1].messages) == 2  # nothing of the first chat
    assert other.session is not chat.session


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [((3, template()), "MainLoop takes an adapter"), (("openai:x", "Hi"), "Chat takes a Prompt")],
    ids=["loop", "prompt"],
)
def test_chat_rejects_arguments_of_other_types(arguments: Any, problem: str) -> None:
    with pytest.raises(TypeError, match=problem):
        Chat(*arguments)


def test_long_chat_continues_in_a_new_session_without_the_events_of_the_old_one() -> None:
    replies = [call(("pay", {"n": 1})), say("Paid."), say("Bye.")]
    chat = chat_of(OPEN, *replies)
    chat.send("Pay")
    assert len(chat.session[ToolInvoked])
    fresh = Session()
    fresh.restore(chat.session.snapshot())
    continued = Chat(chat.loop, chat.prompt, session=fresh)
    assert not fresh[ToolInvoked]
    assert continued.conversation == chat.conversation
    assert continued.send("Thanks").text == "Bye."
    assert "Paid." in words(continued.conversation)
