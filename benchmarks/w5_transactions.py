"""W4b: snapshot and restore of a session; as JSON. W5: a tool call as a transaction, over its
handler's own cost.
"""

import json
from collections.abc import Iterator

from benchmarks.measure import Row, interleaved
from benchmarks.w4_session import NOTE, SIZES, Note, compared, session_with
from benchmarks.w7_serde import TEXT, Line, parsed
from weakincentives.resources import Binding, ResourceContext, ResourceRegistry
from weakincentives.runtime.session import Session
from weakincentives.runtime.session.slices import read
from weakincentives.runtime.transactions import tool_transaction

COPIES = (1, 10)  # of W7's thousand rows


class Counter:
    """A resource that is put back."""

    count = 0

    def snapshot(self) -> int:
        return self.count

    def restore(self, snapshot: int, /) -> None:
        self.count = snapshot


def rows() -> Iterator[Row]:
    for size in SIZES:
        yield from snapshots(size)
    for copies in COPIES:
        yield from as_json(copies)
    for size in SIZES:
        yield from transactions(size)


def snapshots(size: int) -> Iterator[Row]:
    session = session_with(size)
    captured = session.snapshot()
    for case, operation in {
        "snapshot": session.snapshot,
        "restore": lambda: session.restore(captured),
    }.items():
        took = compared(ours=operation)
        yield Row(
            workload="W4b",
            case=f"{case}, n = {size}",
            unit="µs",
            target=2,
            judged="value",
            took=took,
        )
    session.dispatch(NOTE)
    session.restore(captured)
    assert len(session[Note]) == size


def as_json(copies: int) -> Iterator[Row]:
    session, rows = Session(), json.loads(TEXT) * copies
    session[Line].seed(*parsed() * copies)
    text, plain, size = session.snapshot().to_json(), json.dumps(rows), len(rows)
    assert read(session.parse_snapshot(text).slices[Line]) == list(session[Line])
    took = interleaved(
        {"floor": lambda: json.dumps(rows), "ours": lambda: session.snapshot().to_json()}, per=1
    )
    yield Row(
        workload="W4b", case=f"to JSON, n = {size} (floor: json)", unit="µs", target=1.5, took=took
    )
    took = interleaved(
        {"floor": lambda: json.loads(plain), "ours": lambda: session.parse_snapshot(text)}, per=1
    )
    yield Row(
        workload="W4b",
        case=f"from JSON, n = {size} (floor: json)",
        unit="µs",
        target=2.5,
        took=took,
    )


def transactions(size: int) -> Iterator[Row]:
    registry = ResourceRegistry.of(Binding(Counter, lambda _: Counter(), eager=True))
    with ResourceContext() as none, ResourceContext(registry) as one:
        for resources, told in ((none, ""), (one, " and a resource")):
            yield from transactions_over(size, resources, told)


def transactions_over(size: int, resources: ResourceContext, told: str) -> Iterator[Row]:
    session, bare = session_with(size), session_with(size)

    def commit() -> None:
        with tool_transaction(session, resources):
            session.dispatch(NOTE)

    def rollback() -> None:
        with tool_transaction(session, resources) as transaction:
            session.dispatch(NOTE)
            transaction.rollback()

    for run, target in ((rollback, 5), (commit, 3)):
        took = compared(floor=lambda: bare.dispatch(NOTE), ours=run)
        case = f"{run.__name__}, n = {size}{told} (floor: the handler)"
        yield Row(
            workload="W5", case=case, unit="µs", target=target, judged="difference", took=took
        )
        assert (len(session[Note]) == size) is (run is rollback)
