"""W4b: snapshot and restore of a session. W5: a tool call as a transaction, over its handler's own cost."""

from collections.abc import Iterator

from benchmarks.measure import Row
from benchmarks.w4_session import NOTE, SIZES, Note, compared, session_with
from weakincentives.runtime.transactions import tool_transaction


def rows() -> Iterator[Row]:
    for size in SIZES:
        yield from snapshots(size)
    for size in SIZES:
        yield from transactions(size)


def snapshots(size: int) -> Iterator[Row]:
    session = session_with(size)
    captured = session.snapshot()
    for case, operation in {"snapshot": session.snapshot, "restore": lambda: session.restore(captured)}.items():
        took = compared(ours=operation)
        yield Row(workload="W4b", case=f"{case}, n = {size}", unit="µs", target=2, judged="value", took=took)
    session.dispatch(NOTE)
    session.restore(captured)
    assert len(session[Note]) == size


def transactions(size: int) -> Iterator[Row]:
    session, bare = session_with(size), session_with(size)

    def commit() -> None:
        with tool_transaction(session):
            session.dispatch(NOTE)

    def rollback() -> None:
        with tool_transaction(session) as transaction:
            session.dispatch(NOTE)
            transaction.rollback()

    for run, target in ((rollback, 5), (commit, 3)):
        took = compared(floor=lambda: bare.dispatch(NOTE), ours=run)
        case = f"{run.__name__}, n = {size} (floor: the handler)"
        yield Row(workload="W5", case=case, unit="µs", target=target, judged="difference", took=took)
        assert (len(session[Note]) == size) is (run is rollback)
