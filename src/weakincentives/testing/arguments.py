"""Hypothesis strategies for tool arguments that do or do not match a JSON schema.

Only this module imports hypothesis, and it is imported only when needed. It supports the schemas
that `serde` generates.
"""

import json
from collections.abc import Callable, Mapping
from datetime import UTC
from functools import partial
from math import ceil, floor, isfinite
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from .. import serde
from ..serde import JsonSchema
from ..serde.json_schemas import resolved, target_name

__all__ = ["AnyStrategy", "argument_strategies", "to_json"]

type AnyStrategy = SearchStrategy[Any]  # Any: params, and JSON of any shape
type _Replacement = AnyStrategy | Mapping[str, AnyStrategy] | None

_LONG = 20_000


def argument_strategies(
    schema: JsonSchema, replacement: _Replacement = None
) -> tuple[AnyStrategy, AnyStrategy]:
    """Returns a strategy for dicts that match an object's schema, and one for dicts that do not.

    `replacement` replaces all generated values, or only those for the properties that it names.
    Most dicts from the second strategy have an unknown, missing or mistyped param, but a few of
    them match.
    """
    if "$ref" in schema:  # a recursive type
        schema = {**resolved(schema, schema), "$defs": schema["$defs"]}
    fitting = _fitting(schema, replacement)
    names = st.sampled_from([*schema.get("properties", {}), "no_such_param"])
    more = _merged(fitting, st.dictionaries(names, _ANYTHING, min_size=1))
    fewer = st.tuples(fitting, names).map(
        lambda pair: {name: value for name, value in pair[0].items() if name != pair[1]}
    )
    return fitting, more | fewer


def to_json(value: object) -> str:
    """Returns `value` as JSON text."""
    return json.dumps(value, ensure_ascii=False)


def _fitting(schema: JsonSchema, replacement: _Replacement) -> AnyStrategy:
    if isinstance(replacement, SearchStrategy):
        return replacement.map(serde.dump)
    replacement = dict(replacement or {})
    if unknown := [name for name in replacement if name not in schema["properties"]]:
        raise ValueError(f"arguments= must name params of the tool, got {unknown[0]!r}")
    definitions: dict[str, AnyStrategy] = {}
    for name, definition in schema.get("$defs", {}).items():
        definitions[name] = st.deferred(_values_later(definition, definitions))
    replaced = st.fixed_dictionaries(replacement).map(serde.dump)
    return _merged(_values(schema, definitions), replaced)


def _values_later(
    schema: JsonSchema, definitions: Mapping[str, AnyStrategy]
) -> Callable[[], AnyStrategy]:
    # Not a partial, because hypothesis would print all of its arguments.
    return lambda: _values(schema, definitions)


def _merged(first: AnyStrategy, second: AnyStrategy) -> AnyStrategy:
    return st.tuples(first, second).map(lambda pair: {**pair[0], **pair[1]})


def _values(schema: JsonSchema, definitions: Mapping[str, AnyStrategy]) -> AnyStrategy:
    """Generates values that match the supported keywords; the parser rejects other mismatches."""
    values = partial(_values, definitions=definitions)
    match schema:
        case {"$ref": reference}:
            return definitions[target_name(reference)]
        case {"const": value}:
            return st.just(value)
        case {"enum": options}:
            return st.sampled_from(options)
        case {"anyOf": options} | {"oneOf": options}:
            return st.one_of(*map(values, options))
        case {"type": "object"}:
            return _objects(schema, values)
        case {"type": "array", "prefixItems": items}:
            return st.tuples(*map(values, items)).map(list)
        case {"type": "array"}:
            return st.lists(
                values(schema.get("items", {})),
                min_size=schema.get("minItems", 0),
                max_size=schema.get("maxItems"),
                unique_by=to_json if schema.get("uniqueItems") else None,
            )
        case {"type": "string"}:
            return _texts(schema)
        case {"type": "integer" | "number"}:
            return _numbers(schema)
        case {"type": "boolean"}:
            return st.booleans()
        case {"type": "null"}:
            return st.none()
        case _:
            return _ANYTHING


def _objects(schema: JsonSchema, values: Callable[[JsonSchema], AnyStrategy]) -> AnyStrategy:
    if "properties" not in schema:
        extra = schema.get("additionalProperties", True)
        return st.dictionaries(
            values({"type": "string", **schema.get("propertyNames", {})}),
            _ANYTHING if extra is True else values(extra),
            min_size=schema.get("minProperties", 0),
            max_size=schema.get("maxProperties"),
        )
    optional = {name: values(of_param) for name, of_param in schema["properties"].items()}
    required = {name: optional.pop(name) for name in schema.get("required", ())}
    return st.fixed_dictionaries(
        required, optional={name: value | st.none() for name, value in optional.items()}
    )


def _numbers(schema: JsonSchema) -> AnyStrategy:
    over, under = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    low, high = schema.get("minimum", over), schema.get("maximum", under)
    step = schema.get("multipleOf", 1 if schema["type"] == "integer" else None)
    if step is None:
        floats = st.floats(low, high, exclude_min=over is not None, exclude_max=under is not None)
        return floats.filter(isfinite)
    first, last = (
        None if low is None else ceil(low / step),
        None if high is None else floor(high / step),
    )
    multiples = st.integers(first, last).map(lambda count: count * step)
    return multiples.filter(lambda number: number not in (over, under))


def _texts(schema: JsonSchema) -> SearchStrategy[str]:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if (values := _FORMATS.get(schema.get("format", ""))) is not None:
        return values.map(lambda value: str(serde.dump(value)))
    if "pattern" in schema:
        pattern: str = schema["pattern"]
        matches = serde.line_matcher(pattern)
        return st.from_regex(pattern).filter(
            lambda text: matches(text) and least <= len(text) <= (most or len(text))
        )
    texts = st.text(min_size=least, max_size=most)
    if least or most is not None:
        return texts
    long = st.characters(codec="utf-8").map(lambda character: character * _LONG)
    return texts | st.sampled_from(["\0", "../.."]) | long


_FORMATS: Mapping[str, AnyStrategy] = {
    "date": st.dates(),
    "date-time": st.datetimes(timezones=st.none() | st.just(UTC)),
    "time": st.times(),
    "duration": st.timedeltas(),
    "uuid": st.uuids(),
    "base64url": st.binary(),
}
_LEAVES: AnyStrategy = (
    st.none() | st.booleans() | st.integers() | _numbers({"type": "number"}) | _texts({})
)
_ANYTHING: AnyStrategy = st.recursive(
    _LEAVES, lambda values: st.lists(values) | st.dictionaries(st.text(), values), max_leaves=8
)
