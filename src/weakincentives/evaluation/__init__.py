"""The engine runs the conversation between a prompt, its provider and its tools.

`exports` lists the public names. They are imported on first use (PEP 562), so a module that imports
one part of the engine does not load all of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # hide `__getattr__` from type checkers: it would accept misspelt names
    from .exports import *  # noqa: F403 - `exports` lists the names once
else:

    def __getattr__(name: str) -> object:
        exports = import_module(".exports", __name__)
        if name not in ("__all__", *exports.__all__):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(exports, name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *import_module(".exports", __name__).__all__})
