"""Values to JSON and back, and their JSON schemas: a thin face over pydantic, which is imported on
first use.

Dataclasses stay plain standard-library ones. Descriptions come from `field(metadata={"description":
…})` or `Annotated[…, pydantic.Field(…)]`. Scalars are read strictly: no text stands for a number or
a truth value. Keys that a type does not have are refused unless `allow_extra` is set. Dates, paths,
enums, UUIDs and decimals become strings, bytes URL-safe base64, sets sorted arrays; NaN and
infinities are refused, both ways. A value that stands where a type says no more than `Any` is
dumped as it would be on its own. Fields that a constructor does not take (`init=False`) are no part
of the JSON.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from datetime import UTC, datetime, time, timezone
from enum import Enum
from functools import lru_cache, partial
from types import GenericAlias
from typing import TYPE_CHECKING, Any, NoReturn, TypeAliasType, cast, overload

from .errors import SerdeError, ValidationIssue, message_of
from .lossless import Check, check_by_type, difference

if TYPE_CHECKING:
    import pydantic
    from typing_extensions import TypeForm

__all__ = [
    "Json",
    "JsonSchema",
    "check_unique_keys",
    "dump",
    "dump_json",
    "dump_json_lossless",
    "dump_lossless",
    "json_schema",
    "line_matcher",
    "parse",
    "parse_json",
]

type Json = bool | int | float | str | list[Json] | dict[str, Json] | None
"""What `json.loads` can give."""

# Any: a schema is read key by key where it is used; typing its full grammar would help nobody.
type JsonSchema = dict[str, Any]
"""A JSON Schema (draft 2020-12) as a dict."""


def dump(value: object, *, exclude_none: bool = False) -> Json:
    """`value` as plain JSON values. Raises `SerdeError` for what JSON cannot hold."""
    text = dump_json(value, exclude_none=exclude_none)
    try:
        return cast(Json, json.loads(text))  # loads is typed Any
    except ValueError as error:  # Python reads no integer of more than 4,300 digits
        raise _unfit(value, ValidationIssue((), f"{error}")) from error


def dump_json(value: object, *, exclude_none: bool = False) -> str:
    """`value` as compact JSON text.

    Raises `SerdeError` for what JSON cannot hold, NaN and infinities included.
    """
    return _dump_by(
        lambda: _own_adapter(_kind(value)) or _adapter(object), value, exclude_none=exclude_none
    )


def dump_lossless(of: object, value: object) -> Json:
    """`value` as plain JSON values of which `parse(of, …)` makes an equal value.

    Raises as `dump_json_lossless`.
    """
    return cast(Json, json.loads(dump_json_lossless(of, value)))  # loads is typed Any


def dump_json_lossless(of: object, value: object) -> str:
    """`value` as compact JSON text of which `parse_json(of, text)` makes an equal value, of the
    same types throughout.

    Raises `SerdeError` with the path and the type of what JSON would lose or change, such as an
    instance of a subclass of the declared type, or a tuple in a field of type `Any`. An integer in
    a field of type `float` comes back as the float that equals it.
    """
    text = _dump_by(lambda: _adapter(of), value, exclude_none=False)
    check = _check_by_type(of)
    if check is not None and check([value]):
        return text
    try:
        parse_json(object, f"[[{text}]]")  # where it stands in a snapshot, it is nested more deeply
        lost = difference(value, parse_json(of, text))
    except SerdeError as error:
        issues = [
            ValidationIssue(fault.path, f"cannot be read back from JSON: {fault.message}")
            for fault in error.issues
        ]
        raise _unfit(value, *issues) from error
    except Exception as error:  # a comparison of the user's type, or too many levels
        raise _unfit(
            value, ValidationIssue((), f"cannot be compared: {type(error).__name__}")
        ) from error
    if lost is not None:
        raise _unfit(value, lost)
    return text


@lru_cache(maxsize=4096)
# Any: typeshed does not know that every class has a hash
def _check_by_type(of: Any) -> Check | None:
    plain: Any = _adapter(_Plain).core_schema
    config = {name: value for name, value in plain["config"].items() if name != "title"}
    return check_by_type(_adapter(of).core_schema, config)


@dataclass
class _Plain:
    """A dataclass that says nothing of how it is read and dumped."""


def _dump_by(
    find: Callable[[], "pydantic.TypeAdapter[Any]"], value: object, *, exclude_none: bool
) -> str:
    try:
        serializer = find().serializer
        text = serializer.to_json(
            value, exclude_none=exclude_none, by_alias=True, warnings="error"
        ).decode()
    except Exception as error:  # pydantic, and any property or field serializer of the user's type
        raise _unfit(value, *_dump_faults(error)) from error
    if "NaN" in text or "Infinity" in text:

        def refuse(constant: str) -> NoReturn:
            raise _unfit(value, ValidationIssue((), f"no JSON number is {constant}"))

        json.loads(text, parse_constant=refuse, parse_int=len)
    return text


def _unfit(value: object, *issues: ValidationIssue) -> SerdeError:
    return SerdeError(f"JSON cannot hold this {type(value).__name__}", issues)


# pydantic tells what it could not dump only in a text. It quotes a value that is not of its
# declared type, and wraps
# what the functions below raise. Compiled when an error is told, not at import.
_MISFIT = r"Expected `([^`\n]+)`[^\[\n]*\[(?:field_name='(\w+)', )?input_value="
_WRAPPING = r"(?:Error serializing to JSON: |Error calling function `\w+`: |\w+Error: )+"


def _dump_faults(error: Exception) -> list[ValidationIssue]:
    text = re.sub(_WRAPPING, "", f"{error}", count=1)
    if text == "RecursionError":
        return [ValidationIssue((), "it contains itself or is nested too deeply")]
    misfits = re.findall(_MISFIT, text)
    return [
        ValidationIssue((name,) if name else (), f"is not of the declared type {wanted}")
        for wanted, name in misfits
    ] or [ValidationIssue((), text.partition("\n")[0])]


@overload
def parse[T](of: "TypeForm[T]", data: object, *, allow_extra: bool = False) -> T: ...
@overload
def parse(of: object, data: object, *, allow_extra: bool = False) -> object: ...
def parse(of: object, data: object, *, allow_extra: bool = False) -> object:
    """`data`, made of JSON values, as an instance of the type `of`.

    Raises `SerdeError` with every fault.
    """
    from pydantic_core import to_json

    # By way of text, since pydantic reads Python values by other rules: a string that could be an
    # int, for one.
    return _parse(
        of,
        lambda adapter: adapter.validate_json(to_json(data, inf_nan_mode="constants")),
        allow_extra=allow_extra,
    )


@overload
def parse_json[T](of: "TypeForm[T]", text: str | bytes, *, allow_extra: bool = False) -> T: ...
@overload
def parse_json(of: object, text: str | bytes, *, allow_extra: bool = False) -> object: ...
def parse_json(of: object, text: str | bytes, *, allow_extra: bool = False) -> object:
    """JSON `text` as an instance of the type `of`. Raises `SerdeError` with every fault."""
    return _parse(
        of, lambda adapter: adapter.validator.validate_json(text), allow_extra=allow_extra
    )


def check_unique_keys(subject: str, text: str | bytes) -> None:
    """Raises `SerdeError` about `subject` for a JSON object that has a key twice.

    Parsers keep the last value in silence. Text that is no JSON passes, since a parser says better
    what is wrong.
    """
    with suppress(json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        json.loads(text, object_pairs_hook=partial(_unique_keys, subject), parse_int=str)


# Any: values of every JSON type.
def _unique_keys(subject: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        repeated = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        message = f"the key {repeated!r:.200} stands twice in one object; remove one of them"
        raise SerdeError(subject, (ValidationIssue((), message),))
    return found


def json_schema(of: Any) -> JsonSchema:  # Any: types of every form, unions and generics included
    """The schema that instances of the type `of` satisfy once dumped. The dict is shared: copy it
    before changing it.

    Raises `SerdeError` for a type that cannot cross JSON.
    """
    return _schema(of)


# Any below: TypeAdapter is made from types known only at run time.
def _parse(
    of: object, validate: Callable[["pydantic.TypeAdapter[Any]"], object], *, allow_extra: bool
) -> object:
    adapter = _adapter(of, allow_extra=allow_extra)
    try:
        return validate(adapter)
    # pydantic, and whatever the author's `__post_init__` makes of the data
    except Exception as error:
        raise SerdeError(_name(of), _parse_faults(error)) from error


# listing a fault takes pydantic 30 µs where paths are long; 10,000 still cover every `null`
_MAX_FAULTS = 10_000


def _parse_faults(error: Exception) -> tuple[ValidationIssue, ...]:
    """Every fault with its path; never the offending input, which may be secret or huge."""
    import pydantic

    if not isinstance(error, pydantic.ValidationError):
        return (ValidationIssue((), message_of(error)),)
    if (count := error.error_count()) > _MAX_FAULTS:
        return (
            ValidationIssue(
                (), f"{count:,} faults, too many to list; compare the data with the schema"
            ),
        )
    issues: list[ValidationIssue] = []
    for detail in error.errors(include_url=False, include_input=False):
        message = detail["msg"]
        if detail["type"] == "union_tag_invalid":  # the one message that quotes the input
            context = detail.get("ctx", {})
            message = f"Input should have as {context.get('discriminator')} one of {context.get('expected_tags')}"
        issues.append(ValidationIssue(detail["loc"], message))
    return tuple(issues)


def _name(of: object) -> str:
    return getattr(of, "__name__", None) or str(of)


@lru_cache(maxsize=4096)
def _adapter(of: Any, *, allow_extra: bool = False) -> "pydantic.TypeAdapter[Any]":
    import pydantic
    from pydantic_core import CoreConfig, SchemaSerializer, SchemaValidator

    config = pydantic.ConfigDict(
        extra="ignore" if allow_extra else "forbid",
        strict=True,
        ser_json_bytes="base64",
        val_json_bytes="base64",
        ser_json_inf_nan="constants",
        allow_inf_nan=False,
    )
    try:
        # An alias, since TypeAdapter takes no config beside a dataclass itself.
        # Any and ignore: made at run time, no type that a checker could read.
        root: Any = TypeAliasType("Root", of)  # pyright: ignore[reportGeneralTypeIssues]
        adapter = pydantic.TypeAdapter[Any](root, config=config)
        # does nothing, unless a forward reference cannot be resolved, which shows here
        adapter.rebuild()
    # pydantic, or whatever the author's annotations raise when they are evaluated
    except Exception as error:
        raise SerdeError(
            _name(of), (ValidationIssue((), f"cannot cross JSON: {_first_line(error)}"),)
        ) from error
    exact = _exact(adapter.core_schema)
    if exact is not adapter.core_schema:
        adapter.serializer = SchemaSerializer(
            exact, CoreConfig(ser_json_bytes="base64", ser_json_inf_nan="constants")
        )
        adapter.validator = SchemaValidator(
            exact, CoreConfig(strict=True, val_json_bytes="base64", allow_inf_nan=False)
        )
    return adapter


def _first_line(error: Exception) -> str:
    return f"{error}".partition("\n")[0]


# Any below: a core schema is a deeply nested dict of pydantic's own making.
def _exact(schema: Any, *, key: bool = False) -> Any:
    """The core schema, reading and dumping as this module promises; itself where pydantic does so
    by itself.

    A `key` of a JSON object is dumped as pydantic does it.
    """
    if isinstance(schema, list | tuple):
        items = [_exact(item, key=key) for item in schema]
        return schema if all(map(_same, items, schema)) else type(schema)(items)
    if not isinstance(schema, dict):
        return schema
    # A dict without a type is no schema but holds some by name, such as the fields of a TypedDict.
    aside = ("metadata", "default") if isinstance(schema.get("type"), str) else ()
    changed = {
        name: _exact(value, key=name == "keys_schema")
        for name, value in schema.items()
        if name not in aside
    }
    dumping = None if key or "serialization" in schema else _dumping(schema.get("type"))
    if dumping is not None:
        changed["serialization"] = dumping
    elif schema.get("init") is False:
        changed["serialization_exclude"] = True
    elif all(_same(value, schema[name]) for name, value in changed.items()):
        changed = schema
    return _reading(schema if changed is schema else schema | changed, key=key)


def _same(one: object, other: object) -> bool:
    return one is other


def _reading(schema: Any, *, key: bool) -> Any:
    """The core schema with a check or a change of what pydantic reads by it, where its own way
    would not do.

    A `key` of a JSON object is always a string.
    """
    from pydantic_core import core_schema

    change: Any
    match schema:
        case {"type": "any"}:
            change = core_schema.no_info_after_validator_function(_finite, _inner(schema))
        case {"type": "datetime" | "time"}:
            change = core_schema.no_info_after_validator_function(
                _with_standard_zone, _inner(schema)
            )
        case {"type": "literal", "expected": values} if any(
            isinstance(value, Enum) for value in values
        ):
            members = {_plain(value): value for value in values}
            plain = _reading(schema | {"expected": [*members]}, key=key)
            change = core_schema.no_info_after_validator_function(
                members.__getitem__, _inner(plain)
            )
            change["serialization"] = core_schema.plain_serializer_function_ser_schema(
                partial(_dump_member, values)
            )
        case {"type": "literal", "expected": values} | {"type": "enum", "members": values} if (
            not key
        ):
            if not any(isinstance(_plain(value), int) for value in values):
                return schema
            change = core_schema.no_info_wrap_validator_function(_not_by_equality, _inner(schema))
        case _:
            return schema
    return {name: schema[name] for name in _OUTER if name in schema} | change


# what references mean and serializers are asked of is the outermost schema
_OUTER = ("ref", "serialization")


def _inner(schema: Any) -> Any:
    return {name: value for name, value in schema.items() if name not in _OUTER}


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Enum) else value


def _dumping(of: object) -> Any:
    """How values of a core schema's type are dumped where pydantic's own way would not do, else
    `None`.
    """
    from pydantic_core import core_schema

    match of:
        case "set" | "frozenset":
            return core_schema.wrap_serializer_function_ser_schema(_dump_set)
        case "decimal":
            return core_schema.plain_serializer_function_ser_schema(_dump_decimal)
        case "any":
            return core_schema.plain_serializer_function_ser_schema(_dump_any, info_arg=True)
        case _:
            return None


# Any: a literal or a member of an enum of any type.
def _not_by_equality(value: object, read: Callable[[object], Any]) -> Any:
    """What is read of a literal or an enum, unless it only equals what is meant, as `true` does 1."""
    found = read(value)
    if isinstance(value, bool) is not isinstance(_plain(found), bool):
        read([])  # which raises what pydantic says of a value that is none of those
    return found


def _with_standard_zone[T: (datetime, time)](value: T) -> T:
    """`value` with the standard library's time zone in place of pydantic's, whose name and type are
    other ones.
    """
    offset = value.utcoffset()
    return value if offset is None else value.replace(tzinfo=timezone(offset) if offset else UTC)


def _finite[T](value: T) -> T:
    """`value`, read from JSON, unless it holds a number that JSON has not and pydantic takes all
    the same.
    """
    if isinstance(value, float) and not math.isfinite(value):
        from pydantic_core import PydanticKnownError

        raise PydanticKnownError("finite_number")
    if isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            _finite(item)
    return value


def _dump_set(value: object, dump_items: Callable[[object], list[object]]) -> list[object]:
    """Sorted, so that equal sets give equal text."""
    if not isinstance(value, set | frozenset):
        raise _unexpected("set")
    return sorted(dump_items(value), key=_place)


def _place(item: object) -> tuple[float, str]:
    """Numbers come first and by size, all else by its text."""
    if isinstance(item, int | float) and not isinstance(item, bool):
        return item, ""
    return math.inf, json.dumps(item, sort_keys=True, default=str)


def _dump_member(values: list[object], value: object) -> object:
    if value not in values:
        raise _unexpected("literal")
    return _plain(value)


def _dump_decimal(value: object) -> str:
    from decimal import Decimal

    if not isinstance(value, Decimal):
        raise _unexpected("decimal")
    if not value.is_finite():
        raise ValueError(f"no JSON number is {value}")
    return str(value)


def _unexpected(wanted: str) -> Exception:
    """What pydantic wants to hear of a value of another type: a union then tries its next member."""
    from pydantic_core import PydanticSerializationUnexpectedValue

    return PydanticSerializationUnexpectedValue(f"Expected `{wanted}` [input_value=…]")


# a bare `object` is left to pydantic to refuse
_PLAIN = frozenset({str, int, float, bool, type(None), object})


def _dump_any(value: object, info: "pydantic.SerializationInfo") -> object:
    """`value` as it is dumped on its own; pydantic's guess leaves sets unsorted and annotations
    unread.
    """

    # Any: containers and items of every type.
    def walk(value: Any) -> object:
        kind = _kind(value)
        if kind in _PLAIN:
            return value
        if kind is dict:
            plain = _PLAIN.issuperset(map(type, value.values()))
            return value if plain else {key: walk(item) for key, item in value.items()}
        if kind is list or kind is tuple:
            return value if _PLAIN.issuperset(map(type, value)) else [walk(item) for item in value]
        adapter = _own_adapter(kind)
        if adapter is None:
            if isinstance(value, Iterator):
                raise ValueError(f"a {kind.__name__} can be read but once; make a list of it")
            return value
        return adapter.dump_python(
            value,
            mode="json",
            by_alias=True,
            exclude_none=bool(info.exclude_none),
            warnings="error",
        )

    return walk(value)


@lru_cache(maxsize=4096)
def _own_adapter(kind: Any) -> "pydantic.TypeAdapter[Any] | None":
    """`None` for a class that pydantic knows as little as a subclass of `str`: its values are left
    to its guess.
    """
    try:
        return _adapter(kind)
    except SerdeError as error:
        if isinstance(error.__cause__, NameError):  # of an annotation, which may be there later
            raise
        return None


def _kind(value: Any) -> Any:  # Any: typeshed does not know that every class has a hash
    """The type to dump `value` by: its class, or a list of one dataclass, which is faster than item
    by item.
    """
    kind = type(value)
    if (
        kind is list
        and len(kinds := set(map(type, value))) == 1
        and is_dataclass(item := kinds.pop())
    ):
        return GenericAlias(list, item)
    return kind


@lru_cache(maxsize=4096)
def _schema(of: Any) -> JsonSchema:
    from pydantic.json_schema import GenerateJsonSchema

    class Generator(GenerateJsonSchema):
        def field_is_present(self, field: Any) -> bool:  # Any: see `_exact`
            return field.get("init") is not False

    adapter = _adapter(of)
    try:
        made = adapter.json_schema(schema_generator=Generator)
    except Exception as error:  # pydantic names types without a schema, such as callables
        raise SerdeError(
            _name(of), (ValidationIssue((), f"has no JSON schema: {_first_line(error)}"),)
        ) from error
    return cast(JsonSchema, _tidied(made, made.get("$defs", {})))


def _tidied(schema: object, defs: Mapping[str, JsonSchema]) -> object:
    """Drops `title` where it is a keyword with a text, and rules for keys that no key of JSON could
    keep.

    A `title` that is a property's name or a part of a default stays.
    """
    if isinstance(schema, list):
        return [_tidied(item, defs) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept: dict[str, object] = {}
    for key, value in schema.items():
        if (key == "title" and isinstance(value, str)) or (
            key == "propertyNames" and not _names(value, defs)
        ):
            continue
        if key in ("properties", "$defs") and isinstance(value, Mapping):
            kept[key] = {name: _tidied(inner, defs) for name, inner in value.items()}
        else:
            kept[key] = (
                value if key in ("default", "const", "enum", "examples") else _tidied(value, defs)
            )
    return kept


def _names(schema: JsonSchema, defs: Mapping[str, JsonSchema]) -> bool:
    """Whether a schema for keys admits strings; pydantic gives that of a number for the members of
    an `IntEnum`.
    """
    wanted = defs.get(schema.get("$ref", "").rpartition("/")[2], schema)
    return all(isinstance(member, str) for member in wanted.get("enum", ()))


def line_matcher(pattern: str, *, ignore_case: bool = False) -> Callable[[str], bool]:
    """Whether a text holds a match of `pattern`, in time linear in the text whatever the pattern
    is.

    By the engine behind pydantic's string patterns, which has neither look-around nor
    back-references. Raises `ValueError` for a pattern that it does not take.
    """
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    flags = "(?i)" if ignore_case else ""
    try:
        schema = core_schema.str_schema(
            pattern=flags + pattern, regex_engine="rust-regex", strict=True
        )
        return SchemaValidator(schema).isinstance_python
    except SchemaError as error:
        reason = " ".join(f"{error}".split())
        raise ValueError(
            f"{pattern!r:.200} is no pattern here ({reason:.300}); write it without look-around and back-references"
        ) from error
