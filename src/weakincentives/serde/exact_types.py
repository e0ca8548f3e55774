"""Adjusts how pydantic validates, serializes and describes types, to keep this package's promises.

`make_exact` rebuilds an adapter from a copy of its core schema. The copy differs only where strict
mode breaks a promise. When pydantic reads JSON, it accepts `true` for an enum member whose value is
1, cannot find a member whose JSON differs from its value, loses digits of decimals by reading them
as floats, accepts infinities for `Any`, and uses its own time zone class. When it writes JSON, it
leaves sets unsorted, accepts a decimal that is NaN or infinite, includes fields with `init=False`,
and dumps a value in an `Any` field differently from the same value on its own. Checking values when
they are written would not be enough, because most of these problems affect text that other programs
wrote.

`JsonSchemas` describes the JSON that the rebuilt adapters accept, and rejects types that cannot be
restored from JSON. The package imports this module on first use, because it imports pydantic.
"""

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, time, timezone
from decimal import Decimal
from enum import Enum, Flag
from functools import partial, reduce
from operator import attrgetter, or_
from typing import Any

from pydantic import SerializationInfo, TypeAdapter, ValidationInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import (
    PydanticKnownError,
    PydanticSerializationUnexpectedValue,
    SchemaSerializer,
    SchemaValidator,
    core_schema,
    to_jsonable_python,
)

from .json_types import AnyValue, Json, JsonSchema, comparable

__all__ = ["CONFIG", "JsonSchemas", "make_exact"]

# Any in both: pydantic's nested dicts; a ConfigDict or CoreConfig.
type CoreSchema = Any
type PydanticConfig = Any
type DumpAny = Callable[[object, SerializationInfo], object]

CONFIG: PydanticConfig = {
    "strict": True,
    "ser_json_bytes": "base64",
    "val_json_bytes": "base64",
    "ser_json_inf_nan": "constants",
    "allow_inf_nan": False,
}


# --- core schemas


def make_exact(adapter: "TypeAdapter[AnyValue]", extra: str, dump_any: DumpAny) -> None:
    """Makes an adapter parse and dump values as `serde.parse` and `serde.dump` promise.

    `extra` determines whether unknown keys are an error: `"forbid"` or `"ignore"`. `dump_any`
    converts a value whose declared type is `Any` to JSON.
    """
    schema: CoreSchema = adapter.core_schema
    definitions = {item["ref"]: item for item in schema.get("definitions", ())}
    exact = _Exact(extra, dump_any, definitions)
    schema = exact.copy(schema)
    # Do not use prebuilt ones: a pydantic model's own validator would not keep these promises.
    adapter.serializer = SchemaSerializer(schema, CONFIG, _use_prebuilt=False)
    validator: AnyValue = SchemaValidator(schema, CONFIG, _use_prebuilt=False)
    if exact.has_decimals:  # the wrapper implements the only method we use
        validator = _DecimalValidator(validator)
    adapter.validator = validator


class _Exact:
    def __init__(
        self, extra: str, dump_any: DumpAny, definitions: Mapping[str, CoreSchema]
    ) -> None:
        self._extra = extra
        self._dump_any = dump_any
        self._definitions = definitions
        self.has_decimals = False

    def copy(self, schema: CoreSchema, *, key: bool = False) -> CoreSchema:
        """Returns an exact copy; with `key`, the schema describes a key of a JSON object."""
        if isinstance(schema, list | tuple):
            return type(schema)([self.copy(item, key=key) for item in schema])
        if not isinstance(schema, dict):
            return schema
        definition = self._definitions.get(schema.get("schema_ref", ""), {})
        if key and definition.get("type") == "enum":  # keys and values are read differently
            return self.copy(_inner(definition), key=key)
        # A dict without a type is not a schema. It maps names to schemas, as for a TypedDict's
        # fields.
        literal = ("metadata", "default") if isinstance(schema.get("type"), str) else ()
        copy = {
            name: value if name in literal else self.copy(value, key=name == "keys_schema")
            for name, value in schema.items()
        }
        if copy.get("init") is False:
            copy["serialization_exclude"] = True
        if copy.get("type") == "model":  # a model's own settings override ours
            extra = {"extra_fields_behavior": self._extra}
            copy["config"] = {**CONFIG, **extra, **copy.get("config", {})}
        return self._adjusted(copy, key=key)

    def _adjusted(self, schema: CoreSchema, *, key: bool) -> CoreSchema:
        """Returns one core schema with functions where pydantic would read or dump differently."""
        write: CoreSchema = None
        read: CoreSchema = None
        match schema:
            case {"type": "enum", "cls": kind} if issubclass(kind, Flag):
                read = _after(partial(_flags_in, kind), core_schema.int_schema(ge=0, strict=True))
                write, key = _dumper(partial(_is_of, kind), attrgetter("value")), False
            case {"type": "literal", "expected": members} | {"type": "enum", "members": members}:
                schema, read = _with_members(schema, members, key=key)
                if schema["type"] == "literal" and any(
                    isinstance(member, Enum) for member in members
                ):
                    write = _dumper(members.__contains__, _json_value)
            case {"type": "set" | "frozenset"}:
                write = core_schema.wrap_serializer_function_ser_schema(_dump_set)
            case {"type": "generator"}:  # as a list: pydantic would return a single-use iterator
                schema = {**schema, "type": "list"}
                write = _plain(self._dump_any, info_arg=True)
            case {"type": "decimal"} if not key:
                lax = {**schema, "strict": False}  # strict mode would reject int and float
                write = _dumper(partial(_is_of, Decimal), _finite_text)
                read = _before(_with_all_digits, lax)
                self.has_decimals = True
            case {"type": "json"} if self.has_decimals:
                read = _before(_noted, schema)
            case {"type": "any"}:
                write, read = _plain(self._dump_any, info_arg=True), _after(_check_finite, schema)
            case {"type": "datetime" | "time"}:
                read = _after(_with_standard_zone, schema)
            case {"type": "tagged-union", "choices": choices}:
                schema = {**schema, "choices": {_json_value(tag): choices[tag] for tag in choices}}
            case _:
                pass
        outer = {name: schema[name] for name in _OUTER if name in schema}
        if write is not None and not key and "serialization" not in outer:
            outer["serialization"] = write
        return {**(schema if read is None else read), **outer}


_plain = core_schema.plain_serializer_function_ser_schema


def _dumper(
    accepts: Callable[[AnyValue], bool], convert: Callable[[AnyValue], object]
) -> CoreSchema:
    """Returns a serializer; if it rejects a value, pydantic tries the union's next member."""

    def dump(value: AnyValue) -> object:
        if not accepts(value):
            raise PydanticSerializationUnexpectedValue("another type is declared")
        return convert(value)

    return _plain(dump)


def _before(
    function: Callable[[AnyValue, "ValidationInfo[_Numbers]"], object], schema: CoreSchema
) -> CoreSchema:
    return core_schema.with_info_before_validator_function(function, _inner(schema))


def _after(function: Callable[[AnyValue], object], schema: CoreSchema) -> CoreSchema:
    return core_schema.no_info_after_validator_function(function, _inner(schema))


def _with_members(
    schema: CoreSchema, members: list[AnyValue], *, key: bool
) -> tuple[CoreSchema, CoreSchema]:
    """Returns a literal or an enum without aliases, and a schema to read it if pydantic cannot.

    pydantic cannot find a member whose JSON differs from its value, a number in a key, or an enum
    member in a literal. It also accepts `true` for 1.
    """
    texts = members
    if schema["type"] == "enum":
        members = [*dict.fromkeys(members)]
        schema = {**schema, "members": members}
        texts = [member.value for member in members]
    if {str}.issuperset(map(type, texts)):
        return schema, None
    values = [*map(_key_text if key else _json_value, members)]
    by_value = dict(zip(map(comparable, values), members, strict=True))
    if len(by_value) < len(members):
        raise TypeError("two of its values are equal in JSON; remove one of them")
    explain = schema if schema["type"] == "enum" else core_schema.literal_schema(values)
    return schema, core_schema.no_info_wrap_validator_function(
        partial(_read_member, by_value), _inner(explain)
    )


# References point to the outermost schema, and pydantic looks for serializers there.
_OUTER = ("ref", "serialization")


def _inner(schema: CoreSchema) -> CoreSchema:
    return {name: schema[name] for name in schema if name not in _OUTER}


def _json_value(member: AnyValue) -> AnyValue:
    return to_jsonable_python(member, bytes_mode="base64")


def _key_text(member: AnyValue) -> AnyValue:
    (key,) = to_jsonable_python({member: None}, bytes_mode="base64")
    return key


def _is_of(kind: type[object], value: object) -> bool:
    return isinstance(value, kind)


# --- reading


# Maps floats to the numbers in the JSON text; empty unless one has more digits than a float keeps.
type _Numbers = dict[float, set[Decimal]]
_LONG_NUMBER = re.compile(r"[\d.]{16}")  # a float preserves 15 digits


class _DecimalValidator:
    """A validator that preserves every digit of a decimal, which pydantic would read as a float."""

    def __init__(self, validator: SchemaValidator) -> None:
        self._validator = validator

    def validate_json(self, text: str | bytes) -> AnyValue:
        numbers: _Numbers = {}
        _note_digits(text if isinstance(text, str) else text.decode(errors="replace"), numbers)
        return self._validator.validate_json(text, context=numbers)


def _note_digits(text: str, numbers: _Numbers) -> None:
    """Adds the numbers in the JSON `text` to `numbers`."""

    def note(number: str) -> float:
        value = float(number)
        numbers.setdefault(value, set()).add(Decimal(number))
        return value

    if _LONG_NUMBER.search(text):
        with suppress(ValueError, RecursionError, ArithmeticError):  # pydantic reports invalid text
            json.loads(text, parse_float=note, parse_int=len)


def _noted[T](value: T, info: "ValidationInfo[_Numbers]") -> T:
    """Returns `value` unchanged, after recording the numbers in it if it is JSON text."""
    if isinstance(value, str):
        _note_digits(value, info.context)
    return value


def _with_all_digits(value: object, info: "ValidationInfo[_Numbers]") -> object:
    """Returns a number with all the digits that it has in the text; a float may have lost some."""
    if isinstance(value, str):
        with suppress(ArithmeticError):  # pydantic's own error is better
            return Decimal(value)
    if not isinstance(value, float) or not math.isfinite(value):
        return None if isinstance(value, bool | list) else value
    numbers = info.context.get(value, {Decimal(repr(value))})
    if len(numbers) > 1:
        raise ValueError("several of these numbers differ only in their last digits; send strings")
    (number,) = numbers
    return value if number == Decimal(repr(value)) else number


def _flags_in(kind: type[Flag], value: int) -> Flag:
    """Returns the combination of flags; rejects unknown ones even if their class accepts them."""
    if value & ~_all_flags(kind):
        members = " or ".join([f"{member.value}" for member in kind])
        raise PydanticKnownError("enum", {"expected": f"{members}, or a sum of them"})
    return kind(value)


def _all_flags(kind: type[Flag]) -> int:
    return reduce(or_, [member.value for member in kind], 0)


def _read_member(
    members: Mapping[object, AnyValue], value: Json, read: Callable[[object], AnyValue]
) -> AnyValue:
    """Returns the member whose JSON is `value`, or one that the enum returns for unknown values."""
    found = comparable(value)
    if found in members:
        return members[found]
    member = read(value)  # raises pydantic's error unless the enum defines `_missing_`
    return read([]) if _json_value(member) == value else member  # Python's True equals 1


def _with_standard_zone[T: (datetime, time)](value: T) -> T:
    """Returns `value` with a standard-library time zone instead of pydantic's own class."""
    offset = value.utcoffset()
    return value if offset is None else value.replace(tzinfo=timezone(offset) if offset else UTC)


def _check_finite[T](value: T) -> T:
    """Returns a value of type `Any`; raises pydantic's error for any NaN or infinity in it."""
    if isinstance(value, float) and not math.isfinite(value):
        raise PydanticKnownError("finite_number")
    if isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            _check_finite(item)
    return value


# --- writing


def _dump_set(value: object, dump_items: Callable[[object], list[object]]) -> list[object]:
    """Returns the items in sorted order, so that equal sets produce the same text."""
    if not isinstance(value, set | frozenset):
        raise PydanticSerializationUnexpectedValue("another type is declared")
    return sorted(dump_items(value), key=_sort_key)


def _sort_key(item: object) -> tuple[float, str]:
    """Returns a key that sorts numbers first, by value, and everything else by its JSON text."""
    if isinstance(item, int | float) and not isinstance(item, bool):
        return item, ""
    return math.inf, json.dumps(item, sort_keys=True, default=str)


def _finite_text(value: Decimal) -> str:
    if not value.is_finite():
        raise ValueError(f"JSON cannot represent the number {value}")
    return str(value)


# --- JSON schemas


class JsonSchemas(GenerateJsonSchema):
    """Generates JSON Schemas that describe the values that a validator accepts.

    Raises `TypeError` for types whose values cannot be restored from JSON, such as iterators.
    """

    def field_is_present(self, field: CoreSchema) -> bool:
        return field.get("init") is not False

    def generator_schema(self, schema: CoreSchema) -> JsonSchema:
        raise TypeError("an Iterable or Generator can be read only once; declare list[…]")

    def dict_schema(self, schema: CoreSchema) -> JsonSchema:
        types = self._types(self.generate_inner(schema.get("keys_schema", {"type": "any"})))
        if types & {"array", "object", "null"}:
            raise TypeError(
                "JSON cannot represent the keys of this dict; declare keys of type str, int, an "
                "Enum or similar, or use a list of pairs"
            )
        described = super().dict_schema(schema)
        if types != {"string"}:  # the rule is for numbers, but keys are strings
            described.pop("propertyNames", None)
        return described

    def _types(self, schema: JsonSchema) -> set[str]:
        if (reference := schema.get("$ref")) is not None:
            schema = self.get_schema_from_definitions(reference) or {}
        inner = map(self._types, schema.get("anyOf", ()))
        return {schema.get("type", "any")}.union(*inner)

    def literal_schema(self, schema: CoreSchema) -> JsonSchema:
        values = [*map(_json_value, schema["expected"])]  # bytes in their JSON form
        unique: CoreSchema = {**schema, "expected": values}
        return super().literal_schema(unique)

    def enum_schema(self, schema: CoreSchema) -> JsonSchema:
        if not issubclass(schema["cls"], Flag):
            members = [*dict.fromkeys(schema["members"])]  # without aliases
            unique: CoreSchema = {**schema, "members": members}
            return {**super().enum_schema(unique), "enum": [*map(_json_value, members)]}
        names = ", ".join(f"{member.value} {member.name}" for member in schema["cls"])
        return {
            "type": "integer",
            "minimum": 0,
            "maximum": _all_flags(schema["cls"]),
            "description": f"The sum of any of: {names}",
        }
