"""Tools and outputs in a form that suits every provider: names, descriptions and JSON schemas.

Every provider accepts these plain schemas; see `prompt.external_schemas`. Adapters convert them to
their provider's dialect; see `adapters.schema_dialects`. The library checks the decoded value
against the full type or the original schema.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

from .. import serde
from ..prompt.external_schemas import ANY_NAME, SAFE_NAME, to_provider_form
from ..prompt.output import StructuredOutputConfig
from ..prompt.tool import AnyTool
from ..record_types import AnyType
from ..serde import JsonSchema
from ..serde.json_types import AnyJson
from ..serde.values import UpgradedBy

__all__ = ["OutputSpec", "StoredToolSpec", "ToolSpec", "output_to_spec", "tool_to_spec"]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as providers receive it; `parameters` is its JSON Schema."""

    name: str
    description: str
    parameters: JsonSchema

    def as_dict(self) -> dict[str, object]:
        """Returns the format that the providers' APIs have in common."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}


def _read_spec(value: AnyJson) -> AnyJson:
    """Returns a `ToolSpec`'s JSON; in 0.2.0, it contained both a strict and a plain schema."""
    match value:
        case {"strict": _, "parameters": dict(sent), **others}:
            plain: AnyJson = others.pop("plain", None)
            return {**others, "parameters": to_provider_form(plain or sent, names=ANY_NAME)}
        case _:
            return value


type StoredToolSpec = Annotated[ToolSpec, UpgradedBy(_read_spec)]
"""A `ToolSpec` that can also be read from JSON written by 0.2.0."""


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """The declared output as providers receive it: an object, which may wrap the actual answer."""

    name: str
    schema: JsonSchema

    def as_dict(self) -> dict[str, object]:
        """Returns the format that the providers' APIs have in common."""
        return {"name": self.name, "schema": self.schema}


def tool_to_spec(tool: AnyTool, param_descriptions: Mapping[str, str] | None = None) -> ToolSpec:
    """Returns the spec of `tool`; `param_descriptions` overrides field descriptions by name."""
    if param_descriptions:
        names = ANY_NAME if tool.schema is None else SAFE_NAME
        schema = to_provider_form(tool.params_schema(), param_descriptions, names=names)
    elif tool.schema is not None:
        schema = _external_schema(tool.schema)
    else:
        params_type: AnyType = tool.params_type  # every class is hashable
        schema = _schema_of_type(params_type)
    return ToolSpec(tool.name, tool.description, schema)


@lru_cache(maxsize=1024)
def output_to_spec(config: StructuredOutputConfig[object]) -> OutputSpec:
    """Returns the spec of a declared output, named after its type."""
    item_type = config.item_type
    schema = serde.json_schema(item_type)
    if config.wrapper is not None:
        part = {"type": "array", "items": schema} if config.container == "array" else schema
        schema = {
            "type": "object",
            "properties": {config.wrapper: part},
            "required": [config.wrapper],
            "additionalProperties": False,
            "$defs": schema.get("$defs", {}),
        }
    name = re.sub(r"[^A-Za-z0-9_-]", "_", getattr(item_type, "__name__", "answer"))[:64]
    return OutputSpec(name, to_provider_form(schema, names=ANY_NAME))


@lru_cache(maxsize=4096)
def _schema_of_type(type_: AnyType) -> JsonSchema:
    return to_provider_form(serde.json_schema(type_), names=ANY_NAME)


@lru_cache(maxsize=4096)
def _external_schema(text: str) -> JsonSchema:
    return to_provider_form(json.loads(text))
