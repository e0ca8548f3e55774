"""Converts JSON Schemas to providers' dialects, in a plain and a strict form.

A strict schema closes every object and contains only keywords that the provider's decoder accepts.
Other keywords are moved into the description. A schema that cannot be strict, such as one with open
maps, is sent unchanged.
"""

import json
import marshal
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

from ..evaluation.schemas import OutputSpec, ToolSpec
from ..prompt.external_schemas import ANY_NAME, describe, to_provider_form
from ..serde import Json, JsonSchema, map_parts
from ..serde.json_schemas import resolved, target_name, walk_parts
from ..serde.json_types import AnyJson

__all__ = [
    "OPENAI",
    "Dialect",
    "EncodedSchema",
    "JsonObject",
    "encode_function",
    "encode_output",
    "encode_schema",
]

type JsonObject = dict[str, AnyJson]

_MAX_PARTS = 10_000


@dataclass(frozen=True, eq=False)  # compared by identity, which makes the cache fast
class Dialect:
    """The JSON Schemas that a provider accepts.

    Its strict decoder accepts `keywords`, `formats`, and patterns that do not match `hard_pattern`.
    `described` maps keywords that are moved into the description to their wording; a schema with
    any other keyword is not strict. An omitted optional property is either `"absent"` or `"null"`.
    A reference with a description is either `"wrapped"` in `anyOf` or `"copied"` from its
    definition. Property names must match `names`, even in plain schemas.
    """

    keywords: frozenset[str]
    described: Mapping[str, str]
    formats: frozenset[str]
    hard_pattern: re.Pattern[str]
    optional: Literal["null", "absent"] = "null"
    references: Literal["wrapped", "copied"] = "wrapped"
    recursive: bool = True
    names: re.Pattern[str] = ANY_NAME

    def keeps(self, keyword: str, value: Json) -> bool:
        """Returns whether the strict decoder accepts a keyword with this value."""
        match keyword, value:
            case "format", _:
                return value in self.formats
            case "additionalProperties", _:
                return value is False
            case "minItems", 0 | 1:
                return True
            case "pattern", str() if self.hard_pattern.search(value):
                return False
            case ("const", dict() | list()) | ("enum", [*_, dict() | list()]):
                return False
            case _:
                return keyword in self.keywords


OPENAI = Dialect(
    keywords=frozenset(
        {
            *("$defs", "$ref", "anyOf", "description", "enum", "items", "properties", "required"),
            *("type", "pattern", "multipleOf", "minimum", "maximum", "exclusiveMinimum"),
            *("exclusiveMaximum", "minItems", "maxItems"),
        }
    ),
    described={
        "default": "default",
        "minLength": "minimum length",
        "maxLength": "maximum length",
        "uniqueItems": "unique items",
        "format": "format",
    },
    formats=frozenset(
        {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
    ),
    hard_pattern=re.compile(r"\(\?<?[=!]"),  # look-around
)


class EncodedSchema(NamedTuple):
    """A schema in a provider's dialect; `strict` is `None` if it cannot be strict.

    `optional_fields` and `unions` are the numbers of these parts in the strict form.
    """

    plain: JsonSchema
    strict: JsonSchema | None
    optional_fields: int = 0
    unions: int = 0

    @property
    def sent(self) -> JsonSchema:
        """The strict form if there is one, otherwise the plain form."""
        return self.plain if self.strict is None else self.strict


def encode_schema(schema: JsonSchema, dialect: Dialect) -> EncodedSchema:
    """Converts the schema of a `ToolSpec` or an `OutputSpec` to a provider's dialect.

    Equal schemas share the result, so do not modify it.
    """
    # This creates a cache key ten times faster than JSON; format version 2 depends only on values.
    return _encode(_Content(marshal.dumps(schema, 2), schema), dialect)


def encode_function(spec: ToolSpec, dialect: Dialect, *, strict: bool = True) -> JsonObject:
    """Encodes a tool in the format of OpenAI's APIs, without the `strict` field if it is false."""
    schema = encode_schema(spec.parameters, dialect)
    if not strict:
        return {**spec.as_dict(), "parameters": schema.plain}
    strict = schema.strict is not None
    return {**spec.as_dict(), "parameters": schema.sent, "strict": strict}


def encode_output(spec: OutputSpec, dialect: Dialect) -> JsonObject:
    """Encodes a declared output in the format of OpenAI's APIs."""
    schema = encode_schema(spec.schema, dialect)
    return {"name": spec.name, "schema": schema.sent, "strict": schema.strict is not None}


@dataclass(frozen=True, slots=True)
class _Content:
    """A schema that is compared by its bytes."""

    key: bytes
    schema: JsonSchema = field(compare=False)


@lru_cache(maxsize=2048)
def _encode(content: _Content, dialect: Dialect) -> EncodedSchema:
    schema = to_provider_form(content.schema, names=dialect.names)
    form = _StrictForm(schema, dialect)
    try:
        if not dialect.recursive and _is_recursive(schema.get("$defs", {})):
            raise _NotStrict
        strict = form.of(schema)
    except _NotStrict:
        return EncodedSchema(schema, None)
    if not _fits_limits(strict):
        return EncodedSchema(schema, None)
    return EncodedSchema(schema, strict, form.optional_fields, form.unions)


class _NotStrict(Exception):
    """Raised if a schema cannot be strict."""


class _StrictForm:
    """Builds the strict form of a schema, and counts the parts that providers limit."""

    def __init__(self, schema: JsonSchema, dialect: Dialect) -> None:
        self._root = schema
        self._dialect = dialect
        self._parts = self.optional_fields = self.unions = 0

    def of(self, schema: JsonSchema) -> JsonSchema:
        """Returns the strict form of a part, or raises `_NotStrict`."""
        dialect = self._dialect
        self._parts += 1
        match schema:
            case {"anyOf": [{"$ref": _} as target], **outer} if dialect.references == "copied":
                return self.of({**resolved(target, self._root), **outer})
            case {"const": value, **others} if "const" not in dialect.keywords:
                schema = {**others, "enum": [value]}
            case _:
                pass
        strict = {key: value for key, value in schema.items() if dialect.keeps(key, value)}
        moved = schema.keys() - strict.keys()
        if (
            self._parts > _MAX_PARTS  # copied definitions can multiply
            or not moved <= dialect.described.keys()  # such as an open map
            or strict.keys().isdisjoint({"$ref", "anyOf", "const", "enum", "type"})  # any value
        ):
            raise _NotStrict
        self.unions += "anyOf" in strict
        strict = map_parts(strict, self.of)
        if strict.get("type") == "object":
            self._close(strict)
        words = {name: schema[key] for key, name in dialect.described.items() if key in moved}
        describe(strict, words)
        return strict

    def _close(self, strict: JsonSchema) -> None:
        properties, required = strict.get("properties", {}), strict.get("required", ())
        optional = properties.keys() - set(required)
        self.optional_fields += len(optional)
        strict["additionalProperties"] = False
        if self._dialect.optional == "null":
            strict["required"] = [*properties]
            properties = {
                name: _nullable(part) if name in optional else part
                for name, part in properties.items()
            }
        strict["properties"] = properties


def _nullable(schema: JsonSchema) -> JsonSchema:
    """Returns the schema for an optional property, which the model omits by sending null."""
    if any(option.get("type") == "null" for option in schema.get("anyOf", ())):
        return schema
    description = {"description": schema["description"]} if "description" in schema else {}
    bare = {key: value for key, value in schema.items() if key != "description"}
    options = bare["anyOf"] if list(bare) == ["anyOf"] else [bare]
    return {"anyOf": [*options, {"type": "null"}], **description}


def _is_recursive(definitions: Mapping[str, JsonSchema]) -> bool:
    """Returns whether a definition refers to itself, directly or indirectly."""
    waiting = {
        name: {target_name(part["$ref"]) for part, _ in walk_parts(schema) if "$ref" in part}
        for name, schema in definitions.items()
    }
    while ends := [name for name, names in waiting.items() if names.isdisjoint(waiting)]:
        for name in ends:
            del waiting[name]
    return bool(waiting)


def _fits_limits(schema: JsonSchema) -> bool:
    """Returns whether a strict schema is within OpenAI's limits for size and depth."""
    parts = list(walk_parts(schema))
    enums = [part["enum"] for part, _ in parts if "enum" in part]
    sizes = {
        5_000: sum(len(part.get("properties", ())) for part, _ in parts),
        1_000: sum(map(len, enums)),
        10: max(depth for _, depth in parts),
        15_000: max([len(json.dumps(enum)) for enum in enums], default=0),
        120_000: len(json.dumps(schema)),  # OpenAI counts only names and values
    }
    return all(size <= limit for limit, size in sizes.items())
