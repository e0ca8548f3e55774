"""Generated arguments: the valid ones satisfy the schema, according to another library."""

from dataclasses import dataclass
from typing import Annotated, Any

import jsonschema_rs
import pydantic
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from support.typed_values import Kind, Tree, dataclass_kinds
from weakincentives import serde
from weakincentives.testing.arguments import argument_strategies

type Json = Any  # JSON of any shape


def fitting(schema: Json) -> st.SearchStrategy[Json]:
    return argument_strategies(schema)[0]


@dataclass(frozen=True)
class Limits:
    whole: Annotated[int, pydantic.Field(gt=2, lt=20, multiple_of=5)]
    part: Annotated[float, pydantic.Field(ge=-1, lt=0)]
    step: Annotated[float, pydantic.Field(gt=0, le=2, multiple_of=0.5)]
    text: Annotated[str, pydantic.Field(min_length=1, max_length=3)]
    code: Annotated[str, pydantic.Field(pattern="^[a-z]+$", max_length=4)]
    rows: Annotated[list[tuple[int, str]], pydantic.Field(min_length=1, max_length=3)]
    tags: Annotated[set[int], pydantic.Field(min_length=2)]
    map: Annotated[dict[str, bool], pydantic.Field(min_length=1, max_length=2)]


def contains_null(value: Json) -> bool:
    match value:
        case dict():
            return any(map(contains_null, value.values()))
        case list():
            return any(map(contains_null, value))
        case _:
            return value is None


@given(dataclass_kinds(), st.data())
@settings(max_examples=40)
def test_fitting_arguments_satisfy_the_schema_of_any_params_type(
    kind: Kind, data: st.DataObject
) -> None:
    schema = serde.json_schema(kind.of)
    value = data.draw(fitting(schema))
    # a null can represent an absent field
    assert contains_null(value) or jsonschema_rs.is_valid(schema, value)


@given(fitting(serde.json_schema(Limits)))
@settings(max_examples=40)
def test_fitting_arguments_satisfy_every_field_constraint(value: Json) -> None:
    jsonschema_rs.validate(serde.json_schema(Limits), value)
    assert isinstance(serde.parse(Limits, value), Limits)


def test_fitting_text_contains_no_surrogates() -> None:
    line_schema = {
        "type": "object",
        "properties": {"text": {"type": "string"}},
        "required": ["text"],
    }
    often = settings(max_examples=2_000, derandomize=True, database=None)
    with pytest.raises(NoSuchExample):
        find(
            fitting(line_schema),
            lambda line: "\ud7ff" < max(line["text"], default="") < "\ue000",
            settings=often,
        )


def test_recursive_type_generates_values_of_several_levels() -> None:
    deep = find(
        fitting(serde.json_schema(Tree)),
        lambda tree: any(child["children"] for child in tree["children"]),
        settings=settings(derandomize=True, database=None),
    )
    assert deep == {
        "children": [{"children": [{"children": [], "name": ""}], "name": ""}],
        "name": "",
    }


def test_misfits_contain_typical_mistakes_of_models() -> None:
    schema = serde.json_schema(Limits)
    _, invalid = argument_strategies(schema)
    values: list[Json] = []

    @settings(max_examples=300, derandomize=True, database=None)
    @given(invalid)
    def collect(value: Json) -> None:
        values.append(value)

    collect()
    names = schema["properties"].keys()
    assert any("no_such_param" in value for value in values)
    assert any(len(value.keys() & names) == len(names) - 1 for value in values)
    assert any(isinstance(value.get("text", ""), list) for value in values)
