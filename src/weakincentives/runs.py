"""The error of a second run at once; `locks` decides which runs may use a session."""

from .locks import ConcurrentRunError

__all__ = ["ConcurrentRunError"]
