"""The session: typed slices of state, changed only by reducers and by explicit edits, under one
lock.
"""

import reprlib
from collections.abc import Iterable
from os import urandom
from threading import RLock
from typing import Any
from weakref import ref

from ...protocols import EventBus, SliceView
from ...visibility_overrides import SetVisibilityOverride, VisibilityOverrides
from ..events import Event, InProcessEventBus
from .fork import SessionFork
from .reducers import declared_reducers
from .slices import EMPTY, Append, Reducer, Replace, Slice, SliceOp
from .snapshots import SessionSnapshot

__all__ = ["Session"]


def _keep(_view: SliceView[Any], event: Any) -> SliceOp[Any]:
    """Telemetry stays in its own LOG slice, whoever else folds it."""
    return Append(event)


class Session:
    """Typed, event-sourced state of one conversation or task.

    `session[T]` is the slice of all `T`. `dispatch` folds an event through the reducers registered
    for its type, in order; an event type without reducers is appended to its own slice. Telemetry
    published on `bus` is kept in LOG slices whether or not there are reducers for it, unless its
    own slice has one; everything else is STATE and goes back with `restore`. Safe for use by many
    threads. A bus does not keep the sessions alive that record its events.
    """

    def __init__(self, *, bus: EventBus | None = None, session_id: str | None = None) -> None:
        self._lock = RLock()
        # Any: slices of every type live side by side; `__getitem__` gives each its type back.
        self._slices: dict[type[Any], Slice[Any]] = {}
        self._state: list[Slice[Any]] = []
        self._reducers: dict[type[Any], list[tuple[Slice[Any], Reducer[Any, Any]]]] = {}
        self._installed: set[type[Any]] = set()
        self.session_id = session_id or urandom(16).hex()
        self.bus: EventBus = InProcessEventBus() if bus is None else bus
        _record_events(self)
        self[VisibilityOverrides].register(SetVisibilityOverride, _set_visibility)

    def __repr__(self) -> str:
        held = [f"{len(one)} {kind.__name__}" for kind, one in list(self._slices.items()) if one]
        return f"<Session {self.session_id[:40]!r} holds {reprlib.repr(held)}>"

    def __getitem__[T](self, slice_type: type[T], /) -> Slice[T]:
        found = self._slices.get(slice_type)
        if found is None:
            with self._lock:
                if slice_type not in self._slices:  # no other thread was faster
                    opened = self._slices[slice_type] = Slice(
                        slice_type, self._lock, self._register
                    )
                    if not issubclass(slice_type, Event):
                        self._state.append(opened)
                found = self._slices[slice_type]
        return found

    def dispatch(self, event: object, /) -> None:
        """Folds `event` into every slice that has a reducer for its type; all of them change, or
        none does.

        Raises `TypeError` for a class in place of an instance.
        """
        kind = type(event)
        if kind is type:
            raise TypeError(f"dispatch got the class {event!r}; dispatch an instance of it")
        with self._lock:
            reducers = self._reducers.get(kind)
            if reducers is None:
                self[kind].append(event)
            else:
                before = [(target, target.top) for target, _ in reducers]
                try:
                    for target, reduce in reducers:
                        target.apply(reduce(target, event))
                except BaseException:
                    for target, top in before:
                        target.top = top
                    raise

    def install(self, state_type: type[Any]) -> None:
        """Registers the reducers that `state_type` declares with `@reducer`.

        The first event starts from what was seeded, else from `state_type()`. Raises `TypeError`
        when nothing is declared and `ValueError` when the type is installed already: its events
        would count twice.
        """
        declared = declared_reducers(state_type)
        if not declared:
            raise TypeError(
                f"{state_type.__name__} declares no reducers; mark methods with @reducer(on=Event)"
            )
        with self._lock:
            if state_type in self._installed:
                raise ValueError(
                    f"{state_type.__name__} is installed in this session already; install it once"
                )
            self._installed.add(state_type)
            for event_type, reduce in declared:
                self[state_type].register(event_type, reduce)

    def snapshot(self) -> SessionSnapshot:
        """The content of every STATE slice, as a value; O(number of slices)."""
        with self._lock:
            return SessionSnapshot({held.slice_type: held.top for held in self._state})

    def parse_snapshot(
        self, text: str | bytes, *, types: Iterable[type[Any]] = ()
    ) -> SessionSnapshot:
        """The snapshot that `SessionSnapshot.to_json` wrote, for `restore`.

        Its slices may be those that this session has, by use or by a registered reducer, and those
        of `types`, which are found by their qualified names when they have moved to another module.
        Raises `SerdeError` for others and for what does not fit.
        """
        with self._lock:
            known = {held.slice_type for held in self._state}
        return SessionSnapshot.from_json(text, types, known)

    def restore(self, snapshot: SessionSnapshot, /) -> None:
        """Puts every STATE slice back to `snapshot`; slices that it does not know become empty. LOG
        slices stay.

        A snapshot of another session does as well: from then on the two go separate ways.
        """
        with self._lock:
            for slice_type in snapshot.slices:
                self[slice_type]  # which makes it
            for held in self._state:
                held.top = snapshot.slices.get(held.slice_type, EMPTY)

    def fork(self) -> SessionFork:
        """This session for one call that runs beside others: the same state and reducers, a bus
        that holds events.
        """
        with self._lock:
            base = self.snapshot()
            copy = Session(session_id=self.session_id)
            copy.restore(base)
            for event_type, row in self._reducers.items():
                copy._reducers[event_type] = [
                    (copy[held.slice_type], reduce) for held, reduce in row
                ]
            return SessionFork(copy, self, base, dict(self._reducers))

    def merge(self, fork: SessionFork, /) -> bool:
        """Makes the changes of `fork` here, in order, and then publishes its events.

        `False`, with nothing done, when reducers or a slice that the fork read have changed since,
        or a change fails. Raises `ValueError` for a fork that was merged already or is of another
        session.
        """
        with self._lock:
            fork.check_mergeable(self)
            if self._reducers != fork.folded:
                return False
            for slice_type in fork.reads:
                if self[slice_type].top is not fork.base.slices.get(slice_type, EMPTY):
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
        for deliver in fork.held:
            deliver(self)
        return True

    # Any: as above.
    def _register(
        self, event_type: type[Any], target: Slice[Any], reduce: Reducer[Any, Any]
    ) -> None:
        with self._lock:
            row = self._reducers.get(event_type)
            if row is None:
                row = [(self[event_type], _keep)] if issubclass(event_type, Event) else []
            if target.slice_type is event_type:
                row = [entry for entry in row if entry[1] is not _keep]
            self._reducers[event_type] = [*row, (target, reduce)]


def _record_events(session: Session) -> None:
    """Has `session` record the telemetry of its bus until nobody refers to it any more; the bus
    does not.
    """

    def record(event: Event) -> None:
        listener = weak_session()
        if listener is not None and (
            event.session_id is None or event.session_id == listener.session_id
        ):
            listener.dispatch(event)

    weak_session = ref(session, lambda _: unsubscribe())
    unsubscribe = session.bus.subscribe(Event, record)


def _set_visibility(
    view: SliceView[VisibilityOverrides], event: SetVisibilityOverride
) -> SliceOp[VisibilityOverrides]:
    overrides = view.latest() or VisibilityOverrides()
    return Replace((overrides.with_override(event.path, event.visibility),))
