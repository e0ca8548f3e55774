"""Compares a value with what was read back from its JSON."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from datetime import datetime, time
from functools import cached_property
from typing import Any

from ..errors import ValidationIssue

__all__ = ["difference"]

type AnyValue = Any  # Any: values of every type

_SCALARS = {str, bytes, int, bool, float}


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
    if kind in _SCALARS:
        same = value == back and (kind is not float or repr(value) == repr(back))
    elif same := _is_alike(value, back):
        for place, old, new in _parts(value, back):
            if (issue := difference(old, new, (*path, place))) is not None:
                return issue
        attributes = _other_attributes(value), _other_attributes(back)
        same = not any(attributes) or difference(*attributes) is None
    if same:
        return None
    remedy = (
        "; it has no fold and no names of time zones" if isinstance(value, datetime | time) else ""
    )
    return ValidationIssue(path, f"JSON does not keep this {_name(kind)} as it is{remedy}")


def _is_alike(value: AnyValue, back: AnyValue) -> bool:
    """Tells whether two values of one type agree, their parts apart."""
    for name in ("maxlen", "default_factory"):
        if getattr(value, name, None) != getattr(back, name, None):
            return False
    match value:
        case Mapping():
            return len(value) == len(back) and not any(map(difference, value, back))
        case AbstractSet():
            twins = {item: item for item in back}
            return value == back and not any(difference(item, twins[item]) for item in value)
        case Sequence() if not isinstance(value, bytearray):
            return len(value) == len(back)
        case _ if is_dataclass(value):
            return True
        case _:  # 1.0 and 1.00, fold and zones are equal; an object's text may hold its address
            return value == back and ("__dict__" in dir(value) or repr(value) == repr(back))


def _parts(value: AnyValue, back: AnyValue) -> Iterator[tuple[str | int, AnyValue, AnyValue]]:
    """Yields what makes up two values that are alike, by its place in JSON."""
    match value:
        case Mapping():
            yield from [(str(key), value[key], back[key]) for key in value]
        case Sequence() if not isinstance(value, bytearray):
            yield from [(at, *pair) for at, pair in enumerate(zip(value, back, strict=True))]
        case _ if is_dataclass(value):
            for field in fields(value):
                yield field.name, getattr(value, field.name), getattr(back, field.name)
        case _:
            pass


def _other_attributes(value: AnyValue) -> dict[str, AnyValue]:
    """Returns the attributes that are no fields of a dataclass and no cached properties."""
    kind, attributes = type(value), getattr(value, "__dict__", None)
    if not attributes:
        return {}
    known = {field.name for field in fields(kind)} if is_dataclass(kind) else frozenset[str]()
    return {
        name: attributes[name]
        for name in attributes
        if name not in known and not isinstance(getattr(kind, name, None), cached_property)
    }


def _name(kind: type[Any]) -> str:
    return kind.__qualname__.rpartition("<locals>.")[2]
