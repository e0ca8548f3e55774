"""Locks that let one run, including its nested runs, use a session or a prompt's resources.

When a tool call fails, all changes since its start are rolled back. Two concurrent runs would roll
back each other's changes, so the second run is rejected.
"""

from _thread import allocate_lock  # `threading` has the same lock, but takes longer to import
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import ref

from .errors import WeakIncentivesError

__all__ = ["ConcurrentRunError", "Reservation", "RunStack", "RunToken"]


_CLOSE_STREAM = (
    "read it to its end, or close it with a `with` or `async with` block, since `break` leaves a "
    "stream open; otherwise "
)


class ConcurrentRunError(WeakIncentivesError, RuntimeError):
    """Another run is using the session or the prompt's resources, so this run was rejected."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class RunToken:
    """An evaluation, an execution or a chat turn; `caller` is the run that it is part of.

    The reader of a `streamed` run can leave it open.
    """

    name: str
    caller: "RunToken | None" = None
    streamed: bool = False


class RunStack:
    """The runs that are using an object, each part of the preceding one.

    `subject` names the object, and `remedy` explains how several runs can each have their own.
    """

    __slots__ = ("_lock", "_remedy", "_runs", "_subject")

    def __init__(self, subject: str, remedy: str) -> None:
        self._subject = subject
        self._remedy = remedy
        self._lock = allocate_lock()
        # Weak references, so that a run ends when the reader of its stream drops it.
        self._runs: list[ref[RunToken]] = []

    def begin(self, run: RunToken) -> None:
        """Adds `run`; raises `ConcurrentRunError` if it is not part of the current run, if any."""
        with self._lock:
            runs = [other for other in self._runs if other() is not None]
            current = runs[-1]() if runs else None
            if current is not None and current is not run.caller:
                kind = "an open stream" if current.streamed else "a run"
                remedy = _CLOSE_STREAM + self._remedy if current.streamed else self._remedy
                raise ConcurrentRunError(
                    f"{self._subject} is in use by {kind} of {current.name!r}; {remedy}"
                )
            self._runs = [*runs, ref(run)]

    def end(self, run: RunToken) -> None:
        """Removes `run`; does nothing if it is not in the stack."""
        with self._lock:
            self._runs = [other for other in self._runs if other() not in (None, run)]


class Reservation:
    """A block that prevents other runs from using the objects that `stacks` guard.

    Entering the block raises `ConcurrentRunError` if another run is using one of them.
    """

    __slots__ = ("_run", "_stacks")

    def __init__(self, run: RunToken, stacks: Sequence[RunStack]) -> None:
        self._run = run
        self._stacks = stacks

    def __enter__(self) -> None:
        try:
            for stack in self._stacks:
                stack.begin(self._run)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        for stack in self._stacks:
            stack.end(self._run)
