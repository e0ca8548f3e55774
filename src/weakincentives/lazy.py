"""Doors whose names are imported when they are first asked for (PEP 562), so that opening the door
costs nothing.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module

__all__ = ["door"]


def door(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of the package; `homes` has, by relative module, its names with
    blanks between.
    """
    home = {name: module for module, names in homes.items() for name in names.split()}

    def find(name: str) -> object:
        module = sys.modules[package]
        if name not in home:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}", name=name, obj=module
            )
        value = getattr(import_module(home[name], package), name)
        setattr(module, name, value)  # so that it is asked for once
        return value

    return find, lambda: sorted({*vars(sys.modules[package]), *home})
