"""Types for JSON values and JSON Schemas, and equality as JSON Schema defines it."""

from typing import Any

__all__ = ["AnyJson", "AnyValue", "Json", "JsonSchema", "comparable"]

type Json = bool | int | float | str | list[Json] | dict[str, Json] | None
"""Any value that `json.loads` can return."""

# Any: JSON that is read key by key; `Json` would have to be narrowed before each access.
type AnyJson = Any

# Any: values of any type, before they are converted to JSON.
type AnyValue = Any

# Any: code looks up single keys; typing the full grammar would not help.
type JsonSchema = dict[str, Any]
"""A JSON Schema (draft 2020-12) as a dict."""


def comparable(value: Json) -> object:
    """Returns a value that compares as in JSON Schema: 1 equals 1.0, but true does not equal 1."""
    match value:
        case dict():
            return frozenset([(key, comparable(item)) for key, item in value.items()])
        case list():
            return tuple(map(comparable, value))
        case bool():
            return bool, value
        case _:
            return value
