"""Containers create a registry's resources on first use and close them, newest first.

`ResourceContext` keeps the resources that live as long as a prompt's resources are open,
`CallResources` keeps those of one tool call, and `ForkedResources` keeps a parallel call's forks.
"""

# `threading` provides the same lock, but takes longer to import.
from _thread import RLock
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from inspect import iscoroutine
from typing import Any, NamedTuple, NoReturn, Self
from weakref import WeakSet

from ..locks import RunStack
from ..protocols import Fork, Forkable, KindOf, Resources, Snapshot, Snapshotable
from .bindings import (
    Binding,
    Kind,
    NotIsolatedError,
    ResourceError,
    ResourceRegistry,
    Scope,
    kind_name,
    kind_names,
)
from .instance import Instance, log_error

__all__ = ["CallResources", "ForkedResources", "ResourceContext", "release"]


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
        return _run_now(self.create_async(binding, resolver))

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
            await _close([instance], error, wait=binding.asynchronous)
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
        _close_now(savepoint.to_close, error, savepoint.initial_states)

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


_NO_INSTANCES = Instances()  # for calls that cannot have their own resources


def release(part: Snapshotable, snapshot: Snapshot) -> None:
    """Tells `part` that `snapshot` will not be restored again, if its class defines `release`."""
    method = getattr(type(part), "release", None)
    if method is not None:
        method(part, snapshot)


class ResourceContext:
    """Creates a registry's resources on demand, and keeps them while it is open.

    It is both a context manager and an asynchronous context manager. Only the outermost entry opens
    it, and only the last exit closes it. Resources are closed newest first; if closing one fails,
    the error is logged and the others are still closed. Iteration yields the parts that a
    transaction must be able to restore: each resource that is `Snapshotable`, and a part that
    closes resources created later. Threads can share a context.
    """

    def __init__(self, registry: ResourceRegistry | None = None) -> None:
        self._entries = 0
        self.instances = Instances()
        self.runs = RunStack(
            "the prompt, which has resources,",
            "bind the template anew for each run, or begin the next run when this one has ended",
        )
        # Kinds whose providers requested a resource that a transaction can restore.
        self.stateful_dependents: set[Kind] = set()
        self.registry = registry or ResourceRegistry()
        self._created_on_entry = self.registry.bindings
        self.by_kind = {binding.protocol: binding for binding in self.registry.bindings}
        self.only_singletons = all(
            binding.scope is Scope.SINGLETON for binding in self.registry.bindings
        )

    @property
    def is_open(self) -> bool:
        """Whether `get` can be called."""
        return self._entries > 0

    def get[T](self, kind: KindOf[T], /) -> T:
        """Returns the resource bound to `kind`.

        Raises `ResourceError`, and `RuntimeError` when the context is not open.
        """
        return _Resolver(self, None).get(kind)

    def rebound(self, registry: ResourceRegistry) -> "ResourceContext":
        """Returns a context for another registry; raises `RuntimeError` while this one is open."""
        if self.is_open:
            raise RuntimeError("resources are open; call bind before `with prompt.resources:`")
        return ResourceContext(registry)

    def for_call(self) -> "CallResources":
        """Returns one tool call's resources, as a context manager."""
        return CallResources(self)

    def fork(self, *, makes: bool = False) -> "ForkedResources":
        """Returns the resources for one call that runs on forks, as a context manager.

        With `makes`, resources that do not exist yet are created on request; parallel calls cannot
        do this.
        """
        return ForkedResources(self, makes=makes)

    def __iter__(self) -> Iterator[Snapshotable]:
        state = self.instances.state
        complete = self.only_singletons and len(state.instances) == len(self.by_kind)
        return iter(state.parts if complete else (*state.parts, self.instances))

    def __enter__(self) -> Self:
        _run_now(self._enter(wait=False))
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        before = self._entries
        try:
            to_close, interrupt = self._leave()
            _close_now(to_close, interrupt or error)
        except BaseException as raised:  # an interrupt, perhaps before the entry was counted
            to_close = self._leave()[0] if self._entries == before else self.instances.to_close
            if not self._entries:
                _close_now(to_close, raised)
            raise
        if interrupt is not None:
            raise interrupt

    async def __aenter__(self) -> Self:
        await self._enter(wait=True)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        to_close, interrupt = self._leave()
        await _close(to_close, interrupt or error, wait=True)
        if interrupt is not None:
            raise interrupt

    async def _enter(self, *, wait: bool) -> None:
        before = None
        try:
            with self.instances.lock:
                before = self._entries
                self._entries = before + 1
            bindings = () if before else self._created_on_entry
            for binding in bindings:
                if binding.asynchronous and wait:
                    resolver = _Resolver(self, None, (binding.protocol,))
                    await self.instances.create_async(binding, resolver)
            for binding in bindings:
                if binding.eager and not binding.asynchronous:
                    self.get(binding.protocol)
        except BaseException as error:
            if before is not None and self._entries > before:
                await _close(self._leave()[0], error, wait=wait)
            raise

    def _leave(self) -> tuple[list[Instance], BaseException | None]:
        """Counts one exit; returns the instances to close and any interrupt in the meantime.

        After the last exit, no more resources are created.
        """
        instances, interrupt = self.instances, None
        with instances.lock:
            remaining = self._entries - 1
            for _ in range(2):
                try:
                    self._entries = remaining
                    if not remaining:
                        instances.remove(instances.to_close)
                    break
                except BaseException as error:
                    interrupt = error
        return ([] if remaining else instances.to_close), interrupt


class CallResources:
    """One tool call's resources: its own, with `TOOL_CALL` scope, and those from the context.

    This context manager closes the call's own resources on exit. Iteration yields the parts that
    the call's transaction must be able to restore.
    """

    def __init__(self, context: ResourceContext) -> None:
        self.context = context
        self.instances = _NO_INSTANCES if context.only_singletons else Instances()
        self._over = False

    def get[T](self, kind: KindOf[T], /) -> T:
        """Returns the resource bound to `kind`.

        Raises `ResourceError`, and `RuntimeError` when the context is not open or the call is over.
        """
        if self._over:
            raise _too_late(kind)
        return _Resolver(self.context, self).get(kind)

    def close(self, error: BaseException | None = None) -> None:
        """Closes the call's own resources, newest first; `error` is the error that ended it."""
        if self.instances is _NO_INSTANCES:
            return
        if self.instances.state.instances:
            self.instances.remove(self.instances.to_close)
        _close_now(self.instances.to_close, error)

    def __iter__(self) -> Iterator[Snapshotable]:
        if self.instances is _NO_INSTANCES:
            return iter(self.context)
        return iter((*self.context, *self.instances.state.parts, self.instances))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close(error)
        finally:
            self._over = True


class ForkedResources(ResourceContext):
    """The resources for a parallel call and its prompt: forks of the singletons that have state.

    `get` raises `NotIsolatedError` for a resource that cannot be forked. A nested call, or a
    transaction over all resources, raises it too. `refused` then stays true, whatever the handler
    does with the error.
    """

    def __init__(self, context: ResourceContext, *, makes: bool = False) -> None:
        super().__init__(context.registry)
        self.context = context
        self._created_on_entry = ()
        self._makes = makes
        self._lock = RLock()  # its own lock: an interrupt can come before the release
        self._forks: dict[int, tuple[Forkable, Fork]] = {}
        self.refused = False

    @property
    def forks(self) -> Iterable[tuple[Forkable, Fork]]:
        """Each forked resource, with its fork."""
        return self._forks.values()

    def get[T](self, kind: KindOf[T], /) -> T:
        """Returns the resource bound to `kind`, or the call's fork of it."""
        if not self.is_open:
            raise _too_late(kind)
        return _Resolver(self.context, self).get(kind)

    def for_call(self) -> NoReturn:
        self.refuse("a nested call is a transaction over all resources")

    def fork(self, *, makes: bool = False) -> NoReturn:
        self.refuse("forks have no forks")

    def __iter__(self) -> NoReturn:
        self.refuse("a transaction covers all resources")

    def refuse(self, reason: str) -> NoReturn:
        """Raises `NotIsolatedError`, so that the call runs alone."""
        self.refused = True
        raise NotIsolatedError(reason)

    def check_shareable(self, kind: Kind) -> None:
        """Refuses a singleton that calls cannot share."""
        if kind not in self.context.instances.state.values:
            if not self._makes:
                self.refuse(f"{kind_name(kind)} is not made yet")
            self.context.get(kind)
        if kind in self.context.stateful_dependents:
            self.refuse(f"{kind_name(kind)} depends on what a transaction can restore")

    def fork_of[T](self, binding: Binding[T], value: T) -> T:
        """Returns the call's fork of `value`, or `value` itself if it has no state to restore."""
        name = kind_name(binding.protocol)
        if not isinstance(value, Snapshotable):
            return value
        if binding.scope is not Scope.SINGLETON:
            self.refuse(f"{name} can be restored and is not forked")
        with self._lock:
            if id(value) not in self._forks:
                if not isinstance(value, Forkable):
                    self.refuse(f"{name} has no fork()")
                try:
                    self._forks[id(value)] = (value, value.fork())
                except Exception as error:
                    self.refuse(f"{name} cannot be forked: {error}")
            fork: T = self._forks[id(value)][1]
            return fork


class _Resolver:
    """The `resources` that a provider receives; tracks the chain of kinds that led to it."""

    __slots__ = ("_call", "_chain", "_context")

    def __init__(
        self,
        context: ResourceContext,
        call: CallResources | ForkedResources | None,
        chain: tuple[Kind, ...] = (),
    ) -> None:
        self._context = context
        self._call = call
        self._chain = chain

    def get[T](self, kind: KindOf[T], /) -> T:
        context, call, chain = self._context, self._call, (*self._chain, kind)
        binding = self._binding(kind, chain)
        fork = call if isinstance(call, ForkedResources) else None
        if binding.scope is Scope.SINGLETON:
            if fork is not None:
                fork.check_shareable(kind)
            value = context.instances.get_or_create(binding, _Resolver(context, None, chain))
        elif binding.scope is Scope.PROTOTYPE:
            owner = call or context
            value = owner.instances.create(binding, _Resolver(context, call, chain))
        elif call is not None:
            value = call.instances.get_or_create(binding, _Resolver(context, call, chain))
        else:
            raise ResourceError(
                f"{_arrows(chain)}: a resource of Scope.TOOL_CALL can only be requested inside a "
                "tool call"
            )
        if fork is not None:
            value = fork.fork_of(binding, value)
        if self._chain and (kind in context.stateful_dependents or isinstance(value, Snapshotable)):
            context.stateful_dependents.update(self._chain)
        return value

    def _binding[T](self, kind: KindOf[T], chain: tuple[Kind, ...]) -> Binding[T]:
        context = self._context
        if not context.is_open:
            raise RuntimeError(
                f"{_arrows(chain)} was requested outside `with prompt.resources:`; enter the "
                "block first"
            )
        if (binding := context.by_kind.get(kind)) is None:
            raise ResourceError(
                f"no resource is bound for {_arrows(chain)}; bound: "
                f"{kind_names(context.registry.bindings)}. Add it with bind(resources=…)"
            )
        if kind in self._chain:
            raise ResourceError(
                f"resources must not depend on themselves, got the cycle {_arrows(chain)}"
            )
        return binding


async def _close(
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


def _close_now(
    instances: list[Instance],
    error: BaseException | None,
    initial_states: dict[Instance, Snapshot] | None = None,
) -> None:
    """Like `_close`, but does not await, and finishes even after an interrupt."""
    while instances:
        try:
            _run_now(_close(instances, error, initial_states))
        finally:
            if instances:  # the interrupt came between two instances
                _run_now(_close(instances, error, initial_states))


def _run_now[T](coroutine: Coroutine[object, None, T]) -> T:
    """Returns the result of a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("the coroutine awaited something")


def _too_late(kind: Kind) -> RuntimeError:
    return RuntimeError(
        f"{kind_name(kind)} was asked for after the end of the tool call; ask before it returns"
    )


def _arrows(chain: Iterable[Kind]) -> str:
    return " → ".join(map(kind_name, chain))
