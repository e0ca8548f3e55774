"""Converts values to JSON and back, and types to JSON Schemas: a thin layer over pydantic.

pydantic is imported on first use, and dataclasses remain plain standard-library ones. Field
descriptions come from `field(metadata={"description": …})` or `Annotated[…, pydantic.Field(…)]`.
Scalars are strict: a string is not accepted as a number or a boolean. Unknown keys are rejected
unless `allow_extra` is set. Dates, paths, enums, UUIDs and decimals become strings, bytes become
URL-safe base64, and sets become sorted arrays. NaN and infinities are rejected in both directions.
A value in a field of type `Any` is dumped as it would be on its own. Fields with `init=False` are
omitted from the JSON.
"""

from typing import TYPE_CHECKING

from ..lazy_exports import lazy_exports

__all__ = [
    "ByKind",
    "Json",
    "JsonSchema",
    "check_unique_keys",
    "dump",
    "dump_json",
    "dump_json_lossless",
    "dump_lossless",
    "json_schema",
    "line_matcher",
    "load_unique",
    "map_parts",
    "parse",
    "parse_json",
]

# A module that defines prompts does not need any schema until it builds a tree.
if TYPE_CHECKING:
    from .json_schemas import json_schema, map_parts
    from .json_types import Json, JsonSchema
    from .text import check_unique_keys, line_matcher, load_unique
    from .values import (
        ByKind,
        dump,
        dump_json,
        dump_json_lossless,
        dump_lossless,
        parse,
        parse_json,
    )
else:
    __getattr__, __dir__ = lazy_exports(
        globals(),
        {
            "ByKind": ".values",
            "Json": ".json_types",
            "JsonSchema": ".json_types",
            "check_unique_keys": ".text",
            "dump": ".values",
            "dump_json": ".values",
            "dump_json_lossless": ".values",
            "dump_lossless": ".values",
            "json_schema": ".json_schemas",
            "line_matcher": ".text",
            "load_unique": ".text",
            "map_parts": ".json_schemas",
            "parse": ".values",
            "parse_json": ".values",
        },
    )
