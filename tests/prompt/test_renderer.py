"""A prompt's rendering: laws over random trees, compared with the model in support.strategies, then
single rows.
"""

import re
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from support.strategies import (
    FULL,
    SUMMARY,
    Asked,
    Nothing,
    Plan,
    Who,
    expected,
    forests,
    overrides,
    params,
    sections,
)
from weakincentives.limits import Deadline
from weakincentives.prompt import (
    MarkdownSection,
    Prompt,
    PromptRenderer,
    PromptRenderError,
    PromptTemplate,
    PromptValidationError,
    Section,
    SectionPath,
    SectionVisibility,
    Tool,
    ToolContext,
    ToolExample,
    ToolOverride,
    ToolResult,
    VisibilityOverrides,
)
from weakincentives.prompt.walk import PromptView
from weakincentives.runtime.session import Session
from weakincentives.visibility import SectionDecisions

KEY_IN_SUFFIX = re.compile(r'with key "([^"]*)"')


@dataclass(frozen=True)
class Needed:
    """Params that cannot be constructed without arguments."""

    value: str


@dataclass(frozen=True)
class Search:
    query: str
    limit: int = 10


def template(roots: tuple[Plan, ...], asked: list[Asked] | None = None) -> PromptTemplate[None]:
    return PromptTemplate(ns="tests", key="random", sections=sections(roots, asked))


def template_of(section: Section[Any], *more: Section[Any]) -> PromptTemplate[None]:
    return PromptTemplate(ns="tests", key="single", sections=[section, *more])


def bindable(built: PromptTemplate[None], values: list[object]) -> list[object]:
    return [value for value in values if type(value) in built.registry.params_types]


# --------------------------------------------------------------------------------------------------
# laws


@pytest.mark.claim("PD-29", "TL-23", "PR-10", "PR-33", "PR-20", "C-16", "TL-21", "PR-28", "TL-20")
@pytest.mark.claim("C-03", "C-04", "PS-18", "PS-19", "PD-32", "PD-33")
@given(st.data())
@settings(max_examples=120)
def test_text_tools_and_visibility_match_the_reference_model(data: st.DataObject) -> None:
    roots = data.draw(forests())
    built = template(roots)
    bound = bindable(built, data.draw(params()))
    visibility = data.draw(overrides(roots))
    rendered = built.bind(*bound).render(visibility_overrides=visibility)
    model = expected(roots, bound=bound, visibility=visibility)
    assert rendered.text == model.text
    assert [tool.name for tool in rendered.tools if tool.name != "read_section"] == model.tools
    assert rendered.visibility == {section.path: section.visibility for section in model.shown}
    assert rendered.tool_paths == {
        name: section.path for section in model.shown for name in section.tools
    }
    reads = any(section.visibility is SUMMARY for section in model.shown)
    assert ("read_section" in {tool.name for tool in rendered.tools[-1:]}) is reads


@pytest.mark.claim("PR-12", "PR-16", "PR-40")
@given(st.data())
@settings(max_examples=60)
def test_each_relevant_selector_is_called_once_in_pre_order(
    data: st.DataObject,
) -> None:
    roots = data.draw(forests())
    asked: list[Asked] = []
    built = template(roots, asked)
    bound = bindable(built, data.draw(params()))
    visibility = data.draw(overrides(roots))
    session = Session()
    prompt = built.bind(*bound)
    assert asked == []
    prompt.render(session=session, visibility_overrides=visibility)
    model = expected(roots, bound=bound, visibility=visibility, session=session)
    assert asked == model.asked + model.asked_for_suffixes
    assert all(call.session in (None, session) for call in asked)


@pytest.mark.claim("PR-30")
@given(st.data())
@settings(max_examples=60)
def test_spans_are_the_sections_own_parts_and_join_to_the_text(data: st.DataObject) -> None:
    roots = data.draw(forests())
    built = template(roots)
    visibility = data.draw(overrides(roots))
    rendered = built.render(visibility_overrides=visibility)
    model = expected(roots, visibility=visibility)
    parts = [rendered.text[span.start : span.end] for span in rendered.spans]
    assert [span.path for span in rendered.spans] == [section.path for section in model.shown]
    assert parts == [section.part for section in model.shown]
    assert "\n\n".join(parts) == rendered.text
    assert all(part == part.strip() for part in parts)


@pytest.mark.claim("C-04", "PS-18", "C-03")
@given(st.data())
@settings(max_examples=60)
def test_section_numbers_do_not_depend_on_visibility(data: st.DataObject) -> None:
    roots = data.draw(forests())
    built = template(roots)
    numbers = {node.path: node.number for node in built.registry.sections}
    rendered = built.render(visibility_overrides=data.draw(overrides(roots)))
    for span in rendered.spans:
        heading = rendered.text[span.start : span.end].partition("\n")[0]
        assert heading.startswith(f"{'#' * (len(span.path) + 1)} {numbers[span.path]}. ")
        assert len(numbers[span.path].split(".")) == len(span.path)


@given(st.data())
@settings(max_examples=60)
def test_every_key_in_the_rendered_text_can_be_looked_up(data: st.DataObject) -> None:
    roots = data.draw(forests())
    built = template(roots)
    rendered = built.render(visibility_overrides=data.draw(overrides(roots)))
    printed = KEY_IN_SUFFIX.findall(rendered.text)
    nodes = [built.registry.get_section_by_key(key) for key in printed]
    assert [node and node.path for node in nodes] == [
        path for path, visibility in rendered.visibility.items() if visibility is SUMMARY
    ]


@given(st.data())
@settings(max_examples=50)
def test_rendering_is_repeatable_and_has_no_side_effects(data: st.DataObject) -> None:
    roots = data.draw(forests())
    built = template(roots)
    bound = bindable(built, data.draw(params()))
    visibility = data.draw(overrides(roots))
    prompt = built.bind(*bound)
    first = prompt.render()
    prompt.render(visibility_overrides=visibility)
    second, other = prompt.render(), built.bind(*bound).render()
    assert first.text == second.text == other.text
    assert [tool.name for tool in first.tools] == [tool.name for tool in second.tools]
    assert first.registry is second.registry is other.registry


@pytest.mark.claim("PR-18", "PR-33")
@given(st.data())
@settings(max_examples=50)
def test_overrides_of_the_session_and_of_the_call_give_the_same_prompt(data: st.DataObject) -> None:
    roots = data.draw(forests())
    assume(roots)
    visibility = data.draw(overrides(roots))
    built = template(roots)
    session = Session()
    session[VisibilityOverrides].seed(VisibilityOverrides(visibility))
    assert built.render(session=session).text == built.render(visibility_overrides=visibility).text
    opposite = dict.fromkeys(visibility, FULL)
    assert (
        built.render(session=session, visibility_overrides=opposite).text
        == built.render(visibility_overrides=opposite).text
    )


# --------------------------------------------------------------------------------------------------
# disabled and summarized


def refuse() -> Any:
    raise AssertionError("this selector must not be asked")


@pytest.mark.claim("TL-21", "PR-13", "PR-14")
@pytest.mark.parametrize("visibility", [FULL, SUMMARY])
def test_disabled_section_and_its_subtree_are_skipped_and_need_no_params(
    visibility: SectionVisibility,
) -> None:
    hidden = MarkdownSection[Needed](
        title="Hidden",
        template="$value",
        enabled=lambda: False,
        visibility=refuse,
        children=[
            MarkdownSection[Needed](
                title="Child",
                template="$value",
                enabled=refuse,
                tools=[Tool[Nothing, Nothing](name="t")],
            )
        ],
    )
    rendered = template_of(hidden, MarkdownSection(title="Shown", template="Here.")).render(
        visibility_overrides={("hidden",): visibility, ("hidden", "child"): FULL}
    )
    assert rendered.text == "## 2. Shown\n\nHere."
    assert rendered.tools == ()


@pytest.mark.claim("C-16", "PR-19", "PR-21")
def test_summary_needs_no_params_or_visibility_of_its_children() -> None:
    child = MarkdownSection[Needed](
        title="Child",
        template="$value",
        # its selector cannot be called either, so it does not hide the child
        enabled=lambda params: bool(params.value),
        visibility=refuse,
        tools=[Tool[Nothing, Nothing](name="of_child")],
    )
    parent = MarkdownSection(
        title="Parent",
        template="Full.",
        summary="Short.",
        visibility=SUMMARY,
        tools=[Tool[Nothing, Nothing](name="of_parent")],
        children=[child],
    )
    rendered = template_of(parent).render()
    assert rendered.text == (
        "## 1. Parent\n\nShort.\n\n---\n[This section is summarized. Call `read_section` with key "
        '"parent" to view full content including subsections: child.]'
    )
    assert [tool.name for tool in rendered.tools] == ["read_section"]


# --------------------------------------------------------------------------------------------------
# precedence


@pytest.mark.claim("C-09", "C-19", "PR-18", "PR-32", "PR-33", "U-04")
def test_call_overrides_take_precedence_over_session_and_selector() -> None:
    tree = template_of(
        MarkdownSection(title="S", template="full", summary="short", visibility=lambda: SUMMARY)
    )
    session = Session()
    session[VisibilityOverrides].seed(VisibilityOverrides({("s",): FULL, ("unknown",): SUMMARY}))
    assert tree.render().visibility == {("s",): SUMMARY}
    assert tree.render(session=session).visibility == {("s",): FULL}
    assert tree.render(session=session, visibility_overrides={("s",): SUMMARY}).visibility == {
        ("s",): SUMMARY
    }
    assert tree.render(session=session, visibility_overrides={}).visibility == {("s",): FULL}


@pytest.mark.claim("PR-41")
def test_overrides_are_looked_up_by_path_and_never_iterated() -> None:
    # checked by counting
    class Counting(dict[SectionPath, SectionVisibility]):
        gets = 0

        def get(self, key: Any, default: Any = None) -> Any:
            Counting.gets += 1
            return super().get(key, default)

        def __iter__(self) -> Any:
            raise AssertionError("overrides are looked up, not gone through")

    tree = template_of(*(MarkdownSection(title=f"S{index}", template="x") for index in range(5)))
    scene_overrides = Counting({(f"other{index}",): SUMMARY for index in range(10_000)})
    # Only the walk: the renderer copies overrides when it merges the session's with the call's.
    decisions = SectionDecisions(scene_overrides, {})
    view = PromptView(registry=tree.registry, params={}, decisions=decisions)
    assert len(view.visible_sections()) == Counting.gets == 5


# --------------------------------------------------------------------------------------------------
# params


@dataclass(frozen=True)
class Level:
    value: str = "built"


@pytest.mark.claim("PS-20")
def test_params_come_from_binding_own_default_first_default_or_constructor() -> None:
    def section(key: str, default: Level | None = None) -> MarkdownSection[Level]:
        return MarkdownSection[Level](title=key, key=key, template="$value", default_params=default)

    def values(tree: PromptTemplate[None], *bound: Level) -> list[str]:
        return re.findall(r"^(?!#)(.+)$", tree.bind(*bound).render().text, re.MULTILINE)

    with_defaults = template_of(
        section("a"), section("b", Level("own")), section("c", Level("third"))
    )
    assert values(with_defaults) == ["own", "own", "third"]
    assert values(with_defaults, Level("bound")) == ["bound"] * 3
    assert values(template_of(section("a"), section("b"))) == ["built"] * 2


@pytest.mark.claim("PS-20")
def test_first_default_applies_wherever_it_is_in_the_tree() -> None:
    deep = MarkdownSection[Level](
        title="Deep", template="$value", default_params=Level("deep"), enabled=False
    )
    late = MarkdownSection[Level](title="Late", template="$value", default_params=Level("late"))
    group = MarkdownSection(title="Group", template="", children=[deep])
    first = MarkdownSection[Level](title="First", template="$value")
    assert (
        template_of(first, group, late).render().text
        == "## 1. First\n\ndeep\n\n## 2. Group\n\n## 3. Late\n\nlate"
    )


@pytest.mark.claim("PS-21")
def test_missing_params_error_names_section_type_and_fix() -> None:
    tree = template_of(
        MarkdownSection(
            title="Group",
            template="",
            children=[MarkdownSection[Needed](title="Inner", template="$value")],
        )
    )
    with pytest.raises(PromptRenderError) as caught:
        tree.render()
    assert caught.value.section_path == ("group", "inner")
    assert "no Needed is bound" in str(caught.value)
    assert "Bind one: prompt.bind(Needed(…))" in str(caught.value)
    assert "'group.inner'" in str(caught.value)


def test_params_type_that_cannot_be_built_is_reported_like_missing_params() -> None:
    @dataclass
    class Refusing:
        value: str = ""

        def __post_init__(self) -> None:
            if not self.value:
                raise ValueError("value is empty")

    tree = template_of(MarkdownSection[Refusing](title="S", template="$value"))
    with pytest.raises(PromptRenderError, match="value is empty") as caught:
        tree.render()
    assert caught.value.section_path == ("s",)
    assert tree.render(Refusing("x")).text == "## 1. S\n\nx"


def test_params_type_is_built_once_per_render() -> None:
    built: list[int] = []

    @dataclass
    class Counted:
        def __post_init__(self) -> None:
            built.append(1)

    tree = template_of(
        *(
            MarkdownSection[Counted](title=f"S{index}", template="x", enabled=lambda params: True)
            for index in range(3)
        )
    )
    assert tree.render().text.count("x") == 3
    assert len(built) == 1


# --------------------------------------------------------------------------------------------------
# sections' own code


class Custom(Section[Who]):
    """A user-defined section."""

    calls: list[str]

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.calls = []

    def render_body(self, params: Who | None, *, path: SectionPath) -> str:
        self.calls.append("body")
        assert params is not None
        return f"Custom body for {params.name} at {'/'.join(path)}  \n"

    def render_override(self, override_body: str, params: Who | None, *, path: SectionPath) -> str:
        self.calls.append("override")
        return f"{override_body} for {params and params.name} at {'/'.join(path)}"


@pytest.mark.claim("PR-22")
def test_section_with_its_own_render_body_renders_inside_a_prompt() -> None:
    group = MarkdownSection(title="Group", template="Intro.", children=[Custom(title="Own")])
    assert template_of(group).render(Who("Ada")).text == (
        "## 1. Group\n\nIntro.\n\n### 1.1. Own\n\nCustom body for Ada at group/own"
    )


def test_own_render_body_of_a_markdown_section_is_called_for_each_render() -> None:
    class Loud[ParamsT](MarkdownSection[ParamsT]):
        def render_body(self, params: ParamsT, *, path: SectionPath) -> str:
            return super().render_body(params, path=path).upper()

    prompt = template_of(Loud[Who](title="Own", template="Hello $name"))
    assert [prompt.render(Who("Ada")).text for _ in range(3)] == ["## 1. Own\n\nHELLO ADA"] * 3


@pytest.mark.claim("PR-26", "PR-27")
def test_override_replaces_the_whole_body() -> None:
    own, markdown = Custom(title="Own"), MarkdownSection[Who](title="Text", template="Was $name")
    fixed = MarkdownSection(title="Fixed", template="Stays", accepts_overrides=False)
    tree = template_of(own, markdown, fixed)
    rendered = tree.renderer.render(
        param_lookup={Who: Who("Ada")},
        overrides={
            ("own",): "New",
            ("text",): "  Is ${name} for $$1\n",
            ("fixed",): "Never",
            ("gone",): "Nowhere",
        },
    )
    assert (
        rendered.text
        == "## 1. Own\n\nNew for Ada at own\n\n## 2. Text\n\nIs Ada for $1\n\n## 3. Fixed\n\nStays"
    )
    assert own.calls == ["override"]


@pytest.mark.claim("C-05", "C-24", "C-26")
@pytest.mark.parametrize(
    ("body", "placeholder"),
    [("$nobody", "$nobody"), ("cost: $ 5", "$"), ("$__class__", "$__class__")],
)
def test_override_is_substituted_as_strictly_as_a_template(body: str, placeholder: str) -> None:
    tree = template_of(MarkdownSection[Who](title="Text", template="Was $name"))
    with pytest.raises(PromptRenderError, match="Failed to render section template") as caught:
        tree.renderer.render(param_lookup={Who: Who("Ada")}, overrides={("text",): body})
    assert (caught.value.section_path, caught.value.placeholder) == (("text",), placeholder)
    assert "The text is an override; correct the override." in str(caught.value)


def test_body_override_does_not_replace_the_summary() -> None:
    tree = template_of(
        MarkdownSection(title="S", template="Body", summary="Short", visibility=SUMMARY)
    )
    rendered = tree.renderer.render(param_lookup={}, overrides={("s",): "Other"})
    assert "Short" in rendered.text
    assert "Other" not in rendered.text


def test_error_in_a_sections_own_code_has_its_path() -> None:
    class Broken(Section[None]):
        def render_body(self, params: None, *, path: SectionPath) -> str:
            raise ZeroDivisionError("by zero")

    tree = template_of(MarkdownSection(title="Group", template="", children=[Broken(title="Bad")]))
    with pytest.raises(
        PromptRenderError, match=r"cannot render Broken: ZeroDivisionError: by zero"
    ) as caught:
        tree.render()
    assert caught.value.section_path == ("group", "bad")
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_section_code_that_does_not_return_a_string_is_named_with_a_fix() -> None:
    class Forgetful(Section[None]):
        # Any: a type checker would report it
        def render_body(self, params: None, *, path: SectionPath) -> Any:
            return None

    class Waiting(Section[None]):
        def render_body(self, params: None, *, path: SectionPath) -> Any:  # Any: as above
            async def text() -> str:
                return "text"

            return text()

        def render_summary(self, params: None, *, path: SectionPath) -> Any:  # Any: as above
            return 3

    for section, gave in (
        (Forgetful(title="S"), "NoneType"),
        (Waiting(title="S"), "coroutine"),
        (Waiting(title="S", summary="", visibility=SUMMARY), "int"),
    ):
        with pytest.raises(
            PromptRenderError,
            match=rf"it must return a string, without awaiting, got a {gave} \(section 's'\)",
        ):
            template_of(section).render()


def test_error_of_a_failing_selector_names_the_section() -> None:
    def failing() -> bool:
        raise LookupError("no such flag")

    with pytest.raises(PromptRenderError, match="LookupError: no such flag") as caught:
        template_of(MarkdownSection(title="S", template="", enabled=failing)).render()
    assert caught.value.section_path == ("s",)


def test_invalid_visibility_is_rejected_at_render() -> None:
    tree = template_of(MarkdownSection(title="S", template="", visibility=lambda: "summary"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(
        PromptRenderError, match=r"must be SectionVisibility\.FULL or \.SUMMARY, got 'summary'"
    ) as caught:
        tree.render()
    assert caught.value.section_path == ("s",)


@pytest.mark.parametrize(
    "overrides", [{"s": FULL}, {("s",): "full"}, {("t",): FULL, ("s",): None}], ids=repr
)
def test_malformed_visibility_override_is_rejected_instead_of_ignored(overrides: Any) -> None:
    tree = template_of(
        MarkdownSection(title="S", template="Body", summary="Short", visibility=SUMMARY)
    )
    message = r"visibility overrides must be tuples of keys with a SectionVisibility, .*got .*'s'"
    with pytest.raises(PromptRenderError, match=message):
        tree.render(visibility_overrides=overrides)
    session = Session()
    session[VisibilityOverrides].seed(VisibilityOverrides(overrides))
    with pytest.raises(PromptRenderError, match=message):
        tree.render(session=session)


def test_selector_without_its_session_raises_with_a_hint() -> None:
    tree = template_of(
        MarkdownSection(title="S", template="", enabled=lambda *, session: len(session[Who]) > 0)
    )
    with pytest.raises(PromptRenderError, match=r"use render\(session=…\)"):
        tree.render()
    session = Session()
    assert tree.render(session=session).text == ""
    session.dispatch(Who("Ada"))
    assert tree.render(session=session).text == "## 1. S"


# --------------------------------------------------------------------------------------------- what
# a render result is


def search(params: Search, *, context: ToolContext) -> ToolResult[None]:
    raise AssertionError("rendering runs no handler")


def searching(**arguments: Any) -> Tool[Search, None]:
    return Tool[Search, None](name="search", description="Searches.", handler=search, **arguments)


@pytest.mark.parametrize("template", ["Hello $name", "", "$name\n\n$name"])
@pytest.mark.parametrize("visibility", SectionVisibility)
def test_rendered_body_has_no_blank_lines_at_its_edges(
    template: str, visibility: SectionVisibility
) -> None:
    parts = [
        MarkdownSection[Who](title=title, template=template, summary=template)
        for title in ("A", "B")
    ]
    overrides: dict[SectionPath, SectionVisibility] = {(key,): visibility for key in ("a", "b")}
    rendered = PromptTemplate(ns="n", key="k", sections=parts).render(
        Who("\n \n\n  Ada \n\n"), visibility_overrides=overrides
    )
    first, second = (rendered.text[span.start : span.end] for span in rendered.spans)
    start = {"": "## 1. A", "Hello $name": "## 1. A\n\nHello \n"}.get(template, "## 1. A\n\n  Ada")
    assert first.startswith(start)
    assert (first, second) == (first.rstrip(), second.rstrip())
    assert rendered.text == f"{first}\n\n{second}"


@pytest.mark.claim("TL-24", "PR-31", "PS-22")
def test_rendered_prompt_is_frozen_and_exposes_its_parts() -> None:
    tree = template_of(MarkdownSection(title="S", template="x", tools=[searching()]))
    prompt = tree.bind()
    deadline = Deadline.after(5)
    rendered = prompt.render(deadline=deadline)
    assert isinstance(rendered.prompt, Prompt)
    assert rendered.prompt.template is tree
    assert rendered.prompt.resources is prompt.resources
    assert rendered.deadline is deadline
    assert rendered.structured_output is None
    assert rendered.output_type is None
    assert rendered.container is None
    assert rendered.tool_param_descriptions == {}
    assert [tool.name for tool in rendered.tools] == ["search"]
    assert rendered.tool_paths == {"search": ("s",)}
    for name in ("text", "tools", "structured_output", "deadline", "tool_param_descriptions"):
        with pytest.raises(FrozenInstanceError):
            setattr(rendered, name, None)


@pytest.mark.claim("C-32", "TL-15", "TL-24", "PR-29", "PS-32")
def test_tool_overrides_change_the_exposed_tool_and_not_the_original() -> None:
    own, fixed = (
        searching(),
        Tool[Search, None](name="fixed", description="Fixed.", accepts_overrides=False),
    )
    tree = template_of(MarkdownSection(title="S", template="x", tools=[own, fixed]))
    override = ToolOverride(
        description="Finds things.", param_descriptions={"query": "What to find"}
    )
    rendered = tree.renderer.render(
        param_lookup={}, tool_overrides={"search": override, "fixed": override, "unknown": override}
    )
    assert [tool.description for tool in rendered.tools] == ["Finds things.", "Fixed."]
    assert rendered.tool_param_descriptions == {"search": {"query": "What to find"}}
    assert own.description == "Searches."
    assert rendered.tools[0].handler is own.handler
    only_params = tree.renderer.render(
        param_lookup={},
        tool_overrides={"search": ToolOverride(param_descriptions={"limit": "How many"})},
    )
    assert only_params.tools[0] is own
    assert only_params.tool_param_descriptions == {"search": {"limit": "How many"}}


def test_overridden_description_is_validated_like_the_original() -> None:
    tree = template_of(MarkdownSection(title="S", template="x", tools=[searching()]))
    with pytest.raises(PromptValidationError, match="'search'"):
        tree.renderer.render(
            param_lookup={}, tool_overrides={"search": ToolOverride(description="x" * 1025)}
        )


@pytest.mark.claim("PR-09")
def test_prompt_renderer_used_directly_renders_like_the_prompt() -> None:
    tree = template_of(
        MarkdownSection[Who](title="A", template="$name", tools=[searching()]),
        MarkdownSection(title="B", template="b", summary="s", visibility=SUMMARY),
    )
    session = Session()
    inline_overrides = PromptRenderer[None](registry=tree.registry, structured_output=None).render(
        param_lookup={Who: Who("Ada")}, overrides=None, tool_overrides=None, session=session
    )
    own = tree.bind(Who("Ada")).render(session=session)
    assert inline_overrides.text == own.text
    assert [tool.name for tool in inline_overrides.tools] == [tool.name for tool in own.tools]
    # as in the rendering document; a type checker needs the output type
    renderer: Any = PromptRenderer
    assert renderer(registry=tree.registry).render(param_lookup={}).text == tree.render().text


def test_examples_of_tools_follow_the_body_of_a_full_section() -> None:
    example = ToolExample(description="Two cats", input=Search("cat", 2), output=None)
    tree = template_of(
        MarkdownSection(
            title="S", template="Body", summary="Short", tools=[searching(examples=[example])]
        )
    )
    examples = (
        "Examples of `search`:\n\n"
        '- Two cats\n  - input: `{"query":"cat","limit":2}`\n  - output: `null`'
    )
    assert tree.render().text == f"## 1. S\n\nBody\n\n{examples}"
    assert "Examples of" not in tree.render(visibility_overrides={("s",): SUMMARY}).text


@pytest.mark.claim("TL-25")
def test_rendering_and_binding_do_not_run_handlers() -> None:
    tree = template_of(MarkdownSection(title="S", template="x", tools=[searching()]))
    assert [tool.name for tool in Prompt(tree).bind().render().tools] == ["search"]


@pytest.mark.claim("PR-25", "U-19")
def test_param_values_are_inserted_literally_and_never_substituted_again() -> None:
    tree = template_of(MarkdownSection[Who](title="S", template="$name costs $$1"))
    assert (
        tree.render(Who("$other %s ${name} ## 9. Fake")).text
        == "## 1. S\n\n$other %s ${name} ## 9. Fake costs $1"
    )


@pytest.mark.claim("U-08")
def test_params_are_read_at_render_time_and_need_not_be_hashable() -> None:
    @dataclass
    class Listing:
        items: list[str]

    listing = Listing(["a"])
    prompt = template_of(MarkdownSection[Listing](title="S", template="$items")).bind(listing)
    assert prompt.render().text.endswith("['a']")
    listing.items.append("b")
    assert prompt.render().text.endswith("['a', 'b']")


def test_title_is_used_literally_in_the_heading() -> None:
    title = "100% of $5, %s and ${who}"
    template = PromptTemplate(
        ns="n", key="k", sections=[MarkdownSection(title=title, key="t", template="50% $$")]
    )
    assert template.render().text == f"## 1. {title}\n\n50% $"
