"""Draws the figures of the pages from the code, from runs or from the page's own example.

A figure is a picture in `docs/figures/` or a Markdown table on the page. Only its layout is written
by hand: its content is read from values, so that it cannot become outdated unnoticed.
"""

import logging
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten, wrap
from types import ModuleType
from typing import Any, get_args

from weakincentives import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    SectionVisibility,
    Tool,
    ToolContext,
)
from weakincentives.contrib.mcp import MCPSection
from weakincentives.evaluation.approval import (
    Approve,
    Approver,
    Decision,
    Deny,
    Preview,
    ReplaceArguments,
)
from weakincentives.evaluation.conversation import Conversation
from weakincentives.evaluation.errors import PromptEvaluationError
from weakincentives.evaluation.inner_loop import (
    Action,
    InnerLoop,
    ProviderRequest,
    RunConfig,
    ToolCalls,
)
from weakincentives.evaluation.logged_run import (
    Answered,
    Asked,
    Began,
    Decided,
    LoggedCall,
    LoggedEntry,
    LoggedRun,
    Rendered,
)
from weakincentives.evaluation.main_loop import ExecutionOptions, MainLoop
from weakincentives.evaluation.messages import (
    AssistantMessage,
    Finish,
    ToolCall,
    ToolExecutionOutcome,
    ToolMessage,
    UserMessage,
)
from weakincentives.evaluation.run import Run
from weakincentives.evaluation.suspension import RunSuspended, Suspension
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.prompt import ToolResult
from weakincentives.prompt.errors import VisibilityExpansionRequired
from weakincentives.prompt.output import StructuredOutputConfig
from weakincentives.prompt.overrides import SectionOverride
from weakincentives.prompt.overrides.store import LocalPromptOverridesStore
from weakincentives.prompt.registry import CLOSE_SECTION
from weakincentives.prompt.text_template import compiled
from weakincentives.runtime import events
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, render_states, say
from weakincentives.visibility import SectionPath

from .svg import LINE, Kind, Look, Picture, width_of

__all__ = ["DRAWING", "drawn", "main"]

ROOT = Path(__file__).parent.parent
SUMMARY = SectionVisibility.SUMMARY
type Row = tuple[str, ...]
type Figure = Picture | str
"""A picture, or a table in Markdown."""


def table(head: Row, rows: Iterable[Row]) -> str:
    """Returns the rows as a Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "".join(
        f"| {' | '.join(cell.replace('|', '\\|') for cell in line)} |\n".replace("|  |", "| |")
        for line in lines
    )


def code(text: str) -> str:
    """Returns `text` as code for a table, or an empty string if `text` is empty."""
    return f"`{text}`" if text else ""


# Any: whatever the example names
def example(page: str) -> dict[str, Any]:
    """Returns the names defined by the first Python block of a concept page."""
    text = (ROOT / f"docs/concepts/{page}.md").read_text()
    source = text.partition("```python\n")[2].partition("```\n")[0]
    # where its dataclasses look themselves up
    module = sys.modules[f"diagram_{page}"] = ModuleType(f"diagram_{page}")
    with redirect_stdout(StringIO()):
        exec(compile(source, page, "exec"), module.__dict__)  # noqa: S102 - our own pages
    return module.__dict__


def prompt_tree() -> Picture:
    """Returns the tree that the page builds: each node's content, and when it is shown."""
    template: PromptTemplate[Any] = example("prompts")["template"]  # Any: an example's own output
    output = template.output_type
    picture = Picture(
        "A prompt as a tree of sections, each with its text, its tools, and when it is shown"
    )
    nodes = [
        (
            0,
            f"{template.ns}/{template.key}",
            f"the answer has the type {output.__name__}" if output else "",
            "",
        )
    ]
    for node in template.registry.sections:
        params = node.params_type.__name__ if node.params_type else ""
        names = sorted({name for text in node.section.templates() for name in compiled(text).names})
        text = f"text with ${', $'.join(names)} of {params}" if names else "text"
        if node.visibility is SUMMARY:
            text = "summary, until the model opens the section"
        asked = getattr(getattr(node.enabled, "selector", None), "__name__", "")
        when = f"shown while {asked}({params}) is true" if asked else "always shown"
        nodes.append((len(node.path), f"{node.number}. {node.section.title}", text, when))
        nodes += [
            (len(node.path) + 1, f"tool {tool.name}", tool.description, "with its section")
            for tool in node.tools
        ]
    above: list[tuple[float, float]] = []  # the corner of the last box at each depth
    for at, (depth, name, gives, when) in enumerate(nodes):
        x, y = 10.0 + 40 * depth, 10.0 + 52 * at
        kind: Kind = "accent" if name.startswith("tool ") else "box"
        picture.box(x, y, 380, 42, [(name, "strong"), (gives, "muted")], kind=kind)
        picture.text(x + 394, y + 25, when, look="muted")
        if depth:
            left, top = above[depth - 1]
            picture.line((left + 16, top + 42), (left + 16, y + 21), (x, y + 21))
        above[depth:] = [(x, y)]
    return picture


@dataclass(frozen=True)
class Refund:
    """Params of a tool, or an output."""

    order: str


def disclosure_states() -> Picture:
    """Every state of a small prompt, and which opening leads from one to the next."""
    food = MarkdownSection(
        title="Food", summary="What holds for food.", template="None.", visibility=SUMMARY
    )
    refund = Tool[Refund, None](name="refund", params_type=Refund)
    refunds = MarkdownSection(
        title="Refunds",
        summary="When to.",
        template="Soon.",
        visibility=SUMMARY,
        tools=[refund],
        children=[food],
    )
    template = PromptTemplate[None](ns="shop", key="manual", sections=[refunds], closable=True)
    nodes, states = template.registry.sections, render_states(template)
    picture = Picture("The states of a prompt, and the calls that lead from one to the next")
    there: list[AssistantMessage] = []
    back: list[AssistantMessage] = []
    y = 10.0
    for state in states:
        seen = state.rendered.visibility
        shown = [
            f"{node.number}. {node.section.title}: {seen[node.path].value}"
            for node in nodes
            if node.path in seen
        ]
        tools = [tool.name for tool in state.tools]
        height = LINE * (len(shown) + 2) + 8
        opened = ", ".join(map(".".join, state.opened)) or "nothing"
        lines: list[tuple[str, Look]] = [
            (f"open: {opened}", "strong"),
            *((text, "") for text in shown),
        ]
        picture.box(140, y, 480, height, [*lines, (f"tools: {', '.join(tools)}", "muted")])
        y += height
        for node in [node for node in nodes if seen.get(node.path) is SUMMARY]:
            opens, [closes] = state.rendered.view.disclosure_tool(node), {CLOSE_SECTION} & {*tools}
            picture.line((300, y + 2), (300, y + 44), arrow=True)
            picture.text(290, y + 27, f"{opens} {node.key}", anchor="end")
            picture.line((460, y + 44), (460, y + 2), arrow=True)
            picture.text(470, y + 27, f"{closes} {node.key}")
            y += 46
            there.append(call((opens, {"section_key": node.key})))
            back.insert(0, call((closes, {"section_key": node.key})))
    adapter = ScriptedAdapter([*there, *back, say()])
    adapter.evaluate(template.bind(), session=Session())
    tools_of = [{tool.name for tool in state.tools} for state in (*states, *states[-2::-1])]
    requested = [{*request.tool_names} for request in adapter.requests]
    assert requested == tools_of, "the arrows lead elsewhere"
    return picture


def session_fold() -> Picture:
    """Returns the events of a run, in order, and the slices that each of them reached."""
    names, session = example("state"), Session()
    spent, purse = names["Spent"], names["Purse"]
    kinds = [
        purse,
        events.PromptRendered,
        events.ProviderCalled,
        events.ToolInvoked,
        events.PromptExecuted,
    ]
    session.install(purse)
    columns = [228.0, 362.0, 484.0, 594.0, 698.0]
    rows: list[tuple[str, list[str]]] = []
    before = ["", "0", "0", "0", "0"]

    def note(what: str) -> None:
        now = [str(*session[purse]), *(str(len(session[kind])) for kind in kinds[1:])]
        rows.append(
            (what, [new if new != old else "" for old, new in zip(before, now, strict=True)])
        )
        before[:] = now

    def pay(params: Any, *, context: ToolContext) -> ToolResult[None]:  # Any: the page's own class
        context.session.dispatch(params)
        note(f"  {params}")
        return ToolResult(message="", success=next(iter(session[purse])).left >= 0)

    def publish_note(event: events.Event) -> None:
        note(type(event).__name__ + ("" if getattr(event, "success", True) else ", failed"))

    session.bus.subscribe(events.Event, publish_note)
    tool = Tool[Any, None](name="pay", handler=pay, params_type=spent)  # Any: as above
    prompt = Prompt[None](
        ns="shop", key="p", sections=[MarkdownSection(title="Task", template="Pay.", tools=[tool])]
    )
    replies = [call(("pay", spent(5))), call(("pay", spent(30))), say("Paid 5.")]
    ScriptedAdapter(replies).evaluate(prompt, session=session)
    picture = Picture(
        "The events of a run from top to bottom, and the slice of the session that each one changes"
    )
    picture.text(10, 34, "event", look="strong")
    for x, kind in zip(columns, kinds, strict=True):
        picture.text(
            x,
            16,
            "LOG" if issubclass(kind, events.Event) else "STATE",
            look="muted",
            anchor="middle",
        )
        picture.text(x, 34, kind.__name__, look="strong", anchor="middle")
        picture.line((x, 42), (x, 56 + 28 * len(rows)))
    for at, (what, cells) in enumerate(rows):
        y = 66.0 + 28 * at
        picture.text(10, y + 4, what.strip(), look="" if what.startswith(" ") else "muted")
        for x, cell in zip(columns, cells, strict=True):
            if cell:
                picture.box(
                    x - width_of(cell) / 2 - 10,
                    y - 11,
                    width_of(cell) + 20,
                    22,
                    [(cell, "")],
                    kind="accent",
                )
    return picture


def tool_transaction() -> str:
    """Shows what is kept of a call that writes state and a file, for each way in which it ends."""
    seats: dict[SectionPath, SectionVisibility] = {("seats",): SectionVisibility.FULL}
    ends: list[ToolResult[None] | BaseException] = [
        ToolResult(message="Booked."),
        ToolResult(message="Seat 4 is broken.", success=False),
        ValueError("the coach is full"),
        VisibilityExpansionRequired(requested_overrides=seats, reason="", section_keys=()),
        KeyboardInterrupt(),
    ]
    calls = [("bok", '{"seat": 4}', ends[0]), ("book", '{"seat": "x"}', ends[0])]
    rows: list[Row] = []
    for name, arguments, end in [*calls, *(("book", '{"seat": 4}', end) for end in ends)]:
        how = (
            type(end).__name__
            if isinstance(end, BaseException)
            else f"ToolResult(success={end.success})"
        )
        wrote, *then = _one_call(name, arguments, end)
        rows.append((code(how if wrote else f"{name} {arguments}"), wrote, *then))
    return table(
        ("call, or how its handler ends", "writes", "writes kept", "result", "event"), rows
    )


def approval_decisions() -> str:
    """Shows the effects that each decision allows, and the answer that the model gets."""
    page = example("approval")
    rows: list[Row] = []
    fewer = ReplaceArguments({"old": "A cat.", "new": "A dog."})
    decisions: list[tuple[str, list[Decision]]] = [
        ("`Approve()`", [Approve()]),
        ("`Approve()`, but a file has changed in the meantime", [Approve(), Deny("Not now.")]),
        ('`Deny("Too many.")`', [Deny("Too many.")]),
        ("`ReplaceArguments({…})`, then `Approve()`", [fewer, Approve()]),
    ]
    for name, answers in decisions:
        files = InMemoryFilesystem({"a.md": "A cat.\n", "b.md": "A category.\n"})
        meanwhile = "A catalogue.\n" if "changed" in name else ""
        decide = _approver(answers, files, meanwhile)
        prompt = Prompt[None](ns="notes", key="tidy", sections=[page["section"].clone()])
        adapter = ScriptedAdapter([call(("rename", {"old": "cat", "new": "dog"})), say("Done.")])
        response = adapter.evaluate(
            prompt.bind(resources={Filesystem: files}), session=Session(), approver=decide
        )
        [answer] = [item for item in response.transcript if isinstance(item, ToolMessage)]
        texts = ", ".join([code(files.read_text(path).strip()) for path in ("a.md", "b.md")])
        rows.append((name, str(len(answers)), texts, answer.content.split("\n\n")[0]))
    return table(("decision", "questions", "files afterwards", "result for the model"), rows)


def approval_wait() -> Picture:
    """Shows a call from the model's request to its effects, with an approver and suspended."""
    page = example("approval")
    files = InMemoryFilesystem({"a.md": "A cat.\n", "b.md": "A category.\n"})
    prompt = Prompt[None](ns="notes", key="tidy", sections=[page["section"].clone()])
    prompt = prompt.bind(resources={Filesystem: files})
    loop = MainLoop(ScriptedAdapter([call(("rename", {"old": "cat", "new": "dog"})), say("Done.")]))
    stored = ""
    try:
        loop.execute(prompt, session=Session())
    except RunSuspended as waiting:
        stored = waiting.suspension.to_json()
    before = files.read_text("a.md").strip()
    suspension = Suspension.from_json(stored)
    [preview] = suspension.pending
    done = loop.resume(prompt, suspension, {preview.call_id: Approve()}, session=Session())
    [answer] = [item for item in done.response.transcript if isinstance(item, ToolMessage)]
    picture = Picture(
        "A call that needs approval: it runs on forks, waits for the decision as a future or as "
        "JSON, and then takes effect as previewed"
    )
    steps: list[tuple[float, float, str, str, Kind]] = [
        (10, 12, "the model calls", f"{preview.tool} {{…}}", "box"),
        (200, 12, "it runs on forks", f"{len(preview.changes)} files would change", "box"),
        (390, 12, RunSuspended.__name__, f"still {before!r}", "warning"),
        (
            580,
            12,
            f"{Suspension.__name__} as JSON",
            f"{len(suspension.pending)} pending call",
            "box",
        ),
        (580, 132, "the approver decides", f"{Approve()}", "box"),
        (390, 132, "resume(…)", "on forks again", "box"),
        (200, 132, "the forks are merged", "exactly as previewed", "box"),
        (
            10,
            132,
            f"a.md: {files.read_text('a.md').strip()!r}",
            answer.content.split("\n")[0],
            "accent",
        ),
    ]
    for x, y, head, line, kind in steps:
        picture.box(x, y, 170, 46, [(head, "strong"), (line, "")], kind=kind)
    for x in (180, 370, 560):
        picture.line((x, 35), (x + 18, 35), arrow=True)
        picture.line((x + 20, 155), (x + 2, 155), arrow=True)
    picture.line((285, 58), (285, 130), arrow=True)
    picture.text(295, 82, "with approver=,")
    picture.text(295, 100, "which decides immediately")
    picture.line((665, 58), (665, 130), arrow=True)
    picture.text(655, 82, "days later,", anchor="end")
    picture.text(655, 100, "in any process", anchor="end")
    return picture


def _approver(answers: list[Decision], files: Filesystem, meanwhile: str) -> Approver:
    """Decides in order; before each decision, writes `meanwhile` as another program would."""
    rest = iter(answers)

    def decide(_: Preview) -> Decision:
        if meanwhile:
            files.write_text("b.md", meanwhile)
        return next(rest)

    return decide


def _one_call(name: str, arguments: str, end: ToolResult[None] | BaseException) -> Row:
    """Returns what the call wrote, what was kept of it, the next step, and what was published."""
    booking, session, files, wrote = (
        example("tools")["Booking"],
        Session(),
        InMemoryFilesystem(),
        "",
    )

    def there() -> str:
        return ", ".join(
            [
                *(type(value).__name__ for value in session[booking]),
                *(file.path for file in files.glob("*")),
            ]
        )

    def book(params: Any, *, context: ToolContext) -> ToolResult[None]:  # Any: the page's own class
        nonlocal wrote
        context.session.dispatch(params)
        context.resources.get(Filesystem).write_text(f"{params.seat}.txt", "booked")
        wrote = there()
        if isinstance(end, BaseException):
            raise end
        return end

    tool = Tool[Any, None](name="book", handler=book, params_type=booking)  # Any: as above
    section = MarkdownSection(title="Seats", template="Book.", tools=[tool])
    prompt = Prompt[None](ns="coach", key="desk", sections=[section]).bind(
        resources={Filesystem: files}
    )
    adapter = ScriptedAdapter([call((name, arguments)), say("Done.")])
    try:
        then = (
            "the evaluation restarts"
            if MainLoop(adapter).execute(prompt, session=session).restarts
            else ""
        )
    except KeyboardInterrupt:
        then = "raised in the caller"
    if not then:
        [answer] = [
            message for message in adapter.requests[1].messages if isinstance(message, ToolMessage)
        ]
        start = re.split(" (?:for )?'|[.:] ", answer.content)[0]
        then = f"{'success' if answer.success else 'failure'}: {start}"
    return (
        wrote,
        there() or "nothing",
        then,
        "".join(type(event).__name__ for event in session[events.ToolInvoked]),
    )


def inner_loop() -> Picture:
    """Returns the machine's transitions, found by each kind of input in each state."""
    machine = InnerLoop(
        conversation=Conversation(ns="figures", key="loop", messages=(UserMessage(""),)),
        structured_output=StructuredOutputConfig(Refund),
        config=RunConfig(max_repairs=1),
    )
    # by state and input, the names of the next steps
    steps_by_input: dict[type[Action], dict[str, dict[str, None]]] = {}
    waiting = [(machine, machine.start())]
    seen: set[tuple[object, ...]] = set()
    for loop, step in waiting:  # which grows during the loop
        if (state := (type(step), len(loop.pending), loop.repairs)) in seen:
            continue
        seen.add(state)
        for what, value in _inputs(step).items():
            names = steps_by_input.setdefault(type(step), {}).setdefault(what, {})
            after = deepcopy(loop)
            try:
                if isinstance(value, AssistantMessage):
                    take = after.receive(value)
                else:
                    take = after.submit(value)
                waiting.append((after, take))
                names[type(take).__name__] = None
            except PromptEvaluationError as error:
                names[type(error).__name__] = None
    places: Mapping[str, tuple[float, float, Kind]] = {
        "ProviderRequest": (10, 50, "box"),
        "ToolCalls": (500, 50, "box"),
        "Finished": (10, 160, "accent"),
        "PromptEvaluationError": (255, 160, "warning"),
    }
    picture = Picture("The steps of the inner loop, and the inputs that lead from one to the next")
    for name, (x, y, kind) in places.items():
        picture.box(x, y, 210, 34, [(name, "strong")], kind=kind)
    picture.text(75, 16, f"InnerLoop.start() leads to {type(waiting[0][1]).__name__}")
    picture.line((62, 12), (40, 12), (40, 48), arrow=True)
    drawn_arrows = {
        (kind.__name__, name)
        for kind, leads in steps_by_input.items()
        for names in leads.values()
        for name in names
    }
    for (source, target), points in _ARROWS.items():
        # otherwise, the arrow would be wrong
        assert (source, target) in drawn_arrows, f"{source} leads nowhere near {target}"
        picture.line(*points, arrow=True)
    assert drawn_arrows == _ARROWS.keys(), "an arrow is missing"
    inputs = [
        (what, " or ".join(names))
        for leads in steps_by_input.values()
        for what, names in leads.items()
    ]
    for number, (what, following) in enumerate(inputs):
        picture.text(10, 228 + LINE * number, what)
        picture.text(300, 228 + LINE * number, f"→ {following}", look="muted")
    return picture


def run_log() -> Picture:
    """Returns the log of a run that was suspended, with the log of a run nested in it."""
    page = example("running")
    adapter, prompt = ScriptedAdapter(page["script"]), page["shop"].bind()
    options = ExecutionOptions(session=Session(), message="Where is A-7?")
    first = Run(adapter, prompt, options, restarts=10)
    stored = ""
    try:
        first.result()
    except RunSuspended as waiting:
        stored = waiting.suspension.to_json()
    suspension = Suspension.from_json(stored)
    decisions = {preview.call_id: Approve() for preview in suspension.pending}
    options = ExecutionOptions(session=Session(), suspension=suspension, decisions=decisions)
    rest = Run(adapter, prompt, options, restarts=10)
    rest.result()
    log = rest.log.to_value()
    [(key, inside)] = log.inside.items()
    [inner] = inside.runs
    picture = Picture("The log of a run: each step is an entry, and a nested run has its own log")
    picture.text(10, 18, "one process", look="strong")
    y = 26.0
    for number, entry in enumerate(log.entries):
        if number == len(suspension.log.entries):
            picture.text(10, y + 20, "another process", look="strong")
            picture.text(150, y + 20, "loads the log from JSON, and repeats no step", look="muted")
            y += 30
        if isinstance(entry, LoggedCall) and entry.key == key:
            picture.text(590, y + 18, "nested run", look="muted")
            y = _draw_entries(picture, (110, y), inner.log, inner.log.entries, kind="accent")
        kind: Kind = "warning" if isinstance(entry, Asked) else "box"
        y = _draw_entries(picture, (10, y), log, [entry], kind=kind)
    return picture


def _draw_entries(
    picture: Picture,
    at: tuple[float, float],
    log: LoggedRun,
    entries: Iterable[LoggedEntry],
    *,
    kind: Kind,
) -> float:
    """Draws entries of `log` below each other; returns the position of the next one."""
    x, y = at
    for entry in entries:
        picture.box(x, y, 580 - x, 26, [], kind=kind)
        name, text = _entry(entry, log)
        picture.text(x + 10, y + 17, name, look="strong")
        picture.text(x + 100, y + 17, text)
        y += 30
    return y


def _entry(entry: LoggedEntry, log: LoggedRun) -> tuple[str, str]:
    """Returns the name of an entry, and its content."""
    tools = {item.key: item.call.name for item in log.entries if isinstance(item, LoggedCall)}
    name = "Called" if isinstance(entry, LoggedCall) else type(entry).__name__
    match entry:
        case Rendered(cause=cause):
            text = f"cause: {cause}"
        case Answered(AssistantMessage(text=said, tool_calls=calls)):
            text = f"call {calls[0].name}" if calls else said
        case Asked(_, preview):
            text = f"{preview.tool}?"
        case Decided(key, decision):
            text = f"{decision.kind} {tools[key]}"
        case LoggedCall(call=made, answer=answer):
            text = f"{made.name}: {answer.content}"
        case Began(key):
            text = tools[key]
        case _:
            text = "failed"
    return name, text


# Where the arrows between the boxes run.
_ARROWS: Mapping[tuple[str, str], list[tuple[float, float]]] = {
    ("ProviderRequest", "ToolCalls"): [(220, 60), (498, 60)],
    ("ToolCalls", "ProviderRequest"): [(500, 74), (222, 74)],
    ("ProviderRequest", "ProviderRequest"): [(150, 50), (150, 30), (200, 30), (200, 48)],
    ("ToolCalls", "ToolCalls"): [(640, 50), (640, 30), (690, 30), (690, 48)],
    ("ProviderRequest", "Finished"): [(60, 84), (60, 158)],
    ("ProviderRequest", "PromptEvaluationError"): [(130, 84), (130, 136), (340, 136), (340, 158)],
}


def _inputs(step: Action) -> Mapping[str, AssistantMessage | list[ToolExecutionOutcome]]:
    """Returns every kind of input that a machine can get after `step`."""
    match step:
        case ProviderRequest():
            calls = (ToolCall("1", "a", "{}"), ToolCall("2", "b", "{}"))
            return {
                "receive(tool calls)": AssistantMessage(tool_calls=calls, finish="tool_calls"),
                "receive(the declared output)": AssistantMessage(text='{"order": "7"}'),
                "receive(any other text)": AssistantMessage(text="?"),
            } | {
                f"receive(finish={finish!r})": AssistantMessage(finish=finish)
                for finish in get_args(Finish.__value__)[2:]
            }
        case ToolCalls(calls):
            ended = [
                ToolExecutionOutcome(call.call_id, ToolMessage(call.call_id, ""), success=True)
                for call in calls
            ]
            return {
                "submit(outcomes of all calls)": ended,
                "submit(outcomes of some)": ended[: len(ended) // 2],
            }
        case _:
            return {}


def override_merge() -> str:
    """Shows an override before and after a rebase, for each change of the code's text."""
    base = "Answer politely.\n\nSign as the shop."
    override = base.replace("politely", "politely, in two sentences")
    codes = {
        "is unchanged": MarkdownSection(title="Task", template=base),
        "changes in another line": MarkdownSection(
            title="Task", template=f"{base} Never promise a date."
        ),
        "changes in the same line": MarkdownSection(
            title="Task", template=base.replace("politely", "kindly")
        ),
        "accepts no overrides": MarkdownSection(
            title="Task", template=base, accepts_overrides=False
        ),
        "is removed": MarkdownSection(title="Other", template=base),
    }

    def describe(prompt: Prompt[None], text: str) -> Row:
        rendered = prompt.render()
        stored, body = rendered.overrides, rendered.text.partition("\n\n")[2]
        by = {text: "the code's", override: "the override"}.get(body, "both changes")
        return f"stale: {stored.stale[0].reason}" if stored and stored.stale else "fresh", by

    rows: list[Row] = []
    for what, section in codes.items():
        with TemporaryDirectory() as folder:
            store = LocalPromptOverridesStore(folder)
            first, now = [
                PromptTemplate[None](ns="shop", key="reply", sections=[part])
                for part in (codes["is unchanged"], section)
            ]
            store.upsert(first.descriptor, SectionOverride(path=("task",), body=override))
            prompt = Prompt(now, overrides_store=store)
            before, done = describe(prompt, section.template), store.rebase(prompt.descriptor)
            how = "merged" if done.merged else "conflict" if done.conflicts else "nothing to do"
            rows.append((what, *before, how, *describe(prompt, section.template)))
    return table(
        (
            "the code's text",
            "override",
            "prompt",
            "`rebase`",
            "override afterwards",
            "prompt afterwards",
        ),
        rows,
    )


def conversation_messages() -> str:
    """Returns the messages of the conversation on its page."""
    messages = example("conversations")["second"].conversation.messages
    texts = [getattr(message, "content", "") or message.text for message in messages]
    return table(
        ("message", "kind", "text"),
        [
            (str(number), message.kind, code(text.replace("\n", " ")))
            for number, (message, text) in enumerate(zip(messages, texts, strict=True))
        ],
    )


def layers() -> Picture:
    """Returns the layers that import-linter checks, with their packages or the content of one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contract = project["tool"]["importlinter"]["contracts"][0]
    packages = [re.findall(r"\w+", layer) for layer in contract["layers"]]
    page = (ROOT / "docs/architecture.md").read_text()
    rows = page.partition("| package | ")[2].partition("\n\n")[0]
    contents = re.findall(r"^\| (\w+) \| (.*?) \|", rows, re.MULTILINE)[::-1]
    picture = Picture("The layers of the library: a module imports from its own or a lower layer")
    picture.text(40, 14, "imports go down, never up", look="muted")
    y = 26.0
    for (name, content), parts in zip(contents, packages, strict=True):
        text = " · ".join(parts) if len(parts) > 1 else content.replace("`", "")
        lines = wrap(text, 90)
        height = LINE * (len(lines) + 1) + 8
        picture.box(40, y, 700, height, [(name, "strong"), *((line, "muted") for line in lines)])
        y += height + 8
    picture.line((24, 6), (24, y - 8), arrow=True)
    return picture


def mcp_levels() -> Picture:
    """Returns what the model sees of a locked server in each turn, and when its process starts."""
    groups = {"History": ["git_log", "git_show"], "Commits": ["git_add", "git_commit"]}
    path = ROOT / "examples/repository_assistant/git.json"
    git = MCPSection("git", title="Git", lock=path, groups=groups)
    reads = [call(("read_section", {"section_key": key})) for key in ("git", "git.history")]
    adapter = ScriptedAdapter([*reads, say()])
    prompt = PromptTemplate[str](ns="docs", key="git", sections=[git]).bind()
    adapter.evaluate(prompt, session=Session())
    offered = [
        [name for name in seen.tool_names if name.startswith("git_")] for seen in adapter.requests
    ]
    locked = f"{len(git.lock.tools)} tools, {len(path.read_text()):,} characters, reviewed once"
    steps = [("wink mcp lock git -- mcp-server-git", locked, "the server runs, once")]
    for number, (title, names) in enumerate(
        zip(
            ["the prompt begins", "read_section git", "read_section git.history"],
            offered,
            strict=True,
        )
    ):
        new = [name for name in names if name not in offered[max(number - 1, 0)] or not number]
        text = f"+ {', '.join(new)}" if new else f"one line: {git.summary}"
        steps.append((title, shorten(text, 72, placeholder=" …"), "no process"))
    steps += [
        ("git_log {…}", "its result, if the tool matches its lock", "the server starts"),
        ("git_log {…}", "rejected, if the tool differs from its lock", "no call"),
    ]
    picture = Picture("A locked server opens level by level, and starts at the first call")
    last = len(steps) - 1
    for number, (title, text, process) in enumerate(steps):
        y = 10.0 + 60 * number
        kind: Kind = "box" if number == 0 else "warning" if number == last else "accent"
        picture.box(10, y, 560, 44, [(title, "strong"), (text, "muted")], kind=kind)
        picture.text(584, y + 26, process, look="muted")
        if 0 < number < last:
            picture.line((40, y - 16), (40, y), arrow=True)
    return picture


DRAWING: dict[str, Callable[[], Figure]] = {
    draw.__name__.replace("_", "-"): draw
    for draw in (
        prompt_tree,
        disclosure_states,
        session_fold,
        tool_transaction,
        approval_decisions,
        approval_wait,
        inner_loop,
        run_log,
        override_merge,
        conversation_messages,
        layers,
        mcp_levels,
    )
}


def drawn(page: Path) -> dict[Path, str]:
    """Returns a page with its figures redrawn, and the files of its pictures by path."""
    files: dict[Path, str] = {}

    def draw(at: re.Match[str]) -> str:
        figure = DRAWING[at[2]]()
        if isinstance(figure, Picture):
            file = ROOT / f"docs/figures/{at[2]}.svg"
            files[file] = figure.svg()
            place = "../" * (len(page.relative_to(ROOT / "docs").parts) - 1)
            figure = f"![{figure.title}]({place}figures/{file.name})\n"
        return f"{at[1]}{figure}{at[3]}"

    marked = r"(<!-- diagram: ([\w-]+) -->\n\n).*?(\n<!-- /diagram -->)"
    return {page: re.sub(marked, draw, page.read_text(), flags=re.DOTALL)} | files


def main() -> None:
    """Rewrites the pages and pictures that are outdated, and prints their names."""
    logging.disable()  # tools fail on purpose here
    (ROOT / "docs/figures").mkdir(exist_ok=True)
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for file, new in drawn(page).items():
            if not file.exists() or file.read_text() != new:
                file.write_text(new)
                print(file.relative_to(ROOT))


if __name__ == "__main__":
    main()
