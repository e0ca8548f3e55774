"""Images and documents through the real LiteLLM, on the routes of two provider formats."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from support.litellm_routes import ANTHROPIC, OPENAI, connect
from support.media import PDF, PNG, png, shown_by_chat, shown_by_messages
from support.scripted_server import Call, Say, ScriptedServer
from weakincentives.content import Document, Image, MediaSupport
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.prompt import MarkdownSection, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.runtime.session import Session

CAT, DOG = Image.from_bytes(PNG, name="cat.png"), Image.from_bytes(png(red=7), name="dog.png")
PAPER = Document.from_bytes(PDF, name="paper.pdf")
# Any: bodies of requests
ROUTES: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    OPENAI: shown_by_chat,
    ANTHROPIC: shown_by_messages,
}


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


# Any: ways of evaluating
WAYS: dict[str, Callable[..., Any]] = {
    "sync": lambda it, *args, **options: it.evaluate(*args, **options),
    "async": lambda it, *args, **options: asyncio.run(it.evaluate_async(*args, **options)),
    "streamed": lambda it, *args, **options: [*it.stream(*args, **options)][-1].response,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", ROUTES)
def test_media_of_message_prompt_and_tools_is_sent(model: str, way: str) -> None:
    web = Image.from_url("https://example.com/cat.png")
    with ScriptedServer(Say(calls=(Call("find", {}, id="call_9"),)), Say("Nice.")) as server:
        WAYS[way](
            connect(server, model),
            TEMPLATE.bind(Pet(CAT)),
            session=Session(),
            message=["Compare", DOG, "and", PAPER, web],
        )
    first, second = [ROUTES[model](request.json) for request in server.requests]
    assert first == [str(CAT), CAT.digest, "Compare", DOG.digest, "and", PAPER.digest, web.url]
    assert [part for part in second[len(first) :] if part in (DOG.digest, PAPER.digest)] == [
        DOG.digest,
        PAPER.digest,
    ]
    assert any(f"The tool call call_9 returned {DOG}:" in part for part in second)


@pytest.mark.parametrize(
    ("model", "media"),
    [
        (ANTHROPIC, Image.from_bytes(PNG + bytes(8_000_000))),
        (ANTHROPIC, Document.from_bytes(b"a,b", "text/csv")),
        (OPENAI, Document.from_url("https://example.com/paper.pdf")),
    ],
)
def test_unsupported_media_is_rejected_before_the_request(
    model: str, media: Image | Document
) -> None:
    prompt = PromptTemplate(ns="tests", key="plain").bind()
    with ScriptedServer() as server, pytest.raises(PromptEvaluationError) as caught:
        connect(server, model).evaluate(prompt, session=Session(), message=["See", media])
    assert (caught.value.code, caught.value.provider) == ("content", "litellm")
    assert server.requests == ()


def test_media_option_can_declare_a_model_without_media_support() -> None:
    prompt = PromptTemplate(ns="tests", key="plain").bind()
    with ScriptedServer() as server:
        blind = connect(server, "openai/gpt-3.5-turbo", media=MediaSupport())
        with pytest.raises(PromptEvaluationError, match="no images"):
            blind.evaluate(prompt, session=Session(), message=["See", CAT])
