"""Reducers: pure functions from a slice and an event to the change of that slice."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...ports import SliceView
from .slices import Append, Replace, SliceOp

__all__ = [
    "Reducer",
    "append_all",
    "declared_reducers",
    "reducer",
    "replace_latest",
    "replace_latest_by",
    "upsert_by",
]

type Reducer[T, E] = Callable[[SliceView[T], E], SliceOp[T]]
"""Answers what an event does to a slice; it must not change anything itself."""


def append_all[T](_view: SliceView[T], event: T) -> SliceOp[T]:
    """Keeps every event; what a slice without reducers does."""
    return Append(event)


def replace_latest[T](_view: SliceView[T], event: T) -> SliceOp[T]:
    """Keeps the newest event alone."""
    return Replace((event,))


def replace_latest_by[T](key: Callable[[T], object]) -> Reducer[T, T]:
    """Keeps the newest event for each `key`, in order of arrival."""

    def reduce(view: SliceView[T], event: T) -> SliceOp[T]:
        wanted = key(event)
        return Replace((*view.where(lambda value: key(value) != wanted), event))

    return reduce


def upsert_by[T](key: Callable[[T], object]) -> Reducer[T, T]:
    """Keeps one event for each `key`, a newer one in the place of the older."""

    def reduce(view: SliceView[T], event: T) -> SliceOp[T]:
        wanted = key(event)
        values = view.all()
        for index, value in enumerate(values):
            if key(value) == wanted:
                return Replace((*values[:index], event, *values[index + 1 :]))
        return Append(event)

    return reduce


_EVENT = "__weakincentives_event__"


def reducer[S, E](on: type[E]) -> Callable[[Callable[[S, E], S]], Callable[[S, E], S]]:
    """Marks a method of a frozen dataclass as the way from one state to the next on events of type `on`.

    A subclass may override the method, with or without the mark. Raises `TypeError` for a second mark on one method.

    >>> from dataclasses import dataclass, replace
    >>> from weakincentives.runtime.session import Session, reducer
    >>> @dataclass(frozen=True)
    ... class Tick:
    ...     by: int
    >>> @dataclass(frozen=True)
    ... class Counter:
    ...     count: int = 0
    ...
    ...     @reducer(on=Tick)
    ...     def ticked(self, event: Tick) -> "Counter":
    ...         return replace(self, count=self.count + event.by)
    >>> session = Session()
    >>> session.install(Counter)
    >>> session.dispatch(Tick(by=2))
    >>> session[Counter].latest()
    Counter(count=2)
    """

    def mark(method: Callable[[S, E], S]) -> Callable[[S, E], S]:
        if hasattr(method, _EVENT):
            raise TypeError(
                f"{method.__qualname__} is the reducer of an event already; write one method for each event"
            )
        setattr(method, _EVENT, on)
        return method

    return mark


@dataclass(frozen=True, slots=True)
class DeclaredReducer:
    """A method marked by `reducer`, with the event type it is for."""

    # Any: both types are known only to the class that declares the method.
    event_type: type[Any]
    method: Callable[[Any, Any], Any]

    def over(self, initial: Callable[[], Any]) -> Reducer[Any, Any]:
        """The reducer that applies the method to the latest state, or to `initial()` when there is none."""

        def reduce(view: SliceView[Any], event: Any) -> SliceOp[Any]:
            state = view.latest()
            return Replace((self.method(initial() if state is None else state, event),))

        return reduce


def declared_reducers(state_type: type) -> tuple[DeclaredReducer, ...]:
    """The reducers that `state_type` and its bases declare with `reducer`."""
    found: dict[str, type] = {}
    for base in reversed(state_type.__mro__):
        for name, member in vars(base).items():
            event_type = getattr(member, _EVENT, None)
            if event_type is not None:
                found[name] = event_type
    return tuple(DeclaredReducer(event_type, getattr(state_type, name)) for name, event_type in found.items())
