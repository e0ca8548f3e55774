"""Commits or undoes the changes of a tool call's handler."""

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

# Any, in both types: handlers return values of every type
type Read = Callable[[Any], tuple[str, bool]]
type Performed = tuple[Any, str, Exception | None, Changes]
"""A handler's result, the text of the result for the model, the error, and the changes."""


def stored(log: RunLog) -> Effects[None] | tuple[()]:
    """Stores the new entries of a durable run; does nothing for any other run."""
    return () if log.sink is None or len(log.entries) <= log.stored else _store(log)


def _store(log: RunLog) -> Effects[None]:
    _, error = yield log.store
    if error is not None:
        raise error


class Commits:
    """Commits calls to a session and resources; a call is committed by its entry in `log`.

    If the events of `operation` need a call's changes, they are described before the commit.
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
        """Runs a call in a transaction, whose last step appends the call's entry to the log.

        The call's changes are kept if and only if its entry is appended; a failed call's changes
        are undone first. `invoke` is the handler before it is given its context. `read` returns the
        result as text for the model, and whether the call succeeded. Errors from `answer` and
        interrupts are raised; the call then has no entry.
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
            except BaseException:  # an interrupt can come before the first line of the inner `try`
                transaction.settle()
                raise
        try:
            return outcome, answered, performed
        finally:
            del performed  # an exception's traceback must not refer to the exception

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
        """Invokes a handler and reads its result; undoes its changes if it fails.

        A failure is returned instead of raised, because a handler's StopIteration cannot leave a
        generator.
        """
        changes = _NO_CHANGES
        try:
            try:
                result, failure = yield partial(invoke, context=context)
                inside.end()
                if self._operation.records_changes:  # described before a failure undoes them
                    changes = transaction.changes()
                if failure is not None:
                    try:
                        raise failure
                    finally:
                        del failure  # an exception's traceback must not refer to the exception
                content, success = read(result)
                if not success:
                    transaction.undo()
            finally:
                revoke(context)
            resources.close()  # if this fails, the call fails
        except ControlFlow as signal:  # changes made before it are kept
            return None, "", signal, changes
        except Exception as error:
            transaction.undo(error)
            resources.close(error)
            return None, "", error, changes
        return result, content, None, changes
