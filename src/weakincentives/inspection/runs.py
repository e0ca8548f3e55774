"""The former name of `run_timeline`; importing it issues a warning."""

from warnings import warn

from .run_timeline import (
    NO_END,
    Line,
    LoggedRun,
    RunEvaluation,
    RunSection,
    RunStep,
    RunTurn,
    is_inside,
    read_run,
)

__all__ = [
    "NO_END",
    "Line",
    "LoggedRun",
    "RunEvaluation",
    "RunSection",
    "RunStep",
    "RunTurn",
    "is_inside",
    "read_run",
]

warn(
    "weakincentives.inspection.runs is now weakincentives.inspection.run_timeline; import that",
    DeprecationWarning,
    stacklevel=2,
)
