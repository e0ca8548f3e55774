"""Reasoning and citations over the real LiteLLM: streamed and whole are equal."""

from typing import Any

import pytest

from support.agents import prompt, tool
from support.litellm_routes import ANTHROPIC, connect
from support.reasoning_streams import answer, chat_reply, messages_reply, sse
from support.scripted_server import Raw, ScriptedServer
from weakincentives.adapters.litellm import LiteLLMAdapter
from weakincentives.citations import Citation
from weakincentives.evaluation.response import Completed, PromptResponse, ReasoningDelta
from weakincentives.runtime.events import ProviderCalled
from weakincentives.runtime.session import Session

type Json = dict[str, Any]  # Any: JSON that tests index into

CALL = {"type": "tool_use", "id": "toolu_1", "name": "probe", "input": {"a": 1}}
SIGNED = {"type": "thinking", "thinking": "Hm.", "signature": "sig=="}
EMPTY = {"type": "thinking", "thinking": "", "signature": "sealed=="}
REDACTED = {"type": "redacted_thinking", "data": "c2VjcmV0"}
SAY = {"type": "text", "text": "Yes."}
DONE = messages_reply(SAY)


def streamed(
    adapter: LiteLLMAdapter, *tools: Any, **options: Any
) -> tuple[PromptResponse[Any], str]:
    *events, last = adapter.stream(prompt(*tools), **options)
    assert isinstance(last, Completed)
    deltas = [event.text for event in events if isinstance(event, ReasoningDelta)]
    assert all(deltas)
    return last.response, "".join(deltas)


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_either_field_is_reasoning(field: str) -> None:
    message: Json = {"content": "Yes.", field: "Is it so? It is."}
    reply = chat_reply(**message)
    with ScriptedServer(answer(reply), answer(reply)) as server:
        adapter = connect(server)
        whole = adapter.evaluate(prompt(tool()), session=Session())
        response, deltas = streamed(adapter)
    assert whole.reasoning == response.reasoning == deltas == "Is it so? It is."
    assert whole.text == response.text == "Yes."


@pytest.mark.parametrize(
    ("blocks", "shown"),
    [
        ([SIGNED, SIGNED], "Hm.\n\nHm."),
        ([REDACTED, SIGNED], "(hidden)\n\nHm."),
        ([EMPTY], "(hidden)"),
    ],
    ids=["two parts", "redacted", "empty"],
)
def test_thinking_blocks_go_back_unchanged_streamed_or_whole(
    blocks: list[Json], shown: str
) -> None:
    reply = messages_reply(*blocks, CALL, stop="tool_use")
    with ScriptedServer(answer(reply), answer(DONE), answer(reply), answer(DONE)) as server:
        adapter, session = connect(server, ANTHROPIC), Session()
        adapter.evaluate(prompt(tool()), session=session)
        _, deltas = streamed(adapter, tool(), session=session)
        sent = [server.requests[number].json["messages"][1]["content"] for number in (1, 3)]
        events = session[ProviderCalled].all()
    assert [event.reasoning for event in events] == [shown, "", shown, ""]
    assert deltas == shown
    assert sent == [[*blocks, CALL]] * 2


def test_unsigned_thinking_and_that_of_another_model_are_not_sent() -> None:
    unsigned = {**SIGNED, "signature": ""}
    first, second = messages_reply(unsigned, SAY), messages_reply(SIGNED, SAY)
    with ScriptedServer(answer(first), answer(second), answer(DONE)) as server:
        one, other = connect(server, ANTHROPIC), connect(server, "anthropic/claude-b")
        response = one.evaluate(prompt(tool()), session=Session(), message="One?")
        response = one.evaluate(
            prompt(tool()),
            session=Session(),
            message="Two?",
            conversation=response.conversation,
        )
        other.evaluate(
            prompt(tool()),
            session=Session(),
            message="Three?",
            conversation=response.conversation,
        )
        bodies = [request.body for request in server.requests]
    assert b'"thinking"' not in bodies[1]
    assert b"sig==" not in bodies[2]


def test_citations_of_anthropic_are_equal_streamed_and_whole() -> None:
    web = {"type": "web_search_result_location", "url": "https://a.example", "title": "A"}
    cited = {"type": "text", "text": "Yes.", "citations": [{**web, "cited_text": "quoted"}]}
    reply = messages_reply({"type": "text", "text": "So: "}, cited)
    with ScriptedServer(answer(reply), answer(reply)) as server:
        adapter = connect(server, ANTHROPIC)
        whole = adapter.evaluate(prompt(), session=Session())
        response, _ = streamed(adapter)
    assert whole.text == response.text == "So: Yes."
    expected = (Citation(url="https://a.example", title="A", quote="quoted"),)
    assert whole.citations == response.citations == expected


def test_sources_of_perplexity_are_citations_without_a_span() -> None:
    urls = ["https://a.example", "https://b.example"]
    reply = chat_reply(content="So [1] and [2].", more={"citations": urls})
    reply["usage"] = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    with ScriptedServer(answer(reply), answer(reply)) as server:
        adapter = LiteLLMAdapter("perplexity/sonar", base_url=server.openai_url, api_key="k")
        whole = adapter.evaluate(prompt(), session=Session())
        response, _ = streamed(adapter)
    assert whole.text == response.text == "So [1] and [2]."
    expected = tuple([Citation(url=url) for url in urls])
    assert whole.citations == response.citations == expected


def test_byte_positions_of_gemini_become_code_points() -> None:
    text = "Préface 🐈. Café"
    segment = {"startIndex": len("Préface 🐈. ".encode()), "endIndex": len(text.encode())}
    grounding = {
        "groundingChunks": [{"web": {"uri": "https://a.example", "title": "A"}}],
        "groundingSupports": [{"segment": segment, "groundingChunkIndices": [0]}],
    }
    content = {"role": "model", "parts": [{"text": text}]}
    candidate = {"content": content, "finishReason": "STOP", "groundingMetadata": grounding}
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    reply = {"candidates": [{**candidate, "index": 0}], "usageMetadata": usage}
    with ScriptedServer(Raw.json(reply), sse([reply])) as server:
        url = f"{server.url}/messages?path="  # the scripted server has no routes of Gemini
        adapter = LiteLLMAdapter("gemini/gemini-2.5-flash", base_url=url, api_key="k")
        whole = adapter.evaluate(prompt(), session=Session())
        response, _ = streamed(adapter)
    assert whole.text == response.text == text
    [citation] = whole.citations
    assert text[citation.start : citation.end] == "Café"
    assert response.citations == whole.citations
