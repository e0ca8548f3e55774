"""`Tool[Params, Result](…)` means `Tool(…, params_type=Params, result_type=Result)`.

A generic class that inherits from `Parametrized` lists, in `type_fields`, the keyword arguments for
its type parameters. Subscripting the class returns a `Specialisation`. Calling the specialisation
passes the types to the constructor; inheriting from it stores them in the subclass's
`inherited_arguments`. No class is created at run time: instances, equality and pickles are the same
as for the plain class. (`typing.Generic` sets `__orig_class__` on the instance, which fails for
frozen slotted dataclasses on CPython 3.12.1.)
"""

from types import GenericAlias
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

__all__ = ["Parametrized", "Specialisation"]

type AnyClass = Any  # Any: GenericAlias does not know the type of the subscripted class


class Specialisation(GenericAlias):
    """A subscripted `Parametrized` class, such as `Tool[Params, Result]`."""

    def __call__(self, *args: object, **kwargs: object) -> object:
        origin: AnyClass = self.__origin__
        return origin(*args, **{**_keyword_arguments(self), **kwargs})

    def __getitem__(self, item: object) -> "Specialisation":
        origin: AnyClass = self.__origin__
        return Specialisation(origin, super().__getitem__(item).__args__)


def _keyword_arguments(alias: GenericAlias) -> dict[str, object]:
    """Returns the types of `alias` by their names in `type_fields`, except type variables."""
    origin: AnyClass = alias.__origin__
    pairs = zip(origin.type_fields, alias.__args__, strict=False)
    return {name: kind for name, kind in pairs if name and not isinstance(kind, TypeVar)}


class Parametrized:
    """Base class of generic classes whose constructors take their type arguments as keywords."""

    __slots__ = ()

    type_fields: ClassVar[tuple[str, ...]] = ()
    # Any: types, which constructors use as defaults
    inherited_arguments: ClassVar[dict[str, Any]] = {}

    if not TYPE_CHECKING:  # type checkers read the class's own type parameters instead

        def __class_getitem__(cls, item):
            return Specialisation(cls, item)

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        for base in cls.__dict__.get("__orig_bases__", ()):
            if isinstance(base, Specialisation):
                cls.inherited_arguments = {**cls.inherited_arguments, **_keyword_arguments(base)}
                # A subclass has its own type parameters, in its own order.
                origin: AnyClass = base.__origin__
                parameters: tuple[object, ...] = getattr(cls, "__parameters__", ())
                names = dict(zip(base.__args__, origin.type_fields, strict=False))
                cls.type_fields = tuple(names.get(parameter, "") for parameter in parameters)
