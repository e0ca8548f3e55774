"""W6: the requests for a prompt of 100 sections whose model opens 3 of its 90 summarized ones.

Nothing is timed: the Responses codec writes the requests, then the Messages codec does, and their
characters are counted. Sent characters are those of the request's JSON. Fresh characters come after
the part that a request shares with the preceding one, because a provider's cache serves common
prefixes. Tools are counted before the conversation, where providers put them; a deferred tool is
counted where the conversation loads it.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from benchmarks.captured import APIS, fresh_share, shared_prefix
from benchmarks.measure import Row
from weakincentives.adapters.anthropic.codec import MessagesCodec, MessagesOptions, ToolChanges
from weakincentives.adapters.codec import Codec, CodecOptions, JsonObject
from weakincentives.adapters.core import Connection, LoopAdapter
from weakincentives.adapters.openai.responses import ResponsesCodec
from weakincentives.evaluation.inner_loop import ProviderRequest
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage, ToolCall, ToolMessage, ToolsAdded
from weakincentives.evaluation.schemas import tool_to_spec
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
WANTED = (20, 50, 80)  # far apart, like sections about different subjects
# Characters of a section that is always shown, of one that is summarized, and of its summary. A
# tool takes about 630 characters of JSON.
SHOWN, HIDDEN, SUMMARY = 1_300, 2_000, 60
PROSE = (
    "Check the account, say what you found in one polite sentence, "
    "and never promise what the terms do not hold. "
)


@dataclass(frozen=True)
class Query:
    account: str = field(
        metadata={"description": "The account number, exactly as it reads on the invoice."}
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


def prose(length: int) -> str:
    return (PROSE * (length // len(PROSE) + 1))[:length]


def section(number: int) -> MarkdownSection[Any]:  # Any: it takes no params
    title = f"Matter {number}"
    if number < SECTIONS - SUMMARIZED:
        return MarkdownSection(title=title, template=prose(SHOWN))
    description = "Looks up what was booked in a matter of this kind, and when."
    return MarkdownSection(
        title=title,
        template=prose(HIDDEN),
        summary=prose(SUMMARY),
        visibility=SectionVisibility.SUMMARY,
        tools=[Tool[Query, Entries](name=f"look_{number}", description=description, handler=look)],
    )


TEMPLATE = PromptTemplate(
    ns="bench", key="disclosure", sections=[section(number) for number in range(SECTIONS)]
)
VISIBILITY: Mapping[SectionPath, SectionVisibility] = {
    (f"matter-{i}",): SectionVisibility.FULL for i in WANTED
}


@dataclass(frozen=True)
class Model(Connection):
    """Uses the tool of each wanted section in turn; if it is missing, reads the section first.

    When a restart drops its calls, it forgets them and makes them again. With `at_once`, it reads
    all missing sections in one turn.
    """

    codec: Codec
    sent: list[str]
    at_once: bool

    def ask(self, request: ProviderRequest, /) -> AssistantMessage:
        self.sent.append(text_of(self.codec.encode(request)))
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


def text_of(body: JsonObject) -> str:
    """Returns a request as the model reads it, with the tools first."""
    tools: list[JsonObject] = body["tools"]
    definitions = {tool.get("name"): tool for tool in tools}

    def plain(value: Any) -> Any:  # Any: JSON
        match value:
            case {"type": "tool_reference", "tool_name": name}:
                return definitions[name]
            case dict():
                return {key: plain(inner) for key, inner in value.items() if key != "cache_control"}
            case list():
                return [plain(inner) for inner in value]
            case _:
                return value

    read = [plain(tool) for tool in tools if "defer_loading" not in tool]
    rest = {key: plain(value) for key, value in body.items() if key not in ("model", "tools")}
    return json.dumps({"model": body["model"], "tools": read, **rest})


# Any: prompts with any output type
type NewCodec = Callable[[RenderedPrompt[Any]], Codec]


def responses(*, in_conversation: bool = False) -> NewCodec:
    options = CodecOptions(model="gpt-5.2", tools_in_conversation=in_conversation)
    return lambda _: ResponsesCodec(options, "capturing")


def messages(tool_changes: ToolChanges) -> NewCodec:
    options = MessagesOptions(
        model="claude-opus-5-5",
        max_tokens=32_000,
        tool_changes=tool_changes,
        strict_tools=True,
        cache="5m",
    )

    def codec(rendered: RenderedPrompt[Any]) -> Codec:
        names = rendered.registry.tool_paths
        tools = [tool for name in names if (tool := rendered.registry.get_tool(name))]
        return MessagesCodec(options, "capturing", [tool_to_spec(tool) for tool in tools])

    return codec


class Capturing(LoopAdapter):
    """Writes each request with a codec, and stores it in `sent`."""

    name = "capturing"

    def __init__(self, codec: NewCodec, *, dynamic: bool, at_once: bool) -> None:
        super().__init__()
        self._at_once = at_once
        self._dynamic = dynamic
        self._codec = codec
        self.sent: list[str] = []

    @property
    def supports_dynamic_tools(self) -> bool:
        return self._dynamic

    def connect(self, rendered: RenderedPrompt[Any], /) -> Model:  # Any: as above
        return Model(self._codec(rendered), self.sent, self._at_once)


@dataclass(frozen=True)
class Counts:
    """The number of provider calls, and thousands of characters: all that were sent, and fresh."""

    calls: int
    sent: float
    fresh: float


def count_characters(sent: list[str]) -> Counts:
    total = sum(map(len, sent))
    fresh = total - sum(shared_prefix(before, after) for before, after in pairwise(sent))
    return Counts(len(sent), total / 1e3, fresh / 1e3)


def run(
    *,
    opened: Mapping[SectionPath, SectionVisibility] | None = None,
    codec: NewCodec | None = None,
    dynamic: bool = True,
    at_once: bool = False,
) -> Counts:
    """Executes the prompt once; checks that it uses all tools and opens all wanted sections."""
    adapter = Capturing(codec or responses(), dynamic=dynamic, at_once=at_once)
    session = Session()
    execution = MainLoop(adapter).execute(
        TEMPLATE.bind(), session=session, visibility_overrides=opened
    )
    answers = [
        message.content
        for message in execution.response.transcript
        if isinstance(message, ToolMessage)
    ]
    assert len([text for text in answers if text.startswith("Found.")]) == len(WANTED)
    assert execution.restarts == (0 if dynamic else 1 if at_once else len(WANTED))
    remembered = session[VisibilityOverrides].latest()
    assert opened or (remembered is not None and remembered.overrides == VISIBILITY)
    return count_characters(adapter.sent)


def rows() -> Iterator[Row]:
    floor = run(opened=VISIBILITY)
    restart = run(dynamic=False)
    listed = run()
    placed = run(codec=responses(in_conversation=True))

    together = run(dynamic=False, at_once=True)

    calls = {"floor": floor.calls, "ours": listed.calls, "restart": restart.calls}
    yield Row("W6", "injection", "calls", calls, 7, "value")
    sent = {
        "floor": floor.sent,
        "ours": listed.sent,
        "restart": restart.sent,
        "tools in the conversation": placed.sent,
    }
    yield Row("W6", "injection, sent", "k chars", sent, 265, "value")
    fresh = {
        "floor": floor.fresh,
        "ours": placed.fresh,
        "restart": restart.fresh,
        "injection": listed.fresh,
    }
    yield Row("W6", "tools in the conversation, fresh", "k chars", fresh, 1.3)
    floor_claude = run(opened=VISIBILITY, codec=messages("inline"))
    fresh = {
        "floor": floor_claude.fresh,
        "ours": run(codec=messages("inline")).fresh,
        "deferred tools": run(codec=messages("deferred")).fresh,
        "grown list": run(codec=messages("list")).fresh,
    }
    yield Row("W6", "Anthropic, tools in the conversation, fresh", "k chars", fresh, 1.1)
    calls = {"floor": floor.calls, "ours": together.calls}
    yield Row("W6", "restart, three together", "calls", calls, 5, "value")
    fresh = {"floor": floor.fresh, "ours": together.fresh}
    yield Row("W6", "restart, three together, fresh", "k chars", fresh, 70, "value")

    chat = PromptTemplate[None](
        ns="bench",
        key="chat",
        sections=[
            *[section(number) for number in range(SECTIONS)],
            MarkdownSection(
                title="Look",
                template="Look first.",
                tools=[Tool[Query, Entries](name="look", description="Looks.", handler=look)],
            ),
        ],
    ).bind()
    for codec, api in APIS.items():
        new, sent_anew = fresh_share(codec, chat, 3)
        case = f"3 turns of a chat, {api}, fresh (floor: new)"
        yield Row("W6", case, "k chars", {"floor": new, "ours": sent_anew}, 1.1)
