"""Decides whether JSON keeps a value as it is: by its type where that suffices, else by comparing.

`check_by_type` reads pydantic's core schemas, which say exactly what pydantic does with a type. It
knows the plain ones and gives up on every other, so that an unknown constraint, alias or validator
costs time and never yields a wrong answer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time
from enum import Flag
from functools import cached_property, partial
from itertools import chain
from operator import attrgetter, eq
from typing import Any

from .errors import ValidationIssue

__all__ = ["Check", "check_by_type", "difference"]

type AnyValue = Any  # Any: values of every type
type CoreSchema = Any  # Any: nested dicts of pydantic's own making
type Check = Callable[[Sequence[AnyValue]], bool]
"""Tells whether JSON keeps all values, which have one type; faster than one by one."""

_SCALARS = {"str": str, "bool": bool, "bytes": bytes, "date": date}
_CONTAINERS: dict[str, type[Any]] = {"list": list, "set": set, "frozenset": frozenset}
_LARGEST = 2**63  # far below the 4,300 digits that Python reads

# Keys of core schemas: those that change no value, and by type those that the checks here consider.
# Any other key, such as a constraint, makes a schema unknown.
_IGNORED = {"type", "ref", "metadata"}
_CONSIDERED: dict[str, set[str]] = {
    **{kind: set() for kind in (*_SCALARS, "int", "float", "uuid")},
    **{kind: {"items_schema"} for kind in _CONTAINERS},
    "datetime": {"microseconds_precision"},
    "enum": {"cls", "members", "sub_type"},
    "nullable": {"schema"},
    "default": {"schema", "default", "default_factory", "default_factory_takes_data"},
    "tuple": {"items_schema", "variadic_item_index"},
    "dict": {"keys_schema", "values_schema"},
    "definitions": {"definitions", "schema"},
    "definition-ref": {"schema_ref"},
    "dataclass": {
        *("cls", "config", "fields", "frozen", "generic_origin", "post_init", "schema", "slots")
    },
    "dataclass-args": {"dataclass_name", "fields", "collect_init_only", "computed_fields"},
    "dataclass-field": {"name", "schema", "init", "kw_only"},
}


class _UnknownError(Exception):
    """A core schema that the checks here do not know."""


def check_by_type(schema: CoreSchema, config: Mapping[str, object]) -> Check | None:
    """Returns the check for values of a core schema; `None` where only comparing can tell.

    A dataclass whose configuration is not `config` is such a case.
    """
    try:
        return _Compiler(config).check(schema)
    except _UnknownError:
        return None


class _Compiler:
    """Makes checks of core schemas, which may refer to one another."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self._config = config
        self._definitions: dict[str, CoreSchema] = {}
        self._by_reference: dict[str, Check] = {}

    def check(self, schema: CoreSchema) -> Check:
        _refuse_unknown_keys(schema)
        check = self._check(schema)
        if "ref" in schema:
            self._by_reference[schema["ref"]] = check
        return check

    def _check(self, schema: CoreSchema) -> Check:
        match schema:
            case {"type": "nullable", "schema": inner}:
                check = self.check(inner)
                return lambda values: check([value for value in values if value is not None])
            case {"type": "default", "schema": inner}:
                return self.check(inner)
            case {"type": "list" | "set" | "frozenset" as kind, "items_schema": items}:
                return _of_items(_CONTAINERS[kind], self.check(items))
            case {"type": "tuple", "items_schema": [items], "variadic_item_index": 0}:
                return _of_items(tuple, self.check(items))
            case {"type": "dict", "keys_schema": {"type": "str"} as keys, "values_schema": items}:
                return _of_mapping(self.check(keys), self.check(items))
            case {"type": "definitions", "definitions": definitions, "schema": inner}:
                self._definitions |= {definition["ref"]: definition for definition in definitions}
                return self.check(inner)
            case {"type": "definition-ref", "schema_ref": reference}:
                return self._by_reference.get(reference) or self._check_definition(reference)
            case {"type": "dataclass", "schema": {"type": "dataclass-args"}}:
                return self._of_dataclass(schema)
            case _:
                return _scalar_check(schema)

    def _check_definition(self, reference: str) -> Check:
        # Once: values of a type within itself may be nested too deeply, which only reading tells.
        if reference not in self._definitions:
            raise _UnknownError
        return self.check(self._definitions.pop(reference))

    def _of_dataclass(self, schema: CoreSchema) -> Check:
        arguments, kind, slots = schema["schema"], schema["cls"], schema.get("slots")
        for part in (arguments, *arguments["fields"]):
            _refuse_unknown_keys(part)
        config = {
            name: value for name, value in schema.get("config", {}).items() if name != "title"
        }
        all_init = all(field.get("init", True) for field in arguments["fields"])
        changes = schema.get("post_init") or arguments.get("computed_fields")
        if config != self._config or changes or not all_init:
            raise _UnknownError
        columns = [
            (attrgetter(field["name"]), self.check(field["schema"]))
            for field in arguments["fields"]
        ]

        def check(values: Sequence[AnyValue]) -> bool:
            if not _of_type(kind, values):
                return False
            if not slots and not {len(columns)}.issuperset(map(len, map(vars, values))):
                return False  # some instance has an attribute beside its fields
            return all(check(list(map(column, values))) for column, check in columns)

        return check


def _refuse_unknown_keys(schema: CoreSchema) -> None:
    considered = _CONSIDERED.get(schema["type"])
    if considered is None or schema.keys() - _IGNORED - considered:
        raise _UnknownError


def _scalar_check(schema: CoreSchema) -> Check:
    match schema:
        case {"type": "int"}:
            return _are_integers
        case {"type": "float"}:
            return _are_floats
        case {"type": "datetime", "microseconds_precision": "truncate"}:
            return _are_plain_times
        case {"type": "enum", "cls": kind, "members": members} if _is_plain_enum(kind, members):
            return partial(_of_type, kind)
        case {"type": "uuid"}:
            from uuid import UUID  # importing it asks the system for its platform

            return partial(_of_type, UUID)
        case {"type": kind} if kind in _SCALARS:
            return partial(_of_type, _SCALARS[kind])
        case _:
            raise _UnknownError


def _is_plain_enum(kind: type[Any], members: Sequence[AnyValue]) -> bool:
    kinds = {type(member.value) for member in members}
    return not issubclass(kind, Flag) and kinds in ({str}, {int})


def _of_type(kind: type[Any], values: Sequence[AnyValue]) -> bool:
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


def _of_items(kind: type[Any], check: Check) -> Check:
    return lambda values: _of_type(kind, values) and check(list(chain.from_iterable(values)))


def _of_mapping(check_keys: Check, check_items: Check) -> Check:
    return lambda values: (
        _of_type(dict, values)
        and check_keys(list(chain.from_iterable(values)))
        and check_items(list(chain.from_iterable(value.values() for value in values)))
    )


def difference(
    value: AnyValue, back: AnyValue, path: tuple[str | int, ...] = ()
) -> ValidationIssue | None:
    """Returns the first place where `back` is not the same as `value`; `None` if there is none.

    The same means equal and of the same type, except that an integer may come back as the float
    that equals it.
    """
    kind = type(value)
    if value is back or (kind is int and type(back) is float and back == value):
        return None  # where a float is declared, Python takes an integer too
    if type(back) is not kind:
        message = f"JSON makes a {_name(type(back))} of this {_name(kind)}"
        return ValidationIssue(path, message)
    same, children = _compared(value, back)
    if same:
        issues = (difference(old, new, (*path, place)) for place, old, new in children)
        if (issue := next(filter(None, issues), None)) is not None:
            return issue
        attributes = _other_attributes(value), _other_attributes(back)
        same = not any(attributes) or difference(*attributes) is None
    if same:
        return None
    remedy = (
        "; it has no fold and no names of time zones" if isinstance(value, datetime | time) else ""
    )
    return ValidationIssue(path, f"JSON does not keep this {_name(kind)} as it is{remedy}")


_BY_EQUALITY = (str, bytes, int, type(None))

type _Children = Sequence[tuple[str | int, AnyValue, AnyValue]]


def _compared(value: AnyValue, back: AnyValue) -> tuple[bool, _Children]:
    """Tells whether two values of one type agree, and which parts are to be compared yet."""
    for name in ("maxlen", "default_factory"):
        if getattr(value, name, None) != getattr(back, name, None):
            return False, ()
    if type(value) in _BY_EQUALITY:
        return value == back, ()
    match value:
        case Mapping():
            same = len(value) == len(back) and not any(map(difference, value, back))
            return same, [(str(key), value[key], back[key]) for key in value] if same else ()
        case set() | frozenset():
            twins = {item: item for item in back}
            same = len(value) == len(back) and value == back
            return same and not any(difference(item, twins[item]) for item in value), ()
        case Sequence() if not isinstance(value, bytearray):
            same = len(value) == len(back)
            return same, [(at, *pair) for at, pair in enumerate(zip(value, back, strict=False))]
        case _ if is_dataclass(value):
            names = [field.name for field in fields(value)]
            return True, [(name, getattr(value, name), getattr(back, name)) for name in names]
        case _:  # 1.0 and 1.00, fold and zones are equal; an object's text may hold its address
            return value == back and ("__dict__" in dir(value) or repr(value) == repr(back)), ()


def _other_attributes(value: AnyValue) -> dict[str, AnyValue]:
    """Returns the attributes that are no fields of a dataclass and no cached properties."""
    kind, attributes = type(value), getattr(value, "__dict__", {})
    known = {field.name for field in fields(kind)} if is_dataclass(kind) else frozenset[str]()
    return {
        name: attributes[name]
        for name in attributes
        if name not in known and not isinstance(getattr(kind, name, None), cached_property)
    }


def _name(kind: type[Any]) -> str:
    return kind.__qualname__.rpartition("<locals>.")[2]
