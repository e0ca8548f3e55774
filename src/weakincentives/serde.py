"""Values to JSON and back, and their JSON schemas: a thin face over pydantic, which is imported on first use.

Dataclasses stay plain standard-library ones. Descriptions come from `field(metadata={"description": …})` or
`Annotated[…, pydantic.Field(…)]`. Keys that a type does not have are refused unless `allow_extra` is set. Dates, paths,
enums, UUIDs and decimals become strings, bytes URL-safe base64, sets sorted arrays; NaN and infinities are refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn, TypeAliasType, cast, overload

from .errors import Fault, SerdeError

if TYPE_CHECKING:
    import pydantic
    from typing_extensions import TypeForm

__all__ = ["Json", "JsonSchema", "dump", "dump_json", "json_schema", "parse", "parse_json"]

type Json = bool | int | float | str | list[Json] | dict[str, Json] | None
"""What `json.loads` can give."""

# Any: a schema is read key by key where it is used; typing its full grammar would help nobody.
type JsonSchema = dict[str, Any]
"""A JSON Schema (draft 2020-12) as a dict."""


def dump(value: object, *, exclude_none: bool = False) -> Json:
    """`value` as plain JSON values. Raises `SerdeError` for what JSON cannot hold."""
    return cast(Json, json.loads(dump_json(value, exclude_none=exclude_none)))  # loads is typed Any


def dump_json(value: object, *, exclude_none: bool = False) -> str:
    """`value` as compact JSON text. Raises `SerdeError` for what JSON cannot hold, NaN and infinities included."""
    try:
        kind: Any = type(value)  # Any: typeshed does not know that every class has a hash
        text = _adapter(kind).dump_json(value, exclude_none=exclude_none, warnings="error").decode()
    except SerdeError:
        raise
    except Exception as error:  # pydantic, and any property or field serializer of the user's type
        raise SerdeError(type(value).__name__, (Fault((), f"JSON cannot hold it: {error}"),)) from error
    if "NaN" in text or "Infinity" in text:

        def refuse(constant: str) -> NoReturn:
            raise SerdeError(type(value).__name__, (Fault((), f"JSON cannot hold the number {constant}"),))

        json.loads(text, parse_constant=refuse)
    return text


@overload
def parse[T](of: TypeForm[T], data: object, *, allow_extra: bool = False) -> T: ...
@overload
def parse(of: object, data: object, *, allow_extra: bool = False) -> object: ...
def parse(of: object, data: object, *, allow_extra: bool = False) -> object:
    """`data`, made of JSON values, as an instance of the type `of`. Raises `SerdeError` with every fault."""
    return _parse(of, lambda adapter: adapter.validate_python(data), allow_extra=allow_extra)


@overload
def parse_json[T](of: TypeForm[T], text: str | bytes, *, allow_extra: bool = False) -> T: ...
@overload
def parse_json(of: object, text: str | bytes, *, allow_extra: bool = False) -> object: ...
def parse_json(of: object, text: str | bytes, *, allow_extra: bool = False) -> object:
    """JSON `text` as an instance of the type `of`. Raises `SerdeError` with every fault."""
    return _parse(of, lambda adapter: adapter.validate_json(text), allow_extra=allow_extra)


def json_schema(of: Any) -> JsonSchema:  # Any: types of every form, unions and generics included
    """The schema that instances of the type `of` satisfy once dumped. The dict is shared: copy it before changing it.

    Raises `SerdeError` for a type that cannot cross JSON.
    """
    return _schema(of)


# Any below: TypeAdapter is made from types known only at run time.
def _parse(of: object, validate: Callable[[pydantic.TypeAdapter[Any]], object], *, allow_extra: bool) -> object:
    adapter = _adapter(of, allow_extra=allow_extra)
    try:
        return validate(adapter)
    except ValueError as error:
        raise SerdeError(_name(of), _faults(error)) from error


def _faults(error: ValueError) -> tuple[Fault, ...]:
    """Every fault with its path; never the offending input, which may be secret or huge."""
    import pydantic

    if not isinstance(error, pydantic.ValidationError):
        return (Fault((), str(error)),)
    return tuple(
        Fault(detail["loc"], detail["msg"])
        for detail in error.errors(include_url=False, include_input=False, include_context=False)
    )


def _name(of: object) -> str:
    return getattr(of, "__name__", None) or str(of)


@lru_cache(maxsize=4096)
def _adapter(of: Any, *, allow_extra: bool = False) -> pydantic.TypeAdapter[Any]:
    import pydantic
    from pydantic_core import CoreConfig, SchemaSerializer

    config = pydantic.ConfigDict(
        extra="ignore" if allow_extra else "forbid",
        ser_json_bytes="base64",
        val_json_bytes="base64",
        ser_json_inf_nan="constants",
    )
    try:
        # An alias, since TypeAdapter takes no config beside a dataclass itself.
        # Any and ignore: made at run time, no type that a checker could read.
        root: Any = TypeAliasType("Root", of)  # pyright: ignore[reportGeneralTypeIssues]
        adapter = pydantic.TypeAdapter[Any](root, config=config)
        adapter.core_schema  # noqa: B018 - a forward reference that cannot be resolved shows here
    except Exception as error:  # pydantic, or whatever the author's annotations raise when they are evaluated
        raise SerdeError(_name(of), (Fault((), f"cannot cross JSON: {_first_line(error)}"),)) from error
    ordered = _with_sorted_sets(adapter.core_schema)
    if ordered is not adapter.core_schema:
        adapter.serializer = SchemaSerializer(
            ordered, CoreConfig(ser_json_bytes="base64", ser_json_inf_nan="constants")
        )
    return adapter


def _first_line(error: Exception) -> str:
    return f"{error}".partition("\n")[0]


# Any: a core schema is a deeply nested dict of pydantic's own making.
def _with_sorted_sets(schema: Any) -> Any:
    """The core schema with every set dumped in sorted order: equal sets give equal text; itself if it has no sets."""
    if isinstance(schema, list):
        items = [_with_sorted_sets(item) for item in schema]
        return schema if all(map(_same, items, schema)) else items
    if not isinstance(schema, dict):
        return schema
    changed = {key: _with_sorted_sets(value) for key, value in schema.items() if key != "metadata"}
    if schema.get("type") in ("set", "frozenset") and "serialization" not in schema:
        from pydantic_core import core_schema

        changed["serialization"] = core_schema.wrap_serializer_function_ser_schema(_sorted_set)
    elif all(_same(value, schema[key]) for key, value in changed.items()):
        return schema
    return schema | changed


def _same(one: object, other: object) -> bool:
    return one is other


def _sorted_set(value: object, dump_set: Callable[[object], list[object]]) -> list[object]:
    if not isinstance(value, set | frozenset):
        from pydantic_core import PydanticSerializationUnexpectedValue

        raise PydanticSerializationUnexpectedValue("expected a set")  # a union then tries its next member
    return sorted(dump_set(value), key=lambda item: json.dumps(item, sort_keys=True, default=str))


@lru_cache(maxsize=4096)
def _schema(of: Any) -> JsonSchema:
    generator = _schema_generator()
    try:
        return _adapter(of).json_schema(schema_generator=generator)
    except SerdeError:
        raise
    except Exception as error:  # pydantic names types without a schema, such as callables
        raise SerdeError(_name(of), (Fault((), f"has no JSON schema: {_first_line(error)}"),)) from error


@lru_cache(maxsize=1)
def _schema_generator() -> type[pydantic.json_schema.GenerateJsonSchema]:
    from pydantic.json_schema import GenerateJsonSchema

    class Untitled(GenerateJsonSchema):
        """Leaves out the titles that only repeat names: they cost tokens and say nothing."""

        def field_title_should_be_set(self, schema: Any) -> bool:
            return False

        def generate(self, schema: Any, mode: Any = "validation") -> JsonSchema:
            return cast(JsonSchema, _without_titles(super().generate(schema, mode)))

    return Untitled


def _without_titles(schema: object) -> object:
    """Drops `title` where it is a keyword with a text, not where it is a property's name or part of a default."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    kept: dict[str, object] = {}
    for key, value in schema.items():
        if key == "title" and isinstance(value, str):
            continue
        if key in ("properties", "$defs") and isinstance(value, Mapping):
            kept[key] = {name: _without_titles(inner) for name, inner in value.items()}
        else:
            kept[key] = value if key in ("default", "const", "enum", "examples") else _without_titles(value)
    return kept
