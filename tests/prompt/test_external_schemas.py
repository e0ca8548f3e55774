"""External schemas as sent to providers: nothing that they reject, and without losses."""

import json
from math import inf, nan
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
from weakincentives.prompt.external_schemas import to_provider_form, upgrade_dialect
from weakincentives.serde import JsonSchema


def spec_of(parameters: JsonSchema | None) -> Sent:
    tool = Tool.from_schema(name="t", description="T.", parameters=parameters, handler=ok)
    return sent_tool(tool)


@given(external_schemas())
def test_external_schema_is_sent_in_a_form_that_every_provider_accepts(schema: JsonSchema) -> None:
    spec = spec_of(schema)
    check_plain(spec.plain)
    (check_root if spec.strict else check_plain)(spec.parameters)


@given(external_schemas())
def test_to_provider_form_is_idempotent(schema: JsonSchema) -> None:
    form = to_provider_form(schema)
    assert to_provider_form(form) == form


@given(external_schemas(), st.dictionaries(names, values, max_size=3))
@example({"type": "object", "additionalProperties": False, "patternProperties": {}}, {"a": None})
def test_sent_schema_accepts_everything_that_the_external_schema_accepts(
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
def test_underspecified_schema_is_sent_as_a_non_strict_object(
    parameters: JsonSchema | None,
) -> None:
    spec = spec_of(parameters)
    assert not spec.strict
    check_plain(spec.parameters)


@pytest.mark.parametrize(
    "broken", [{"properties": []}, {"properties": {"a": {"$ref": 3}}}, {"anyOf": 3}, {"type": 3}]
)
def test_invalid_schema_is_sent_as_an_open_object_and_rejects_every_call(
    broken: JsonSchema,
) -> None:
    parameters = {"type": "object", **broken} if "type" not in broken else broken
    tool = Tool.from_schema(
        name="t", description="T.", parameters=parameters, handler=ok, check_schema=False
    )
    check_plain(sent_tool(tool).parameters)
    with pytest.raises(SerdeError):
        tool.parse_params("{}")


def test_tool_without_params_is_strict() -> None:
    spec = spec_of({"type": "object", "properties": {}})
    assert spec.strict
    check_root(spec.parameters)


def test_optional_property_is_nullable_and_its_default_is_described() -> None:
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


def test_recursive_and_property_references_become_definitions() -> None:
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


def test_union_at_the_root_moves_into_the_description() -> None:
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


@pytest.mark.parametrize(
    ("schema", "text"), [({"type": "integer"}, '{"type": "integer"}'), (True, "true")]
)
def test_property_with_an_unsupported_name_moves_into_the_description(
    schema: JsonSchema | bool, text: str
) -> None:
    spec = spec_of({"type": "object", "properties": {"$top": schema}})
    check_plain(spec.parameters)
    assert spec.parameters["properties"] == {}
    assert spec.parameters["description"] == f'It also fits {{"properties": {{"$top": {text}}}}}'


def test_required_lists_only_names_that_providers_accept() -> None:
    names = {"$top": {"type": "integer"}, "a": {"type": "string"}}
    spec = spec_of({"type": "object", "properties": names, "required": ["$top", "a"]})
    assert spec.parameters["required"] == ["a"]
    assert spec.parameters["additionalProperties"] is True
    assert list(spec.parameters["properties"]) == ["a"]


def test_unsupported_keyword_moves_into_the_description_of_its_property() -> None:
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
def test_schema_beyond_the_strict_limits_is_sent_as_non_strict(wide: JsonSchema) -> None:
    spec = spec_of({"type": "object", "properties": {"a": wide}})
    assert not spec.strict
    check_plain(spec.parameters)


def test_schema_of_more_than_ten_levels_is_sent_as_non_strict() -> None:
    schema: JsonSchema = {"type": "string"}
    strict: list[bool] = []
    for _ in range(12):
        schema = {"type": "object", "properties": {"a": schema}}
        spec = spec_of(schema)
        strict.append(spec.strict)
        (check_root if spec.strict else check_plain)(spec.parameters)
    assert strict[0]
    assert not strict[-1]


DEFINITIONS: JsonSchema = {
    "w": {"type": "string"},
    "o": {"type": "object", "properties": {"y": {"type": "integer"}}, "required": ["y"]},
    "a/b c": {"items": [{}, {"type": "boolean"}]},
}
# the schema of a property, and its form
FORMS: dict[str, tuple[JsonSchema | bool, JsonSchema]] = {
    "enum of several types": (
        {"enum": ["x", 1, 1.5, True, None]},
        {
            "anyOf": [
                {"type": "string", "enum": ["x"]},
                {"type": "number", "enum": [1, 1.5]},
                {"type": "boolean", "enum": [True]},
                {"type": "null"},
            ]
        },
    ),
    "constant object": (
        {"const": {"k": 1}},
        {"const": {"k": 1}, "type": "object", "additionalProperties": True, "properties": {}},
    ),
    "constant of another type": (
        {"type": "string", "const": 3},
        {"type": "string", "description": 'It also fits {"const": 3}'},
    ),
    "equal values": (
        {"type": "integer", "enum": [1, 1, 1.0, True, 2]},
        {"type": "integer", "enum": [1, 1.0, 2]},
    ),
    "numbers": ({"enum": [1, 2.5]}, {"enum": [1, 2.5], "type": "number"}),
    "enum with null": (
        {"type": ["string", "null"], "enum": ["a", None]},
        {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]},
    ),
    "infinite bound": (
        {"type": "number", "maximum": inf, "minimum": 0},
        {"type": "number", "minimum": 0, "description": "maximum: Infinity"},
    ),
    "NaN in a default": (
        {"type": "array", "default": [{"a": nan}]},
        {"type": "array", "items": {}, "description": 'default: [{"a": NaN}]'},
    ),
    "oneOf": (
        {"oneOf": [{"type": "string"}, {"type": "integer"}], "description": "D."},
        {"description": "D.", "anyOf": [{"type": "string"}, {"type": "integer"}]},
    ),
    "oneOf and anyOf": (
        {"oneOf": [{"minLength": 1}], "anyOf": [{"type": "string"}]},
        {
            "anyOf": [{"type": "string"}],
            "description": 'It also fits {"anyOf": [{"minLength": 1}]}',
        },
    ),
    "allOf of one": ({"allOf": [{"type": "string"}]}, {"anyOf": [{"type": "string"}]}),
    "types of members": (
        {"type": ["string", "null"], "anyOf": [{"minLength": 1}, {"type": "null"}, True]},
        {
            "anyOf": [
                {"anyOf": [{"type": "string", "minLength": 1}, {"type": "null"}]},
                {"type": "null"},
                {},
            ]
        },
    ),
    "union of objects": (
        {"type": "object", "properties": {"b": {}}, "anyOf": [{"required": ["b"]}]},
        {
            "type": "object",
            "properties": {"b": {}},
            "additionalProperties": True,
            "description": 'It also fits {"anyOf": [{"required": ["b"]}]}',
        },
    ),
    "not": (
        {"type": "string", "not": {"const": ""}},
        {"type": "string", "description": 'It also fits {"not": {"const": ""}}'},
    ),
    "reference with text": (
        {"$ref": "#/$defs/w", "description": "D.", "examples": ["e"]},
        {"description": 'D. (examples: ["e"])', "anyOf": [{"$ref": "#/$defs/w"}]},
    ),
    "reference with a rule": (
        {"$ref": "#/$defs/w", "minLength": 3},
        {"anyOf": [{"$ref": "#/$defs/w"}], "description": 'It also fits {"minLength": 3}'},
    ),
    "tuple of draft 7": (
        {"items": [{"type": "string"}], "additionalItems": False},
        {"prefixItems": [{"type": "string"}], "items": {}},
    ),
    "nullable enum": (
        {"type": "string", "nullable": True, "enum": ["a"]},
        {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]},
    ),
    "nullable reference": (
        {"$ref": "#/$defs/w", "nullable": True, "description": "D."},
        {"anyOf": [{"$ref": "#/$defs/w"}, {"type": "null"}], "description": "D."},
    ),
    "example": (
        {"type": "string", "example": "e"},
        {"type": "string", "description": 'examples: ["e"]'},
    ),
    "names that providers reject": (
        {
            "type": "object",
            "properties": {"a b": {"type": "string"}, "c": {}},
            "required": ["a b", "d", "d"],
        },
        {
            "type": "object",
            "properties": {"c": {}, "d": {}},
            "required": ["d"],
            "additionalProperties": True,
            "description": 'It also fits {"properties": {"a b": {"type": "string"}}, '
            '"required": ["a b"]}',
        },
    ),
    "values of an object": (
        {"type": "object", "additionalProperties": {"type": ["integer", "null"]}},
        {
            "type": "object",
            "additionalProperties": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "properties": {},
        },
    ),
    "true": (True, {}),
    "merged objects": (
        {
            "allOf": [
                {"properties": {"x": {"type": "string"}}, "required": ["x"]},
                {"$ref": "#/$defs/o"},
            ]
        },
        {
            "type": "object",
            "properties": {"x": {"type": "string"}, "y": {"type": "integer"}},
            "required": ["x", "y"],
        },
    ),
    "objects with a common property": (
        {"allOf": [{"properties": {"y": {"type": "string"}}}, {"$ref": "#/$defs/o"}]},
        {"allOf": [{"properties": {"y": {"type": "string"}}}, {"$ref": "#/$defs/o"}]},
    ),
    "objects with another rule": (
        {"allOf": [{"properties": {"x": {}}, "minProperties": 1}, {"$ref": "#/$defs/o"}]},
        {"allOf": [{"properties": {"x": {}}, "minProperties": 1}, {"$ref": "#/$defs/o"}]},
    ),
    "escaped pointer": ({"$ref": "#/$defs/a~1b%20c/items/1"}, {"$ref": "#/$defs/1"}),
    "reference to nothing": ({"$ref": "#/$defs/none"}, {"$ref": "#/$defs/none"}),
    "array": ({"type": "array"}, {"type": "array", "items": {}}),
    "exclusive bounds of draft 4": (
        {
            "type": "number",
            "minimum": 1,
            "exclusiveMinimum": True,
            "exclusiveMaximum": False,
            "maximum": 5,
        },
        {"type": "number", "maximum": 5, "exclusiveMinimum": 1},
    ),
}


@pytest.mark.parametrize(("schema", "form"), FORMS.values(), ids=FORMS)
def test_provider_form_of_a_property(schema: JsonSchema | bool, form: JsonSchema) -> None:
    whole: JsonSchema = {"type": "object", "properties": {"a": schema}, "$defs": DEFINITIONS}
    # as JSON, which distinguishes 1, 1.0 and true
    assert json.dumps(to_provider_form(whole)["properties"]["a"]) == json.dumps(form)


@pytest.mark.parametrize(
    ("schema", "form"),
    [
        (
            {"properties": {"a": {"$ref": "#/$defs/w"}, "b": {"$ref": "#/$defs/w"}}},
            {
                "properties": {"a": {"$ref": "#/$defs/w"}, "b": {"$ref": "#/$defs/w"}},
                "$defs": {"w": {"type": "string"}},
            },
        ),
        (
            {"properties": {"a": {"$ref": "#/$defs/w"}, "b": {"$ref": "#/definitions/w"}}},
            {
                "properties": {"a": {"$ref": "#/$defs/w"}, "b": {"$ref": "#/$defs/w_"}},
                "$defs": {"w": {"type": "string"}, "w_": {"type": "null"}},
            },
        ),
        (
            {
                "$id": "http://x/s.json#",
                "properties": {"a": {"$ref": "http://x/s.json#/$defs/a~1b%20c/items/1"}},
            },
            {
                "properties": {"a": {"$ref": "#/$defs/1"}},
                "$defs": {"1": {"type": "boolean"}},
            },
        ),
        (
            {
                "$id": "http://x/s.json#",
                "properties": {"a": {"$ref": "other.json#/$defs/w"}},
            },
            {"properties": {"a": {"$ref": "#/$defs/w"}}, "$defs": {"w": {}}},
        ),
        ({"$ref": "#/$defs/o"}, {"properties": {"y": {"type": "integer"}}, "required": ["y"]}),
    ],
    ids=["shared", "two of one name", "pointer", "another document", "root"],
)
def test_provider_form_keeps_the_definitions_that_it_refers_to(
    schema: JsonSchema, form: JsonSchema
) -> None:
    whole = {**schema, "$defs": DEFINITIONS, "definitions": {"w": {"type": "null"}}}
    assert to_provider_form(whole) == {"type": "object", **form}


def test_provider_form_of_a_union_at_the_root_admits_other_properties() -> None:
    union = {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    assert to_provider_form({**union, "properties": {"a": {}, "b": {}}}) == {
        "type": "object",
        "properties": {"a": {}, "b": {}},
        "additionalProperties": True,
        "description": f"It also fits {json.dumps(union)}",
    }


def test_descriptions_replace_those_of_properties_that_exist() -> None:
    form = to_provider_form({"properties": {"a": True}}, {"a": "D.", "z": "Z."})
    assert form == {"type": "object", "properties": {"a": {"description": "D."}}}


def test_parts_deeper_than_40_levels_admit_anything() -> None:
    part: JsonSchema = {"type": "string"}
    for _ in range(45):
        part = {"type": "array", "items": part}
    form = to_provider_form({"properties": {"a": part}})["properties"]["a"]
    depth = 0
    while "items" in form:
        form, depth = form["items"], depth + 1
    assert (depth, form) == (40, {})


@pytest.mark.parametrize(
    ("schema", "upgraded"),
    [
        ({"nullable": True, "type": "string"}, {"type": ["string", "null"]}),
        ({"$schema": "draft", "nullable": True}, {"$schema": "draft", "nullable": True}),
        ({"properties": {"a": {"items": [True]}}}, {"properties": {"a": {"prefixItems": [True]}}}),
        (
            {"components": {"x": 1, "schemas": {"A": {"example": 1}}}},
            {"components": {"x": 1, "schemas": {"A": {"examples": [1]}}}},
        ),
        ({"components": 3}, {"components": 3}),
        (True, True),
    ],
)
def test_older_dialects_are_upgraded(schema: Any, upgraded: Any) -> None:
    assert upgrade_dialect(schema) == upgraded
