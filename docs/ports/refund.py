from dataclasses import dataclass

from weakincentives import (
    MainLoop,
    MarkdownSection,
    PromptTemplate,
    Session,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.adapters.openai import OpenAIAdapter
from weakincentives.evaluation.approval import Approve
from weakincentives.evaluation.suspension import RunSuspended, Suspension


@dataclass(frozen=True)
class Refund:
    order: str


def refund(params: Refund, *, context: ToolContext) -> ToolResult[None]:
    """Refund an order."""
    context.session.dispatch(params)
    return ToolResult("Paid back.")


asking = Tool(name="refund", handler=refund, approval="arguments")
task = MarkdownSection(title="Task", template="Help.", tools=[asking], state=[Refund])
prompt = PromptTemplate[str](ns="docs", key="careful", sections=[task]).bind()
loop, session = MainLoop(OpenAIAdapter("gpt-5.2")), Session()
try:
    loop.execute(prompt, session=session, message="A-7 was cold.")
except RunSuspended as waiting:
    stored = waiting.suspension.to_json()

suspension = Suspension.from_json(stored)
decisions = {}
for preview in suspension.pending:
    print(preview)
    decisions[preview.call_id] = Approve()
session = Session()
result = loop.resume(prompt, suspension, decisions, session=session)
print(result.text, session[Refund].all())
