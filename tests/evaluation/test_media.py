"""Images and documents in messages, params and tool results: the model sees them, and everything
that is stored contains references.
"""

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from support.media import PDF, PNG, png
from weakincentives.content import (
    ContentError,
    Document,
    FolderContentStore,
    Image,
    MemoryContentStore,
)
from weakincentives.evaluation.approval import Approve
from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.compaction import request_tokens
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.inner_loop import RunConfig
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import Instructions, ToolMessage, UserMessage, media_of
from weakincentives.evaluation.suspension import RunSuspended, Suspension
from weakincentives.evaluation.tool_answers import without_bytes
from weakincentives.inspection.event_log import write_events
from weakincentives.prompt import (
    MarkdownSection,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime.events import PromptRendered, ToolInvoked
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say

CAT, DOG = Image.from_bytes(PNG, name="cat.png"), Image.from_bytes(png(red=7), name="dog.png")
PAPER = Document.from_bytes(PDF, name="paper.pdf")


@dataclass(frozen=True)
class Photo:
    photo: Image


@dataclass(frozen=True)
class Find:
    name: str = ""


def find(params: Find, *, context: ToolContext) -> ToolResult[Photo]:
    """Find a picture."""
    return ToolResult("Found.", Photo(DOG), media=[DOG], exclude_value_from_context=True)


def template(*, visibility: SectionVisibility = SectionVisibility.FULL) -> PromptTemplate[None]:
    return PromptTemplate(
        ns="tests",
        key="media",
        sections=[
            MarkdownSection[Photo](
                title="Pet",
                key="pet",
                template="This is my pet: $photo",
                summary="A pet.",
                visibility=visibility,
                tools=[Tool(name="find", handler=find)],
            )
        ],
    )


def no_bytes(text: str) -> None:
    """Fails if `text` contains the bytes of a picture, in base64 or in Python's notation."""
    for data in (PNG, png(red=7), PDF):
        for start in range(3):
            assert b64encode(data[start:])[4:24].decode() not in text
        assert repr(data)[2:20] not in text


# Any: ways of evaluating
WAYS: dict[str, Callable[..., Any]] = {
    "sync": lambda adapter, *args, **options: adapter.evaluate(*args, **options),
    "async": lambda adapter, *args, **options: asyncio.run(
        adapter.evaluate_async(*args, **options)
    ),
    "streamed": lambda adapter, *args, **options: [*adapter.stream(*args, **options)][-1].response,
    "loop": lambda adapter, *args, **options: MainLoop(adapter).execute(*args, **options).response,
}


@pytest.mark.claim("N-05")
@pytest.mark.parametrize("way", WAYS)
def test_media_reach_the_model_and_only_references_are_stored(way: str) -> None:
    adapter = ScriptedAdapter([call(("find", {})), say("Both are nice.")])
    session, log = Session(), StringIO()
    write_events(session.bus, log)
    events: list[object] = []
    session.bus.subscribe(object, events.append)
    message = ["Compare with", CAT, "and", PAPER]
    prompt = template().bind(Photo(CAT))
    response = WAYS[way](adapter, prompt, session=session, message=message)
    instructions, user, _, answer = adapter.requests[1].messages
    assert instructions == Instructions(f"## 1. Pet\n\nThis is my pet: {CAT}", (CAT,))
    assert user == UserMessage(("Compare with", CAT, "and", PAPER))
    assert answer == ToolMessage("call_1", f"Found.\n\n{DOG}", media=(DOG,))
    media = [item for sent in adapter.requests[1].messages for item in media_of(sent)]
    assert all(item.data is None for item in media)
    store = adapter.requests[1].request.content
    assert store is session.content  # and not None
    store = session.content
    assert [store.load(item) for item in media] == [PNG, PNG, PDF, png(red=7)]
    conversation = response.conversation.to_json()
    assert Conversation.from_json(conversation) == response.conversation
    snapshot = session.snapshot().to_json()
    for written in (conversation, snapshot, log.getvalue(), repr(events), repr(response)):
        no_bytes(written)
    assert CAT.digest in conversation
    assert DOG.digest in log.getvalue()
    [rendered] = session[PromptRendered].all()
    assert rendered.message == f"Compare with\n\n{CAT}\n\nand\n\n{PAPER}"
    assert rendered.media == (CAT, CAT, PAPER)
    [invoked] = session[ToolInvoked].all()
    assert invoked.result.media == (DOG,)


def test_published_result_has_references_instead_of_media_bytes() -> None:
    [published] = without_bytes(ToolResult("Found.", media=[DOG])).media
    assert (published, published.data) == (DOG, None)


def test_prompt_without_a_message_becomes_a_user_message_with_its_media() -> None:
    adapter = ScriptedAdapter([say("Nice.")])
    adapter.evaluate(template().bind(Photo(CAT)), session=Session())
    [user] = adapter.requests[0].messages
    assert user == UserMessage((f"## 1. Pet\n\nThis is my pet: {CAT}", CAT))


class Album(BaseModel):
    photos: list[Image]
    cover: Image | None = None


class Shelf(TypedDict):
    papers: tuple[Document, ...]


def test_params_can_contain_lists_of_media_and_only_rendered_media_are_sent() -> None:
    album = MarkdownSection[Album](title="Album", template="See $photos")
    shelf = MarkdownSection[Shelf](title="Shelf", template="Read $papers")
    prompt = PromptTemplate(ns="tests", key="album", sections=[album, shelf]).bind(
        Album(photos=[DOG, CAT], cover=Image.from_bytes(png(red=1), name="cover.png")),
        Shelf(papers=(PAPER,)),
    )
    rendered = prompt.render()
    assert rendered.media == (DOG, CAT, PAPER)
    assert f"See [{DOG}, {CAT}]" in rendered.text
    adapter, session = ScriptedAdapter([say("Nice.")]), Session()
    adapter.evaluate(prompt, session=session)
    assert [session.content.load(item) for item in media_of(adapter.requests[0].messages[0])] == [
        png(red=7),
        PNG,
        PDF,
    ]


def test_text_only_message_is_serialized_as_a_string() -> None:
    adapter = ScriptedAdapter([say("Hi.")])
    prompt = PromptTemplate(ns="tests", key="plain").bind()
    response = adapter.evaluate(prompt, session=Session(), message=["Hello", "there"])
    assert response.conversation is not None
    written = json.loads(response.conversation.to_json())["messages"][1]
    assert written == {
        "content": "Hello\n\nthere",
        "repair": False,
        "refused": False,
        "kind": "user",
    }


def test_read_section_answer_contains_its_image() -> None:
    adapter = ScriptedAdapter([call(("read_section", {"section_key": "pet"})), say("Nice.")])
    prompt = template(visibility=SectionVisibility.SUMMARY).bind(Photo(CAT))
    adapter.evaluate(prompt, session=(session := Session()), message="Look.")
    first, second = adapter.requests
    assert not any(map(media_of, first.messages))
    answer = second.messages[3]
    assert media_of(answer) == (CAT,)
    assert session.content.load(CAT.reference) == PNG


def test_changed_image_is_sent_in_a_later_turn_and_earlier_messages_stay() -> None:
    adapter = ScriptedAdapter([say("A cat."), say("A dog.")])
    session = Session()
    first = adapter.evaluate(template().bind(Photo(CAT)), session=session, message="Who?")
    changed = Image.from_bytes(png(red=7), name="cat.png")  # another file with the same name
    second = adapter.evaluate(
        template().bind(Photo(changed)),
        session=session,
        message="And now?",
        conversation=first.conversation,
    )
    assert first.conversation is not None
    before = first.conversation.messages
    assert tuple(second.transcript[: len(before)]) == before
    changes = second.transcript[len(before)]
    assert isinstance(changes, Instructions)
    assert changes.media == (changed,)
    assert session.content.load(changed.reference) == png(red=7)


def test_media_of_a_later_message_are_stored_as_references() -> None:
    loop, session = MainLoop(ScriptedAdapter([say("A cat."), say("A dog.")])), Session()
    prompt = template().bind(Photo(CAT))
    first = loop.execute(prompt, session=session, message="Who is this?").response
    second = loop.execute(
        prompt, session=session, message=["And this?", PAPER], conversation=first.conversation
    ).response
    assert session.content.load(PAPER.reference) == PDF
    assert second.conversation is not None
    media = [media for message in second.conversation.messages for media in media_of(message)]
    assert PAPER in media
    assert [item.data for item in media] == [None] * len(media)


def test_restated_conversation_keeps_the_media_of_its_prompt_and_turns() -> None:
    adapter = ScriptedAdapter([call(("find", {})), say("Yes."), say("Yes again.")])
    session, prompt = Session(), template().bind(Photo(CAT))
    first = adapter.evaluate(prompt, session=session, message=["Which is it?", PAPER])
    assert first.conversation is not None
    restated = first.conversation.restated(prompt, session)
    response = adapter.evaluate(prompt, session=session, message="Sure?", conversation=restated)
    media = [item for message in response.transcript for item in media_of(message)]
    assert media == [CAT, PAPER, DOG]
    assert all(item.data is None for item in media)
    assert response.conversation is not None
    no_bytes(response.conversation.to_json())


def test_chat_with_media_continues_in_another_process_with_the_same_folder(tmp_path: Path) -> None:
    session = Session(content=FolderContentStore(tmp_path))
    chat = Chat(
        MainLoop(ScriptedAdapter([say("A cat.")])), template().bind(Photo(CAT)), session=session
    )
    chat.send([CAT, "Who is it?"])
    text = session.snapshot().to_json()
    no_bytes(text)
    # as another process would
    adapter = ScriptedAdapter([say("Still a cat.")])
    later = Session(content=FolderContentStore(tmp_path))
    chat = Chat(MainLoop(adapter), template().bind(Photo(CAT)), session=later)
    later.restore(later.parse_snapshot(text))
    chat.send("Sure?")
    seen = adapter.requests[0]
    assert seen.request.content is not None
    assert [seen.request.content.load(item) for m in seen.messages for item in media_of(m)] == [
        PNG,
        PNG,
    ]


def test_forks_share_the_content_store_and_parallel_calls_return_media() -> None:
    pure = PromptTemplate(
        ns="tests",
        key="parallel",
        sections=[
            MarkdownSection(
                title="Pets",
                template="Find them.",
                tools=[Tool(name="find", handler=find, effect="pure")],
            )
        ],
    )
    config = RunConfig(parallel_tool_calls="isolated")
    adapter = ScriptedAdapter(
        [call(("find", {}), ("find", {"name": "x"})), say("Two.")], config=config
    )
    session = Session()
    adapter.evaluate(pure.bind(), session=session)
    answers = adapter.requests[1].messages[2:]
    assert [media_of(answer) for answer in answers] == [(DOG,), (DOG,)]
    assert session.fork().content is session.content
    assert session.content.load(DOG.reference) == png(red=7)


@pytest.mark.parametrize("approval", ["effects", "arguments"])
def test_approved_call_returns_media_and_the_suspension_has_references(
    approval: Any,
) -> None:
    tool = Tool(name="find", handler=find, approval=approval, effect="repeatable")
    section = MarkdownSection(title="Pets", template="Find them.", tools=[tool])
    prompt = PromptTemplate(ns="tests", key="approval", sections=[section]).bind()
    session = Session()
    adapter = ScriptedAdapter([call(("find", {})), say("Nice.")])
    with pytest.raises(RunSuspended) as waiting:
        MainLoop(adapter).execute(prompt, session=session, message=["See", CAT])
    text = waiting.value.suspension.to_json()
    no_bytes(text)
    assert CAT.digest in text
    later = Session(content=session.content)
    MainLoop(adapter).resume(
        prompt, Suspension.from_json(text), {"call_1": Approve()}, session=later
    )
    media = [item for message in adapter.requests[1].messages for item in media_of(message)]
    assert media == [CAT, DOG]
    assert [later.content.load(item) for item in media] == [PNG, png(red=7)]


def test_tool_result_with_invalid_media_fails_the_call() -> None:
    def broken(params: Find, *, context: ToolContext) -> ToolResult[None]:
        return ToolResult("Here.", media=[PNG])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]

    tool = Tool(name="broken", description="It breaks.", handler=broken)
    section = MarkdownSection(title="A", template="B", tools=[tool])
    adapter = ScriptedAdapter([call(("broken", {})), say("Oh.")])
    prompt = PromptTemplate(ns="tests", key="broken", sections=[section]).bind()
    adapter.evaluate(prompt, session=Session())
    answer = adapter.requests[1].messages[-1]
    assert isinstance(answer, ToolMessage)
    assert not answer.success
    assert "ToolResult.media" in answer.content


def test_content_store_write_error_fails_the_call() -> None:
    class Full(MemoryContentStore):
        def write(self, digest: str, data: bytes) -> None:
            raise OSError("no space left")

    session = Session(content=Full())
    adapter = ScriptedAdapter([call(("find", {})), say("Oh.")])
    adapter.evaluate(template().bind(Photo(CAT.reference)), session=session)
    answer = adapter.requests[1].messages[-1]
    assert isinstance(answer, ToolMessage)
    assert (answer.success, answer.media) == (False, ())
    assert "no space left" in answer.content


@given(st.lists(st.sampled_from([CAT, DOG, PAPER, "text", "[image cat.png]"]), min_size=1))
def test_conversation_with_media_round_trips_through_json(message: list[Any]) -> None:
    adapter = ScriptedAdapter([call(("find", {})), say("Yes.")])
    response = adapter.evaluate(template().bind(Photo(CAT)), session=Session(), message=message)
    assert response.conversation is not None
    text = response.conversation.to_json()
    assert Conversation.from_json(text) == response.conversation
    no_bytes(text)


def test_request_tokens_includes_media() -> None:
    def tokens(*media: Image | Document) -> int:
        return request_tokens([UserMessage(("Hi", *media))], ())

    text = Document.from_bytes(b"word " * 4_000, "text/plain")
    assert 1_600 <= tokens(CAT) < 1_650
    assert 5_000 <= tokens(text) < 5_050
    assert 2 * 1_600 <= tokens(CAT, PAPER) < 3_300
    large = Document.from_bytes(PDF + bytes(1_000_000))
    assert 20_000 <= tokens(large) < 20_100


def test_missing_content_raises_content_error_with_the_digest() -> None:
    session = Session()
    with pytest.raises(ContentError, match=CAT.digest):
        session.content.load(CAT.reference)
