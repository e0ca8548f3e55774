"""The measured texts are those that the prompt shows, in any state."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from support.strategies import forests, overrides, sections
from weakincentives.prompt import MarkdownSection, PromptTemplate, SectionVisibility, Tool
from weakincentives.prompt.sizes import measure, tool_text
from weakincentives.runtime.events import SectionTexts
from weakincentives.runtime.session import Session

FULL, SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY


@dataclass(frozen=True)
class Order:
    number: str


def shop(visibility: SectionVisibility = SUMMARY) -> PromptTemplate[None]:
    inner = MarkdownSection(
        title="Food", template="Never food.", tools=[Tool(name="weigh", params_type=Order)]
    )
    return PromptTemplate(
        ns="shop",
        key="manual",
        sections=[
            MarkdownSection(title="Task", template="Help."),
            MarkdownSection(
                title="Refunds",
                summary="Paying back.",
                template="Within 30 days.",
                visibility=visibility,
                tools=[Tool(name="refund", params_type=Order)],
                children=[inner],
            ),
            MarkdownSection(title="Old", template="Gone.", enabled=False),
        ],
    )


def measured(template: PromptTemplate[None]) -> dict[str, SectionTexts]:
    return {".".join(section.path): section for section in measure(template.render().view)}


@given(st.data())
@settings(max_examples=60)
def test_measured_texts_join_to_the_rendered_prompt(data: st.DataObject) -> None:
    roots = data.draw(forests())
    rendered = PromptTemplate(ns="n", key="k", sections=sections(roots)).render(
        session=Session(), visibility_overrides=data.draw(overrides(roots))
    )
    shown = [section for section in measure(rendered.view) if section.visibility is not None]
    assert "\n\n".join(section.shown for section in shown) == rendered.text
    assert {section.path: section.visibility for section in shown} == rendered.visibility


def test_hidden_sections_are_measured_and_disabled_ones_are_not() -> None:
    texts = measured(shop())
    assert {path: section.visibility for path, section in texts.items()} == {
        "task": FULL,
        "refunds": SUMMARY,
        "refunds.food": None,
    }
    assert texts["refunds"].full == "## 2. Refunds\n\nWithin 30 days."
    assert texts["refunds"].shown.startswith("## 2. Refunds\n\nPaying back.\n\n---\n")
    assert texts["refunds.food"].shown == ""
    assert texts["task"].summary is None


def test_expanded_size_includes_everything_that_opening_reveals() -> None:
    texts = measured(shop())
    hidden = "## 2. Refunds\n\nWithin 30 days.\n\n### 2.1. Food\n\nNever food."
    tools = texts["refunds"].tools["refund"] + texts["refunds.food"].tools["weigh"]
    assert texts["refunds"].expanded_size == len(hidden) + len(tools)
    assert measured(shop(FULL))["refunds"].expanded_size == texts["refunds"].expanded_size


def test_tool_is_measured_with_its_schema() -> None:
    @dataclass(frozen=True)
    class Described(Order):
        why: str = field(default="", metadata={"description": "As the “Fußzeile” has it."})

    text = tool_text(Tool(name="refund", description="Pay back.", params_type=Described))
    assert '"Pay back."' in text
    assert '"number"' in text
    assert "“Fußzeile”" in text


def test_hidden_sections_without_params_do_not_prevent_measuring() -> None:
    child = MarkdownSection[Order](title="Order", template="$number")
    parent = MarkdownSection(
        title="All", template="x", summary="y", visibility=SUMMARY, children=[child]
    )
    (only,) = measure(PromptTemplate(ns="n", key="k", sections=[parent]).render().view)
    assert only.path == ("all",)
    assert only.shown == only.full == only.summary


def test_section_that_a_condition_can_summarize_is_also_measured_as_summary() -> None:
    gated = MarkdownSection(title="Gated", template="x", visibility=lambda: SectionVisibility.FULL)
    (texts,) = measure(PromptTemplate(ns="n", key="k", sections=[gated]).render().view)
    assert texts.summary is not None
    assert texts.summary.startswith("## 1. Gated\n\n---\n[This section is summarized.")
