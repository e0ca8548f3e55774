"""The sums cover the requests that were made, and the advice is the smaller of two sums."""

import io
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.inspection.costs import SectionCost, section_costs
from weakincentives.inspection.event_log import Record, read_events, write_events
from weakincentives.prompt import (
    Disclosure,
    MarkdownSection,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.prompt.sizes import tool_text
from weakincentives.runtime.session import Session
from weakincentives.testing import Reply, ScriptedAdapter, call, say

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY
READ = call(("read_section", {"section_key": "refunds"}))
OPEN = call(("open_sections", {"section_keys": ["refunds"], "reason": "needed"}))
PAY = call(("refund", {"number": "A-7"}))
BODY = "Within 30 days. " * 20


@dataclass(frozen=True)
class Order:
    number: str


def refund(params: Order, *, context: ToolContext) -> ToolResult[Order]:
    """Pay back."""
    return ToolResult(message="Paid back.")


REFUND = Tool(name="refund", handler=refund)


def shop(
    disclosure: Disclosure = Disclosure.READ,
    visibility: SectionVisibility = SUMMARY,
    summary: str | None = "Paying back.",
    tool: Tool[Any, Any] = REFUND,  # Any: any tool
) -> PromptTemplate[None]:
    return PromptTemplate(
        ns="shop",
        key="manual",
        disclosure=disclosure,
        sections=[
            MarkdownSection(title="Task", template="Help."),
            MarkdownSection(
                title="Refunds", summary=summary, template=BODY, visibility=visibility, tools=[tool]
            ),
        ],
    )


def run(template: PromptTemplate[None], *replies: Reply, dynamic: bool = True) -> list[Record]:
    session, file = Session(), io.StringIO()
    write_events(session.bus, file)
    MainLoop(ScriptedAdapter(replies, dynamic_tools=dynamic)).execute(
        template.bind(), session=session
    )
    return list(read_events(file.getvalue().splitlines()))


def costs(records: list[Record]) -> dict[str, SectionCost]:
    return {cost.path: cost for cost in section_costs(records)}


def sums(cost: SectionCost) -> tuple[int, int, int]:
    return cost.requests, cost.sent, cost.opened


TASK = len("## 1. Task\n\nHelp.")
WHOLE = len(f"## 2. Refunds\n\n{BODY.strip()}")
DECLARED = len(tool_text(REFUND))


def short(template: PromptTemplate[None]) -> int:
    span = template.render().spans[1]
    return span.end - span.start


def test_section_cost_includes_its_text_in_every_request() -> None:
    by_path = costs(run(shop(visibility=FULL), PAY, say("Done.")))
    assert (by_path["task"].requests, by_path["task"].sent) == (2, 2 * TASK)
    assert sums(by_path["refunds"]) == (2, 2 * WHOLE, 0)
    (tool,) = by_path["refunds"].tools
    assert (tool.name, tool.requests, tool.sent, tool.calls) == ("refund", 2, 2 * DECLARED, 1)


def test_restarted_evaluation_is_counted_once() -> None:
    for template, opening, dynamic in ((shop(Disclosure.OPEN), OPEN, True), (shop(), READ, False)):
        refunds = costs(run(template, opening, PAY, say("Done."), dynamic=dynamic))["refunds"]
        assert sums(refunds) == (3, short(template) + 2 * WHOLE, 1)


def test_tool_cost_ends_when_its_section_is_closed() -> None:
    template = PromptTemplate(ns="n", key="k", sections=shop().sections, closable=True)
    close = call(("close_section", {"section_key": "refunds"}))
    refunds = costs(run(template, READ, close, say("Done.")))["refunds"]
    assert [(tool.requests, tool.calls) for tool in refunds.tools] == [(1, 0)]
    assert refunds.opened == 1


def test_rejected_call_opens_nothing() -> None:
    refused = call(("open_sections", {"section_keys": ["refunds", "nope"], "reason": "r"}))
    assert costs(run(shop(Disclosure.OPEN), refused, say("Done.")))["refunds"].opened == 0


def test_nested_evaluation_is_attributed_to_its_own_prompt() -> None:
    inner = PromptTemplate(
        ns="shop", key="inner", sections=[MarkdownSection(title="Inner", template="Think.")]
    )

    def ask(params: Order, *, context: ToolContext) -> ToolResult[None]:
        answer = context.adapter.evaluate(
            inner.bind(), session=context.session, bus=context.event_bus
        )
        return ToolResult(message=answer.text)

    outer = shop(visibility=FULL, tool=Tool(name="refund", handler=ask, params_type=Order))
    records = run(outer, PAY, say("thought"), PAY, RuntimeError("no provider"), say("Done."))
    by_path = costs(records)
    assert by_path["inner"].requests == 2
    assert by_path["task"].requests == 3
    by_path = costs(run(outer, PAY, RuntimeError("no provider"), say("Done.")))
    assert (by_path["inner"].requests, by_path["task"].requests) == (1, 2)
    assert [tool.calls for tool in by_path["refunds"].tools] == [1]


def test_tools_are_in_declaration_order() -> None:
    tools = [Tool(name=f"tool_{number}", handler=refund) for number in range(9)]
    section = MarkdownSection(title="Task", template="Help.", tools=tools)
    template = PromptTemplate(ns="shop", key="tools", sections=[section])
    (task,) = section_costs(run(template, say("Done.")))
    assert [tool.name for tool in task.tools] == [tool.name for tool in tools]


def test_each_cost_names_its_prompt() -> None:
    assert {cost.prompt for cost in section_costs(run(shop(), READ, PAY, say("Done.")))} == {
        "shop/manual"
    }


def test_costs_of_several_runs_add_up() -> None:
    records = run(shop(), READ, PAY, say("Done."))
    once, twice = costs(records)["refunds"], costs(records + records)["refunds"]
    assert sums(twice) == tuple(2 * number for number in sums(once))


def test_runs_of_several_sessions_can_overlap() -> None:
    first = run(shop(), READ, PAY, say("Done."))
    other = run(shop(), PAY, READ, READ, PAY, PAY, say("Done."))
    overlapping = [record for pair in zip(first, other, strict=False) for record in pair]
    overlapping += other[len(first) :]
    assert section_costs(overlapping) == section_costs([*first, *other])


def test_interrupted_run_is_included_up_to_its_last_record() -> None:
    records = run(shop(), READ, PAY, say("Done."))
    assert costs(records[:2] + records)["task"].requests == 4


def test_section_that_is_never_opened_gets_no_advice() -> None:
    assert costs(run(shop(), say("Done.")))["refunds"].advice is None


def test_unused_full_section_with_a_summary_should_be_summarized() -> None:
    advice = costs(run(shop(visibility=FULL), say("Done.")))["refunds"].advice
    assert advice is not None
    expanded, brief = WHOLE + DECLARED, short(shop())
    assert advice.visibility == "SUMMARY"
    assert advice.arithmetic == (
        f"FULL: 1 request x {expanded} = {expanded}. "
        f"SUMMARY: 1 x {brief} + to open it 0 x {TASK + expanded} + open 0 x {expanded} = {brief}"
    )


def test_full_section_that_is_used_immediately_gets_no_advice() -> None:
    assert costs(run(shop(visibility=FULL), PAY, PAY, say("Done.")))["refunds"].advice is None


def test_section_that_started_both_full_and_summarized_gets_advice() -> None:
    both = run(shop(), say("Done.")) + run(shop(visibility=FULL), say("Done."))
    advice = costs(both)["refunds"].advice
    assert advice is not None
    assert advice.visibility == "SUMMARY"


def test_section_inside_a_summarized_section_gets_no_advice() -> None:
    food = MarkdownSection(title="Food", template=BODY, tools=[REFUND])
    around = MarkdownSection(
        title="Refunds", summary="s", template=BODY, visibility=SUMMARY, children=[food]
    )
    template = PromptTemplate(ns="shop", key="deep", sections=[around])
    assert costs(run(template, say("Done.")))["refunds.food"].advice is None


def test_section_that_every_run_opens_should_be_full() -> None:
    expanded = WHOLE + DECLARED
    for template, opening, dynamic in ((shop(Disclosure.OPEN), OPEN, True), (shop(), READ, False)):
        brief = short(template)
        request = (TASK + brief + 2 * (TASK + expanded)) // 3
        advice = costs(run(template, opening, PAY, say("Done."), dynamic=dynamic))["refunds"].advice
        assert advice is not None
        assert advice.visibility == "FULL"
        assert advice.arithmetic.replace(",", "") == (
            f"FULL: 2 requests x {expanded} = {2 * expanded}. "
            f"SUMMARY: 2 x {brief} + to open it 1 x {request} "
            f"+ open 2 x {expanded} = {2 * brief + request + 2 * expanded}"
        )


def test_full_section_is_needed_from_the_first_call_of_its_tool() -> None:
    other = call(("nothing", {}))
    records = run(shop(visibility=FULL), *[other] * 9, PAY, PAY, say("Done."))
    advice = costs(records)["refunds"].advice
    assert advice is not None
    assert advice.visibility == "SUMMARY"
    assert "12 requests x" in advice.arithmetic
    assert "to open it 1 x" in advice.arithmetic
    assert "open 2 x" in advice.arithmetic


def test_full_section_whose_tools_are_never_called_should_be_summarized() -> None:
    advice = costs(run(shop(visibility=FULL, summary=None), say("Done.")))["refunds"].advice
    assert advice is not None
    assert advice.visibility == "SUMMARY"
    assert "1 x 200 (assumed)" in advice.arithmetic


def test_section_without_tools_gets_no_advice() -> None:
    assert costs(run(shop(), say("Done.")))["task"].advice is None


def test_records_without_sizes_are_skipped() -> None:
    records = run(shop(), READ, PAY, say("Done."))
    for record in records:
        record.pop("sections", None)
    assert section_costs(records) == ()


@given(st.lists(st.sampled_from([READ, PAY]), max_size=6))
@settings(max_examples=30)
def test_every_read_section_reply_is_included_in_later_requests(steps: list[Reply]) -> None:
    refunds = costs(run(shop(), *steps, say("Done.")))["refunds"]
    sent, carried, reads = short(shop()), 0, 0
    for step in steps:
        if step is READ:
            message = "Section is already expanded." if reads else "Content of section 'refunds':"
            carried += len(message) + 2 + WHOLE
            reads += 1
        sent += short(shop()) + carried
    assert sums(refunds) == (len(steps) + 1, sent, reads)
    later = len(steps) - steps.index(READ) if reads else 0
    tools = [(tool.requests, tool.calls) for tool in refunds.tools]
    assert tools == ([(later, len(steps) - reads)] if reads else [])
