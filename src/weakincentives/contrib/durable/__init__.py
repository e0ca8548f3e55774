"""Runs that survive a crash."""

from .engine import DurableRun, DurableRuns, SqliteConnection, install
from .failover import WorkerFailover
from .journal import (
    DurableAgent,
    RecordedSteps,
    ReplayError,
    StepFailedError,
    Steps,
    durable,
    execute_run,
    to_input,
)

__all__ = [
    "DurableAgent",
    "DurableRun",
    "DurableRuns",
    "RecordedSteps",
    "ReplayError",
    "SqliteConnection",
    "StepFailedError",
    "Steps",
    "WorkerFailover",
    "durable",
    "execute_run",
    "install",
    "to_input",
]
