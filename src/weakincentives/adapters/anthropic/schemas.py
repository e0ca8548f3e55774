"""The profile of strict JSON schemas that Anthropic's API accepts, and its limits per request."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ...evaluation.schemas import describe_keywords
from ...serde import JsonSchema

__all__ = ["StrictLimits"]

_KEYWORDS = {
    *("$defs", "$ref", "additionalProperties", "anyOf", "const", "description", "enum", "items"),
    *("properties", "required", "type"),
}
_IGNORED_KEYWORDS = {"$schema", "deprecated", "discriminator", "examples", "oneOf", "title"}
_DESCRIBED_KEYWORDS = {
    "default": "default",
    "exclusiveMaximum": "less than",
    "exclusiveMinimum": "more than",
    "format": "format",
    "maxItems": "maximum items",
    "maxLength": "maximum length",
    "maximum": "maximum",
    "minItems": "minimum items",
    "minLength": "minimum length",
    "minimum": "minimum",
    "multipleOf": "multiple of",
    "pattern": "pattern",
    "uniqueItems": "unique items",
}
_FORMATS = {
    *("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"),
}
# UNVERIFIED: which patterns the API's engine refuses beside groups with `?`, back references, `\b`
_HARD_PATTERN = re.compile(r"\(\?|\\[1-9bBk]")


class _NotStrict(Exception):
    pass


@dataclass(slots=True)
class StrictLimits:
    """What is left of the API's limits over all strict schemas of one conversation.

    A tool that was removed from the conversation does not give its share back.
    """

    tools: int = 20
    optional_fields: int = 24
    unions: int = 16

    def fit(self, schema: JsonSchema, *, tool: bool) -> JsonSchema | None:
        """Returns the strict form of `schema` and takes its share of the limits.

        Returns `None`, and takes nothing, for a schema that cannot be strict or needs more than is
        left. An optional field stays optional. A keyword that the API refuses moves into the
        description.
        """
        optional_fields, unions = self.optional_fields, self.unions
        try:
            definitions = schema.get("$defs", {})
            _check_recursion(schema, definitions, ())
            strict = self._strict(schema, definitions)
            if strict.get("type") != "object" or (tool and not self.tools):
                raise _NotStrict
        except _NotStrict:
            self.optional_fields, self.unions = optional_fields, unions
            return None
        self.tools -= tool
        return strict

    def _strict(self, schema: JsonSchema, definitions: Mapping[str, JsonSchema]) -> JsonSchema:
        if "$ref" in schema and "description" in schema:
            # nothing may stand beside a reference, and `anyOf` around it would count as a union
            target = definitions[schema["$ref"].rpartition("/")[2]]
            schema = {**target, "description": schema["description"]}
        known = _KEYWORDS | _IGNORED_KEYWORDS | _DESCRIBED_KEYWORDS.keys()
        if schema.keys() - known or schema.get("additionalProperties") not in (None, False):
            raise _NotStrict  # such as a tuple with a type for each place, or an open map
        if schema.keys().isdisjoint({"$ref", "anyOf", "const", "enum", "oneOf", "type"}):
            raise _NotStrict  # anything goes
        if any(isinstance(value, dict | list) for value in schema.get("enum", ())):
            raise _NotStrict
        strict = {key: schema[key] for key in schema if key in _KEYWORDS or _takes(schema, key)}
        options = schema.get("anyOf") or schema.get("oneOf")
        if options or isinstance(schema.get("type"), list):
            self.unions = _less(self.unions, 1)
        if options:
            strict["anyOf"] = [self._strict(option, definitions) for option in options]
        if schema.get("type") == "array":
            strict["items"] = self._strict(schema.get("items") or {}, definitions)
        if "$defs" in schema:
            strict["$defs"] = {
                name: self._strict(inner, definitions) for name, inner in definitions.items()
            }
        if schema.get("type") == "object":
            properties = schema.get("properties", {})
            optional = properties.keys() - set(schema.get("required", ()))
            self.optional_fields = _less(self.optional_fields, len(optional))
            strict["properties"] = {
                name: self._strict(inner, definitions) for name, inner in properties.items()
            }
            strict["additionalProperties"] = False
        describe_keywords(strict, schema, _DESCRIBED_KEYWORDS)
        return strict


def _takes(schema: JsonSchema, key: str) -> bool:
    """Tells whether the API takes this keyword with the value that it has here."""
    match key, schema[key]:
        case "minItems", 0 | 1:
            return True
        case "format", value:
            return value in _FORMATS
        case "pattern", str() as pattern:
            return not _HARD_PATTERN.search(pattern)
        case _:
            return False


def _less(left: int, count: int) -> int:
    if count > left:
        raise _NotStrict
    return left - count


def _check_recursion(
    schema: object, definitions: Mapping[str, JsonSchema], above: tuple[str, ...]
) -> None:
    """Raises `_NotStrict` for a reference that leads back to itself, or outside of the schema."""
    match schema:
        case {"$ref": str() as reference}:
            name = reference.removeprefix("#/$defs/")
            if name in above or name not in definitions:
                raise _NotStrict
            _check_recursion(definitions[name], definitions, (*above, name))
        case dict():
            for key, inner in schema.items():
                if key != "$defs":
                    _check_recursion(inner, definitions, above)
        case list():
            for inner in schema:
                _check_recursion(inner, definitions, above)
        case _:
            pass
