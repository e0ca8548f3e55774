"""`python -m examples.airline_triage`: a service desk that routes passengers by opening sections.

The desk sees three summaries and opens the section that fits the request. The section's rules and
tools arrive in the same conversation, so passengers never have to repeat themselves. The booking is
state that the tree declares and shows. To talk to the desk yourself, run
`wink chat examples.airline_triage:DESK --adapter openai`.
"""

from dataclasses import dataclass, field, replace

from examples.common.command import play
from examples.offline_model import Call, Plan
from weakincentives import (
    MarkdownSection,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime.session import reducer

FREE_SEATS = {"12C", "12D", "20F"}
MESSAGES = ["May my dog come with me? It weighs 6 kg.", "Then 12A, please.", "Yes, take that one."]


@dataclass(frozen=True)
class Move:
    """A change of seat: the tool's params, and also the event that it dispatches."""

    seat: str = field(metadata={"description": "Row and letter, such as 20F."})


@dataclass(frozen=True)
class Booking:
    """The passenger's booking: stored in the session, shown in the prompt, changed by `Move`."""

    code: str = "K7Q2PX"
    seat: str = "1A"

    @reducer(on=Move)
    def move(self, event: Move) -> "Booking":
        return replace(self, seat=event.seat)


def change_seat(params: Move, *, context: ToolContext) -> ToolResult[None]:
    """Move the passenger to a free seat."""
    if params.seat not in FREE_SEATS:
        free = ", ".join(sorted(FREE_SEATS))
        return ToolResult(message=f"{params.seat} is not free. Free are {free}.", success=False)
    context.session.dispatch(params)
    return ToolResult(message=f"The seat is {params.seat} now.")


DESK = PromptTemplate[str](
    ns="examples",
    key="airline-triage",
    sections=[
        MarkdownSection(
            title="Desk",
            template="You are the desk of Weak Airlines. Open the topic that a request belongs to "
            "before you answer, and promise nothing else. Two sentences are enough.",
        ),
        MarkdownSection[Booking](
            title="Booking",
            template="Booking $code, seat $seat.",
            state=[Booking],
            params_from=lambda session: session[Booking].latest() or Booking(),
        ),
        MarkdownSection(
            title="Luggage",
            summary="Bags and animals.",
            template="One bag of 23 kg. An animal of up to 8 kg flies in a carrier under the seat "
            "in front, so its owner cannot sit in row 1.",
            visibility=SectionVisibility.SUMMARY,
        ),
        MarkdownSection(
            title="Seats",
            summary="Changes of seats.",
            template="If a seat is not free, ask before you take another one.",
            visibility=SectionVisibility.SUMMARY,
            tools=[Tool(name="change_seat", handler=change_seat)],
        ),
        MarkdownSection(
            title="Refunds",
            summary="What is paid back.",
            template="Half of the price is paid back until a day before the flight, nothing later. "
            "A person decides: give the number 555-0199 and the code of the booking.",
            visibility=SectionVisibility.SUMMARY,
        ),
    ],
)


def serve() -> Plan:
    """Replaces the model with fixed steps and ignores the messages."""
    yield Call(name="read_section", arguments={"section_key": "luggage"})
    yield "Yes, in a carrier under the seat in front. For that you must leave row 1: which seat?"
    yield Call(name="read_section", arguments={"section_key": "seats"})
    answer = yield Call(name="change_seat", arguments={"seat": "12A"})
    yield f"{answer.partition('.')[0]}, but 12C is. Shall I take it?"
    return (yield Call(name="change_seat", arguments={"seat": "12C"}))


if __name__ == "__main__":
    play(DESK.bind(), serve, MESSAGES, __doc__)
