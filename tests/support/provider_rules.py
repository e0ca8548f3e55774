"""Checks for the schemas of tools: OpenAI's documented rules, strict and not, and Anthropic's rules
for schemas without its strict mode.

Sources: the guide on structured outputs of February 2026 (supported schemas), and the error
messages with which both APIs reject a schema that breaks a rule.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

from weakincentives.serde.validation import check_schema

__all__ = ["check_openai_tool", "check_plain", "check_root"]

# Any: schemas are read key by key.
type Schema = dict[str, Any]

KEYWORDS = {
    *("type", "properties", "required", "additionalProperties", "items", "enum", "anyOf", "$ref"),
    *("$defs", "description", "pattern", "format", "multipleOf", "minItems", "maxItems"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}
TYPES = {"string", "number", "integer", "boolean", "object", "array", "null"}
FORMATS = {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
NOT_AT_ROOT = {"oneOf", "anyOf", "allOf", "enum", "not"}


def check_profile(schema: Schema, definitions: Schema) -> None:
    """Fails for everything that OpenAI's strict decoder rejects."""
    assert schema.keys() <= KEYWORDS, schema
    assert schema.get("format") in {None, *FORMATS}
    assert schema.get("type") in {None, *TYPES}
    assert {"type", "anyOf", "$ref", "enum"} & schema.keys(), "anything goes"
    assert not re.search(r"\(\?<?[=!]", schema.get("pattern", "")), "look-around"
    if "$ref" in schema:
        assert list(schema) == ["$ref"]
        assert schema["$ref"].removeprefix("#/$defs/") in definitions
    for option in schema.get("anyOf", ()):
        check_profile(option, definitions)
    if schema.get("type") == "array":
        check_profile(schema["items"], definitions)
    if schema.get("type") == "object":
        assert schema["additionalProperties"] is False
        assert sorted(schema["required"]) == sorted(schema["properties"])
        for value in schema["properties"].values():
            check_profile(value, definitions)


def check_root(schema: Schema) -> None:
    """Fails for a schema that OpenAI rejects in strict mode."""
    assert schema["type"] == "object"
    assert "anyOf" not in schema
    definitions = schema.get("$defs", {})
    check_profile({key: value for key, value in schema.items() if key != "$defs"}, definitions)
    for definition in definitions.values():
        check_profile(definition, definitions)
    parts = [part for _, part in _parts(schema)]
    assert sum(len(part.get("properties", ())) for part in parts) <= 5_000
    assert sum(len(part.get("enum", ())) for part in parts) <= 1_000
    names = [name for part in parts for name in (*part.get("properties", ()), *definitions)]
    values = [value for part in parts for value in part.get("enum", ())]
    assert sum(len(str(text)) for text in [*names, *values]) <= 120_000
    assert _depth(schema) <= 10


def check_plain(schema: Schema) -> None:
    """Fails for a schema that OpenAI or Anthropic rejects outside strict mode."""
    assert schema["type"] == "object"
    assert isinstance(schema["properties"], dict)
    assert not NOT_AT_ROOT & schema.keys()
    check_schema({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})
    json.dumps(schema, allow_nan=False)
    for pointer, part in _parts(schema):
        types = part.get("type")
        if types == "array" or (isinstance(types, list) and "array" in types):
            assert isinstance(part.get("items"), dict), f"{pointer}: array schema missing items"
        # Kimi's rules
        assert not {"anyOf", "type"} <= part.keys(), f"{pointer}: type next to anyOf"
        assert "$ref" not in part or len(part) == 1, f"{pointer}: keywords next to $ref"
        if "enum" in part:
            values = [json.dumps(value) for value in part["enum"]]
            assert 1 <= len(values) == len({*values}), f"{pointer}: values of enum"
        if "$ref" in part:
            assert re.fullmatch(r"#/\$defs/[^/]+", part["$ref"]), pointer
            assert part["$ref"].removeprefix("#/$defs/") in schema["$defs"], pointer
        for name in part.get("properties", ()):
            assert re.fullmatch(r"[a-zA-Z0-9_.-]{1,64}", name), pointer


def check_openai_tool(tool: dict[str, Any]) -> bool:
    """Fails for a tool that OpenAI rejects, on either API; returns whether the tool is strict."""
    assert tool["type"] == "function"
    function = tool.get("function", tool)
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", function["name"])
    assert 1 <= len(function["description"]) <= 1_024
    strict: bool = function.get("strict", False)
    (check_root if strict else check_plain)(function["parameters"])
    return strict


def _parts(schema: object, pointer: str = "") -> Iterator[tuple[str, Schema]]:
    """Yields the schema and its subschemas, which are found by their keywords."""
    if not isinstance(schema, dict):
        return
    yield pointer, schema
    for keyword in ("properties", "$defs", "patternProperties", "dependentSchemas"):
        for name, inner in schema.get(keyword, {}).items():
            assert isinstance(inner, dict), f"{pointer}/{keyword}/{name} is not an object"
            yield from _parts(inner, f"{pointer}/{keyword}/{name}")
    for keyword in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for index, inner in enumerate(schema.get(keyword, ())):
            yield from _parts(inner, f"{pointer}/{keyword}/{index}")
    for keyword in ("items", "additionalProperties", "not", "contains", "propertyNames"):
        yield from _parts(schema.get(keyword), f"{pointer}/{keyword}")


def _depth(schema: Schema) -> int:
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    inner += [*schema.get("$defs", {}).values(), *filter(None, [schema.get("items")])]
    return (schema.get("type") == "object") + max(map(_depth, inner), default=0)
