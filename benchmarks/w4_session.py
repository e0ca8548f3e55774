"""W4: dispatching into a slice that is already long."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.measure import Row, measure_cpu
from weakincentives.runtime.session import Session

SIZES = (0, 1_000, 100_000)
OPERATIONS = range(100)


@dataclass(frozen=True)
class Note:
    text: str


NOTE = Note("a note")


def session_with(size: int) -> Session:
    session = Session()
    session[Note].seed(*[NOTE] * size)
    assert len(session[Note]) == size
    return session


def repeat(operation: Callable[[], object]) -> Callable[[], None]:
    """Returns a candidate that takes long enough to be timed."""

    def run() -> None:
        for _ in OPERATIONS:
            operation()

    return run


def measure_repeated(**operations: Callable[[], object]) -> dict[str, float]:
    candidates = {name: repeat(operation) for name, operation in operations.items()}
    return measure_cpu(candidates, per=len(OPERATIONS))


def rows() -> Iterator[Row]:
    for size in SIZES:
        yield from rows_at(size)


def rows_at(size: int) -> Iterator[Row]:
    session, plain = session_with(size), {Note: [NOTE] * size}
    plain[Note].append(NOTE)
    session.dispatch(NOTE)

    def latest() -> Note | None:
        return session[Note].latest()

    assert latest() is plain[Note][-1]
    costs = measure_repeated(floor=lambda: plain[Note][-1], ours=latest)
    yield Row("W4", f"latest, n = {size}", "µs", costs, 8)
    costs = measure_repeated(
        floor=lambda: plain[Note].append(NOTE), ours=lambda: session.dispatch(NOTE)
    )
    yield Row("W4", f"dispatch, n = {size}", "µs", costs, 40)
