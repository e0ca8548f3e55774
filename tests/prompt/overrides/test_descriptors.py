"""Everything that an author can see is hashed: equal content has equal hashes in every process, and
different content has different hashes.
"""

import os
import subprocess
import sys
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives import serde
from weakincentives.prompt import (
    MarkdownSection,
    PromptTemplate,
    PromptValidationError,
    Section,
    SectionPath,
    TaskExample,
    TaskExamplesSection,
    Tool,
    ToolExample,
)
from weakincentives.prompt.overrides import (
    PromptDescriptor,
    SectionOverride,
    TaskExampleOverride,
    TextId,
)
from weakincentives.prompt.overrides.descriptors import param_texts
from weakincentives.prompt.overrides.model import texts_of


@dataclass(frozen=True)
class Search:
    query: str = field(default="", metadata={"description": "What to find."})
    limit: int = 3


@dataclass(frozen=True)
class Node:
    """A type that contains itself, so that its schema is behind a reference."""

    children: "tuple[Node, ...]" = field(default=(), metadata={"description": "Below it."})


def describe(
    body: str = "Body.",
    summary: str | None = None,
    *,
    params: type[Any] = Search,
    description: str = "Finds.",
    example: str = "Cats",
    objective: str = "Do it",
) -> PromptDescriptor:
    tool = Tool[Any, Any](
        name="search",
        description=description,
        params_type=params,
        result_type=object,
        examples=[ToolExample(example, params(), None)],
    )
    roots: list[Section[Any]] = [
        MarkdownSection(title="Task", template=body, summary=summary, tools=[tool]),
        TaskExamplesSection(examples=[TaskExample(objective=objective)]),
    ]
    return PromptTemplate(ns="tests", key="hashes", sections=roots).descriptor


def hashes(descriptor: PromptDescriptor) -> tuple[str, str, str, str, str]:
    """Returns the hashes of the section, tool, tool example, task example and whole prompt."""
    tool_example, task_example = (
        TextId("tool-example", "search#0"),
        TextId("task-example", "examples#0"),
    )
    texts = descriptor.texts
    examples = texts[tool_example].hash, texts[task_example].hash
    section, tool = descriptor.sections[0], descriptor.tools[0]
    return (section.content_hash, tool.contract_hash, *examples, descriptor.hash)


@pytest.mark.claim("PS-35")
@pytest.mark.parametrize(
    ("changes", "indexes"),
    [
        ({}, []),
        ({"body": "Another."}, [0, 4]),
        ({"summary": "Short."}, [0, 4]),
        ({"description": "Seeks."}, [1, 4]),
        ({"params": make_dataclass("Search", [("query", str, "")], frozen=True)}, [1, 2, 4]),
        ({"example": "Dogs"}, [2, 4]),
        ({"objective": "Leave it"}, [3, 4]),
    ],
)
def test_change_affects_only_the_hash_of_its_part_and_of_the_prompt(
    changes: dict[str, Any], indexes: list[int]
) -> None:
    pairs = zip(hashes(describe()), hashes(describe(**changes)), strict=True)
    assert [index for index, (before, after) in enumerate(pairs) if before != after] == indexes


def test_task_examples_section_hash_depends_on_its_examples() -> None:
    assert (
        describe().sections[1].content_hash
        != describe(objective="Leave it").sections[1].content_hash
    )


def test_descriptor_is_created_once_per_template() -> None:
    template = PromptTemplate(
        ns="tests", key="once", sections=[MarkdownSection(title="A", template="a")]
    )
    assert template.bind().descriptor is template.descriptor
    assert template.render().descriptor is template.descriptor
    assert template.renderer.render(param_lookup={}).descriptor is None


# Any: types and values of all forms.
DEFAULTS: dict[Any, Any] = {int: 3, str: "x", bool: True, float: 0.5}
TYPES: st.SearchStrategy[Any] = st.sampled_from((*DEFAULTS, list[str], dict[str, int], int | None))


@st.composite
def params_types(draw: st.DrawFn) -> type[Any]:
    """Draws a params type with a few fields, from so small a space that two are often equal."""
    fields: list[tuple[str, Any, Any]] = []
    for name in draw(st.sampled_from((["a"], ["a", "b"], ["b", "a"]))):
        kind = draw(TYPES)
        metadata: dict[str, str] = draw(st.sampled_from(({}, {"description": "Why."})))
        default: dict[str, Any] = (
            {"default": DEFAULTS[kind]} if kind in DEFAULTS and draw(st.booleans()) else {}
        )
        fields.append((name, kind, field(**default, metadata=metadata, kw_only=True)))
    return make_dataclass("Params", fields, frozen=True)


@pytest.mark.claim("PS-35")
@given(params_types(), params_types())
def test_contracts_are_equal_exactly_when_the_schemas_are(a: type[Any], b: type[Any]) -> None:
    # L6: JSON round-trips
    assert (contract(a) == contract(b)) == (serde.json_schema(a) == serde.json_schema(b))


def contract(params: type[Any]) -> str:
    tool = Tool[Any, Any](name="tool", params_type=params, result_type=object)
    section = MarkdownSection(title="A", template="a", tools=[tool])
    template = PromptTemplate(ns="tests", key="contract", sections=[section])
    return template.descriptor.tools[0].contract_hash


PROGRAM = """
from dataclasses import dataclass
from weakincentives import MarkdownSection, PromptTemplate, Tool
@dataclass(frozen=True)
class Params:
    tags: frozenset[str] = frozenset({"a", "b", "c"})
    scores: dict[str, int] | None = None
tool = Tool(name="tool", params_type=Params, result_type=object)
section = MarkdownSection[Params](title="A", template="$tags", summary="s", tools=[tool])
print(PromptTemplate(ns="tests", key="stable", sections=[section]).descriptor.hash)
"""


def test_hashes_are_the_same_in_every_process() -> None:
    # L6: JSON round-trips
    here = Path(__file__).parents[3] / "src"
    hashes = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(here)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert len(hashes) == 1


def test_param_descriptions_are_found_through_references() -> None:
    tool = Tool[Any, Any](name="tree", params_type=Node, result_type=object)
    assert param_texts(tool) == {"children": "Below it."}


@pytest.mark.parametrize("text", ["$query", "${query} and $$5", "plain"])
def test_override_can_use_the_params_of_its_section(text: str) -> None:
    templated().descriptor.check(TextId("body", "a"), text)


@pytest.mark.parametrize(
    ("text", "placeholder"), [("$nobody", "$nobody"), ("$", "$"), ("$1 off", "$"), ("${a b}", "$")]
)
@pytest.mark.parametrize("kind", ["body", "summary"])
def test_override_with_unknown_or_invalid_placeholder_is_rejected(
    kind: Any, text: str, placeholder: str
) -> None:
    remedy = r"'\$\$' for a dollar sign" if placeholder == "$" else r"limit, query"
    with pytest.raises(PromptValidationError, match=remedy) as caught:
        templated().descriptor.check(TextId(kind, "a"), text)
    assert (caught.value.section_path, caught.value.placeholder) == (("a",), placeholder)


def test_dollar_signs_are_literal_in_examples_and_descriptions() -> None:
    for text_id in (
        TextId("tool", "search"),
        TextId("param", "search.query"),
        TextId("tool-example", "search#0"),
    ):
        describe().check(text_id, "It costs $5")


def test_description_override_longer_than_the_tool_limit_is_rejected() -> None:
    with pytest.raises(PromptValidationError, match=r"'search'.* characters, got 1025"):
        describe().check(TextId("tool", "search"), "x" * 1025)


def templated() -> PromptTemplate[Any]:
    return PromptTemplate(
        ns="tests", key="t", sections=[MarkdownSection[Search](title="A", template="$query")]
    )


class Written(Section[None]):
    def render_body(self, params: None, *, path: SectionPath) -> str:
        return "By code."


class Wrapped(MarkdownSection[Search]):
    def render_body(self, params: Search, *, path: SectionPath) -> str:
        return f"({super().render_body(params, path=path)})"


@pytest.mark.parametrize("section", [Written(title="A"), Wrapped(title="A", template="text")])
def test_body_generated_by_code_has_no_text_to_seed(section: Section[Any]) -> None:
    template = PromptTemplate(ns="tests", key="code", sections=[section])
    assert template.descriptor.texts[TextId("body", "a")].text == ""


def test_descriptor_lists_every_text_of_sections_and_tools() -> None:
    expected = {
        *(TextId(kind, key) for kind in ("body", "summary") for key in ("task", "examples")),
        *(TextId("param", f"search.{param.name}") for param in fields(Search)),
        *(
            TextId("tool", "search"),
            TextId("tool-example", "search#0"),
            TextId("task-example", "examples#0"),
        ),
    }
    assert describe().texts.keys() == expected


def test_override_path_given_as_a_string_is_rejected() -> None:
    path: Any = "deep"  # as passed by a caller without a type checker
    for override in (
        SectionOverride(path=path, body="B."),
        TaskExampleOverride(path=path, position=0, text="T."),
    ):
        with pytest.raises(
            PromptValidationError, match="path must be a tuple of keys, got a string"
        ):
            texts_of(override)
