"""One slice of a session: its values, and the operations that change them.

A slice is a linked list of immutable nodes, newest first. Appending adds a node, and a snapshot is
the head node, so both take constant time, and branches share their history.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from threading import RLock
from typing import Any
from weakref import WeakMethod

from ...generics import Parametrized
from ...protocols import SliceType, SliceView

__all__ = [
    "EMPTY",
    "AnyReducer",
    "AnySlice",
    "AnyValue",
    "Append",
    "Node",
    "Reducer",
    "Register",
    "Replace",
    "Slice",
    "SliceOp",
    "Values",
    "chain",
    "read",
]


@dataclass(frozen=True, slots=True)
class Append[T](Parametrized):
    """Adds `value` to the slice as the newest value."""

    value: T


@dataclass(frozen=True, slots=True)
class Replace[T](Parametrized):
    """Replaces the content of the slice with `values`."""

    values: tuple[T, ...]


type SliceOp[T] = Append[T] | Replace[T]
"""The return type of reducers."""

type Reducer[T, E] = Callable[[SliceView[T], E], SliceOp[T]]
"""Returns the change that an event makes to a slice; must not change anything itself."""

# Any: as for `SliceType`
type AnySlice = Slice[Any]
type AnyReducer = Reducer[Any, Any]

# Any: `Slice` adds the type of the values; the empty list has no value and no tail.
type AnyValue = Any
type Values = list[AnyValue]
type Node = tuple[AnyValue, AnyValue, int]
"""The head of a linked list: the newest value, the tail, and the number of values."""

EMPTY: Node = (None, None, 0)


def chain(values: Iterable[object]) -> Node:
    """Returns a linked list of `values`, with the last value as its head."""
    head = EMPTY
    for value in values:
        head = value, head, head[2] + 1
    return head


def read(head: Node, start: int = 0) -> Values:
    """Returns a list's values except the first `start`, oldest first."""
    values: Values = [None] * (head[2] - start)
    for index in reversed(range(len(values))):
        values[index], head, _ = head
    return values


type Register = WeakMethod[Callable[[SliceType, AnySlice, AnyReducer], None]]


class Slice[T]:
    """All values of one type in a session, as returned by `session[T]`.

    Iteration and `all` use the values at the time of the call. `len` and `latest` take constant
    time.
    """

    __slots__ = ("_lock", "_register", "head", "slice_type")

    def __init__(self, slice_type: type[T], lock: RLock, register: Register) -> None:
        self._lock = lock
        self._register = register
        self.slice_type = slice_type
        self.head = EMPTY

    def all(self) -> tuple[T, ...]:
        """Returns every value, oldest first."""
        return tuple(read(self.head))

    def latest(self) -> T | None:
        """Returns the newest value, or `None` if there is none."""
        newest: T | None = self.head[0]
        return newest

    def where(self, predicate: Callable[[T], bool], /) -> tuple[T, ...]:
        """Returns the values that `predicate` accepts, oldest first."""
        return tuple(value for value in self.all() if predicate(value))

    def append(self, value: T, /) -> None:
        """Adds `value` as the newest value, without calling reducers."""
        with self._lock:
            head = self.head
            self.head = value, head, head[2] + 1

    def seed(self, *values: T) -> None:
        """Replaces the content with `values`, without calling reducers."""
        with self._lock:
            self.head = chain(values)

    def clear(self, predicate: Callable[[T], bool] | None = None, /) -> None:
        """Removes the values that `predicate` accepts, or all values if there is no `predicate`."""
        with self._lock:
            self.seed(*([] if predicate is None else [v for v in self if not predicate(v)]))

    def register[E](self, event_type: type[E], reducer: Reducer[T, E]) -> None:
        """Folds later events of exactly `event_type` into this slice with `reducer`.

        Raises `TypeError` if `event_type` is not a class or `reducer` is not callable.
        """
        if not isinstance(event_type, type):
            raise TypeError(f"the event type for register must be a class, got {event_type!r}")
        if not callable(reducer):
            raise TypeError(
                "the reducer for register must be a function of slice and event, such as "
                f"append_all, got {reducer!r}"
            )
        register = self._register()
        if register is not None:  # otherwise, the session no longer exists
            register(event_type, self, reducer)

    def __len__(self) -> int:
        return self.head[2]

    def __bool__(self) -> bool:
        return self.head is not EMPTY

    def __iter__(self) -> Iterator[T]:
        return iter(self.all())

    def __repr__(self) -> str:
        return f"<Slice of {len(self)} {self.slice_type.__name__}>"

    def apply(self, op: SliceOp[T]) -> None:
        """Applies the operation returned by a reducer; raises `TypeError` for any other value."""
        match op:
            case Append(value):
                self.append(value)
            case Replace(values):
                self.seed(*values)
            # users write reducers, and a type checker may not have checked them
            case _:
                raise TypeError(
                    f"a reducer of slice {self.slice_type.__name__} must return Append(…) or "
                    f"Replace(…), got {op!r}"
                )
