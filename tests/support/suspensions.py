"""Suspensions that somebody has changed."""

from dataclasses import replace

from weakincentives.evaluation.approval import Preview
from weakincentives.evaluation.logged_run import Asked, LoggedEntry
from weakincentives.evaluation.suspension import Suspension


def showing(suspension: Suspension, *previews: Preview) -> Suspension:
    """Returns the suspension of a run that has asked for these calls, in place of its own."""
    asked = [entry for entry in suspension.log.entries if isinstance(entry, Asked)]
    others: list[LoggedEntry] = [
        entry for entry in suspension.log.entries if not isinstance(entry, Asked)
    ]
    shown = [
        replace(entry, preview=preview) for entry, preview in zip(asked, previews, strict=True)
    ]
    return replace(suspension, log=replace(suspension.log, entries=(*others, *shown)))
