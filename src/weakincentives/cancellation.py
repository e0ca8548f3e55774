"""Whose cancellation it is, and clean-up that awaits while its task is cancelled.

asyncio cancels a task once. anyio, and so Starlette, FastAPI and MCP, cancels it again at each
`await` until it has left the cancelled scope. Nothing here imports anyio or asyncio: where nobody
has imported them, nobody cancels.
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

__all__ = ["AnyScope", "cancel_scope", "is_foreign", "shielded"]


# Any: anyio is optional, and its CancelScope is known at run time only
type AnyScope = Any


def cancel_scope() -> AnyScope:
    """Returns a new scope of anyio, `None` if nobody has imported anyio."""
    anyio = sys.modules.get("anyio")
    return None if anyio is None else anyio.CancelScope()


def shielded() -> AbstractContextManager[object]:
    """Returns a block that anyio does not cancel; it may await, and must not yield."""
    if (scope := cancel_scope()) is None:
        return nullcontext()
    scope.shield = True
    shield: AbstractContextManager[object] = scope
    return shield


def is_foreign(error: BaseException) -> bool:
    """Whether `error` is a cancellation of something that the running task awaited.

    If the task itself was cancelled, it is not.
    """
    asyncio = sys.modules.get("asyncio")
    if asyncio is None or not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return task is not None and not task.cancelling()
