"""Answers that Anthropic pauses while it runs its own tools, such as a web search."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import pytest

from support.agents import prompt, tool
from support.messages_api import MessagesAPI
from support.scripted_server import Call, Say, ScriptedServer, Usage
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.evaluation.errors import BudgetExceededError, TurnLimitError
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.response import Completed, PromptResponse, TextDelta
from weakincentives.limits import Budget, TokenUsage
from weakincentives.prompt import Prompt
from weakincentives.runtime.events import ProviderCalled
from weakincentives.runtime.session import Session

SEARCH = {"type": "web_search_20250305", "name": "web_search"}


def search(name: str) -> dict[str, Any]:
    query = {"query": "moss"}
    return {"type": "server_tool_use", "id": name, "name": "web_search", "input": query}


def result(name: str) -> dict[str, Any]:
    page = {"type": "web_search_result", "url": "https://moss.test", "encrypted_content": "x"}
    return {"type": "web_search_tool_result", "tool_use_id": name, "content": [page]}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


PAUSED = Say(blocks=(text("I search. "), search("srvtoolu_1")), finish="pause", usage=Usage(10, 5))
AGAIN = Say(
    blocks=(result("srvtoolu_1"), text("And again. "), search("srvtoolu_2")),
    finish="pause",
    usage=Usage(20, 5),
)
FOUND = Say("Moss is green.", blocks=(result("srvtoolu_2"),), usage=Usage(30, 5))


# Any: prompts with any output type, options of all types.
def connect(server: ScriptedServer, **options: Any) -> AnthropicAdapter:
    return AnthropicAdapter(
        "claude-opus-5-5",
        base_url=server.url,
        api_key="sk-ant-test",
        max_retries=0,
        options={"tools": [SEARCH]},
        **options,
    )


def evaluate(adapter: AnthropicAdapter, asked: Prompt[Any], **options: Any) -> PromptResponse[Any]:
    return adapter.evaluate(asked, **options)


def evaluate_async(
    adapter: AnthropicAdapter, asked: Prompt[Any], **options: Any
) -> PromptResponse[Any]:
    return asyncio.run(adapter.evaluate_async(asked, **options))


def stream(adapter: AnthropicAdapter, asked: Prompt[Any], **options: Any) -> PromptResponse[Any]:
    *events, last = adapter.stream(asked, **options)
    assert isinstance(last, Completed)
    pieces = [event.text for event in events if isinstance(event, TextDelta)]
    assert "".join(pieces) == last.response.text
    return last.response


def stream_async(
    adapter: AnthropicAdapter, asked: Prompt[Any], **options: Any
) -> PromptResponse[Any]:
    async def main() -> PromptResponse[Any]:
        *_, last = [event async for event in adapter.stream_async(asked, **options)]
        assert isinstance(last, Completed)
        return last.response

    return asyncio.run(main())


drivers = pytest.mark.parametrize("run", [evaluate, evaluate_async, stream, stream_async])
type Run = Callable[..., PromptResponse[Any]]


@pytest.fixture
def api() -> MessagesAPI:
    return MessagesAPI()


@drivers
def test_run_continues_by_sending_the_paused_answer_back(run: Run, api: MessagesAPI) -> None:
    session = Session()
    steps = (PAUSED, AGAIN, FOUND, Say(calls=(Call("probe"),)), Say("Probed."))
    with ScriptedServer(*map(api.play, steps)) as server:
        adapter = connect(server)
        response = run(adapter, prompt(tool()), session=session)
        chat = {"message": "Probe it.", "conversation": response.conversation}
        assert run(adapter, prompt(tool()), session=session, **chat).text == "Probed."
        bodies = [request.json for request in server.requests]
    assert response.text == "I search. And again. Moss is green."
    assert (response.turns, response.usage) == (3, TokenUsage(60, 15))
    finishes = [event.finish for event in session[ProviderCalled].all()]
    assert finishes == ["pause", "pause", "stop", "tool_calls", "stop"]
    roles = [[message["role"] for message in body["messages"]] for body in bodies[:3]]
    assert roles == [["user"], ["user", "assistant"], ["user", "assistant", "assistant"]]
    assert bodies[2]["messages"][2]["content"][1:] == [*AGAIN.blocks]


@drivers
def test_typed_output_is_parsed_after_a_pause(run: Run, api: MessagesAPI) -> None:
    @dataclass(frozen=True)
    class Colour:
        name: str

    paused = Say(blocks=(search("srvtoolu_1"),), finish="pause")
    answer = Say('{"name": "green"}', blocks=(result("srvtoolu_1"),))
    with ScriptedServer(*map(api.play, (paused, answer))) as server:
        response = run(connect(server), prompt(output=Colour), session=Session())
    assert response.output == Colour("green")


@drivers
def test_endless_pauses_raise_turn_limit_error(run: Run) -> None:
    with ScriptedServer(*repeat(PAUSED, 4)) as server:
        adapter = connect(server, config=RunConfig(max_turns=4))
        with pytest.raises(TurnLimitError) as caught:
            run(adapter, prompt(), session=Session())
    assert (caught.value.turns, caught.value.usage) == (4, TokenUsage(40, 20))


@pytest.mark.parametrize("way", ["inline", "deferred", "list"])
def test_user_message_interrupts_a_paused_answer(way: Any, api: MessagesAPI) -> None:
    session = Session()
    with ScriptedServer(*map(api.play, (PAUSED, Say("As you like."), Say("Yes.")))) as server:
        adapter = connect(server, tool_changes=way)
        with pytest.raises(BudgetExceededError) as caught:
            adapter.evaluate(
                prompt(tool()), session=session, message="Moss?", budget=Budget(max_calls=1)
            )
        conversation = caught.value.conversation
        for message in ("Stop.", "Really?"):
            response = adapter.evaluate(
                prompt(tool()), session=session, message=message, conversation=conversation
            )
            conversation = response.conversation
        sent = server.requests[-1].json["messages"]
    assert [block["type"] for block in sent[1]["content"]] == ["thinking", "text"]


def test_paused_conversation_continues_without_a_message(api: MessagesAPI) -> None:
    with ScriptedServer(*map(api.play, (PAUSED, Say("Green.")))) as server:
        adapter, session = connect(server), Session()
        with pytest.raises(BudgetExceededError) as caught:
            adapter.evaluate(prompt(), session=session, budget=Budget(max_calls=1))
        conversation = caught.value.conversation
        response = adapter.evaluate(prompt(), session=session, conversation=conversation)
    assert response.text == "Green."


def test_paused_answer_continues_with_another_provider() -> None:
    with ScriptedServer(PAUSED) as server, ScriptedServer(Say("Green.")) as other:
        session = Session()
        with pytest.raises(BudgetExceededError) as caught:
            connect(server).evaluate(prompt(), session=session, budget=Budget(max_calls=1))
        openai = OpenAIAdapter("m", base_url=other.openai_url, api_key="sk-test", max_retries=0)
        response = openai.evaluate(
            prompt(), session=session, message="Go on.", conversation=caught.value.conversation
        )
        [request] = other.requests
    assert response.text == "Green."
    assert {"role": "assistant", "content": "I search. "} in request.json["input"]


def test_tool_call_in_a_paused_answer_runs_before_the_answer_continues() -> None:
    paused = Say(blocks=(search("srvtoolu_1"),), calls=(Call("probe"),), finish="pause")
    with ScriptedServer(paused, Say("Done.", blocks=(result("srvtoolu_1"),))) as server:
        response = evaluate(connect(server), prompt(tool()), session=Session())
        sent = server.requests[1].json["messages"]
    assert response.text == "Done."
    assert [block["type"] for block in sent[1]["content"]] == ["server_tool_use", "tool_use"]
