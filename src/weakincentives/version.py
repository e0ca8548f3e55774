"""The version of the installed package; a module of its own, since reading package metadata takes
20 ms.
"""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

try:
    __version__ = version("weakincentives")
except PackageNotFoundError:  # the sources are on the path without being installed
    __version__ = "unknown"
