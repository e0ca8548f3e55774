"""Bindings define how each resource is created; a registry contains one binding per type."""

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ..errors import WeakIncentivesError
from ..protocols import KindOf, Resources
from ..signatures import signature_of

__all__ = [
    "AnyBinding",
    "Bindable",
    "Binding",
    "Kind",
    "NotIsolatedError",
    "ResourceError",
    "ResourceRegistry",
    "Scope",
    "kind_name",
    "kind_names",
]

type Kind = KindOf[Any]  # Any: bindings and resources of all types are mixed
"""The type that a resource is bound to; a callable, to allow protocols and abstract classes."""


class ResourceError(WeakIncentivesError, LookupError):
    """A type is not bound, a resource depends on itself, or its scope forbids the request."""


class NotIsolatedError(BaseException):
    """A parallel call requested a resource that calls cannot share, so the call must run alone.

    It derives from `BaseException`, so that a handler's `except Exception` does not catch it.
    """


class Scope(Enum):
    """How long a resource lives: while the context is open, for one tool call, or for one `get`.

    A `PROTOTYPE` is closed when the context or tool call that requested it ends.
    """

    SINGLETON = "singleton"
    TOOL_CALL = "tool_call"
    PROTOTYPE = "prototype"


@dataclass(frozen=True, slots=True)
class Binding[T]:
    """Defines how to create one resource: `Binding(Clock, lambda resources: SystemClock())`.

    The provider can request other resources from `resources`. When the scope ends, the container
    calls the resource's `close()`. If the resource is a context manager without `close()`, the
    container enters it when it is created and exits it when the scope ends. An `async def` provider
    runs when `async with` enters the context. To end its resource, the container uses the first of
    these that exists: `aclose()`, the exit of an asynchronous context manager, or a plain or
    `async` `close()`. `eager` singletons are created on entry, all others by the first `get`. A
    resource that is not `owned` is never closed.

    Raises `ValueError` for an eager or asynchronous binding whose scope is not `SINGLETON`, and for
    a provider that does not accept exactly one argument. Raises `TypeError` if the scope is not a
    `Scope` or the kind is not a type.
    """

    protocol: KindOf[T]
    provider: Callable[[Resources], T | Awaitable[T]]
    scope: Scope = field(default=Scope.SINGLETON, kw_only=True)
    eager: bool = field(default=False, kw_only=True)
    owned: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        if not callable(self.protocol):
            raise TypeError(
                f"a binding must be for a type, got {self.protocol!r}; use the type that handlers "
                "request"
            )
        name = kind_name(self.protocol)
        if not isinstance(self.scope, Scope):
            raise TypeError(
                f"the scope of the binding of {name} must be Scope.SINGLETON, .TOOL_CALL or "
                f".PROTOTYPE, got {self.scope!r}"
            )
        if self.scope is not Scope.SINGLETON and (self.eager or self.asynchronous):
            option = "an async provider" if self.asynchronous else "eager=True"
            raise ValueError(
                f"the binding of {name} cannot have {option} with {self.scope}; use Scope.SINGLETON"
            )
        try:
            signature_of(self.provider).bind(None)
        except TypeError as error:
            raise ValueError(
                f"cannot call the provider of {name} with the resources ({error}); write it as "
                "lambda resources: …"
            ) from error
        except ValueError:  # a built-in without a signature
            pass

    @classmethod
    def instance(cls, protocol: KindOf[T], value: T) -> "Binding[T]":
        """Binds a value that the application owns; the value is neither entered nor closed.

        Transactions can restore the value from the start, even if no call requests it. Raises
        `TypeError` if `value` is a binding.
        """
        if isinstance(value, Binding):
            raise TypeError(
                f"the value for {kind_name(protocol)} must not be a Binding; pass the binding to "
                "ResourceRegistry.of(Binding(…))"
            )
        return cls(protocol, lambda _: value, eager=True, owned=False)

    @property
    def asynchronous(self) -> bool:
        """Whether the provider must be awaited."""
        return inspect.iscoroutinefunction(self.provider)


type AnyBinding = Binding[Any]  # Any: a registry binds resources of all types


@dataclass(frozen=True, slots=True, repr=False)
class ResourceRegistry:
    """Immutable bindings by type. `first | second` combines both; for equal types, `second` wins.

    `second` can also be a mapping from types to values that the application owns. Raises
    `TypeError` unless the bindings are a tuple of `Binding` objects.
    """

    bindings: tuple[AnyBinding, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.bindings, tuple) or not all(
            isinstance(binding, Binding) for binding in self.bindings
        ):
            raise TypeError(
                f"ResourceRegistry takes bindings, got {self.bindings!r}; write "
                "ResourceRegistry.of(Binding(Type, provider), …), or ResourceRegistry() | "
                f"{{Type: value}}"
            )

    @classmethod
    def of(cls, *bindings: AnyBinding) -> "ResourceRegistry":
        """Returns a registry with these bindings; raises `ValueError` if two have the same type."""
        registry = cls(bindings)
        kinds: set[Kind] = set()
        for binding in bindings:
            if binding.protocol in kinds:
                raise ValueError(
                    f"{kind_name(binding.protocol)} is bound twice; remove one of the bindings"
                )
            kinds.add(binding.protocol)
        return registry

    def __or__(self, other: "Bindable") -> "ResourceRegistry":
        if isinstance(other, ResourceRegistry):
            added = other.bindings
        elif isinstance(other, Mapping):
            added = tuple([Binding.instance(kind, value) for kind, value in other.items()])
        else:
            raise TypeError(
                f"resources must be {{Type: value}} or ResourceRegistry.of(…), got {other!r}"
            )
        by_kind = {binding.protocol: binding for binding in (*self.bindings, *added)}
        return ResourceRegistry(tuple(by_kind.values()))

    def __bool__(self) -> bool:
        return bool(self.bindings)

    def __repr__(self) -> str:
        return f"<ResourceRegistry of {kind_names(self.bindings)}>"


type Bindable = ResourceRegistry | Mapping[Kind, object]
"""The resources to bind: a registry, or values by type."""


def kind_name(kind: Kind) -> str:
    """Returns a type's name for use in messages."""
    return getattr(kind, "__name__", repr(kind))


def kind_names(bindings: Iterable[AnyBinding]) -> str:
    """Returns the names of the bound types for use in messages."""
    return ", ".join(kind_name(binding.protocol) for binding in bindings) or "nothing"
