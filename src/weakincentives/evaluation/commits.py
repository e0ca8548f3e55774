"""Commits what the handler of a tool call has done, or undoes it."""

from collections.abc import Callable
from functools import partial
from typing import Any

from ..errors import ControlFlow
from ..prompt.context import ToolContext, revoke
from ..protocols import SessionProtocol
from ..resources import CallResources, ResourceContext
from ..runtime.events import Operation
from ..runtime.transactions import CallTransaction
from ..serde import Json
from ..signatures import AnyFunction
from .effects import Effects
from .messages import ToolExecutionOutcome
from .run_log import Called, OpenCall, RunLog

__all__ = ["Changes", "Commits", "Performed", "stored"]

type Changes = dict[str, dict[str, Json]]
_NO_CHANGES: Changes = {}

# Any, twice: results of all handlers
type Read = Callable[[Any], tuple[str, bool]]
type Performed = tuple[Any, str, Exception | None, Changes]
"""What a handler has done: its result and what the model reads of it; its error; its changes."""


def stored(log: RunLog) -> Effects[None] | tuple[()]:
    """Stores the entries of a durable run that are new; of another run there is nothing to do."""
    return () if log.sink is None or len(log.entries) <= log.stored else _store(log)


def _store(log: RunLog) -> Effects[None]:
    _, error = yield log.store
    if error is not None:
        raise error


class Commits:
    """Commits calls to a session and resources, each by its entry in `log`.

    It describes what each call has changed if the events of `operation` need it.
    """

    def __init__(
        self,
        session: SessionProtocol,
        resources: ResourceContext,
        log: RunLog,
        operation: Operation,
    ) -> None:
        self._session = session
        self._resources = resources
        self._log, self._entries = log, log.entries
        self._operation = operation

    def run[T](
        self,
        inside: OpenCall,
        make_context: Callable[[CallResources], ToolContext],
        invoke: AnyFunction,
        *,
        read: Read,
        answer: Callable[[Performed], tuple[ToolExecutionOutcome, T]],
    ) -> Effects[tuple[ToolExecutionOutcome, T, Performed]]:
        """Runs a call in a transaction, whose last part is the call's entry in the log.

        What the call did is kept exactly if its entry has come; a failed call is undone first.
        `invoke` is the handler, which lacks the context. `read` returns what the model reads of its
        result, and whether it succeeded. Raises what `answer` raises, and interrupts; the call then
        has no entry.
        """
        with self._resources.for_call() as resources:
            call, entries = inside.call, self._entries
            transaction = CallTransaction(self._session, resources, entries, call.name)
            try:
                try:
                    transaction.begin()
                    if self._log.is_turn:
                        self._log.before_call = len(entries), transaction.before
                    performed = yield from self._perform(
                        make_context(resources),
                        invoke,
                        read=read,
                        inside=inside,
                        transaction=transaction,
                        resources=resources,
                    )
                    outcome, answered = answer(performed)
                    entries.append(Called(inside.key, call, outcome))
                    if (error := transaction.release()) is not None:
                        performed = None, "", error, performed[3]
                        outcome, answered = answer(performed)
                        entries.append(Called(inside.key, call, outcome))
                except BaseException:
                    transaction.settle()
                    raise
                finally:
                    self._log.before_call = None
            except BaseException:  # an interrupt may come before the first line of the inner one
                transaction.settle()
                raise
        try:
            return outcome, answered, performed
        finally:
            del performed  # an exception must not lead to itself by its traceback

    def _perform(
        self,
        context: ToolContext,
        invoke: AnyFunction,
        *,
        read: Read,
        inside: OpenCall,
        transaction: CallTransaction,
        resources: CallResources,
    ) -> Effects[Performed]:
        """Invokes a handler and reads its result; undoes what it did if it fails.

        A failure is returned, since a StopIteration of a handler cannot leave a generator.
        """
        changes = _NO_CHANGES
        try:
            try:
                result, failure = yield partial(invoke, context=context)
                inside.end()
                if self._operation.records_changes:  # before a failure undoes them
                    changes = transaction.changes()
                if failure is not None:
                    try:
                        raise failure
                    finally:
                        del failure  # an exception must not lead to itself by its traceback
                content, success = read(result)
                if not success:
                    transaction.undo()
            finally:
                revoke(context)
            resources.close()  # if this fails, the call fails
        except ControlFlow as signal:  # what was done before it is kept
            return None, "", signal, changes
        except Exception as error:
            transaction.undo(error)
            resources.close(error)
            return None, "", error, changes
        return result, content, None, changes
