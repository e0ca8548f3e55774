"""Describes the changes between two snapshots of a session as differences between JSON values."""

from collections.abc import Iterator, Mapping

from ... import serde
from ...errors import SerdeError
from ...serde import Json
from .slices import read
from .snapshots import SessionSnapshot, type_name

__all__ = ["Difference", "json_differences", "state_differences"]

type Difference = dict[str, Json]
"""A `path` of keys and indices, with the values `before` and `after`; one may be missing."""

_DEEPEST = 50


def state_differences(before: SessionSnapshot, after: SessionSnapshot) -> dict[str, Json]:
    """Returns the differences in each slice that has changed, by the slice's name.

    The time needed depends only on the changed values; unchanged values are recognized by identity.
    A value that cannot be converted to JSON is represented as `{"$repr": …}`.
    """
    changes: dict[str, Json] = {}
    for kind, old, new, start in after.changed_since(before):
        earlier, later = dict(enumerate(read(old, start))), dict(enumerate(read(new, start)))
        kept = {i for i in earlier.keys() & later.keys() if earlier[i] is later[i]}
        rows, new_rows = [
            {start + i: _to_json(value) for i, value in values.items() if i not in kept}
            for values in (earlier, later)
        ]
        if differences := [*_differences(rows, new_rows, [])]:
            name = type_name(kind)
            while name in changes:  # another class, such as a local one, has the same name
                name += "'"
            changes[name] = [*differences]
    return changes


def json_differences(before: Json, after: Json, path: list[Json]) -> Iterator[Difference]:
    """Yields the smallest values that differ below `path`, in order."""
    match before, after:
        case (dict(), dict()) if (before or after) and len(path) < _DEEPEST:
            yield from _differences(before, after, path)
        case (list(), list()) if (before or after) and len(path) < _DEEPEST:
            yield from _differences(dict(enumerate(before)), dict(enumerate(after)), path)
        case _:
            if f"{before!r}" != f"{after!r}":  # `==` does not distinguish 1 from true and 1.0
                yield {"path": path, "before": before, "after": after}


def _differences[K: int | str](
    before: Mapping[K, Json], after: Mapping[K, Json], path: list[Json]
) -> Iterator[Difference]:
    for key in {**before, **after}:
        place: list[Json] = [*path, key]
        if key not in before:
            yield {"path": place, "after": after[key]}
        elif key not in after:
            yield {"path": place, "before": before[key]}
        else:
            yield from json_differences(before[key], after[key], place)


def _to_json(value: object) -> Json:
    try:
        return serde.dump(value)
    except SerdeError:
        return {"$repr": f"{value!r}"}
