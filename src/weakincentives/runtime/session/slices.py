"""One slice of a session: how it holds its values, and what changes them.

It holds a chain of links that never change, newest first. Appending puts one on top; a snapshot is
the top link. So neither depends on how long the history is, and branches share what they have in
common.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from threading import RLock
from typing import Any

from ...generics import Parametrized
from ...protocols import SliceView

__all__ = [
    "EMPTY",
    "Append",
    "Link",
    "Reducer",
    "Replace",
    "Slice",
    "SliceOp",
    "chain",
    "linked",
    "read",
]


@dataclass(frozen=True, slots=True)
class Append[T](Parametrized):
    """Add `value` as the newest."""

    value: T


@dataclass(frozen=True, slots=True)
class Replace[T](Parametrized):
    """Make `values` the whole slice."""

    values: tuple[T, ...]


type SliceOp[T] = Append[T] | Replace[T]
"""What a reducer answers."""

type Reducer[T, E] = Callable[[SliceView[T], E], SliceOp[T]]
"""Answers what an event does to a slice; it must not change anything itself."""

# Any: a slice gives its values their type; the end of the chain has neither a value nor a link
# below it.
type Link = tuple[Any, Any, int]
"""A value, the link below it, and how many values there are with this one."""

EMPTY: Link = (None, None, 0)


def linked(value: Any, below: Link) -> Link:
    """The chain with `value` on top."""
    return value, below, below[2] + 1


def chain(values: Iterable[Any]) -> Link:
    """The chain of `values`, the last on top."""
    top = EMPTY
    for value in values:
        top = linked(value, top)
    return top


def read(top: Link, start: int = 0) -> list[Any]:
    """The values of a chain without the first `start`, oldest first."""
    values: list[Any] = [None] * (top[2] - start)
    for at in reversed(range(len(values))):
        values[at], top, _ = top
    return values


# Any: as above, and reducers of every event type.
type _Register = Callable[[type[Any], Slice[Any], Reducer[Any, Any]], None]


class Slice[T]:
    """All values of one type in a session; `session[T]` gives it.

    Iteration and `all` see the values of that moment. Length and `latest` cost the same at any
    history.
    """

    __slots__ = ("_lock", "_register", "slice_type", "top")

    def __init__(self, slice_type: type[T], lock: RLock, register: _Register) -> None:
        self._lock = lock
        self._register = register
        self.slice_type = slice_type
        self.top = EMPTY

    def all(self) -> tuple[T, ...]:
        """Every value, oldest first."""
        return tuple(read(self.top))

    def latest(self) -> T | None:
        """The newest value, or `None` when there is none."""
        newest: T | None = self.top[0]
        return newest

    def where(self, predicate: Callable[[T], bool], /) -> tuple[T, ...]:
        """The values that `predicate` accepts, oldest first."""
        return tuple(value for value in self.all() if predicate(value))

    def append(self, value: T, /) -> None:
        """Adds `value` as the newest, past all reducers."""
        with self._lock:
            self.top = linked(value, self.top)

    def seed(self, *values: T) -> None:
        """Makes `values` the whole content, past all reducers."""
        with self._lock:
            self.top = chain(values)

    def clear(self, predicate: Callable[[T], bool] | None = None, /) -> None:
        """Removes the values that `predicate` accepts, by default all."""
        with self._lock:
            self.seed(
                *(() if predicate is None else self.where(lambda value: not predicate(value)))
            )

    def register[E](self, event_type: type[E], reducer: Reducer[T, E]) -> None:
        """Folds later events of exactly `event_type` into this slice by `reducer`.

        Raises `TypeError` unless the one is a class and the other can be called.
        """
        if not isinstance(event_type, type):
            raise TypeError(f"register got {event_type!r} for the events; give their class")
        if not callable(reducer):
            raise TypeError(
                f"register got the reducer {reducer!r}; give a function of slice and event, such as append_all"
            )
        self._register(event_type, self, reducer)

    def __len__(self) -> int:
        return self.top[2]

    def __bool__(self) -> bool:
        return self.top is not EMPTY

    def __iter__(self) -> Iterator[T]:
        return iter(self.all())

    def __repr__(self) -> str:
        return f"<Slice of {len(self)} {self.slice_type.__name__}>"

    def apply(self, op: SliceOp[T]) -> None:
        """Carries out what a reducer answered."""
        match op:
            case Append(value):
                self.append(value)
            case Replace(values):
                self.seed(*values)
            # reducers are the user's; the type checker has told them, this tells the others
            case _:
                raise TypeError(
                    f"a reducer of slice {self.slice_type.__name__} answered {op!r}; return Append(…) or Replace(…)"
                )
