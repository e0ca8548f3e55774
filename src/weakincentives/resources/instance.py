"""A created resource, and how to close it, even while its task is being cancelled."""

import sys
from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from ..signatures import AnyFunction
from .bindings import AnyBinding, Kind, kind_name

if TYPE_CHECKING:
    from ..cancellation import AnyScope

__all__ = ["Instance", "log_error"]

# Keyed by whether the provider is asynchronous; the first method that exists closes the value.
_CLOSING_METHODS = {False: ("close", "__exit__"), True: ("aclose", "__aexit__", "close")}


class Instance:
    """A created resource: its value, and the exit of the context manager that returned it.

    If the resource has left anyio cancel scopes open, `scope` is a cancel scope around them.
    """

    __slots__ = ("binding", "exit", "scope", "value")

    def __init__(self, binding: AnyBinding) -> None:
        self.binding = binding
        self.scope: AnyScope = None
        self.value: Any = None  # Any: a resource of any type
        self.exit: AnyFunction | None = None

    def closing_method(self) -> str:
        """Returns the name of the method that closes the value, or `""` if there is none."""
        names = _CLOSING_METHODS[self.binding.asynchronous] if self.binding.owned else ()
        return next((name for name in names if callable(getattr(self.value, name, None))), "")

    async def close(self, *reason: object) -> None:
        """Closes the resource; logs any error."""
        try:
            result: object = None
            if self.exit is not None:
                result = self.exit(*reason)
            elif (name := self.closing_method()).endswith("close"):
                result = getattr(self.value, name)()
            if self.binding.asynchronous and isawaitable(result):
                with self._shield():
                    await result
        except Exception:
            log_error("Closing a resource failed", self.binding.protocol)

    def _shield(self) -> AbstractContextManager[object]:
        """Returns a block that anyio does not cancel, and that exits the resource's own scopes."""
        if self.scope is None:
            from ..cancellation import shielded

            return shielded()
        self.scope.shield = True
        stack = ExitStack()
        stack.push(self.scope)
        return stack

    @contextmanager
    def noting_scopes(self) -> Generator[None]:
        """Records whether the block leaves anyio scopes open, which must be exited in order."""
        from ..cancellation import cancel_scope

        if (scope := cancel_scope()) is None:
            yield
            return
        scope.__enter__()
        try:
            yield
        finally:
            try:
                scope.__exit__(None, None, None)
            except RuntimeError:  # the current scope is an inner one
                self.scope = scope


def log_error(message: str, kind: Kind) -> None:
    """Logs that an operation on the resource of type `kind` failed."""
    import logging  # loads 15 modules, so only on demand

    logging.getLogger(__name__).error(
        message, exc_info=sys.exception() is not None, extra={"resource": kind_name(kind)}
    )
