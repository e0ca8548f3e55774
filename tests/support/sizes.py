"""How much a test run tries: a part, or all of it with `FULL=yes`, as the gate does once."""

import os

import pytest
from hypothesis import is_hypothesis_test, settings

__all__ = ["EXAMPLES", "FULL", "limit_examples", "only_full"]

FULL = bool(os.environ.get("FULL"))
EXAMPLES = 20
"""The most examples of a law in a run that is not full."""

only_full = pytest.mark.skipif(not FULL, reason="runs with FULL=yes, as in the gate")
"""For what takes many seconds and is seldom what a change breaks."""


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
