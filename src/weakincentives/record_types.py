"""Record types, whose fields have names: dataclasses, pydantic models and TypedDicts.

A record type can also be an alias, an `Annotated` type, or a type with arguments, such as
`Box[int]`.
"""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, NewType, TypeVar, get_args, get_origin

if TYPE_CHECKING:
    from typing_extensions import TypeIs

__all__ = [
    "RECORD_TYPES",
    "AnyType",
    "build",
    "field_names",
    "is_instance",
    "is_record",
    "is_record_type",
    "is_typed_dict",
    "origin_of",
    "record_class",
    "requires",
    "unaliased",
    "unaliased_once",
]

# Any, in both: types of every form, including classes of a library that may not be imported.
type RecordType = type[Any]
type AnyType = Any

RECORD_TYPES = "a dataclass, a pydantic model or a TypedDict"


def unaliased(kind: AnyType) -> AnyType:
    """Returns the type behind a `type` alias or a `NewType`, and any other type unchanged.

    An alias of a type that is not defined yet is also returned unchanged.
    """
    for _ in range(_MAX_ALIASES):
        inner = unaliased_once(kind)
        if inner is kind:
            break
        kind = inner
    return kind


def unaliased_once(kind: AnyType) -> AnyType:
    """Like `unaliased`, but returns the value of the outermost alias, even if it is an alias."""
    alias: AnyType = origin_of(kind) or kind
    if isinstance(alias, NewType):
        return alias.__supertype__
    if type(alias).__name__ == "TypeAliasType":  # from typing or typing_extensions
        try:
            value = alias.__value__
        except NameError:
            return kind
        return _with_arguments(
            value, dict(zip(alias.__type_params__, get_args(kind), strict=False))
        )
    return kind


def _with_arguments(kind: AnyType, arguments: Mapping[object, AnyType]) -> AnyType:
    """Returns `kind`, replacing the type parameters that are in `arguments`."""
    if isinstance(kind, TypeVar):
        return arguments.get(kind, kind)
    parameters = getattr(kind, "__parameters__", ())
    if not arguments or not parameters:
        return kind
    return kind[tuple([arguments.get(parameter, parameter) for parameter in parameters])]


def origin_of(kind: AnyType) -> AnyType:
    """Like `get_origin`, which type checkers assume returns a `ParamSpec` for `Any`."""
    return get_origin(kind)


_MAX_ALIASES = 100  # an alias may refer to itself


def record_class(kind: AnyType) -> AnyType:
    """Returns the class of a record type's instances, and any other type unchanged."""
    if isinstance(kind, type):
        return kind
    kind = unaliased(kind)
    while origin_of(kind) is Annotated:
        kind = unaliased(get_args(kind)[0])
    origin = origin_of(kind)
    return origin if _is_record_class(origin) else kind


def _is_record_class(kind: object) -> "TypeIs[RecordType]":
    if not isinstance(kind, type):
        return False
    is_object = _is_model(kind) and not getattr(kind, "__pydantic_root_model__", False)
    return is_dataclass(kind) or is_object or is_typed_dict(kind)


def is_record_type(kind: object) -> "TypeIs[RecordType]":
    """Returns whether `kind` is a type whose fields have names."""
    return _is_record_class(record_class(kind))


def is_typed_dict(kind: object) -> bool:
    """Returns whether `kind` is a TypedDict from typing or typing_extensions."""
    return isinstance(kind, type) and dict in kind.__bases__ and hasattr(kind, "__total__")


def is_record(value: object) -> bool:
    """Returns whether `value` is an instance of a record type, or a dict, as for a TypedDict."""
    kind = type(value)
    return isinstance(value, dict) or _is_record_class(kind) or _is_model(kind)


def is_instance(value: object, kind: RecordType) -> bool:
    """Returns whether `value` is an instance of `kind`; for a TypedDict, a dict with valid keys."""
    kind = record_class(kind)
    if not is_typed_dict(kind):
        return isinstance(value, kind)
    return isinstance(value, dict) and requires(kind) <= value.keys() <= field_names(kind)


def field_names(record: object) -> frozenset[str]:
    """Returns the field names of a record type or a record; empty for any other value."""
    if isinstance(record, Mapping):
        return frozenset(record)
    if is_dataclass(record):
        # `fields` omits ClassVar and InitVar, which instances do not contain.
        return frozenset([field.name for field in fields(record)])
    kind: AnyType = record if isinstance(record, type) else type(record)
    if _is_model(kind):
        return frozenset(kind.__pydantic_fields__)
    # not `__annotations__`, which may contain names that are not defined yet
    return kind.__required_keys__ | kind.__optional_keys__ if is_typed_dict(kind) else frozenset()


def requires(kind: RecordType) -> frozenset[str]:
    """Returns the names of the fields that have no default."""
    kind = record_class(kind)
    if is_typed_dict(kind):
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
    """Returns an instance of a record type, created without arguments.

    Raises `TypeError` for a TypedDict or a pydantic model with required fields, and any other error
    that the constructor raises.
    """
    problem = f"{kind.__name__} requires {', '.join(sorted(names := requires(kind)))}"
    if is_typed_dict(kind) and names:
        raise TypeError(problem)
    try:
        return kind()
    except ValueError as error:  # pydantic's has several lines
        if names:
            raise TypeError(problem) from error
        raise


def _is_model(kind: AnyType) -> bool:
    return hasattr(kind, "__pydantic_fields__") and not is_dataclass(kind)
