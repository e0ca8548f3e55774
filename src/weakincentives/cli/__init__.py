"""The `wink` command; no other package imports this one."""

from .entry import main

__all__ = ["main"]
