"""Reducers are pure functions that return the change that an event makes to a slice."""

from collections.abc import Callable

from ...protocols import SliceType, SliceView
from .slices import AnyReducer, Append, Reducer, Replace, SliceOp

__all__ = [
    "append_all",
    "declared_reducers",
    "reducer",
    "replace_latest",
    "replace_latest_by",
    "upsert_by",
]


def append_all[T](_view: SliceView[T], event: T) -> SliceOp[T]:
    """Keeps every event, as a slice without reducers does."""
    return Append(event)


def replace_latest[T](_view: SliceView[T], event: T) -> SliceOp[T]:
    """Keeps only the newest event."""
    return Replace((event,))


def replace_latest_by[T](key: Callable[[T], object]) -> Reducer[T, T]:
    """Keeps the newest event for each `key`, in order of arrival."""

    def reduce(view: SliceView[T], event: T) -> SliceOp[T]:
        event_key = key(event)
        return Replace((*view.where(lambda value: key(value) != event_key), event))

    return reduce


def upsert_by[T](key: Callable[[T], object]) -> Reducer[T, T]:
    """Keeps one event for each `key`; a newer event takes the older one's position."""

    def reduce(view: SliceView[T], event: T) -> SliceOp[T]:
        event_key = key(event)
        values = view.all()
        for index, value in enumerate(values):
            if key(value) == event_key:
                return Replace((*values[:index], event, *values[index + 1 :]))
        return Append(event)

    return reduce


_EVENT = "__weakincentives_event__"


def reducer[S, E](on: type[E]) -> Callable[[Callable[[S, E], S]], Callable[[S, E], S]]:
    """Marks a frozen dataclass's method that returns the next state after an event of type `on`.

    A subclass may override the method, with or without the mark. Raises `TypeError` if a method is
    marked twice.

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
                f"{method.__qualname__} is already marked with @reducer; write one method for "
                "each event type"
            )
        setattr(method, _EVENT, on)
        return method

    return mark


def declared_reducers(state_type: SliceType) -> list[tuple[SliceType, AnyReducer]]:
    """Returns the event types and reducers that `state_type` and its bases declare."""
    members = [item for base in reversed(state_type.__mro__) for item in vars(base).items()]
    events = {name: getattr(member, _EVENT) for name, member in members if hasattr(member, _EVENT)}
    return [
        (event_type, _as_reducer(getattr(state_type, name), state_type))
        for name, event_type in events.items()
    ]


def _as_reducer[S, E](method: Callable[[S, E], S], state_type: type[S]) -> Reducer[S, E]:
    def reduce(view: SliceView[S], event: E) -> SliceOp[S]:
        state = view.latest()
        new = method(_initial_state(state_type) if state is None else state, event)
        if not isinstance(new, state_type):
            raise TypeError(
                f"{method.__qualname__} must return the next {state_type.__name__}, got {new!r}"
            )
        return Replace((new,))

    return reduce


def _initial_state[S](state_type: type[S]) -> S:
    try:
        return state_type()
    except TypeError as error:
        name = state_type.__name__
        raise TypeError(
            f"no {name} has been seeded, and it cannot be created without arguments ({error}); "
            f"seed one with session[{name}].seed({name}(…)), or give its fields defaults"
        ) from error
