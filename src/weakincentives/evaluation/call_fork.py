"""Runs tool calls in parallel, each on its own forks, and merges them in order.

Each call has a fork of the session and of every resource. A call runs again on its own if a fork
cannot isolate it, or if an earlier call changed data that it read. The outcome is therefore the
same as if all calls had run in order.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from time import perf_counter

from ..filesystem.overlay import OverlayFilesystem
from ..locks import RunToken
from ..protocols import Forkable
from ..resources import NotIsolatedError, ResourceContext
from .effects import Effects, Invoke, Outcome

__all__ = ["ForkedCall"]


class ForkedCall:
    """One call of `run` on forks of the session and resources: perform `effects`, then `merge`."""

    __slots__ = ("_origin", "_outcome", "resources", "seconds", "session")

    def __init__(
        self,
        session: Forkable,
        resources: ResourceContext,
        *,
        makes: bool = False,
        run: RunToken | None = None,
    ) -> None:
        self._origin = session
        self._outcome: Outcome = None, NotIsolatedError("the call did not run")
        self.session = session.fork()
        self.resources = resources.fork(makes=makes)
        if run is not None:  # the forks are in use whenever the originals are
            for stack in (self.session.runs, self.resources.runs):
                stack.begin(run)
        self.seconds = 0.0

    def effects(
        self, invoke: Invoke, operation: AbstractContextManager[Callable[[object], None]]
    ) -> Effects[None]:
        """Runs a handler within `operation` and stores its result or exception."""
        started = perf_counter()
        try:
            with operation as set_result, self.resources:
                result, error = yield invoke
                if error is not None:
                    raise error
                set_result(result)
            self._outcome = result, None
        except BaseException as error:
            self._outcome = None, error
        self._close()
        self.seconds = perf_counter() - started

    def _close(self) -> None:
        # A thread that the handler left running must not change the previewed effects.
        self.session.close()
        for _, fork in self.resources.forks:
            if isinstance(fork, OverlayFilesystem):
                fork.close()

    def discard(self) -> None:
        """Discards the unmerged call, but keeps the events about its requests."""
        self.session.discard()

    @property
    def is_isolated(self) -> bool:
        """Whether forks could isolate everything that the handler used."""
        refused = self.resources.refused or self.session.refused
        return not (refused or isinstance(self._outcome[1], NotIsolatedError))

    @property
    def outcome(self) -> Outcome:
        """The handler's result and error; raises `NotIsolatedError` if it was not isolated."""
        if not self.is_isolated:
            error = self._outcome[1]
            raise error if isinstance(error, NotIsolatedError) else NotIsolatedError
        return self._outcome

    def merge(self, *, context: object = None) -> object:
        """Applies the call's changes to the session and resources; returns its result or raises.

        Raises `NotIsolatedError` when the call must run again; the surrounding transaction then
        undoes a partial merge.
        """
        result, error = self.outcome
        # The session comes last, because merging it publishes the call's events.
        for origin, fork in (*self.resources.forks, (self._origin, self.session)):
            try:
                merged = origin.merge(fork)
            except Exception as failure:
                raise NotIsolatedError from failure
            if not merged:
                raise NotIsolatedError
        if error is not None:
            raise error
        return result
