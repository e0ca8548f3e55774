"""The `wink` command; no other package imports it."""

from .entry import main

__all__ = ["main"]
