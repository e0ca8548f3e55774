from dataclasses import dataclass, replace

import weakincentives as wi
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


def change_seat(seat: str, session: wi.Session) -> str:
    """Move the passenger to another seat."""
    if seat not in {"12C", "20F"}:
        raise wi.ToolError(f"{seat} is not free. Free are 12C, 20F.")
    session.dispatch(Move(seat))
    return f"The seat is {seat} now."


SUMMARY = wi.SectionVisibility.SUMMARY
topics = wi.MarkdownSection[Booking](
    title="Desk",
    template="You are the desk of an airline. Open the topic that a request "
    "belongs to. Booking $code, seat $seat.",
    state=[Booking],
    params_from=lambda session: session[Booking].latest() or Booking(),
)
luggage = wi.MarkdownSection(
    title="Luggage", summary="Bags.", template="One bag of 23 kg.", visibility=SUMMARY
)
seats = wi.MarkdownSection(
    title="Seats",
    summary="Changes of seats.",
    template="If a seat is taken, ask before you take another one.",
    visibility=SUMMARY,
    tools=[change_seat],
)
desk = wi.PromptTemplate[str](ns="docs", key="desk", sections=[topics, luggage, seats])
chat = wi.Chat("openai:gpt-5.2", desk)
for message in ("How heavy may my bag be?", "And 12A, please.", "12C is fine."):
    print(chat.send(message).text)
print(chat.session[Booking].latest())
