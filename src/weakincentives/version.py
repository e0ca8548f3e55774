"""The library's version, which the build reads from this module."""

__all__ = ["__version__"]

__version__ = "0.3.0"
