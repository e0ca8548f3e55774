"""Append-only storage of one slice, and the operations by which reducers change it.

A slice's state is a pair (log, length). Appending adds to the log's tail; a snapshot is the pair itself; going back is
putting the pair back. When a slice went back and then takes another way, the abandoned tail is cut off if no snapshot
holds it, else a new log starts on top of the kept part. Nothing here depends on how long the history is.
"""

from dataclasses import dataclass
from enum import Enum

from ...specialised import Specialised

__all__ = ["Append", "Log", "Replace", "SliceOp", "SlicePolicy"]


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


class Log[T]:
    """Values on top of the first `base_length` values of `base`. One slice of one session appends to it."""

    __slots__ = ("base", "base_length", "pinned", "values")

    def __init__(self, values: list[T], base: "Log[T] | None" = None, base_length: int = 0) -> None:
        self.values = values
        self.base = base
        self.base_length = base_length
        self.pinned = 0  # how many of `values` some snapshot holds

    def append(self, value: T, length: int) -> "Log[T]":
        """Adds `value` after the first `length` values; gives the log that holds the result."""
        kept = length - self.base_length
        if kept == len(self.values):
            self.values.append(value)
            return self
        if self.pinned <= kept:
            del self.values[kept:]
            self.values.append(value)
            return self
        return Log([value], self, length)

    def pin(self, length: int) -> None:
        """Promises a snapshot that the first `length` values stay."""
        self.pinned = max(self.pinned, length - self.base_length)

    def at(self, index: int) -> T:
        """The value at `index`, counted from the oldest."""
        log = self
        while index < log.base_length and log.base is not None:
            log = log.base
        return log.values[index - log.base_length]

    def read(self, length: int) -> tuple[T, ...]:
        """The first `length` values, oldest first."""
        parts: list[list[T]] = []
        log: Log[T] | None = self
        while log is not None:
            parts.append(log.values[: length - log.base_length])
            length, log = log.base_length, log.base
        return tuple(value for part in reversed(parts) for value in part)
