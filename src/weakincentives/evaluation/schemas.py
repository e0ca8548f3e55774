"""What a provider is told about a tool or an output: names, texts and JSON schemas, strict where a
schema allows it.

The strict profile, in this one place: every object closed with all properties required, fields with
a default made nullable, no keywords that strict decoders refuse (their meaning moves into the
description). A schema that cannot be brought to it, such as one with open maps, is sent as it is
with `strict=False`. After decoding, the value is always checked against the full type again.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from .. import serde
from ..prompt.model_json import WRAPPED_ITEMS
from ..prompt.output import StructuredOutputConfig
from ..prompt.tool import AnyTool
from ..serde import JsonSchema

__all__ = ["OutputSpec", "ToolSpec", "output_to_spec", "tool_to_spec"]

_KEPT = {
    "$defs",
    "$ref",
    "additionalProperties",
    "anyOf",
    "const",
    "description",
    "enum",
    "items",
    "properties",
} | {
    *("required", "type", "pattern", "multipleOf", "minimum", "maximum"),
    *("exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems"),
}
_SAYING_WHAT = {"$ref", "anyOf", "const", "enum", "oneOf", "type"}
_KEPT_FORMATS = {
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
}
_SAID_IN_WORDS = {
    "default": "default",
    "minLength": "minimum length",
    "maxLength": "maximum length",
    "uniqueItems": "unique items",
    "format": "format",
}


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a provider sees it; `strict` says that the schema fits the strict profile."""

    name: str
    description: str
    parameters: JsonSchema
    strict: bool

    def as_dict(self) -> dict[str, object]:
        """The form on which providers' APIs agree."""
        told = {"name": self.name, "description": self.description}
        return {**told, "parameters": self.parameters, "strict": self.strict}


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """The declared output as a provider sees it; `wrapped` says that an array travels inside an
    object.
    """

    name: str
    schema: JsonSchema
    strict: bool
    wrapped: bool

    def as_dict(self) -> dict[str, object]:
        """The form on which providers' APIs agree."""
        return {"name": self.name, "schema": self.schema, "strict": self.strict}


def tool_to_spec(tool: AnyTool, param_descriptions: Mapping[str, str] | None = None) -> ToolSpec:
    """The spec of `tool`, with other texts for some params where given."""
    params_type: Any = tool.params_type  # Any: see `_strict_schema`
    if param_descriptions:
        schema, strict = _profiled(serde.json_schema(params_type), param_descriptions)
    else:
        schema, strict = _strict_schema(params_type)
    return ToolSpec(tool.name, tool.description, schema, strict)


# Any: an output of any type.
@lru_cache(maxsize=1024)
def output_to_spec(config: StructuredOutputConfig[Any]) -> OutputSpec:
    """The spec of a declared output, named after its type."""
    item_type: Any = config.item_type  # Any: see `_strict_schema`
    schema, strict = _strict_schema(item_type)
    wrapped = config.container == "array"
    if wrapped:
        definitions = schema.get("$defs")
        item = {key: value for key, value in schema.items() if key != "$defs"}
        schema = {
            "type": "object",
            "properties": {WRAPPED_ITEMS: {"type": "array", "items": item}},
            "required": [WRAPPED_ITEMS],
            "additionalProperties": False,
            **({"$defs": definitions} if definitions else {}),
        }
    name = re.sub(r"[^A-Za-z0-9_-]", "_", config.item_type.__name__)[:64]
    return OutputSpec(name, schema, strict, wrapped)


class _NotStrict(Exception):
    pass


@lru_cache(maxsize=4096)
# Any: typeshed does not know that every class has a hash
def _strict_schema(of: Any) -> tuple[JsonSchema, bool]:
    """The type's schema in the strict profile and `True`, or unchanged and `False` when it does not
    fit.
    """
    return _profiled(serde.json_schema(of), {})


def _profiled(schema: JsonSchema, descriptions: Mapping[str, str]) -> tuple[JsonSchema, bool]:
    # a type that holds itself; providers want to see at the root that it is an object
    if "$ref" in schema:
        schema = {**schema["$defs"][schema["$ref"].rpartition("/")[2]], "$defs": schema["$defs"]}
    if descriptions:
        properties: dict[str, JsonSchema] = {
            name: {**one, "description": descriptions[name]} if name in descriptions else one
            for name, one in schema.get("properties", {}).items()
        }
        schema = {**schema, "properties": properties}
    try:
        strict = _strict(schema)
    except _NotStrict:
        return schema, False
    return (strict, True) if strict.get("type") == "object" else (schema, False)


def _strict(schema: JsonSchema) -> JsonSchema:
    anything = schema.keys().isdisjoint(_SAYING_WHAT)
    if (
        anything
        or schema.get("additionalProperties") not in (None, False)
        or "prefixItems" in schema
    ):
        raise _NotStrict  # anything goes, an open map, or a tuple with a type for each place
    strict = {key: value for key, value in schema.items() if key in _KEPT}
    if "oneOf" in schema:
        strict["anyOf"] = schema["oneOf"]
    if schema.get("format") in _KEPT_FORMATS:
        strict["format"] = schema["format"]
    for key in (
        schema.keys()
        - _KEPT
        - _SAID_IN_WORDS.keys()
        - {"oneOf", "examples", "discriminator", "deprecated"}
    ):
        raise _NotStrict(key)
    if "const" in strict:
        strict["enum"] = [strict.pop("const")]
    if "anyOf" in strict:
        strict["anyOf"] = [_strict(one) for one in strict["anyOf"]]
    if isinstance(strict.get("items"), dict):
        strict["items"] = _strict(strict["items"])
    if "$defs" in strict:
        strict["$defs"] = {name: _strict(one) for name, one in strict["$defs"].items()}
    if strict.get("type") == "object":
        required = strict.get("required", [])
        properties = strict.get("properties", {})
        strict["properties"] = {
            name: _strict(one) if name in required else _nullable(_strict(one))
            for name, one in properties.items()
        }
        strict["required"] = list(properties)
        strict["additionalProperties"] = False
    said = [
        f"{words}: {json.dumps(schema[key], ensure_ascii=False)}"
        for key, words in _SAID_IN_WORDS.items()
        if key in schema and key not in strict and schema[key] not in (None, "", [], {})
    ]
    if said:
        text = schema.get("description", "")
        strict["description"] = f"{text} ({'; '.join(said)})" if text else "; ".join(said)
    if "$ref" in strict and len(strict) > 1:
        # A reference stands alone; what is said beside it goes around it.
        reference = {"$ref": strict.pop("$ref")}
        strict = {"anyOf": [reference], **strict}
    return strict


def _nullable(schema: JsonSchema) -> JsonSchema:
    """A field with a default: the model sends null to leave it out."""
    if any(one.get("type") == "null" for one in schema.get("anyOf", ())):
        return schema
    description = {"description": schema["description"]} if "description" in schema else {}
    bare = {key: value for key, value in schema.items() if key != "description"}
    options = bare["anyOf"] if list(bare) == ["anyOf"] else [bare]
    return {"anyOf": [*options, {"type": "null"}], **description}
