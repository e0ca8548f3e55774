"""W6: what a prompt of 100 sections sends when the model opens 3 of its 90 summarized ones, one
after the other.

Nothing is timed: requests are written by the Responses codec as they would be sent, and counted.
All characters are those of the request's JSON; fresh ones come after what a request has in common
with the one before it, since a provider's cache serves equal beginnings. Tools are counted before
the conversation, where providers put them.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from benchmarks.measure import Row
from weakincentives.adapters.codec import Codec, CodecOptions
from weakincentives.adapters.core import Connection, LoopAdapter
from weakincentives.adapters.openai.responses import ResponsesCodec
from weakincentives.evaluation.inner_loop import ProviderRequest
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage, ToolCall, ToolMessage, ToolsAdded
from weakincentives.prompt import (
    MarkdownSection,
    PromptTemplate,
    RenderedPrompt,
    SectionPath,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
    VisibilityOverrides,
)
from weakincentives.runtime.session import Session

SECTIONS = 100
SUMMARIZED = 90
WANTED = (20, 50, 80)  # far apart, as sections of different matters are
# Characters: a section that is always shown, one that is summarized, its summary. A tool takes
# about 630 of JSON.
SHOWN, HIDDEN, SUMMARY = 1_300, 2_000, 60
PROSE = "Check the account, say what you found in one polite sentence, and never promise what the terms do not hold. "


@dataclass(frozen=True)
class Query:
    account: str = field(
        metadata={"description": "The number of the account, as it stands on the invoice."}
    )
    since: str = field(
        default="", metadata={"description": "The first day to look at, such as 2026-11-21."}
    )
    limit: int = field(
        default=10, metadata={"description": "How many entries to give at most, newest first."}
    )


@dataclass(frozen=True)
class Entries:
    account: str
    texts: tuple[str, ...]


def look(params: Query, *, context: ToolContext) -> ToolResult[Entries]:  # noqa: ARG001 - every handler takes it
    return ToolResult(
        "Found.", Entries(params.account, ("Paid on May 1.", "A reminder was sent on May 14."))
    )


def written(length: int) -> str:
    return (PROSE * (length // len(PROSE) + 1))[:length]


def section(number: int) -> MarkdownSection[Any]:  # Any: it takes no params
    title = f"Matter {number}"
    if number < SECTIONS - SUMMARIZED:
        return MarkdownSection(title=title, template=written(SHOWN))
    description = "Looks up what was booked in a matter of this kind, and when."
    return MarkdownSection(
        title=title,
        template=written(HIDDEN),
        summary=written(SUMMARY),
        visibility=SectionVisibility.SUMMARY,
        tools=[Tool[Query, Entries](name=f"look_{number}", description=description, handler=look)],
    )


TEMPLATE = PromptTemplate(
    ns="bench", key="disclosure", sections=[section(number) for number in range(SECTIONS)]
)
OPENED: Mapping[SectionPath, SectionVisibility] = {
    (f"matter-{i}",): SectionVisibility.FULL for i in WANTED
}


@dataclass(frozen=True)
class Model(Connection):
    """Uses the tool of each wanted section in turn and reads the section first where the tool is
    not there.

    What it did before a restart it does not know, so it does it again. `at_once` reads all that it
    lacks in one turn.
    """

    codec: Codec
    sent: list[str]
    at_once: bool

    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        body = dict(self.codec.encode(request))
        self.sent.append(
            json.dumps({"model": body.pop("model"), "tools": body.pop("tools"), **body})
        )
        tools = {tool.name for tool in request.tools}
        called: set[str] = set()
        for message in request.transcript:
            match message:
                case ToolsAdded(added):
                    tools.update(tool.name for tool in added)
                case AssistantMessage(tool_calls=calls):
                    called.update(call.name for call in calls)
                case _:
                    pass
        number = next((number for number in WANTED if f"look_{number}" not in called), None)
        if number is None:
            return AssistantMessage(text="All three are in order.")
        name, arguments = (
            f"look_{number}",
            {"account": f"A-{number}", "since": "2026-05-01", "limit": 2},
        )
        missing = [number for number in WANTED if f"look_{number}" not in tools]
        if self.at_once and missing:
            keys = [json.dumps({"section_key": f"matter-{number}"}) for number in missing]
            reads = [
                ToolCall(f"call_{len(self.sent)}_{at}", "read_section", key)
                for at, key in enumerate(keys)
            ]
            return AssistantMessage(tool_calls=tuple(reads), finish="tool_calls")
        if name not in tools:
            name, arguments = "read_section", {"section_key": f"matter-{number}"}
        call = ToolCall(f"call_{len(self.sent)}", name, json.dumps(arguments))
        return AssistantMessage(tool_calls=(call,), finish="tool_calls")

    async def ask_async(self, request: ProviderRequest, /) -> AssistantMessage:
        return self.ask(request)


class Capturing(LoopAdapter):  # Any: prompts of every output
    """Writes each request as OpenAI's Responses API gets it, and keeps it in `sent`."""

    name = "capturing"

    def __init__(self, *, dynamic: bool, in_conversation: bool, at_once: bool) -> None:
        super().__init__()
        self._at_once = at_once
        self._dynamic = dynamic
        self._options = CodecOptions(model="gpt-5.2", tools_in_conversation=in_conversation)
        self.sent: list[str] = []

    @property
    def supports_dynamic_tools(self) -> bool:
        return self._dynamic

    def connect(self, rendered: RenderedPrompt[Any], /) -> Model:  # Any: as above
        return Model(ResponsesCodec(self._options, self.name), self.sent, self._at_once)


@dataclass(frozen=True)
class Counted:
    """Provider calls, and thousands of characters: all that were sent, and the fresh ones among
    them.
    """

    calls: int
    sent: float
    fresh: float


def shared(one: str, other: str) -> int:
    """How many characters both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def counted(sent: list[str]) -> Counted:
    total = sum(map(len, sent))
    fresh = total - sum(shared(before, after) for before, after in pairwise(sent))
    return Counted(len(sent), total / 1e3, fresh / 1e3)


def run(
    *,
    opened: Mapping[SectionPath, SectionVisibility] | None = None,
    dynamic: bool = True,
    in_conversation: bool = False,
    at_once: bool = False,
) -> Counted:
    """One execution; checks that it ends with the same tools used and the same sections open as the
    others.
    """
    adapter, session = (
        Capturing(dynamic=dynamic, in_conversation=in_conversation, at_once=at_once),
        Session(),
    )
    done = MainLoop(adapter).execute(TEMPLATE.bind(), session=session, visibility_overrides=opened)
    answers = [
        message.content for message in done.response.transcript if isinstance(message, ToolMessage)
    ]
    assert len([text for text in answers if text.startswith("Found.")]) == len(WANTED)
    assert done.restarts == (0 if dynamic else 1 if at_once else len(WANTED))
    remembered = session[VisibilityOverrides].latest()
    assert opened or (remembered is not None and remembered.overrides == OPENED)
    return counted(adapter.sent)


def rows() -> Iterator[Row]:
    floor = run(opened=OPENED)
    restart = run(dynamic=False)
    listed = run()
    placed = run(in_conversation=True)

    together = run(dynamic=False, at_once=True)

    calls = {"floor": floor.calls, "ours": listed.calls, "restart": restart.calls}
    yield Row(workload="W6", case="injection", unit="calls", took=calls, target=7, judged="value")
    sent = {
        "floor": floor.sent,
        "ours": listed.sent,
        "restart": restart.sent,
        "tools in the conversation": placed.sent,
    }
    yield Row(
        workload="W6", case="injection, sent", unit="k chars", took=sent, target=265, judged="value"
    )
    fresh = {
        "floor": floor.fresh,
        "ours": placed.fresh,
        "restart": restart.fresh,
        "injection": listed.fresh,
    }
    yield Row(
        workload="W6",
        case="tools in the conversation, fresh",
        unit="k chars",
        took=fresh,
        target=1.3,
    )
    calls = {"floor": floor.calls, "ours": together.calls}
    yield Row(
        workload="W6",
        case="restart, three at once",
        unit="calls",
        took=calls,
        target=5,
        judged="value",
    )
    fresh = {"floor": floor.fresh, "ours": together.fresh}
    yield Row(
        workload="W6",
        case="restart, three at once, fresh",
        unit="k chars",
        took=fresh,
        target=70,
        judged="value",
    )
