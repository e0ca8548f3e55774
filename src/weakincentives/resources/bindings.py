"""Bindings define how each resource is created; a registry has one binding for each type."""

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
"""The type by which a resource is bound; a callable, so that it may be abstract or a protocol."""


class ResourceError(WeakIncentivesError, LookupError):
    """A type has no binding, a resource depends on itself, or its scope forbids the request."""


class NotIsolatedError(BaseException):
    """A parallel call requested a resource that calls cannot share, so it must run by itself.

    It derives from `BaseException`, so that `except Exception` of a handler does not catch it.
    """


class Scope(Enum):
    """How long a resource lives: while the context is open, for one tool call, or for one `get`.

    The context or the tool call that asked for a `PROTOTYPE` closes it at its own end.
    """

    SINGLETON = "singleton"
    TOOL_CALL = "tool_call"
    PROTOTYPE = "prototype"


@dataclass(frozen=True, slots=True)
class Binding[T]:
    """Defines how to create one resource: `Binding(Clock, lambda resources: SystemClock())`.

    The provider may ask `resources` for others. At the end of the scope the container calls the
    resource's `close()`; it enters a context manager without `close()` at its creation and leaves
    it at the end. An `async def` provider runs when `async with` enters the context; for its
    resource the container tries `aclose()`, then leaving the asynchronous context manager, then a
    plain or `async` `close()`. It creates `eager` singletons on entry and others at the first
    `get`. It never closes a resource that is not `owned`.

    Raises `ValueError` for an eager or asynchronous binding of another scope than `SINGLETON` and
    for a provider that does not take one argument; `TypeError` if the scope is not a `Scope`, and
    for a kind that is not a type.
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
        """Returns a binding of a value that the application owns; it is neither entered nor closed.

        Transactions restore the value from the start on, even if no call asks for it. Raises
        `TypeError` when `value` is a binding.
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
    """Immutable bindings by type. `first | second` contains both, and `second` wins for a type.

    `second` may also map types to values that the application owns. Raises `TypeError` for anything
    but a tuple of bindings.
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
        """Returns the registry of these bindings; raises `ValueError` if two have one type."""
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
"""What can be bound: a registry, or values by type."""


def kind_name(kind: Kind) -> str:
    """Returns the name of a type for messages."""
    return getattr(kind, "__name__", repr(kind))


def kind_names(bindings: Iterable[AnyBinding]) -> str:
    """Returns the names of the bound types for messages."""
    return ", ".join(kind_name(binding.protocol) for binding in bindings) or "nothing"
