"""A session's state captured as a value, and that value as JSON.

In JSON a slice stands under its type's name. Reading resolves names only among types that the
reader gave: a file can name a type, never have one imported. What is written is read back equal, or
writing raises `SerdeError`.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from operator import itemgetter
from types import GenericAlias
from typing import Any, Literal, TypedDict

from ... import serde
from ...errors import SerdeError, ValidationIssue
from ...visibility import SetVisibilityOverride, VisibilityOverrides
from .slices import EMPTY, Node, chain, read

__all__ = ["Changes", "SessionSnapshot", "parse_changes", "type_name", "types_by_name"]

type Changes = dict[str, dict[str, serde.Json]]
"""By `"added"` or `"set"`, then by the name of a slice's type, the values that it got or that are
now all.
"""

_VERSION = 1
# paths cannot be the keys of a JSON object
_ROW = {VisibilityOverrides: list[SetVisibilityOverride]}


class SessionSnapshot:
    """The content of every STATE slice at one moment, as the top of its chain; made in O(number of
    slices).
    """

    __slots__ = ("slices",)

    # Any: a session holds slices of every type
    def __init__(self, slices: Mapping[type[Any], Node]) -> None:
        self.slices = slices

    def __reduce__(self) -> tuple[object, ...]:
        """For copies and pickles, which would go down a chain by recursion."""
        return _of_values, ({of: read(head) for of, head in self.slices.items()},)

    def to_json(self) -> str:
        """The snapshot as JSON text, from which `from_json` makes equal slices.

        Raises `SerdeError` with slice, path and type for a value that JSON cannot hold or would
        change, and for two types of one name, such as local classes.
        """
        rows: dict[str, str] = {}
        for of, head in self.slices.items():
            if head is EMPTY:
                continue
            name = type_name(of)
            if name in rows:
                raise SerdeError(
                    "snapshot", (ValidationIssue((name,), "two types have this name; rename one"),)
                )
            rows[name] = _dump(of, read(head))
        slices = ",".join([f"{serde.dump_json(name)}:{row}" for name, row in rows.items()])
        return f'{{"version":{_VERSION},"slices":{{{slices}}}}}'

    def since(self, before: "SessionSnapshot") -> Changes:
        """What became of each slice since `before`, a snapshot of the same session, as JSON; costs
        what changed.

        Raises `SerdeError` as `to_json` does.
        """
        changes: Changes = {}
        for of, head in self.slices.items():
            if head is (old := before.slices.get(of, EMPTY)):
                continue
            tail = head
            while tail[2] > old[2]:
                tail = tail[1]
            how, start = ("added", old[2]) if tail is old else ("set", 0)
            changes.setdefault(how, {})[type_name(of)] = json.loads(_dump(of, read(head, start)))
        return changes

    @classmethod
    def from_json(
        cls, text: str | bytes, types: Iterable[type[Any]], known: Iterable[type[Any]] = ()
    ) -> "SessionSnapshot":
        """The snapshot that `to_json` wrote; its slices may be of `types`, and of those `known` to
        its reader.

        A class is found by its name, and one of `types` also when it has moved to another module
        since. Raises `SerdeError` for another type, another version and for what does not fit.
        """
        moved = frozenset(types)
        # Any: typeshed does not know that every class has a hash
        all_known: frozenset[Any] = moved.union(known)
        found = {type_name(of): of for of in all_known if _can_be_read(of)}
        try:
            whole = _parse(found, text)
        except SerdeError as error:
            in_slices = [
                fault
                for fault in error.issues
                if fault.path[:1] == ("slices",) and len(fault.path) > 1
            ]
            strange = {fault.path[1]: fault for fault in in_slices if fault.path[1] not in found}
            if not strange:
                raise
            others, unknown = _types_of(map(str, strange), all_known, moved)
            if unknown:
                rest = [fault for fault in error.issues if fault not in strange.values()]
                unknown = tuple(
                    [ValidationIssue(("slices", *fault.path), fault.message) for fault in unknown]
                )
                raise SerdeError(error.subject, (*rest, *unknown)) from error
            found |= others
            whole = _parse(found, text)
        slices = {name: found[name] for name in whole["slices"]}
        if len(set(slices.values())) < len(slices):
            same = [name for name, of in slices.items() if name != type_name(of)]
            message = "another slice here is read as the same type; keep one of them"
            raise SerdeError(
                "snapshot", tuple([ValidationIssue(("slices", name), message) for name in same])
            )
        return cls({of: chain(_values(of, whole["slices"][name])) for name, of in slices.items()})


# Any: as above.
def _of_values(slices: Mapping[type[Any], list[Any]]) -> SessionSnapshot:
    return SessionSnapshot({of: chain(values) for of, values in slices.items()})


def parse_changes(
    changes: Changes, types: Iterable[type[Any]]
) -> Iterator[tuple[str, type[Any], list[Any]]]:
    """What `SessionSnapshot.since` told: `"added"` or `"set"`, the slice's type, which is one of
    `types`, and values.

    Raises `SerdeError` for another type and for what does not fit.
    """
    types = frozenset(types)
    for how, slices in changes.items():
        for name, of in types_by_name(slices, types).items():
            # Any: made at run time
            values: Any = serde.parse(GenericAlias(list, _ROW.get(of, of)), slices[name])
            yield how, of, _values(of, values)


def types_by_name(names: Iterable[str], types: Iterable[type[Any]]) -> dict[str, type[Any]]:
    """The type of each name, whatever module it was in when the name was written.

    Raises `SerdeError` for names that stand for none of `types`.
    """
    known = frozenset(types)
    found, issues = _types_of(names, known, known)
    if issues:
        raise SerdeError("types", issues)
    return found


def _types_of(
    names: Iterable[str], known: Collection[type[Any]], moved: Collection[type[Any]]
) -> tuple[dict[str, type[Any]], tuple[ValidationIssue, ...]]:
    """The type of each name: that of `known` with this name, else the only one of `moved` with this
    qualified name.

    And faults for names that stand for none.
    """
    by_name = {type_name(of): of for of in known}
    found: dict[str, type[Any]] = {}
    issues: list[ValidationIssue] = []
    for name in names:
        alike = [of for of in moved if of.__qualname__ == name.partition(":")[2]]
        if name in by_name or len(alike) == 1:
            found[name] = by_name[name] if name in by_name else alike[0]
        elif alike:
            issues.append(
                ValidationIssue(
                    (name,), "several types in types= have that name in other modules; give one"
                )
            )
        else:
            issues.append(
                ValidationIssue((name,), "no type of that name is known here; give it in types=")
            )
    return found, tuple(issues)


@lru_cache(maxsize=1024)
def _can_be_read(of: Any) -> bool:  # Any: as above
    """Whether a slice of this type can cross JSON; a session may hold others, too."""
    try:
        serde.parse_json(GenericAlias(list, _ROW.get(of, of)), "[]")
    except SerdeError:
        return False
    return True


# Any: the form is made of the types given
def _parse(types: Mapping[str, type[Any]], text: str | bytes) -> Any:
    return serde.parse_json(_form(tuple(sorted(types.items(), key=itemgetter(0)))), text)


def _values(of: type[Any], rows: list[Any]) -> list[Any]:
    """What a slice holds for the rows that were read."""
    if of is VisibilityOverrides:
        return [VisibilityOverrides({one.path: one.visibility for one in row}) for row in rows]
    return rows


def type_name(of: type[Any]) -> str:
    """What a type is called in JSON."""
    return f"{of.__module__}:{of.__qualname__}"


def _dump(of: type[Any], values: list[Any]) -> str:
    """The values of a slice as JSON text.

    Raises `SerdeError` with the slice's name before each path.
    """
    rows = values
    if of is VisibilityOverrides:
        rows = [
            [SetVisibilityOverride(path=p, visibility=v) for p, v in one.overrides.items()]
            for one in values
        ]
    try:
        return serde.dump_json_lossless(GenericAlias(list, _ROW.get(of, of)), rows)
    except SerdeError as error:
        issues = [
            ValidationIssue((type_name(of), *fault.path), fault.message) for fault in error.issues
        ]
        raise SerdeError("snapshot", tuple(issues)) from error


@lru_cache(maxsize=256)
def _form(types: tuple[tuple[str, type[Any]], ...]) -> Any:
    """The type of the whole text, with one optional key for each slice that may be in it."""
    make: Any = TypedDict  # a checker reads the functional form only where its keys are literal
    rows = {name: GenericAlias(list, _ROW.get(of, of)) for name, of in types}
    return make("snapshot", {"version": Literal[1], "slices": make("slices", rows, total=False)})
