"""Determines what was cancelled, and lets cleanup code await during a cancellation.

asyncio cancels a task once. anyio, and therefore Starlette, FastAPI and MCP, cancels it again at
each `await` until it has left the cancelled scope. This module does not import anyio or asyncio: if
nothing else has imported them, nothing can be cancelled.
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

__all__ = ["AnyScope", "as_exception", "cancel_scope", "foreign_failure", "is_foreign", "shielded"]


# Any: anyio is optional, so its CancelScope is only known at run time
type AnyScope = Any


def cancel_scope() -> AnyScope:
    """Returns a new anyio scope, or `None` if anyio has not been imported."""
    anyio = sys.modules.get("anyio")
    return None if anyio is None else anyio.CancelScope()


def shielded() -> AbstractContextManager[object]:
    """Returns a block that anyio does not cancel; the block may await but must not yield."""
    if (scope := cancel_scope()) is None:
        return nullcontext()
    scope.shield = True
    shield: AbstractContextManager[object] = scope
    return shield


def is_foreign(error: BaseException) -> bool:
    """Whether `error` is the cancellation of something that the running task awaited.

    Returns false if the task itself was cancelled.
    """
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return task is not None and not task.cancelling()


def foreign_failure(error: BaseException) -> Exception:
    """Returns the error for code that awaited a cancelled task but was not cancelled."""
    failure = RuntimeError("something that the call waited for was cancelled")
    failure.__cause__ = error
    return failure


def as_exception(error: BaseException) -> Exception:
    """Returns an exception as it is, and a foreign cancellation as an exception; raises others."""
    if isinstance(error, Exception):
        return error
    if not is_foreign(error):
        raise error
    return foreign_failure(error)
