"""The protocols by which a lower layer names something of a higher one, and where users plug in
their own.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from .limits import TokenUsage

__all__ = [
    "EventBus",
    "Forkable",
    "Resources",
    "Response",
    "SessionProtocol",
    "SliceAccessor",
    "SliceView",
    "Snapshotable",
    "StateView",
    "ToolOutcome",
]


class SliceView[T](Protocol):
    """All values of one type in a session, oldest first; for reading."""

    def all(self) -> tuple[T, ...]:
        """Every value, oldest first."""
        ...

    def latest(self) -> T | None:
        """The newest value, or `None` when there is none."""
        ...

    def where(self, predicate: Callable[[T], bool], /) -> tuple[T, ...]:
        """The values that `predicate` accepts, oldest first."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[T]: ...


class StateView(Protocol):
    """A session for reading: `state[Plan].latest()`."""

    def __getitem__[T](self, slice_type: type[T], /) -> SliceView[T]: ...


class SliceAccessor[T](SliceView[T], Protocol):
    """One slice of a session, for reading and for direct changes."""

    def append(self, value: T, /) -> None:
        """Adds `value` as the newest."""
        ...

    def seed(self, *values: T) -> None:
        """Makes `values` the whole content."""
        ...

    def clear(self, predicate: Callable[[T], bool] | None = None, /) -> None:
        """Removes the values that `predicate` accepts, by default all."""
        ...


@runtime_checkable
class Snapshotable(Protocol):
    """State that can be captured as a value and put back.

    A class may also have `release(snapshot)`. It is called once for each snapshot of a transaction,
    when that has ended and after any `restore`, newest first. After an interrupt, `restore` and
    `release` may be called again.
    """

    # Any: only the object that made a snapshot reads it.
    def snapshot(self) -> Any:
        """The present state as a value."""
        ...

    def restore(self, snapshot: Any, /) -> None:
        """Puts back what `snapshot` captured."""
        ...


@runtime_checkable
class Forkable(Snapshotable, Protocol):
    """State that several tool calls of one turn can use at once, each as if it were alone."""

    # Any: only the object that made a fork merges it.
    def fork(self) -> Any:
        """The same state for one call: it sees no change made elsewhere, and its own changes are
        seen nowhere else.
        """
        ...

    def merge(self, fork: Any, /) -> bool:
        """Makes the changes of `fork` here, in their order; `False`, and no change, if what it read
        is out of date.
        """
        ...


class Resources(Protocol):
    """Where resources are asked for."""

    # A type is written as a callable so that type checkers accept abstract classes and protocols,
    # too.
    def get[T](self, kind: Callable[..., T], /) -> T:
        """The resource bound for the type `kind`. Raises `ResourceError` when there is none."""
        ...


class SessionProtocol(Snapshotable, Protocol):
    """Typed state, folded from events."""

    @property
    def session_id(self) -> str: ...

    @property
    def bus(self) -> "EventBus": ...

    def __getitem__[T](self, slice_type: type[T], /) -> SliceAccessor[T]: ...

    def dispatch(self, event: object, /) -> None:
        """Folds `event` into every slice that has a reducer for its type."""
        ...


class EventBus(Protocol):
    """Delivers each event to the handlers subscribed to its type or to a base of it."""

    def subscribe[E](
        self, event_type: type[E], handler: Callable[[E], object], /
    ) -> Callable[[], None]:
        """Calls `handler` for each later event of `event_type`; the result of this call ends the
        subscription.
        """
        ...

    def publish(self, event: object, /) -> None:
        """Delivers `event` before it returns; a handler that raises is reported and does not stop
        the others.
        """
        ...


class ToolOutcome(Protocol):
    """What a tool call came to."""

    @property
    def message(self) -> str: ...
    # Any: an event log holds the results of all tools.
    @property
    def value(self) -> Any: ...
    @property
    def success(self) -> bool: ...


class Response[Out](Protocol):
    """What an evaluation gave."""

    @property
    def text(self) -> str: ...
    @property
    def output(self) -> Out | None: ...
    @property
    def usage(self) -> "TokenUsage": ...
