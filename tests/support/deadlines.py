"""Time limits for tests that do not fail on slow machines.

def attempt(seconds: float) -> DeadlineExceededError | None:
    with ScriptedServer(Raw(b"{}", delay=NEVER), strict=False) as server:
        with pytest.raises(DeadlineExceededError) as caught:
            adapter.evaluate(prompt(), session=Session(), deadline=Deadline.after(seconds))
    return caught.value if server.requests else None

error = with_growing_limit(attempt)
"""

from collections.abc import Callable
from time import monotonic

__all__ = ["NEVER", "SOON", "with_growing_limit"]

SOON = 60.0
"""Seconds within which anything happens that is not waiting for something else."""

NEVER = 600.0
"""Seconds that no test waits: something that takes this long never happens."""


def with_growing_limit[T](attempt: Callable[[float], T | None], seconds: float = 0.5) -> T:
    """Returns the first result of `attempt` that is not `None`.

    `attempt` takes a number of seconds, after which a limit ends its run. If the run did not reach
    the tested step in time, `attempt` returns `None` and is called again with twice the seconds.
    It must end soon after its limit.
    """
    while True:
        started = monotonic()
        result = attempt(seconds)
        assert monotonic() - started < seconds + SOON, "it does not end at its limit"
        if result is not None:
            return result
        assert seconds < SOON / 2, "it does not come so far before its limit"
        seconds *= 2
