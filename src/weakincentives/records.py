"""Record types: dataclasses, pydantic models and TypedDicts, the types whose fields have names."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Any, is_typeddict

if TYPE_CHECKING:
    from typing_extensions import TypeIs

__all__ = [
    "RECORD_TYPES",
    "build",
    "field_names",
    "is_instance",
    "is_record",
    "is_record_type",
    "requires",
]

# Any: record types of every kind, models of a library that may not be imported among them.
type RecordType = type[Any]

RECORD_TYPES = "a dataclass, a pydantic model or a TypedDict"


def is_record_type(kind: object) -> "TypeIs[RecordType]":
    """Tells whether `kind` is a class whose fields have names."""
    return isinstance(kind, type) and (is_dataclass(kind) or _is_model(kind) or is_typeddict(kind))


def is_record(value: object) -> bool:
    """Tells whether `value` is an instance of a record type, or a dict, as for a TypedDict."""
    return isinstance(value, dict) or is_record_type(type(value))


def is_instance(value: object, kind: RecordType) -> bool:
    """Tells whether `value` is of a record type; for a TypedDict, a dict with keys that fit."""
    if not is_typeddict(kind):
        return isinstance(value, kind)
    return isinstance(value, dict) and kind.__required_keys__ <= value.keys() <= field_names(kind)


def field_names(record: object) -> frozenset[str]:
    """Returns the names of the fields of a record type or a record; none for anything else."""
    if isinstance(record, Mapping):
        return frozenset(record)
    if is_dataclass(record):
        # `fields` leaves out ClassVar and InitVar, which instances do not hold.
        return frozenset([field.name for field in fields(record)])
    kind: Any = record if isinstance(record, type) else type(record)  # Any: see `RecordType`
    if _is_model(kind):
        return frozenset(kind.__pydantic_fields__)
    return frozenset(kind.__annotations__) if is_typeddict(kind) else frozenset()


def requires(kind: RecordType) -> frozenset[str]:
    """Returns the names of the fields without a default."""
    if is_typeddict(kind):
        return frozenset(kind.__required_keys__)
    if _is_model(kind):
        model_fields = kind.__pydantic_fields__
        return frozenset([name for name in model_fields if model_fields[name].is_required()])
    return frozenset(
        [
            field.name
            for field in fields(kind)
            if field.init and field.default is MISSING and field.default_factory is MISSING
        ]
    )


def build(kind: RecordType) -> object:
    """Returns an instance of a record type made without arguments.

    Raises `TypeError` for a TypedDict with required keys, and what the constructor raises.
    """
    if is_typeddict(kind) and (names := requires(kind)):
        raise TypeError(f"{kind.__name__} requires {', '.join(sorted(names))}")
    return kind()


def _is_model(kind: Any) -> bool:  # Any: see `RecordType`
    return hasattr(kind, "__pydantic_fields__") and not is_dataclass(kind)
