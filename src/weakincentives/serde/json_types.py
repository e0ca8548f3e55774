"""JSON values and JSON Schemas as types, and the equality that JSON Schema gives to values."""

from typing import Any

__all__ = ["AnyJson", "AnyValue", "Json", "JsonSchema", "comparable"]

type Json = bool | int | float | str | list[Json] | dict[str, Json] | None
"""What `json.loads` can return."""

# Any: JSON that is read key by key; `Json` would have to be narrowed before each key.
type AnyJson = Any

# Any: values of all types, as they are before they become JSON.
type AnyValue = Any

# Any: readers look up single keys; typing the full grammar would help nobody.
type JsonSchema = dict[str, Any]
"""A JSON Schema (draft 2020-12) as a dict."""


def comparable(value: Json) -> object:
    """Returns a value with the equality of JSON Schema: 1 is 1.0, and true is not 1."""
    match value:
        case dict():
            return frozenset([(key, comparable(item)) for key, item in value.items()])
        case list():
            return tuple(map(comparable, value))
        case bool():
            return bool, value
        case _:
            return value
