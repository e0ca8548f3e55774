"""What a model may send: values that fit satisfy the schema, as another library judges; texts
beside them.
"""

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
from weakincentives.testing.arguments import fitting, misfitting

# Any: JSON of every shape.


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


def holds_null(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return value is None or any(map(holds_null, inner))


@given(dataclass_kinds(), st.data())
@settings(max_examples=40)
def test_a_value_satisfies_the_schema_of_any_params_type(kind: Kind, data: st.DataObject) -> None:
    schema = serde.json_schema(kind.of)
    value = data.draw(fitting(schema))
    # a null can stand for what is left out
    assert holds_null(value) or jsonschema_rs.is_valid(schema, value)


@given(fitting(serde.json_schema(Limits)))
@settings(max_examples=40)
def test_a_value_keeps_to_every_limit_of_a_field(value: Any) -> None:
    jsonschema_rs.validate(serde.json_schema(Limits), value)
    assert isinstance(serde.parse(Limits, value), Limits)


def test_a_text_that_fits_holds_no_half_character() -> None:
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


def test_a_type_that_holds_itself_has_values_on_several_levels() -> None:
    schema = serde.json_schema(Tree)
    root = {**schema["$defs"]["Tree"], "$defs": schema["$defs"]}
    same = settings(derandomize=True, database=None)
    deep = find(
        fitting(root), lambda tree: any(one["children"] for one in tree["children"]), settings=same
    )
    assert deep == {
        "children": [{"children": [{"children": [], "name": ""}], "name": ""}],
        "name": "",
    }


def test_among_what_does_not_fit_is_what_models_get_wrong() -> None:
    schema = serde.json_schema(Limits)
    found: list[Any] = []

    @settings(max_examples=300, derandomize=True, database=None)
    @given(misfitting(fitting(schema), schema))
    def collect(value: Any) -> None:
        found.append(value)

    collect()
    assert any("no_such_param" in one for one in found)
    assert any(
        len(one.keys() & schema["properties"]) == len(schema["properties"]) - 1 for one in found
    )
    assert any(isinstance(one.get("text", ""), list) for one in found)
