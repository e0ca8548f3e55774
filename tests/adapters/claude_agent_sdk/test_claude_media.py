"""Images and documents over the real CLI, in messages, prompts, results and earlier sessions."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from support.claude_cli import connect, mcp
from support.media import PDF, PNG, png, shown_by_messages
from support.scripted_server import Request, Say, ScriptedServer
from weakincentives.content import Document, Image, Part
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.prompt import MarkdownSection, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say

CAT, DOG = Image.from_bytes(PNG, name="cat.png"), Image.from_bytes(png(red=7), name="dog.png")
PAPER = Document.from_bytes(PDF, name="paper.pdf")
TABLE = Document.from_bytes(b"a,b", "text/csv", name="table.csv")


@dataclass(frozen=True)
class Pet:
    photo: Image


@dataclass(frozen=True)
class Nothing:
    pass


def find(params: Nothing, *, context: ToolContext) -> ToolResult[None]:
    """Find a picture and a table."""
    return ToolResult("Found.", media=[DOG, TABLE])


def read(params: Nothing, *, context: ToolContext) -> ToolResult[None]:
    """Read a paper."""
    return ToolResult("Read.", media=[PAPER])


def fail(params: Nothing, *, context: ToolContext) -> ToolResult[None]:
    """Fail with a picture."""
    return ToolResult("Failed.", success=False, media=[DOG])


TEMPLATE = PromptTemplate[None](
    ns="tests",
    key="media",
    sections=[
        MarkdownSection[Pet](
            title="Pet",
            template="My pet: $photo",
            tools=[Tool(name=handler.__name__, handler=handler) for handler in (find, read, fail)],
        )
    ],
)


ENTRY_POINTS: dict[str, Callable[..., Any]] = {
    "sync": lambda it, *args, **options: it.evaluate(*args, **options),
    "async": lambda it, *args, **options: asyncio.run(it.evaluate_async(*args, **options)),
}


def shown(request: Request) -> list[str]:
    """Returns the content from the user and the tools, without the CLI's reminders."""
    parts = [part.partition("\n\n<system-reminder>")[0] for part in shown_by_messages(request.json)]
    return [part for part in parts if not part.startswith("<system-reminder>")]


@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_media_of_message_prompt_and_tools_is_sent(entry_point: str) -> None:
    steps = (Say(calls=(mcp("find"), mcp("fail"))), Say("Nice."))
    with ScriptedServer(*steps) as server:
        response = ENTRY_POINTS[entry_point](
            connect(server),
            TEMPLATE.bind(Pet(CAT)),
            session=Session(),
            message=["Compare", DOG, "and", PAPER, TABLE],
        )
        first, second = server.requests
    before = [str(CAT), CAT.digest, "Compare", DOG.digest, "and", PAPER.digest, TABLE.digest]
    found = [f"Found.\n\n{DOG}\n\n{TABLE}", DOG.digest, "a,b", f"Failed.\n\n{DOG}"]
    assert response.text == "Nice."
    assert shown(first) == before
    assert shown(second) == [*before, *found]
    assert "My pet: [image cat.png" in str(first.json["system"])


def test_prompt_without_a_message_sends_its_media_after_its_text() -> None:
    with ScriptedServer(Say("Nice.")) as server:
        connect(server).evaluate(TEMPLATE.bind(Pet(CAT)), session=Session())
        [request] = server.requests
    assert shown(request) == [f"## 1. Pet\n\nMy pet: {CAT}", CAT.digest]


def test_media_from_url_is_sent_as_a_url() -> None:
    image = Image.from_url("https://example.com/cat.png")
    with ScriptedServer(Say("Nice.")) as server:
        connect(server).evaluate(TEMPLATE.bind(Pet(CAT)), session=Session(), message=[image])
        [request] = server.requests
    assert shown(request)[-1] == image.url


def test_earlier_conversation_sends_its_media_again() -> None:
    prompt, session = TEMPLATE.bind(Pet(CAT)), Session()
    scripted = ScriptedAdapter([call(("find", {})), call(("read", {})), say("Nice.")])
    first = scripted.evaluate(prompt, session=session, message=["See", PAPER])
    assert first.conversation is not None
    conversation: Conversation | None = Conversation.from_json(first.conversation.to_json())
    messages: list[str | list[Part]] = ["Again?", ["And this?", DOG]]
    with ScriptedServer(Say("Again."), Say("And again.")) as server:
        adapter = connect(server)
        for message in messages:
            response = adapter.evaluate(
                prompt, session=session, message=message, conversation=conversation
            )
            conversation = response.conversation
        *_, last = server.requests
    texts = [f"Found.\n\n{DOG}\n\n{TABLE}", f"Read.\n\n{PAPER}"]
    assert shown(last) == [
        *(str(CAT), CAT.digest, "See", PAPER.digest, texts[0], DOG.digest, TABLE.digest),
        *(texts[1], PAPER.digest, "Again?", "And this?", DOG.digest),
    ]


@pytest.mark.parametrize(
    ("media", "problem"),
    [
        (Image.from_bytes(b"BM....", "image/bmp"), "and not image/bmp; convert it"),
        (Image(mime="image/png", digest="a" * 64, size=8_000_000), "at most 7,864,320 bytes"),
        (CAT.reference, f"{CAT.digest} are not in MemoryContentStore; pass the store"),
    ],
)
@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_unsupported_media_is_rejected_before_the_request(
    entry_point: str, media: Any, problem: str
) -> None:
    prompt = PromptTemplate(ns="tests", key="plain").bind()
    with ScriptedServer() as server, pytest.raises(PromptEvaluationError) as caught:
        ENTRY_POINTS[entry_point](
            connect(server), prompt, session=Session(), message=["See", media]
        )
    assert (caught.value.phase, caught.value.code) == ("request", "content")
    assert problem in str(caught.value)
    assert server.requests == ()


def test_pdf_returned_by_a_tool_is_rejected_before_the_next_request() -> None:
    with (
        ScriptedServer(Say(calls=(mcp("read"),))) as server,
        pytest.raises(PromptEvaluationError, match="pass it in a message") as caught,
    ):
        connect(server).evaluate(TEMPLATE.bind(Pet(CAT)), session=Session())
    assert caught.value.code == "content"
    assert len(server.requests) == 1
