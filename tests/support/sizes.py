"""How much a test run tries: a part, or all of it with `FULL=yes`, as the gate does once."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest
from hypothesis import is_hypothesis_test, settings

__all__ = ["EXAMPLES", "FULL", "KILLS", "TODAY", "limit_examples", "only_full", "todays"]

FULL = bool(os.environ.get("FULL"))
EXAMPLES = 20
"""The most examples of a law in a run that is not full."""
KILLS = int(os.environ.get("KILLS", "200" if FULL else "20"))
"""How many random moments a law of durable runs kills processes at, over each database."""
TODAY = datetime.now(UTC).toordinal()
"""The number of the day, which chooses what a run that is not full tries."""

only_full = pytest.mark.skipif(not FULL, reason="runs with FULL=yes, as in the gate")
"""For what takes many seconds and is seldom what a change breaks."""


def todays[T](cases: Sequence[T], parts: int = 3) -> Sequence[T]:
    """Returns one part of the cases, each day another one; all of them in a full run."""
    return cases if FULL else cases[TODAY % parts :: parts]


def limit_examples(law: object, machine: type | None = None) -> None:
    """Limits the examples of `law`, if it is one, or of the rule-based test `machine`."""
    if not is_hypothesis_test(law):
        return
    # Hypothesis offers no other way to change the settings of a law once it is defined.
    place, name = getattr(law, "__func__", law), "_hypothesis_internal_use_settings"
    if isinstance(getattr(machine, "settings", None), settings):
        place, name = machine, "settings"
    limits: settings = getattr(place, name, None) or settings()
    setattr(place, name, settings(limits, max_examples=min(limits.max_examples, EXAMPLES)))
