"""Checks JSON values against an external JSON Schema, such as that of an MCP tool.

This module uses jsonschema, as the MCP SDK does. It imports the library on first use, because the
import takes 80 ms and the core does not depend on it. A `$ref` is never fetched. Patterns run in
time linear in the text. Patterns with look-around or back-references are not checked, nor are rules
that match property names by pattern. The work of a check is limited in proportion to the data, and
the check stops at the limit: recursive unions would otherwise double the work with each level.
Issues contain paths and rules, never the data.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from functools import lru_cache, partial, reduce
from importlib import import_module
from itertools import islice
from operator import getitem
from threading import local
from typing import Any, cast

from ..errors import SerdeError, ValidationIssue, missing_extra
from ..signatures import AnyFunction
from .json_types import AnyJson, Json, JsonSchema, comparable
from .text import line_matcher
from .values import parse_json

__all__ = ["check_schema", "parse_object", "validation_issues"]

# Any in all three: jsonschema may not be installed where the type checkers run.
type _Validator = Any
type _Error = Any
type _Module = Any
type _Rule = AnyFunction

_MAX_ISSUES = 20  # a model does not correct more than this in one reply
_MAX_ERRORS = 1_000
_MAX_MESSAGE = 300
# How often a check may apply a rule, at 10 to 50 µs each: base, per character, and maximum.
_STEPS, _STEPS_PER_CHARACTER, _MAX_STEPS = 20_000, 10, 500_000
_ENUM_STEP = 20  # how many list members in a schema cost as much as one rule


class _TooManySteps(Exception):
    """A check needs too many steps."""


class _Work(local):
    """How many steps this thread's check has left, and which floats it found to be integers."""

    def __init__(self) -> None:
        self.left = 0
        self.integers: set[int] = set()  # the ids of the floats


_work = _Work()


def check_schema(schema: JsonSchema) -> None:
    """Raises `SerdeError` unless `schema` is valid under the JSON Schema draft that it names.

    Raises `ImportError` if jsonschema is not installed.
    """
    library = _jsonschema()
    try:
        # Without formats: patterns use ECMAScript syntax, which Python's engine supports only in
        # part.
        _draft(schema).check_schema(schema, format_checker=None)
    except library.SchemaError as error:
        issue = ValidationIssue(tuple(error.absolute_path), error.message[:300])
        raise SerdeError("JSON Schema", (issue,)) from error
    except RecursionError:
        issue = ValidationIssue((), "it is nested too deeply; make it flatter")
        raise SerdeError("JSON Schema", (issue,)) from None


def validation_issues(schema: str, value: Json) -> tuple[ValidationIssue, ...]:
    """Checks `value` against a schema in JSON text; returns at most 20 issues.

    Raises `SerdeError` if the schema is invalid, or if a `$ref` cannot be resolved or is circular.
    """
    size = len(json.dumps(value))
    return tuple(map(_issue, islice(_errors(schema, value, size), _MAX_ISSUES)))


def parse_object(schema: str, text: str) -> dict[str, Json]:
    """Parses the JSON object in `text`, and checks it against a schema in JSON text.

    Nulls that the schema rejects are dropped, because a strict decoder sends them for absent
    properties. A number without a fraction, such as 3.0, becomes an `int` where the schema requires
    an integer. Raises `SerdeError` with at most 20 issues.
    """
    value = parse_json(dict[str, Any], text)
    errors = list(islice(_errors(schema, value, len(text)), _MAX_ERRORS))
    if not errors:
        return _with_integers(value)
    shortened = deepcopy(value)
    for *parents, name in {tuple(error.absolute_path) for error in errors if _is_null(error)}:
        reduce(getitem, parents, shortened).pop(name)
    if shortened != value:
        errors = list(islice(_errors(schema, shortened, len(text)), _MAX_ERRORS))
        if not errors:
            return _with_integers(shortened)
    issues = dict.fromkeys(map(_issue, errors))  # merges the errors for several missing properties
    raise SerdeError("arguments", tuple(issues)[:_MAX_ISSUES])


def _with_integers[T](value: T) -> T:
    """Returns `value` with an `int` for each float that the last check found to be an integer."""
    result: AnyJson = value
    match value:
        case dict() if _work.integers:
            result = {key: _with_integers(item) for key, item in value.items()}
        case list():
            result = [_with_integers(item) for item in value]
        case float() if id(value) in _work.integers:
            result = int(value)
        case _:
            pass
    return cast(T, result)


def _is_null(error: _Error) -> bool:
    path = error.absolute_path
    return error.instance is None and bool(path) and isinstance(path[-1], str)


def _errors(schema: str, value: Json, size: int) -> Iterator[_Error]:
    """Yields the errors of a check; for a union, its members' errors instead of its own.

    `size` is the length of `value` as JSON text, which limits the work.
    """

    def leaves(error: _Error) -> Iterator[_Error]:
        for inner in error.context:
            yield from leaves(inner)
        if not error.context:
            yield error

    validator = _validator(schema)
    _work.integers = set()
    _work.left = min(_STEPS + size * _STEPS_PER_CHARACTER, _MAX_STEPS)
    try:
        for error in validator.iter_errors(value):
            yield from leaves(error)
    except Exception as error:
        raise SerdeError("JSON Schema", (ValidationIssue((), _problem(error)),)) from error


def _problem(error: Exception) -> str:
    """Explains why a check failed. An external schema can make jsonschema raise any error."""
    match error:
        case _TooManySteps():
            return "the check takes too long; send less, and nest it less deeply"
        case RecursionError():
            return "a $ref of the schema goes in circles or too deep; correct the schema"
        case _ if isinstance(error, import_module("referencing.exceptions").Unresolvable):
            return "a $ref of the schema leads nowhere; correct the schema"
        case _:
            return f"the schema cannot check this ({type(error).__name__}); send other values"


def _issue(error: _Error) -> ValidationIssue:
    """Converts an error to an issue; jsonschema's own message would quote the data."""
    rule, expected = error.validator, error.validator_value
    if rule == "required" and isinstance(expected, list):  # the oldest draft uses a boolean
        missing = [name for name in expected if name not in error.instance]
        message = f"lacks {', '.join(map(repr, missing))}"
    elif rule == "additionalProperties" and expected is False:
        known = ", ".join(map(repr, error.schema.get("properties", {}))) or "none"
        message = f"has unknown properties; there are {known}"
    elif rule is None:  # the schema is `false`
        message = "is not allowed"
    else:
        message = f"does not fit {rule}: {json.dumps(expected, ensure_ascii=False)}"
    return ValidationIssue(tuple(error.absolute_path), message[:_MAX_MESSAGE])


def _jsonschema() -> _Module:
    try:
        return import_module("jsonschema")
    except ImportError as error:
        raise missing_extra("Checking a JSON Schema", "jsonschema", "json-schema") from error


def _draft(schema: JsonSchema) -> _Validator:
    library = _jsonschema()
    return library.validators.validator_for(schema, default=library.Draft202012Validator)


@lru_cache(maxsize=4096)
def _validator(schema: str) -> _Validator:
    """Returns the validator for a schema; raises `SerdeError` if the schema is invalid."""
    content = json.loads(schema)
    check_schema(content)
    draft = _draft(content)
    rules: dict[str, _Rule] = {
        **draft.VALIDATORS,
        "pattern": _check_pattern,
        "multipleOf": _check_multiple,
        "type": partial(_check_type, draft.VALIDATORS["type"]),
        "uniqueItems": _check_unique,
        "patternProperties": _accept,
        "unevaluatedProperties": _accept,
        "additionalProperties": partial(_check_others, draft.VALIDATORS["additionalProperties"]),
    }
    registry = import_module("referencing").Registry()  # an empty registry never fetches anything
    counted = {name: partial(_count, rule) for name, rule in rules.items()}
    return _jsonschema().validators.extend(draft, counted)(content, registry=registry)


def _count(rule: _Rule, validator: _Validator, expected: Json, *parts: object) -> object:
    """Applies a rule if the check has steps left."""
    _work.left -= 1 + (len(expected) // _ENUM_STEP if isinstance(expected, list) else 0)
    if _work.left < 0:
        raise _TooManySteps
    return rule(validator, expected, *parts)


def _check_type(
    check: _Validator, validator: _Validator, types: Json, value: Json, schema: JsonSchema
) -> Iterator[_Error]:
    """Checks as jsonschema does, and records the floats that are valid integers."""
    names = types if isinstance(types, list) else [types]
    if isinstance(value, float) and value.is_integer() and "integer" in names:
        _work.integers.add(id(value))
    errors: Iterator[_Error] = check(validator, types, value, schema)
    return errors


def _check_multiple(_: _Validator, factor: Json, value: Json, *__: object) -> Iterator[_Error]:
    """Checks as jsonschema does, but by decimal digits: 19.99 is a multiple of 0.01."""
    from decimal import Context, Decimal  # imported late because it takes a millisecond

    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if isinstance(value, int) and isinstance(factor, int):  # exact for any length
        if value % factor:
            yield _jsonschema().ValidationError("not a multiple")
        return
    digits = Context(prec=700)  # enough for the quotient of any two floats
    with suppress(ArithmeticError):  # raised for an infinity
        if digits.remainder(Decimal(repr(value)), Decimal(repr(factor))):
            yield _jsonschema().ValidationError("not a multiple")


def _check_unique(_: _Validator, unique: Json, value: Json, *__: object) -> Iterator[_Error]:
    """Checks as jsonschema does, but in linear time."""
    if unique and isinstance(value, list) and len(set(map(comparable, value))) < len(value):
        yield _jsonschema().ValidationError("not unique")


def _accept(*_: object) -> Iterator[_Error]:
    return iter(())


def _check_others(
    check: _Validator, validator: _Validator, rule: Json, value: Json, schema: JsonSchema
) -> Iterator[_Error]:
    """Yields the errors of `additionalProperties`, unless the schema has `patternProperties`."""
    return _accept() if schema.get("patternProperties") else check(validator, rule, value, schema)


@lru_cache(maxsize=1024)
def _matcher(pattern: str) -> Callable[[str], bool]:
    try:
        return line_matcher(pattern)
    except ValueError:  # the engine does not support this pattern
        return lambda _: True


def _check_pattern(_: _Validator, pattern: str, value: Json, *__: object) -> Iterator[_Error]:
    if isinstance(value, str) and not _matcher(pattern)(value):
        yield _jsonschema().ValidationError("no match")
