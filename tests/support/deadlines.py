"""Limits of time for tests, which fail on no machine because it is slow.

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
"""Seconds within which anything happens that does not wait for something else."""

NEVER = 600.0
"""Seconds that no test waits: what comes after them counts as not coming."""


def with_growing_limit[T](attempt: Callable[[float], T | None], seconds: float = 0.5) -> T:
    """Returns what `attempt` returns, once it is not `None`.

    `attempt` takes the seconds after which a limit ends what it runs, and returns `None` if that
    was before the run came to what the test is about. It is called again with twice the seconds
    then. It must end soon after its limit.
    """
    while True:
        started = monotonic()
        result = attempt(seconds)
        assert monotonic() - started < seconds + SOON, "it does not end at its limit"
        if result is not None:
            return result
        assert seconds < SOON / 2, "it does not come so far before its limit"
        seconds *= 2
