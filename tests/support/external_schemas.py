"""JSON Schemas as servers write them: from any draft or OpenAPI, valid and odd ones."""

import json
import re
from typing import Any

from hypothesis import strategies as st

from weakincentives.serde import JsonSchema

__all__ = ["external_schemas", "names", "values"]

LEAF_TYPES = ["string", "integer", "number", "boolean", "null"]
REFERENCES = [
    "#/$defs/one",
    "#/components/schemas/three",
    "#/definitions/two",
    "#",
    "#/properties/a",
    "#/$defs/none",
    "http://x",
]

names = st.sampled_from(["a", "b", "c", "$filter", "x" * 65])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "a", "b"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=3),
    max_leaves=5,
)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[JsonSchema]:
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.just("object"),
            "properties": st.dictionaries(names, inner, max_size=3),
            "required": st.lists(names, max_size=2, unique=True),
            "additionalProperties": st.booleans() | inner,
            "description": st.just("Words."),
            "title": st.just("Title"),
        },
    )


def _schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    unions = st.dictionaries(
        st.sampled_from(["anyOf", "oneOf", "allOf"]),
        st.lists(inner, min_size=1, max_size=2),
        min_size=1,
        max_size=1,
    )
    arrays = st.fixed_dictionaries({"type": st.just("array")}, optional={"items": inner})
    rare = st.fixed_dictionaries(
        {"type": st.just("object")},
        optional={
            "properties": st.dictionaries(names, inner, max_size=2),
            "additionalProperties": st.booleans(),
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b"]), inner, max_size=1),
            "propertyNames": inner,
            "not": inner,
            "if": inner,
            "then": inner,
            "dependentSchemas": st.dictionaries(names, inner, max_size=1),
            "dependentRequired": st.just({"a": ["b"]}),
            "contains": inner,
        },
    )
    nullable = st.fixed_dictionaries(
        {"type": st.just(["array", "null"])}, optional={"items": inner, "default": st.none()}
    )
    return _objects(inner) | arrays | unions | nullable | rare


leaves = st.one_of(
    st.booleans(),
    st.just({}),
    st.fixed_dictionaries(
        {"type": st.sampled_from(LEAF_TYPES)},
        optional={"default": st.just(1), "format": st.just("date"), "title": st.just("T")},
    ),
    st.just({"type": ["string", "null"], "enum": ["a", None], "description": "Words."}),
    st.just({"type": ["string", "integer", "null"]}),
    st.just({"const": "a"}),
    # OpenAPI 3.0 and older drafts
    st.just({"type": "string", "nullable": True, "enum": ["a", "b"], "example": "a"}),
    st.just({"nullable": True, "allOf": [{"$ref": "#/components/schemas/three"}]}),
    st.just({"type": "integer", "minimum": 0, "exclusiveMinimum": True}),
    st.just({"type": "array", "items": [{"type": "string"}], "additionalItems": False}),
    st.just({"type": "string", "discriminator": {"propertyName": "a"}, "xml": {}, "x-a": 1}),
    # enumerations
    st.just({"enum": [1, "a", None]}),
    st.just({"type": "string", "enum": ["a", "a", 3]}),
    st.just({"type": "string", "enum": []}),
    st.just({"enum": [1, 2.5, True], "default": 1}),
    # rules next to unions and references
    st.just({"type": "string", "anyOf": [{"minLength": 1}, {"enum": ["", "b"]}]}),
    st.just({"type": ["string", "array"], "anyOf": [{"type": "string"}, {"type": "array"}]}),
    st.just(
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        }
    ),
    st.just({"$ref": "#/$defs/one", "default": "a"}),
    st.just({"$ref": "#/definitions/two", "minLength": 1}),
    st.just({"type": "string", "pattern": "^(?!x)"}),
    st.builds(lambda reference: {"$ref": reference}, st.sampled_from(REFERENCES)),
    st.just({"$ref": "#/$defs/one", "description": "Words."}),
)
parts = st.recursive(leaves, _schemas, max_leaves=6)


@st.composite
def external_schemas(draw: st.DrawFn) -> JsonSchema:
    root = draw(_objects(parts))
    if draw(st.booleans()):
        root |= draw(_schemas(parts).filter(lambda part: part.get("type") in (None, "object")))
    if draw(st.booleans()):
        root["$id"] = "https://example.com/root"
    root |= {"$defs": {"one": draw(parts)}, "definitions": {"two": draw(parts)}}
    root["components"] = {"schemas": {"three": draw(parts), "unused": {"type": "integer"}}}
    is_newest = not re.search(r'"exclusiveMinimum": true|"items": \[', json.dumps(root))
    if is_newest and draw(st.booleans()):
        root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return root
