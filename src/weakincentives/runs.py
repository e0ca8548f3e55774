"""The error for a second concurrent run; `locks` determines which runs may use a session."""

from .locks import ConcurrentRunError

__all__ = ["ConcurrentRunError"]
