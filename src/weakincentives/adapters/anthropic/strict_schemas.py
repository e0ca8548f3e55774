"""The strict JSON Schemas that Anthropic's API accepts, and its limits per request."""

import re
from dataclasses import dataclass

from ...prompt.external_schemas import SAFE_NAME
from ...serde import JsonSchema
from ..schema_dialects import OPENAI, Dialect, encode_schema

__all__ = ["ANTHROPIC", "StrictLimits"]

ANTHROPIC = Dialect(
    keywords=frozenset(
        {
            *("$defs", "$ref", "anyOf", "const", "description", "enum", "items", "properties"),
            *("pattern", "required", "type"),
        }
    ),
    described={
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
    },
    formats=OPENAI.formats | {"uri"},
    # UNVERIFIED: which patterns the engine rejects, apart from groups with `?`, back references and
    # `\b`.
    hard_pattern=re.compile(r"\(\?|\\[1-9bBk]"),
    optional="absent",
    references="copied",  # `anyOf` would count as a union
    recursive=False,
    names=SAFE_NAME,
)


@dataclass(slots=True)
class StrictLimits:
    """What remains of the API's limits on all the strict schemas in one conversation.

    Removing a tool from the conversation does not restore its share.
    """

    tools: int = 20
    optional_fields: int = 24
    unions: int = 16

    def fit(self, schema: JsonSchema, *, tool: bool) -> JsonSchema | None:
        """Returns the strict form of `schema` and subtracts its size from the limits.

        Returns `None`, and leaves the limits unchanged, if the schema cannot be strict or exceeds
        them. An optional field remains optional. A keyword that the API rejects is moved into the
        description.
        """
        encoded = encode_schema(schema, ANTHROPIC)
        left = (
            self.tools - tool,
            self.optional_fields - encoded.optional_fields,
            self.unions - encoded.unions,
        )
        if encoded.strict is None or min(left) < 0:
            return None
        self.tools, self.optional_fields, self.unions = left
        return encoded.strict
