"""JSON schemas describe the dumped form, with descriptions and without titles."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

import jsonschema_rs
import pydantic
import pytest
from hypothesis import given

from support.typed_values import Colour, Level, applied, typed_values
from weakincentives.errors import SerdeError
from weakincentives.serde import JsonSchema, dump, json_schema, parse
from weakincentives.serde.json_schemas import walk_parts


@dataclass
class Item:
    """One line of an order."""

    name: str = field(metadata={"description": "What it is called"})
    count: Annotated[int, pydantic.Field(description="How many", ge=1)] = 1
    title: str = ""


@dataclass
class Order:
    items: list[Item]
    note: str | None = None


@dataclass
class Box[T]:
    content: T


@given(typed_values())
def test_dumped_value_satisfies_the_schema_of_its_type(typed: tuple[Any, Any]) -> None:
    of, value = typed
    schema = json_schema(of)
    jsonschema_rs.meta.validate(schema)
    jsonschema_rs.validate(schema, dump(value))


@pytest.mark.claim("TL-27")
def test_descriptions_reach_the_schema_from_metadata_and_annotations() -> None:
    properties = json_schema(Item)["properties"]
    assert properties["name"]["description"] == "What it is called"
    assert properties["count"]["description"] == "How many"


def test_schema_omits_titles_but_keeps_a_field_named_title() -> None:
    def titles(schema: object) -> Iterator[object]:
        match schema:
            case dict():
                yield from [schema["title"]] if "title" in schema else []
                for inner in schema.values():
                    yield from titles(inner)
            case list():
                for inner in schema:
                    yield from titles(inner)
            case _:
                pass

    schema = json_schema(Order)
    assert list(titles(schema)) == [{"type": "string", "default": ""}]
    assert schema["$defs"]["Item"]["properties"]["title"] == {"type": "string", "default": ""}


def test_schema_keeps_fields_and_examples_named_like_keywords() -> None:
    @dataclass
    class Odd:
        propertyNames: Literal[1, 2]  # noqa: N815 - as in JSON Schema
        default: Annotated[int, pydantic.Field(title="Gone")]
        like: Annotated[dict[str, str], pydantic.Field(examples=[{"title": "Kept"}])]

    properties = json_schema(Odd)["properties"]
    assert properties["propertyNames"] == {"enum": [1, 2], "type": "integer"}
    assert properties["default"] == {"type": "integer"}
    assert properties["like"]["examples"] == [{"title": "Kept"}]


@pytest.mark.parametrize("key", [Level, Colour, Literal["a"]], ids=str)
def test_mapping_keys_fit_the_schema(key: Any) -> None:
    of = applied(dict, key, int)
    value = dict.fromkeys(get_args(key) or key, 1)
    assert parse(of, dump(value)) == value
    jsonschema_rs.validate(json_schema(of), dump(value))
    assert ("propertyNames" in json_schema(of)) is (key in {Colour, Literal["a"]})


def test_schema_rejects_unknown_keys() -> None:
    schema = json_schema(Order)
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Item"]["additionalProperties"] is False


@pytest.mark.parametrize("of", [Callable[[int], int], list[Callable[[], int]], Box["Nowhere"]])  # type: ignore[name-defined]  # pyright: ignore[reportUndefinedVariable]
def test_type_without_a_schema_raises_serde_error(of: object) -> None:
    with pytest.raises(SerdeError) as caught:
        json_schema(of)
    [issue] = caught.value.issues
    assert "JSON" in issue.message


def test_walk_parts_visits_each_schema_once_and_skips_values() -> None:
    leaf: JsonSchema = {"type": "string", "default": {"properties": {"no": {"type": "schema"}}}}
    schema: JsonSchema = {
        "type": "object",
        "properties": {"items": {"type": "array", "items": {"anyOf": [leaf, {"$ref": "#"}]}}},
        "additionalProperties": False,
        "$defs": {"not": leaf},
    }
    items = schema["properties"]["items"]
    assert list(walk_parts(schema)) == [
        (schema, 0),
        (items, 1),
        (items["items"], 2),
        (leaf, 2),
        ({"$ref": "#"}, 2),
        (leaf, 1),
    ]
