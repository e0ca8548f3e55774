"""How much a test run covers: a part, or everything with `FULL=yes`, as the gate does once."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import is_hypothesis_test, settings

__all__ = ["EXAMPLES", "FULL", "KILLS", "TODAY", "limit_examples", "only_full", "todays"]

FULL = bool(os.environ.get("FULL"))
EXAMPLES = 20
"""The most examples of a law in a partial run."""
KILLS = int(os.environ.get("KILLS", "200" if FULL else "20"))
"""The number of random moments at which a law of durable runs kills processes, per database."""
TODAY = datetime.now(UTC).toordinal()
"""The number of the day, which chooses the cases of a partial run."""

only_full = pytest.mark.skipif(not FULL, reason="runs with FULL=yes, as in the gate")
"""Marks tests that take many seconds and seldom find a bug."""


def todays[T](cases: Sequence[T], parts: int = 3) -> Sequence[T]:
    """Returns a part of the cases, a different one each day; in a full run, all of them."""
    return cases if FULL else cases[TODAY % parts :: parts]


def limit_examples(law: object, machine: type | None = None) -> None:
    """Limits the examples of `law`, if it is a Hypothesis test, or of a state machine."""
    if not is_hypothesis_test(law):
        return
    # Hypothesis has no other way to change the settings of a law that is defined.
    place, name = getattr(law, "__func__", law), "_hypothesis_internal_use_settings"
    if isinstance(getattr(machine, "settings", None), settings):
        place, name = machine, "settings"
    limits: settings = getattr(place, name, None) or settings()
    setattr(place, name, settings(limits, max_examples=min(limits.max_examples, EXAMPLES)))
