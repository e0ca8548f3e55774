"""A session's state captured as a value, and that value as JSON.

In JSON a slice stands under its type's name. Reading resolves names only among types that the reader gave: a file can
name a type, never have one imported.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from types import GenericAlias
from typing import Any, Literal, TypedDict

from ... import serde
from ...errors import Fault, SerdeError
from ...visibility_overrides import SetVisibilityOverride, VisibilityOverrides
from .slices import EMPTY, Link, chain, read

__all__ = ["Changes", "SessionSnapshot", "parse_changes", "type_name"]

type Changes = dict[str, dict[str, serde.Json]]
"""By `"added"` or `"set"`, then by the name of a slice's type, the values that it got or that are now all."""

_VERSION = 1
_ROW = {VisibilityOverrides: list[SetVisibilityOverride]}  # paths cannot be the keys of a JSON object


class SessionSnapshot:
    """The content of every STATE slice at one moment, as the top of its chain; made in O(number of slices)."""

    __slots__ = ("slices",)

    def __init__(self, slices: Mapping[type[Any], Link]) -> None:  # Any: a session holds slices of every type
        self.slices = slices

    def __reduce__(self) -> tuple[object, ...]:
        """For copies and pickles, which would go down a chain by recursion."""
        return _of_values, ({of: read(top) for of, top in self.slices.items()},)

    def to_json(self) -> str:
        """The snapshot as JSON text.

        Raises `SerdeError` for a value that JSON cannot hold, and for two types of one name, such as local classes.
        """
        rows: dict[str, str] = {}
        for of, top in self.slices.items():
            if top is EMPTY:
                continue
            name = type_name(of)
            if name in rows:
                raise SerdeError("snapshot", (Fault((name,), "two types have this name; rename one"),))
            rows[name] = serde.dump_json(_rows(of, read(top)))
        slices = ",".join([f"{serde.dump_json(name)}:{row}" for name, row in rows.items()])
        return f'{{"version":{_VERSION},"slices":{{{slices}}}}}'

    def since(self, before: "SessionSnapshot") -> Changes:
        """What became of each slice since `before`, a snapshot of the same session, as JSON; costs what changed.

        Raises `SerdeError` for a value that JSON cannot hold.
        """
        changes: Changes = {}
        for of, top in self.slices.items():
            if top is (old := before.slices.get(of, EMPTY)):
                continue
            below = top
            while below[2] > old[2]:
                below = below[1]
            how, start = ("added", old[2]) if below is old else ("set", 0)
            changes.setdefault(how, {})[type_name(of)] = serde.dump(_rows(of, read(top, start)))
        return changes

    @classmethod
    def from_json(cls, text: str | bytes, types: Iterable[type[Any]]) -> "SessionSnapshot":
        """The snapshot that `to_json` wrote; its slices may be of `types` only.

        Raises `SerdeError` for another type, another version and for what does not fit.
        """
        raw = text.encode(errors="replace") if isinstance(text, str) else text
        # Others of `types` need not be such as can cross JSON.
        known = tuple(sorted({of for of in types if type_name(of).encode() in raw}, key=type_name))
        try:
            # Any: the form is made of the types given.
            whole: Any = serde.parse_json(_form(known), text)
        except SerdeError as error:
            names = set(map(type_name, known))
            faults = [
                Fault(fault.path, "no type of that name is known here; give it in types=")
                if fault.path[:1] == ("slices",) and len(fault.path) > 1 and fault.path[1] not in names
                else fault
                for fault in error.faults
            ]
            raise SerdeError(error.subject, tuple(faults)) from error
        return cls({of: chain(_values(of, whole["slices"].get(type_name(of), []))) for of in known})


# Any: as above.
def _of_values(slices: Mapping[type[Any], list[Any]]) -> SessionSnapshot:
    return SessionSnapshot({of: chain(values) for of, values in slices.items()})


def parse_changes(changes: Changes, types: Iterable[type[Any]]) -> Iterator[tuple[str, type[Any], list[Any]]]:
    """What `SessionSnapshot.since` told: `"added"` or `"set"`, the slice's type, which is one of `types`, and values.

    Raises `SerdeError` for another type and for what does not fit.
    """
    known = {type_name(of): of for of in types}
    for how, slices in changes.items():
        for name, rows in slices.items():
            if name not in known:
                raise SerdeError("changes", (Fault((name,), "no type of that name is known here; give it in types="),))
            of = known[name]
            values: Any = serde.parse(GenericAlias(list, _ROW.get(of, of)), rows)  # Any: a form made at run time
            yield how, of, _values(of, values)


def _values(of: type[Any], rows: list[Any]) -> list[Any]:
    """What a slice holds for the rows that were read."""
    if of is VisibilityOverrides:
        return [VisibilityOverrides({one.path: one.visibility for one in row}) for row in rows]
    return rows


def type_name(of: type[Any]) -> str:
    """What a type is called in JSON."""
    return f"{of.__module__}:{of.__qualname__}"


def _rows(of: type[Any], values: Iterable[Any]) -> list[Any]:
    """What is dumped for the values of a slice."""
    if of is VisibilityOverrides:
        return [[SetVisibilityOverride(path=p, visibility=v) for p, v in one.overrides.items()] for one in values]
    return list(values)


@lru_cache(maxsize=256)
def _form(types: tuple[type[Any], ...]) -> Any:
    """The type of the whole text, with one optional key for each slice that may be in it."""
    make: Any = TypedDict  # a checker reads the functional form only where its keys are literal
    rows = {type_name(of): GenericAlias(list, _ROW.get(of, of)) for of in types}
    return make("snapshot", {"version": Literal[1], "slices": make("slices", rows, total=False)})
