"""How a slice holds its values, and the operations by which reducers change it.

A slice is a chain of links that never change, newest first. Appending puts one on top; a snapshot is the top link. So
neither depends on how long the history is, and branches share what they have in common.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ...specialised import Specialised

__all__ = ["EMPTY", "Append", "Link", "Replace", "SliceOp", "SlicePolicy", "chain", "read"]


class SlicePolicy(Enum):
    """`STATE` slices go back when a tool call fails; `LOG` slices, such as telemetry, are kept."""

    STATE = "state"
    LOG = "log"


@dataclass(frozen=True, slots=True)
class Append[T](Specialised):
    """Add `value` as the newest."""

    value: T


@dataclass(frozen=True, slots=True)
class Replace[T](Specialised):
    """Make `values` the whole slice."""

    values: tuple[T, ...]


type SliceOp[T] = Append[T] | Replace[T]
"""What a reducer answers."""

# Any: a slice gives its values their type; the end of the chain has neither a value nor a link below it.
type Link = tuple[Any, Any, int]
"""A value, the link below it, and how many values there are with this one."""

EMPTY: Link = (None, None, 0)


def chain(values: Iterable[Any]) -> Link:
    """The chain of `values`, the last on top."""
    top = EMPTY
    for length, value in enumerate(values, 1):
        top = (value, top, length)
    return top


def read(top: Link, start: int = 0) -> list[Any]:
    """The values of a chain without the first `start`, oldest first."""
    values: list[Any] = [None] * (top[2] - start)
    for at in reversed(range(len(values))):
        values[at], top, _ = top
    return values
