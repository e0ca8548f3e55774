"""The protocols through which lower layers refer to higher ones; users may implement them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from .content import ContentStore, Document, Image
from .locks import RunStack

if TYPE_CHECKING:  # `limits` imports `datetime`, and modules that define prompts need neither
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
    """A read-only view of all values of one type in a session, oldest first."""

    def all(self) -> tuple[T, ...]:
        """Returns every value, oldest first."""
        ...

    def latest(self) -> T | None:
        """Returns the newest value, or `None` if there is none."""
        ...

    def where(self, predicate: Callable[[T], bool], /) -> tuple[T, ...]:
        """Returns the values that `predicate` accepts, oldest first."""
        ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[T]: ...


class StateView(Protocol):
    """A read-only view of a session: `state[Plan].latest()`."""

    def __getitem__[T](self, slice_type: type[T], /) -> SliceView[T]: ...


# Any: a session contains slices of every type, whose reducers take events of every type.
type SliceType = type[Any]
type StateReducer = Callable[[SliceView[Any], Any], Any]


class StateSlice(NamedTuple):
    """A slice that a section declares, with a reducer for each type of event that changes it."""

    slice_type: SliceType
    reducers: Mapping[SliceType, StateReducer]


type DeclaredState = SliceType | StateSlice
"""A class with methods marked with `@reducer`, or a slice with its reducers."""


class SliceAccessor[T](SliceView[T], Protocol):
    """One slice of a session, which can be read and changed directly."""

    def append(self, value: T, /) -> None:
        """Adds `value` as the newest value."""
        ...

    def seed(self, *values: T) -> None:
        """Replaces the content with `values`."""
        ...

    def clear(self, predicate: Callable[[T], bool] | None = None, /) -> None:
        """Removes the values that `predicate` accepts, or all values if there is no `predicate`."""
        ...


# Any: only the object that created a snapshot or a fork reads it.
type Snapshot = Any
type Fork = Any


@runtime_checkable
class Snapshotable(Protocol):
    """State that can be captured as a value and restored.

    A class may also have a `release(snapshot)` method. A transaction calls it once for each of its
    snapshots, newest first, when the transaction has ended and after any `restore`. After an
    interrupt, it may call `restore` and `release` again. A `changes_since(snapshot)` method
    describes the changes for logs, as names and JSON values grouped by the kind of change:
    `{"files": {"a.txt": …}}`.
    """

    def snapshot(self) -> Snapshot:
        """Returns the current state as a value."""
        ...

    def restore(self, snapshot: Snapshot, /) -> None:
        """Restores the state captured in `snapshot`."""
        ...


@runtime_checkable
class Forkable(Snapshotable, Protocol):
    """State that parallel tool calls in one turn can use, each as if it ran on its own."""

    def fork(self) -> Fork:
        """Returns a copy of the state for one call, isolated from changes elsewhere."""
        ...

    def merge(self, fork: Fork, /) -> bool:
        """Repeats the changes of `fork` here, in order.

        Returns `False` without changing anything if the state that the fork read is out of date.
        """
        ...


# A callable, so that type checkers also accept abstract classes and protocols.
type KindOf[T] = Callable[..., T]
"""The type under which a resource of type `T` is bound."""


class Resources(Protocol):
    """Gives access to resources by type."""

    def get[T](self, kind: KindOf[T], /) -> T:
        """Returns the resource bound to type `kind`; raises `ResourceError` if there is none."""
        ...


class SessionProtocol(Snapshotable, Protocol):
    """Typed state, folded from events."""

    @property
    def runs(self) -> RunStack:
        """The runs that are currently using this session."""
        ...

    @property
    def session_id(self) -> str: ...

    @property
    def bus(self) -> "EventBus": ...

    @property
    def content(self) -> ContentStore:
        """The store with the bytes of images and documents, which snapshots do not contain."""
        ...

    def __getitem__[T](self, slice_type: type[T], /) -> SliceAccessor[T]: ...

    def dispatch(self, event: object, /) -> None:
        """Folds `event` into every slice that has a reducer for its type."""
        ...

    def declare(self, *state: DeclaredState) -> None:
        """Adds slices with their reducers; declaring a slice again has no effect."""
        ...


class EventBus(Protocol):
    """Delivers each event to the handlers subscribed to its type or to a base class."""

    def subscribe[E](
        self, event_type: type[E], handler: Callable[[E], object], /
    ) -> Callable[[], None]:
        """Calls `handler` for each later event of `event_type`; returns a function to stop this."""
        ...

    def publish(self, event: object, /) -> None:
        """Delivers `event` before returning; an error in one handler does not stop the others."""
        ...


class ToolOutcome(Protocol):
    """The result of a tool call."""

    @property
    def message(self) -> str: ...
    # Any: an event log contains the results of all tools.
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
