import weakincentives as wi


def get_weather(city: str) -> str:
    """Get weather for a given city."""
    return f"It's always sunny in {city}!"


task = wi.MarkdownSection(
    title="Task", template="You are a helpful assistant.", tools=[get_weather]
)
template = wi.PromptTemplate(ns="docs", key="weather", sections=[task])
result = wi.MainLoop("openai:gpt-5.2").execute(
    template, "What is the weather in Paris?"
)
print(result.text)
