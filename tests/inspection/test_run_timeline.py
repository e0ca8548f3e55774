"""A log is read as one run: evaluations, turns, steps, and the section tree at each turn."""

import io
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest

from weakincentives.adapters.fallback import FallbackAdapter
from weakincentives.citations import Citation
from weakincentives.evaluation.chat import Chat
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.response import Completed
from weakincentives.inspection.event_log import read_events, write_events
from weakincentives.inspection.run_timeline import LoggedRun, RunEvaluation, RunSection, read_run
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, say


@dataclass(frozen=True)
class Order:
    number: str


def refund(params: Order, *, context: ToolContext) -> ToolResult[None]:
    """Pay back."""
    return ToolResult(message="Paid back.")


INNER = Prompt(ns="shop", key="inner", sections=[MarkdownSection(title="Inner", template="Think.")])


def ask(params: Order, *, context: ToolContext) -> ToolResult[None]:
    """Ask another prompt."""
    answer = context.adapter.evaluate(INNER, session=Session(), bus=context.event_bus)
    return ToolResult(message=answer.text)


async def ask_async(params: Order, *, context: ToolContext) -> ToolResult[None]:
    """Ask another prompt."""
    answer = await context.adapter.evaluate_async(INNER, session=Session(), bus=context.event_bus)
    return ToolResult(message=answer.text)


def interrupt(params: Order, *, context: ToolContext) -> ToolResult[None]:
    """Stop everything."""
    raise KeyboardInterrupt


def template(*, closable: bool = False) -> PromptTemplate[Any]:
    refunds = MarkdownSection(
        title="Refunds",
        summary="Paying back.",
        template="Within 30 days.",
        visibility=SectionVisibility.SUMMARY,
        tools=[Tool(name="refund", handler=refund)],
    )
    tools = [Tool(name=each.__name__, handler=each) for each in (ask, ask_async, interrupt)]
    task = MarkdownSection(title="Task", template="Help.", tools=tools)
    return PromptTemplate(ns="shop", key="manual", sections=[task, refunds], closable=closable)


READ = call(("read_section", {"section_key": "refunds"}))
CLOSE = call(("close_section", {"section_key": "refunds"}))
PAY = call(("refund", {"number": "A-7"}))
ASK = call(("ask", {"number": "A-7"}))


def logged(run: Callable[[Session], object], *, without: str = "") -> LoggedRun:
    session, file = Session(), io.StringIO()
    write_events(session.bus, file)
    run(session)
    records = read_events(file.getvalue().splitlines())
    return read_run(record for record in records if record["event"] != without)


def refunds(sections: tuple[RunSection, ...]) -> tuple[str, str]:
    [section] = [section for section in sections if section.path == "refunds"]
    return section.visibility, section.opened_by


def outline(evaluation: RunEvaluation) -> list[object]:
    return [
        [step.record.get("name", step.record["event"]), *map(outline, step.evaluations)]
        for turn in evaluation.turns
        for step in turn.steps
    ]


def test_each_turn_has_the_section_tree_of_its_request() -> None:
    prompt = template(closable=True).bind()
    script = [READ, PAY, CLOSE, say("Done."), say("Again.")]

    def chat(session: Session) -> None:
        talk = Chat(MainLoop(ScriptedAdapter(script)), prompt, session=session)
        talk.send("Pay me.")
        talk.send("Thanks.")

    first, second = logged(chat).evaluations
    opener = "read_section in turn 1"
    assert [refunds(turn.sections) for turn in first.turns] == [
        ("summary", ""),
        ("full", opener),
        ("full", opener),
        ("closed", opener),
    ]
    sizes = [turn.sections[1].tool_size > 0 for turn in first.turns]
    assert sizes == [False, True, True, False]
    assert [turn.text for turn in second.turns] == ["Again."]
    assert first.turns[0].sections[1].size < first.turns[1].sections[1].size


def test_restart_has_the_opened_sections_and_the_reason() -> None:
    run = logged(
        lambda session: MainLoop(
            ScriptedAdapter([READ, PAY, say("Done.")], dynamic_tools=False)
        ).execute(template().bind(), session=session)
    )
    first, second = run.evaluations
    assert first.restart is not None
    assert first.answer is None
    assert second.answer is not None
    assert refunds(second.turns[0].sections) == (
        "full",
        "a restart after turn 1: Adapter does not support dynamic tools",
    )


def test_nested_evaluation_belongs_to_its_call() -> None:
    order, failure = {"number": "1"}, RuntimeError("no provider")
    asking = call(("ask", order), ("ask_async", order), ("ask", order))

    def run(session: Session) -> None:
        adapter = ScriptedAdapter([asking, say("a"), say("b"), failure, say("Done.")])
        for event in adapter.stream(template().bind(), session=session):
            if isinstance(event, Completed):  # evaluations by the reader are not nested
                ScriptedAdapter([say("after")]).evaluate(INNER, session=session)

    evaluation, after = logged(run).evaluations
    assert outline(evaluation) == [
        ["ask", [["PromptExecuted"]]],
        ["ask_async", [["PromptExecuted"]]],
        ["ask", [["EvaluationStopped"]]],
        ["PromptExecuted"],
    ]
    [inner] = evaluation.turns[0].steps[1].evaluations
    assert (inner.depth, inner.text) == (1, "b")
    assert (after.depth, after.text) == (0, "after")
    assert outline(logged(run, without="EvaluationStopped").evaluations[0])[2] == ["ask", []]


@pytest.mark.parametrize("without", ["", "EvaluationStopped"])
def test_run_after_a_failed_run_is_not_nested_in_it(without: str) -> None:
    def run(session: Session) -> None:
        stop = call(("interrupt", {"number": "1"}))
        for reply in (RuntimeError("no provider"), stop, say("Done.")):
            with suppress(RuntimeError, KeyboardInterrupt):
                ScriptedAdapter([reply]).evaluate(template().bind(), session=session)

    evaluations = logged(run, without=without).evaluations
    assert [each.depth for each in evaluations] == [0, 0, 0]


def test_request_to_another_adapter_belongs_to_the_same_turn() -> None:
    broken = PromptEvaluationError("no route", phase="request", code="connection")
    adapter = FallbackAdapter(ScriptedAdapter([broken]), ScriptedAdapter([say("Here.")]))
    [evaluation] = logged(
        lambda session: adapter.evaluate(template().bind(), session=session)
    ).evaluations
    [turn] = evaluation.turns
    assert [bool(request.record["error"]) for request in turn.requests] == [True, False]
    assert turn.text == "Here."


def test_overlapping_runs_of_two_sessions_are_separated() -> None:
    files = io.StringIO(), io.StringIO()
    for file in files:
        session = Session()
        write_events(session.bus, file)
        ScriptedAdapter([READ, say("Done.")]).evaluate(template().bind(), session=session)
    pairs = zip(*[file.getvalue().splitlines() for file in files], strict=True)
    run = read_run(read_events([line for pair in pairs for line in pair]))
    assert [len(evaluation.turns) for evaluation in run.evaluations] == [2, 2]
    assert all(evaluation.answer for evaluation in run.evaluations)


def test_log_that_ends_during_a_call_includes_the_nested_evaluation() -> None:
    file, session = io.StringIO(), Session()
    write_events(session.bus, file)
    ScriptedAdapter([ASK, say("a"), say("Done.")]).evaluate(template().bind(), session=session)
    lines = file.getvalue().splitlines()
    cut = next(number for number, line in enumerate(lines) if '"ToolInvoked"' in line)
    [evaluation] = read_run(read_events(lines[:cut])).evaluations
    [inner] = evaluation.unfinished
    assert inner.text == "a"


def test_events_without_an_evaluation_form_a_run() -> None:
    run = read_run(
        [{"event": "Odd"}, {"event": "VisibilityExpanded", "section_keys": [], "reason": ""}]
    )
    [evaluation] = run.evaluations
    assert (evaluation.prompt.line, len(evaluation.steps), evaluation.turns) == ("Odd", 2, [])


def test_reasoning_and_sources_are_lines_of_a_turn() -> None:
    session, log = Session(), io.StringIO()
    write_events(session.bus, log)
    citations = [Citation(url="https://a.example", title="A"), Citation(source="file_1")]
    adapter = ScriptedAdapter(
        [
            call(("ask", {"number": "1"}), reasoning="I ask."),
            say("So."),
            say("Yes.", reasoning="So it is.", citations=citations),
        ]
    )
    tools = [Tool(name="ask", handler=ask)]
    asked = Prompt(
        ns="shop", key="p", sections=[MarkdownSection(title="T", template="Go.", tools=tools)]
    )
    adapter.evaluate(asked, session=session)
    run = LoggedRun()
    lines = [
        line for record in read_events(log.getvalue().splitlines()) for line in run.add(record)
    ]
    texts = [line.text for line in lines if line.text.startswith(("  thinks", "  cites"))]
    assert texts == [
        "  thinks: I ask.",
        "  thinks: So it is.",
        "  cites: A https://a.example",
        "  cites: file_1",
    ]
    first, last = run.evaluations[0].turns
    assert (first.reasoning, last.reasoning) == ("I ask.", "So it is.")
    assert [citation["title"] for citation in last.citations] == ["A", ""]


def test_former_module_name_warns_and_has_the_same_names() -> None:
    sys.modules.pop("weakincentives.inspection.runs", None)
    with pytest.warns(DeprecationWarning, match=r"inspection\.run_timeline"):
        former = import_module("weakincentives.inspection.runs")
    assert former.LoggedRun is LoggedRun
