"""Sessions: typed slices of state, reducers and snapshots."""

from ...protocols import StateSlice, StateView
from .reducers import append_all, reducer, replace_latest, replace_latest_by, upsert_by
from .session import Session
from .slices import Append, Reducer, Replace, Slice, SliceOp
from .snapshots import SessionSnapshot, state

__all__ = [
    "Append",
    "Reducer",
    "Replace",
    "Session",
    "SessionSnapshot",
    "Slice",
    "SliceOp",
    "StateSlice",
    "StateView",
    "append_all",
    "reducer",
    "replace_latest",
    "replace_latest_by",
    "state",
    "upsert_by",
]
