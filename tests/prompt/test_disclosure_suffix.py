"""The line that ends a summarized section, and the tool that it names."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from support.strategies import SUMMARY, Nothing, Who, forests, overrides, sections
from weakincentives.prompt import (
    Disclosure,
    MarkdownSection,
    PromptTemplate,
    PromptValidationError,
    Tool,
)

READ = "`read_section`"
OPEN = "`open_sections`"


def prompt(
    *roots: MarkdownSection[Who], disclosure: Disclosure = Disclosure.READ
) -> PromptTemplate[None]:
    return PromptTemplate(ns="tests", key="suffix", sections=roots, disclosure=disclosure)


def summarized(**arguments: object) -> MarkdownSection[Who]:
    # Any keywords of a section.
    return MarkdownSection[Who](
        **{
            "title": "Context",
            "template": "All of it.",
            "summary": "In short.",
            "visibility": SUMMARY,
            **arguments,
        }  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    )


@pytest.mark.claim("C-01", "C-02", "PD-29")
@pytest.mark.parametrize(("disclosure", "tool"), [(Disclosure.READ, READ), (Disclosure.OPEN, OPEN)])
def test_suffix_follows_a_rule_and_names_the_tool_and_key(
    disclosure: Disclosure, tool: str
) -> None:
    text = prompt(summarized(), disclosure=disclosure).render().text
    assert text == (
        "## 1. Context\n\nIn short.\n\n---\n"
        f'[This section is summarized. To view full content, call {tool} with key "context".]'
    )


@pytest.mark.claim("C-23", "PD-30")
@pytest.mark.parametrize(("disclosure", "tool"), [(Disclosure.READ, READ), (Disclosure.OPEN, OPEN)])
def test_suffix_lists_direct_children_in_declaration_order(
    disclosure: Disclosure, tool: str
) -> None:
    grandchild = MarkdownSection(title="Deep", template="")
    children = [
        MarkdownSection(title=title, template="", children=[grandchild])
        for title in ("Zeta", "Alpha")
    ]
    lines = prompt(summarized(children=children), disclosure=disclosure).render().text.splitlines()
    assert lines[-1] == (
        f'[This section is summarized. Call {tool} with key "context" to view full content '
        "including subsections: zeta, alpha.]"
    )


@pytest.mark.claim("C-01", "C-02", "DT-07", "PS-29")
def test_split_suffix_names_open_sections_if_the_subtree_has_tools() -> None:
    tool = Tool[Nothing, Nothing](name="t")
    with_own = summarized(title="Own", key="own", tools=[tool])
    with_deep = summarized(
        title="Deep",
        key="deep",
        children=[
            MarkdownSection(
                title="X",
                template="",
                children=[
                    MarkdownSection(
                        title="Y", template="", tools=[Tool[Nothing, Nothing](name="u")]
                    )
                ],
            )
        ],
    )
    without = summarized(title="None", key="none")
    tree = prompt(with_own, with_deep, without, disclosure=Disclosure.SPLIT)
    text = tree.render().text
    assert f'{OPEN} with key "own"' in text
    assert f'{OPEN} with key "deep"' in text
    assert f'{READ} with key "none"' in text


@pytest.mark.claim("DT-15")
def test_suffix_does_not_reveal_whether_a_section_has_tools() -> None:
    plain, tooled = summarized(), summarized(tools=[Tool[Nothing, Nothing](name="t")])
    assert prompt(plain).render().text == prompt(tooled).render().text


@pytest.mark.claim("DT-06")
@pytest.mark.parametrize("value", ["read", None, True])
def test_invalid_disclosure_is_rejected(value: object) -> None:
    with pytest.raises(PromptValidationError, match=r"must be Disclosure\.READ, \.OPEN or \.SPLIT"):
        prompt(disclosure=value)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.claim("C-23", "PD-31")
@given(st.data())
@settings(max_examples=50)
def test_markdown_has_one_heading_per_section_and_one_rule_per_summary(data: st.DataObject) -> None:
    roots = data.draw(forests())
    rendered = PromptTemplate(ns="tests", key="md", sections=sections(roots)).render(
        visibility_overrides=data.draw(overrides(roots))
    )
    tokens = [token.type for token in MarkdownIt().parse(rendered.text)]
    assert tokens.count("heading_open") == len(rendered.sections)
    assert tokens.count("hr") == list(rendered.visibility.values()).count(SUMMARY)


@pytest.mark.claim("C-22", "PD-01", "PD-02", "PD-04", "PD-05", "DT-05", "DT-07")
@pytest.mark.claim("C-01", "PD-03", "PD-07", "PD-08", "DT-06")
@given(st.data())
@settings(max_examples=50)
def test_disclosure_tools_are_exactly_those_that_the_text_names(data: st.DataObject) -> None:
    roots = data.draw(forests())
    disclosure = data.draw(st.sampled_from(Disclosure))
    tree = PromptTemplate(ns="tests", key="md", sections=sections(roots), disclosure=disclosure)
    rendered = tree.render(visibility_overrides=data.draw(overrides(roots)))
    names = [tool.name for tool in rendered.tools]
    authored = [name for name in names if name.startswith("tool-")]
    builtin = names[len(authored) :]
    assert names == authored + builtin
    assert builtin == [
        name for name in ("open_sections", "read_section") if f"`{name}`" in rendered.text
    ]
    assert all(not tool.accepts_overrides for tool in rendered.tools[len(authored) :])
    section_tools = {tool.name for node in tree.registry.sections for tool in node.section.tools()}
    assert section_tools.isdisjoint({"open_sections", "read_section"})
