"""JSON Schemas as dicts: the schema for a type, and a walk over the subschemas of a schema.

`map_parts` knows the keywords whose values are schemas. All code that visits or rewrites schemas
uses it, so no schema is visited twice, and no other value, such as a default, is mistaken for a
schema.
"""

from collections.abc import Callable, Iterator

from ..errors import SerdeError, ValidationIssue, message_of
from .json_types import AnyJson, JsonSchema
from .values import adapter_of, cached_by_type, name_of

__all__ = ["json_schema", "map_parts", "resolved", "target_name", "walk_parts"]

type AnyPart = AnyJson  # also `true` or `false`, or anything in an external schema


def json_schema(of: object) -> JsonSchema:
    """Returns the schema that dumped instances of the type `of` satisfy.

    The dict is shared: copy it before changing it. Raises `SerdeError` for a type that JSON cannot
    represent.
    """
    return _json_schema(of)


@cached_by_type
def _json_schema(of: object) -> JsonSchema:
    from .exact_types import JsonSchemas

    adapter = adapter_of(of)
    try:
        schema = adapter.json_schema(schema_generator=JsonSchemas)
    except Exception as error:  # pydantic names types that have no schema, such as callables
        message = f"has no JSON schema: {message_of(error).partition('\n')[0]}"
        raise SerdeError(name_of(of), (ValidationIssue((), message),)) from error
    return _without_titles(schema)


def _without_titles(schema: JsonSchema) -> JsonSchema:
    own = {keyword: value for keyword, value in schema.items() if keyword != "title"}
    return map_parts(own, _without_titles_in)


def _without_titles_in(part: AnyPart) -> AnyPart:
    return _without_titles(part) if isinstance(part, dict) else part


_PARTS_BY_NAME = {"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"}
_PARTS = {
    *("items", "prefixItems", "additionalItems", "additionalProperties", "unevaluatedProperties"),
    *("unevaluatedItems", "contains", "propertyNames", "anyOf", "oneOf", "allOf", "not", "if"),
    *("then", "else"),
}


def map_parts(schema: JsonSchema, change: Callable[[AnyPart], AnyPart]) -> JsonSchema:
    """Returns a copy of the schema, with `change` applied to each schema directly inside it."""
    mapped = dict(schema)
    for keyword, value in schema.items():
        if keyword in _PARTS_BY_NAME and isinstance(value, dict):
            mapped[keyword] = {name: change(part) for name, part in value.items()}
        elif keyword in _PARTS and isinstance(value, dict):
            mapped[keyword] = change(value)
        elif keyword in _PARTS and isinstance(value, list):
            mapped[keyword] = [change(part) for part in value]
    return mapped


def walk_parts(schema: JsonSchema, depth: int = 0) -> Iterator[tuple[JsonSchema, int]]:
    """Yields a schema and all its subschemas, each with its depth in objects and arrays."""
    yield schema, depth
    inner: list[AnyPart] = []
    map_parts(schema, inner.append)
    for part in inner:
        yield from walk_parts(part, depth + (schema.get("type") in ("object", "array")))


def target_name(reference: str) -> str:
    """Returns the name of the `$defs` entry that one of our own references points to."""
    return reference.rpartition("/")[2]


def resolved(schema: JsonSchema, root: JsonSchema) -> JsonSchema:
    """Returns the schema, or the definition in `root` that it refers to."""
    return root["$defs"][target_name(schema["$ref"])] if "$ref" in schema else schema
