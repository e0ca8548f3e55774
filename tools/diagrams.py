"""`make diagrams`: draws the diagrams of the pages anew, each from the code, from runs or from the page's own example.

Nothing but the lines is drawn by hand: what a figure says was read off values, so that it cannot grow old unseen.
"""

import ast
import inspect
import logging
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import dataclass
from datetime import timedelta
from io import StringIO
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, get_args

from weakincentives import Deadline, MarkdownSection, Prompt, PromptTemplate, SectionVisibility, Tool, ToolContext
from weakincentives.adapters.codec import Codec
from weakincentives.adapters.core import Conversation, ProviderAdapter
from weakincentives.adapters.errors import LimitError, PromptEvaluationError
from weakincentives.adapters.inner_loop import Finished, InnerLoop, InnerLoopConfig, ProviderRequest, Step, ToolCalls
from weakincentives.adapters.tool_executor import ToolExecutor
from weakincentives.adapters.transcript import AssistantMessage, Finish, ToolCall, ToolExecutionOutcome, ToolMessage
from weakincentives.filesystem import Filesystem, InMemoryFilesystem
from weakincentives.limits import utc_now
from weakincentives.prompt import ToolResult
from weakincentives.prompt.errors import VisibilityExpansionRequired
from weakincentives.prompt.markdown import compiled
from weakincentives.prompt.overrides import SectionOverride
from weakincentives.prompt.overrides.store import LocalPromptOverridesStore
from weakincentives.prompt.registry import CLOSE_SECTION
from weakincentives.prompt.structured_output import StructuredOutputConfig
from weakincentives.prompt.tool import ToolHandler
from weakincentives.prompt.walk import disclosure_tool
from weakincentives.runtime import events
from weakincentives.runtime.main_loop import MainLoop
from weakincentives.runtime.session import Session
from weakincentives.testing import ScriptedAdapter, call, render_states, say
from weakincentives.visibility import SectionPath

__all__ = ["DRAWING", "drawn", "main"]

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src/weakincentives"
SUMMARY = SectionVisibility.SUMMARY
# The values that go from hand to hand between a template and a response.
VALUES = re.compile(
    r"\b(?:PromptTemplate|Prompt|RenderedPrompt|PromptResponse|Step|ProviderRequest|Wire|AssistantMessage|ToolCall|"
    r"ToolContext|ToolResult|ToolExecutionOutcome)\b"
)

type Row = tuple[str, ...]
type Tree = dict[Row, "Tree"]


def tree(nodes: Tree, above: str = "") -> list[Row]:
    """Rows whose first column shows by its branches what stands below what."""
    rows: list[Row] = []
    for at, ((first, *cells), below) in enumerate(nodes.items(), start=1):
        end, on = ("└── ", "    ") if at == len(nodes) else ("├── ", "│   ")
        rows += [(above + end + first, *cells), *tree(below, above + on)]
    return rows


def table(rows: Iterable[Row], *, head: int = 0) -> list[str]:
    """Rows as lines with their columns aligned, the first `head` of them above a rule."""
    filled = list(rows)
    widths = [max(map(len, column)) for column in zip_longest(*filled, fillvalue="")]
    filled[head:head] = [tuple("─" * width for width in widths)] if head else []
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=False)] for row in filled]
    return ["  ".join(row).rstrip() for row in padded]


# Any: whatever the example names
def example(page: str) -> dict[str, Any]:
    """The names of the first Python block of a page of concepts."""
    text = (ROOT / f"docs/concepts/{page}.md").read_text()
    source = text.partition("```python\n")[2].partition("```\n")[0]
    module = sys.modules[f"diagram_{page}"] = ModuleType(f"diagram_{page}")  # where its dataclasses look themselves up
    with redirect_stdout(StringIO()):
        exec(compile(source, page, "exec"), module.__dict__)  # noqa: S102 - our own pages
    return module.__dict__


def prompt_tree() -> list[str]:
    """The tree that the page builds: what each node gives, and when."""
    template: PromptTemplate[Any] = example("prompts")["template"]  # Any: an example's own output

    def below(path: SectionPath) -> Tree:
        found: Tree = {}
        for node in [one for one in template.registry.sections if one.path[:-1] == path]:
            params = node.params_type.__name__ if node.params_type else ""
            names = sorted({name for one in node.section.templates() for name in compiled(one).names})
            text = f"text with ${', $'.join(names)} of {params}" if names else "text"
            if node.visibility is SUMMARY:
                text = "summary, until the model asks for the text"
            asked = getattr(getattr(node.enabled, "selector", None), "__name__", "")
            tools: Tree = {(f"tool {one.name}", one.description, "with its section's text"): {} for one in node.tools}
            row = (
                f"{node.number}. {node.section.title}",
                text,
                f"while {asked}({params}) says so" if asked else "always",
            )
            found[row] = tools | below(node.path)
        return found

    output = template.output_type
    answer = f"the answer is one {output.__name__}" if output else "the answer is text"
    return table([(f"{template.ns}/{template.key}", answer, "shown"), *tree(below(()))])


@dataclass(frozen=True)
class Refund:
    """Params of a tool, or an output."""

    order: str


def disclosure_states() -> list[str]:
    """Every state of a small prompt, and which opening leads from one to the next."""
    food = MarkdownSection(title="Food", summary="What holds for food.", template="None.", visibility=SUMMARY)
    refund = Tool[Refund, None](name="refund", params_type=Refund)
    refunds = MarkdownSection(
        title="Refunds", summary="When to.", template="Soon.", visibility=SUMMARY, tools=[refund], children=[food]
    )
    template = PromptTemplate[None](ns="shop", key="manual", sections=[refunds], closable=True)
    nodes, states = template.registry.sections, render_states(template)
    rows: list[Row] = [
        ("open (closable=True)", *(f"{node.number}. {node.section.title}" for node in nodes), "tools of the model")
    ]
    there: list[AssistantMessage] = []
    back: list[AssistantMessage] = []
    for state in states:
        seen = state.rendered.visibility
        shown = [seen[node.path].value if node.path in seen else "-" for node in nodes]
        tools = [tool.name for tool in state.tools]
        rows.append((", ".join(map(".".join, state.opened)) or "nothing", *shown, ", ".join(tools)))
        for node in [node for node in nodes if seen.get(node.path) is SUMMARY]:
            opens, [closes] = disclosure_tool(template.disclosure, node), {CLOSE_SECTION} & {*tools}
            rows += [(f"  │ {opens}  ▲ {closes}",), (f"  ▼ {node.key:{len(opens)}}  │ {node.key}",)]
            there.append(call((opens, {"section_key": node.key})))
            back.insert(0, call((closes, {"section_key": node.key})))
    adapter = ScriptedAdapter[None]([*there, *back, say()])
    adapter.evaluate(template.bind(), session=Session())
    tools_of = [{tool.name for tool in state.tools} for state in (*states, *states[-2::-1])]
    assert [{*one.tool_names} for one in adapter.requests] == tools_of, "the arrows lead elsewhere"  # noqa: S101
    return table(rows, head=1)


def session_fold() -> list[str]:
    """What happens in a run, in order, and the slices that each reached."""
    names, session = example("state"), Session()
    spent, purse = names["Spent"], names["Purse"]
    kinds = [purse, events.PromptRendered, events.ProviderCalled, events.ToolInvoked, events.PromptExecuted]
    session.install(purse)
    rows: list[Row] = [("", *("LOG" if issubclass(kind, events.Event) else "STATE" for kind in kinds))]
    rows.append(("what happens", *(kind.__name__ for kind in kinds)))
    before = ["", "0", "0", "0", "0"]

    def note(what: str) -> None:
        now = [str(*session[purse]), *(str(len(session[kind])) for kind in kinds[1:])]
        rows.append((what, *(new if new != old else "" for old, new in zip(before, now, strict=True))))
        before[:] = now

    def pay(params: Any, *, context: ToolContext) -> ToolResult[None]:  # Any: the page's own class
        context.session.dispatch(params)
        note(f"  {params}")
        return ToolResult(message="", success=next(iter(session[purse])).left >= 0)

    def hear(event: events.Event) -> None:
        note(type(event).__name__ + ("" if getattr(event, "success", True) else ", failed"))

    session.bus.subscribe(events.Event, hear)
    tool = Tool[Any, None](name="pay", handler=pay, params_type=spent)  # Any: as above
    prompt = Prompt[None](ns="shop", key="p", sections=[MarkdownSection(title="Task", template="Pay.", tools=[tool])])
    replies = [call(("pay", spent(5))), call(("pay", spent(30))), say("Paid 5.")]
    ScriptedAdapter[None](replies).evaluate(prompt, session=session)
    return table(rows, head=2)


def tool_transaction() -> list[str]:
    """What is left of calls that write state and a file, and then end in each of the ways there are."""
    seats: dict[SectionPath, SectionVisibility] = {("seats",): SectionVisibility.FULL}
    ends: list[ToolResult[None] | BaseException] = [
        ToolResult(message="Booked."),
        ToolResult(message="Seat 4 is broken.", success=False),
        ValueError("the coach is full"),
        VisibilityExpansionRequired(requested_overrides=seats, reason="", section_keys=()),
        KeyboardInterrupt(),
    ]
    calls = [("bok", '{"seat": 4}', ends[0]), ("book", '{"seat": "x"}', ends[0])]
    rows: list[Row] = [("the call, or how it ends", "it writes", "afterwards", "and then", "events")]
    for name, arguments, end in [*calls, *(("book", '{"seat": 4}', end) for end in ends)]:
        how = type(end).__name__ if isinstance(end, BaseException) else f"ToolResult(success={end.success})"
        wrote, *then = _one_call(name, arguments, end)
        rows.append((how if wrote else f"{name} {arguments}", wrote, *then))
    return table(rows, head=1)


def _one_call(name: str, arguments: str, end: ToolResult[None] | BaseException) -> Row:
    """What the call wrote, what is left of it, what comes next, and what was published of it."""
    booking, session, files, wrote = example("tools")["Booking"], Session(), InMemoryFilesystem(), ""

    def there() -> str:
        return ", ".join([*(type(one).__name__ for one in session[booking]), *(one.path for one in files.glob("*"))])

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
    prompt = Prompt[None](ns="coach", key="desk", sections=[section]).bind(resources={Filesystem: files})
    adapter = ScriptedAdapter[None]([call((name, arguments)), say("Done.")])
    try:
        then = "evaluation starts again" if MainLoop(adapter).execute(prompt, session=session).restarts else ""
    except KeyboardInterrupt:
        then = "goes on to the caller"
    if not then:
        [answer] = [one for one in adapter.requests[1].messages if isinstance(one, ToolMessage)]
        then = f"{'answer' if answer.success else 'failed'}: {re.split(" (?:for )?'|[.:] ", answer.content)[0]}"
    return wrote, there() or "nothing", then, "".join(type(one).__name__ for one in session[events.ToolInvoked])


def inner_loop() -> list[str]:
    """The machine's transitions, found by giving each kind of input in each state until nothing new comes."""
    config, now = InnerLoopConfig(max_repairs=1, deadline=Deadline.after(3600)), utc_now()
    machine = InnerLoop(text="", structured_output=StructuredOutputConfig(Refund), config=config)
    found: dict[type[Step], dict[str, dict[str, None]]] = {}  # by state and input, the names of what comes next
    waiting = [(machine, machine.start(now))]
    seen: set[tuple[object, ...]] = set()
    for loop, step in waiting:  # which grows meanwhile
        if (state := (type(step), len(loop.pending), loop.repairs)) in seen:
            continue
        seen.add(state)
        for what, given in _inputs(step).items():
            names = found.setdefault(type(step), {}).setdefault(what, {})
            for at in (now, now + timedelta(days=1)):
                after = deepcopy(loop)
                try:
                    take = after.receive(given, at) if isinstance(given, AssistantMessage) else after.submit(given, at)
                    waiting.append((after, take))
                    names[type(take).__name__] = None
                except PromptEvaluationError as error:
                    names[(LimitError if isinstance(error, LimitError) else type(error)).__name__] = None
    nodes: Tree = {}
    for kind in get_args(Step.__value__):
        does = re.split(r"[.,]\s", kind.__doc__)[0]
        leads: Tree = {(what, f"──► {' or '.join(names)}"): {} for what, names in found.get(kind, {}).items()}
        nodes[kind.__name__, f"“{does}”"] = leads
    return table([("InnerLoop.start()", f"──► {type(waiting[0][1]).__name__}"), *tree(nodes)])


def _inputs(step: Step) -> Mapping[str, AssistantMessage | list[ToolExecutionOutcome]]:
    """Every kind of input that a machine can get after `step`."""
    match step:
        case ProviderRequest():
            calls = (ToolCall("1", "a", "{}"), ToolCall("2", "b", "{}"))
            return {
                "receive(tool calls)": AssistantMessage(tool_calls=calls, finish="tool_calls"),
                "receive(the declared output)": AssistantMessage(text='{"order": "7"}'),
                "receive(any other text)": AssistantMessage(text="?"),
            } | {f"receive(finish={one!r})": AssistantMessage(finish=one) for one in get_args(Finish.__value__)[2:]}
        case ToolCalls(calls):
            ended = [ToolExecutionOutcome(one.call_id, ToolMessage(one.call_id, ""), success=True) for one in calls]
            return {"submit(outcomes of all calls)": ended, "submit(outcomes of some)": ended[: len(ended) // 2]}
        case Finished():
            return {}


def override_merge() -> list[str]:
    """What becomes of one override when the code's text changes in each way, before a rebase and after it."""
    base = "Answer politely.\n\nSign as the shop."
    override = base.replace("politely", "politely, in two sentences")
    codes = {
        "stays as it was": MarkdownSection(title="Task", template=base),
        "changes elsewhere": MarkdownSection(title="Task", template=f"{base} Never promise a date."),
        "changes in the same line": MarkdownSection(title="Task", template=base.replace("politely", "kindly")),
        "accepts no overrides": MarkdownSection(title="Task", template=base, accepts_overrides=False),
        "is gone": MarkdownSection(title="Other", template=base),
    }

    def found(prompt: Prompt[None], text: str) -> Row:
        rendered = prompt.render()
        stored, body = rendered.overrides, rendered.text.partition("\n\n")[2]
        by = {text: "the code's", override: "the override"}.get(body, "both changes")
        return f"stale: {stored.stale[0].reason}" if stored and stored.stale else "fresh", by

    rows: list[Row] = [("the code's text", "override", "shown", "rebase", "override", "shown")]
    for what, section in codes.items():
        with TemporaryDirectory() as folder:
            store = LocalPromptOverridesStore(folder)
            first, now = [
                PromptTemplate[None](ns="shop", key="reply", sections=[one])
                for one in (codes["stays as it was"], section)
            ]
            store.upsert(first.descriptor, SectionOverride(path=("task",), body=override))
            prompt = Prompt(now, overrides_store=store)
            before, done = found(prompt, section.template), store.rebase(prompt.descriptor)
            how = "merged" if done.merged else "conflict" if done.conflicts else "nothing to do"
            rows.append((what, *before, how, *found(prompt, section.template)))
    return table(rows, head=1)


def imports(module: str) -> set[str]:
    """The modules of ours and the names in them that a module imports, wherever it does and if only for types."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            source = [*module.split(".")[: -node.level], *filter(None, [node.module])]
            found.update(".".join([*source, one.name]) for one in node.names)
    return found


def layers() -> list[str]:
    """The rows that import-linter holds, how many modules each part has, and which rows import from which."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rows = [re.findall(r"[\w.]+", row) for row in contracts[0]["layers"]]
    page = (ROOT / "docs/architecture.md").read_text()
    names = re.findall(r"^\| (\w+) \|", page.partition("| layer | ")[2].partition("\n\n")[0], re.MULTILINE)[::-1]
    modules = [".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in PACKAGE.rglob("*.py")]

    def inside(part: str, known: Iterable[str]) -> list[str]:
        return [one for one in known if f"{one}.".startswith(f"{part}.")]

    counts = [[(part, len(inside(part, modules))) for part in row] for row in rows]
    told = [", ".join(f"{part} {count}" if count > 1 else part for part, count in row) for row in counts]
    sources = [{one for part in row for module in inside(part, modules) for one in imports(module)} for row in rows]
    arrows = [["►" if any(inside(part, one) for part in row) else "" for row in rows] for one in sources]
    matrix = [(name, *row) for name, row in zip(names, arrows, strict=True)]
    return [*table(zip(names, told, strict=True)), "", *table([("imports from", *names), *matrix], head=1)]


def data_flow() -> list[str]:
    """The way from a template to a response, from the signatures of those that take each value and give the next."""
    line, reached = "PromptTemplate", "PromptTemplate"
    for step in (PromptTemplate.bind, Prompt.render, ProviderAdapter.evaluate):
        _, takes, _, gives, _ = _taken_and_given(step)
        assert reached in takes.split(", "), f"nothing gives what {step.__qualname__} takes"  # noqa: S101 - else no way
        line, reached = f"{line} ──{step.__name__}──► {gives}", gives
    # Any: functions of every type
    inside: list[Callable[..., Any]] = [
        InnerLoop.start,
        Conversation.ask,
        Codec.encode,
        Codec.decode,
        InnerLoop.receive,
    ]
    inside += [ToolExecutor.execute, ToolHandler.__call__, InnerLoop.submit]
    rows = [("within evaluate", "takes", "", "gives", "module"), *map(_taken_and_given, inside)]
    steps = " | ".join(one.__name__ for one in get_args(Step.__value__))
    known = {f"runtime.events.{one.__name__}" for one in events.Event.__subclasses__()}
    published: list[Row] = [("publishes", "")]
    published += [
        (module, ", ".join(sorted(one.split(".")[-1] for one in imports(module) & known)))
        for module in ("runtime.main_loop", "adapters.core", "adapters.tool_executor")
    ]
    return [line, "", *table(rows, head=1), "", f"Step is {steps}", "", *table(published)]


# Any: functions of every type
def _taken_and_given(function: Callable[..., Any]) -> Row:
    """Its name, the values on the way that a function takes, its own object among them, and gives, and its module."""

    def ours(*annotations: object) -> str:
        return ", ".join(dict.fromkeys(VALUES.findall(" ".join(map(str, annotations)))))

    name, signature = function.__qualname__.replace(".__call__", "(…)"), inspect.signature(function)
    takes = ours(name, *(one.annotation for one in signature.parameters.values()))
    return name, takes, "──►", ours(signature.return_annotation), function.__module__.removeprefix("weakincentives.")


DRAWING: dict[str, Callable[[], list[str]]] = {
    one.__name__.replace("_", "-"): one
    for one in (
        prompt_tree,
        disclosure_states,
        session_fold,
        tool_transaction,
        inner_loop,
        override_merge,
        layers,
        data_flow,
    )
}


def drawn(text: str) -> str:
    """A page's text with its diagrams drawn anew."""
    marked = r"(<!-- diagram: ([\w-]+) -->\n\n```text\n).*?(```\n\n<!-- /diagram -->)"
    return re.sub(
        marked, lambda at: at[1] + "".join(f"{one}\n" for one in DRAWING[at[2]]()) + at[3], text, flags=re.DOTALL
    )


def main() -> None:
    """Rewrites the pages whose diagrams are out of date, and names them."""
    logging.disable()  # tools fail here on purpose
    for page in sorted((ROOT / "docs").rglob("*.md")):
        if (new := drawn(old := page.read_text())) != old:
            page.write_text(new)
            print(page.relative_to(ROOT))


if __name__ == "__main__":
    main()
