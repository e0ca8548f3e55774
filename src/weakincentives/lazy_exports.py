"""Lets packages import their exports on first use (PEP 562), so that importing them is fast."""

from collections.abc import Callable, Mapping
from importlib import import_module

__all__ = ["lazy_exports"]


def lazy_exports(
    namespace: dict[str, object], modules: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` for a package that imports some names on first use.

    `namespace` is the package's `globals()`, and `modules` maps each name to its module, relative
    to the package. Type checkers must see imports instead of `__getattr__`; otherwise, they would
    accept every misspelt name.
    """
    package = str(namespace["__name__"])

    def find(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = namespace[name] = getattr(import_module(modules[name], package), name)
        return value

    def names() -> list[str]:
        return sorted({*namespace, *modules})

    return find, names
