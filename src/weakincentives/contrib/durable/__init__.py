"""Runs that survive a crash."""

from ...evaluation.stored_log import MemoryLogTable
from .agent import DurableAgent, durable
from .database import SqliteConnection
from .engine import DurableRun, DurableRuns, install
from .execution import execute_run, execute_run_async, to_input, to_resumed
from .failover import WorkerFailover
from .waiting import (
    StoredRun,
    WaitingRun,
    WaitingRuns,
    WaitingRunsError,
    create_tables,
    open_waiting_runs,
)

__all__ = [
    "DurableAgent",
    "DurableRun",
    "DurableRuns",
    "MemoryLogTable",
    "SqliteConnection",
    "StoredRun",
    "WaitingRun",
    "WaitingRuns",
    "WaitingRunsError",
    "WorkerFailover",
    "create_tables",
    "durable",
    "execute_run",
    "execute_run_async",
    "install",
    "open_waiting_runs",
    "to_input",
    "to_resumed",
]
