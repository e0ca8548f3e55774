from dataclasses import dataclass

import weakincentives as wi


@dataclass(frozen=True)
class Refund:
    order: str


@wi.tool(approval="arguments")
def refund(order: str, session: wi.Session) -> str:
    """Refund an order."""
    session.dispatch(Refund(order))
    return "Paid back."


task = wi.MarkdownSection(
    title="Task", template="Help.", tools=[refund], state=[Refund]
)
template = wi.PromptTemplate[str](ns="docs", key="careful", sections=[task])
loop = wi.MainLoop("openai:gpt-5.2")
try:
    loop.execute(template, "A-7 was cold.")
except wi.RunSuspended as waiting:
    stored = waiting.suspension.to_json()

suspension = wi.Suspension.from_json(stored)
decisions = {}
for preview in suspension.pending:
    print(preview)
    decisions[preview.call_id] = wi.Approve()
result = loop.resume(template, suspension, decisions)
print(result.text, result.session[Refund].all())
