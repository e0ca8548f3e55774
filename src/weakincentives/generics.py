"""`Thing[A, B](…)` as sugar for `Thing(…, first=A, second=B)`; no class is made at run time.

A generic class that inherits `Parametrized` lists in `type_fields` the keyword arguments that its
type arguments stand for. Subscripting gives a `Specialisation`: call it to build, inherit from it
to fix the arguments for a subclass. Identity, equality, pickling and `dataclasses.replace` stay
those of the plain class, on CPython 3.12.1 too, where stock `Generic` cannot build frozen slotted
dataclasses through a subscript.
"""

from types import GenericAlias
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

__all__ = ["Parametrized", "Specialisation"]


class Specialisation(GenericAlias):
    """A subscripted `Parametrized` class, such as `Tool[Params, Result]`."""

    def __call__(self, *args: object, **kwargs: object) -> object:
        # Any: GenericAlias does not say which class it was made from.
        origin: Any = self.__origin__
        return origin(*args, **{**known_arguments(self), **kwargs})

    def __getitem__(self, item: object) -> "Specialisation":
        origin: Any = self.__origin__  # Any: as above
        return Specialisation(origin, super().__getitem__(item).__args__)


def known_arguments(alias: GenericAlias) -> dict[str, object]:
    """The keyword arguments that `alias` stands for; type variables say nothing yet and are left
    out.
    """
    # Any: as in `Specialisation.__call__`.
    origin: Any = alias.__origin__
    pairs = zip(origin.type_fields, alias.__args__, strict=False)
    return {
        name: argument for name, argument in pairs if name and not isinstance(argument, TypeVar)
    }


class Parametrized:
    """Base of the generic classes whose type arguments are known at run time."""

    __slots__ = ()

    type_fields: ClassVar[tuple[str, ...]] = ()
    # Any: types; a constructor takes them for what was not given
    inherited_arguments: ClassVar[dict[str, Any]] = {}

    if not TYPE_CHECKING:  # type checkers read the class's own type parameters instead

        def __class_getitem__(cls, item):
            return Specialisation(cls, item)

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        for base in cls.__dict__.get("__orig_bases__", ()):
            if isinstance(base, Specialisation):
                cls.inherited_arguments = {**cls.inherited_arguments, **known_arguments(base)}
                # Any: as in `Specialisation.__call__`. A subclass has type parameters of its own,
                # in its own order.
                origin: Any = base.__origin__
                parameters: tuple[object, ...] = getattr(cls, "__parameters__", ())
                names = dict(zip(base.__args__, origin.type_fields, strict=False))
                cls.type_fields = tuple(names.get(parameter, "") for parameter in parameters)
