"""JSON as a model writes it: within a fenced block, with nulls for what is left out, arrays inside
an object.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from .. import serde
from ..errors import SerdeError, ValidationIssue
from .errors import OutputParseError

__all__ = ["WRAPPED_ITEMS", "json_text", "read_without_nulls", "unwrap_items"]

WRAPPED_ITEMS = "items"
"""The one property of the object in which an array travels, since providers want an object at the
root.
"""

# A line that begins a fenced block or, without a language, ends one. Compiled on first use;
# possessive, since a model
# can write what makes a pattern go back for hours.
_FENCE = r"[ \t]*+(`{3,}+)([^`]*+)"


def json_text(output_text: str) -> str:
    """The first fenced block that says it is JSON, else the first that names no language, else the
    whole text.
    """
    found: dict[str, str] = {}
    marks, language, block = 0, "", list[str]()  # of the fence that is open; 0 for none
    for line in output_text.split("\n"):
        fence = re.fullmatch(_FENCE, line)
        said = fence[2].lower().split() if fence else []
        if fence and not marks:
            marks, language, block = len(fence[1]), said[0] if said else "", []
        elif fence and not said and len(fence[1]) >= marks:
            found.setdefault(language, "\n".join(block))
            marks = 0
        else:
            block.append(line)
    return found.get("json", found.get("", output_text)).strip()


def unwrap_items(text: str) -> str:
    """The array inside an object that holds nothing but it, fenced or not; any other text
    unchanged.
    """
    value = _loaded(text)
    if isinstance(value, dict) and list(value) == [WRAPPED_ITEMS]:
        return json.dumps(value[WRAPPED_ITEMS], ensure_ascii=False)
    return text


def read_without_nulls[T](read: Callable[[str], T], text: str) -> tuple[T, str]:
    """What `read` makes of JSON `text`, fenced or not, and the text that it could be made of.

    In a strict schema a null stands for a field that was left out, so nulls are taken out where
    `read` finds fault with them. A number without a fraction, such as 5.0, counts as an integer, as
    JSON Schema has it. Raises what `read` does.
    """
    try:
        return read(text), text
    except (SerdeError, OutputParseError) as error:
        cause = error.__cause__ if isinstance(error, OutputParseError) else error
        if not isinstance(cause, SerdeError):
            raise
        value = _loaded(text)
        nulls, _ = _nulls(value, cause.issues)
        numbers = [
            _make_integer(value, path) for path, message in cause.issues if message == _NO_INTEGER
        ]
        if not nulls and not any(numbers):
            raise
        for (*above, key), _ in nulls:
            holder: Any = value  # JSON of every shape
            for part in above:
                holder = holder[part]
            holder.pop(key, None)
        text = json.dumps(value, ensure_ascii=False)
        found = read(text)
        members = [path for path, member in nulls if member]
        dumped = serde.dump(found) if members else None
        if not all(_is_there(dumped, path) for path in members):
            raise  # without the null it was read as a member that has no such field
        return found, text


type _Nulls = list[tuple[tuple[str | int, ...], bool]]
_STRAY = ("Unexpected keyword argument", "Extra inputs are not permitted")
_NO_INTEGER = "Input should be a valid integer"


# Any: JSON of every shape.
def _nulls(
    value: Any,
    issues: Sequence[ValidationIssue],
    at: tuple[str | int, ...] = (),
    *,
    member: bool = False,
) -> tuple[_Nulls, bool]:
    """The paths of nulls in `value` that `faults` are about, whether in a union's member, and
    whether that is all.

    What is wrong with the members of a union stands under a name for each, which is no key. The
    first member counts of which nothing but nulls are wrong, and none that it has no field for.
    """
    places: Any = (
        value
        if isinstance(value, dict)
        else dict(enumerate(value))
        if isinstance(value, list)
        else {}
    )
    below: dict[str | int, list[ValidationIssue]] = {}
    for path, message in issues:
        if path:
            below.setdefault(path[0], []).append(ValidationIssue(path[1:], message))
    found: _Nulls = []
    members: list[_Nulls | None] = []
    complete = all(fault.path for fault in issues)
    for key, inner in below.items():
        if isinstance(value, dict) and value.get(key, ...) is None:
            if inner[0].message in _STRAY:
                complete = False
            else:
                found.append(((*at, key), member))
            continue
        inside = key in places
        place = (*at, key) if inside else at
        nulls, all_of_them = _nulls(
            places.get(key, value), inner, place, member=member or not inside
        )
        if inside:
            found += nulls
            complete = complete and all_of_them
        else:
            members.append(nulls if all_of_them else None)
    chosen = next(filter(None, members), None)
    return found + (chosen or []), complete and (chosen is not None or not members)


# Any: JSON of every shape.
def _make_integer(value: Any, path: Sequence[str | int]) -> bool:
    """Makes an integer of the number at `path` in `value` if it has no fraction; whether it did."""
    holder: Any = None
    key: Any = None
    for part in path:
        places: Any = (
            value
            if isinstance(value, dict)
            else dict(enumerate(value))
            if isinstance(value, list)
            else {}
        )
        if part in places:  # else it names a union's member
            holder, key, value = value, part, places[part]
    if holder is None or not isinstance(value, float) or not value.is_integer():
        return False
    holder[key] = int(value)
    return True


def _is_there(value: Any, path: Sequence[str | int]) -> bool:  # Any: JSON of every shape
    for part in path:
        try:
            value = value[part]
        except (LookupError, TypeError):
            return False
    return True


def _loaded(text: str) -> Any:  # Any: JSON of every shape
    try:
        return json.loads(json_text(text))
    except (ValueError, RecursionError):
        return None
