"""Hypothesis strategies for types that can be stored as JSON, including generated dataclasses, and
for their values.
"""

from __future__ import annotations

from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from functools import reduce
from operator import or_
from pathlib import Path
from types import GenericAlias
from typing import Any, Literal
from uuid import UUID

from hypothesis import strategies as st

type Shape = Literal["null", "boolean", "number", "string", "array", "object"]


class Colour(Enum):
    RED = "red"
    BLUE = "dark blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 20


@dataclass
class Tree:
    """A type that is recursive in three ways."""

    name: str
    children: list[Tree]
    parent: Tree | None = None
    links: dict[str, Tree] = field(default_factory=dict)


@dataclass(frozen=True)
class Kind:
    """A type as written in an annotation, its values, and their form in JSON."""

    # Any: annotations of all forms, and values of their types.
    of: Any
    values: st.SearchStrategy[Any]
    shape: Shape
    hashable: bool = True
    key: bool = False


# lone surrogates cannot be stored as JSON
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_OFFSETS = st.builds(
    lambda minutes: timezone(timedelta(minutes=minutes)), st.integers(-14 * 60, 14 * 60)
)
_AWARE = st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31), timezones=st.just(UTC) | _OFFSETS)  # noqa: DTZ001 - the bounds must be naive
_TREES: st.SearchStrategy[Tree] = st.recursive(
    st.builds(Tree, TEXT, st.just([])),
    lambda trees: st.builds(
        Tree,
        TEXT,
        st.lists(trees, max_size=2),
        st.none() | trees,
        st.dictionaries(TEXT, trees, max_size=2),
    ),
    max_leaves=6,
)

SCALARS = (
    Kind(None, st.none(), "null"),
    Kind(bool, st.booleans(), "boolean", key=True),
    Kind(int, st.integers(-(10**30), 10**30), "number", key=True),
    Kind(float, st.floats(allow_nan=False, allow_infinity=False), "number"),
    Kind(Level, st.sampled_from(Level), "number", key=True),
    Kind(str, TEXT, "string", key=True),
    Kind(bytes, st.binary(max_size=8), "string"),
    Kind(date, st.dates(), "string", key=True),
    Kind(datetime, st.datetimes() | _AWARE, "string", key=True),
    Kind(time, st.times(), "string", key=True),
    Kind(timedelta, st.timedeltas(), "string", key=True),
    Kind(UUID, st.uuids(), "string", key=True),
    Kind(Decimal, st.decimals(allow_nan=False, allow_infinity=False), "string", key=True),
    Kind(
        Path,
        st.lists(st.text("ab. é", min_size=1, max_size=3), max_size=3).map(
            lambda parts: Path(*parts)
        ),
        "string",
    ),
    Kind(Colour, st.sampled_from(Colour), "string", key=True),
    Kind(Literal["left", "right"], st.sampled_from(["left", "right"]), "string", key=True),
)
TREE = Kind(Tree, _TREES, "object", hashable=False)


# Any: forms of types that type checkers cannot follow.
def applied(generic: type, *arguments: Any) -> Any:
    """Returns `generic[arguments]` for arguments known only at run time."""
    return GenericAlias(generic, arguments)


@st.composite
def kinds(draw: st.DrawFn, depth: int = 3) -> Kind:
    """Draws any type, including containers and dataclasses up to `depth` levels deep."""
    if depth and draw(st.booleans()) and draw(st.booleans()):
        # its 1 would be taken for True
        members = plain_kinds(depth - 1).filter(lambda kind: kind.of is not Level)
        return union(
            draw(st.lists(members, min_size=2, max_size=3, unique_by=lambda kind: kind.shape))
        )
    return draw(plain_kinds(depth))


@st.composite
def plain_kinds(draw: st.DrawFn, depth: int) -> Kind:
    """Draws any type except a union."""
    match draw(st.sampled_from(("scalar", "container", "dataclass"))) if depth else "scalar":
        case "container":
            return draw(containers(depth - 1))
        case "dataclass":
            return draw(dataclass_kinds(depth - 1))
        case _:
            return draw(st.sampled_from((*SCALARS, TREE)))


def union(members: list[Kind]) -> Kind:
    """Draws a union of types that differ in JSON; one of `str` and `date`, for example, could not
    be restored.
    """
    of = reduce(or_, [member.of for member in members])
    values = st.one_of([member.values for member in members])
    return Kind(of, values, members[0].shape, hashable=all(member.hashable for member in members))


@st.composite
def containers(draw: st.DrawFn, depth: int) -> Kind:
    item = draw(kinds(depth))
    forms = ["list", "tuple", "pair", "dict", *(["set", "frozenset"] if item.hashable else [])]
    match draw(st.sampled_from(forms)):
        case "list":
            return Kind(
                applied(list, item.of), st.lists(item.values, max_size=3), "array", hashable=False
            )
        case "tuple":
            row = st.lists(item.values, max_size=3).map(tuple)
            return Kind(applied(tuple, item.of, ...), row, "array", hashable=item.hashable)
        case "pair":
            other = draw(kinds(depth))
            of = applied(tuple, item.of, other.of)
            return Kind(
                of,
                st.tuples(item.values, other.values),
                "array",
                hashable=item.hashable and other.hashable,
            )
        case "set":
            return Kind(
                applied(set, item.of), st.sets(item.values, max_size=3), "array", hashable=False
            )
        case "frozenset":
            return Kind(
                applied(frozenset, item.of), st.frozensets(item.values, max_size=3), "array"
            )
        case _:
            key = draw(st.sampled_from([kind for kind in SCALARS if kind.key]))
            values = st.dictionaries(key.values, item.values, max_size=3)
            return Kind(applied(dict, key.of, item.of), values, "object", hashable=False)


@st.composite
def dataclass_kinds(draw: st.DrawFn, depth: int = 2) -> Kind:
    """Draws a dataclass with fields of any kind, some of them with defaults."""
    fields = draw(st.lists(kinds(depth), min_size=1, max_size=4))
    names = [f"field_{index}" for index in range(len(fields))]
    required = draw(st.integers(0, len(fields)))
    specs: list[Any] = []
    for index, (name, kind) in enumerate(zip(names, fields, strict=True)):
        default = draw(kind.values) if index >= required else None
        specs.append((name, kind.of) if index < required else (name, kind.of, _default(default)))
    frozen = draw(st.booleans())
    of = make_dataclass(
        "Made", specs, frozen=frozen, slots=draw(st.booleans()), kw_only=draw(st.booleans())
    )
    values = st.builds(of, **{name: kind.values for name, kind in zip(names, fields, strict=True)})
    return Kind(of, values, "object", hashable=frozen and all(kind.hashable for kind in fields))


# Any: a default of any type.
def _default(value: Any) -> Any:
    return field(default_factory=lambda: value)


@st.composite
def typed_values(draw: st.DrawFn) -> tuple[Any, Any]:
    """Draws a type and a value of that type."""
    kind = draw(kinds())
    return kind.of, draw(kind.values)
