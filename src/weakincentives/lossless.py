"""Whether a value comes back from JSON as it was: decided by its type where that suffices, else by
comparison.

`check_by_type` reads pydantic's core schemas, which say exactly what pydantic does with a type. It
knows the plain ones and gives up on every other, so that an unknown constraint, alias or validator
costs time and never a wrong answer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time
from enum import Flag
from functools import cached_property, partial
from itertools import chain
from operator import attrgetter, eq
from typing import Any
from uuid import UUID

from .errors import ValidationIssue

__all__ = ["Check", "check_by_type", "difference"]

# Any, here and below: values of every type, and core schemas, which are nested dicts of pydantic's
# own making.
type Check = Callable[[Sequence[Any]], bool]
"""Says of several values of one type at once, which is faster than one by one, that JSON keeps all
of them.
"""

_SCALARS = {"str": str, "bool": bool, "bytes": bytes, "date": date, "uuid": UUID}
_CONTAINERS: dict[str, type[Any]] = {"list": list, "set": set, "frozenset": frozenset}
_LARGEST = 2**63  # far below the 4,300 digits that Python reads
_SILENT = {"type", "ref", "metadata"}
# What may be said in core schemas of the checks here; anything else, such as a constraint, makes a
# schema unknown.
_DEFAULT = {"schema", "default", "default_factory", "default_factory_takes_data"}
_ENUM = {"cls", "members", "sub_type"}
_DATACLASS = {"cls", "config", "fields", "frozen", "generic_origin", "post_init", "schema", "slots"}
_ARGUMENTS = {"type", "dataclass_name", "fields", "collect_init_only", "computed_fields"}
_FIELD = _SILENT | {"name", "schema", "init", "kw_only"}


class _UnknownError(Exception):
    """A core schema that the checks here do not know."""


def check_by_type(schema: Any, config: Mapping[str, object]) -> Check | None:
    """The check for values of a core schema; `None` where only a comparison can tell.

    A dataclass with a configuration of its own, other than `config`, is such a case.
    """
    try:
        return _Compiler(config).check(schema)
    except _UnknownError:
        return None


class _Compiler:
    """Makes checks of core schemas, which may refer to one another."""

    def __init__(self, config: Mapping[str, object]) -> None:
        self._config = config
        self._definitions: dict[str, Any] = {}
        self._by_reference: dict[str, Check] = {}

    def check(self, schema: Any) -> Check:
        check = _of_scalar(schema) or self._of_parts(schema)
        if "ref" in schema:
            self._by_reference[schema["ref"]] = check
        return check

    def _of_parts(self, schema: Any) -> Check:
        match schema, len(schema.keys() - _SILENT):
            case {"type": "definitions", "definitions": definitions, "schema": inner}, 2:
                self._definitions |= {definition["ref"]: definition for definition in definitions}
                return self.check(inner)
            case {"type": "definition-ref", "schema_ref": reference}, 1:
                return self._by_reference.get(reference) or self.check(
                    self._take_definition(reference)
                )
            case {"type": "nullable", "schema": inner}, 1:
                check = self.check(inner)
                return lambda values: check([value for value in values if value is not None])
            case {"type": "default", "schema": inner}, _ if schema.keys() - _SILENT <= _DEFAULT:
                return self.check(inner)
            case {"type": "list" | "set" | "frozenset" as kind, "items_schema": items}, 1:
                return _of_items(_CONTAINERS[kind], self.check(items))
            case {"type": "tuple", "items_schema": [items], "variadic_item_index": 0}, 2:
                return _of_items(tuple, self.check(items))
            case {
                "type": "dict",
                "keys_schema": {"type": "str"} as keys,
                "values_schema": items,
            }, 2:
                return _of_mapping(self.check(keys), self.check(items))
            case {"type": "dataclass", "schema": {"type": "dataclass-args"}}, _:
                return self._of_dataclass(schema)
            case _:
                raise _UnknownError

    def _take_definition(self, reference: str) -> Any:
        """The schema of that name, once: a type within itself may be nested too deeply, which only
        reading tells.
        """
        if reference not in self._definitions:
            raise _UnknownError
        return self._definitions.pop(reference)

    def _of_dataclass(self, schema: Any) -> Check:
        inner, of, slots = schema["schema"], schema["cls"], schema.get("slots")
        config = {
            name: value for name, value in schema.get("config", {}).items() if name != "title"
        }
        known = (
            schema.keys() - _SILENT <= _DATACLASS
            and inner.keys() <= _ARGUMENTS
            and config == self._config
        )
        known &= all(
            field.keys() <= _FIELD and field.get("init", True) for field in inner["fields"]
        )
        if not known or schema.get("post_init") or inner.get("computed_fields"):
            raise _UnknownError
        columns = [
            (attrgetter(field["name"]), self.check(field["schema"])) for field in inner["fields"]
        ]

        def check(values: Sequence[Any]) -> bool:
            if not _of_type(of, values):
                return False
            if not slots and not {len(columns)}.issuperset(map(len, map(vars, values))):
                return False  # it holds something beside its fields
            return all(check(list(map(column, values))) for column, check in columns)

        return check


def _of_scalar(schema: Any) -> Check | None:
    match schema, len(schema.keys() - _SILENT):
        case {"type": kind}, 0 if kind in _SCALARS:
            return partial(_of_type, _SCALARS[kind])
        case {"type": "int"}, 0:
            return _are_integers
        case {"type": "float"}, 0:
            return _are_floats
        case {"type": "datetime", "microseconds_precision": "truncate"}, 1:
            return _are_plain_times
        case {"type": "enum", "cls": of, "members": members}, _ if schema.keys() - _SILENT <= _ENUM:
            kinds = {type(member.value) for member in members}
            plain = not issubclass(of, Flag) and kinds in ({str}, {int})
            return partial(_of_type, of) if plain else None
        case _:
            return None


def _of_type(of: type[Any], values: Sequence[Any]) -> bool:
    return {of}.issuperset(map(type, values))


def _are_integers(values: Sequence[Any]) -> bool:
    return _of_type(int, values) and (
        not values or (min(values) > -_LARGEST and max(values) < _LARGEST)
    )


def _are_floats(values: Sequence[Any]) -> bool:
    return {float, int}.issuperset(map(type, values)) and all(map(eq, values, map(float, values)))


def _are_plain_times(values: Sequence[Any]) -> bool:
    plain = _of_type(datetime, values) and not any(map(attrgetter("fold"), values))
    return plain and all(value.tzinfo is UTC or value.tzinfo is None for value in values)


def _of_items(of: type[Any], check: Check) -> Check:
    return lambda values: _of_type(of, values) and check(list(chain.from_iterable(values)))


def _of_mapping(check_keys: Check, check_items: Check) -> Check:
    return lambda values: (
        _of_type(dict, values)
        and check_keys(list(chain.from_iterable(values)))
        and check_items(list(chain.from_iterable(value.values() for value in values)))
    )


_BY_EQUALITY = (str, bytes, int, type(None))


def difference(value: Any, back: Any, path: tuple[str | int, ...] = ()) -> ValidationIssue | None:
    """The first place at which `back` is not the same as `value`, types included; `None` for values
    that are alike.

    An integer may come back as the float that equals it.
    """
    kind = type(value)
    if _is_promoted(value, back):
        return None
    if type(back) is not kind:
        return ValidationIssue(path, f"JSON makes a {_name(type(back))} of this {_name(kind)}")
    remedy = (
        "; it has no fold and no names of time zones" if isinstance(value, datetime | time) else ""
    )
    other = ValidationIssue(path, f"JSON does not keep this {_name(kind)} as it is{remedy}")
    if getattr(value, "maxlen", None) != getattr(back, "maxlen", None):
        return other
    if value is back:
        return None
    if kind in _BY_EQUALITY:
        return None if value == back else other
    if isinstance(value, Mapping):
        return _different_mapping(value, back, path, other)
    if isinstance(value, set | frozenset):
        return _different_set(value, back, other)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray):
        if len(value) != len(back):
            return other
        places = enumerate(zip(value, back, strict=True))
        return _first(difference(one, two, (*path, at)) for at, (one, two) in places)
    if is_dataclass(value):
        pairs = [
            (field.name, getattr(value, field.name), getattr(back, field.name))
            for field in fields(value)
        ]
        return _first(difference(one, two, (*path, name)) for name, one, two in pairs) or _rest(
            value, back, other
        )
    # 1.0 and 1.00, fold, zones
    if value != back or ("__dict__" not in dir(value) and repr(value) != repr(back)):
        return other
    return _rest(value, back, other)


def _is_promoted(value: object, back: object) -> bool:
    """Whether an integer became the float that equals it: where a float is declared, Python takes
    an integer too.
    """
    return type(value) is int and type(back) is float and back == value


def _different_mapping(
    value: Any, back: Any, path: tuple[str | int, ...], other: ValidationIssue
) -> ValidationIssue | None:
    same_keys = len(value) == len(back) and not any(map(difference, value, back))
    if not same_keys or getattr(value, "default_factory", None) is not getattr(
        back, "default_factory", None
    ):
        return other
    return _first(difference(value[key], back[key], (*path, str(key))) for key in value)


def _different_set(value: Any, back: Any, other: ValidationIssue) -> ValidationIssue | None:
    twins = {item: item for item in back}
    same = len(value) == len(back) and all(
        item in twins and not difference(item, twins[item]) for item in value
    )
    return None if same else other


def _rest(value: object, back: object, other: ValidationIssue) -> ValidationIssue | None:
    """`other`, if the two differ in attributes beside the fields of a dataclass and what was
    computed and kept.
    """
    return other if difference(_kept(value), _kept(back)) else None


def _kept(value: object) -> dict[str, object]:
    of, attributes = type(value), getattr(value, "__dict__", {})
    known = {field.name for field in fields(of)} if is_dataclass(of) else frozenset[str]()
    rest = [name for name in attributes if name not in known]
    return {
        name: attributes[name]
        for name in rest
        if not isinstance(getattr(of, name, None), cached_property)
    }


def _first(found: Any) -> ValidationIssue | None:
    return next(filter(None, found), None)


def _name(of: type[Any]) -> str:
    return of.__qualname__.rpartition("<locals>.")[2]
