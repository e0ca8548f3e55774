"""Parses JSON that models write: fenced, after reasoning, with extra nulls, or wrapped."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import isfinite
from operator import getitem
from typing import NamedTuple

from .. import serde
from ..errors import SerdeError, ValidationIssue
from ..serde.json_types import AnyJson
from .errors import OutputParseError

__all__ = ["WRAPPED_ITEMS", "WRAPPED_VALUE", "json_text", "read_without_nulls", "unwrap"]

type JsonPath = tuple[str | int, ...]

WRAPPED_ITEMS = "items"
"""The only property of the object that wraps an array; providers require an object at the root."""

WRAPPED_VALUE = "value"
"""The only property of the object that wraps a scalar or a union."""

# Matches a line that starts a fenced block or, if it has no language, ends one. Compiled on first
# use. Possessive, because a model can write text that would make the pattern backtrack for hours.
_FENCE = r"[ \t]*+(`{3,}+)([^`]*+)"
_THOUGHT_END = r"(?is)</think(?:ing)?\s*+>"
_THOUGHTS = r"(?is)\A(?:\s*+<think.*?</think(?:ing)?\s*+>)++"
_STRAY = ("Unexpected keyword argument", "Extra inputs are not permitted")
_NO_INTEGER = "Input should be a valid integer"


def json_text(output_text: str) -> str:
    """Returns the JSON in an answer, without the reasoning that some models write before it."""
    text = re.sub(_THOUGHTS, "", output_text)
    # the opening tag is often part of the model's template, not of its answer
    if "</think" in text.lower() and _load(_fenced(text)) is None:
        text = re.split(_THOUGHT_END, text, maxsplit=1)[-1]
    return _fenced(text)


def _fenced(output_text: str) -> str:
    """Returns the first JSON block, or the first block without a language, or all of the text."""
    blocks: dict[str, str] = {}
    ticks = 0  # the number of backticks of the open fence; 0 if none is open
    language = ""
    lines: list[str] = []
    for line in output_text.split("\n"):
        fence = re.fullmatch(_FENCE, line)
        words = fence[2].lower().split() if fence else []
        if fence and not ticks:
            ticks = len(fence[1])
            language = words[0] if words else ""
            lines = []
        elif fence and not words and len(fence[1]) >= ticks:
            blocks.setdefault(language, "\n".join(lines))
            ticks = 0
        else:
            lines.append(line)
    return blocks.get("json", blocks.get("", output_text)).strip()


def unwrap(text: str, wrapper: str) -> str:
    """Returns the value of a JSON object's only property if that is `wrapper`, otherwise `text`."""
    value = _load(text)
    if isinstance(value, dict) and list(value) == [wrapper]:
        return _dump(value[wrapper])
    return text


def read_without_nulls[T](read: Callable[[str], T], text: str) -> tuple[T, str]:
    """Returns the value that `read` parses from JSON `text`, and the text that it accepted.

    In a strict schema, a null represents an absent field, so nulls that `read` rejects are removed.
    As in JSON Schema, a number with a zero fraction, such as 5.0, is an integer. Raises the same
    errors as `read`.
    """
    try:
        return read(text), text
    except (SerdeError, OutputParseError) as error:
        cause = error.__cause__ if isinstance(error, OutputParseError) else error
        if not isinstance(cause, SerdeError):
            raise
        lacks_integer = any(issue.message == _NO_INTEGER for issue in cause.issues)
        value = _load(text, _integer_or_number if lacks_integer else _Number)
        nulls, _ = _rejected_nulls(value, cause.issues)
        if not nulls and not lacks_integer:
            raise
        for null in nulls:
            *parents, key = null.path
            reduce(getitem, parents, value).pop(key, None)
        text = _dump(value)
        result = read(text)
        paths = [null.path for null in nulls if null.in_union]
        dumped = serde.dump(result) if paths else None
        if not all(_has(dumped, path) for path in paths):
            raise  # without the null, another union member matched, which does not have this field
        return result, text


class _Null(NamedTuple):
    path: JsonPath
    in_union: bool


def _rejected_nulls(
    value: AnyJson,
    issues: Sequence[ValidationIssue],
    path: JsonPath = (),
    *,
    in_union: bool = False,
) -> tuple[list[_Null], bool]:
    """Returns the nulls in `value` that cause `issues`, and whether they cause all of them.

    In a union, an issue's path contains a label for the member, which is not a key in the JSON.
    Only the first member whose issues are all caused by nulls in its own fields is used.
    """
    issues_of: dict[str | int, list[ValidationIssue]] = {}
    for issue in issues:
        if issue.path:
            rest = ValidationIssue(issue.path[1:], issue.message)
            issues_of.setdefault(issue.path[0], []).append(rest)
    nulls: list[_Null] = []
    members: list[tuple[list[_Null], bool]] = []
    explained = all(issue.path for issue in issues)
    for part, inner in issues_of.items():
        child = _child(value, part)
        if child is ...:
            members.append(_rejected_nulls(value, inner, path, in_union=True))
        elif child is not None or isinstance(value, list):
            below, complete = _rejected_nulls(child, inner, (*path, part), in_union=in_union)
            nulls += below
            explained = explained and complete
        elif inner[0].message in _STRAY:
            explained = False
        else:
            nulls.append(_Null((*path, part), in_union))
    if members:
        member = next((part for part, complete in members if part and complete), [])
        nulls += member
        explained = explained and member != []
    return nulls, explained


def _has(value: AnyJson, path: JsonPath) -> bool:
    for part in path:
        value = _child(value, part)
    return value is not ...


def _child(value: AnyJson, part: str | int) -> AnyJson:
    """Returns a part of an object or array, or `...` if that part does not exist."""
    if isinstance(value, list) and isinstance(part, int):
        return value[part] if part < len(value) else ...
    return value.get(part, ...) if isinstance(value, dict) else ...


@dataclass(frozen=True, slots=True)
class _Number:
    """A number with a fraction or exponent, kept as written because a float could lose digits."""

    text: str


def _integer_or_number(text: str) -> int | _Number:
    from decimal import Decimal

    if not isfinite(float(text)):  # as an integer, it could have millions of digits
        return _Number(text)
    number = Decimal(text)
    return integer if (integer := int(number)) == number else _Number(text)


def _load(text: str, read_number: Callable[[str], int | _Number] = _Number) -> AnyJson:
    try:
        return json.loads(text, parse_float=read_number)
    except (ValueError, RecursionError):
        return None


def _dump(value: AnyJson) -> str:
    """Returns a value from `_load` as JSON text, with numbers as they were written."""
    text = json.dumps(value, ensure_ascii=False, default=lambda number: f"\0{number.text}")
    return re.sub(r'"\\u0000([-+.\deE]++)"', r"\1", text)
