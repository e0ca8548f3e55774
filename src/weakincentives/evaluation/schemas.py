"""Names, descriptions and JSON schemas of tools and outputs, as a provider reads them.

A strict schema closes every object, requires all properties, makes fields with a default nullable
and has no keyword that strict decoders refuse; such a keyword's meaning moves into the description.
A schema that cannot be strict, such as one with open maps, goes out as it is with `strict=False`.
The library checks the decoded value against the full type again.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from .. import serde
from ..prompt.output import StructuredOutputConfig
from ..prompt.tool import AnyTool
from ..serde import JsonSchema
from .foreign_schemas import to_provider_form

__all__ = ["OutputSpec", "ToolSpec", "describe_keywords", "output_to_spec", "tool_to_spec"]

_KEYWORDS = {
    *("$defs", "$ref", "additionalProperties", "anyOf", "const", "description", "enum"),
    *("items", "properties", "required", "type", "pattern", "multipleOf", "minimum", "maximum"),
    *("exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems"),
}
_OPTIONAL_KEYWORDS = {"oneOf", "examples", "discriminator", "deprecated"}
_TYPE_KEYWORDS = {"$ref", "anyOf", "const", "enum", "oneOf", "type"}
_FORMATS = {
    *("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"),
}
_DESCRIBED_KEYWORDS = {
    "default": "default",
    "minLength": "minimum length",
    "maxLength": "maximum length",
    "uniqueItems": "unique items",
    "format": "format",
}


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a provider sees it; `strict` says that `parameters` fits the strict profile.

    `plain` is the schema without a profile, for codecs of providers with a profile of their own.
    """

    name: str
    description: str
    parameters: JsonSchema
    strict: bool
    plain: JsonSchema = field(default_factory=dict[str, Any], compare=False, repr=False)

    def as_dict(self) -> dict[str, object]:
        """Returns the form on which providers' APIs agree."""
        return {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": self.strict,
        }


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """The declared output as a provider sees it: an object, which may wrap the answer itself.

    `plain` is the schema without a profile, as in `ToolSpec`.
    """

    name: str
    schema: JsonSchema
    strict: bool
    plain: JsonSchema = field(default_factory=dict[str, Any], compare=False, repr=False)

    def as_dict(self) -> dict[str, object]:
        """Returns the form on which providers' APIs agree."""
        return {"name": self.name, "schema": self.schema, "strict": self.strict}


def tool_to_spec(tool: AnyTool, param_descriptions: Mapping[str, str] | None = None) -> ToolSpec:
    """Returns the spec of `tool`; `param_descriptions` replaces those of the fields it names."""
    params_type: Any = tool.params_type  # Any: see `_strict_schema`
    if param_descriptions:
        schema = tool.params_schema()
        if tool.schema is not None:
            schema = to_provider_form(schema)
        schemas = _apply_profile(schema, param_descriptions)
    elif tool.schema is not None:
        schemas = _strict_foreign_schema(tool.schema)
    else:
        schemas = _strict_schema(params_type)
    return ToolSpec(tool.name, tool.description, schemas.sent, schemas.strict, schemas.plain)


# Any: an output of any type.
@lru_cache(maxsize=1024)
def output_to_spec(config: StructuredOutputConfig[Any]) -> OutputSpec:
    """Returns the spec of a declared output, named after its type."""
    item_type: Any = config.item_type  # Any: see `_strict_schema`
    schemas = _strict_schema(item_type)
    if config.wrapper is not None:
        plain = _wrap(serde.json_schema(item_type), config.wrapper, config.container == "array")
        schemas = _apply_profile(plain, {})
    name = re.sub(r"[^A-Za-z0-9_-]", "_", getattr(item_type, "__name__", "answer"))[:64]
    return OutputSpec(name, schemas.sent, schemas.strict, schemas.plain)


def _wrap(schema: JsonSchema, wrapper: str, array: bool) -> JsonSchema:  # noqa: FBT001 - private
    """Returns the schema of an object whose one property fits `schema`, or is an array of such."""
    definitions = schema.get("$defs")
    item = {key: value for key, value in schema.items() if key != "$defs"}
    return {
        "type": "object",
        "properties": {wrapper: {"type": "array", "items": item} if array else item},
        "required": [wrapper],
        "additionalProperties": False,
        **({"$defs": definitions} if definitions else {}),
    }


class _NotStrict(Exception):
    pass


class _Schemas(NamedTuple):
    """The schema to send, whether it is strict, and the plain schema that it comes from."""

    sent: JsonSchema
    strict: bool
    plain: JsonSchema


@lru_cache(maxsize=4096)
# Any: typeshed does not know that every class has a hash
def _strict_schema(type_: Any) -> _Schemas:
    """Returns the type's schemas."""
    return _apply_profile(serde.json_schema(type_), {})


@lru_cache(maxsize=4096)
def _strict_foreign_schema(text: str) -> _Schemas:
    """Returns the schemas for the JSON text of one that others wrote."""
    return _apply_profile(to_provider_form(json.loads(text)), {})


def _apply_profile(schema: JsonSchema, descriptions: Mapping[str, str]) -> _Schemas:
    # the root of a recursive type is a reference, and providers require an object there
    if "$ref" in schema:
        schema = {**schema["$defs"][schema["$ref"].rpartition("/")[2]], "$defs": schema["$defs"]}
    if descriptions:
        properties: dict[str, JsonSchema] = {
            name: {**value, "description": descriptions[name]} if name in descriptions else value
            for name, value in schema.get("properties", {}).items()
        }
        schema = {**schema, "properties": properties}
    try:
        strict = _strict(schema)
    except _NotStrict:
        return _Schemas(schema, strict=False, plain=schema)
    if strict.get("type") != "object" or not _fits_limits(strict):
        return _Schemas(schema, strict=False, plain=schema)
    return _Schemas(strict, strict=True, plain=schema)


def _strict(schema: JsonSchema) -> JsonSchema:
    if (
        schema.keys().isdisjoint(_TYPE_KEYWORDS)  # anything goes
        or schema.get("additionalProperties") not in (None, False)  # an open map
        or "prefixItems" in schema  # a tuple with a type for each place
        or isinstance(schema.get("type"), list)
        or re.search(r"\(\?<?[=!]", schema.get("pattern", ""))  # look-around
    ):
        raise _NotStrict
    if unknown := schema.keys() - _KEYWORDS - _DESCRIBED_KEYWORDS.keys() - _OPTIONAL_KEYWORDS:
        raise _NotStrict(*unknown)
    strict = {key: value for key, value in schema.items() if key in _KEYWORDS}
    if "oneOf" in schema:
        strict["anyOf"] = schema["oneOf"]
    if schema.get("format") in _FORMATS:
        strict["format"] = schema["format"]
    if "const" in strict:
        strict["enum"] = [strict.pop("const")]
    if "anyOf" in strict:
        strict["anyOf"] = [_strict(option) for option in strict["anyOf"]]
    if isinstance(strict.get("items"), dict):
        strict["items"] = _strict(strict["items"])
    if "$defs" in strict:
        strict["$defs"] = {name: _strict(value) for name, value in strict["$defs"].items()}
    if strict.get("type") == "object":
        required = strict.get("required", [])
        properties = strict.get("properties", {})
        strict["properties"] = {
            name: _strict(value) if name in required else _nullable(_strict(value))
            for name, value in properties.items()
        }
        strict["required"] = list(properties)
        strict["additionalProperties"] = False
    describe_keywords(strict, schema, _DESCRIBED_KEYWORDS)
    if "$ref" in strict and len(strict) > 1:
        # Strict decoders accept no keyword beside a reference, so `anyOf` wraps it.
        reference = {"$ref": strict.pop("$ref")}
        strict = {"anyOf": [reference], **strict}
    return strict


def _fits_limits(schema: JsonSchema) -> bool:
    """Tells whether a strict schema is as small and flat as OpenAI asks."""
    parts = list(_parts(schema, 0))
    enums = [part["enum"] for part, _ in parts if "enum" in part]
    sizes = {
        5_000: sum(len(part.get("properties", ())) for part, _ in parts),
        1_000: sum(map(len, enums)),
        10: max(depth for _, depth in parts),
        15_000: max([len(json.dumps(enum)) for enum in enums], default=0),
        120_000: len(json.dumps(schema)),  # OpenAI counts names and values alone
    }
    return all(size <= limit for limit, size in sizes.items())


def _parts(schema: JsonSchema, depth: int) -> Iterator[tuple[JsonSchema, int]]:
    """Yields a strict schema and its parts, each with the number of objects around it."""
    yield schema, depth
    for inner in (*schema.get("anyOf", ()), *schema.get("$defs", {}).values()):
        yield from _parts(inner, depth)
    for inner in (*schema.get("properties", {}).values(), *filter(None, [schema.get("items")])):
        yield from _parts(inner, depth + 1)


def describe_keywords(strict: JsonSchema, schema: JsonSchema, words: Mapping[str, str]) -> None:
    """Adds keywords of `schema` that `strict` lacks to its description, in these `words`."""
    notes = [
        f"{name}: {json.dumps(schema[key], ensure_ascii=False)}"
        for key, name in words.items()
        if key in schema and key not in strict and schema[key] not in (None, "", [], {})
    ]
    if notes:
        text = schema.get("description", "")
        strict["description"] = f"{text} ({'; '.join(notes)})" if text else "; ".join(notes)


def _nullable(schema: JsonSchema) -> JsonSchema:
    """Returns the schema of a field with a default: the model sends null to leave it out."""
    if any(option.get("type") == "null" for option in schema.get("anyOf", ())):
        return schema
    description = {"description": schema["description"]} if "description" in schema else {}
    bare = {key: value for key, value in schema.items() if key != "description"}
    options = bare["anyOf"] if list(bare) == ["anyOf"] else [bare]
    return {"anyOf": [*options, {"type": "null"}], **description}
