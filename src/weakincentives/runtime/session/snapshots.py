"""A session's state captured as a value."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from .slices import Log

__all__ = ["SessionSnapshot"]


class SessionSnapshot(NamedTuple):
    """The content of every STATE slice at one moment, as (log, length) pairs; made in O(number of slices)."""

    # Any: a session holds slices of every type.
    slices: Mapping[type[Any], tuple[Log[Any], int]]
    owner: object
    """Stands for the session that goes on appending to these logs; any other one may only build on top of them."""
