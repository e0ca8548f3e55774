"""Media in OpenAI requests, in the forms that a strict reader of each API accepts."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.media import PDF, PNG, png, shown_by_chat, shown_by_responses
from support.scripted_server import Call, Say, ScriptedServer
from weakincentives.adapters.chat_completions import ChatCodec
from weakincentives.adapters.codec import Codec, CodecOptions
from weakincentives.adapters.fallback import FallbackAdapter
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.adapters.openai.responses import ResponsesCodec
from weakincentives.content import Document, Image, Media, MemoryContentStore
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.inner_loop import ProviderRequest
from weakincentives.evaluation.messages import (
    AssistantMessage,
    Message,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from weakincentives.prompt import MarkdownSection, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, say

CAT, DOG = Image.from_bytes(PNG, name="cat.png"), Image.from_bytes(png(red=7), name="dog.png")
PAPER = Document.from_bytes(PDF, name="paper.pdf")
READERS = {"responses": shown_by_responses, "chat": shown_by_chat}


@dataclass(frozen=True)
class Pet:
    photo: Image


@dataclass(frozen=True)
class Nothing:
    pass


def find(params: Nothing, *, context: ToolContext) -> ToolResult[None]:
    """Find pictures."""
    return ToolResult("Found.", media=[DOG, PAPER])


TEMPLATE = PromptTemplate[None](
    ns="tests",
    key="media",
    sections=[
        MarkdownSection[Pet](
            title="Pet",
            template="My pet: $photo",
            tools=[Tool(name="find", handler=find)],
        )
    ],
)


# Any: names of APIs, options of all types
def adapter(server: ScriptedServer, api: Any, **options: Any) -> OpenAIAdapter:
    url = server.openai_url
    return OpenAIAdapter("m", api=api, base_url=url, api_key="k", max_retries=0, **options)


# Any: ways of evaluating
WAYS: dict[str, Callable[..., Any]] = {
    "sync": lambda it, *args, **options: it.evaluate(*args, **options),
    "async": lambda it, *args, **options: asyncio.run(it.evaluate_async(*args, **options)),
    "streamed": lambda it, *args, **options: [*it.stream(*args, **options)][-1].response,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("api", READERS)
def test_media_of_message_prompt_and_tools_is_sent(api: str, way: str) -> None:
    with ScriptedServer(Say(calls=(Call("find", {}, id="call_9"),)), Say("Nice.")) as server:
        session = Session()
        WAYS[way](
            adapter(server, api),
            TEMPLATE.bind(Pet(CAT)),
            session=session,
            message=["Compare", DOG, "and", PAPER],
        )
    shown = [READERS[api](request.json) for request in server.requests]
    assert shown[0] == [str(CAT), CAT.digest, "Compare", DOG.digest, "and", PAPER.digest]
    answers = {
        "responses": [f"Found.\n\n{DOG}\n\n{PAPER}", DOG.digest, PAPER.digest],
        "chat": [
            f"The tool call call_9 returned {DOG}:",
            DOG.digest,
            f"The tool call call_9 returned {PAPER}:",
            PAPER.digest,
        ],
    }
    assert shown[1] == [*shown[0], *answers[api]]


@pytest.mark.parametrize("api", READERS)
def test_prompt_without_a_message_sends_its_media_after_its_text(api: str) -> None:
    with ScriptedServer(Say("Nice.")) as server:
        adapter(server, api).evaluate(TEMPLATE.bind(Pet(CAT)), session=Session())
    [request] = server.requests
    assert READERS[api](request.json) == [f"## 1. Pet\n\nMy pet: {CAT}", CAT.digest]


@pytest.mark.parametrize("api", READERS)
def test_image_from_url_is_sent_as_a_url(api: str) -> None:
    image = Image.from_url("https://example.com/cat.png")
    with ScriptedServer(Say("Nice.")) as server:
        prompt = TEMPLATE.bind(Pet(image))
        adapter(server, api).evaluate(prompt, session=Session(), message=[image])
    [request] = server.requests
    assert READERS[api](request.json) == [f"[image {image.url}]", image.url, image.url]


def test_document_from_url_is_sent_only_to_the_responses_api() -> None:
    paper = Document.from_url("https://example.com/paper.pdf")
    prompt = TEMPLATE.bind(Pet(CAT))
    with ScriptedServer(Say("Nice.")) as server:
        adapter(server, "responses").evaluate(prompt, session=Session(), message=[paper])
    assert shown_by_responses(server.requests[0].json)[-1] == paper.url
    with ScriptedServer() as server, pytest.raises(PromptEvaluationError) as caught:
        adapter(server, "chat").evaluate(prompt, session=Session(), message=[paper])
    assert "it fetches no document from a URL; pass the bytes" in str(caught.value)


REFUSED = [
    ("chat", Document.from_bytes(b"a,b", "text/csv"), "and not text/csv; convert it"),
    ("responses", Image.from_bytes(b"BM....", "image/bmp"), "and not image/bmp; convert it"),
    ("chat", Image(mime="image/png", digest="a" * 64, size=10**8), "at most 50,000,000 bytes"),
    ("responses", CAT.reference, f"{CAT.digest} are not in MemoryContentStore; pass the store"),
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("api", "media", "problem"), REFUSED)
def test_unsupported_media_is_rejected_before_the_request(
    api: str, media: Media, problem: str, way: str
) -> None:
    with ScriptedServer() as server, pytest.raises(PromptEvaluationError) as caught:
        WAYS[way](
            adapter(server, api),
            PromptTemplate(ns="tests", key="plain").bind(),
            session=Session(),
            message=["See", media],
        )
    error = caught.value
    assert (error.phase, error.code, error.provider) == ("request", "content", "openai")
    assert str(error).startswith("openai: m: ")
    assert problem in str(error)
    assert error.conversation is not None
    assert server.requests == ()


def test_fallback_continues_with_an_adapter_that_supports_the_media() -> None:
    csv = Document.from_bytes(b"a,b", "text/csv", name="a.csv")
    prompt = PromptTemplate(ns="tests", key="plain").bind()
    with ScriptedServer(Say("Nice.")) as server:
        first, second = adapter(server, "chat"), adapter(server, "responses")
        both = FallbackAdapter(first, second, on={"content"})
        both.evaluate(prompt, session=Session(), message=["See", csv])
        assert both.media is first.media
    assert shown_by_responses(server.requests[0].json) == ["See", csv.digest]


@pytest.mark.parametrize("api", READERS)
def test_media_moves_between_adapters_with_its_conversation(api: str) -> None:
    other = "chat" if api == "responses" else "responses"
    prompt, session = TEMPLATE.bind(Pet(CAT)), Session()
    with ScriptedServer(Say(calls=(Call("find", {}),)), Say("Nice."), Say("Again.")) as server:
        first = adapter(server, api).evaluate(prompt, session=session, message=["See", PAPER])
        assert first.conversation is not None
        conversation = Conversation.from_json(first.conversation.to_json())
        adapter(server, other).evaluate(
            prompt, session=session, message="Again?", conversation=conversation
        )
    before, after = (
        [part for part in READERS[name](request.json) if re.fullmatch("[0-9a-f]{64}", part)]
        for name, request in zip((api, other), server.requests[1:], strict=True)
    )
    assert before == after == [CAT.digest, PAPER.digest, DOG.digest, PAPER.digest]


def test_conversation_of_another_adapter_sends_its_media() -> None:
    prompt, session = TEMPLATE.bind(Pet(CAT)), Session()
    scripted = ScriptedAdapter([say("Nice.")])
    first = scripted.evaluate(prompt, session=session, message=["See", PAPER])
    with ScriptedServer(Say("Again.")) as server:
        adapter(server, "responses").evaluate(
            prompt, session=session, message="Again?", conversation=first.conversation
        )
    assert PAPER.digest in shown_by_responses(server.requests[0].json)


class CountingStore(MemoryContentStore):
    """Counts how often each digest is read."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def read(self, digest: str) -> bytes | None:
        self.reads.append(digest)
        return super().read(digest)


@pytest.mark.parametrize("codec", [ResponsesCodec, ChatCodec])
@settings(max_examples=30)
@given(turns=st.lists(st.lists(st.sampled_from([CAT, DOG, PAPER]), max_size=3), max_size=6))
def test_encoding_only_appends_and_reads_each_media_item_once(
    codec: type[Codec], turns: list[list[Image | Document]]
) -> None:
    store = CountingStore()
    for media in (CAT, DOG, PAPER):
        store.put(media)
    encoder = codec(CodecOptions(model="m"), "it")
    transcript: list[Message] = [UserMessage(("See", CAT.reference))]
    earlier: list[object] = []
    expected = [CAT.digest]
    for index, found in enumerate(turns):
        body = encoder.encode(ProviderRequest(1, transcript, (), None, None, content=store))
        items = body["input" if codec is ResponsesCodec else "messages"]
        assert items[: len(earlier)] == earlier
        earlier = list(items)
        (shown_by_responses if codec is ResponsesCodec else shown_by_chat)(body)
        calls = (ToolCall(f"a{index}", "find", "{}"), ToolCall(f"b{index}", "find", "{}"))
        references = tuple([item.reference for item in found])
        transcript += [
            AssistantMessage(tool_calls=calls),
            ToolMessage(calls[0].call_id, "Found.", media=references),
            ToolMessage(calls[1].call_id, "None."),
        ]
        expected += [item.digest for item in found]
    encoder.encode(ProviderRequest(1, transcript, (), None, None, content=store))
    assert store.reads == expected
