"""The protocols by which a lower layer names a higher one, and which users may implement."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from .content import ContentStore, Document, Image
from .locks import RunStack

if TYPE_CHECKING:  # it imports `datetime`, and a module of prompts needs no limits
    from .limits import TokenUsage

__all__ = [
    "DeclaredState",
    "EventBus",
    "Fork",
    "Forkable",
    "KindOf",
    "Resources",
    "Response",
    "SessionProtocol",
    "SliceAccessor",
    "SliceType",
    "SliceView",
    "Snapshot",
    "Snapshotable",
    "StateReducer",
    "StateSlice",
    "StateView",
    "ToolOutcome",
]


class SliceView[T](Protocol):
    """All values of one type in a session, oldest first, for reading."""

    def all(self) -> tuple[T, ...]:
        """Returns every value, oldest first."""
        ...

    def latest(self) -> T | None:
        """Returns the newest value, or `None` without any."""
        ...

    def where(self, predicate: Callable[[T], bool], /) -> tuple[T, ...]:
        """Returns the values that `predicate` accepts, oldest first."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[T]: ...


class StateView(Protocol):
    """A session for reading: `state[Plan].latest()`."""

    def __getitem__[T](self, slice_type: type[T], /) -> SliceView[T]: ...


# Any: a session holds slices of every type, whose reducers take events of every type.
type SliceType = type[Any]
type StateReducer = Callable[[SliceView[Any], Any], Any]


class StateSlice(NamedTuple):
    """A slice that a section declares, with a reducer for each type of event that changes it."""

    slice_type: SliceType
    reducers: Mapping[SliceType, StateReducer]


type DeclaredState = SliceType | StateSlice
"""A class, whose methods marked with `@reducer` change it, or a slice with its reducers."""


class SliceAccessor[T](SliceView[T], Protocol):
    """One slice of a session, for reading and for direct changes."""

    def append(self, value: T, /) -> None:
        """Adds `value` as the newest one."""
        ...

    def seed(self, *values: T) -> None:
        """Replaces the content by `values`."""
        ...

    def clear(self, predicate: Callable[[T], bool] | None = None, /) -> None:
        """Removes the values that `predicate` accepts, by default all of them."""
        ...


# Any: only the object that made a snapshot or a fork reads it.
type Snapshot = Any
type Fork = Any


@runtime_checkable
class Snapshotable(Protocol):
    """State that can be captured as a value and restored.

    A class may also have `release(snapshot)`. A transaction calls it once for each of its
    snapshots, newest first, when it has ended and after any `restore`. After an interrupt it may
    call `restore` and `release` again. With `changes_since(snapshot)`, a class describes its
    changes for logs, as names and JSON values below the kind of change: `{"files": {"a.txt": …}}`.
    """

    def snapshot(self) -> Snapshot:
        """Returns the present state as a value."""
        ...

    def restore(self, snapshot: Snapshot, /) -> None:
        """Restores the state that `snapshot` captured."""
        ...


@runtime_checkable
class Forkable(Snapshotable, Protocol):
    """State that parallel tool calls of one turn can use, each as if it ran by itself."""

    def fork(self) -> Fork:
        """Returns a copy of the state for one call, isolated from changes elsewhere."""
        ...

    def merge(self, fork: Fork, /) -> bool:
        """Repeats the changes of `fork` here, in order.

        Returns `False` and changes nothing if what the fork read is out of date.
        """
        ...


# A callable, so that type checkers accept abstract classes and protocols too.
type KindOf[T] = Callable[..., T]
"""The type by which a resource of type `T` is bound."""


class Resources(Protocol):
    """Gives access to resources by type."""

    def get[T](self, kind: KindOf[T], /) -> T:
        """Returns the resource bound for the type `kind`; raises `ResourceError` without one."""
        ...


class SessionProtocol(Snapshotable, Protocol):
    """Typed state, folded from events."""

    @property
    def runs(self) -> RunStack:
        """The runs that use this session now."""
        ...

    @property
    def session_id(self) -> str: ...

    @property
    def bus(self) -> "EventBus": ...

    @property
    def content(self) -> ContentStore:
        """The store with the bytes of images and documents, which snapshots do not hold."""
        ...

    def __getitem__[T](self, slice_type: type[T], /) -> SliceAccessor[T]: ...

    def dispatch(self, event: object, /) -> None:
        """Folds `event` into every slice that has a reducer for its type."""
        ...

    def declare(self, *state: DeclaredState) -> None:
        """Adds slices with their reducers; declaring one again changes nothing."""
        ...


class EventBus(Protocol):
    """Delivers each event to the handlers subscribed to its type or to a base of it."""

    def subscribe[E](
        self, event_type: type[E], handler: Callable[[E], object], /
    ) -> Callable[[], None]:
        """Calls `handler` for each later event of `event_type`; returns how to unsubscribe."""
        ...

    def publish(self, event: object, /) -> None:
        """Delivers `event` before it returns; an error of one handler does not stop the others."""
        ...


class ToolOutcome(Protocol):
    """The result of a tool call."""

    @property
    def message(self) -> str: ...
    # Any: an event log holds the results of all tools.
    @property
    def value(self) -> Any: ...
    @property
    def success(self) -> bool: ...
    @property
    def media(self) -> Sequence[Image | Document]: ...


class Response[Out](Protocol):
    """The result of an evaluation."""

    @property
    def text(self) -> str: ...
    @property
    def output(self) -> Out: ...
    @property
    def usage(self) -> "TokenUsage": ...
