"""Logged runs of a travel desk with everything a report shows: `travel_log`, `approval_log`."""

import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TextIO

from weakincentives.content import ContentStore, Image
from weakincentives.errors import WeakIncentivesError
from weakincentives.evaluation.approval import Approve, Decision, Deny, Preview
from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage, ToolCall
from weakincentives.evaluation.suspension import RunSuspended
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.inspection.event_log import write_events
from weakincentives.limits import Budget, TokenUsage
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime.session import Session
from weakincentives.testing import Reply, ScriptedAdapter, call, say

__all__ = ["approval_log", "resumed_log", "travel_log"]


@dataclass(frozen=True)
class Seats:
    train: str
    count: int


@dataclass(frozen=True)
class Booking:
    """A booking made by the desk."""

    train: str
    seats: int
    paid: bool = False


@dataclass(frozen=True)
class Question:
    text: str


@dataclass(frozen=True)
class Plan:
    train: str
    price: float


def book(params: Seats, *, context: ToolContext) -> ToolResult[Booking]:
    """Book seats on a train."""
    booking = Booking(params.train, params.count)
    context.session[Booking].seed(booking)
    files = context.resources.get(Filesystem)
    files.write_text("itinerary.md", f"# Itinerary\n\n- {params.train}: {params.count} seats\n")
    if params.count > 4:
        raise LookupError(f"{params.train} has only 4 seats left in one carriage")
    return ToolResult(message="Booked.", value=booking)


def pay(params: Question, *, context: ToolContext) -> ToolResult[None]:
    """Pay what is booked."""
    [booking] = context.session[Booking]
    context.session[Booking].seed(replace(booking, paid=True))
    return ToolResult(message=f"Paid with password={params.text}.")


def research(params: Question, *, context: ToolContext) -> ToolResult[None]:
    """Ask a colleague who knows the timetable."""
    colleague = PromptTemplate(
        ns="travel",
        key="timetable",
        sections=[
            MarkdownSection[Question](
                title="Timetable", template="Trains leave at 9:05 and 13:05. $text"
            )
        ],
    )
    answer = context.adapter.evaluate(
        colleague.bind(params), session=Session(), bus=context.event_bus
    )
    return ToolResult(message=answer.text)


TEMPLATE = PromptTemplate[Plan](
    ns="travel",
    key="desk",
    closable=True,
    sections=[
        MarkdownSection(
            title="Task",
            template="You are the travel desk. Book what the traveller needs, and nothing else.",
        ),
        MarkdownSection(
            title="Trains",
            summary="Timetables, seats and fares.",
            template="Fares are by distance. Four seats fit in one carriage. " * 6,
            visibility=SectionVisibility.SUMMARY,
            tools=[Tool(name="book", handler=book), Tool(name="research", handler=research)],
            children=[
                MarkdownSection(title="Fares", template="Groups of four pay for three. " * 4)
            ],
        ),
        MarkdownSection(
            title="Payment",
            summary="How to pay.",
            template="Pay by card, once the traveller agrees.",
            visibility=SectionVisibility.SUMMARY,
            tools=[Tool(name="pay", handler=pay)],
        ),
        MarkdownSection(title="Refunds", summary="Rules.", template="Within 30 days."),
    ],
)


def _replies() -> Iterator[Reply]:
    yield call(("read_section", {"section_key": "trains"}))
    yield AssistantMessage(
        text="I look for a train first, and ask about seats.",
        tool_calls=call(
            ("research", {"text": "Which trains go to Ghent in the morning?"}),
            ("book", {"train": "IC 1832", "count": 6}),
        ).tool_calls,
    )
    yield say("The 9:05 is direct; the 13:05 has more seats.")
    yield AssistantMessage(tool_calls=(ToolCall("7", "book", '{"train": "IC 1832", "count": '),))
    yield call(("book", {"train": "IC 1832", "count": 4}))
    yield say('{"train": "IC 1832"}')
    yield say('{"train": "IC 1832", "price": 63.0}')
    yield call(("read_section", {"section_key": "payment"}))
    yield call(("pay", {"text": "correct-horse"}), ("close_section", {"section_key": "trains"}))
    yield say('{"train": "IC 1832", "price": 63.0}')


def _with_usage(replies: Iterator[Reply]) -> Iterator[Reply]:
    """Adds the token usage of such a conversation with a provider's cache."""
    sent = 900
    for reply in replies:
        assert isinstance(reply, AssistantMessage)
        fresh = 140 + 37 * len(reply.tool_calls)
        usage = TokenUsage(
            input_tokens=sent + fresh, cached_tokens=sent if sent > 1000 else 0, output_tokens=95
        )
        sent += fresh + 95
        yield replace(reply, usage=usage, model="claude-sonnet-4-5")


def _map() -> Image:
    """Returns a picture of a line between two towns."""

    def colour(x: int, y: int) -> bytes:
        town = min((x - 30) ** 2 + (y - 70) ** 2, (x - 130) ** 2 + (y - 30) ** 2) < 60
        line = abs((y - 70) * 100 + (x - 30) * 40) < 150 and 30 < x < 130
        return b"\xb3\x26\x1e" if town else b"\x2f\x5f\xc4" if line else b"\xe4\xf0\xe0"

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    rows = b"".join(b"\0" + b"".join(colour(x, y) for x in range(160)) for y in range(100))
    header = struct.pack(">IIBBBBB", 160, 100, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")
    return Image.from_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts), name="map.png")


def travel_log(file: TextIO, content: ContentStore | None = None) -> None:
    """Writes the log of two messages to the desk; `content` gets the first one's picture."""
    session = Session(content=content)
    write_events(session.bus, file)
    files = InMemoryFilesystem()
    files.write_text("itinerary.md", "# Itinerary\n\nNothing yet.\n")
    adapter = ScriptedAdapter([*_with_usage(_replies())])
    prompt = TEMPLATE.bind(resources={Filesystem: files})
    chat = Chat(MainLoop(adapter), prompt, session=session)
    chat.send(["Six of us go to Ghent tomorrow morning. Please book seats.", _map()])
    chat.send("Four is fine. Pay for them.")


def bookings() -> Prompt[None]:
    """Returns a prompt whose bookings need approval."""
    desk = PromptTemplate[None](
        ns="travel",
        key="bookings",
        sections=[
            MarkdownSection(
                title="Task",
                template="Book trains.",
                tools=[Tool(name="book", handler=book, approval="effects", effect="repeatable")],
            )
        ],
    )
    files = InMemoryFilesystem()
    files.write_text("itinerary.md", "# Itinerary\n\nNothing yet.\n")
    return desk.bind(resources={Filesystem: files})


def approval_log(file: TextIO) -> None:
    """Writes the log of four runs with approvals.

    The approver denies a booking and approves the next one. Then a budget stops a run, another run
    is suspended, and the last one has an answer.
    """
    session, prompt = Session(), bookings()
    write_events(session.bus, file)
    three, two = (call(("book", {"train": "IC 1832", "count": n})) for n in (3, 2))
    usage = TokenUsage(input_tokens=900, output_tokens=60)
    denying = replace(three, text="I book three seats.")
    decisions: list[Decision] = [Deny("Two are enough."), Approve()]

    def approver(preview: Preview) -> Decision:
        return decisions.pop(0)

    loop = MainLoop(ScriptedAdapter([denying, two, say("Two seats are booked.")]))
    loop.execute(prompt, session=session, message="Book for us.", approver=approver)
    runs: list[tuple[Reply, Budget | None]] = [
        (replace(three, usage=usage), Budget(max_tokens=500)),
        (three, None),
        (say("Never read."), None),
    ]
    for reply, budget in runs:
        with suppress(WeakIncentivesError):
            MainLoop(ScriptedAdapter([reply])).execute(
                prompt, session=session, message="Book again.", budget=budget
            )


def resumed_log(file: TextIO) -> None:
    """Writes the log of a run that is suspended for approval and resumes when it is approved."""
    session, prompt = Session(), bookings()
    write_events(session.bus, file)
    three = call(("book", {"train": "IC 1832", "count": 3}))
    loop = MainLoop(ScriptedAdapter([three, say("Three seats are booked.")]))
    try:
        loop.execute(prompt, session=session, message="Book for us.")
    except RunSuspended as waiting:
        [preview] = waiting.suspension.pending
        decisions = {preview.call_id: Approve()}
        loop.resume(prompt, waiting.suspension, decisions, session=session)
