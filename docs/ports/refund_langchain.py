from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

paid: list[str] = []


@tool
def refund(order: str) -> str:
    """Refund an order."""
    paid.append(order)
    return "Paid back."


agent = create_agent(
    "openai:gpt-5.2",
    tools=[refund],
    system_prompt="Help.",
    middleware=[HumanInTheLoopMiddleware(interrupt_on={"refund": True})],
    checkpointer=InMemorySaver(),
)
thread = {"configurable": {"thread_id": "ann"}}
result = agent.invoke({"messages": [("user", "A-7 was cold.")]}, thread)
print(result["__interrupt__"])
decisions = {"decisions": [{"type": "approve"}]}
result = agent.invoke(Command(resume=decisions), thread)
print(result["messages"][-1].content, paid)
