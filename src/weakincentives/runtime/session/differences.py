"""What has changed between two snapshots of a session, as differences of JSON values."""

from collections.abc import Iterator

from ... import serde
from ...errors import SerdeError
from ...serde import Json
from .slices import EMPTY, Node, read
from .snapshots import SessionSnapshot, live_types, type_name

__all__ = ["Difference", "json_differences", "state_differences"]

type Difference = dict[str, Json]
"""`path`, a list of keys and indices, with the values `before` and `after`; one may be missing."""

_DEEPEST = 50


def state_differences(before: SessionSnapshot, after: SessionSnapshot) -> dict[str, Json]:
    """Returns the differences of each slice that has changed, by the slice's name.

    Takes time for what has changed; unchanged values are recognized by identity. A value that JSON
    cannot hold stands as `{"$repr": …}`.
    """
    changes: dict[str, Json] = {}
    for kind, head in after.slices.items():
        old = before.slices.get(kind, EMPTY)
        if kind in live_types or head is old:
            continue
        if differences := [*_slice_differences(old, head)]:
            name = type_name(kind)
            while name in changes:  # of another class, such as a local one
                name += "'"
            changes[name] = [*differences]
    return changes


def _slice_differences(old: Node, new: Node) -> Iterator[Difference]:
    tail = new
    while tail[2] > old[2]:
        tail = tail[1]
    start = old[2] if tail is old else 0
    earlier, later = read(old, start), read(new, start)
    for index in range(max(len(earlier), len(later))):
        path: list[Json] = [start + index]
        if index >= len(earlier):
            yield {"path": path, "after": _to_json(later[index])}
        elif index >= len(later):
            yield {"path": path, "before": _to_json(earlier[index])}
        elif earlier[index] is not later[index]:
            yield from json_differences(_to_json(earlier[index]), _to_json(later[index]), path)


def json_differences(before: Json, after: Json, path: list[Json]) -> Iterator[Difference]:
    """Yields the smallest values that differ below `path`, in order."""
    pairs: list[tuple[Json, dict[str, Json]]] = []
    if len(path) < _DEEPEST:
        match before, after:
            case dict(), dict():
                pairs = [(key, _sides(before, after, key)) for key in {**before, **after}]
            case list(), list():
                earlier, later = dict(enumerate(before)), dict(enumerate(after))
                pairs = [(key, _sides(earlier, later, key)) for key in {**earlier, **later}]
            case _:
                pass
    if not pairs:
        if f"{before!r}" != f"{after!r}":  # `==` does not see that 1 becomes true or 1.0
            yield {"path": path, "before": before, "after": after}
        return
    for key, sides in pairs:
        if len(sides) > 1:
            yield from json_differences(sides["before"], sides["after"], [*path, key])
        else:
            yield {"path": [*path, key], **sides}


def _sides[K](before: dict[K, Json], after: dict[K, Json], key: K) -> dict[str, Json]:
    sides = {"before": before, "after": after}
    return {name: side[key] for name, side in sides.items() if key in side}


def _to_json(value: object) -> Json:
    try:
        return serde.dump(value)
    except SerdeError:
        return {"$repr": f"{value!r}"}
