"""The former name of `run_timeline`; importing it issues a warning."""

from warnings import warn

from .run_timeline import *  # noqa: F403 - `run_timeline` lists the names once

warn(
    "weakincentives.inspection.runs is now weakincentives.inspection.run_timeline; import that",
    DeprecationWarning,
    stacklevel=2,
)
