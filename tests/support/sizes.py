"""How much a test run tries: a part, or all of it with `FULL=yes`, as the gate does once."""

import os

import pytest

__all__ = ["FULL", "only_full"]

FULL = bool(os.environ.get("FULL"))

only_full = pytest.mark.skipif(not FULL, reason="runs with FULL=yes, as in the gate")
"""For what takes many seconds and is seldom what a change breaks."""
