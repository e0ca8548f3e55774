"""Every state that a model can reach in a prompt is found; the smallest states contain every text
and every tool.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from support.strategies import FULL, SUMMARY, Plan, expected, forests, overrides, params, sections
from weakincentives.content import text_of
from weakincentives.evaluation.main_loop import MainLoop
from weakincentives.evaluation.messages import AssistantMessage, ToolMessage, UserMessage
from weakincentives.evaluation.schemas import ToolSpec
from weakincentives.prompt import (
    Disclosure,
    MarkdownSection,
    Prompt,
    PromptRenderError,
    PromptTemplate,
    RenderedPrompt,
    Section,
    SectionPath,
    SectionVisibility,
    Tool,
    VisibilityOverrides,
)
from weakincentives.prompt.overrides import SectionOverride, ToolOverride
from weakincentives.prompt.overrides.store import LocalPromptOverridesStore
from weakincentives.runtime.session import Session
from weakincentives.testing import (
    PromptState,
    ScriptedAdapter,
    SeenRequest,
    call,
    render_states,
    say,
)
from weakincentives.visibility import SetVisibilityOverride

_KEY = re.compile(r'all `(\w+)` with key "([^"]+)"')


@dataclass(frozen=True)
class Args:
    value: str = field(metadata={"description": "Any text."})


@dataclass(frozen=True)
class Who:
    name: str


def closed(title: str, **more: Any) -> MarkdownSection:  # Any: further arguments of a section
    return MarkdownSection(
        title=title, template=f"{title}.", summary="Short.", visibility=SUMMARY, **more
    )


def template(*roots: Section[Any], **more: Any) -> PromptTemplate[Any]:  # Any: as above
    return PromptTemplate(ns="tests", key="states", sections=roots, **more)


def names(states: Iterable[PromptState]) -> list[str]:
    return [state.name for state in states]


def session_with(shown_at_start: dict[SectionPath, SectionVisibility]) -> Session:
    session = Session()
    for path, visibility in shown_at_start.items():
        session.dispatch(SetVisibilityOverride(path=path, visibility=visibility))
    return session


# ---------------------------------------------------------------------------------------------
# laws


@dataclass(frozen=True)
class Case:
    """A prompt, and a factory for sessions that begin alike."""

    roots: tuple[Plan, ...]
    prompt: Prompt[Any]
    shown_at_start: dict[SectionPath, SectionVisibility]
    bound: list[object]

    def states(self, limit: int = 64) -> tuple[PromptState, ...]:
        return render_states(self.prompt, session=session_with(self.shown_at_start), limit=limit)


@st.composite
def cases(draw: st.DrawFn, disclosure: Disclosure | None = None) -> Case:
    roots = draw(forests(2))
    used = {plan.params for plan in _all(roots)}
    bound = [value for value in draw(params()) if type(value) in used]
    definition = template(
        *sections(roots),
        disclosure=disclosure or draw(st.sampled_from(Disclosure)),
        closable=draw(st.booleans()),
    )
    return Case(roots, definition.bind(*bound), draw(overrides(roots)), bound)


def _all(roots: Sequence[Plan]) -> Iterator[Plan]:
    for plan in roots:
        yield plan
        yield from _all(plan.children)


def openable(
    roots: Sequence[Plan],
    shown_at_start: dict[SectionPath, SectionVisibility],
    above: SectionPath = (),
) -> set[SectionPath]:
    """Returns the sections that are summarized, whatever surrounds them, and not disabled."""
    paths = set[SectionPath]()
    for plan in roots:
        path = (*above, plan.key)
        if plan.enabled:
            paths |= openable(plan.children, shown_at_start, path)
            if shown_at_start.get(path, plan.visibility) is SUMMARY:
                paths.add(path)
    return paths


class Recording(ScriptedAdapter):
    """Stores the prompt with which the last evaluation began."""

    last: RenderedPrompt[Any]

    def connect(self, rendered: RenderedPrompt[Any], /) -> "Recording":
        self.last = rendered
        return self


@given(cases(Disclosure.OPEN))
@settings(max_examples=40)
def test_state_matches_what_a_model_sees_after_opening_its_sections(case: Case) -> None:
    for state in case.states(limit=16):
        keys = [".".join(path) for path in state.opened]
        replies = [
            call(("open_sections", {"section_keys": [key], "reason": "why"})) for key in keys
        ]
        adapter = Recording([*replies, say("done")])
        MainLoop(adapter, max_expansions=len(keys)).execute(
            case.prompt, session=session_with(case.shown_at_start)
        )
        assert state.text == adapter.last.text
        assert state.tools == adapter.requests[-1].tools


@pytest.mark.parametrize("dynamic", [False, True])
@given(case=cases(), numbers=st.lists(st.integers(0, 99), max_size=6))
@settings(max_examples=50)
def test_every_state_that_a_model_can_reach_is_rendered(
    *, dynamic: bool, case: Case, numbers: list[int]
) -> None:
    def choose(request: SeenRequest) -> AssistantMessage:
        texts = [
            text_of(message.content)
            for message in request.messages
            if isinstance(message, UserMessage | ToolMessage)
        ]
        offered = [key for text in texts for key in _KEY.findall(text)]
        if not offered or not numbers:
            return say("done")
        tool, key = offered[numbers.pop() % len(offered)]
        wanted = (
            {"section_keys": [key], "reason": "why"}
            if tool == "open_sections"
            else {"section_key": key}
        )
        return call((tool, wanted))

    assume(len(openable(case.roots, case.shown_at_start)) <= 6)
    session = session_with(case.shown_at_start)
    states = case.states()
    adapter: ScriptedAdapter = ScriptedAdapter([choose] * (len(numbers) + 1), dynamic_tools=dynamic)
    MainLoop(adapter).execute(case.prompt, session=session)
    came_to = case.prompt.render(session=session)
    assert (came_to.text, [tool.name for tool in came_to.tools]) in [
        (state.text, [tool.name for tool in state.tools]) for state in states
    ]


@given(cases(Disclosure.READ))
@settings(max_examples=40)
def test_section_that_is_read_has_the_text_of_its_own_state(case: Case) -> None:
    for state in case.states(limit=0)[1:]:
        path = max(state.opened, key=len)
        if state.name == "all":
            continue
        adapter: ScriptedAdapter = ScriptedAdapter(
            [call(("read_section", {"section_key": ".".join(path)})), say("done")]
        )
        response = adapter.evaluate(case.prompt, session=session_with(case.shown_at_start))
        answers = [
            message.content for message in response.transcript if isinstance(message, ToolMessage)
        ]
        spans = [span for span in state.rendered.spans if span.path[: len(path)] == path]
        assert state.text[spans[0].start : spans[-1].end] in answers[0]


@given(cases(Disclosure.READ), st.sampled_from((0, 3, 16)))
@settings(max_examples=40)
def test_state_text_matches_the_reference_model(case: Case, limit: int) -> None:
    for state in case.states(limit):
        visibility = {**case.shown_at_start, **dict.fromkeys(state.opened, FULL)}
        assert state.text == expected(case.roots, bound=case.bound, visibility=visibility).text


@given(cases(), st.sampled_from((0, 3, 16)))
@settings(max_examples=40)
def test_every_openable_section_is_open_in_some_state_and_in_the_last(
    case: Case, limit: int
) -> None:
    states = case.states(limit)
    assert {path for state in states for path in state.opened} == openable(
        case.roots, case.shown_at_start
    )
    assert set(states[-1].opened) == openable(case.roots, case.shown_at_start)
    assert states[0].opened == ()


@given(cases())
@settings(max_examples=40)
def test_smallest_states_contain_every_text_and_tool(case: Case) -> None:
    def contents(states: Iterable[PromptState]) -> tuple[set[str], set[str]]:
        texts = {
            state.text[span.start : span.end] for state in states for span in state.rendered.spans
        }
        return texts, {repr(tool) for state in states for tool in state.tools}

    assume(len(openable(case.roots, case.shown_at_start)) <= 6)
    assert contents(case.states(limit=0)) == contents(case.states())


@given(cases(), st.sampled_from((0, 3)))
@settings(max_examples=40)
def test_state_names_are_distinct_and_independent_of_the_limit(case: Case, limit: int) -> None:
    states = case.states(limit)
    assert len({state.name for state in states}) == len(states)
    more = {state.opened: state.name for state in case.states()}
    assert [state for state in states if more.get(state.opened, state.name) != state.name] == []
    assert [state for state in states if list(state.opened) != sorted(state.opened)] == []


# ---------------------------------------------------------------------------------------------
# cases


def test_states_with_the_fewest_open_sections_come_first() -> None:
    nested = template(closed("Guide", children=[closed("Deep")]), closed("Refunds"))
    assert names(render_states(nested)) == [
        "closed",
        "guide",
        "refunds",
        "guide+guide.deep",
        "guide+refunds",
        "all",
    ]
    assert names(render_states(nested, limit=5)) == [
        "closed",
        "guide",
        "guide+guide.deep",
        "refunds",
        "all",
    ]
    assert names(render_states(nested, limit=6)) == names(render_states(nested))


def test_prompt_without_summarized_sections_has_one_state() -> None:
    prompt = template(MarkdownSection(title="Task", template="Help."))
    for limit in (0, 1, 64):
        (state,) = render_states(prompt, limit=limit)
        assert (state.name, state.opened, state.text) == ("closed", (), "## 1. Task\n\nHelp.")


def test_twenty_sibling_sections_have_one_state_each_plus_two() -> None:
    states = render_states(template(*(closed(f"S{number}") for number in range(20))))
    assert names(states) == ["closed", *(f"s{number}" for number in range(20)), "all"]


def test_selectors_use_the_given_session_or_an_empty_one() -> None:
    def when_asked(*, session: Any) -> SectionVisibility:  # Any: any view of state
        return FULL if session[Args].latest() else SUMMARY

    prompt = template(
        MarkdownSection(title="Task", template="Help.", visibility=when_asked),
        MarkdownSection(title="b", template="b"),
    )
    assert names(render_states(prompt)) == ["closed", "task"]
    session = Session()
    session.dispatch(Args("a"))
    (state,) = render_states(prompt, session=session)
    assert "Help." in state.text
    assert session[VisibilityOverrides].latest() is None


def test_selector_that_reads_open_sections_is_evaluated_in_each_state() -> None:
    def guide_is_open(*, session: Any) -> bool:  # Any: any view of state
        latest = session[VisibilityOverrides].latest()
        return latest is not None and latest.get(("guide",)) is FULL

    prompt = template(closed("Guide"), closed("More", enabled=guide_is_open))
    assert names(render_states(prompt)) == ["closed", "guide", "guide+more"]


def test_sections_open_in_the_session_are_open_from_the_start() -> None:
    prompt = template(closed("Guide", children=[closed("Deep")]))
    states = render_states(prompt, session=session_with({("guide",): FULL}))
    assert names(states) == ["closed", "guide.deep"]
    assert "Guide." in states[0].text


def test_closable_template_offers_close_section_in_every_state() -> None:
    states = render_states(template(closed("Guide"), closable=True))
    assert [[tool.name for tool in state.tools] for state in states] == [
        ["read_section", "close_section"]
    ] * 2


def test_tools_and_output_are_described_as_in_a_request() -> None:
    tool = Tool[Args, Args](name="look", description="Look it up.")
    prompt = PromptTemplate[Args](ns="t", key="k", sections=[closed("Guide", tools=[tool])])
    first, second = render_states(prompt)
    assert [tool.name for tool in first.tools] == ["read_section"]
    (spec,) = second.tools
    assert spec == ToolSpec(
        "look",
        "Look it up.",
        {
            "type": "object",
            "properties": {"value": {"type": "string", "description": "Any text."}},
            "required": ["value"],
            "additionalProperties": False,
        },
    )
    assert first.output == second.output
    assert first.output is not None
    assert (first.output.name, first.output.schema) == ("Args", spec.parameters)
    (plain,) = render_states(template(MarkdownSection(title="Task", template="Help.")))
    assert plain.output is None


def test_states_use_the_overrides_of_the_given_tag(tmp_path: Path) -> None:
    look = Tool[Args, Args](name="look", description="Look it up.")
    definition = template(closed("Guide", tools=[look]))
    store = LocalPromptOverridesStore(tmp_path)
    store.upsert(
        definition.descriptor,
        SectionOverride(path=("guide",), body="Other.", summary="Less."),
        tag="b",
    )
    store.upsert(
        definition.descriptor,
        ToolOverride(tool_name="look", param_descriptions={"value": "A word."}),
        tag="b",
    )
    first, second = render_states(Prompt(definition, overrides_store=store, overrides_tag="b"))
    assert ("Less." in first.text, "Other." in second.text) == (True, True)
    assert second.tools[0].parameters["properties"]["value"]["description"] == "A word."
    assert "Guide." in render_states(Prompt(definition, overrides_store=store))[1].text


def test_render_error_names_a_hidden_section_without_params() -> None:
    hidden = MarkdownSection[Who](
        title="Deep", template="$name", visibility=SUMMARY, summary="Who."
    )
    for limit in (0, 64):
        with pytest.raises(PromptRenderError, match=r"Bind one: prompt\.bind") as caught:
            render_states(template(closed("Guide", children=[hidden])), limit=limit)
        assert caught.value.section_path == ("guide", "deep")
        assert len(render_states(template(hidden).bind(Who("Ann")), limit=limit)) == 2
