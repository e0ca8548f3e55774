"""Files from weakincentives 0.2.0 are read, or rejected with a remedy: see `tests/data/0.2`."""

from pathlib import Path
from shutil import copytree

import pytest

from support.shop_of_0_2 import STAMP, Ordered, Shop, template
from weakincentives import Chat, MainLoop, Prompt, Session
from weakincentives.content import MemoryContentStore
from weakincentives.contrib.mcp.lock import read_lock
from weakincentives.errors import SerdeError
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.evaluation.suspension import Suspension, previews_of_0_2
from weakincentives.inspection.event_log import read_events
from weakincentives.prompt.overrides.store import LocalPromptOverridesStore
from weakincentives.testing import ScriptedAdapter, call, say

FILES = Path(__file__).parent / "data" / "0.2"
PROVIDERS = ["anthropic", "chat", "responses"]


def read(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")


def new_session() -> Session:
    content = MemoryContentStore()
    content.put(STAMP)
    session = Session(content=content)
    template.bind(Shop("Luna")).declare_state(session)
    return session


@pytest.mark.parametrize("provider", PROVIDERS)
def test_conversation_of_0_2_continues_with_its_tools(provider: str) -> None:
    conversation = Conversation.from_json(read(f"conversation-{provider}.json"))
    adapter = ScriptedAdapter([call(("order", {"item": "tea"})), say("Ordered again.")])
    execution = MainLoop(adapter).execute(
        template.bind(Shop("Luna")),
        session=new_session(),
        conversation=conversation,
        message="The same again.",
    )
    assert execution.text == "Ordered again."
    assert adapter.requests[0].messages[: len(conversation.messages)] == conversation.messages
    assert adapter.requests[0].tool_names == ("order", "stamp", "read_section", "pay")


@pytest.mark.parametrize("provider", PROVIDERS)
def test_conversation_of_0_2_keeps_provider_items(provider: str) -> None:
    conversation = Conversation.from_json(read(f"conversation-{provider}.json"))
    answers = [each for each in conversation.messages if isinstance(each, AssistantMessage)]
    assert len(answers) == 3
    assert all(answer.wire for answer in answers)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_snapshot_of_0_2_restores_a_complete_chat(provider: str) -> None:
    session = new_session()
    session.restore(session.parse_snapshot(read(f"snapshot-{provider}.json")))
    chat = Chat(
        MainLoop(ScriptedAdapter([say("Yes.")])), template.bind(Shop("Luna")), session=session
    )
    assert session[Ordered].all() == (Ordered("Keemun"),)
    assert chat.send("Is it ordered?").text == "Yes."


def test_stopped_conversation_of_0_2_continues() -> None:
    conversation = Conversation.from_json(read("conversation-stopped.json"))
    execution = MainLoop(ScriptedAdapter([say("Both.")])).execute(
        template.bind(Shop("Luna")), session=new_session(), conversation=conversation
    )
    assert execution.text == "Both."


@pytest.mark.claim("N-30")
@pytest.mark.parametrize(
    ("name", "call_id"),
    [("suspension.json", "call_3"), ("suspension-nested.json", "call_1/1/call_2")],
)
def test_suspension_of_0_2_is_rejected_with_a_fix_but_its_calls_can_be_listed(
    name: str, call_id: str
) -> None:
    with pytest.raises(SerdeError, match="start a new run from its conversation"):
        Suspension.from_json(read(name))
    previews = previews_of_0_2(read(name))
    assert previews is not None
    assert [(preview.tool, preview.call_id) for preview in previews] == [("pay", call_id)]


def test_event_log_of_0_2_is_rejected_with_a_fix() -> None:
    remedy = "line 1 starts a log of version 4, .*; read it with weakincentives 0.2"
    with pytest.raises(ValueError, match=remedy):
        list(read_events(read("events.jsonl").splitlines()))


def test_overrides_of_0_2_apply(tmp_path: Path) -> None:
    copytree(FILES / "overrides", tmp_path / "root")
    store = LocalPromptOverridesStore(tmp_path / "root")
    latest = Prompt(template, overrides_store=store).bind(Shop("Luna")).render()
    assert "You sell the best tea at Luna." in latest.text
    assert "All payments." in latest.text
    brief = Prompt(template, overrides_store=store, overrides_tag="brief").bind(Shop("Luna"))
    tools = {tool.name: tool.description for tool in brief.render().tools}
    assert tools["order"] == "Order one tea."


def test_mcp_lock_of_0_2_can_be_read() -> None:
    lock = read_lock(FILES / "lock-time.json")
    assert [tool.name for tool in lock.tools] == ["convert_time", "get_current_time"]
