"""Dumps values to JSON and parses them back, using pydantic's adapter for their type.

`exact_types` makes these adapters keep the package's promises.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass
from functools import lru_cache, wraps
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeAliasType, overload

from ..errors import SerdeError, ValidationIssue, message_of
from ..record_types import AnyType
from .json_types import AnyJson, AnyValue, Json
from .lossless import Check, check_by_type, difference

if TYPE_CHECKING:  # heavy: loaded on first use
    import pydantic
    from pydantic_core import CoreSchema
    from typing_extensions import TypeForm

__all__ = [
    "AnyTypeAdapter",
    "ByKind",
    "UpgradedBy",
    "adapter_of",
    "cached_by_type",
    "dump",
    "dump_json",
    "dump_json_lossless",
    "dump_lossless",
    "name_of",
    "parse",
    "parse_json",
]

# Any in both: pydantic's ConfigDict, and its adapters for all types.
type PydanticConfig = Any
type AnyTypeAdapter = pydantic.TypeAdapter[Any]


def cached_by_type[T](function: Callable[..., T]) -> Callable[..., T]:
    """Caches the results of `function` by type and options."""

    @lru_cache(maxsize=4096)
    def cached(of: AnyType, _: str, **options: bool) -> T:
        return function(of, **options)

    @wraps(function)
    def find(of: AnyType, **options: bool) -> T:
        # `A | B` equals `B | A`, but its members are tried in a different order.
        return cached(of, "" if isinstance(of, type) else repr(of), **options)

    return find


# --- annotations


class ByKind:
    """Metadata for a union of classes that are distinguished by a `kind` field.

    JSON for `Annotated[A | B, ByKind()]` is parsed as the class that `kind` names. Without it,
    pydantic would try every class.
    """

    def __get_pydantic_core_schema__(
        self, source: AnyType, handler: "pydantic.GetCoreSchemaHandler"
    ) -> "CoreSchema":
        import pydantic

        return handler.generate_schema(Annotated[source, pydantic.Field(discriminator="kind")])


@dataclass(frozen=True, slots=True)
class UpgradedBy:
    """Annotates a type whose JSON value is passed through `upgrade` before it is parsed.

    `upgrade` converts a value in an older format to the current one and returns any other value
    unchanged. The type's fields must have types that exist in JSON: a tuple field, for example,
    cannot be parsed from the list that `upgrade` returns.
    """

    upgrade: Callable[[AnyJson], object]

    def __get_pydantic_core_schema__(
        self, source: AnyType, handler: "pydantic.GetCoreSchemaHandler"
    ) -> "CoreSchema":
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(self.upgrade, handler(source))


# --- writing


def dump(value: object, *, exclude_none: bool = False) -> Json:
    """Converts `value` to plain JSON values; raises `SerdeError` if JSON cannot represent it."""
    text = dump_json(value, exclude_none=exclude_none)
    try:
        plain: Json = json.loads(text)
    except ValueError as error:  # Python cannot parse integers of more than 4,300 digits
        raise _unfit(value, ValidationIssue((), f"{error}")) from error
    return plain


def dump_json(value: object, *, exclude_none: bool = False) -> str:
    """Returns `value` as compact JSON text.

    Raises `SerdeError` for values that JSON cannot represent, including NaN and infinities.
    """
    kind = _type_of(value)
    return _write(
        lambda: _adapter_of_class(kind) or adapter_of(object), value, exclude_none=exclude_none
    )


def dump_lossless(of: object, value: object) -> Json:
    """Returns plain JSON values from which `parse(of, …)` restores an equal value.

    Raises `SerdeError` as `dump_json_lossless` does.
    """
    plain: Json = json.loads(dump_json_lossless(of, value))
    return plain


def dump_json_lossless(of: object, value: object) -> str:
    """Returns JSON text from which `parse_json(of, …)` restores an equal value of the same types.

    Raises `SerdeError` with the path and type of any value that JSON would lose or change, such as
    an instance of a subclass of the declared type, or a tuple in a field of type `Any`. An integer
    in a field of type `float` is restored as the equal float.
    """
    text = _write(lambda: adapter_of(of), value, exclude_none=False)
    check = _check_by_type(of)
    if check is not None and check([value]):
        return text
    try:
        parse_json(object, f"[[{text}]]")  # because a snapshot adds nesting
        issue = difference(value, parse_json(of, text))
    except SerdeError as error:
        issues = [
            ValidationIssue(issue.path, f"cannot be read back from JSON: {issue.message}")
            for issue in error.issues
        ]
        raise _unfit(value, *issues) from error
    except Exception as error:  # raised by a user type's comparison, or by deep nesting
        reason = f"cannot be compared: {type(error).__name__}"
        raise _unfit(value, ValidationIssue((), reason)) from error
    if issue is not None:
        raise _unfit(value, issue)
    return text


@cached_by_type
def _check_by_type(of: AnyType) -> Check | None:
    from .exact_types import CONFIG

    config = {**CONFIG, "extra_fields_behavior": "forbid"}  # as it appears in pydantic's schemas
    return check_by_type(adapter_of(of).core_schema, config)


def _write(find_adapter: Callable[[], AnyTypeAdapter], value: object, *, exclude_none: bool) -> str:
    try:
        text = _to_json(find_adapter(), value, exclude_none=exclude_none, warnings="error")
    except SerdeError as error:  # raised for the type
        raise _unfit(value, ValidationIssue((), f"{error}")) from error
    except Exception as error:  # from pydantic, or a user type's property or serializer
        text = _write_again(find_adapter(), value, error, exclude_none=exclude_none)
    if "NaN" in text or "Infinity" in text:

        def refuse(constant: str) -> NoReturn:
            raise _unfit(value, ValidationIssue((), f"JSON cannot represent the number {constant}"))

        json.loads(text, parse_constant=refuse, parse_int=len)
    return text


def _to_json(
    adapter: AnyTypeAdapter,
    value: object,
    *,
    exclude_none: bool,
    warnings: Literal["error", "none"],
) -> str:
    try:
        return adapter.serializer.to_json(
            value, exclude_none=exclude_none, by_alias=True, warnings=warnings
        ).decode()
    except Exception as error:
        # pydantic wraps a KeyboardInterrupt like any other error.
        if f"{error}".rstrip(": ").endswith(": KeyboardInterrupt"):
            raise KeyboardInterrupt from error
        raise


def _write_again(
    adapter: AnyTypeAdapter, value: object, error: Exception, *, exclude_none: bool
) -> str:
    """Returns the text of a value that pydantic rejected, if the text restores the same value.

    Otherwise, raises `SerdeError`, whose issues come from parsing the text, because pydantic does
    not report where a value's type differs from the declared one.
    """
    import pydantic

    try:
        text = _to_json(adapter, value, exclude_none=False, warnings="none")
        issue = difference(value, adapter.validator.validate_json(text))
        if issue is None:
            return _to_json(adapter, value, exclude_none=exclude_none, warnings="none")
        issues = [issue]
    except pydantic.ValidationError as invalid:
        issues = [
            ValidationIssue(issue.path, f"is not of the declared type: {issue.message}")
            for issue in _issues_of(invalid)
        ]
    except Exception:  # the same error as before
        issues = [ValidationIssue((), _reason(error))]
    raise _unfit(value, *issues) from error


# Values of these types are dumped unchanged.
_PLAIN = frozenset({str, int, float, bool, type(None), object})


# Causes that stop a dump: an inner value that cannot be dumped, excessive nesting, or an interrupt.
# A second attempt would double the time with each level.
_FINAL = (SerdeError, RecursionError, KeyboardInterrupt, SystemExit)


def _dump_any(value: object, info: "pydantic.SerializationInfo") -> object:
    """Dumps `value` by its own type; pydantic would not sort sets or apply annotations."""
    exclude_none = bool(info.exclude_none)

    def walk(value: AnyValue) -> object:
        kind = _type_of(value)
        if kind in _PLAIN:
            return value
        if kind is dict:
            plain = _PLAIN.issuperset(map(type, value.values()))
            return value if plain else {key: walk(item) for key, item in value.items()}
        if kind is list or kind is tuple:
            plain = _PLAIN.issuperset(map(type, value))
            return value if plain else [walk(item) for item in value]
        adapter = _adapter_of_class(kind)
        if adapter is None:
            if isinstance(value, Iterator):
                raise ValueError(f"a {kind.__name__} can be read only once; convert it to a list")
            return value
        try:
            return adapter.dump_python(
                value, mode="json", by_alias=True, exclude_none=exclude_none, warnings="error"
            )
        except Exception as error:
            if isinstance(cause := error.__cause__, _FINAL):
                raise cause from error
            return json.loads(_write_again(adapter, value, error, exclude_none=exclude_none))

    return walk(value)


def _reason(error: Exception) -> str:
    """Returns the first line of an error's message, without the error names that precede it."""
    text = message_of(error).partition("\n")[0].rpartition("Error: ")[2]
    if text.startswith(_UNFIT):  # raised for an inner value
        text = text.partition(": ")[2]
    endless = text.endswith("RecursionError")
    return "it contains itself or is nested too deeply" if endless else text


_UNFIT = "JSON cannot hold this"


def _unfit(value: object, *issues: ValidationIssue) -> SerdeError:
    return SerdeError(f"{_UNFIT} {type(value).__name__}", issues)


# --- reading


@overload
def parse[T](of: "TypeForm[T]", data: object, *, allow_extra: bool = False) -> T: ...
@overload
def parse(of: object, data: object, *, allow_extra: bool = False) -> object: ...
def parse(of: object, data: object, *, allow_extra: bool = False) -> object:
    """Converts `data`, which consists of JSON values, to an instance of the type `of`.

    Raises `SerdeError` with every issue.
    """
    from pydantic_core import to_json

    # Converts through text, because pydantic applies other rules to Python values, for example to a
    # string that could be an int.
    try:
        text = to_json(data, inf_nan_mode="constants")
    except Exception as error:
        raise SerdeError(name_of(of), _issues_of(error)) from error
    return parse_json(of, text, allow_extra=allow_extra)


@overload
def parse_json[T](of: "TypeForm[T]", text: str | bytes, *, allow_extra: bool = False) -> T: ...
@overload
def parse_json(of: object, text: str | bytes, *, allow_extra: bool = False) -> object: ...
def parse_json(of: object, text: str | bytes, *, allow_extra: bool = False) -> object:
    """Parses JSON `text` as an instance of type `of`; raises `SerdeError` with every issue."""
    # Without the option, use the same cached adapter as for dumping.
    adapter = adapter_of(of, allow_extra=True) if allow_extra else adapter_of(of)
    try:
        return adapter.validator.validate_json(text)
    except Exception as error:  # from pydantic, or a user type's `__post_init__`
        raise SerdeError(name_of(of), _issues_of(error)) from error


# pydantic takes 30 µs to list an issue with a long path; 10,000 still cover every `null`
_MAX_ISSUES = 10_000


def _issues_of(error: Exception) -> tuple[ValidationIssue, ...]:
    """Returns every issue with its path, but never the data, which may be secret or huge."""
    import pydantic

    if not isinstance(error, pydantic.ValidationError):
        return (ValidationIssue((), message_of(error)),)
    if (count := error.error_count()) > _MAX_ISSUES:
        message = f"{count:,} faults, too many to list; compare the data with the schema"
        return (ValidationIssue((), message),)
    issues: list[ValidationIssue] = []
    for detail in error.errors(include_url=False, include_input=False):
        message, context = detail["msg"], detail.get("ctx", {})
        if detail["type"] == "union_tag_invalid":  # the only message that quotes the input
            tags = context.get("expected_tags")
            message = f"Input should have as {context.get('discriminator')} one of {tags}"
        issues.append(ValidationIssue(detail["loc"], message))
    return tuple(issues)


# --- types


def name_of(of: object) -> str:
    """Returns the name of any kind of type, for error messages."""
    return getattr(of, "__name__", None) or str(of)


@cached_by_type
def adapter_of(of: AnyType, *, allow_extra: bool = False) -> AnyTypeAdapter:
    """Returns pydantic's adapter for a type, adjusted to parse and dump exactly.

    Raises `SerdeError` for a type that JSON cannot represent.
    """
    import pydantic

    from .exact_types import CONFIG, make_exact

    extra = "ignore" if allow_extra else "forbid"
    config: PydanticConfig = {**CONFIG, "extra": extra}
    try:
        # Use an alias, because TypeAdapter rejects a config for a bare dataclass.
        make_alias: AnyType = TypeAliasType  # type checkers treat a direct call as a declaration
        root = make_alias("Root", of)
        adapter: AnyTypeAdapter = pydantic.TypeAdapter(root, config=config)
        adapter.rebuild()  # raises if a forward reference cannot be resolved
        make_exact(adapter, extra, _dump_any)
    except Exception as error:  # from pydantic, or from the author's annotations
        message = f"cannot cross JSON: {message_of(error).partition('\n')[0]}"
        raise SerdeError(name_of(of), (ValidationIssue((), message),)) from error
    return adapter


@lru_cache(maxsize=4096)
def _adapter_of_class(kind: AnyType) -> AnyTypeAdapter | None:
    """Returns the adapter for a class; `None` if pydantic does not support the class.

    Without an adapter, pydantic infers how to dump the value, which works for a subclass of `str`,
    for example.
    """
    try:
        return adapter_of(kind)
    except SerdeError as error:
        if isinstance(error.__cause__, NameError):  # an annotation's name may be defined later
            raise
        return None


def _type_of(value: AnyValue) -> AnyType:
    """Returns the type by which to dump `value`: its class, or a list of one dataclass.

    Dumping such a list as a whole is faster than dumping its items one by one.
    """
    kind = type(value)
    if kind is list and len(kinds := set(map(type, value))) == 1:
        item = kinds.pop()
        if is_dataclass(item):
            return GenericAlias(list, item)
    return kind
