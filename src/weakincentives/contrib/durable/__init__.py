"""Runs that survive a crash."""

from .engine import DurableRun, DurableRuns, install
from .execution import execute_run, to_input, to_resumed
from .failover import WorkerFailover
from .journal import (
    DurableAgent,
    RecordedSteps,
    ReplayError,
    StepFailedError,
    Steps,
    durable,
)
from .sqlite import SqliteConnection
from .waiting import WaitingRun, WaitingRuns, WaitingRunsError, open_waiting_runs

__all__ = [
    "DurableAgent",
    "DurableRun",
    "DurableRuns",
    "RecordedSteps",
    "ReplayError",
    "SqliteConnection",
    "StepFailedError",
    "Steps",
    "WaitingRun",
    "WaitingRuns",
    "WaitingRunsError",
    "WorkerFailover",
    "durable",
    "execute_run",
    "install",
    "open_waiting_runs",
    "to_input",
    "to_resumed",
]
