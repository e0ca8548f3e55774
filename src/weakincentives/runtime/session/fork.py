"""A session's fork: what one tool call sees and changes while others of its turn run beside it.

It remembers which slices the call read and what it changed, so that the session can tell whether
the call would have done the same after all others, and then do the same itself. Events wait until
then. Whatever cannot be told is refused.
"""

from collections.abc import Callable, Mapping
from threading import RLock
from typing import TYPE_CHECKING, Any, NoReturn

from ...protocols import EventBus, SessionProtocol
from ...resources import NotIsolatedError
from ..events import Event, Operation
from .slices import Link, Slice
from .snapshots import SessionSnapshot

if TYPE_CHECKING:
    from .session import Session

__all__ = ["SessionFork"]

type _Change = Callable[[SessionProtocol], None]


class _Refusing:
    """Has the call run by itself when it asks for what no fork has."""

    _fork: "SessionFork"

    def __getattr__(self, name: str) -> object:
        if name.startswith("_"):
            raise AttributeError(name)
        self._fork.refuse(f"{type(self).__name__} has no {name!r}")


class _ForkSnapshot(_Refusing):
    """The state of a fork, which the fork alone can read: what other calls change is in no fork."""

    def __init__(self, fork: "SessionFork", state: SessionSnapshot, changes: list[_Change]) -> None:
        self._fork = self.origin = fork
        self.state = state
        self.changes = changes


class _HeldBus(_Refusing):
    """Keeps what is published until the call counts."""

    def __init__(self, fork: "SessionFork", bus: EventBus) -> None:
        self._fork = fork
        self._bus = bus

    def subscribe[E](
        self, event_type: type[E], handler: Callable[[E], object], /
    ) -> Callable[[], None]:
        self._fork.refuse("a subscriber would hear of events too late")

    def publish(self, event: object, /) -> None:
        # it is about what happens now, and no state follows from it
        if isinstance(event, Operation):
            self._bus.publish(event)
            return
        self._fork.check_not_folded(event)
        self._fork.held.append(lambda _: self._bus.publish(event))


class SessionFork(_Refusing):
    """A session for one call, made by `Session.fork`. Its bus holds events back.

    Events whose types are in `folded` had reducers then. `refused` says that the call asked for
    what no fork can give.
    """

    def __init__(
        self,
        copy: "Session",
        origin: "Session",
        base: SessionSnapshot,
        folded: Mapping[type[Any], object],
    ) -> None:
        self._fork = self
        self._copy = copy
        self._origin = origin
        self.merged = False
        self.changes: list[_Change] = []  # what the call did to the session, in order
        self.lock = RLock()
        self.session_id = copy.session_id
        self.bus = _HeldBus(self, origin.bus)
        self.base = base
        self.folded = folded
        self.refused = False
        # Any: slices of every type.
        self.reads: set[type[Any]] = set()
        self.held: list[_Change] = []

    def __getitem__[T](self, slice_type: type[T], /) -> "_ForkedSlice[T]":
        if issubclass(slice_type, Event):
            self.refuse(f"telemetry such as {slice_type.__name__} depends on the calls before")
        return _ForkedSlice(self, self._copy[slice_type])

    def dispatch(self, event: object, /) -> None:
        """Folds `event` into every slice that has a reducer for its type."""
        if isinstance(event, Event):  # it goes to a LOG slice, which no rollback empties
            self.check_not_folded(event)
            self.held.append(lambda session: session.dispatch(event))
        else:
            self.change(lambda session: session.dispatch(event))

    def snapshot(self) -> _ForkSnapshot:
        """The state of the fork as a value."""
        with self.lock:
            return _ForkSnapshot(self, self._copy.snapshot(), self.changes.copy())

    def restore(self, snapshot: _ForkSnapshot, /) -> None:
        """Puts back what `snapshot` captured; events stay published."""
        if not isinstance(snapshot, _ForkSnapshot) or snapshot.origin is not self:
            self.refuse("a snapshot from elsewhere can be restored only there")
        with self.lock:
            self._copy.restore(snapshot.state)
            self.changes = snapshot.changes.copy()

    def bus_for(self, bus: EventBus) -> EventBus:
        """The bus by which the call reaches `bus`."""
        return self.bus if bus is self._origin.bus else _HeldBus(self, bus)

    def check_mergeable(self, session: "Session") -> None:
        """Raises `ValueError` unless this is a fork of `session` that was not merged yet."""
        if session is not self._origin:
            raise ValueError("this fork is of another session; merge it where it was made")
        if self.merged:
            raise ValueError("this fork was merged already; fork the session again")

    def change(self, change: _Change) -> None:
        """Makes a change here and keeps it; one that fails might not have failed after the calls
        before.
        """
        with self.lock:
            try:
                change(self._copy)
            except BaseException:
                self.refused = True
                raise
            self.changes.append(change)

    def check_not_folded(self, event: object) -> None:
        """Refuses an event by which a reducer would change state as soon as it is published."""
        if type(event) in self.folded:
            self.refuse(f"{type(event).__name__} is folded by a reducer when it is published")

    def refuse(self, why: str) -> NoReturn:
        """Has the call run by itself. Raises `NotIsolatedError`."""
        self.refused = True
        raise NotIsolatedError(why)


class _ForkedSlice[T](Slice[T]):
    """One slice of a fork. Reading makes the call depend on it; writing alone does not."""

    __slots__ = ("_fork", "_own")

    def __init__(self, fork: SessionFork, own: Slice[T]) -> None:
        self._lock = fork.lock
        self._fork = fork
        self._own = own
        self.slice_type = own.slice_type

    @property
    def top(self) -> Link:  # type: ignore[override]  # every way to read leads here, and none to write
        self._fork.reads.add(self.slice_type)
        return self._own.top

    def append(self, value: T, /) -> None:
        of = self.slice_type
        self._fork.change(lambda session: session[of].append(value))

    def seed(self, *values: T) -> None:
        of = self.slice_type
        self._fork.change(lambda session: session[of].seed(*values))

    def register(self, event_type: object, reducer: object) -> None:
        self._fork.refuse("a reducer registered for one call would stay")
