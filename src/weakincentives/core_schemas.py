"""Makes pydantic read, write and describe types as `serde` promises.

`make_exact` replaces the serializer and the validator of a pydantic adapter. `JsonSchemas` makes
JSON schemas, and rejects types whose values cannot be read back from JSON. `serde` imports this
module on first use, because it imports pydantic.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, time, timezone
from decimal import Decimal
from enum import Enum, Flag
from functools import partial, reduce
from operator import or_
from threading import local
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import (
    PydanticKnownError,
    PydanticSerializationUnexpectedValue,
    SchemaSerializer,
    SchemaValidator,
    core_schema,
    to_jsonable_python,
)

__all__ = ["CONFIG", "JsonSchemas", "make_exact"]

# Any, in the four: pydantic's nested dicts, values of every type, a ConfigDict or CoreConfig.
type CoreSchema = Any
type AnyValue = Any
type PydanticConfig = Any
type JsonSchema = dict[str, Any]
type Definitions = Mapping[str, CoreSchema]

CONFIG: PydanticConfig = {
    "strict": True,
    "ser_json_bytes": "base64",
    "val_json_bytes": "base64",
    "ser_json_inf_nan": "constants",
    "allow_inf_nan": False,
}


# --- core schemas


def make_exact(
    adapter: "TypeAdapter[Any]", dump_any: Callable[..., object], *, allow_extra: bool = False
) -> None:
    """Makes an adapter read and dump as `serde.dump` and `serde.parse` promise.

    `dump_any` dumps the values of which a type says `Any`.
    """
    schema: CoreSchema = adapter.core_schema
    definitions: Definitions = {item["ref"]: item for item in schema.get("definitions", ())}
    exact = _Exact(dump_any, "ignore" if allow_extra else "forbid", definitions)
    schema = exact.copy(schema)
    # Without prebuilt ones: those of a pydantic model would not read as this module promises.
    adapter.serializer = SchemaSerializer(schema, CONFIG, _use_prebuilt=False)
    validator = SchemaValidator(schema, CONFIG, _use_prebuilt=False)
    with_digits = cast(
        SchemaValidator, _DecimalValidator(validator)
    )  # has the one method that we use
    adapter.validator = with_digits if exact.has_decimals else validator


class _Exact:
    def __init__(
        self, dump_any: Callable[..., object], extra: str, definitions: Definitions
    ) -> None:
        self._dump_any = dump_any
        self._extra = extra
        self._definitions = definitions
        self.has_decimals = False

    def copy(self, schema: CoreSchema, *, key: bool = False) -> CoreSchema:
        """Returns an exact copy; `key` says that the schema is of a key in a JSON object."""
        if isinstance(schema, list | tuple):
            return type(schema)([self.copy(item, key=key) for item in schema])
        if not isinstance(schema, dict):
            return schema
        definition = self._definitions.get(schema.get("schema_ref", ""), {})
        if key and definition.get("type") == "enum":  # a key is read otherwise than a value
            return self.copy(_inner(definition), key=key)
        # A dict without a type is not a schema but has some by name, as the fields of a TypedDict.
        literal = ("metadata", "default") if isinstance(schema.get("type"), str) else ()
        copy = {
            name: value if name in literal else self.copy(value, key=name == "keys_schema")
            for name, value in schema.items()
        }
        if copy.get("init") is False:
            copy["serialization_exclude"] = True
        if copy.get("type") == "model":  # a model's own settings win, the others are ours
            extra = {"extra_fields_behavior": self._extra}
            copy["config"] = {**CONFIG, **extra, **copy.get("config", {})}
        return self._adjusted(copy, key=key)

    def _adjusted(self, schema: CoreSchema, *, key: bool) -> CoreSchema:
        """Returns one core schema with functions where pydantic would read or dump otherwise."""
        write: CoreSchema = None
        read: CoreSchema = None
        match schema:
            case {"type": "literal" | "enum"}:
                schema, read, write = _members_adjusted(schema, key=key)
                key = key and write is None
            case {"type": "set" | "frozenset"}:
                write = core_schema.wrap_serializer_function_ser_schema(_dump_set)
            case {"type": "generator"}:  # as a list: pydantic would read the items only once, later
                schema = {**schema, "type": "list"}
                write = core_schema.wrap_serializer_function_ser_schema(_dump_iterable)
            case {"type": "decimal"} if not key:
                lax = {**schema, "strict": False}  # else no Python value is read
                write, read = _plain(_dump_decimal), _before(_with_all_digits, lax)
                self.has_decimals = True
            case {"type": "json"}:
                read = _before(_note_digits, schema)
            case {"type": "any"}:
                write, read = _plain(self._dump_any, info_arg=True), _after(_check_finite, schema)
            case {"type": "datetime" | "time"}:
                read = _after(_with_standard_zone, schema)
            case {"type": "tagged-union", "choices": choices} if any(map(_is_member, choices)):
                schema = {**schema, "choices": {_json_value(tag): choices[tag] for tag in choices}}
            case _:
                pass
        outer = {name: schema[name] for name in _OUTER if name in schema}
        if write is not None and not key and "serialization" not in outer:
            outer["serialization"] = write
        return {**(schema if read is None else read), **outer}


_plain = core_schema.plain_serializer_function_ser_schema


# Any, in the three: functions of every kind of value.
def _before(function: Callable[[Any], object], schema: CoreSchema) -> CoreSchema:
    return core_schema.no_info_before_validator_function(function, _inner(schema))


def _after(function: Callable[[Any], object], schema: CoreSchema) -> CoreSchema:
    return core_schema.no_info_after_validator_function(function, _inner(schema))


def _around(function: Callable[[Any, Any], object], schema: CoreSchema) -> CoreSchema:
    return core_schema.no_info_wrap_validator_function(function, _inner(schema))


def _members_adjusted(
    schema: CoreSchema, *, key: bool
) -> tuple[CoreSchema, CoreSchema, CoreSchema]:
    """Returns a literal or an enum, how it is read, and how it is dumped.

    Keys are texts, and pydantic finds no member of an enum that a literal names by its value.
    """
    name = "members" if schema["type"] == "enum" else "expected"
    members = schema[name]
    if name == "members":  # without aliases
        members = [*dict.fromkeys(members)]
        schema = {**schema, name: members}
    if issubclass(schema.get("cls", object), Flag):
        return schema, _around(partial(_read_flags, _all_flags(schema["cls"]), key), schema), None
    if not key and (name == "members" or not any(map(_is_member, members))):
        return schema, _read_exactly_in(schema, members), None
    values = {(_key_text if key else _json_value)(member): member for member in members}
    literal = core_schema.literal_schema([*values])
    read = _after(values.__getitem__, _read_exactly_in(literal, [*values]) or literal)
    return schema, read, _plain(partial(_dump_member, members, key))


def _read_exactly_in(schema: CoreSchema, members: list[AnyValue]) -> CoreSchema:
    values = list(map(_json_value, members))
    if not all(isinstance(_raw_value(member), _Scalar) for member in members):
        return _around(
            partial(_read_by_text, dict(zip(map(_text, values), members, strict=True))), schema
        )
    has_integer = any(isinstance(value, int) for value in values)
    return _around(_read_exactly, schema) if has_integer else None


_Scalar = str | int | float | None


def _text(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _all_flags(kind: type[Flag]) -> int:
    return reduce(or_, [member.value for member in kind], 0)


# references point to the outermost schema, and serializers are looked up there
_OUTER = ("ref", "serialization")


def _inner(schema: CoreSchema) -> CoreSchema:
    return {name: schema[name] for name in schema if name not in _OUTER}


def _is_member(value: object) -> bool:
    return isinstance(value, Enum)


def _raw_value(value: AnyValue) -> AnyValue:
    return value.value if isinstance(value, Enum) else value


def _json_value(value: AnyValue) -> AnyValue:
    """Returns how JSON writes a member of an enum or a literal."""
    value = _raw_value(value)
    return value if isinstance(value, _Scalar) else to_jsonable_python(value, bytes_mode="base64")


def _key_text(value: AnyValue) -> str:
    """Returns the key in a JSON object that represents a literal or an enum member."""
    key = _json_value(value)
    return key if isinstance(key, str) else json.dumps(key)


# --- reading


class _Reading(local):
    """The numbers in the text that this thread reads, if a float could not keep one of them."""

    def __init__(self) -> None:
        self.numbers: dict[float, set[Decimal]] = {}


_reading = _Reading()
_LONG_NUMBER = re.compile(r"[\d.]{16}")  # a float keeps 15 digits


class _DecimalValidator:
    """A validator that keeps all digits of decimals, which pydantic reads as floats."""

    def __init__(self, validator: SchemaValidator) -> None:
        self._validator = validator

    def validate_json(self, text: str | bytes) -> AnyValue:
        outer, _reading.numbers = _reading.numbers, {}
        try:
            return self._validator.validate_json(_note_digits(text))
        finally:
            _reading.numbers = outer


def _note_digits[Text](text: Text) -> Text:
    """Returns `text`, and notes its numbers if a float could not keep one of them."""

    def note(number: str) -> float:
        value = float(number)
        _reading.numbers.setdefault(value, set()).add(Decimal(number))
        return value

    if isinstance(text, str | bytes) and _LONG_NUMBER.search(_as_text(text)):
        with suppress(ValueError, RecursionError, ArithmeticError):  # pydantic explains such a text
            json.loads(text, parse_float=note, parse_int=len)
    return text


def _as_text(text: str | bytes) -> str:
    return text if isinstance(text, str) else text.decode(errors="replace")


def _with_all_digits(value: object) -> object:
    """Returns a number with the digits of the text, of which a float may have lost some."""
    if isinstance(value, str):
        with suppress(ArithmeticError):  # pydantic's error is the better one
            return Decimal(value)
    if not isinstance(value, float) or not math.isfinite(value):
        return None if isinstance(value, bool | list) else value
    numbers = _reading.numbers.get(value, {Decimal(repr(value))})
    if len(numbers) > 1:
        raise ValueError("Several numbers here differ only in their last digits; send strings")
    (number,) = numbers
    return value if number == Decimal(repr(value)) else number


def _read_flags(
    flags: int,
    key: bool,  # noqa: FBT001 - private
    value: AnyValue,
    read: Callable[[object], AnyValue],
) -> AnyValue:
    """Returns a combination of `flags`; pydantic would take unknown ones and negative numbers."""
    if (key and value.isdecimal()) or (isinstance(value, float) and value.is_integer()):
        value = int(value)
    fits = isinstance(value, int) and not isinstance(value, bool) and not value & ~flags
    return read(value if fits else [])  # a list raises pydantic's error


def _read_exactly(value: object, read: Callable[[object], AnyValue]) -> AnyValue:
    """Returns a literal or enum member, unless it only equals the value, as `true` equals 1."""
    member = read(value)
    if isinstance(value, bool) is not isinstance(_json_value(member), bool):
        read([])  # raises pydantic's error for any other value
    return member


def _read_by_text(
    members: Mapping[str, AnyValue], value: object, read: Callable[[object], AnyValue]
) -> AnyValue:
    """Returns the member whose value JSON writes so, such as a tuple or a date."""
    text = _text(value)
    return members[text] if text in members else read([])  # raises pydantic's error


def _with_standard_zone[T: (datetime, time)](value: T) -> T:
    """Returns `value` with a time zone of the standard library in place of pydantic's own class."""
    offset = value.utcoffset()
    return value if offset is None else value.replace(tzinfo=timezone(offset) if offset else UTC)


def _check_finite[T](value: T) -> T:
    """Returns a value of type `Any`; raises pydantic's error for a NaN or an infinity in it."""
    if isinstance(value, float) and not math.isfinite(value):
        raise PydanticKnownError("finite_number")
    if isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            _check_finite(item)
    return value


# --- writing


def _dump_iterable(value: object, dump_items: Callable[[object], object]) -> object:
    if isinstance(value, Iterator):
        problem = f"a {type(value).__name__} can be read but once; make a list of it"
        raise ValueError(problem)  # noqa: TRY004 - as other values that JSON lacks
    if not isinstance(value, Iterable):
        raise _unexpected("iterable")
    return dump_items(list(value))


def _dump_set(value: object, dump_items: Callable[[object], list[object]]) -> list[object]:
    """Returns the items sorted, so that equal sets have equal text."""
    if not isinstance(value, set | frozenset):
        raise _unexpected("set")
    return sorted(dump_items(value), key=_sort_key)


def _sort_key(item: object) -> tuple[float, str]:
    """Sorts numbers first and by size, everything else by its text."""
    if isinstance(item, int | float) and not isinstance(item, bool):
        return item, ""
    return math.inf, json.dumps(item, sort_keys=True, default=str)


def _dump_member(members: list[object], key: bool, value: object) -> object:  # noqa: FBT001 - private
    if value not in members:
        raise _unexpected("literal")
    return _key_text(value) if key else _json_value(value)


def _dump_decimal(value: object) -> str:
    if not isinstance(value, Decimal):
        raise _unexpected("decimal")
    if not value.is_finite():
        raise ValueError(f"no JSON number is {value}")
    return str(value)


def _unexpected(expected: str) -> Exception:
    """Returns the error after which pydantic tries the next member of a union."""
    return PydanticSerializationUnexpectedValue(f"Expected `{expected}`")


# --- JSON schemas


class JsonSchemas(GenerateJsonSchema):
    """Makes JSON schemas that describe what a validator takes.

    Raises `TypeError` for types whose values JSON cannot return, such as iterators.
    """

    def field_is_present(self, field: CoreSchema) -> bool:
        return field.get("init") is not False

    def generator_schema(self, schema: CoreSchema) -> JsonSchema:
        raise TypeError("an Iterable or Generator can be read but once; declare list[…]")

    def dict_schema(self, schema: CoreSchema) -> JsonSchema:
        keys = schema.get("keys_schema")
        if keys is not None and not self._is_text(self.generate_inner(keys)):
            raise TypeError(
                "a dict has keys that no text of JSON stands for; declare keys of type str, int, "
                "an Enum or the like, or a list of pairs"
            )
        return super().dict_schema(schema)

    def _is_text(self, keys: JsonSchema) -> bool:
        if (reference := keys.get("$ref")) is not None:
            keys = self.get_schema_from_definitions(reference) or {}
        options: list[JsonSchema] = keys.get("anyOf", [])
        return keys.get("type") not in _NO_TEXT and all(map(self._is_text, options))

    def tuple_schema(self, schema: CoreSchema) -> JsonSchema:
        described = super().tuple_schema(schema)
        if not {"items", "prefixItems"} & described.keys():
            described["items"] = _NOTHING  # strict decoders want a type of items for `()` too
        return described

    def literal_schema(self, schema: CoreSchema) -> JsonSchema:
        _check_values([*schema["expected"]])
        return super().literal_schema(schema)

    def enum_schema(self, schema: CoreSchema) -> JsonSchema:
        members = [*dict.fromkeys(schema["members"])]  # without aliases
        _check_values(members)
        if not issubclass(schema["cls"], Flag):
            unique: CoreSchema = {**schema, "members": members}
            described = {**super().enum_schema(unique), "enum": list(map(_json_value, members))}
            is_array = described.get("type") == "array"
            return described | _array_type(described["enum"]) if is_array else described
        names = ", ".join(f"{member.value} {member.name}" for member in schema["cls"])
        return {
            "type": "integer",
            "minimum": 0,
            "maximum": _all_flags(schema["cls"]),
            "description": f"The sum of any of: {names}",
        }


_NO_TEXT = ("array", "object", "null")
_NOTHING = {"type": "null"}


def _array_type(values: list[AnyValue]) -> JsonSchema:
    """Returns the type of arrays with the types of their items, which strict decoders want."""
    items = [item for value in values for item in value]
    arrays = [item for item in items if isinstance(item, list)]
    types = [
        {"type": kind} for kind in sorted({_JSON_TYPES[type(item)] for item in items} - {"array"})
    ]
    types += [_array_type(arrays)] if arrays else []
    return {
        "type": "array",
        "items": types[0] if len(types) == 1 else {"anyOf": types or [_NOTHING]},
    }


_JSON_TYPES: Mapping[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


def _check_values(members: list[AnyValue]) -> None:
    """Raises `TypeError` for members that are the same in JSON."""
    values = list(map(_json_value, members))
    if len(set(map(_text, values))) < len(values):
        raise TypeError("two of its values are the same in JSON; remove one of them")
