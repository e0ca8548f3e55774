"""Decides whether a value survives JSON unchanged: by its type if possible, or by comparing.

With `check_by_type`, a snapshot of plain dataclasses is three times as fast as when it is read back
and compared. The check uses pydantic's core schemas, which specify exactly how pydantic handles a
type. It recognizes the plain ones and gives up on all others, so an unknown constraint, alias or
validator costs time but never gives a wrong answer.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time
from enum import Flag
from functools import cached_property, partial
from itertools import chain
from operator import attrgetter, eq
from typing import Any, cast

from ..errors import ValidationIssue

__all__ = ["Check", "check_by_type", "difference"]

type AnyValue = Any  # Any: values of any type
type CoreSchema = Any  # Any: nested dicts that pydantic creates
type Check = Callable[[Sequence[AnyValue]], bool]
"""Returns whether JSON preserves all the values of one type; faster than checking each one."""


# --- by the type


# Core schema keys, for the types below, that do not change a value. A schema with any other key,
# such as a constraint or an alias, is unknown.
_PLAIN_KEYS = {
    *("type", "ref", "metadata", "schema", "items_schema", "keys_schema", "values_schema"),
    *("variadic_item_index", "default", "default_factory", "default_factory_takes_data"),
    *("definitions", "schema_ref", "cls", "members", "sub_type", "microseconds_precision"),
    *("config", "fields", "frozen", "generic_origin", "post_init", "slots", "dataclass_name"),
    *("collect_init_only", "computed_fields", "name", "init", "kw_only"),
}
_LARGEST = 2**63  # far below the 4,300 digits that Python can parse


class _UnknownError(Exception):
    """A core schema that these checks do not recognize."""


def check_by_type(schema: CoreSchema, config: Mapping[str, object]) -> Check | None:
    """Returns the check for values of a core schema; `None` if the values must be compared.

    For example, a dataclass whose configuration is not `config` must be compared, and so must a
    recursive type, because its values may be nested too deeply.
    """
    try:
        return _check(schema, config, {})
    except _UnknownError:
        return None


def _check(schema: CoreSchema, config: Mapping[str, object], named: dict[str, AnyValue]) -> Check:
    """Returns the check for a core schema; `named` maps names to definitions or their checks."""
    check = partial(_check, config=config, named=named)
    if not schema.keys() <= _PLAIN_KEYS:
        raise _UnknownError
    match schema:
        case {"type": "definitions", "definitions": definitions, "schema": inner}:
            named |= {definition["ref"]: definition for definition in definitions}
            return check(inner)
        case {"type": "definition-ref", "schema_ref": name} if name in named:
            found = named.pop(name)  # so that a recursive reference is unknown
            named[name] = found = found if callable(found) else check(found)
            return cast(Check, found)
        case {"type": "default", "schema": inner}:
            return check(inner)
        case {"type": "nullable", "schema": inner}:
            check_value = check(inner)
            return lambda values: check_value([value for value in values if value is not None])
        case {"type": "dataclass", "schema": {"type": "dataclass-args"} as arguments}:
            if not _is_plain_class(schema, arguments, config):
                raise _UnknownError
            columns = [
                (attrgetter(field["name"]), check(field["schema"])) for field in arguments["fields"]
            ]
            return partial(_is_kept, schema["cls"], columns, slots=schema.get("slots"))
        case {"type": "enum", "cls": kind, "members": members} if not issubclass(kind, Flag):
            if {type(member.value) for member in members} not in ({str}, {int}):
                raise _UnknownError
            return partial(_of_type, kind)
        case {"type": kind, **rules} if kind in _SCALARS:
            if rules.get("microseconds_precision", "truncate") != "truncate":
                raise _UnknownError
            return _SCALARS[kind]
        case _:
            return _of_container(schema, check)


def _of_container(schema: CoreSchema, check: Callable[[CoreSchema], Check]) -> Check:
    match schema:
        case {"type": "list" | "set" | "frozenset" as kind, "items_schema": items}:
            containers = {"list": list, "set": set, "frozenset": frozenset}
            return _of_items(containers[kind], check(items))
        case {"type": "tuple", "items_schema": [items], "variadic_item_index": 0}:
            return _of_items(tuple, check(items))
        case {"type": "dict", "keys_schema": {"type": "str"} as keys, "values_schema": items}:
            return _of_mapping(check(keys), check(items))
        case _:
            raise _UnknownError


def _is_plain_class(
    schema: CoreSchema, arguments: CoreSchema, config: Mapping[str, object]
) -> bool:
    """Returns whether a dataclass defines no settings, computed values or `__post_init__`."""
    own = {name: value for name, value in schema.get("config", {}).items() if name != "title"}
    return (
        own == config
        and not schema.get("post_init")
        and not arguments.get("computed_fields")
        and arguments.keys() <= _PLAIN_KEYS
        and all(
            field.keys() <= _PLAIN_KEYS and field.get("init", True) for field in arguments["fields"]
        )
    )


def _is_kept(
    kind: type[object],
    columns: Sequence[tuple[Callable[[AnyValue], AnyValue], Check]],
    values: Sequence[AnyValue],
    *,
    slots: bool,
) -> bool:
    if not _of_type(kind, values):
        return False
    if not slots and not {len(columns)}.issuperset(map(len, map(vars, values))):
        return False  # an instance has an attribute that is not a field
    return all(check(list(map(column, values))) for column, check in columns)


def _of_items(kind: type[object], check: Check) -> Check:
    return lambda values: _of_type(kind, values) and check(list(chain.from_iterable(values)))


def _of_mapping(check_keys: Check, check_items: Check) -> Check:
    return lambda values: (
        _of_type(dict, values)
        and check_keys(list(chain.from_iterable(values)))
        and check_items(list(chain.from_iterable(value.values() for value in values)))
    )


def _of_type(kind: type[object], values: Sequence[AnyValue]) -> bool:
    return {kind}.issuperset(map(type, values))


def _are_integers(values: Sequence[AnyValue]) -> bool:
    if not values or not _of_type(int, values):
        return not values
    return bool(min(values) > -_LARGEST and max(values) < _LARGEST)


def _are_floats(values: Sequence[AnyValue]) -> bool:
    return {float, int}.issuperset(map(type, values)) and all(map(eq, values, map(float, values)))


def _are_plain_times(values: Sequence[AnyValue]) -> bool:
    plain = _of_type(datetime, values) and not any(map(attrgetter("fold"), values))
    return plain and all(value.tzinfo is UTC or value.tzinfo is None for value in values)


def _are_uuids(values: Sequence[AnyValue]) -> bool:
    from uuid import UUID  # importing it queries the platform

    return _of_type(UUID, values)


_SCALARS: Mapping[str, Check] = {
    "bool": partial(_of_type, bool),
    "bytes": partial(_of_type, bytes),
    "date": partial(_of_type, date),
    "datetime": _are_plain_times,
    "float": _are_floats,
    "int": _are_integers,
    "str": partial(_of_type, str),
    "uuid": _are_uuids,
}


# --- by comparing


_BY_EQUALITY = {str, bytes, int, bool, float}
_WHOLE = -1  # the place of a part with no place in JSON, such as a length


def difference(
    value: AnyValue, back: AnyValue, path: tuple[str | int, ...] = ()
) -> ValidationIssue | None:
    """Returns the first place where `back` differs from `value`, or `None` if they are the same.

    Two values are the same if they are equal and have the same type. However, an integer may come
    back as the equal float.
    """
    kind = type(value)
    if value is back or (kind is int and type(back) is float and back == value):
        return None  # Python allows an integer where a float is declared
    if type(back) is not kind:
        message = f"JSON makes a {_name(type(back))} of this {_name(kind)}"
        return ValidationIssue(path, message)
    if kind in _BY_EQUALITY:
        is_same = value == back and (kind is not float or repr(value) == repr(back))
        return None if is_same else _changed(value, path)
    for place, old, new in _parts(value, back):
        if (issue := difference(old, new, (*path, place))) is not None:
            return _changed(value, path) if place == _WHOLE else issue
    return None


def _changed(value: AnyValue, path: tuple[str | int, ...]) -> ValidationIssue:
    remedy = (
        "; it has no fold and no names of time zones" if isinstance(value, datetime | time) else ""
    )
    return ValidationIssue(path, f"JSON does not keep this {_name(type(value))} as it is{remedy}")


def _parts(value: AnyValue, back: AnyValue) -> Iterator[tuple[str | int, AnyValue, AnyValue]]:
    """Yields the parts of two values of one type in pairs, with their JSON path item or `_WHOLE`.

    After the first pair that differs, parts may be missing.
    """
    for name in ("maxlen", "default_factory"):
        if hasattr(value, name):
            yield _WHOLE, getattr(value, name), getattr(back, name)
    match value:
        case Mapping():
            yield _WHOLE, [*value], [*back]
            yield from [(str(key), value[key], back[key]) for key in value]
        case AbstractSet():
            yield _WHOLE, True, bool(value == back)
            twins = {item: item for item in back}
            yield _WHOLE, [*value], [twins[item] for item in value]
        case Sequence() if not isinstance(value, bytearray):
            yield _WHOLE, len(value), len(back)
            yield from [(at, *pair) for at, pair in enumerate(zip(value, back, strict=True))]
        case _ if is_dataclass(value):
            for field in fields(value):
                yield field.name, getattr(value, field.name), getattr(back, field.name)
        case _:
            yield _WHOLE, True, bool(value == back)
            if "__dict__" not in dir(value):  # equality ignores trailing zeros, fold and zones
                yield _WHOLE, repr(value), repr(back)  # another repr may contain an address
    if any(attributes := (_other_attributes(value), _other_attributes(back))):
        yield _WHOLE, *attributes


def _other_attributes(value: AnyValue) -> dict[str, AnyValue]:
    """Returns the attributes that are neither dataclass fields nor cached properties."""
    kind, attributes = type(value), getattr(value, "__dict__", None)
    if not attributes:
        return {}
    known = {field.name for field in fields(kind)} if is_dataclass(kind) else frozenset[str]()
    return {
        name: attributes[name]
        for name in attributes
        if name not in known and not isinstance(getattr(kind, name, None), cached_property)
    }


def _name(kind: type[object]) -> str:
    return kind.__qualname__.rpartition("<locals>.")[2]
