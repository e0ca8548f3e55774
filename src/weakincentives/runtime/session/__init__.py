"""Sessions: typed slices of state, reducers and snapshots."""

from .reducers import Reducer, append_all, reducer, replace_latest, replace_latest_by, upsert_by
from .session import Session, Slice
from .slices import Append, Replace, SliceOp, SlicePolicy
from .snapshots import SessionSnapshot

__all__ = [
    "Append",
    "Reducer",
    "Replace",
    "Session",
    "SessionSnapshot",
    "Slice",
    "SliceOp",
    "SlicePolicy",
    "append_all",
    "reducer",
    "replace_latest",
    "replace_latest_by",
    "upsert_by",
]
