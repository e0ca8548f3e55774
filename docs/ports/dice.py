import weakincentives as wi

task = wi.MarkdownSection(title="Task", template="Answer the question.")
template = wi.PromptTemplate[float](ns="docs", key="dice", sections=[task])
loop = wi.MainLoop("openai:gpt-5.2")
result = loop.execute(template, "Two dice are tossed. What is the chance of a sum of two?")
print(result.output)
