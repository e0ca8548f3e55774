"""Builds a value that fits a JSON schema: one walk, two readers.

`choosing` fills tool arguments with it and `answering` composes the typed answer; each supplies
texts, numbers and choices through `Supply`. Only shapes are known here, never what is asked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

type Schema = Mapping[str, object]


class Unfit(Exception):
    """Nothing at hand fits a value that the schema demands."""


@dataclass(frozen=True, slots=True)
class Field:
    """Where a value goes: the property's name, its description, and its schema without references."""

    name: str
    schema: Schema

    @property
    def description(self) -> str:
        return str(self.schema.get("description", ""))


class Supply(Protocol):
    """What fills the leaves of a schema."""

    def wants(self, field: Field, /) -> bool:
        """Whether to fill a value that may be null or left out."""
        ...

    def text(self, field: Field, /) -> str | None: ...
    def texts(self, field: Field, /) -> Sequence[str]: ...
    def number(self, field: Field, /) -> float | None: ...
    def flag(self, field: Field, /) -> bool: ...
    def choose(self, field: Field, options: Sequence[str], /) -> int: ...
    def parts(self, field: Field, /) -> Sequence["Supply"]:
        """One supply for each item of a list that is not of plain strings."""
        ...


def fit(schema: Schema, supply: Supply) -> object:
    """A value for the whole schema. Raises `Unfit` when a demanded value cannot be supplied."""
    return _fit("", schema, supply, schema)


def fields(schema: Schema, root: Schema | None = None) -> list[tuple[Field, bool]]:
    """The properties of an object's schema, each with whether it must have a value that is not
    null.
    """
    found = []
    for name, sub in _mapping(schema.get("properties")).items():
        shape, nullable = _resolve(_mapping(sub), root or schema)
        found.append((Field(name, shape), name in _list(schema.get("required")) and not nullable))
    return found


def _mapping(value: object) -> Schema:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


_UNIONS = ("anyOf", "oneOf", "allOf")
_MOST_STEPS = 20  # references may go round in a circle
_DEEPEST = 3  # and a type may hold itself: below this, only what is demanded


def _resolve(schema: Schema, root: Schema) -> tuple[Schema, bool]:
    """The schema without references and alternatives (the first that is not null), and whether it
    allows null.
    """
    nullable = False
    for _ in range(_MOST_STEPS):
        if isinstance(ref := schema.get("$ref"), str):
            target = root
            for step in ref.removeprefix("#").split("/")[1:]:
                target = _mapping(target.get(step))
            schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
        elif union := [_mapping(each) for name in _UNIONS for each in _list(schema.get(name))]:
            nullable |= any(each.get("type") == "null" for each in union)
            chosen = next((each for each in union if each.get("type") != "null"), union[0])
            schema = {
                **{key: value for key, value in schema.items() if key not in _UNIONS},
                **chosen,
            }
        elif isinstance(types := schema.get("type"), list):
            nullable |= "null" in types
            schema = {**schema, "type": next((each for each in types if each != "null"), "null")}
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
            required, subs = _list(schema.get("required")), _mapping(schema.get("properties"))
            wanted = [
                each.name
                for each, _ in fields(schema, root)
                if depth < _DEEPEST and supply.wants(each)
            ]
            kept = [each for each in subs if each in required or each in wanted]
            return {
                each: _fit(each, _mapping(subs[each]), supply, root, depth + 1) for each in kept
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
    found: list[object]
    if items["type"] == "string" and "enum" not in items:
        texts = supply.texts(field) or [supply.text(field)][:least]
        found = [_fit_text(text, items) for text in texts]
    else:
        parts = supply.parts(field)[: None if depth < _DEEPEST else 0] or [supply][:least]
        found = [_fit(field.name, items, part, root, depth + 1) for part in parts]
    found += found[-1:] * (least - len(found))
    return found if most is None else found[: int(most)]


def _fit_text(text: str | None, schema: Schema) -> str:
    if text is None:
        raise Unfit
    least, most = _number(schema, "minLength"), _number(schema, "maxLength")
    return (text if most is None else text[: int(most)]).ljust(int(least or 0))


def _number(schema: Schema, name: str) -> float | None:
    value = schema.get(name)
    return value if isinstance(value, int | float) else None


def _fit_number(value: float | None, schema: Schema, *, step: float) -> float:
    """The value, else the default, else the least allowed or 0; moved into the bounds."""
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
