"""A fork of a session isolates one tool call while other calls in the same turn run.

A fork records the slices that the call read, and its changes. `Session.merge` uses this record to
decide whether the call would have made the same changes after the other calls, and then repeats
them. Events are deferred until the merge. If a call needs something that cannot be isolated, it
runs on its own instead.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import RLock
from typing import NoReturn, Protocol

from ...errors import SerdeError
from ...protocols import DeclaredState, EventBus, SessionProtocol, SliceType
from ...resources import NotIsolatedError
from ...serde import Json
from ..events import Event, Operation, ProviderCalled
from .differences import state_differences
from .slices import AnySlice, Node, Slice
from .snapshots import SessionSnapshot

__all__ = ["SessionFork"]

type _Change = Callable[[SessionProtocol], None]


class _Session(SessionProtocol, Protocol):
    """The methods of the original session that a fork needs."""

    def __getitem__[T](self, slice_type: type[T], /) -> Slice[T]: ...

    def undeclared(self, state: Iterable[DeclaredState]) -> list[Callable[[], object]]: ...


class _Isolated:
    """Base class for replacements of shared state; using an unknown attribute refuses the fork."""

    _fork: "SessionFork"

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        self._fork.refuse(f"{type(self).__name__} has no {name!r}")


class _ForkSnapshot(_Isolated):
    """The state of a fork; only that fork can restore it."""

    def __init__(self, fork: "SessionFork", state: SessionSnapshot, changes: list[_Change]) -> None:
        self._fork = self.origin = fork
        self.state = state
        self.changes = changes


class _DeferredBus(_Isolated):
    """A bus that publishes events when the fork is merged."""

    def __init__(self, fork: "SessionFork", bus: EventBus) -> None:
        self._fork = fork
        self._bus = bus

    def subscribe[E](
        self, event_type: type[E], handler: Callable[[E], object], /
    ) -> Callable[[], None]:
        self._fork.refuse("a subscriber would receive events too late")

    def publish(self, event: object, /) -> None:
        if isinstance(event, Operation):  # telemetry must time it now, and it changes no state
            self._bus.publish(event)
        else:
            self._fork.defer(event, lambda _: self._bus.publish(event))


class SessionFork(_Isolated):
    """A session for one call, created by `Session.fork`; its bus defers events until the merge.

    `reducers` are the session's reducers at the time of the fork. `refused` is true once the call
    has requested something that cannot be isolated; the call must then run on its own.
    """

    def __init__(
        self,
        copy: _Session,
        origin: _Session,
        base: SessionSnapshot,
        reducers: Mapping[SliceType, Sequence[tuple[AnySlice, object]]],
    ) -> None:
        self._fork = self
        self._copy = copy
        self._origin = origin
        self.session_id = copy.session_id
        self.runs = copy.runs  # only the runs of this call
        self.bus = _DeferredBus(self, origin.bus)
        self.content = origin.content
        self.lock = RLock()
        self.base = base
        self.reducers = reducers
        self.reads: set[SliceType] = set()
        self.writes: set[SliceType] = set()  # including slices whose content did not change
        self.changes: list[_Change] = []  # state changes, in order
        self.deferred: list[tuple[object, _Change]] = []  # events, and functions to publish them
        self.refused = False
        self.merged = False
        self.closed = False

    def __getitem__[T](self, slice_type: type[T], /) -> "_ForkedSlice[T]":
        if issubclass(slice_type, Event):
            self.refuse(f"telemetry such as {slice_type.__name__} depends on the calls before")
        return _ForkedSlice(self, self._copy[slice_type])

    def dispatch(self, event: object, /) -> None:
        """Folds `event` into every slice that has a reducer for the event's type."""
        if isinstance(event, Event):  # goes to a LOG slice, which a rollback does not restore
            self.defer(event, lambda session: session.dispatch(event))
        else:
            targets = self.reducers.get(type(event), ())
            kinds = [target.slice_type for target, _ in targets] or [type(event)]
            self.change(lambda session: session.dispatch(event), *kinds)

    def declare(self, *state: DeclaredState) -> None:
        """Accepts `state` that is already declared in the session; a fork cannot add reducers."""
        if self._copy.undeclared(state):
            self.refuse("the reducers of another prompt belong into the session")

    def snapshot(self) -> _ForkSnapshot:
        """Returns the state of the fork as a value."""
        with self.lock:
            return _ForkSnapshot(self, self._copy.snapshot(), self.changes.copy())

    def restore(self, snapshot: _ForkSnapshot, /) -> None:
        """Restores the state in `snapshot`; deferred events are kept."""
        if not isinstance(snapshot, _ForkSnapshot) or snapshot.origin is not self:
            self.refuse("only the session or fork that made a snapshot can restore it")
        with self.lock:
            self._check_open()
            self._copy.restore(snapshot.state)
            self.changes = snapshot.changes.copy()

    def state_changes(self) -> dict[str, Json]:
        """Returns the call's changes, in the format of `state_differences`.

        The changed slices are treated as read, so that a later merge makes either exactly these
        changes or none. Raises `NotIsolatedError` for a value that JSON cannot represent exactly.
        """
        with self.lock:
            state = self._copy.snapshot()
            self.reads |= self.writes
            try:
                state.since(self.base)
            except SerdeError as error:
                raise NotIsolatedError(f"cannot preview the state: {error}") from error
            return state_differences(self.base, state)

    def bus_for(self, bus: EventBus) -> EventBus:
        """Returns a bus that defers the events that the call publishes on `bus`."""
        return self.bus if bus is self._origin.bus else _DeferredBus(self, bus)

    def check_mergeable(self, session: _Session) -> None:
        """Raises `ValueError` unless this is an unmerged fork of `session`."""
        if session is not self._origin:
            raise ValueError(
                "this fork belongs to another session; merge it into the session that created it"
            )
        if self.merged:
            raise ValueError("this fork has already been merged; fork the session again")

    def change(self, change: _Change, *kinds: SliceType) -> None:
        """Changes the slices of `kinds` and records the change; refuses the fork on failure."""
        with self.lock:
            self._check_open()
            self.writes.update(kinds)
            try:
                change(self._copy)
            except BaseException:
                self.refused = True  # the change might succeed once earlier calls are merged
                raise
            self.changes.append(change)

    def defer(self, event: object, publish: _Change) -> None:
        """Publishes `event` at the merge; refuses the fork if a reducer would fold it at once."""
        if type(event) in self.reducers:
            self.refuse(f"a reducer folds {type(event).__name__} as soon as it is published")
        with self.lock:
            self._check_open()
            self.deferred.append((event, publish))

    @property
    def events(self) -> list[object]:
        """The events that the call published, in order."""
        return [event for event, _ in self.deferred]

    def discard(self) -> None:
        """Publishes the requests of a call that is not merged, because they incurred costs."""
        if not self.merged:
            self.merged = True
            for event, publish in self.deferred:
                if isinstance(event, ProviderCalled):
                    publish(self._origin)

    def close(self) -> None:
        """Ends the call; a thread that it left running can no longer change or publish anything."""
        with self.lock:
            self.closed = True

    def _check_open(self) -> None:
        if self.closed:
            raise RuntimeError(
                "the tool call of this session has finished; stop threads and tasks before the "
                "handler returns"
            )

    def refuse(self, reason: str) -> NoReturn:
        """Raises `NotIsolatedError`, so that the call runs on its own."""
        self.refused = True
        raise NotIsolatedError(reason)


class _ForkedSlice[T](Slice[T]):
    """A slice of a fork; reading it makes the call depend on it, but writing does not."""

    __slots__ = ("_fork", "_slice")

    def __init__(self, fork: SessionFork, copy: Slice[T]) -> None:
        self._lock = fork.lock
        self._fork = fork
        self._slice = copy
        self.slice_type = copy.slice_type

    @property
    def head(self) -> Node:  # type: ignore[override]  # called by every read and by no write
        self._fork.reads.add(self.slice_type)
        return self._slice.head

    def append(self, value: T, /) -> None:
        slice_type = self.slice_type
        self._fork.change(lambda session: session[slice_type].append(value), slice_type)

    def seed(self, *values: T) -> None:
        slice_type = self.slice_type
        self._fork.change(lambda session: session[slice_type].seed(*values), slice_type)

    def register(self, event_type: object, reducer: object) -> None:
        self._fork.refuse("a reducer registered by one call would stay")
