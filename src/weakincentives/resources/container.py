"""Containers create a registry's resources on first use and close them, newest first.

`ResourceContext` keeps the resources that live as long as a prompt's resources are open,
`CallResources` keeps those of one tool call, and `ForkedResources` keeps a parallel call's forks.
"""

# `threading` provides the same lock, but takes longer to import.
from _thread import RLock
from collections.abc import Iterable, Iterator
from typing import NoReturn, Self

from ..locks import RunStack
from ..protocols import Fork, Forkable, KindOf, Snapshotable
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
from .instances import Instance, Instances, close, close_now, run_now

__all__ = ["CallResources", "ForkedResources", "ResourceContext"]


_NO_INSTANCES = Instances()  # for calls that cannot have their own resources


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
        run_now(self._enter(wait=False))
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        before = self._entries
        try:
            to_close, interrupt = self._leave()
            close_now(to_close, interrupt or error)
        except BaseException as raised:  # an interrupt, perhaps before the entry was counted
            to_close = self._leave()[0] if self._entries == before else self.instances.to_close
            if not self._entries:
                close_now(to_close, raised)
            raise
        if interrupt is not None:
            raise interrupt

    async def __aenter__(self) -> Self:
        await self._enter(wait=True)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        to_close, interrupt = self._leave()
        await close(to_close, interrupt or error, wait=True)
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
                await close(self._leave()[0], error, wait=wait)
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
        close_now(self.instances.to_close, error)

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


def _too_late(kind: Kind) -> RuntimeError:
    return RuntimeError(
        f"{kind_name(kind)} was asked for after the end of the tool call; ask before it returns"
    )


def _arrows(chain: Iterable[Kind]) -> str:
    return " → ".join(map(kind_name, chain))
