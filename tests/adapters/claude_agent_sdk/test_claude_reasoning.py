"""Reasoning and citations over the Claude Agent SDK's real CLI."""

from typing import Any

import pytest

from support.agents import prompt, tool
from support.claude_cli import connect, mcp
from support.reasoning_streams import answer, messages_reply
from support.scripted_server import Say, ScriptedServer
from weakincentives.citations import Citation
from weakincentives.evaluation.response import Completed, ReasoningDelta, TextDelta
from weakincentives.runtime.events import ProviderCalled
from weakincentives.runtime.session import Session

type Json = dict[str, Any]  # Any: JSON that tests index into

SIGNED = {"type": "thinking", "thinking": "Hm.", "signature": "sig=="}
EMPTY = {"type": "thinking", "thinking": "", "signature": "sealed=="}
REDACTED = {"type": "redacted_thinking", "data": "c2VjcmV0"}


def test_reasoning_of_each_message_is_streamed_and_logged() -> None:
    session = Session()
    with ScriptedServer(
        Say("I look.", calls=(mcp("probe", {"a": 1}),), reasoning="First."),
        Say("Yes.", reasoning="Then."),
    ) as server:
        *events, last = connect(server).stream(prompt(tool()), session=session)
    assert isinstance(last, Completed)
    shown = [event for event in events if isinstance(event, ReasoningDelta | TextDelta)]
    assert shown == [
        ReasoningDelta("First."),
        TextDelta("I look."),
        ReasoningDelta("Then."),
        TextDelta("Yes."),
    ]
    assert last.response.reasoning == "Then."
    assert [event.reasoning for event in session[ProviderCalled].all()] == ["First.", "Then."]


@pytest.mark.parametrize(
    ("blocks", "shown"),
    [
        ([SIGNED, SIGNED], "Hm.\n\nHm."),
        ([REDACTED, SIGNED], "(hidden)\n\nHm."),
        ([EMPTY], "(hidden)"),
    ],
    ids=["two parts", "redacted", "empty"],
)
def test_parts_are_separated_and_hidden_ones_are_shown_as_hidden(
    blocks: list[Json], shown: str
) -> None:
    reply = messages_reply(*blocks, {"type": "text", "text": "Yes."})
    with ScriptedServer(answer(reply)) as server:
        response = connect(server).evaluate(prompt(), session=Session())
    assert (response.reasoning, response.text) == (shown, "Yes.")


def test_citations_are_read_without_a_span() -> None:
    web = {"type": "web_search_result_location", "url": "https://a.example", "title": "A"}
    cited = {"type": "text", "text": "Yes.", "citations": [{**web, "cited_text": "quoted"}]}
    with ScriptedServer(answer(messages_reply(cited))) as server:
        response = connect(server).evaluate(prompt(), session=Session())
    assert response.text == "Yes."
    assert response.citations == (Citation(url="https://a.example", title="A", quote="quoted"),)
