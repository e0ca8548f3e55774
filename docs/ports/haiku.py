import weakincentives as wi

task = wi.MarkdownSection(title="Task", template="You are a helpful assistant.")
template = wi.PromptTemplate(ns="docs", key="haiku", sections=[task])
loop = wi.MainLoop("openai:gpt-5.2")
result = loop.execute(template, "Write a haiku about recursion in programming.")
print(result.text)
