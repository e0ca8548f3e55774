"""Resources: what tools use beside the session, bound by type, made on first use and closed in
reverse order.

A `ResourceRegistry` says what is bound; a `ResourceContext` holds what was made from it while it is
open. Providers are the application's; nothing here knows prompts or sessions.
"""

import inspect
import sys

# contextvars and threading have the same, and more to import
from _contextvars import ContextVar, Token
from _thread import RLock
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from itertools import count
from typing import Any, NoReturn, Self
from weakref import WeakValueDictionary

from .errors import WeakIncentivesError
from .protocols import Forkable, Resources, Snapshotable

__all__ = [
    "Bindable",
    "Binding",
    "CallResources",
    "ForkedResources",
    "NotIsolatedError",
    "ResourceContext",
    "ResourceError",
    "ResourceRegistry",
    "Scope",
    "release",
]

# Any: bindings and values of every type stand side by side, each found by its own.
type _Kind = Callable[..., Any]


class ResourceError(WeakIncentivesError, LookupError):
    """A resource that is not bound, needs itself, or is asked for by what outlives it."""


class NotIsolatedError(BaseException):
    """A call that runs beside others needs what cannot be isolated, so it must run by itself.

    No `Exception`, lest a handler that catches those answers on its account.
    """


class Scope(Enum):
    """How long a resource lives: as long as the context, as long as one tool call; or it is made at
    each asking.
    """

    SINGLETON = "singleton"
    TOOL_CALL = "tool_call"
    PROTOTYPE = "prototype"


@dataclass(frozen=True, slots=True)
class Binding[T]:
    """Says how the resource of one type is made: `Binding(Clock, lambda resources: SystemClock())`.

    A provider may ask for further resources. What it makes is closed when its scope ends: by its
    `close()`, or, without one, as a context manager, which was entered when it was made. An `async
    def` provider makes a singleton when the context is entered by `async with`; it is closed by
    `aclose()`, as an asynchronous context manager, or by `close()`, which may be `async`. `eager`
    singletons are made on entry, the others when they are first asked for. What is not `owned` is
    never closed. Raises `ValueError` for an eager or asynchronous binding of another scope, and for
    a provider that cannot be called with one argument; `TypeError` for a scope that is no `Scope`.
    """

    protocol: Callable[..., T]
    provider: Callable[[Resources], T | Awaitable[T]]
    scope: Scope = field(default=Scope.SINGLETON, kw_only=True)
    eager: bool = field(default=False, kw_only=True)
    owned: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.scope, Scope):
            raise TypeError(
                f"the binding of {_name(self.protocol)} has scope {self.scope!r}; "
                f"use Scope.SINGLETON, .TOOL_CALL or .PROTOTYPE"
            )
        if self.scope is not Scope.SINGLETON and (self.eager or self.asynchronous):
            how = "an async provider" if self.asynchronous else "eager=True"
            raise ValueError(
                f"the binding of {_name(self.protocol)} has {how} and {self.scope}; use Scope.SINGLETON"
            )
        try:
            inspect.signature(self.provider).bind(None)
        except TypeError as error:
            raise ValueError(
                f"the provider of {_name(self.protocol)} cannot be called with the resources ({error}); "
                f"write it as lambda resources: …"
            ) from error
        except ValueError:  # a built-in that does not tell its signature
            pass

    @classmethod
    def instance(cls, protocol: Callable[..., T], value: T) -> "Binding[T]":
        """A binding of a value that the application made and keeps: it is neither entered nor
        closed.

        A transaction puts it back from the start on, asked for or not. Raises `TypeError` for a
        binding.
        """
        if isinstance(value, Binding):
            raise TypeError(
                f"what is bound for {_name(protocol)} is a Binding itself; bind it by ResourceRegistry.of(Binding(…))"
            )
        return cls(protocol, lambda _: value, eager=True, owned=False)

    @property
    def asynchronous(self) -> bool:
        """Whether the provider must be awaited."""
        return inspect.iscoroutinefunction(self.provider)


@dataclass(frozen=True, slots=True, repr=False)
class ResourceRegistry:
    """Bindings by type; immutable. `first | second` holds both, those of `second` where they meet.

    `second` may also be a mapping of types to values that the application made and keeps. Raises
    `TypeError` for anything but a tuple of bindings.
    """

    bindings: tuple[Binding[Any], ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.bindings, tuple) or not all(
            isinstance(one, Binding) for one in self.bindings
        ):
            raise TypeError(
                f"ResourceRegistry got {self.bindings!r}; write ResourceRegistry.of(Binding(Type, provider), …), or "
                f"ResourceRegistry() | {{Type: value}}"
            )

    @classmethod
    def of(cls, *bindings: Binding[Any]) -> "ResourceRegistry":
        """The registry of these bindings. Raises `ValueError` when two are for one type."""
        registry = cls(bindings)
        found: set[_Kind] = set()
        for binding in bindings:
            if binding.protocol in found:
                raise ValueError(f"{_name(binding.protocol)} is bound twice; bind it once")
            found.add(binding.protocol)
        return registry

    def __or__(self, other: "Bindable") -> "ResourceRegistry":
        if not isinstance(other, ResourceRegistry):
            other = ResourceRegistry.of(
                *(Binding.instance(kind, value) for kind, value in other.items())
            )
        if not other:
            return self
        return ResourceRegistry(
            tuple({one.protocol: one for one in (*self.bindings, *other.bindings)}.values())
        )

    def __bool__(self) -> bool:
        return bool(self.bindings)

    def __repr__(self) -> str:
        return f"<ResourceRegistry of {_names(self.bindings)}>"


type Bindable = ResourceRegistry | Mapping[_Kind, Any]
"""What can be bound: a registry, or values by type."""


# By whether the provider is asynchronous: what ends a resource, which is the first of these methods
# that it has.
_ENDS = {False: ("close", "__exit__"), True: ("aclose", "__aexit__", "close")}


class _Made:
    """A living resource; `told` says that what ends it wants to know how the block ended."""

    __slots__ = ("binding", "ending", "told", "value")

    def __init__(
        self, binding: Binding[Any], value: Any, ending: Callable[..., Any] | None, *, told: bool
    ) -> None:
        self.binding = binding
        self.value = value
        self.ending = ending
        self.told = told

    async def leave(self, *reason: Any) -> None:
        """Ends it, and logs it if that fails."""
        try:
            end = _end_of(self) if self.ending is None else ""
            ending = getattr(self.value, end) if end and not end.endswith("exit__") else self.ending
            if ending is not None:
                left = ending(*(reason if self.told else ()))
                if self.binding.asynchronous and inspect.isawaitable(left):
                    await left
        except Exception:
            _report("Closing a resource failed", self.binding.protocol)


def _end_of(made: _Made) -> str:
    """The name of the method that ends a resource, or nothing."""
    ends = _ENDS[made.binding.asynchronous] if made.binding.owned else ()
    return next((name for name in ends if callable(getattr(made.value, name, None))), "")


class _Mark:
    """What was alive at one moment, and how that which was made since was at its birth."""

    __slots__ = ("__weakref__", "born", "kept", "number", "taken")

    def __init__(self, kept: tuple[_Made, ...], number: int) -> None:
        self.kept = kept
        self.number = number
        self.born: dict[_Made, Any] = {}
        self.taken: list[_Made] = []  # what is to be closed when it is undone, oldest first


class _Living:
    """What was made and not closed yet, oldest first.

    It is the part of a transaction that goes back by closing what was made since. A provider may
    give what was there before, such as files of the host, so its state goes back first.
    """

    __slots__ = ("_marks", "_numbers", "lock", "now", "taken")

    # What was made, the values by type, and what a transaction can put back: always replaced
    # together.
    type _Now = tuple[tuple[_Made, ...], dict[_Kind, Any], tuple[Snapshotable, ...]]

    def __init__(self) -> None:
        self.lock = RLock()
        self._numbers = count()
        # oldest first, since savepoints may lie within each other
        self._marks = WeakValueDictionary[int, _Mark]()
        self.taken: list[_Made] = []  # what is to be closed at the end, oldest first
        self._become(())

    @property
    def made(self) -> tuple[_Made, ...]:
        return self.now[0]

    @property
    def values(self) -> dict[_Kind, Any]:
        return self.now[1]

    @property
    def parts(self) -> tuple[Snapshotable, ...]:
        return self.now[2]

    def one(self, binding: Binding[Any], resolver: Resources) -> Any:
        """The one value of `binding`, made now if it was not."""
        with self.lock:
            if binding.protocol not in self.values:
                self.another(binding, resolver)
            return self.values[binding.protocol]

    def another(self, binding: Binding[Any], resolver: Resources) -> Any:
        """A new value of `binding`."""
        if binding.asynchronous:
            raise ResourceError(
                f"{_name(binding.protocol)} has an async provider, which runs when `async with prompt.resources:` is "
                f"entered; use that, in one task at a time, and bind it before what asks for it"
            )
        return _at_once(self.make(binding, resolver))

    async def make(self, binding: Binding[Any], resolver: Resources) -> Any:
        """As `another`; waits only for an asynchronous provider."""
        made = _Made(binding, None, None, told=False)
        captured: list[tuple[_Mark, Any]] = []
        # gives a value, or what must be awaited for it
        provider: Callable[[Resources], Any] = binding.provider
        try:
            made.value = provider(resolver)  # in one step, so that it is closed whatever comes next
            if binding.asynchronous:
                made.value = await made.value
            elif inspect.iscoroutine(made.value):
                made.value.close()
                raise ResourceError(
                    f"the provider of {_name(binding.protocol)} gave a coroutine; declare it with `async def`"
                )
            end, value = _end_of(made), made.value
            if end == "__aexit__":  # what a context manager gives is the resource
                made.value, made.ending, made.told = await value.__aenter__(), value.__aexit__, True
            elif end == "__exit__":
                made.value, made.ending, made.told = value.__enter__(), value.__exit__, True
            with self.lock:
                for mark in (
                    list(self._marks.values()) if isinstance(made.value, Snapshotable) else ()
                ):
                    captured.append((mark, made.value.snapshot()))  # noqa: PERF401 - released if a later one fails
                for mark, state in captured:
                    mark.born[made] = state
                self._become((*self.made, made))
        except BaseException as error:
            with self.lock:
                self._become(tuple([one for one in self.made if one is not made]))
            for mark, state in reversed(captured):
                mark.born.pop(made, None)
                release(made.value, state)  # pyright: ignore[reportArgumentType] - captured only if it can be put back
            await _close([made], error, waiting=binding.asynchronous)
            raise
        return made.value

    def take(self, taken: list[_Made], kept: tuple[_Made, ...] = ()) -> None:
        """Moves all but those `kept` to `taken`."""
        with self.lock:
            taken += [one for one in self.made if one not in kept and one not in taken]
            self._become(tuple([one for one in self.made if one in kept]))

    def snapshot(self) -> _Mark:
        with self.lock:
            mark = _Mark(self.made, next(self._numbers))
            self._marks[mark.number] = mark
            return mark

    def restore(self, mark: _Mark, /) -> None:
        if self.made is not mark.kept:
            self.take(mark.taken, mark.kept)
        _close_now(mark.taken, ResourceError("made in what is undone"), mark.born)

    def release(self, mark: _Mark, /) -> None:
        """The transaction is over: of what was made in it, the state at its birth is not needed any
        more.
        """
        self._marks.pop(mark.number, None)
        while mark.born:
            made, state = next(reversed(mark.born.items()))
            release(made.value, state)
            mark.born.pop(made, None)

    def _become(self, made: tuple[_Made, ...]) -> None:
        undoable = [one.value for one in made if isinstance(one.value, Snapshotable)]
        self.now: _Living._Now = (
            made,
            {one.binding.protocol: one.value for one in made},
            (*undoable, self),
        )


def release(part: Snapshotable, snapshot: Any) -> None:
    """Tells `part` that `snapshot` will not be restored any more, if its class wants to know."""
    own = getattr(type(part), "release", None)
    if own is not None:
        own(part, snapshot)


_NONE = _Living()  # of every call for which nothing can be made


class ResourceContext:
    """Holds the resources of a registry while it is open: a context manager, an asynchronous one,
    and the accessor.

    Entering again while it is open only counts; the last exit closes. Closing goes newest first; a
    close that fails is logged and the rest go on. Iteration gives what a transaction must be able
    to put back: each resource that is `Snapshotable`, and that others were not made yet. Safe for
    use by many threads.
    """

    def __init__(self, registry: ResourceRegistry | None = None) -> None:
        self._entered = 0
        self.living = _Living()
        self.entangled: set[_Kind] = set()  # kinds whose making asked for what can be put back
        self.rebind(registry or ResourceRegistry())

    @property
    def is_open(self) -> bool:
        """Whether resources can be asked for."""
        return self._entered > 0

    def get[T](self, kind: Callable[..., T], /) -> T:
        """The resource bound for `kind`.

        Raises `ResourceError`, and `RuntimeError` when the context is not open.
        """
        return _Resolver(self, None).get(kind)

    def rebind(self, registry: ResourceRegistry) -> None:
        """Replaces the registry. Raises `RuntimeError` while the context is open."""
        if self.is_open:
            raise RuntimeError("resources are open; bind them before `with prompt.resources:`")
        self.registry = registry
        self.bound = {one.protocol: one for one in registry.bindings}
        self.all_shared = all(one.scope is Scope.SINGLETON for one in registry.bindings)

    def for_call(self) -> "CallResources":
        """The resources of one tool call, as a context manager."""
        return CallResources(self)

    def fork(self) -> "ForkedResources":
        """As `for_call`, for a call that runs beside others."""
        return ForkedResources(self)

    def __iter__(self) -> Iterator[Snapshotable]:
        if (beside := _beside(self)) is not None:
            beside.refuse("a transaction covers all resources")
        # nothing is left to be made
        if self.all_shared and len(self.living.made) == len(self.bound):
            return iter(self.living.parts[:-1])
        return iter(self.living.parts)

    def __enter__(self) -> Self:
        _at_once(self._enter(waiting=False))
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        before = self._entered
        try:
            taken, interrupt = self._leave()
            _close_now(taken, interrupt or error)
        except BaseException as raised:  # it may have come before anything was counted or closed
            taken = self._leave()[0] if self._entered == before else self.living.taken
            if not self._entered:
                _close_now(taken, raised)
            raise
        if interrupt is not None:
            raise interrupt

    async def __aenter__(self) -> Self:
        await self._enter(waiting=True)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        taken, interrupt = self._leave()
        await _close(taken, interrupt or error, waiting=True)
        if interrupt is not None:
            raise interrupt

    async def _enter(self, *, waiting: bool) -> None:
        before = None
        try:
            with self.living.lock:
                before = self._entered
                self._entered = before + 1
            for binding in () if before else self.registry.bindings:
                if binding.asynchronous and waiting:
                    await self.living.make(binding, _Resolver(self, None, (binding.protocol,)))
            for binding in () if before else self.registry.bindings:
                if binding.eager and not binding.asynchronous:
                    self.get(binding.protocol)
        except BaseException as error:
            if before is not None and self._entered > before:
                await _close(self._leave()[0], error, waiting=waiting)
            raise

    def _leave(self) -> tuple[list[_Made], BaseException | None]:
        """Counts one exit; gives what is to be closed by it, and the interrupt that came meanwhile.

        From then on nothing more is made.
        """
        living, interrupt = self.living, None
        with living.lock:
            left = self._entered - 1
            for _ in range(2):
                try:
                    self._entered = left
                    if not left:
                        living.take(living.taken)
                    break
                except BaseException as error:
                    interrupt = error
        return ([] if left else living.taken), interrupt


class CallResources:
    """The resources of one tool call: `TOOL_CALL` ones of its own, and all that outlive it.

    A context manager that closes its own on exit. Iteration gives what the call's transaction must
    be able to put back.
    """

    def __init__(self, context: ResourceContext) -> None:
        self.context = context
        self.living = _NONE if context.all_shared else _Living()
        self._over = False

    def get[T](self, kind: Callable[..., T], /) -> T:
        """The resource bound for `kind`.

        Raises `ResourceError`, and `RuntimeError` when the context is not open or the call is over.
        """
        if self._over:
            raise RuntimeError(
                f"{_name(kind)} was asked for after the end of the tool call; ask before it returns"
            )
        return _Resolver(self.context, self).get(kind)

    def close(self, error: BaseException | None = None) -> None:
        """Closes the call's own, newest first; `error` is what ended the call."""
        living = self.living
        if living.made:
            living.take(living.taken)
        _close_now(living.taken, error)

    def __iter__(self) -> Iterator[Snapshotable]:
        return (
            iter(self.context)
            if self.living is _NONE
            else iter((*self.context, *self.living.parts))
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self.close(error)
        finally:
            self._over = True


class ForkedResources(CallResources):
    """The resources of a call that runs beside others: a singleton that can be put back is forked,
    or refused.

    While it is entered, the context itself answers with them, too. `refused` says that something
    was, whatever the handler made of the `NotIsolatedError`.
    """

    def __init__(self, context: ResourceContext) -> None:
        super().__init__(context)
        self._forks: dict[int, tuple[Forkable, Any]] = {}
        self.refused = False

    @property
    def forks(self) -> Iterable[tuple[Forkable, Any]]:
        """Each resource that was forked, and its fork."""
        return self._forks.values()

    def refuse(self, why: str) -> NoReturn:
        """Has the call run by itself. Raises `NotIsolatedError`."""
        self.refused = True
        raise NotIsolatedError(why)

    def check(self, kind: _Kind) -> None:
        """Refuses a singleton that cannot be shared."""
        if kind not in self.context.living.values:
            self.refuse(f"{_name(kind)} is not made yet")
        if kind in self.context.entangled:
            self.refuse(f"{_name(kind)} stands on what can be put back")

    def isolated(self, binding: Binding[Any], value: Any) -> Any:
        """`value` as this call may have it."""
        name = _name(binding.protocol)
        if not isinstance(value, Snapshotable):
            return value
        if binding.scope is not Scope.SINGLETON:
            self.refuse(f"{name} can be put back and is not forked")
        with self.living.lock:
            if id(value) not in self._forks:
                if not isinstance(value, Forkable):
                    self.refuse(f"{name} has no fork()")
                try:
                    self._forks[id(value)] = (value, value.fork())
                except Exception as error:
                    self.refuse(f"{name} cannot be forked: {error}")
            return self._forks[id(value)][1]

    def __enter__(self) -> Self:
        self._token: Token[ForkedResources | None] = _BESIDE.set(self)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            _BESIDE.reset(self._token)


_BESIDE: ContextVar[ForkedResources | None] = ContextVar(
    "weakincentives.resources.beside", default=None
)


def _beside(context: ResourceContext) -> ForkedResources | None:
    """The fork of `context` for the call that runs here beside others."""
    fork = _BESIDE.get()
    return fork if fork is not None and fork.context is context else None


class _Resolver:
    """What a provider asks.

    It knows who asked before, so that a resource which needs itself is found out.
    """

    __slots__ = ("_call", "_chain", "_context")

    def __init__(
        self, context: ResourceContext, call: CallResources | None, chain: tuple[_Kind, ...] = ()
    ) -> None:
        self._context = context
        self._call = call
        self._chain = chain

    def get[T](self, kind: Callable[..., T], /) -> T:
        context, call = self._context, self._call or _beside(self._context)
        binding = context.bound.get(kind)
        chain = (*self._chain, kind)
        if not context.is_open:
            raise RuntimeError(
                f"{_path(chain)} was asked for outside of `with prompt.resources:`; enter it first"
            )
        if binding is None:
            known = _names(context.registry.bindings)
            raise ResourceError(
                f"nothing is bound for {_path(chain)}; bound: {known}. Bind it with bind(resources=…)"
            )
        if kind in self._chain:
            raise ResourceError(f"a resource needs itself: {_path(chain)}")
        fork = call if isinstance(call, ForkedResources) else None
        found: T  # what is bound for a type is of that type
        if binding.scope is Scope.SINGLETON:
            if fork is not None:
                fork.check(kind)
            found = context.living.one(binding, _Resolver(context, None, chain))
        elif binding.scope is Scope.PROTOTYPE:
            found = (call or context).living.another(binding, _Resolver(context, call, chain))
        elif call is not None:
            found = call.living.one(binding, _Resolver(context, call, chain))
        else:
            raise ResourceError(
                f"{_path(chain)}: a resource of Scope.TOOL_CALL was asked for outside of a tool call"
            )
        if fork is not None:
            found = fork.isolated(binding, found)
        if self._chain and (kind in context.entangled or isinstance(found, Snapshotable)):
            context.entangled.update(self._chain)
        return found


async def _close(
    taken: list[_Made],
    error: BaseException | None,
    born: dict[_Made, Any] | None = None,
    *,
    waiting: bool = False,
) -> None:
    """Closes what `taken` holds, newest first, and empties it; each is told of `error`.

    What was `born` in a transaction is first put back to what it was then. What fails does not stop
    the rest and is raised at the end; what an interrupt broke off is done once more, unless it
    waits. After an interrupt from elsewhere `taken` holds what is left to be closed.
    """
    raised: BaseException | None = None
    born = {} if born is None else born
    while taken:
        one = taken[-1]
        steps: list[Callable[[], Awaitable[None] | None]] = []
        if one in born:
            steps += [partial(one.value.restore, born[one]), partial(release, one.value, born[one])]
        if one.binding.asynchronous and not waiting:
            _report("A resource outlived its `async with` and stays open", one.binding.protocol)
        else:
            # With the traceback, since the context managers of `contextlib` put back the one that
            # they are told.
            told = raised or error
            reason = (None, None, None) if told is None else (type(told), told, told.__traceback__)
            steps.append(partial(one.leave, *reason))
        for step in steps:
            for last in (one.binding.asynchronous, True):
                try:
                    if (left := step()) is not None:
                        await left
                except BaseException as failure:
                    raised = failure if raised is None or isinstance(raised, Exception) else raised
                    if last or isinstance(failure, Exception):
                        break
                else:
                    break
        born.pop(one, None)
        taken.pop()
    if raised is not None:
        raise raised


def _close_now(
    taken: list[_Made], error: BaseException | None, born: dict[_Made, Any] | None = None
) -> None:
    """As `_close`, without waiting, and to the end whatever interrupts it."""
    while taken:
        try:
            _at_once(_close(taken, error, born))
        finally:
            if taken:  # the interrupt came between two of them
                _at_once(_close(taken, error, born))


def _at_once[T](work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine that waits for nothing gives."""
    try:
        work.send(None)
    except StopIteration as done:
        given: T = done.value
        return given
    raise AssertionError("it waits")


def _report(what: str, kind: _Kind) -> None:
    import logging  # seldom needed, and no prompt does

    logging.getLogger(__name__).error(
        what, exc_info=sys.exception() is not None, extra={"resource": _name(kind)}
    )


def _names(bindings: Iterable[Binding[Any]]) -> str:
    return ", ".join(_name(one.protocol) for one in bindings) or "nothing"


def _path(chain: Iterable[_Kind]) -> str:
    return " → ".join(map(_name, chain))


def _name(kind: _Kind) -> str:
    return getattr(kind, "__name__", repr(kind))
