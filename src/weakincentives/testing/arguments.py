"""What a model may send a tool, as strategies of hypothesis: arguments that fit a schema, and
others beside them.

The only module that imports hypothesis; nothing imports it before it is needed. Schemas are those
that `serde` makes.
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

__all__ = ["fitting", "misfitting"]

# Any: JSON of every shape.
type _Values = SearchStrategy[Any]

_MANY = 20_000


def fitting(schema: JsonSchema, given: "_Values | Mapping[str, _Values] | None" = None) -> _Values:
    """Dicts that fit the schema of an object; `given` takes the place of all, or of the properties
    that it names.
    """
    if isinstance(given, SearchStrategy):
        return given.map(serde.dump)
    if unknown := [name for name in given or () if name not in schema["properties"]]:
        raise ValueError(f"arguments= has a strategy for {unknown[0]!r}, which is no param")
    named: dict[str, _Values] = {}
    for name, one in schema.get("$defs", {}).items():
        named[name] = st.deferred(_later(one, named))
    return _joined(_values(schema, named), st.fixed_dictionaries(dict(given or {})).map(serde.dump))


def misfitting(fit: _Values, schema: JsonSchema) -> _Values:
    """Dicts with a param too many, too few or of another type, few of which fit."""
    names = st.sampled_from([*schema["properties"], "no_such_param"])
    changed = _joined(fit, st.dictionaries(names, _ANYTHING, min_size=1))
    less = st.tuples(fit, names).map(
        lambda pair: {key: one for key, one in pair[0].items() if key != pair[1]}
    )
    return changed | less


def as_text(value: object) -> str:
    """`value` as JSON."""
    return json.dumps(value, ensure_ascii=False)


def _later(schema: JsonSchema, named: Mapping[str, _Values]) -> Callable[[], _Values]:
    # no partial, of which hypothesis would print all that it holds
    return lambda: _values(schema, named)


def _joined(first: _Values, second: _Values) -> _Values:
    return st.tuples(first, second).map(lambda pair: {**pair[0], **pair[1]})


def _values(schema: JsonSchema, named: Mapping[str, _Values]) -> _Values:
    """Values that fit, but for keywords that are not known here: what the parser then refuses is a
    misfit.
    """
    inner = partial(_values, named=named)
    match schema:
        case {"$ref": name}:
            return named[name.rpartition("/")[2]]
        case {"const": value}:
            return st.just(value)
        case {"enum": values}:
            return st.sampled_from(values)
        case {"anyOf": options} | {"oneOf": options}:
            return st.one_of(*map(inner, options))
        case {"type": "object"}:
            return _objects(schema, inner)
        case {"type": "array", "prefixItems": items}:
            return st.tuples(*map(inner, items)).map(list)
        case {"type": "array"}:
            unique = as_text if schema.get("uniqueItems") else None
            least, most = schema.get("minItems", 0), schema.get("maxItems")
            return st.lists(
                inner(schema.get("items", {})), min_size=least, max_size=most, unique_by=unique
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


def _objects(schema: JsonSchema, inner: Callable[[JsonSchema], _Values]) -> _Values:
    if "properties" not in schema:
        keys = inner({"type": "string", **schema.get("propertyNames", {})})
        extra = schema.get("additionalProperties", True)
        least, most = schema.get("minProperties", 0), schema.get("maxProperties")
        return st.dictionaries(
            keys, _ANYTHING if extra is True else inner(extra), min_size=least, max_size=most
        )
    parts = {name: inner(one) for name, one in schema["properties"].items()}
    needed = {name: parts.pop(name) for name in schema.get("required", ())}
    return st.fixed_dictionaries(
        needed, optional={name: one | st.none() for name, one in parts.items()}
    )


def _numbers(schema: JsonSchema) -> _Values:
    over, under = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    low, high = schema.get("minimum", over), schema.get("maximum", under)
    step = schema.get("multipleOf", 1 if schema["type"] == "integer" else None)
    if step is None:
        exact = st.floats(low, high, exclude_min=over is not None, exclude_max=under is not None)
        return exact.filter(isfinite)
    steps = st.integers(
        None if low is None else ceil(low / step), None if high is None else floor(high / step)
    )
    return steps.map(lambda count: count * step).filter(lambda number: number not in (over, under))


def _texts(schema: JsonSchema) -> SearchStrategy[str]:
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if (of := _FORMATS.get(schema.get("format", ""))) is not None:
        return of.map(lambda value: str(serde.dump(value)))
    if "pattern" in schema:
        pattern: str = schema["pattern"]
        matches = serde.line_matcher(pattern)
        return st.from_regex(pattern).filter(
            lambda text: matches(text) and least <= len(text) <= (most or len(text))
        )
    plain = st.text(min_size=least, max_size=most)
    long = st.characters(codec="utf-8").map(lambda one: one * _MANY)
    return plain if least or most is not None else plain | st.sampled_from(["\0", "../.."]) | long


_FORMATS: Mapping[str, _Values] = {
    "date": st.dates(),
    "date-time": st.datetimes(timezones=st.none() | st.just(UTC)),
    "time": st.times(),
    "duration": st.timedeltas(),
    "uuid": st.uuids(),
    "base64url": st.binary(),
}
_LEAVES: _Values = (
    st.none() | st.booleans() | st.integers() | _numbers({"type": "number"}) | _texts({})
)
_ANYTHING: _Values = st.recursive(
    _LEAVES, lambda one: st.lists(one) | st.dictionaries(st.text(), one), max_leaves=8
)
