"""Citations over the real SDKs: of every kind, streamed and whole, with spans in code points."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.agents import prompt
from support.reasoning_streams import (
    answer,
    chat_reply,
    events_of,
    message_item,
    messages_reply,
    responses_reply,
)
from support.scripted_server import ScriptedServer
from weakincentives.adapters.anthropic import AnthropicAdapter
from weakincentives.adapters.cited_text import CitedText
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.adapters.server_profile import ServerProfile
from weakincentives.citations import Citation
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.messages import AssistantMessage
from weakincentives.evaluation.response import Completed, PromptResponse
from weakincentives.runtime.events import ProviderCalled
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, say

type Json = dict[str, Any]  # Any: JSON that tests index into
type Run = Callable[..., PromptResponse[Any]]

TEXT = "Préface 🐈. Café"
URL = "https://example.org/café"


def evaluate(adapter: Any, session: Session) -> PromptResponse[Any]:
    response: PromptResponse[Any] = adapter.evaluate(prompt(), session=session)
    return response


def evaluate_async(adapter: Any, session: Session) -> PromptResponse[Any]:
    response: PromptResponse[Any] = asyncio.run(adapter.evaluate_async(prompt(), session=session))
    return response


def stream(adapter: Any, session: Session) -> PromptResponse[Any]:
    *_, last = adapter.stream(prompt(), session=session)
    assert isinstance(last, Completed)
    return last.response


def stream_async(adapter: Any, session: Session) -> PromptResponse[Any]:
    async def main() -> Any:
        return [event async for event in adapter.stream_async(prompt(), session=session)][-1]

    response: PromptResponse[Any] = asyncio.run(main()).response
    return response


WAYS = (evaluate, evaluate_async, stream, stream_async)
ways = pytest.mark.parametrize("run", WAYS)


def connect(reply: Json, server: ScriptedServer, **options: Any) -> Any:
    if "content" in reply:
        return AnthropicAdapter("m", base_url=server.url, api_key="k", max_retries=0)
    api: Any = "responses" if "output" in reply else "chat"
    url = server.openai_url
    return OpenAIAdapter("m", api=api, base_url=url, api_key="k", max_retries=0, **options)


def cited(run: Run, reply: Json, **options: Any) -> PromptResponse[Any]:
    session = Session()
    with ScriptedServer(answer(reply)) as server:
        response = run(connect(reply, server, **options), session)
    [event] = session[ProviderCalled].all()
    assert event.citations == response.citations
    return response


def at(start: int, end: int, kind: str = "url_citation", **more: Any) -> Json:
    return {"type": kind, "start_index": start, "end_index": end, **more}


WEB = at(11, 15, url=URL, title="Prefaces")
FILE = {"type": "file_citation", "file_id": "f1", "filename": "a.pdf", "index": 3}
CONTAINER = at(0, 7, "container_file_citation", container_id="c", file_id="f2", filename="b.csv")
UNKNOWN = {"type": "future_citation", "place": [1, {}]}
CAFE = Citation(url=URL, title="Prefaces", start=11, end=15)


def located(kind: str, **more: Any) -> Json:
    return {"type": kind, "cited_text": "quoted", **more}


BLOCK_CITATIONS = {
    "char": (
        located(
            "char_location",
            document_index=0,
            document_title="A",
            start_char_index=90,
            end_char_index=99,
            file_id=None,
        ),
        {"title": "A"},
    ),
    "page": (
        located(
            "page_location", document_title="A", start_page_number=1, end_page_number=2, file_id="f"
        ),
        {"title": "A", "source": "f"},
    ),
    "content": (located("content_block_location", document_title=None, start_block_index=0), {}),
    "web": (
        located("web_search_result_location", url=URL, title="B", encrypted_index="secret"),
        {"title": "B", "url": URL},
    ),
    "search": (
        located("search_result_location", source=URL, title="C", search_result_index=0),
        {"title": "C", "url": URL},
    ),
    "search by id": (
        located("search_result_location", source="kb-1", title="C"),
        {"title": "C", "source": "kb-1"},
    ),
}


# --- F14, F15: every kind, streamed and whole


@pytest.mark.parametrize("nested", [False, True])
def test_citations_are_equal_streamed_and_whole(nested: bool) -> None:
    fields = {key: value for key, value in WEB.items() if key != "type"}
    chat = {"type": "url_citation", "url_citation": fields} if nested else WEB
    for reply in (
        responses_reply(message_item(TEXT, WEB)),
        chat_reply(content=TEXT, annotations=[chat]),
        messages_reply(
            {"type": "text", "text": TEXT[:11]},
            {
                "type": "text",
                "text": TEXT[11:],
                "citations": [located("x", url=URL, title="Prefaces")],
            },
        ),
    ):
        responses = [cited(run, reply) for run in WAYS]
        assert {response.text for response in responses} == {TEXT}
        found = [
            [replace(citation, quote="") for citation in response.citations]
            for response in responses
        ]
        assert found == [[CAFE]] * 4


@ways
@pytest.mark.parametrize("output", ["last event", "done events"])
def test_annotations_that_only_events_contain_are_read(output: str, run: Run) -> None:
    reply = responses_reply(message_item(TEXT, WEB, FILE))
    bare = responses_reply(message_item(TEXT))
    last = bare if output == "last event" else {**bare, "output": []}
    bared = {
        "response.output_item.done": {"item": bare["output"][0]},
        "response.completed": {"response": last},
    }
    events = [{**event, **bared.get(event["type"], {})} for event in events_of(reply)]
    with ScriptedServer(answer(reply, events)) as server:
        response = run(connect(reply, server), Session())
    assert response.citations == (CAFE, Citation(title="a.pdf", source="f1"))


@ways
def test_every_kind_of_openai_is_read_and_unknown_kinds_keep_the_answer(run: Run) -> None:
    reply = responses_reply(message_item(TEXT, UNKNOWN, WEB, FILE, CONTAINER, {"type": None}))
    response = cited(run, reply)
    assert response.text == TEXT
    assert response.citations == (
        CAFE,
        Citation(title="a.pdf", source="f1"),
        Citation(title="b.csv", source="f2", start=0, end=7),
    )


@ways
@pytest.mark.parametrize("name", BLOCK_CITATIONS)
def test_every_kind_of_anthropic_cites_its_text_block(name: str, run: Run) -> None:
    annotation, expected = BLOCK_CITATIONS[name]
    blocks: list[Json] = [
        {"type": "text", "text": "Préface 🐈. "},
        {"type": "text", "text": "Café", "citations": [annotation]},
        {"type": "text", "text": "!"},
    ]
    response = cited(run, messages_reply(*blocks))
    assert response.text == f"{TEXT}!"
    assert response.citations == (Citation(quote="quoted", start=11, end=15, **expected),)
    assert "secret" not in repr(response.citations)


@ways
@pytest.mark.parametrize(
    "annotations",
    [[UNKNOWN], [None, 3, "x", []], [{"type": "url_citation"}], [{"type": ["a"], "url": 3}]],
    ids=["unknown", "not objects", "no fields", "wrong types"],
)
def test_unreadable_annotations_keep_the_answer(annotations: list[Any], run: Run) -> None:
    for reply in (
        responses_reply(message_item(TEXT, *annotations)),
        chat_reply(content=TEXT, annotations=annotations),
    ):
        response = cited(run, reply)
        assert response.text == TEXT
        assert all(citation.span is None for citation in response.citations)


# --- F16: sources without spans


@ways
@pytest.mark.parametrize(
    "more",
    [
        {"citations": [URL, "https://b.example"]},
        {"citations": [{"url": URL}, {"url": "https://b.example"}, 3, None, ""]},
        {
            "citations": [URL, "https://b.example"],
            "search_results": [{"url": URL, "title": "Prefaces", "date": None}],
        },
    ],
    ids=["urls", "objects", "titles"],
)
def test_listed_sources_are_citations_without_a_span(more: Json, run: Run) -> None:
    response = cited(run, chat_reply(content=f"{TEXT} [1]", more=more))
    assert response.text == f"{TEXT} [1]"
    assert [citation.url for citation in response.citations] == [URL, "https://b.example"]
    assert [citation.span for citation in response.citations] == [None, None]
    assert response.citations[0].title == ("Prefaces" if "search_results" in more else "")


@ways
def test_search_results_and_sources_in_the_message_are_citations(run: Run) -> None:
    results = [{"url": URL, "title": "Prefaces"}, {"title": "no URL"}, {"url": 3}, None]
    response = cited(run, chat_reply(content=TEXT, more={"search_results": results}))
    assert response.citations == (Citation(url=URL, title="Prefaces"),)
    response = cited(run, chat_reply(content=TEXT, citations=[URL, URL, {"url": "https://b"}]))
    assert response.citations == (Citation(url=URL), Citation(url="https://b"))


@ways
def test_listed_source_that_an_annotation_cites_is_not_listed_again(run: Run) -> None:
    more = {"citations": [URL, "https://b.example"]}
    response = cited(run, chat_reply(content=TEXT, annotations=[WEB], more=more))
    assert response.citations == (CAFE, Citation(url="https://b.example"))


# --- F17: spans


@ways
def test_spans_are_code_points_of_the_whole_text(run: Run) -> None:
    first, second = message_item("Préface 🐈. "), message_item("Café", at(0, 4, url=URL), number=2)
    response = cited(run, responses_reply(first, second))
    [citation] = response.citations
    assert response.text == TEXT
    assert response.text[citation.start : citation.end] == "Café"


@ways
def test_spans_of_a_server_that_counts_bytes_are_converted(run: Run) -> None:
    start, end = len("Préface 🐈. ".encode()), len(TEXT.encode())
    reply = chat_reply(content=TEXT, annotations=[at(start, end, url=URL)])
    profile = ServerProfile(api="chat", citations_in_bytes=True)
    response = cited(run, reply, profile=profile)
    assert [response.text[c.start : c.end] for c in response.citations] == ["Café"]


@ways
def test_spans_follow_the_text_without_think_tags(run: Run) -> None:
    text = f"<think>Préface?</think>\n{TEXT}"
    start = text.index("Café")
    reply = chat_reply(content=text, annotations=[at(start, start + 4, url=URL), at(0, 3, url="u")])
    response = cited(run, reply, profile=ServerProfile(api="chat", think_tags=True))
    assert response.text == TEXT
    assert response.citations == (Citation(url=URL, start=11, end=15), Citation(url="u"))


@given(st.lists(st.text(max_size=5), max_size=4), st.data(), st.booleans())
def test_span_is_the_cited_passage_whatever_the_provider_counts(
    parts: list[str],
    data: st.DataObject,
    in_bytes: bool,
) -> None:
    parts = [part.encode("utf-8", "replace").decode() for part in parts]
    said, passages = CitedText(in_bytes=in_bytes), list[str]()
    for part in parts:
        annotations: list[Json] = []
        for _ in range(data.draw(st.integers(0, 2)) if part else 0):
            start = data.draw(st.integers(0, len(part) - 1))
            end = data.draw(st.integers(start + 1, len(part)))
            size = (lambda text: len(text.encode())) if in_bytes else len
            url = f"https://example.org/{len(passages)}"
            annotations.append(at(size(part[:start]), size(part[:end]), url=url))
            passages.append(part[start:end])
        said.add(part, annotations)
    assert said.text == "".join(parts)
    found = said.citations(said.text)
    assert [said.text[citation.start : citation.end] for citation in found] == passages


@pytest.mark.parametrize(
    "span",
    [(-1, 3), (0, 99), (5, 2), (3, 3), (None, 2), ("0", "2"), (0.0, 2.0), (10**30, 10**31)],
)
def test_impossible_span_is_none(span: Any) -> None:
    for in_bytes in (False, True):
        said = CitedText(in_bytes=in_bytes)
        said.add(TEXT, [at(*span, url=URL)])
        assert said.citations(TEXT) == (Citation(url=URL),)


# --- F18: kept on the way


def test_citations_are_stored_in_a_conversation_and_loaded_again() -> None:
    response = evaluate(ScriptedAdapter([say(TEXT, citations=[CAFE])]), Session())
    conversation = response.conversation
    assert conversation is not None
    loaded = Conversation.from_json(conversation.to_json())
    assert loaded == conversation
    last = loaded.messages[-1]
    assert isinstance(last, AssistantMessage)
    assert last.citations == response.citations == (CAFE,)


def test_citations_of_an_answer_in_parts_have_spans_in_its_whole_text() -> None:
    first = AssistantMessage(text="Préface 🐈. ", finish="pause", reasoning="Hm.")
    last = say("Café", citations=[Citation(url=URL, start=0, end=4)], reasoning="So.")
    response = evaluate(ScriptedAdapter([first, last]), Session())
    [citation] = response.citations
    assert response.text == TEXT
    assert response.text[citation.start : citation.end] == "Café"
    assert response.reasoning == "Hm.\n\nSo."


@pytest.mark.parametrize(
    ("url", "link"),
    [
        (URL, URL),
        ("HTTP://x", "HTTP://x"),
        ("javascript:alert(1)", ""),
        (" https://x", ""),
        ("data:text/html,x", ""),
        ("", ""),
    ],
)
def test_only_http_urls_are_links(url: str, link: str) -> None:
    assert Citation(url=url).link == link


@ways
def test_refusal_has_no_citations(run: Run) -> None:
    item = message_item(TEXT, WEB)
    item["content"].append({"type": "refusal", "refusal": "No."})
    with ScriptedServer(answer(responses_reply(item))) as server:
        session = Session()
        with pytest.raises(Exception, match="refused"):
            run(connect(responses_reply(), server), session)
    [event] = session[ProviderCalled].all()
    assert (event.text, event.citations) == ("No.", ())
