"""The definition of a prompt: its required parts, and that it is a value."""

import copy
import pickle
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.strategies import Nothing, Who
from weakincentives import ModelSettings
from weakincentives.prompt import (
    Disclosure,
    MarkdownSection,
    Prompt,
    PromptTemplate,
    PromptValidationError,
    SectionPath,
    SectionVisibility,
    StructuredOutputConfig,
    TaskExample,
    TaskExamplesSection,
    TaskStep,
    Tool,
)
from weakincentives.resources import Binding, ResourceRegistry


@dataclass(frozen=True)
class Answer:
    text: str


def is_named(params: Who) -> bool:
    return bool(params.name)


def shown(params: Who) -> SectionVisibility:
    return SectionVisibility.FULL if params.name == "Ada" else SectionVisibility.SUMMARY


def example() -> PromptTemplate[Answer]:
    return PromptTemplate[Answer](
        ns="tests",
        key="example",
        sections=[
            MarkdownSection[Who](
                title="Greeting",
                template="Hello $name.",
                summary="A greeting.",
                enabled=is_named,
                visibility=shown,
                tools=[Tool[Nothing, Nothing](name="greet")],
            ),
            TaskExamplesSection(
                examples=[
                    TaskExample(
                        objective="Greet",
                        steps=(TaskStep(tool="greet", input=Nothing(), result="done"),),
                    )
                ]
            ),
        ],
    )


@pytest.mark.claim("PR-01", "PS-01")
def test_template_exposes_its_arguments_and_is_frozen() -> None:
    section = MarkdownSection(title="S", template="")
    template = PromptTemplate(
        ns="a/b", key="k", name="Shown", sections=iter([section]), disclosure=Disclosure.SPLIT
    )
    assert (template.ns, template.key, template.name) == ("a/b", "k", "Shown")
    assert (template.sections, template.disclosure) == ((section,), Disclosure.SPLIT)
    assert (template.structured_output, template.output_type) == (None, None)
    assert template.resources == ResourceRegistry()
    registry = ResourceRegistry.of(Binding(Answer, lambda _: Answer("bound")))
    assert PromptTemplate(ns="n", key="k", resources=registry).resources is registry
    for field in fields(template):
        with pytest.raises(FrozenInstanceError):
            setattr(template, field.name, None)


class AnswerTemplate(PromptTemplate[Answer]):
    """A subclass of `PromptTemplate`."""


def test_subclass_of_a_subscripted_template_declares_its_output_type() -> None:
    template = AnswerTemplate(ns="n", key="k")
    assert (
        template.output_type
        is replace(template, key="other").output_type
        is template.bind().output_type
        is Answer
    )


@pytest.mark.claim("DT-34", "PR-02")
@pytest.mark.parametrize(
    ("key", "name"), [("my-prompt", "my_prompt"), ("a.b c", "a_b_c"), ("--", "--"), ("k", "k")]
)
def test_missing_name_is_derived_from_the_key(key: str, name: str) -> None:
    assert PromptTemplate(ns="n", key=key).name == name


@pytest.mark.claim("PR-02")
@given(st.text(min_size=1).filter(str.strip))
def test_name_is_never_empty(key: str) -> None:
    assert PromptTemplate(ns="n", key=key).name


@pytest.mark.claim("PS-01")
@pytest.mark.parametrize("field", ["ns", "key"])
@pytest.mark.parametrize("value", ["", "  ", None, 5], ids=repr)
def test_ns_and_key_must_be_non_empty_strings(field: str, value: Any) -> None:
    with pytest.raises(
        PromptValidationError, match=f"{field} must be a non-empty string"
    ) as caught:
        PromptTemplate(ns=value if field == "ns" else "n", key=value if field == "key" else "k")
    assert repr(value) in str(caught.value)


def test_empty_template_renders_to_an_empty_prompt() -> None:
    rendered = PromptTemplate(ns="n", key="k").render()
    assert (rendered.text, rendered.tools, rendered.spans) == ("", (), ())


@pytest.mark.parametrize("output", [Answer, list[Answer]], ids=repr)
def test_output_type_comes_from_the_subscript(output: Any) -> None:
    template = PromptTemplate[output](ns="n", key="k")
    assert template.output_type == output
    assert template.structured_output == StructuredOutputConfig(output)
    assert type(template) is PromptTemplate


def test_output_is_text_without_a_subscript_or_with_none() -> None:
    assert PromptTemplate(ns="n", key="k").output_type is None
    assert PromptTemplate[None](ns="n", key="k") == PromptTemplate(ns="n", key="k")


# --------------------------------------------------------------------------------------------------
# values


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda template: pickle.loads(pickle.dumps(template)), replace],
    ids=["copy", "deep copy", "pickle", "replace"],
)
def test_copied_template_renders_like_the_original(
    duplicate: Callable[[Any], PromptTemplate[Answer]],
) -> None:
    template = example()
    copied = duplicate(template)
    for params in (Who("Ada"), Who("Bob"), Who("")):
        before, after = template.render(params), copied.render(params)
        assert (before.text, before.visibility) == (after.text, after.visibility)
        assert [tool.name for tool in before.tools] == [tool.name for tool in after.tools]
    assert copied.structured_output == template.structured_output


def test_templates_with_the_same_sections_are_equal_and_hash_alike() -> None:
    shared = example().sections
    first, second = (PromptTemplate[Answer](ns="n", key="k", sections=shared) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    assert first != replace(first, key="other")
    text: object = PromptTemplate(ns="n", key="k", sections=shared)
    assert first != text


def test_replace_returns_a_validated_template() -> None:
    template = example()
    changed = replace(template, name="New", disclosure=Disclosure.OPEN)
    assert (changed.name, changed.disclosure, changed.sections) == (
        "New",
        Disclosure.OPEN,
        template.sections,
    )
    assert changed.output_type is Answer
    assert replace(template, sections=()).render().text == ""
    with pytest.raises(PromptValidationError):
        replace(template, ns="")
    with pytest.raises(PromptValidationError):
        replace(template, sections=(*template.sections, *template.sections))


def test_template_accepts_any_iterable_of_sections_and_keeps_a_tuple() -> None:
    built = list(example().sections)
    template = PromptTemplate(ns="n", key="k", sections=built)
    roots = template.sections
    built.clear()
    assert template.sections is roots
    assert len(roots) == 2


# --------------------------------------------------------------------------------------------------
# binding, rendering


@pytest.mark.claim("C-28", "PS-04")
def test_bind_creates_a_new_prompt_each_time() -> None:
    template = example()
    first, second = template.bind(Who("Ada")), template.bind()
    assert isinstance(first, Prompt)
    assert first is not second
    assert first.template is second.template is template
    assert "Hello Ada" in first.render().text
    assert "Hello Ada" not in second.render().text


def test_bind_takes_resources_as_well_as_params() -> None:
    with example().bind(Who("Ada"), resources={Who: Who("kept")}).resources as resources:
        assert resources.get(Who) == Who("kept")


@pytest.mark.claim("C-07")
def test_template_render_is_equivalent_to_prompt_render() -> None:
    template = example()
    visibility: dict[SectionPath, SectionVisibility] = {("greeting",): SectionVisibility.FULL}
    direct = template.render(Who("Bob"), visibility_overrides=visibility)
    assert direct.text == template.bind(Who("Bob")).render(visibility_overrides=visibility).text
    assert isinstance(direct.prompt, Prompt)
    assert direct.prompt.template is template


REFUNDS = MarkdownSection(
    title="Refunds",
    template="Refund.",
    summary="Refunds.",
    visibility=SectionVisibility.SUMMARY,
    tools=[Tool[Nothing, Nothing](name="refund")],
)


@pytest.mark.parametrize("choice", ["auto", "none", "required", "refund", "read_section"])
def test_tool_choice_of_a_template_can_be_a_tool_of_any_section(choice: str) -> None:
    settings = ModelSettings(tool_choice=choice)
    template = PromptTemplate(ns="n", key="k", sections=[REFUNDS], settings=settings)
    assert template.settings is settings


def test_tool_choice_that_no_section_has_is_rejected_with_the_nearest_tool() -> None:
    for choice, remedy in (
        ("refnd", "did you mean 'refund'?"),
        ("requird", "did you mean 'required'?"),
        ("x", "use one of auto, none, required, refund"),
    ):
        message = f"tool_choice {choice!r} is not a tool of the template; {remedy}"
        with pytest.raises(PromptValidationError, match=re.escape(message)):
            PromptTemplate(
                ns="n", key="k", sections=[REFUNDS], settings=ModelSettings(tool_choice=choice)
            )
