"""The engine: runs the conversation of a prompt with its provider and tools to the end.

`exports` lists the names, which are imported when one of them is first used (PEP 562), since a
module that imports one part of the engine must not load all of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a type checker must not see `__getattr__`, or every misspelt name would exist
    from .exports import *  # noqa: F403 - `exports` lists the names once
else:

    def __getattr__(name: str) -> object:
        exports = import_module(".exports", __name__)
        if name not in exports.__all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(exports, name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *import_module(".exports", __name__).__all__})
