"""Packages whose exports are imported on first use (PEP 562), so that importing them is light."""

from collections.abc import Callable, Mapping
from importlib import import_module

__all__ = ["lazy_exports"]


def lazy_exports(
    namespace: dict[str, object], modules: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` of a package that imports some of its names on first use.

    `namespace` is the `globals()` of the package, and `modules` the module of each name, relative
    to the package. Type checkers must see imports instead of `__getattr__`, or every misspelt name
    would exist for them.
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
