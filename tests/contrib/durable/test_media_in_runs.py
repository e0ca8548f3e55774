"""Runs with images: rows contain references, and a later attempt finds the bytes in the folder."""

import json
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.durable_runs import WatchedTable, kind_of
from support.media import PNG, png
from weakincentives.content import ContentError, FolderContentStore, Image
from weakincentives.contrib.durable import DurableAgent, durable, execute_run, to_input
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import media_of
from weakincentives.prompt import MarkdownSection, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say
from weakincentives.testing.scripted import SeenRequest

CAT, DOG = Image.from_bytes(PNG, name="cat.png"), Image.from_bytes(png(red=7), name="dog.png")


@dataclass(frozen=True)
class Pet:
    photo: Image


@dataclass(frozen=True)
class Nothing:
    pass


def find(params: Nothing, *, context: ToolContext) -> ToolResult[None]:
    """Find a picture."""
    return ToolResult("Found.", media=[DOG])


TEMPLATE = PromptTemplate[None](
    ns="tests",
    key="pictures",
    sections=[
        MarkdownSection[Pet](
            title="Pet", template="My pet: $photo", tools=[Tool(name="find", handler=find)]
        )
    ],
)

INNER = PromptTemplate[None](
    ns="tests",
    key="inner",
    sections=[
        MarkdownSection(title="Find", template="Find.", tools=[Tool(name="find", handler=find)])
    ],
)


def agent(
    folder: Path, *replies: object, template: PromptTemplate[None] = TEMPLATE
) -> tuple[DurableAgent[None], ScriptedAdapter]:
    adapter = ScriptedAdapter([*replies])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]

    def session(run_id: str) -> Session:
        return Session(session_id=run_id, content=FolderContentStore(folder))

    return durable(MainLoop(adapter), template.bind, session=session), adapter


def test_rows_store_references_and_another_attempt_sends_the_same_media(tmp_path: Path) -> None:
    store = FolderContentStore(tmp_path)
    cat = store.put(CAT)
    run_input = json.loads(json.dumps(to_input(Pet(cat), message=["Compare", cat])))
    table, turns = WatchedTable(), [call(("find", {})), say("Nice.")]
    result = execute_run(agent(tmp_path, *turns)[0], run_input, table, "run")
    written = json.dumps([run_input, table.rows, result])
    assert DOG.digest in written
    for data in (PNG, png(red=7)):
        assert b64encode(data)[:24].decode() not in written
    for held, rest in zip(table.held, (turns, turns[1:], turns[1:], []), strict=True):
        again, adapter = agent(tmp_path, *rest)
        assert execute_run(again, run_input, WatchedTable(held), "run") == result
        if rest:
            assert shown(adapter.requests[-1]) == [PNG, PNG, png(red=7)]


def shown(seen: SeenRequest) -> list[bytes]:
    """Returns the media in a request."""
    content = seen.request.content
    assert content is not None
    return [content.load(item) for message in seen.messages for item in media_of(message)]


def test_continued_nested_run_sends_the_same_media(tmp_path: Path) -> None:
    delegate = Tool.from_prompt(INNER, name="delegate")
    outer = MarkdownSection(title="Ask", template="Delegate.", tools=[delegate])
    template = PromptTemplate[None](ns="tests", key="outer", sections=[outer])
    inside = [call(("find", {})), say("Nice.")]
    turns = [call(("delegate", {"message": "Look."})), *inside, say("Done.")]
    table, run_input = WatchedTable(), to_input()
    first, _ = agent(tmp_path, *turns, template=template)
    result = execute_run(first, run_input, table, "run")
    asked = 0
    for held in table.held:
        kinds = [*map(kind_of, held.get("run", ()))]
        rest = turns[kinds.count("answered") :]
        again, adapter = agent(tmp_path, *rest, template=template)
        assert execute_run(again, run_input, WatchedTable(held), "run") == result
        assert len(adapter.requests) == len(rest)
        if len(rest) == 2:
            asked += 1
            assert [shown(seen) for seen in adapter.requests] == [[png(red=7)], []]
    assert asked == 2  # before the call that finds the picture, and after it


def test_media_bytes_in_a_run_message_raise_content_error() -> None:
    with pytest.raises(ContentError, match=r"cat\.png.*store\.put\(image\)"):
        to_input(Pet(CAT.reference), message=["See", CAT])
