"""Continued conversations, with this adapter or another, only append to Anthropic's requests."""

from dataclasses import dataclass
from typing import Any

import pytest

from support.agents import tool
from support.messages_api import MessagesAPI
from support.scripted_server import Call, Say, ScriptedServer
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.evaluation.conversation import Conversation
from weakincentives.prompt import MarkdownSection, Prompt, SectionVisibility
from weakincentives.runtime.session import Session

MODEL = "claude-opus-5-5"

ways = pytest.mark.parametrize("way", ["inline", "deferred", "list"])


@dataclass(frozen=True)
class Manner:
    word: str


def manual(word: str = "kind") -> Prompt[Any]:
    more = MarkdownSection(
        title="More",
        key="more",
        template="The rest.",
        summary="There is more.",
        visibility=SectionVisibility.SUMMARY,
        tools=[tool(name="late")],
    )
    task = MarkdownSection[Manner](title="Task", key="task", template="Be $word.", tools=[tool()])
    return Prompt(ns="tests", key="manual", sections=[task, more], closable=True).bind(Manner(word))


# Any: options of all types
def connect(server: ScriptedServer, way: Any, **options: Any) -> AnthropicAdapter:
    return AnthropicAdapter(
        MODEL,
        base_url=server.url,
        api_key="sk-test",
        max_retries=0,
        tool_changes=way,
        **options,
    )


READ = Call("read_section", {"section_key": "more"})
CLOSE = Call("close_section", {"section_key": "more"})


@ways
@pytest.mark.parametrize("elsewhere", [False, True])
def test_conversation_reads_its_cache_even_after_a_json_round_trip(
    way: str, elsewhere: bool
) -> None:
    api = MessagesAPI(growing_tools=way == "list", counts=True)
    steps = [
        *(Say(calls=(READ,)), Say(calls=tuple([Call("late")] * 12)), Say("One.")),
        *(Say(calls=(CLOSE,)), Say("Two.")),
        *(Say(calls=(READ,)), Say(calls=(Call("late"),)), Say("Three.")),
    ]
    with ScriptedServer(*map(api.play, steps)) as server:
        adapter, conversation, texts = connect(server, way), None, []
        for message in ("First", "Second", "Third"):
            response = adapter.evaluate(
                manual(), session=Session(), message=message, conversation=conversation
            )
            assert response.conversation is not None
            conversation = response.conversation
            texts.append(response.text)
            if elsewhere:
                conversation = Conversation.from_json(conversation.to_json())
                adapter = connect(server, way)
        bodies = [request.json for request in server.requests]
    assert texts == ["One.", "Two.", "Three."]
    assert all(body["system"] == bodies[0]["system"] for body in bodies)
    [system] = bodies[0]["system"]
    assert system["text"] == manual().render().text
    assert [message["role"] for message in bodies[0]["messages"]] == ["user"]
    if way != "list":
        for before, after in zip(api.uses, api.uses[1:], strict=False):
            assert after.read == before.stored


@ways
def test_changed_sections_are_announced_at_the_end_of_the_conversation(way: str) -> None:
    api = MessagesAPI(growing_tools=way == "list")
    with ScriptedServer(*map(api.play, [Say("One."), Say("Two.")])) as server:
        adapter = connect(server, way)
        first = adapter.evaluate(manual(), session=Session(), message="Hi")
        adapter.evaluate(
            manual("brief"), session=Session(), message="Go on", conversation=first.conversation
        )
        *_, last = [request.json["messages"] for request in server.requests]
    news = [
        (message["role"], block["text"])
        for message in last[2:]
        for block in message["content"]
        if "Be brief." in block.get("text", "")
    ]
    assert [role for role, _ in news] == ["system" if way == "inline" else "user"]
    assert news[0][1].startswith("These parts of your instructions have changed.")


def test_conversation_moves_to_openai_and_back() -> None:
    openai_steps = [Say(calls=(READ,)), Say(calls=(Call("late"),)), Say("One.")]
    steps = [Say(calls=(Call("late"),)), Say("Two.")]
    with (
        ScriptedServer(*openai_steps, Say("Three.")) as other,
        # answers from another provider's model have no thinking
        ScriptedServer(*steps) as server,
    ):
        openai = OpenAIAdapter("m", base_url=other.openai_url, api_key="sk-test", max_retries=0)
        claude = connect(server, "inline")
        conversation, texts = None, []
        for adapter in (openai, claude, openai):
            response = adapter.evaluate(
                manual(), session=Session(), message="Go", conversation=conversation
            )
            conversation = response.conversation
            texts.append(response.text)
        sent = server.requests[1].json["messages"]
        items = other.requests[-1].json["input"]
    assert texts == ["One.", "Two.", "Three."]
    kinds = [
        [block["type"] for block in message["content"]]
        for message in sent
        if message["role"] != "user"
    ]
    assert kinds == [["tool_use"], ["tool_addition"], ["tool_use"], ["text"], ["tool_use"]]
    assert "Two." in str(items)
