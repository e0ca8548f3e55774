from dataclasses import dataclass

from agents import Agent, RunContextWrapper, Runner, SQLiteSession, function_tool


@dataclass
class Booking:
    code: str = "K7Q2PX"
    seat: str = "1A"


@function_tool
def change_seat(context: RunContextWrapper[Booking], seat: str) -> str:
    """Move the passenger to another seat."""
    if seat not in {"12C", "20F"}:
        return f"{seat} is not free. Free are 12C, 20F."
    context.context.seat = seat
    return f"The seat is {seat} now."


def about(context: RunContextWrapper[Booking], agent: Agent[Booking]) -> str:
    booking = context.context
    return (
        "If a seat is taken, ask before you take another one. "
        f"Booking {booking.code}, seat {booking.seat}."
    )


luggage = Agent[Booking](
    name="luggage agent",
    handoff_description="Bags and animals.",
    instructions="One bag of 23 kg. Hand other topics back to the desk.",
)
seats = Agent[Booking](
    name="seat agent",
    handoff_description="Changes of seats.",
    instructions=about,
    tools=[change_seat],
)
desk = Agent[Booking](
    name="desk",
    instructions="You are the desk of an airline. Hand over to the right agent.",
    handoffs=[luggage, seats],
)
luggage.handoffs.append(desk)
seats.handoffs.append(desk)
booking, session, agent = Booking(), SQLiteSession("ann"), desk
for message in ("How heavy may my bag be?", "And 12A, please.", "12C is fine."):
    result = Runner.run_sync(agent, message, context=booking, session=session)
    agent = result.last_agent
    print(result.final_output)
print(booking)
