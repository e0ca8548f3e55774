"""Each check reports its problem and nothing else; a finding is reported in every disclosure
state.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from weakincentives import Resource, serde
from weakincentives import tool as tool_of
from weakincentives.inspection.analysis import Finding, Report, analyze
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptTemplate,
    Section,
    SectionPath,
    SectionVisibility,
    TaskExample,
    TaskExamplesSection,
    TaskStep,
    Tool,
    ToolContext,
    ToolResult,
)
from weakincentives.prompt.overrides import SectionOverride
from weakincentives.prompt.overrides.store import LocalPromptOverridesStore
from weakincentives.runtime.session import Session

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY


@dataclass(frozen=True)
class Order:
    number: Annotated[str, Field(description="The number on the invoice.")]


@dataclass(frozen=True)
class Count:
    value: int


def tool(name: str) -> Tool[Order, object]:
    return Tool(name=name, description=f"Does {name}.", params_type=Order)


def template(*sections: Section[Any]) -> PromptTemplate[None]:
    return PromptTemplate(ns="shop", key="manual", sections=sections)


def findings(target: PromptTemplate[None] | Prompt[None]) -> list[tuple[str, str]]:
    return [
        (finding.code, ".".join(finding.section_path))
        for finding in analyze(target, session=Session()).findings
    ]


# Any: further arguments of a section.
def closed(
    title: str, text: str = "x" * 300, summary: str | None = "When needed.", **more: Any
) -> MarkdownSection:
    return MarkdownSection(title=title, template=text, visibility=SUMMARY, summary=summary, **more)


def test_prompt_without_problems_has_no_findings() -> None:
    task = MarkdownSection(title="Task", template="Help.", tools=[tool("look")])
    clean = template(task, closed("Refunds", "Use `refund`. " * 30, tools=[tool("refund")]))
    assert analyze(clean) == Report("shop/manual", 2, ())


def test_problem_reported_by_a_section_is_a_finding() -> None:
    class Imported(MarkdownSection[None]):
        def problems(self) -> list[tuple[str, str]]:
            return [("line 3 is broken", "mend it")]

    [finding] = analyze(template(Imported(title="Manual", template="Text."))).findings
    assert finding == Finding("source", ("manual",), "warning", "line 3 is broken", "mend it")


def test_each_finding_has_section_severity_message_and_remedy(tmp_path: Path) -> None:
    mood = MarkdownSection(
        title="Mood", template="Use `old_tool` or `refund(order)`.", enabled=lambda *, session: True
    )
    old = MarkdownSection(title="Old", template="z", enabled=False, tools=[tool("old_tool")])
    refunds = closed("Refunds", tools=[tool("refund")])
    store = LocalPromptOverridesStore(tmp_path)
    written = template(closed("Notes", "Other."))
    store.upsert(written.descriptor, SectionOverride(path=("notes",), body="Mine."))
    prompt = Prompt(
        template(mood, old, closed("Notes", "Short."), closed("Bare", summary=None), refunds)
    )
    stored = Prompt(prompt.template, overrides_store=store)
    lines = [
        (".".join(finding.section_path), finding.severity, finding.message, finding.remedy)
        for finding in analyze(stored).findings
    ]
    assert lines == [
        ("old", "warning", "it is never enabled", "enable it, or remove it"),
        (
            "notes",
            "warning",
            "the stored override of body notes does not apply: the code's own text has changed",
            "rebase or delete it",
        ),
        (
            "mood",
            "error",
            "its full text names the tool `old_tool` of section 'old', which is not enabled",
            "enable it",
        ),
        (
            "mood",
            "warning",
            (
                "its full text names the tool `refund` of section 'refunds', "
                "which may not be open then"
            ),
            "move the sentence there, or show that section in full",
        ),
        (
            "notes",
            "warning",
            (
                "its summary and the line on opening it have 120 characters, "
                "and the hidden text has 19"
            ),
            "shorten it, or show the section in full",
        ),
        (
            "bare",
            "warning",
            "it can be summarized but has no summary",
            "describe in summary= when the section is needed",
        ),
        (
            "mood",
            "warning",
            "it depends on the session and precedes 348 characters that do not",
            "move it after 'refunds', so that the provider can reuse its cache",
        ),
    ]


@pytest.mark.claim("TL-13")
def test_description_over_200_characters_is_found_in_any_section() -> None:
    def described(name: str, length: int) -> Tool[Order, object]:
        return Tool(name=name, params_type=Order, description="x" * length)

    task = MarkdownSection(title="Task", template="Help.", tools=[described("brief", 200)])
    (finding,) = analyze(
        template(task, closed("Refunds", tools=[described("refund", 1_024)]))
    ).findings
    assert finding == Finding(
        "description-too-long",
        ("refunds",),
        "warning",
        "the description of its tool `refund` has 1,024 characters, which every request contains",
        "shorten it to 200, and move the rest to the section's text",
    )


class Bank:
    """A client of a service."""


class Ledger(Bank):
    def fork(self) -> "Ledger":
        return Ledger()


def pay(params: Order, *, context: ToolContext) -> ToolResult[None]:
    context.resources.get(Bank)
    return ToolResult("Paid.")


def book(params: Order, *, context: ToolContext) -> ToolResult[None]:
    context.resources.get(Ledger)
    return ToolResult("Booked.")


def test_resource_without_fork_used_before_approval_is_found() -> None:
    def asking(handler: Any, approval: Any) -> Tool[Order, None]:
        name = f"{handler.__name__}_{approval}"
        return Tool(name=name, handler=handler, approval=approval, effect="repeatable")

    class Desk:
        def refund(self, params: Order, *, context: ToolContext) -> ToolResult[None]:
            context.resources.get(Bank)
            return ToolResult("Refunded.")

    tools = [
        asking(pay, "arguments"),
        asking(pay, "effects"),
        asking(book, "effects"),
        asking(Desk().refund, "effects"),
    ]
    task = MarkdownSection(title="Task", template="Help.", tools=tools)
    prompt = template(task).bind(resources={Bank: Bank(), Ledger: Ledger()})
    findings = analyze(prompt).findings
    first, second = [each for each in findings if each.code == "effects-not-isolated"]
    assert first == Finding(
        "effects-not-isolated",
        ("task",),
        "warning",
        "its tool `pay_effects` runs before its effects are approved, and uses Bank, "
        "which has no fork()",
        "use approval='arguments', or give it fork() and merge()",
    )
    assert second.message.startswith("its tool `refund_effects` ")


def test_conditions_are_evaluated_with_the_given_session() -> None:
    gated = MarkdownSection(
        title="Gated",
        template="Use `refund`.",
        enabled=lambda *, session: bool(session and session[Count].all()),
    )
    session = Session()
    session[Count].seed(Count(1))
    example = template(closed("Refunds", tools=[tool("refund")]), gated)
    assert [finding.code for finding in analyze(example, session=session).findings] == [
        "tool-not-open"
    ]
    assert [finding.code for finding in analyze(example, session=Session()).findings] == []


# ----------------------------------------------------------------------------------------------
# tools named in texts


def test_summary_may_name_only_the_tools_that_it_hides() -> None:
    inner = MarkdownSection(title="Food", template="y", tools=[tool("weigh")])
    own = closed(
        "Refunds", summary="Has `refund` and `weigh`.", tools=[tool("refund")], children=[inner]
    )
    other = closed("Orders", summary="Needs `refund`.")
    assert findings(template(own, other)) == [("tool-not-open", "orders")]


def test_text_that_names_a_tool_of_its_closed_child_is_found() -> None:
    parent = MarkdownSection(
        title="All", template="Use `refund`.", children=[closed("Refunds", tools=[tool("refund")])]
    )
    assert findings(template(parent)) == [("tool-not-open", "all")]


def test_hidden_text_is_checked_in_the_state_that_includes_it() -> None:
    inner = closed("Inner", "Use `outer_tool`, not `refund`. " * 20)
    outer = closed("Outer", children=[inner], tools=[tool("outer_tool")])
    assert findings(template(outer, closed("Refunds", tools=[tool("refund")]))) == [
        ("tool-not-open", "outer.inner")
    ]


def test_example_that_calls_a_closed_tool_is_found() -> None:
    step = TaskStep(tool="refund", input=Order("A-7"), result="Paid back.")
    examples = TaskExamplesSection(examples=[TaskExample(objective="Pay back.", steps=(step,))])
    assert findings(template(examples, closed("Refunds", tools=[tool("refund")]))) == [
        ("tool-not-open", "examples")
    ]


def test_description_that_names_a_closed_tool_is_found() -> None:
    look = Tool[Order, object](name="look", description="After `refund` only.", params_type=Order)
    task = MarkdownSection(title="Task", template="Help.", tools=[look])
    assert findings(template(task, closed("Refunds", tools=[tool("refund")]))) == [
        ("tool-not-open", "task")
    ]


@pytest.mark.parametrize("text", ["refund", "``refund``", "`Refund`", "`refund now`", "`other`"])
def test_only_a_name_in_backticks_is_treated_as_a_tool_name(text: str) -> None:
    assert (
        findings(
            template(
                MarkdownSection(title="Task", template=text), closed("R", tools=[tool("refund")])
            )
        )
        == []
    )


type Shape = tuple[bool, int, tuple["Shape", ...]]
"""Whether a section is summarized, which tool its text names, and its children."""

SHAPES = st.recursive(
    st.tuples(st.booleans(), st.integers(0, 5), st.just(())),
    lambda inner: st.tuples(
        st.booleans(), st.integers(0, 5), st.lists(inner, max_size=2).map(tuple)
    ),
    max_leaves=5,
)


def built(shapes: Sequence[Shape], numbers: Iterator[int]) -> list[Section[Any]]:
    return [
        MarkdownSection(
            title=f"S{(number := next(numbers))}",
            template=f"Use `tool_{named}`. " + "x" * 3000,
            summary="Short.",
            visibility=SUMMARY if summarized else FULL,
            tools=[tool(f"tool_{number}")],
            children=built(children, numbers),
        )
        for summarized, named, children in shapes
    ]


@given(st.lists(SHAPES, min_size=1, max_size=3))
@settings(max_examples=80)
def test_analysis_finds_as_much_as_trying_every_set_of_open_sections(shapes: list[Shape]) -> None:
    example = template(*built(shapes, iter(range(100))))
    nodes = example.registry.sections
    paths = [node.path for node in nodes if node.visibility is SUMMARY]
    brute: set[tuple[SectionPath, str]] = set()
    for chosen in chain.from_iterable(
        combinations(paths, size) for size in range(min(len(paths), 6) + 1)
    ):
        rendered = example.render(visibility_overrides=dict.fromkeys(chosen, FULL))
        tools = {tool.name for tool in rendered.tools}
        for span in rendered.spans:
            text = rendered.text[span.start : span.end]
            named = text.partition("`tool_")[2].partition("`")[0]
            if (
                rendered.visibility[span.path] is FULL
                and example.registry.get_tool(f"tool_{named}") is not None
            ):
                brute |= {(span.path, f"tool_{named}")} if f"tool_{named}" not in tools else set()
    reported = {
        (finding.section_path, finding.message.split("`")[1])
        for finding in analyze(example).findings
        if finding.code == "tool-not-open"
    }
    assert reported == brute


# ---------------------------------------------------------------------------------------------
# summaries


def test_summary_as_long_as_the_text_that_it_hides_is_found() -> None:
    assert findings(template(closed("Notes", "Short."))) == [("summary-too-long", "notes")]
    summarized = template(closed("Notes")).render().text
    as_long = "x" * (len(summarized) - len("## 1. Notes\n\n"))
    assert findings(template(closed("Notes", as_long))) == [("summary-too-long", "notes")]
    assert findings(template(closed("Notes", f"{as_long}x"))) == []


def test_hidden_tools_add_to_the_size_that_a_summary_hides() -> None:
    assert findings(template(closed("Notes", "Short.", tools=[tool("refund")]))) == []


def test_section_that_is_always_full_needs_no_shorter_summary() -> None:
    assert (
        findings(template(MarkdownSection(title="Notes", template="Hi.", summary="Unused."))) == []
    )


# ---------------------------------------------------------------------------------------------
# prefix


def test_session_dependent_text_before_other_text_is_found() -> None:
    watching = MarkdownSection(title="Mood", template="x", enabled=lambda *, session: False)
    assert findings(template(watching, MarkdownSection(title="Task", template="Help."))) == [
        ("session-first", "mood")
    ]


def test_session_dependent_sections_in_a_row_are_not_a_finding() -> None:
    first, second = (
        MarkdownSection(title=key, template="x", enabled=lambda *, session: True) for key in "ab"
    )
    assert findings(template(first, second)) == []


# ---------------------------------------------------------------------------------------------
# params and failures


def test_conditions_are_evaluated_with_bound_params() -> None:
    gated = MarkdownSection[Count](
        title="Many", template="Use `refund`.", enabled=lambda params: params.value > 1
    )
    example = template(gated, closed("Refunds", tools=[tool("refund")]))
    assert ("tool-not-open", "many") in findings(example.bind(Count(2)))
    assert ("tool-not-open", "many") not in findings(example.bind(Count(1)))


def test_condition_that_requires_bound_params_is_reported() -> None:
    gated = MarkdownSection[Count](
        title="Many", template="x", enabled=lambda params: params.value > 1
    )
    report = analyze(template(gated))
    (finding,) = report.findings
    assert (finding.code, finding.severity, report.states) == ("cannot-check", "warning", 0)
    assert "a condition raised TypeError: '>' not supported" in finding.message
    assert finding.remedy == "analyze a prompt to which a Count is bound"


def test_failing_section_is_reported_and_the_others_are_checked() -> None:
    class Broken(Section[None]):
        def render_body(self, params: None, *, path: SectionPath) -> str:
            raise OSError("no disk")

    report = analyze(
        template(Broken(title="Bad"), closed("Other", enabled=lambda *, session: session.nothing))
    )
    assert [(finding.code, finding.section_path) for finding in report.findings] == [
        ("cannot-render", ("bad",)),
        ("cannot-render", ("other",)),
    ]
    assert report.findings[0] == Finding(
        "cannot-render",
        ("bad",),
        "error",
        "cannot render Broken: OSError: no disk (section 'bad')",
        "correct the section, or bind params that it accepts",
    )
    assert report.states == 0


def test_stored_overrides_are_checked_instead_of_the_authored_texts(tmp_path: Path) -> None:
    example = template(
        MarkdownSection(title="Task", template="Help."),
        closed("Refunds", tools=[tool("refund")]),
        closed("Other"),
    )
    store = LocalPromptOverridesStore(tmp_path)
    store.upsert(example.descriptor, SectionOverride(path=("task",), body="Use `refund`."))
    store.upsert(example.descriptor, SectionOverride(path=("other",), body="Other."))
    changed = template(*example.sections[:2], closed("Other", "y" * 300))
    prompt = Prompt(changed, overrides_store=store)
    assert findings(prompt) == [("override-stale", "other"), ("tool-not-open", "task")]
    assert findings(changed) == []
    gone = Prompt(template(*example.sections[1:]), overrides_store=store)
    assert ("override-stale", "") in findings(gone)
    (stale,) = [finding for finding in analyze(prompt).findings if finding.code == "override-stale"]
    assert "the stored override of body other does not apply" in stale.message


def test_report_round_trips_through_json() -> None:
    report = analyze(template(closed("Notes", "Short.")))
    assert serde.parse(Report, serde.dump(report)) == report


@dataclass(frozen=True)
class Trip:
    city: str
    day: str = "today"


class Written(MarkdownSection[Trip]):
    def render_body(self, params: Trip, *, path: SectionPath) -> str:
        return f"On {params.day} in {params.city}."


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("$day: {city} is wet.", ["param-in-braces", "param-unused"]),
        ("$day: {{ city }} is wet.", ["param-in-braces", "param-unused"]),
        ("$day: ${city} is wet.", []),
        ('$day $city: answer as {"city": 1} or {town}.', []),
        ("$city is wet.", ["param-unused"]),
        ("It is wet.", ["param-unused"]),
    ],
)
def test_params_in_braces_and_unused_params_are_found(text: str, found: list[str]) -> None:
    section = MarkdownSection[Trip](title="Trip", template=text)
    assert [code for code, _ in findings(template(section))] == found


def test_param_of_another_section_in_braces_is_found() -> None:
    sections = [
        MarkdownSection[Trip](title="Trip", template="$city $day"),
        MarkdownSection(title="Hotel", template="A hotel in {city}."),
        MarkdownSection(title="Form", template="Answer {city}.", literal=True),
    ]
    assert findings(template(*sections)) == [("param-in-braces", "hotel")]


def test_params_used_by_a_summary_another_section_or_code_are_not_reported() -> None:
    both = [
        MarkdownSection[Trip](title="Trip", template="$city"),
        closed("Day", params_type=Trip, summary="For $day."),
    ]
    assert findings(template(*both)) == []
    written = Written(title="Trip", template="")
    assert findings(template(written)) == []
    chosen = MarkdownSection[Trip](
        title="Trip", template="$city", enabled=lambda params: params.day == "today"
    )
    assert findings(template(chosen).bind(Trip("Rome"))) == []


def test_params_in_an_override_are_checked_like_authored_text(tmp_path: Path) -> None:
    section = MarkdownSection[Trip](title="Trip", template="$city")
    store = LocalPromptOverridesStore(tmp_path)
    store.upsert(template(section).descriptor, SectionOverride(path=("trip",), body="$city {day}"))
    prompt = Prompt(template(section), overrides_store=store)
    assert findings(prompt) == [("param-in-braces", "trip"), ("param-unused", "trip")]


def test_tool_without_a_description_is_found() -> None:
    named = Tool[Order, object](name="pay", params_type=Order)
    section = MarkdownSection(title="Task", template="x", tools=[named])
    assert findings(template(section)) == [("description-missing", "task")]


class Till:
    """A resource that cannot be forked."""


def test_function_that_runs_before_its_approval_with_an_unforkable_resource_is_found() -> None:
    @tool_of(approval="effects", effect="repeatable")
    def pay(
        number: Annotated[str, Field(description="The number on the invoice.")],
        till: Resource[Till] | None,
    ) -> str:
        """Pay."""
        return f"{number}{till}"

    section = MarkdownSection(title="Task", template="x", tools=[pay])
    [finding] = analyze(template(section), session=Session()).findings
    assert finding.code == "effects-not-isolated"
    assert "uses Till, which has no fork()" in finding.message
