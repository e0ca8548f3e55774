"""Images and documents in requests to the Messages API, checked by its rules."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anthropic
import pytest

from support.agents import tool
from support.media import PDF, PNG, png, shown_by_messages
from support.messages_api import MessagesAPI
from support.scripted_server import Call, Say, ScriptedServer
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.anthropic.codec import MessagesCodec, MessagesOptions
from weakincentives.adapters.claude_media import MAX_IMAGES, MAX_MEDIA_CHARS
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.content import ContentStore, Document, Image, MemoryContentStore
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.inner_loop import ProviderRequest
from weakincentives.evaluation.messages import Instructions, Message, UserMessage
from weakincentives.filesystem import InMemoryFilesystem
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
    WorkspaceSection,
)
from weakincentives.runtime.session import Session

CAT, DOG = Image.from_bytes(PNG, name="cat.png"), Image.from_bytes(png(red=7), name="dog.png")
PAPER = Document.from_bytes(PDF, name="paper.pdf")
TABLE = Document.from_bytes("ä,b".encode(), "text/csv", name="table.csv")
MODEL = "claude-opus-5-5"

ways = pytest.mark.parametrize("way", ["inline", "deferred", "list"])


@dataclass(frozen=True)
class Pet:
    photo: Image


@dataclass(frozen=True)
class Nothing:
    pass


def find(params: Nothing, *, context: ToolContext) -> ToolResult[None]:
    """Find pictures."""
    return ToolResult("Found.", media=[DOG, PAPER, TABLE])


def fail(params: Nothing, *, context: ToolContext) -> ToolResult[None]:
    """Fail with a picture."""
    return ToolResult("Not found.", success=False, media=[DOG])


TEMPLATE = PromptTemplate[None](
    ns="tests",
    key="media",
    closable=True,
    sections=[
        MarkdownSection[Pet](
            title="Pet",
            template="My pet: $photo",
            tools=[Tool(name="find", handler=find), Tool(name="fail", handler=fail)],
        ),
        MarkdownSection[Pet](
            title="More",
            key="more",
            template="Once more: $photo",
            summary="There is more.",
            visibility=SectionVisibility.SUMMARY,
            tools=[tool(name="late")],
        ),
    ],
)


# Any: options of all types
def connect(server: ScriptedServer, **options: Any) -> AnthropicAdapter:
    return AnthropicAdapter(
        MODEL, base_url=server.url, api_key="sk-ant-test", max_retries=0, **options
    )


ENTRY_POINTS: dict[str, Callable[..., Any]] = {
    "sync": lambda it, *args, **options: it.evaluate(*args, **options),
    "async": lambda it, *args, **options: asyncio.run(it.evaluate_async(*args, **options)),
    "streamed": lambda it, *args, **options: [*it.stream(*args, **options)][-1].response,
}


@ways
@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_media_of_message_prompt_sections_and_tools_is_sent(entry_point: str, way: Any) -> None:
    api = MessagesAPI(growing_tools=way == "list")
    steps = (
        Say(calls=(Call("find"), Call("fail"))),
        Say(calls=(Call("read_section", {"section_key": "more"}),)),
        Say(calls=(Call("late"),)),
        Say("Nice."),
    )
    with ScriptedServer(*map(api.play, steps)) as server:
        ENTRY_POINTS[entry_point](
            connect(server, tool_changes=way),
            TEMPLATE.bind(Pet(CAT)),
            session=Session(),
            message=["Compare", DOG, "and", PAPER, TABLE],
        )
        shown = [shown_by_messages(request.json) for request in server.requests]
        [failed] = [
            block
            for block in server.requests[1].json["messages"][2]["content"]
            if block.get("is_error")
        ]
    first = [str(CAT), CAT.digest, "Compare", DOG.digest, "and", PAPER.digest, TABLE.digest]
    found = [f"Found.\n\n{DOG}\n\n{PAPER}\n\n{TABLE}", DOG.digest, PAPER.digest, TABLE.digest]
    not_found = f"Not found.\n\n{DOG}"
    assert shown[:2] == [first, [*first, *found, not_found]]
    assert shown[2][-1] == CAT.digest
    assert "Once more" in shown[2][-2]
    assert failed["content"] == not_found


def test_prompt_without_a_message_sends_its_media_after_its_text() -> None:
    api = MessagesAPI()
    with ScriptedServer(api.play(Say("Nice."))) as server:
        connect(server).evaluate(TEMPLATE.bind(Pet(CAT)), session=Session())
    [text, digest] = shown_by_messages(server.requests[0].json)
    assert text.startswith(f"## 1. Pet\n\nMy pet: {CAT}")
    assert digest == CAT.digest


def test_media_from_url_is_sent_as_a_url() -> None:
    image = Image.from_url("https://example.com/cat.png")
    paper = Document.from_url("https://example.com/paper.pdf", name="paper")
    with ScriptedServer(Say("Nice.")) as server:
        prompt = TEMPLATE.bind(Pet(CAT))
        connect(server).evaluate(prompt, session=Session(), message=[image, paper])
    assert shown_by_messages(server.requests[0].json)[2:] == [image.url, paper.url]


@dataclass
class Client:
    """The class of a given client, whose name determines the platform."""

    name: str
    options: dict[str, Any]

    def make(self, url: str) -> Any:
        return getattr(anthropic, self.name)(base_url=url, max_retries=0, **self.options)


CLOUDS = {
    "vertex": Client("AnthropicVertex", {"region": "r", "project_id": "p", "access_token": "t"}),
    "bedrock": Client("AnthropicBedrock", {"aws_region": "r", "api_key": "k"}),
}
BIG = Image(mime="image/png", digest="a" * 64, size=5_000_000)
REFUSED = [
    ("", Image.from_bytes(b"BM....", "image/bmp"), "and not image/bmp; convert it"),
    ("", Document.from_bytes(b"{}", "application/json"), "and not application/json"),
    ("", Image(mime="image/png", digest="a" * 64, size=8_000_000), "at most 7,864,320 bytes"),
    ("", Document(mime="application/pdf", digest="a" * 64, size=10**8), "at most 25,165,824"),
    ("", CAT.reference, f"{CAT.digest} are not in MemoryContentStore; pass the store"),
    ("", BIG, "are not in MemoryContentStore"),
    ("bedrock", BIG, "at most 3,932,160 bytes"),
    ("vertex", BIG, "at most 3,932,160 bytes"),
    ("vertex", Image.from_url("https://example.com/cat.png"), "fetches no image from a URL"),
    ("bedrock", Document.from_url("https://x.com/a.pdf"), "fetches no document from a URL"),
]


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
@pytest.mark.parametrize(("platform", "media", "problem"), REFUSED)
def test_unsupported_media_is_rejected_before_the_request(
    platform: str, media: Any, problem: str, entry_point: str
) -> None:
    if platform == "bedrock":
        pytest.importorskip("botocore")
    prompt = PromptTemplate(ns="tests", key="plain").bind()
    with ScriptedServer() as server:
        adapter = connect(server)
        if platform:
            # the class of either client determines the platform
            ready = CLOUDS[platform].make(server.url)
            adapter = AnthropicAdapter(MODEL, client=ready, async_client=ready)
        with pytest.raises(PromptEvaluationError) as caught:
            ENTRY_POINTS[entry_point](adapter, prompt, session=Session(), message=["See", media])
    assert (caught.value.phase, caught.value.code) == ("request", "content")
    assert problem in str(caught.value)
    assert server.requests == ()


def codec() -> MessagesCodec:
    options = MessagesOptions(
        model="m", max_tokens=9, tool_changes="list", strict_tools=True, cache=None
    )
    return MessagesCodec(options, "anthropic")


def request(store: ContentStore, *parts: Any) -> ProviderRequest:
    transcript: list[Message] = [Instructions("Be kind."), UserMessage(tuple(parts))]
    return ProviderRequest(1, transcript, (), None, None, content=store)


def test_too_many_images_for_a_request_are_rejected() -> None:
    store = MemoryContentStore()
    cat = store.put(CAT)
    codec().encode(request(store, *[cat] * MAX_IMAGES))
    with pytest.raises(PromptEvaluationError, match="can have 600 images") as caught:
        codec().encode(request(store, *[cat] * (MAX_IMAGES + 1)))
    assert caught.value.code == "content"


def test_too_many_media_bytes_for_a_request_are_rejected() -> None:
    store = MemoryContentStore()
    large = store.put(Document.from_bytes(PDF + bytes(MAX_MEDIA_CHARS // 2)))
    codec().encode(request(store, large))
    with pytest.raises(PromptEvaluationError, match="33,554,432 base64 characters"):
        codec().encode(request(store, large, large))


def test_reading_a_workspace_image_or_pdf_sends_it_as_media() -> None:
    files = {"cat.png": PNG, "paper.pdf": PDF}
    workspace = WorkspaceSection(filesystem=lambda: InMemoryFilesystem(files))
    prompt = Prompt(ns="tests", key="files", sections=[workspace])
    calls = tuple([Call("read_file", {"path": path}) for path in files])
    api = MessagesAPI()
    with ScriptedServer(api.play(Say(calls=calls)), api.play(Say("Nice."))) as server:
        connect(server).evaluate(prompt, session=Session())
    shown = shown_by_messages(server.requests[1].json)
    assert {CAT.digest, PAPER.digest} <= {*shown}
    assert f"'cat.png' is image/png of {len(PNG)} bytes.\n\n{CAT}" in shown


def test_media_moves_between_providers_with_its_conversation() -> None:
    prompt, session = TEMPLATE.bind(Pet(CAT)), Session()
    steps = (Say(calls=(Call("find"),)), Say("Nice."))
    with ScriptedServer(*steps) as other, ScriptedServer(Say("Again.")) as server:
        openai = OpenAIAdapter("m", base_url=other.openai_url, api_key="sk-test", max_retries=0)
        first = openai.evaluate(prompt, session=session, message=["See", PAPER])
        assert first.conversation is not None
        conversation = Conversation.from_json(first.conversation.to_json())
        connect(server).evaluate(
            prompt, session=session, message="Again?", conversation=conversation
        )
    shown = shown_by_messages(server.requests[0].json)
    assert [part for part in shown if part in {CAT.digest, DOG.digest, PAPER.digest}] == [
        CAT.digest,
        PAPER.digest,
        DOG.digest,
        PAPER.digest,
    ]


@pytest.mark.parametrize("images", [1, 30])
def test_each_request_reads_the_cache_written_by_the_previous_one(images: int) -> None:
    api = MessagesAPI(counts=True)
    steps = [*[Say(calls=(Call("find"),))] * 3, Say("Nice.")]
    with ScriptedServer(*map(api.play, steps)) as server:
        connect(server).evaluate(
            TEMPLATE.bind(Pet(CAT)), session=Session(), message=["See", *[DOG] * images]
        )
    assert all(
        after.read == before.stored == before.total
        for before, after in zip(api.uses, api.uses[1:], strict=False)
    )
