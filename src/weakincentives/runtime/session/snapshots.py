"""Captures a session's state as a value, and converts that value to and from JSON.

In JSON, a slice is identified by its type's name. When reading, names are looked up only among the
types that the caller passes, so a file can name a type but never import one. A snapshot that was
written can always be read back as equal values; otherwise, writing it raises `SerdeError`.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from operator import itemgetter
from types import GenericAlias
from typing import Literal, NamedTuple, TypedDict

from ... import serde
from ...errors import SerdeError, ValidationIssue
from ...protocols import SliceType
from ...record_types import AnyType
from ...serde import Json
from ...visibility import SetVisibilityOverride, VisibilityOverrides
from .slices import EMPTY, AnyValue, Node, Values, chain, read

__all__ = [
    "Changes",
    "SessionSnapshot",
    "library_state",
    "live_types",
    "parse_changes",
    "state",
    "stored_as",
    "type_name",
    "types_by_name",
    "with_running",
]

type Changes = dict[str, dict[str, Json]]
"""Changes by slice name: `"added"` contains new values, and `"set"` complete new contents."""

_VERSION = 1
_library_types: set[SliceType] = set()


def library_state[T](kind: type[T]) -> type[T]:
    """Marks the library's own state, which users can read without passing its type."""
    _library_types.add(kind)
    return kind


live_types: set[SliceType] = set()
"""The types of values that keep changing, such as a chat's turn; tool calls do not change them.

Such a value has a `name`. A snapshot contains its current value, which `fixed()` returns. A
session's `restore` keeps the value while it `is_running`, and omits other values with the same
name. If a snapshot was taken during a tool call, `before_call` is the snapshot from before that
call.
"""


def with_running(now: Node, restored: Node) -> Node:
    """Returns the values of `restored`, but keeps the values of `now` that are running."""
    running = [value for value in read(now) if value.is_running]
    if not running:
        return restored
    names = {value.name for value in running}
    return chain([*[value for value in read(restored) if value.name not in names], *running])


class _StoredForm(NamedTuple):
    """The type that replaces another type in JSON, and the conversions in both directions."""

    kind: AnyType  # created at run time
    dump: Callable[[AnyValue], AnyValue]
    parse: Callable[[AnyValue], AnyValue]


_stored_forms: dict[SliceType, _StoredForm] = {}


def stored_as[T, S](
    kind: type[T], form: type[S], dump: Callable[[T], S | None], parse: Callable[[S], T]
) -> None:
    """Makes snapshots write values of `kind` as `form`; omits a value if `dump` returns `None`."""
    _stored_forms[kind] = _StoredForm(form, dump, parse)


class _History(NamedTuple):
    """A class's name in snapshots, its earlier names, and its removed fields."""

    name: str
    renamed_from: tuple[str, ...]
    removed: frozenset[str]


_HISTORY = "__weakincentives_state__"


def state[T](
    *, name: str, renamed_from: Iterable[str] = (), removed: Iterable[str] = ()
) -> Callable[[type[T]], type[T]]:
    """Sets a state class's name in snapshots to `name`, whatever its module and its own name.

    Snapshots that use one of the names in `renamed_from` are read as this class; such a name comes
    from an earlier `@state`, or is `module:qualified name` for a class that had no `@state`. The
    fields in `removed` are ignored if a snapshot still contains them. A field that is missing from
    older snapshots needs a default. Raises `ValueError` for a name with characters other than
    letters, digits, `.`, `_` and `-`.
    """
    if re.fullmatch(r"[\w.-]+", name) is None:
        raise ValueError(f"invalid state name {name!r}: use only letters, digits, '.', '_' and '-'")
    history = _History(name, tuple(renamed_from), frozenset(removed))

    def mark(kind: type[T]) -> type[T]:
        setattr(kind, _HISTORY, history)
        return kind

    return mark


def _history(kind: SliceType) -> _History | None:
    history: _History | None = vars(kind).get(_HISTORY)
    return history


class SessionSnapshot:
    """The heads of a session's STATE slices at one moment; takes O(number of slices) time."""

    __slots__ = ("slices",)

    def __init__(self, slices: Mapping[SliceType, Node]) -> None:
        self.slices = slices

    def __reduce__(self) -> tuple[object, ...]:
        """Copies and pickles lists of values, because a linked list would recurse."""
        slices = self.committed().slices
        return _of_values, ({kind: read(head) for kind, head in slices.items()},)

    def committed(self) -> "SessionSnapshot":
        """Returns the snapshot without the changes of a tool call that was running at the time."""
        for kind in live_types:
            turns = self.slices.get(kind, EMPTY)
            for value in read(turns):
                if (before := value.before_call) is not None:
                    return SessionSnapshot({**before.slices, kind: turns})
        return self

    def to_json(self) -> str:
        """Returns JSON text from which `from_json` restores equal slices.

        Raises `SerdeError`, with the slice, path and type, for a value that JSON cannot represent
        exactly, and for two types with the same name, such as local classes.
        """
        slices: dict[str, str] = {}
        for kind, head in self.committed().slices.items():
            if head is EMPTY:
                continue
            name = type_name(kind)
            if name in slices:
                issue = ValidationIssue((name,), "two types have this name; rename one")
                raise SerdeError("snapshot", (issue,))
            slices[name] = _dump(kind, read(head))
        body = ",".join([f"{serde.dump_json(name)}:{values}" for name, values in slices.items()])
        return f'{{"version":{_VERSION},"slices":{{{body}}}}}'

    def since(self, before: "SessionSnapshot") -> Changes:
        """Returns the changes since `before`, a snapshot of the same session, as JSON values.

        The time needed depends only on the changed values. Raises the same `SerdeError` as
        `to_json`.
        """
        changes: Changes = {}
        for kind, old, head, start in self.changed_since(before):
            how = "added" if start == old[2] else "set"
            values = json.loads(_dump(kind, read(head, start)))
            changes.setdefault(how, {})[type_name(kind)] = values
        return changes

    def changed_since(
        self, before: "SessionSnapshot"
    ) -> Iterator[tuple[SliceType, Node, Node, int]]:
        """Yields each slice that has changed since `before`, with its old and new content.

        The number counts the values at the start that are known to be unchanged: either all of the
        old values or none.
        """
        for kind, new in self.slices.items():
            old = before.slices.get(kind, EMPTY)
            if new is old or kind in live_types:
                continue
            tail = new
            while tail[2] > old[2]:
                tail = tail[1]
            yield kind, old, new, old[2] if tail is old else 0

    @classmethod
    def from_json(
        cls, text: str | bytes, types: Iterable[SliceType], known: Iterable[SliceType] = ()
    ) -> "SessionSnapshot":
        """Parses JSON written by `to_json`; its slices must have types in `types` or `known`.

        A class is found by its name, or by an earlier name given to `@state`. A class in `types` is
        found even if it has moved to another module. Raises `SerdeError` for a slice of any other
        type, another version, or invalid values.
        """
        moved = frozenset(types)
        # typeshed does not know that every class has a hash
        all_known: frozenset[AnyType] = moved.union(known)
        by_name = _by_name([kind for kind in all_known if _is_readable(kind)])
        text = _drop_removed(text, by_name)
        try:
            content = _parse(by_name, text)
        except SerdeError as error:
            all_known |= _library_types
            by_name |= _types_of_unknown_slices(error, by_name, all_known, moved)
            content = _parse(by_name, text)
        slices = {name: by_name[name] for name in content["slices"]}
        if len(set(slices.values())) < len(slices):
            message = "another slice here is read as the same type; keep one of them"
            doubled = [name for name, kind in slices.items() if name != type_name(kind)]
            issues = [ValidationIssue(("slices", name), message) for name in doubled]
            raise SerdeError("snapshot", tuple(issues))
        rows = content["slices"]
        return cls({kind: chain(_values(kind, rows[name])) for name, kind in slices.items()})


def _types_of_unknown_slices(
    error: SerdeError,
    by_name: Mapping[str, SliceType],
    known: Collection[SliceType],
    moved: Collection[SliceType],
) -> dict[str, SliceType]:
    """Finds types for the unknown slices reported in `error`, or raises a clearer error."""
    unknown = {
        issue.path[1]: issue
        for issue in error.issues
        if issue.path[:1] == ("slices",) and len(issue.path) > 1 and issue.path[1] not in by_name
    }
    if not unknown:
        raise error
    types, unresolved = _find_types(map(str, unknown), known, moved)
    if unresolved:
        others = [issue for issue in error.issues if issue not in unknown.values()]
        named = [ValidationIssue(("slices", *issue.path), issue.message) for issue in unresolved]
        raise SerdeError(error.subject, (*others, *named)) from error
    return types


def _of_values(slices: Mapping[SliceType, Values]) -> SessionSnapshot:
    return SessionSnapshot({kind: chain(values) for kind, values in slices.items()})


def parse_changes(
    changes: Changes, types: Iterable[SliceType]
) -> Iterator[tuple[str, SliceType, Values]]:
    """Yields each change from `SessionSnapshot.since`: `"added"` or `"set"`, type and values.

    Raises `SerdeError` for a type that is not in `types`, and for invalid values.
    """
    types = frozenset(types)
    for how, slices in changes.items():
        for name, kind in types_by_name(slices, types).items():
            present = _without_removed(kind, slices[name])
            rows: AnyValue = serde.parse(_rows_type(kind), present)
            yield how, kind, _values(kind, rows)


def types_by_name(names: Iterable[str], types: Iterable[SliceType]) -> dict[str, SliceType]:
    """Finds the type for each name, even if the type has moved to another module.

    Raises `SerdeError` for names that do not match any of `types`.
    """
    known = frozenset(types)
    by_name, issues = _find_types(names, known, known)
    if issues:
        raise SerdeError("types", issues)
    return by_name


def _find_types(
    names: Iterable[str], known: Collection[SliceType], moved: Collection[SliceType]
) -> tuple[dict[str, SliceType], tuple[ValidationIssue, ...]]:
    """Looks up each name in `known`, or its qualified name in `moved`; returns types and issues."""
    by_name = _by_name(known)
    types: dict[str, SliceType] = {}
    issues: list[ValidationIssue] = []
    for name in names:
        alike = [kind for kind in moved if kind.__qualname__ == name.partition(":")[2]]
        if name in by_name or len(alike) == 1:
            types[name] = by_name[name] if name in by_name else alike[0]
        elif alike:
            message = "several types in types= have that name in other modules; pass one"
            issues.append(ValidationIssue((name,), message))
        else:
            message = "no type of that name is known here; pass it in types="
            issues.append(ValidationIssue((name,), message))
    return types, tuple(issues)


def _by_name(types: Iterable[SliceType]) -> dict[str, SliceType]:
    """Returns types by their current and earlier names; current names take precedence."""
    types = [*types]
    earlier = {
        name: kind
        for kind in types
        if (history := _history(kind)) is not None
        for name in history.renamed_from
    }
    return earlier | {type_name(kind): kind for kind in types}


def _drop_removed(text: str | bytes, types: Mapping[str, SliceType]) -> str | bytes:
    """Returns a snapshot's text without fields that its types no longer have."""
    if not any((history := _history(kind)) and history.removed for kind in types.values()):
        return text
    try:
        content = json.loads(text)
        slices = content["slices"]
        for name in slices.keys() & types.keys():
            slices[name] = _without_removed(types[name], slices[name])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return text  # the parser gives a better error message
    return json.dumps(content)


def _without_removed(kind: SliceType, rows: Json) -> Json:
    history = _history(kind)
    if history is None or not history.removed or not isinstance(rows, list):
        return rows
    return [
        {key: value for key, value in row.items() if key not in history.removed}
        if isinstance(row, dict)
        else row
        for row in rows
    ]


def _rows_type(kind: SliceType) -> AnyType:
    """Returns the type of a slice in JSON."""
    form = _stored_forms.get(kind)
    return GenericAlias(list, kind if form is None else form.kind)


@lru_cache(maxsize=1024)
def _is_readable(kind: SliceType) -> bool:
    """Whether a slice of this type can be read from JSON; a session can also contain others."""
    try:
        serde.parse_json(_rows_type(kind), "[]")
    except SerdeError:
        return False
    return True


def _parse(types: Mapping[str, SliceType], text: str | bytes) -> AnyValue:
    return serde.parse_json(_text_type(tuple(sorted(types.items(), key=itemgetter(0)))), text)


@lru_cache(maxsize=256)
def _text_type(types: tuple[tuple[str, SliceType], ...]) -> AnyType:
    """Returns the type of the whole text, with an optional key for each slice."""
    make: AnyType = TypedDict  # type checkers require literal keys in the functional form
    slices = {name: _rows_type(kind) for name, kind in types}
    return make("snapshot", {"version": Literal[1], "slices": make("slices", slices, total=False)})


def _values(kind: SliceType, rows: Values) -> Values:
    """Returns a slice's values from the `rows` that were read from JSON."""
    form = _stored_forms.get(kind)
    return rows if form is None else [form.parse(row) for row in rows]


def type_name(kind: SliceType) -> str:
    """Returns a type's name in JSON: its `@state` name, otherwise module and qualified name."""
    if (history := _history(kind)) is not None:
        return history.name
    return f"{kind.__module__}:{kind.__qualname__}"


def _dump(kind: SliceType, values: Values) -> str:
    """Writes a slice's values as JSON; the paths of a `SerdeError` include the slice's name."""
    rows = values
    if (form := _stored_forms.get(kind)) is not None:
        rows = [row for value in values if (row := form.dump(value)) is not None]
    try:
        return serde.dump_json_lossless(_rows_type(kind), rows)
    except SerdeError as error:
        name = type_name(kind)
        issues = [ValidationIssue((name, *issue.path), issue.message) for issue in error.issues]
        raise SerdeError("snapshot", tuple(issues)) from error


def _to_decisions(overrides: VisibilityOverrides) -> list[SetVisibilityOverride]:
    """Returns the overrides as a list, because JSON does not allow paths as keys."""
    return [
        SetVisibilityOverride(path=path, visibility=visibility)
        for path, visibility in overrides.overrides.items()
    ]


def _to_overrides(decisions: list[SetVisibilityOverride]) -> VisibilityOverrides:
    return VisibilityOverrides({item.path: item.visibility for item in decisions})


stored_as(VisibilityOverrides, list[SetVisibilityOverride], _to_decisions, _to_overrides)
