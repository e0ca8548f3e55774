from dataclasses import dataclass, replace

from weakincentives import (
    Chat,
    MainLoop,
    MarkdownSection,
    PromptTemplate,
    SectionVisibility,
    Session,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.runtime.session import reducer


@dataclass(frozen=True)
class Move:
    seat: str


@dataclass(frozen=True)
class Booking:
    code: str = "K7Q2PX"
    seat: str = "1A"

    @reducer(on=Move)
    def move(self, event: Move) -> "Booking":
        return replace(self, seat=event.seat)


def change_seat(params: Move, *, context: ToolContext) -> ToolResult[None]:
    """Move the passenger to another seat."""
    if params.seat not in {"12C", "20F"}:
        answer = f"{params.seat} is not free. Free are 12C, 20F."
        return ToolResult(answer, success=False)
    context.session.dispatch(params)
    return ToolResult(f"The seat is {params.seat} now.")


desk = PromptTemplate[str](
    ns="docs",
    key="desk",
    sections=[
        MarkdownSection[Booking](
            title="Desk",
            template="You are the desk of an airline. Open the topic that a request "
            "belongs to. Booking $code, seat $seat.",
            state=[Booking],
            params_from=lambda session: session[Booking].latest() or Booking(),
        ),
        MarkdownSection(
            title="Luggage",
            summary="Bags and animals.",
            template="One bag of 23 kg.",
            visibility=SectionVisibility.SUMMARY,
        ),
        MarkdownSection(
            title="Seats",
            summary="Changes of seats.",
            template="If a seat is taken, ask before you take another one.",
            visibility=SectionVisibility.SUMMARY,
            tools=[Tool(name="change_seat", handler=change_seat)],
        ),
    ],
)
chat = Chat(MainLoop(OpenAIAdapter("gpt-5.2")), desk.bind(), session=Session())
for message in ("How heavy may my bag be?", "And 12A, please.", "12C is fine."):
    print(chat.send(message).text)
print(chat.session[Booking].latest())
