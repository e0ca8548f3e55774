"""A message that the provider rejects is omitted from later requests, and the error says so."""

import json
from functools import partial
from typing import Any

import pytest

from support.agents import Args, prompt, tool
from support.script import Call, Fail, Request, Say, Step
from support.scripted_server import ScriptedServer
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.content import Image
from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.compaction import Compaction
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import ToolMessage, UserMessage
from weakincentives.prompt import ToolContext, ToolResult
from weakincentives.runtime.session import Session

IMAGE = Image.from_url("https://example.com/a.png", "image/png")
LEFT_OUT = "leaves the rejected one out"


def picky(request: Request, status: int = 400) -> Step:
    """Rejects images and long requests, as several providers do."""
    if b"image_url" in request.body:
        return Fail(status, "You uploaded an unsupported image.", "invalid_image_format")
    if len(request.body) > 100_000:
        return Fail(400, "The context is too long.", "context_length_exceeded")
    return Say("Fine.")


def talk(server: ScriptedServer, *tools: Any, compaction: Compaction | None = None) -> Chat[Any]:
    adapter = OpenAIAdapter(
        "m", api="chat", base_url=server.openai_url, api_key="sk-test", max_retries=0
    )
    return Chat(MainLoop(adapter, compaction=compaction), prompt(*tools), session=Session())


def rejected(chat: Chat[Any], message: Any) -> PromptEvaluationError:
    with pytest.raises(PromptEvaluationError) as caught:
        chat.send(message)
    return caught.value


@pytest.mark.claim("N-22")
@pytest.mark.parametrize("compaction", [None, Compaction(40_000, keep_turns=3)], ids=repr)
@pytest.mark.parametrize(
    "message", [["What is this?", IMAGE], "x" * 200_000], ids=["image", "long"]
)
def test_rejected_message_is_omitted_from_later_requests(
    message: Any, compaction: Compaction | None
) -> None:
    with ScriptedServer(*[picky] * 8, strict=False) as server:
        chat = talk(server, compaction=compaction)
        chat.send("Hello")
        error = rejected(chat, message)
        assert LEFT_OUT in str(error)
        assert str(error).count(LEFT_OUT) == 1
        assert [chat.send(text).text for text in ("Never mind.", "Hello?")] == ["Fine.", "Fine."]
        last = json.dumps(server.requests[-1].json)
    assert "What is this?" not in last
    assert "Never mind." in last
    assert chat.conversation is not None
    loaded = Conversation.from_json(chat.conversation.to_json())
    marked = [item for item in loaded.messages if isinstance(item, UserMessage) and item.refused]
    assert len(marked) == 1, "the conversation says what was said"


def test_rejected_message_is_sent_again_if_no_new_message_follows() -> None:
    with ScriptedServer(Fail(400), Say("Fine."), Say("Bye.")) as server:
        chat = talk(server)
        rejected(chat, "Hello")
        assert chat.send().text == "Fine."
        assert chat.send("And?").text == "Bye."
        assert b"Hello" in server.requests[1].body
        assert b"Hello" in server.requests[2].body


@pytest.mark.parametrize("status", [401, 429, 503])
def test_message_is_kept_after_a_failure_that_is_not_a_rejection(status: int) -> None:
    with ScriptedServer(Fail(status), Say("Fine.")) as server:
        chat = talk(server)
        assert LEFT_OUT not in str(rejected(chat, "Hello"))
        chat.send("Are you there?")
        assert b"Hello" in server.requests[1].body


@pytest.mark.parametrize("status", [400, 500])
def test_rejected_tool_result_is_replaced_by_a_note(status: int) -> None:
    def look(params: Args, *, context: ToolContext) -> ToolResult[object]:
        return ToolResult("Here.", media=[IMAGE])

    first, then = Say(calls=(Call("look"),)), partial(picky, status=status)
    with ScriptedServer(first, then, then) as server:
        chat = talk(server, tool(look, name="look"))
        assert LEFT_OUT in str(rejected(chat, "Look."))
        assert chat.send("Never mind.").text == "Fine."
        [result] = [item for item in server.requests[2].json["messages"] if item["role"] == "tool"]
    assert result["content"] == "(The provider rejected this result.)"
    assert chat.conversation is not None
    [kept] = [item for item in chat.conversation.messages if isinstance(item, ToolMessage)]
    assert (kept.content.splitlines()[0], kept.media) == ("Here.", (IMAGE,))


def test_rejected_prompt_without_a_message_is_kept() -> None:
    with ScriptedServer(Fail(400)) as server:
        adapter = OpenAIAdapter("m", base_url=server.openai_url, api_key="k", max_retries=0)
        with pytest.raises(PromptEvaluationError) as caught:
            adapter.evaluate(prompt(), session=Session())
    assert LEFT_OUT not in str(caught.value)
