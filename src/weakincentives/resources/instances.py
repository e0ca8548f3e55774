"""The created resources of one scope: savepoints, and closing, even during a cancellation."""

import sys

# `threading` provides the same lock, but takes longer to import.
from _thread import RLock
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from inspect import isawaitable, iscoroutine
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

from ..protocols import Resources, Snapshot, Snapshotable
from ..signatures import AnyFunction
from .bindings import AnyBinding, Binding, Kind, ResourceError, kind_name

if TYPE_CHECKING:
    from ..cancellation import AnyScope

__all__ = [
    "Instance",
    "Instances",
    "Savepoint",
    "close",
    "close_now",
    "log_error",
    "release",
    "run_now",
]

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


class Savepoint:
    """The instances that existed when a transaction began, and the initial states of later ones.

    Nested transactions share the initial states.
    """

    __slots__ = ("__weakref__", "initial_states", "instances", "to_close")

    def __init__(
        self, instances: tuple[Instance, ...], initial_states: dict[Instance, Snapshot]
    ) -> None:
        self.instances = instances
        self.initial_states = initial_states
        self.to_close: list[Instance] = []  # instances that a rollback closes, oldest first


class _State(NamedTuple):
    """The open instances, their values by type, and the parts that a transaction can restore."""

    instances: tuple[Instance, ...]
    values: dict[Kind, Any]  # Any: a value of the type that is its key
    parts: tuple[Snapshotable, ...]


class Instances:
    """The open resources of one scope, oldest first.

    It is itself a `Snapshotable`: a rollback closes the instances created since the savepoint. Such
    an instance may represent something older, such as files on the host, so the rollback first
    restores the state that the instance had when it was created.
    """

    __slots__ = ("_savepoints", "lock", "state", "to_close")

    def __init__(self) -> None:
        self.lock = RLock()
        # Weak references, because a caller may never release a savepoint.
        self._savepoints = WeakSet[Savepoint]()
        self.to_close: list[Instance] = []  # instances to close when the scope ends, oldest first
        self._replace(())

    def _replace(self, instances: tuple[Instance, ...]) -> None:
        values = [instance.value for instance in instances]
        kinds = [instance.binding.protocol for instance in instances]
        parts = [value for value in values if isinstance(value, Snapshotable)]
        # In one step, because threads read the state without the lock.
        self.state = _State(instances, dict(zip(kinds, values, strict=True)), tuple(parts))

    def get_or_create[T](self, binding: Binding[T], resolver: Resources) -> T:
        """Returns the single value of `binding`, creating it if necessary."""
        with self.lock:
            if binding.protocol not in self.state.values:
                self.create(binding, resolver)
            value: T = self.state.values[binding.protocol]
            return value

    def create[T](self, binding: Binding[T], resolver: Resources) -> T:
        """Creates a new value for `binding`."""
        if binding.asynchronous:
            raise ResourceError(
                f"{kind_name(binding.protocol)} has an async provider, which runs only when "
                "`async with prompt.resources:` is entered; enter that block, in one task at a "
                "time, and bind this resource before any that requests it"
            )
        return run_now(self.create_async(binding, resolver))

    async def create_async[T](self, binding: Binding[T], resolver: Resources) -> T:
        """Creates a new value like `create`, and awaits an asynchronous provider."""
        instance = Instance(binding)
        savepoint: Savepoint | None = None
        try:
            with instance.noting_scopes() if binding.asynchronous else nullcontext():
                # Store the value first, so that it is closed even if the next step fails.
                instance.value = binding.provider(resolver)
                if binding.asynchronous:
                    instance.value = await instance.value
                elif iscoroutine(instance.value):
                    instance.value.close()
                    raise ResourceError(
                        f"the provider of {kind_name(binding.protocol)} returned a coroutine; "
                        "declare it with `async def`"
                    )
                manager = instance.value
                match instance.closing_method():  # the resource is what the context manager returns
                    case "__aexit__":
                        value = await manager.__aenter__()
                        instance.value, instance.exit = value, manager.__aexit__
                    case "__exit__":
                        instance.value, instance.exit = manager.__enter__(), manager.__exit__
                    case _:
                        pass
            created: T = instance.value
            with self.lock:
                savepoint = next(iter(self._savepoints), None)
                if savepoint is not None and isinstance(created, Snapshotable):
                    # In one step, so that an interrupt cannot lose a snapshot.
                    savepoint.initial_states[instance] = created.snapshot()
                self._replace((*self.state.instances, instance))
        except BaseException as error:
            with self.lock:
                others = [other for other in self.state.instances if other is not instance]
                self._replace(tuple(others))
            if savepoint is not None:
                _release_state(savepoint.initial_states, instance)
            await close([instance], error, wait=binding.asynchronous)
            raise
        return created

    def remove(self, removed: list[Instance], remaining: tuple[Instance, ...] = ()) -> None:
        """Moves all instances except those in `remaining` to the end of `removed`."""
        with self.lock:
            instances = self.state.instances
            excluded = (*remaining, *removed)
            removed += [instance for instance in instances if instance not in excluded]
            self._replace(tuple([instance for instance in instances if instance in remaining]))

    def snapshot(self) -> Savepoint:
        with self.lock:
            outer = next(iter(self._savepoints), None)
            states: dict[Instance, Snapshot] = {} if outer is None else outer.initial_states
            savepoint = Savepoint(self.state.instances, states)
            self._savepoints.add(savepoint)
            return savepoint

    def restore(self, savepoint: Savepoint, /) -> None:
        if self.state.instances is not savepoint.instances:
            self.remove(savepoint.to_close, savepoint.instances)
        error = ResourceError("created in a transaction that was rolled back")
        close_now(savepoint.to_close, error, savepoint.initial_states)

    def changes_since(self, savepoint: Savepoint, /) -> dict[str, dict[str, object]]:
        """Returns the changes reported by the resources that were created since the savepoint."""
        changes: dict[str, dict[str, object]] = {}
        for instance, snapshot in savepoint.initial_states.items():
            if instance in savepoint.instances:  # belongs to an outer transaction
                continue
            describe = getattr(type(instance.value), "changes_since", None)
            for kind, values in describe(instance.value, snapshot).items() if describe else ():
                changes.setdefault(kind, {}).update(values)
        return changes

    def release(self, savepoint: Savepoint, /) -> None:
        """Ends a transaction; the last one to end releases the initial states, newest first."""
        self._savepoints.discard(savepoint)
        while savepoint.initial_states and not self._savepoints:
            _release_state(savepoint.initial_states, next(reversed(savepoint.initial_states)))


def _release_state(states: dict[Instance, Snapshot], instance: Instance) -> None:
    """Releases an instance's state, if there is one; keeps the state if this fails."""
    if instance in states:
        release(instance.value, states[instance])
        states.pop(instance, None)


def release(part: Snapshotable, snapshot: Snapshot) -> None:
    """Tells `part` that `snapshot` will not be restored again, if its class defines `release`."""
    method = getattr(type(part), "release", None)
    if method is not None:
        method(part, snapshot)


async def close(
    instances: list[Instance],
    error: BaseException | None,
    initial_states: dict[Instance, Snapshot] | None = None,
    *,
    wait: bool = False,
) -> None:
    """Closes and removes `instances`, newest first, passing `error` to context managers.

    Instances in `initial_states` are first restored to these states. After an error, the function
    continues, and raises the error at the end. It retries a step once if an interrupt stopped it,
    unless the step awaits. If an interrupt stops the function itself, `instances` contains those
    that are still open.
    """
    raised: BaseException | None = None
    states = {} if initial_states is None else initial_states
    while instances:
        instance = instances[-1]
        asynchronous = instance.binding.asynchronous
        steps: list[Callable[[], Awaitable[None] | None]] = []
        if instance in states:
            value, snapshot = instance.value, states[instance]
            steps += [partial(value.restore, snapshot), partial(release, value, snapshot)]
        if asynchronous and not wait:
            kind = instance.binding.protocol
            log_error("A resource outlived its `async with` and stays open", kind)
        else:
            # Includes the traceback, because `contextlib`'s context managers set it on the error.
            cause = raised or error
            reason = (type(cause), cause, cause.__traceback__) if cause else (None, None, None)
            steps.append(partial(instance.close, *reason))
        for step in steps:
            for last in (asynchronous, True):
                try:
                    if (result := step()) is not None:
                        await result
                    break
                except BaseException as failure:
                    raised = failure if raised is None or isinstance(raised, Exception) else raised
                    if last or isinstance(failure, Exception):
                        break
        states.pop(instance, None)
        instances.pop()
    if raised is not None:
        raise raised


def close_now(
    instances: list[Instance],
    error: BaseException | None,
    initial_states: dict[Instance, Snapshot] | None = None,
) -> None:
    """Like `_close`, but does not await, and finishes even after an interrupt."""
    while instances:
        try:
            run_now(close(instances, error, initial_states))
        finally:
            if instances:  # the interrupt came between two instances
                run_now(close(instances, error, initial_states))


def run_now[T](coroutine: Coroutine[object, None, T]) -> T:
    """Returns the result of a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("the coroutine awaited something")
