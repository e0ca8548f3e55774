"""Values to JSON and back, and the JSON schemas of types: a thin layer over pydantic.

pydantic is imported on first use, and dataclasses stay plain ones of the standard library.
Descriptions come from `field(metadata={"description": …})` or `Annotated[…, pydantic.Field(…)]`.
Scalars are read strictly: no text stands for a number or a truth value. Unknown keys are refused
unless `allow_extra` is set. Dates, paths, enums, UUIDs and decimals become strings, bytes URL-safe
base64, sets sorted arrays; NaN and infinities are refused, both ways. Where a type says `Any`, a
value is dumped as it would be on its own. JSON leaves out fields with `init=False`.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass
from functools import lru_cache, partial, wraps
from types import GenericAlias
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeAliasType, cast, overload

from .errors import SerdeError, ValidationIssue, message_of
from .lossless import Check, check_by_type, difference

if TYPE_CHECKING:  # heavy: loaded on first use
    import pydantic
    from pydantic_core import CoreSchema
    from typing_extensions import TypeForm

__all__ = [
    "ByKind",
    "Json",
    "JsonSchema",
    "check_unique_keys",
    "dump",
    "dump_json",
    "dump_json_lossless",
    "dump_lossless",
    "json_schema",
    "line_matcher",
    "load_unique",
    "map_parts",
    "parse",
    "parse_json",
]

type Json = bool | int | float | str | list[Json] | dict[str, Json] | None
"""What `json.loads` can return."""

# Any: readers look up single keys; typing the full grammar would help nobody.
type JsonSchema = dict[str, Any]
"""A JSON Schema (draft 2020-12) as a dict."""

# Any, in the three: types known only at run time, values of them, and a ConfigDict of pydantic.
type AnyType = Any
type AnyValue = Any
type PydanticConfig = Any


class ByKind:
    """Metadata of a union of classes that a field `kind` tells apart.

    `Annotated[A | B, ByKind()]` is read by the class that `kind` names; pydantic would try all.
    """

    def __get_pydantic_core_schema__(
        self, source: AnyType, handler: "pydantic.GetCoreSchemaHandler"
    ) -> "CoreSchema":
        import pydantic

        return handler.generate_schema(Annotated[source, pydantic.Field(discriminator="kind")])


def _cached_by_type[T](function: Callable[..., T]) -> Callable[..., T]:
    """Caches what `function` returns for a type and options."""

    @lru_cache(maxsize=4096)
    def cached(of: AnyType, _: str, **options: bool) -> T:
        return function(of, **options)

    @wraps(function)
    def find(of: AnyType, **options: bool) -> T:
        # `A | B` equals `B | A`, and is read in another order.
        return cached(of, "" if isinstance(of, type) else repr(of), **options)

    return find


# --- writing


def dump(value: object, *, exclude_none: bool = False) -> Json:
    """Returns `value` as plain JSON values; raises `SerdeError` for what JSON cannot hold."""
    text = dump_json(value, exclude_none=exclude_none)
    try:
        return cast(Json, json.loads(text))  # loads is typed Any
    except ValueError as error:  # Python reads no integer of more than 4,300 digits
        raise _unfit(value, ValidationIssue((), f"{error}")) from error


def dump_json(value: object, *, exclude_none: bool = False) -> str:
    """Returns `value` as compact JSON text.

    Raises `SerdeError` for what JSON cannot hold, NaN and infinities included.
    """
    kind = _kind(value)
    return _dump(lambda: _own_adapter(kind) or _adapter(object), value, exclude_none=exclude_none)


def dump_lossless(of: object, value: object) -> Json:
    """Returns plain JSON values of which `parse(of, …)` makes an equal value.

    Raises `SerdeError` as `dump_json_lossless` does.
    """
    return cast(Json, json.loads(dump_json_lossless(of, value)))  # loads is typed Any


def dump_json_lossless(of: object, value: object) -> str:
    """Returns JSON text of which `parse_json(of, …)` makes an equal value of the same types.

    Raises `SerdeError` with path and type of what JSON would lose or change, such as an instance of
    a subclass of the declared type, or a tuple in a field of type `Any`. An integer in a field of
    type `float` comes back as the float that equals it.
    """
    text = _dump(lambda: _adapter(of), value, exclude_none=False)
    check = _check_by_type(of)
    if check is not None and check([value]):
        return text
    try:
        parse_json(object, f"[[{text}]]")  # a snapshot nests it more deeply
        issue = difference(value, parse_json(of, text))
    except SerdeError as error:
        issues = [
            ValidationIssue(issue.path, f"cannot be read back from JSON: {issue.message}")
            for issue in error.issues
        ]
        raise _unfit(value, *issues) from error
    except Exception as error:  # a comparison of the user's type, or too many levels
        reason = f"cannot be compared: {type(error).__name__}"
        raise _unfit(value, ValidationIssue((), reason)) from error
    if issue is not None:
        raise _unfit(value, issue)
    return text


@_cached_by_type
def _check_by_type(of: AnyType) -> Check | None:
    from .core_schemas import CONFIG

    config = {**CONFIG, "extra_fields_behavior": "forbid"}  # as pydantic writes it in a schema
    return check_by_type(_adapter(of).core_schema, config)


def _dump(
    find_adapter: Callable[[], "pydantic.TypeAdapter[Any]"], value: object, *, exclude_none: bool
) -> str:
    try:
        text = _write(find_adapter(), value, exclude_none=exclude_none, warnings="error")
    except SerdeError as error:  # of the type
        raise _unfit(value, ValidationIssue((), f"{error}")) from error
    except Exception as error:  # pydantic, and any property or field serializer of the user's type
        text = _dump_again(find_adapter(), value, error, exclude_none=exclude_none)
    if "NaN" in text or "Infinity" in text:

        def refuse(constant: str) -> NoReturn:
            raise _unfit(value, ValidationIssue((), f"no JSON number is {constant}"))

        json.loads(text, parse_constant=refuse, parse_int=len)
    return text


def _write(
    adapter: "pydantic.TypeAdapter[Any]",
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
        if f"{error}".rstrip(": ").endswith(
            ": KeyboardInterrupt"
        ):  # which pydantic wraps as any other error
            raise KeyboardInterrupt from error
        raise


def _dump_again(
    adapter: "pydantic.TypeAdapter[Any]", value: object, error: Exception, *, exclude_none: bool
) -> str:
    """Returns the text of a value that pydantic refused, if it is read back as the same value.

    Else raises `SerdeError`, whose issues come from reading the text: pydantic does not say where a
    value is of another type than declared.
    """
    import pydantic

    write = partial(_write, adapter, value, warnings="none")
    try:
        issue = difference(value, adapter.validator.validate_json(write(exclude_none=False)))
        if issue is None:
            return write(exclude_none=exclude_none)
        issues = [issue]
    except pydantic.ValidationError as misfit:
        issues = [
            ValidationIssue(issue.path, f"is not of the declared type: {issue.message}")
            for issue in _issues_of(misfit)
        ]
    except Exception:  # the same error once more
        issues = [ValidationIssue((), _reason(error))]
    raise _unfit(value, *issues) from error


def _reason(error: Exception) -> str:
    """Returns the first line of an error's text without the names of errors before it."""
    text = message_of(error).partition("\n")[0].rpartition("Error: ")[2]
    if text.startswith(_UNFIT):  # of a value within this one
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
    """Returns `data`, made of JSON values, as an instance of the type `of`.

    Raises `SerdeError` with every issue.
    """
    from pydantic_core import to_json

    # Through text, since pydantic reads Python values by other rules: a string that could be an
    # int, for one.
    try:
        text = to_json(data, inf_nan_mode="constants")
    except Exception as error:
        raise SerdeError(_name(of), _issues_of(error)) from error
    return parse_json(of, text, allow_extra=allow_extra)


@overload
def parse_json[T](of: "TypeForm[T]", text: str | bytes, *, allow_extra: bool = False) -> T: ...
@overload
def parse_json(of: object, text: str | bytes, *, allow_extra: bool = False) -> object: ...
def parse_json(of: object, text: str | bytes, *, allow_extra: bool = False) -> object:
    """Returns JSON `text` as an instance of the type `of`; raises `SerdeError` with every issue."""
    # without the option it is the adapter that dumps too
    adapter = _adapter(of, allow_extra=True) if allow_extra else _adapter(of)
    try:
        return adapter.validator.validate_json(text)
    except Exception as error:  # pydantic's, and those of an author's `__post_init__`
        raise SerdeError(_name(of), _issues_of(error)) from error


# listing an issue takes pydantic 30 µs where paths are long; 10,000 still cover every `null`
_MAX_ISSUES = 10_000


def _issues_of(error: Exception) -> tuple[ValidationIssue, ...]:
    """Returns every issue with its path, never the data, which may be secret or huge."""
    import pydantic

    if not isinstance(error, pydantic.ValidationError):
        return (ValidationIssue((), message_of(error)),)
    if (count := error.error_count()) > _MAX_ISSUES:
        message = f"{count:,} faults, too many to list; compare the data with the schema"
        return (ValidationIssue((), message),)
    issues: list[ValidationIssue] = []
    for detail in error.errors(include_url=False, include_input=False):
        message, context = detail["msg"], detail.get("ctx", {})
        if detail["type"] == "union_tag_invalid":  # the one message that quotes the input
            tags = context.get("expected_tags")
            message = f"Input should have as {context.get('discriminator')} one of {tags}"
        issues.append(ValidationIssue(detail["loc"], message))
    return tuple(issues)


def load_unique(subject: str, text: str | bytes) -> AnyValue:
    """Returns the values in JSON `text`; raises `SerdeError` if an object has a key twice.

    Raises `ValueError` for text that is no JSON.
    """
    return json.loads(text, object_pairs_hook=partial(_unique_keys, subject))


def check_unique_keys(subject: str, text: str | bytes) -> None:
    """Raises `SerdeError` about `subject` if an object in the JSON `text` has a key twice.

    Parsers silently keep the last value. Text that is no JSON passes: a parser explains it better.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode(json.detect_encoding(text), "surrogatepass")
        strings = text.split('"')[1::2]
        # two objects may have the same keys, and values may be equal
        if "\\" in text or len(set(strings)) < len(strings):
            _unique_decoder(subject).raw_decode(text.lstrip())
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        return


@lru_cache(maxsize=64)
def _unique_decoder(subject: str) -> json.JSONDecoder:
    return json.JSONDecoder(object_pairs_hook=partial(_unique_keys, subject), parse_int=str)


def _unique_keys(subject: str, pairs: list[tuple[str, AnyValue]]) -> dict[str, AnyValue]:
    values = dict(pairs)
    if len(values) < len(pairs):
        key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        message = f"the key {key!r:.200} stands twice in one object; remove one of them"
        raise SerdeError(subject, (ValidationIssue((), message),))
    return values


# --- types


def _name(of: object) -> str:
    return getattr(of, "__name__", None) or str(of)


@_cached_by_type
def _adapter(of: AnyType, *, allow_extra: bool = False) -> "pydantic.TypeAdapter[Any]":
    """Returns pydantic's adapter of a type, whose reading and dumping are made exact."""
    import pydantic

    from . import core_schemas

    config: PydanticConfig = {
        **core_schemas.CONFIG,
        "extra": "ignore" if allow_extra else "forbid",
    }
    try:
        # An alias, since TypeAdapter takes no config beside a dataclass itself.
        # Any and ignore: made at run time, no type that a checker could read.
        root: Any = TypeAliasType("Root", of)  # pyright: ignore[reportGeneralTypeIssues]
        adapter = pydantic.TypeAdapter[Any](root, config=config)
        adapter.rebuild()  # raises if a forward reference cannot be resolved
        core_schemas.make_exact(adapter, _dump_any, allow_extra=allow_extra)
    except Exception as error:  # pydantic's, and whatever the author's annotations raise
        message = f"cannot cross JSON: {message_of(error).partition('\n')[0]}"
        raise SerdeError(_name(of), (ValidationIssue((), message),)) from error
    return adapter


# pydantic itself refuses a bare `object`
_DUMPED_BY_PYDANTIC = frozenset({str, int, float, bool, type(None), object})


# Causes that end a dump: a value within this one that cannot be dumped, too many levels, and
# interrupts. A second attempt would double the time with each level.
_FINAL = (SerdeError, RecursionError, KeyboardInterrupt, SystemExit)


def _dump_any(value: object, info: "pydantic.SerializationInfo") -> object:
    """Dumps `value` by its own type; pydantic would leave sets unsorted and annotations unread."""
    exclude_none = bool(info.exclude_none)

    def walk(value: AnyValue) -> object:
        kind = _kind(value)
        if kind in _DUMPED_BY_PYDANTIC:
            return value
        if kind is dict:
            plain = _DUMPED_BY_PYDANTIC.issuperset(map(type, value.values()))
            return value if plain else {key: walk(item) for key, item in value.items()}
        if kind is list or kind is tuple:
            plain = _DUMPED_BY_PYDANTIC.issuperset(map(type, value))
            return value if plain else [walk(item) for item in value]
        adapter = _own_adapter(kind)
        if adapter is None:
            if isinstance(value, Iterator):
                raise ValueError(f"a {kind.__name__} can be read but once; make a list of it")
            return value
        try:
            return adapter.dump_python(
                value, mode="json", by_alias=True, exclude_none=exclude_none, warnings="error"
            )
        except Exception as error:
            if isinstance(cause := error.__cause__, _FINAL):
                raise cause from error
            return json.loads(_dump_again(adapter, value, error, exclude_none=exclude_none))

    return walk(value)


@lru_cache(maxsize=4096)
def _own_adapter(kind: AnyType) -> "pydantic.TypeAdapter[Any] | None":
    """Returns the adapter of a class; `None` for one that pydantic does not know.

    pydantic then guesses, which suffices for a subclass of `str`, for one.
    """
    try:
        return _adapter(kind)
    except SerdeError as error:
        if isinstance(error.__cause__, NameError):  # of an annotation, which may be there later
            raise
        return None


def _kind(value: AnyValue) -> AnyType:
    """Returns the type to dump `value` by: its class, or a list of one dataclass.

    The list is dumped at once, which is faster than item by item.
    """
    kind = type(value)
    if kind is list and len(kinds := set(map(type, value))) == 1:
        item = kinds.pop()
        if is_dataclass(item):
            return GenericAlias(list, item)
    return kind


@dataclass(frozen=True, slots=True)
class UpgradedBy:
    """Annotates a type whose JSON value `upgrade` receives before it is read.

    `upgrade` returns the value in the present format, and other values as they are. The fields of
    the type must be of types that JSON has: a tuple is not read from the list that it returns.
    """

    upgrade: Callable[[Any], Any]  # Any: JSON of any version

    # Any: pydantic's handler
    def __get_pydantic_core_schema__(self, source: object, handler: Any) -> "CoreSchema":
        from pydantic_core import core_schema

        return core_schema.no_info_before_validator_function(self.upgrade, handler(source))


# --- schemas


def json_schema(of: AnyType) -> JsonSchema:
    """Returns the schema that instances of the type `of` satisfy once dumped.

    The dict is shared: copy it before changing it. Raises `SerdeError` for a type that cannot cross
    JSON.
    """
    return _json_schema(of)


@_cached_by_type
def _json_schema(of: AnyType) -> JsonSchema:
    from .core_schemas import JsonSchemas

    adapter = _adapter(of)
    try:
        schema = adapter.json_schema(schema_generator=JsonSchemas)
    except Exception as error:  # pydantic names types without a schema, such as callables
        message = f"has no JSON schema: {message_of(error).partition('\n')[0]}"
        raise SerdeError(_name(of), (ValidationIssue((), message),)) from error
    return cast(JsonSchema, _without_titles(schema))


_PARTS_BY_NAME = {"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"}
_PARTS = {
    *("items", "prefixItems", "additionalItems", "additionalProperties", "unevaluatedProperties"),
    *("unevaluatedItems", "contains", "propertyNames", "anyOf", "oneOf", "allOf", "not", "if"),
    *("then", "else"),
}


def map_parts(schema: JsonSchema, change: Callable[[Any], Any]) -> JsonSchema:
    """Returns a copy of the schema, with `change` applied to each schema directly inside it."""
    mapped = dict(schema)
    for keyword, value in schema.items():
        if keyword in _PARTS_BY_NAME and isinstance(value, dict):
            mapped[keyword] = {name: change(part) for name, part in value.items()}
        elif keyword in _PARTS and isinstance(value, dict):
            mapped[keyword] = change(value)
        elif keyword in _PARTS and isinstance(value, list):
            mapped[keyword] = [change(part) for part in value]
    return mapped


# Any: a part may also be `true` or `false`
def _without_titles(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    own = {keyword: value for keyword, value in schema.items() if keyword != "title"}
    return map_parts(own, _without_titles)


# --- patterns


def line_matcher(pattern: str, *, ignore_case: bool = False) -> Callable[[str], bool]:
    """Returns a function that finds `pattern` in a text, in time linear in the text.

    It uses the engine of pydantic's string patterns, which has neither look-around nor
    back-references. Raises `ValueError` for a pattern that the engine does not take.
    """
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    regex = ("(?i)" if ignore_case else "") + pattern
    try:
        schema = core_schema.str_schema(pattern=regex, regex_engine="rust-regex", strict=True)
        return SchemaValidator(schema).isinstance_python
    except SchemaError as error:
        reason = " ".join(f"{error}".split())
        raise ValueError(
            f"{pattern!r:.200} is no pattern here ({reason:.300}); "
            "write it without look-around and back-references"
        ) from error
