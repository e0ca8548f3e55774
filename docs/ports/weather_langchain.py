from langchain.agents import create_agent


def get_weather(city: str) -> str:
    """Get weather for a given city."""
    return f"It's always sunny in {city}!"


agent = create_agent(
    model="openai:gpt-5.2",
    tools=[get_weather],
    system_prompt="You are a helpful assistant.",
)
question = {"role": "user", "content": "What is the weather in Paris?"}
result = agent.invoke({"messages": [question]})
print(result["messages"][-1].content)
