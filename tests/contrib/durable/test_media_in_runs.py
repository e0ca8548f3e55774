"""Runs with images: records hold references, and a later attempt finds the bytes in the folder."""

import json
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.media import PNG, png
from weakincentives.content import ContentError, FolderContentStore, Image
from weakincentives.contrib.durable import DurableAgent, RecordedSteps, durable, execute_run
from weakincentives.contrib.durable.execution import to_input
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import media_of
from weakincentives.prompt import MarkdownSection, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say

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


def agent(folder: Path, *replies: object) -> tuple[DurableAgent[None], ScriptedAdapter]:
    adapter = ScriptedAdapter([*replies])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]

    def session(run_id: str) -> Session:
        return Session(session_id=run_id, content=FolderContentStore(folder))

    return durable(MainLoop(adapter), TEMPLATE.bind, session=session), adapter


def test_records_have_references_and_another_attempt_shows_the_same_media(tmp_path: Path) -> None:
    store = FolderContentStore(tmp_path)
    cat = store.put(CAT)
    run_input = json.loads(json.dumps(to_input(Pet(cat), message=["Compare", cat])))
    steps = RecordedSteps(run_id="run")
    first, _ = agent(tmp_path, call(("find", {})), say("Nice."))
    result = execute_run(first, run_input, steps)
    written = json.dumps([run_input, steps.records, result])
    assert DOG.digest in written
    for data in (PNG, png(red=7)):
        assert b64encode(data)[:24].decode() not in written
    # an attempt that has all but the last answer
    records = json.loads(json.dumps(steps.records[:-1]))
    second, adapter = agent(tmp_path, say("Nice."))
    later = RecordedSteps([(name, record) for name, record in records], run_id="run")
    assert execute_run(second, run_input, later) == result
    [request] = adapter.requests
    content = request.request.content
    assert content is not None
    media = [item for message in request.messages for item in media_of(message)]
    assert [content.load(item) for item in media] == [PNG, PNG, png(red=7)]


def test_bytes_in_the_message_of_a_run_are_refused_with_the_remedy() -> None:
    with pytest.raises(ContentError, match=r"cat\.png.*store\.put\(image\)"):
        to_input(Pet(CAT.reference), message=["See", CAT])
