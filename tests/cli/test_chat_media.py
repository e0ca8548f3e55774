"""`wink chat` stores the images that tools return next to the chat's file."""

from base64 import b64encode
from pathlib import Path

import pytest

from support.commands import Wink
from support.media import PNG

TALK = f"""
from dataclasses import dataclass

from weakincentives import MarkdownSection, PromptTemplate, Tool, ToolContext, ToolResult
from weakincentives.content import Image
from weakincentives.evaluation.messages import media_of
from weakincentives.testing import ScriptedAdapter, call, say


@dataclass(frozen=True)
class Find:
    pass


def find(params: Find, *, context: ToolContext) -> ToolResult[None]:
    \"\"\"Find a picture.\"\"\"
    return ToolResult("Found.", media=[Image.from_bytes({PNG!r}, name="cat.png")])


section = MarkdownSection(title="Task", template="Help.", tools=[Tool(name="find", handler=find)])
template = PromptTemplate(ns="shop", key="pictures", sections=[section])


def see(seen):
    media = [item for message in seen.messages for item in media_of(message)]
    return say(f"I see {{[len(seen.request.content.load(item)) for item in media]}}.")


def finding():
    return ScriptedAdapter([call(("find", {{}})), see])


def seeing():
    return ScriptedAdapter([see])
"""
TARGET = ("pictures:template", "--adapter")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pictures.py").write_text(TALK)
    return tmp_path


@pytest.fixture
def wink(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Wink:
    return Wink(folder, monkeypatch, capsys)


def test_resumed_chat_sends_the_images_of_earlier_turns(folder: Path, wink: Wink) -> None:
    seen = f"I see [{len(PNG)}].\n"
    first = wink("chat", *TARGET, "pictures:finding", "--save", "a.json", stdin="look\n")
    assert first.stdout == seen
    assert b64encode(PNG)[:24].decode() not in (folder / "a.json").read_text()
    again = wink("chat", *TARGET, "pictures:seeing", "--resume", "a.json", stdin="again\n")
    assert again.stdout == seen
    to_b = ("--resume", "a.json", "--save", "b.json")
    other = wink("chat", *TARGET, "pictures:seeing", *to_b, stdin="and now\n")
    assert other.stdout == seen
    last = wink("chat", *TARGET, "pictures:seeing", "--resume", "b.json", stdin="last\n")
    assert last.stdout == seen
