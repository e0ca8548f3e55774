"""What providers are sent of schemas that others wrote: nothing that they refuse, nothing lost."""

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from support.agents import ok
from support.external_schemas import external_schemas, names, values
from support.provider_rules import check_plain, check_root
from support.sent_schemas import Sent, sent_tool
from weakincentives.errors import SerdeError
from weakincentives.prompt import Tool
from weakincentives.prompt.external_schemas import to_provider_form
from weakincentives.serde import JsonSchema


def spec_of(parameters: JsonSchema | None) -> Sent:
    tool = Tool.from_schema(name="t", description="T.", parameters=parameters, handler=ok)
    return sent_tool(tool)


@given(external_schemas())
def test_no_provider_refuses_the_schema_of_a_foreign_tool(schema: JsonSchema) -> None:
    spec = spec_of(schema)
    check_plain(spec.plain)
    (check_root if spec.strict else check_plain)(spec.parameters)


@given(external_schemas())
def test_form_of_a_form_is_the_same(schema: JsonSchema) -> None:
    form = to_provider_form(schema)
    assert to_provider_form(form) == form


@given(external_schemas(), st.dictionaries(names, values, max_size=3))
@example({"type": "object", "additionalProperties": False, "patternProperties": {}}, {"a": None})
def test_what_is_sent_admits_all_that_the_foreign_schema_admits(
    schema: JsonSchema, arguments: dict[str, Any]
) -> None:
    tool = Tool.from_schema(name="t", description="T.", parameters=schema, handler=ok)
    try:
        parsed = tool.parse_params(json.dumps(arguments))
    except SerdeError:
        parsed = None
    assume(parsed == arguments)
    jsonschema_rs.validate(sent_tool(tool).plain, arguments)


@pytest.mark.parametrize(
    "parameters",
    [
        None,
        {},
        {"type": "object"},
        {"type": ["object", "null"]},
        {"$ref": "#/$defs/root", "$defs": {"root": {"type": "object"}}},
        {"$ref": "#"},
        {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"type": "object", "properties": {"a": {"type": "array"}, "b": True}},
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "properties": {"rows": {"type": "array", "items": [{}, False]}},
        },
    ],
)
def test_a_schema_that_says_little_is_offered_as_an_object(parameters: JsonSchema | None) -> None:
    spec = spec_of(parameters)
    assert not spec.strict
    check_plain(spec.parameters)


@pytest.mark.parametrize(
    "broken", [{"properties": []}, {"properties": {"a": {"$ref": 3}}}, {"anyOf": 3}, {"type": 3}]
)
def test_what_is_no_schema_is_offered_as_an_open_object_and_refuses_every_call(
    broken: JsonSchema,
) -> None:
    parameters = {"type": "object", **broken} if "type" not in broken else broken
    tool = Tool.from_schema(
        name="t", description="T.", parameters=parameters, handler=ok, check_schema=False
    )
    check_plain(sent_tool(tool).parameters)
    with pytest.raises(SerdeError):
        tool.parse_params("{}")


def test_a_tool_without_params_is_strict() -> None:
    spec = spec_of({"type": "object", "properties": {}})
    assert spec.strict
    check_root(spec.parameters)


def test_optional_properties_may_be_null_and_their_default_stands_in_words() -> None:
    spec = spec_of(
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {
                "path": {"type": "string", "title": "Path"},
                "depth": {"type": "integer", "default": 1, "description": "How deep."},
                "kind": {"type": ["string", "null"], "enum": ["a", None]},
                "filter": {"oneOf": [{"$ref": "#/definitions/word"}, {"type": "null"}]},
            },
            "required": ["path"],
            "definitions": {"word": {"type": "string", "minLength": 1}},
        }
    )
    assert spec.strict
    check_root(spec.parameters)
    assert spec.parameters == {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "depth": {
                "anyOf": [{"type": "integer"}, {"type": "null"}],
                "description": "How deep. (default: 1)",
            },
            "kind": {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]},
            "filter": {"anyOf": [{"$ref": "#/$defs/word"}, {"type": "null"}]},
        },
        "required": ["path", "depth", "kind", "filter"],
        "additionalProperties": False,
        "$defs": {"word": {"type": "string", "description": "minimum length: 1"}},
    }


def test_recursion_and_references_into_properties_become_definitions() -> None:
    spec = spec_of(
        {
            "type": "object",
            "properties": {
                "tree": {
                    "type": "object",
                    "properties": {"child": {"$ref": "#/properties/tree"}},
                    "additionalProperties": False,
                },
                "again": {"$ref": "#"},
            },
            "additionalProperties": False,
        }
    )
    assert spec.strict
    check_root(spec.parameters)
    assert spec.parameters["$defs"].keys() == {"tree", "_"}


def test_a_union_at_the_root_moves_into_the_description() -> None:
    spec = spec_of(
        {
            "type": "object",
            "properties": {"a": {"type": "string"}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
            "description": "Words.",
        }
    )
    check_plain(spec.parameters)
    assert spec.parameters["description"] == (
        'Words.\nIt also fits {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}'
    )


def test_a_property_whose_name_a_provider_refuses_stands_in_words() -> None:
    spec = spec_of({"type": "object", "properties": {"$top": {"type": "integer"}}})
    check_plain(spec.parameters)
    assert spec.parameters["properties"] == {}
    assert spec.parameters["description"] == (
        'It also fits {"properties": {"$top": {"type": "integer"}}}'
    )


def test_required_names_are_those_that_a_provider_accepts() -> None:
    names = {"$top": {"type": "integer"}, "a": {"type": "string"}}
    spec = spec_of({"type": "object", "properties": names, "required": ["$top", "a"]})
    assert spec.parameters["required"] == ["a"]
    assert spec.parameters["additionalProperties"] is True
    assert list(spec.parameters["properties"]) == ["a"]


def test_a_rule_that_few_decoders_know_stands_in_words_at_its_part() -> None:
    part = {"type": "string", "not": {"const": "ä"}, "description": "Words."}
    spec = spec_of({"type": "object", "properties": {"a": part}, "required": ["a"]})
    assert spec.parameters["properties"] == {
        "a": {"type": "string", "description": 'Words.\nIt also fits {"not": {"const": "ä"}}'}
    }


@pytest.mark.parametrize(
    "wide",
    [
        {"enum": [f"value-{index}" for index in range(1_001)]},
        {"enum": ["x" * 1_000 + f"{index}" for index in range(20)]},
        {"type": "object", "properties": {f"p{index}": {"type": "null"} for index in range(5_001)}},
    ],
)
def test_a_schema_beyond_the_limits_of_strict_is_sent_plainly(wide: JsonSchema) -> None:
    spec = spec_of({"type": "object", "properties": {"a": wide}})
    assert not spec.strict
    check_plain(spec.parameters)


def test_a_schema_of_more_than_ten_levels_is_sent_plainly() -> None:
    schema: JsonSchema = {"type": "string"}
    strict: list[bool] = []
    for _ in range(12):
        schema = {"type": "object", "properties": {"a": schema}}
        spec = spec_of(schema)
        strict.append(spec.strict)
        (check_root if spec.strict else check_plain)(spec.parameters)
    assert strict[0]
    assert not strict[-1]
