"""`Session` stores typed slices of state; reducers and direct edits change them under one lock."""

import reprlib
from collections.abc import Callable, Iterable
from functools import partial
from threading import RLock
from weakref import WeakMethod, ref

from ...content import ContentStore, MemoryContentStore
from ...locks import RunStack
from ...protocols import DeclaredState, EventBus, SliceType, SliceView
from ...record_types import record_class
from ...serde import Json
from ...visibility import SetVisibilityOverride, VisibilityOverrides
from ..events import Event, InProcessEventBus, new_id
from .differences import state_differences
from .fork import SessionFork
from .reducers import declared_reducers
from .slices import (
    EMPTY,
    AnyReducer,
    AnySlice,
    Append,
    Register,
    Replace,
    Slice,
    SliceOp,
    chain,
    read,
)
from .snapshots import SessionSnapshot, live_types, with_running

__all__ = ["Session"]


class Session:
    """The typed, event-sourced state of one conversation or task.

    `session[T]` is the slice of all `T`. `dispatch` folds an event through the reducers registered
    for its type, in order; an event whose type has no reducers is appended to its own slice. The
    session records telemetry published on `bus` in LOG slices, even if reducers fold it, unless the
    telemetry's own slice has a reducer. Everything else is STATE, which snapshots contain and
    `restore` replaces. Any number of threads can use a session, but only one run at a time: `runs`
    rejects a second one. Neither a bus nor a slice keeps its session alive. `content` stores the
    bytes of images and documents, by default in memory.
    """

    def __init__(
        self,
        *,
        bus: EventBus | None = None,
        session_id: str | None = None,
        content: ContentStore | None = None,
    ) -> None:
        self._lock = RLock()
        # slices must not keep their session alive
        self._weak_register: Register = WeakMethod(self._register)
        self._slices: dict[SliceType, AnySlice] = {}  # `__getitem__` restores each slice's type
        self._state: list[AnySlice] = []
        self._reducers: dict[SliceType, list[tuple[AnySlice, AnyReducer]]] = {}
        self._installed: set[SliceType] = set()
        self.session_id = session_id or new_id()
        self.bus: EventBus = InProcessEventBus() if bus is None else bus
        self.content: ContentStore = MemoryContentStore() if content is None else content
        self.runs = RunStack(
            f"session {self.session_id[:40]!r}",
            "give each run a session of its own, or begin the next run when this one has ended; "
            "a tool's handler calls context.evaluate, with session=Session() for runs side by side",
        )
        _record_events(self)
        self[VisibilityOverrides].register(SetVisibilityOverride, _set_visibility)

    def __repr__(self) -> str:
        sizes = [
            f"{len(values)} {kind.__name__}" for kind, values in [*self._slices.items()] if values
        ]
        return f"<Session {self.session_id[:40]!r} holds {reprlib.repr(sizes)}>"

    def __getitem__[T](self, slice_type: type[T], /) -> Slice[T]:
        existing = self._slices.get(slice_type)
        return self._add_slice(slice_type) if existing is None else existing

    def _add_slice[T](self, slice_type: type[T]) -> Slice[T]:
        given: object = slice_type
        if not isinstance(given, type):
            if (kind := record_class(slice_type)) is not slice_type:  # an alias, or Plan[int]
                return self[kind]
            raise TypeError(f"session[…] takes a class, such as session[Plan], got {given!r}")
        with self._lock:
            if slice_type not in self._slices:  # not added by another thread in the meantime
                added = Slice(slice_type, self._lock, self._weak_register)
                self._slices[slice_type] = added
                if not issubclass(slice_type, Event):
                    self._state.append(added)
            return self._slices[slice_type]

    def dispatch(self, event: object, /) -> None:
        """Folds `event` into every slice that has a reducer for its type, or into none of them.

        Raises `TypeError` for a class instead of an instance, and any error that a reducer raises.
        """
        kind = type(event)
        if kind is type:
            raise TypeError(f"dispatch takes an instance of an event, got the class {event!r}")
        with self._lock:
            reducers = self._reducers.get(kind)
            if reducers is None:
                self[kind].append(event)
                return
            before = [(target, target.head) for target, _ in reducers]
            try:
                for target, reduce in reducers:
                    target.apply(reduce(target, event))
            except BaseException:
                for target, head in before:
                    target.head = head
                raise

    def install(self, state_type: SliceType) -> None:
        """Registers the reducers that `state_type` declares with `@reducer`.

        The first event is applied to the seeded state, or to `state_type()` if there is none.
        Raises `TypeError` for a type without reducers, and `ValueError` for a type that is already
        installed, because its events would be folded twice. State that a prompt's sections declare
        does not need to be installed.
        """
        declared = declared_reducers(state_type)
        if not declared:
            raise TypeError(
                f"{state_type.__name__} declares no reducers; mark methods with @reducer(on=Event)"
            )
        with self._lock:
            if state_type in self._installed:
                raise ValueError(
                    f"{state_type.__name__} is already installed in this session; install it only "
                    "once"
                )
            self._installed.add(state_type)
            for event_type, reduce in declared:
                self[state_type].register(event_type, reduce)

    def declare(self, *state: DeclaredState) -> None:
        """Adds the slices of `state` with their reducers; declaring a slice again has no effect.

        An evaluation declares the state of its prompt's sections. Call this method before parsing a
        snapshot of such a session, so that `parse_snapshot` knows the types.
        """
        with self._lock:
            for add in self.undeclared(state):
                add()

    def undeclared(self, state: Iterable[DeclaredState]) -> list[Callable[[], object]]:
        """Returns functions that add the missing parts of `state`."""
        missing: list[Callable[[], object]] = []
        for declared in state:
            if isinstance(declared, type):
                if declared not in self._slices:
                    missing.append(partial(self._add_slice, declared))
                if declared not in self._installed and declared_reducers(declared):
                    missing.append(partial(self.install, declared))
                continue
            target = self[declared.slice_type]
            for event_type, reduce in declared.reducers.items():
                if (target, reduce) not in self._reducers.get(event_type, []):
                    missing.append(partial(target.register, event_type, reduce))
        return missing

    def snapshot(self) -> SessionSnapshot:
        """Returns the content of every STATE slice as a value, in O(number of slices) time."""
        with self._lock:
            slices = {state.slice_type: state.head for state in self._state}
            for kind in live_types:
                if slices.get(kind, EMPTY) is not EMPTY:
                    slices[kind] = chain([value.fixed() for value in read(slices[kind])])
            return SessionSnapshot(slices)

    def changes_since(self, snapshot: SessionSnapshot, /) -> dict[str, dict[str, Json]]:
        """Returns the differences in STATE slices since `snapshot`, by name, under `"state"`."""
        return {"state": state_differences(snapshot, self.snapshot())}

    def parse_snapshot(
        self, text: str | bytes, *, types: Iterable[SliceType] = ()
    ) -> SessionSnapshot:
        """Parses JSON written by `SessionSnapshot.to_json`, for `restore`.

        The JSON may contain slices that this session uses or has a reducer for, and slices of
        `types`, even if one of these types has moved to another module. Raises `SerdeError` for
        other slices and for invalid values.
        """
        with self._lock:
            known = {state.slice_type for state in self._state}
        return SessionSnapshot.from_json(text, types, known)

    def restore(self, snapshot: SessionSnapshot, /) -> None:
        """Restores every STATE slice from `snapshot`; slices missing from it become empty.

        LOG slices are unchanged. The snapshot can come from another session; later changes in one
        session do not affect the other. Raises `TypeError` for a snapshot's JSON.
        """
        try:
            slices = snapshot.slices
        except AttributeError as error:
            raise TypeError(
                "restore takes a snapshot, such as session.parse_snapshot(text) returns, got "
                f"a {type(snapshot).__name__}"
            ) from error
        with self._lock:
            for slice_type in slices:
                self[slice_type]  # creates the slice
            for state in self._state:
                head = slices.get(state.slice_type, EMPTY)
                state.head = (
                    with_running(state.head, head) if state.slice_type in live_types else head
                )

    def fork(self) -> SessionFork:
        """Creates a session for one of several parallel calls, with the same state."""
        with self._lock:
            base = self.snapshot()
            copy = Session(session_id=self.session_id, content=self.content)
            copy.restore(base)
            copy._installed = set(self._installed)
            for event_type, reducers in self._reducers.items():
                copy._reducers[event_type] = [
                    (copy[target.slice_type], reduce) for target, reduce in reducers
                ]
            return SessionFork(copy, self, base, dict(self._reducers))

    def merge(self, fork: SessionFork, /) -> bool:
        """Repeats the changes of `fork` in this session, in order, and then publishes its events.

        Returns `False`, without changing anything, if the reducers or a slice that the fork read
        have changed in the meantime, or if a change fails. Raises `ValueError` for a fork that was
        already merged or belongs to another session.
        """
        with self._lock:
            fork.check_mergeable(self)
            if self._reducers != fork.reducers:
                return False
            for slice_type in fork.reads:
                if self[slice_type].head is not fork.base.slices.get(slice_type, EMPTY):
                    return False
            before = self.snapshot()
            try:
                for change in fork.changes:
                    change(self)
            except BaseException as error:
                self.restore(before)
                if isinstance(error, Exception):
                    return False
                raise
            fork.merged = True
        for _, publish in fork.deferred:
            publish(self)
        return True

    def _register(self, event_type: SliceType, target: AnySlice, reduce: AnyReducer) -> None:
        with self._lock:
            reducers = self._reducers.get(event_type)
            if reducers is None:
                telemetry = issubclass(event_type, Event)  # also kept in its own LOG slice
                reducers = [(self[event_type], _record)] if telemetry else []
            if target.slice_type is event_type:
                reducers = [entry for entry in reducers if entry[1] is not _record]
            self._reducers[event_type] = [*reducers, (target, reduce)]


def _record(_view: SliceView[Event], event: Event) -> SliceOp[Event]:
    """Appends telemetry to its own slice, until that slice has another reducer."""
    return Append(event)


def _record_events(session: Session) -> None:
    """Dispatches the bus's telemetry to the session through a weak reference."""

    def record(event: Event) -> None:
        session = weak_session()
        if session is not None and event.session_id in (None, session.session_id):
            session.dispatch(event)

    weak_session = ref(session, lambda _: unsubscribe())
    unsubscribe = session.bus.subscribe(Event, record)


def _set_visibility(
    view: SliceView[VisibilityOverrides], event: SetVisibilityOverride
) -> SliceOp[VisibilityOverrides]:
    overrides = view.latest() or VisibilityOverrides()
    return Replace((overrides.with_override(event.path, event.visibility),))
