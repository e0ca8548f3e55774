from langchain.tools import tool
from langchain.chat_models import init_chat_model
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, interrupt

paid: list[str] = []


@tool
def refund(order: str) -> str:
    """Refund an order."""
    if not interrupt({"action": "refund", "order": order})["approved"]:
        return "A person refused."
    paid.append(order)
    return "Paid back."


model = init_chat_model("openai:gpt-5.2").bind_tools([refund])


def call_model(state: MessagesState) -> dict:
    return {"messages": [model.invoke([("system", "Help."), *state["messages"]])]}


builder = StateGraph(MessagesState)
builder.add_node("model", call_model)
builder.add_node("tools", ToolNode([refund]))
builder.add_edge(START, "model")
builder.add_conditional_edges("model", tools_condition)
builder.add_edge("tools", "model")
graph = builder.compile(checkpointer=InMemorySaver())
thread = {"configurable": {"thread_id": "ann"}}
result = graph.invoke({"messages": [("user", "A-7 was cold.")]}, thread)
for waiting in result["__interrupt__"]:
    print(waiting.value)
result = graph.invoke(Command(resume={"approved": True}), thread)
print(result["messages"][-1].content, paid)
