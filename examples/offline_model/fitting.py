"""Builds a value that fits a JSON schema.

`choosing` fills tool arguments with it and `answering` composes the typed answer; each supplies
texts, numbers and choices through `Supply`. This module knows only shapes, not the question.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

type Schema = Mapping[str, object]


class Unfit(Exception):
    """No value can be supplied where the schema requires one."""


@dataclass(frozen=True, slots=True)
class Field:
    """A property's name and its schema, in which references are resolved."""

    name: str
    schema: Schema

    @property
    def description(self) -> str:
        return str(self.schema.get("description", ""))


class Supply(Protocol):
    """Supplies the leaves of a schema."""

    def wants(self, field: Field, /) -> bool:
        """Whether to fill a value that may be null or absent."""
        ...

    def text(self, field: Field, /) -> str | None: ...
    def texts(self, field: Field, /) -> Sequence[str]: ...
    def number(self, field: Field, /) -> float | None: ...
    def flag(self, field: Field, /) -> bool: ...
    def choose(self, field: Field, options: Sequence[str], /) -> int: ...
    def parts(self, field: Field, /) -> Sequence["Supply"]:
        """Returns a supply for each item of a list whose items are not plain strings."""
        ...


def fit(schema: Schema, supply: Supply) -> object:
    """Returns a value for the schema. Raises `Unfit` when a required value cannot be supplied."""
    return _fit("", schema, supply, schema)


def fields(schema: Schema, root: Schema | None = None) -> list[tuple[Field, bool]]:
    """Returns an object's properties, and for each whether it requires a non-null value."""
    required = _list(schema.get("required"))
    properties: list[tuple[Field, bool]] = []
    for name, subschema in _mapping(schema.get("properties")).items():
        resolved, nullable = _resolve(_mapping(subschema), root or schema)
        properties.append((Field(name, resolved), name in required and not nullable))
    return properties


def _mapping(value: object) -> Schema:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


_UNIONS = ("anyOf", "oneOf", "allOf")
_MOST_STEPS = 20  # references may be circular
_DEEPEST = 3  # a type may contain itself: below this depth, only required values are filled


def _resolve(schema: Schema, root: Schema) -> tuple[Schema, bool]:
    """Resolves references and alternatives; also returns whether the schema allows null."""
    nullable = False
    for _ in range(_MOST_STEPS):
        if isinstance(ref := schema.get("$ref"), str):
            target = root
            for step in ref.removeprefix("#").split("/")[1:]:
                target = _mapping(target.get(step))
            schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
        elif options := [_mapping(item) for name in _UNIONS for item in _list(schema.get(name))]:
            nullable |= any(option.get("type") == "null" for option in options)
            option = next((item for item in options if item.get("type") != "null"), options[0])
            rest = {key: value for key, value in schema.items() if key not in _UNIONS}
            schema = {**rest, **option}
        elif isinstance(types := schema.get("type"), list):
            nullable |= "null" in types
            schema = {**schema, "type": next((name for name in types if name != "null"), "null")}
        else:
            break
    if "type" not in schema:
        schema = {**schema, "type": "object" if "properties" in schema else "string"}
    return schema, nullable


def _fit(name: str, schema: Schema, supply: Supply, root: Schema, depth: int = 0) -> object:
    if depth > _MOST_STEPS:
        raise Unfit(name)
    schema, nullable = _resolve(schema, root)
    field = Field(name, schema)
    if nullable and not (supply.wants(field) and depth < _DEEPEST):
        return None
    if "const" in schema:
        return schema["const"]
    if options := _list(schema.get("enum")):
        return options[supply.choose(field, [str(option) for option in options])]
    match schema["type"]:
        case "object":
            required, properties = _list(schema.get("required")), _mapping(schema.get("properties"))
            names = [
                item.name
                for item, _ in fields(schema, root)
                if item.name in required or (depth < _DEEPEST and supply.wants(item))
            ]
            subschemas = {name: _mapping(properties[name]) for name in names}
            return {
                name: _fit(name, subschema, supply, root, depth + 1)
                for name, subschema in subschemas.items()
            }
        case "array":
            return _fit_array(field, supply, root, depth)
        case "string":
            return _fit_text(supply.text(field), schema)
        case "integer":
            return round(_fit_number(supply.number(field), schema, step=1))
        case "number":
            return _fit_number(supply.number(field), schema, step=1e-6)
        case "boolean":
            default = schema.get("default")
            return default if isinstance(default, bool) else supply.flag(field)
        case _:
            return None


def _fit_array(field: Field, supply: Supply, root: Schema, depth: int) -> list[object]:
    items, _ = _resolve(_mapping(field.schema.get("items")), root)
    least, most = int(_number(field.schema, "minItems") or 0), _number(field.schema, "maxItems")
    values: list[object]
    if items["type"] == "string" and "enum" not in items:
        texts = supply.texts(field) or [supply.text(field)][:least]
        values = [_fit_text(text, items) for text in texts]
    else:
        parts = supply.parts(field)[: None if depth < _DEEPEST else 0] or [supply][:least]
        values = [_fit(field.name, items, part, root, depth + 1) for part in parts]
    values += values[-1:] * (least - len(values))
    return values if most is None else values[: int(most)]


def _fit_text(text: str | None, schema: Schema) -> str:
    if text is None:
        raise Unfit
    least, most = _number(schema, "minLength"), _number(schema, "maxLength")
    return (text if most is None else text[: int(most)]).ljust(int(least or 0))


def _number(schema: Schema, name: str) -> float | None:
    value = schema.get(name)
    return value if isinstance(value, int | float) else None


def _fit_number(value: float | None, schema: Schema, *, step: float) -> float:
    """Returns the value, or if missing the default, the minimum or 0, clamped to the limits."""
    low, high = _number(schema, "minimum"), _number(schema, "maximum")
    if (above := _number(schema, "exclusiveMinimum")) is not None:
        low = above + step
    if (below := _number(schema, "exclusiveMaximum")) is not None:
        high = below - step
    if value is None:
        value = _number(schema, "default")
    if value is None:
        value = 0.0 if low is None else low
    value = value if low is None else max(value, low)
    value = value if high is None else min(value, high)
    multiple = _number(schema, "multipleOf")
    return -(-value // multiple) * multiple if multiple else value
