"""W4b: session snapshots, including JSON. W5: a tool call's transaction, without its handler."""

import json
from collections.abc import Iterator

from benchmarks.measure import Row, measure_cpu
from benchmarks.w4_session import NOTE, SIZES, Note, measure_repeated, session_with
from benchmarks.w7_serde import TEXT, Line, parse_lines
from weakincentives.resources import Binding, ResourceContext, ResourceRegistry
from weakincentives.runtime.session import Session
from weakincentives.runtime.session.slices import read
from weakincentives.runtime.transactions import tool_transaction

COPIES = (1, 10)  # of W7's thousand rows


class Counter:
    """A resource that can be rolled back."""

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
        costs = measure_repeated(ours=operation)
        yield Row("W4b", f"{case}, n = {size}", "µs", costs, 2, "value")
    session.dispatch(NOTE)
    session.restore(captured)
    assert len(session[Note]) == size


def as_json(copies: int) -> Iterator[Row]:
    session, rows = Session(), json.loads(TEXT) * copies
    session[Line].seed(*parse_lines() * copies)
    text, plain, size = session.snapshot().to_json(), json.dumps(rows), len(rows)
    assert read(session.parse_snapshot(text).slices[Line]) == list(session[Line])
    costs = measure_cpu(
        {"floor": lambda: json.dumps(rows), "ours": lambda: session.snapshot().to_json()}, per=1
    )
    yield Row("W4b", f"to JSON, n = {size} (floor: json)", "µs", costs, 1.5)
    costs = measure_cpu(
        {"floor": lambda: json.loads(plain), "ours": lambda: session.parse_snapshot(text)}, per=1
    )
    yield Row("W4b", f"from JSON, n = {size} (floor: json)", "µs", costs, 2.5)


def transactions(size: int) -> Iterator[Row]:
    registry = ResourceRegistry.of(Binding(Counter, lambda _: Counter(), eager=True))
    with ResourceContext() as empty, ResourceContext(registry) as counting:
        for resources, label in ((empty, ""), (counting, " and a resource")):
            yield from transactions_over(size, resources, label)


def transactions_over(size: int, resources: ResourceContext, label: str) -> Iterator[Row]:
    session, bare = session_with(size), session_with(size)

    def commit() -> None:
        with tool_transaction(session, resources):
            session.dispatch(NOTE)

    def rollback() -> None:
        with tool_transaction(session, resources) as transaction:
            session.dispatch(NOTE)
            transaction.rollback()

    for run, target in ((rollback, 5), (commit, 3)):
        costs = measure_repeated(floor=lambda: bare.dispatch(NOTE), ours=run)
        case = f"{run.__name__}, n = {size}{label} (floor: the handler)"
        yield Row("W5", case, "µs", costs, target, "difference")
        assert (len(session[Note]) == size) is (run is rollback)
