"""Chats over both OpenAI APIs: the bytes that each turn adds to the preceding request."""

import json
from itertools import pairwise
from typing import Any

import pytest

from support.agents import prompt, tool
from support.scripted_server import Call, Request, Say, ScriptedServer
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.evaluation.conversation import Conversation
from weakincentives.prompt import MarkdownSection, Prompt
from weakincentives.runtime.session import Session
from weakincentives.visibility import SectionVisibility

apis = pytest.mark.parametrize("api", ["responses", "chat"])


# Any: names of APIs, options of all types, prompts with any output type
def connect(server: ScriptedServer, api: Any, **options: Any) -> OpenAIAdapter:
    return OpenAIAdapter(
        "m", api=api, base_url=server.openai_url, api_key="sk-test", max_retries=0, **options
    )


def beginning(request: Request) -> bytes:
    """Returns the bytes of a request's body up to the end of its last message."""
    body: Any = request.json
    items = body.get("input") or body["messages"]
    text = json.dumps(items, ensure_ascii=False, separators=(",", ":")).encode()
    at = request.body.index(text)
    return request.body[: at + len(text) - 1]


def layered(text: str = "Go.") -> Prompt[Any]:
    hidden = MarkdownSection(
        title="More",
        key="more",
        template="The rest.",
        summary="There is more.",
        visibility=SectionVisibility.SUMMARY,
        tools=[tool(name="late")],
    )
    shown = MarkdownSection(title="Task", key="task", template=text, tools=[tool()])
    return Prompt(ns="tests", key="layers", sections=[shown, hidden])


@apis
@pytest.mark.parametrize("moves", [False, True])
def test_each_chat_request_starts_with_the_bytes_of_the_previous_one(
    api: Any, *, moves: bool
) -> None:
    """With `moves`, each turn runs in a new adapter, with the conversation loaded from JSON."""
    read = Call("read_section", {"section_key": "more"}, "call_r")
    steps = [
        *(Say("Let me see.", (Call("probe", {"a": 1}, "call_p"),), reasoning="hm"), Say("one")),
        *(Say(calls=(read,)), Say(calls=(Call("late", {"a": 1}, "call_l"),)), Say("two, ünï")),
        Say("three"),
    ]
    with ScriptedServer(*steps) as server:
        adapter, session, conversation = connect(server, api), Session(), None
        for message in ("Hi", "So?", "And 漢字?"):
            response = adapter.evaluate(
                layered(), session=session, message=message, conversation=conversation
            )
            conversation = response.conversation
            if moves and conversation is not None:
                adapter = connect(server, api)
                conversation = Conversation.from_json(conversation.to_json())
        requests = server.requests
    for before, after in pairwise(requests):
        assert after.body.startswith(beginning(before))
        tools = before.json["tools"]
        assert after.json["tools"][: len(tools)] == tools
    assert [len(request.json["tools"]) for request in requests] == [2, 2, 2, 3, 3, 3]


@apis
@pytest.mark.parametrize("role", [None, "user"])
def test_instructions_role_applies_to_the_prompt_and_its_changes(api: Any, role: Any) -> None:
    with ScriptedServer(Say("one"), Say("two")) as server:
        adapter, session = connect(server, api, instructions_role=role), Session()
        first = adapter.evaluate(prompt(text="Go."), session=session, message="Hi")
        adapter.evaluate(
            prompt(text="Stop."), session=session, message="So?", conversation=first.conversation
        )
        body = server.requests[1].json
        items = body.get("input") or body["messages"]
    roles = [item["role"] for item in items]
    own = role or ("developer" if api == "responses" else "system")
    # another server than OpenAI's may take a system message only at the beginning, and let the
    # roles alternate
    expected = [own, "user", "assistant", own, "user"]
    if api == "chat":
        expected = (
            ["user", "assistant", "user"] if role else ["system", "user", "assistant", "user"]
        )
    assert roles == expected


@apis
def test_provider_items_are_not_sent_to_another_server(api: Any) -> None:
    with ScriptedServer(Say("one", reasoning="hm"), Say("two"), Say("three")) as server:
        session, conversation = Session(), None
        for host in ("127.0.0.1", "localhost", "127.0.0.1"):
            url = server.openai_url.replace("127.0.0.1", host)
            adapter = OpenAIAdapter("m", api=api, base_url=url, api_key="sk-test", max_retries=0)
            response = adapter.evaluate(
                prompt(), session=session, message="Hi", conversation=conversation
            )
            conversation = response.conversation
        assert [b"hm" in request.body for request in server.requests] == [False, False, True]
