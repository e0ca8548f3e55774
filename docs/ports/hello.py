import weakincentives as wi

task = wi.MarkdownSection(title="Task", template="Answer in one sentence.")
template = wi.PromptTemplate(ns="docs", key="hello", sections=[task])
loop = wi.MainLoop("openai:gpt-5.2")
result = loop.execute(template, 'Where does "hello world" come from?')
print(result.text)
