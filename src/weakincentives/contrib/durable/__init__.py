"""The door to runs that survive a crash."""

from .engine import DurableRun, DurableRuns, SqliteConnection, install
from .journal import DurableAgent, RecordedSteps, ReplayError, StepFailedError, Steps, durable, perform, to_input
from .takeover import Takeover

__all__ = [
    "DurableAgent",
    "DurableRun",
    "DurableRuns",
    "RecordedSteps",
    "ReplayError",
    "SqliteConnection",
    "StepFailedError",
    "Steps",
    "Takeover",
    "durable",
    "install",
    "perform",
    "to_input",
]
