"""W15: the stored log of a run with 1,000 tool calls: the cost of storing it, and of resuming.

The table is a list, so no database is measured. The floor for storing is to write the same entries
as JSON with the standard library; the floor for resuming is to read them.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import median
from time import process_time

from benchmarks.measure import MICRO, SINGLE_ROUND, Row, measure_cpu
from benchmarks.tools import Instant, template
from benchmarks.w3_tool_calls import ARGUMENTS, search
from weakincentives.evaluation.adapter import ExecutionOptions
from weakincentives.evaluation.main_loop import Execution
from weakincentives.evaluation.run import Run
from weakincentives.evaluation.stored_log import NewAttempt, Place, StoredLog
from weakincentives.evaluation.stored_log import Row as Line
from weakincentives.limits import utc_now
from weakincentives.prompt import Prompt
from weakincentives.runtime.session import Session

CALLS = len(ARGUMENTS)
PROMPT = template("search", search)
ADAPTER = Instant("search", ARGUMENTS)


class Lines:
    """A `LogTable` of one run, in a list; `times` contains the CPU time of each append."""

    def __init__(self, rows: Sequence[Line] = ()) -> None:
        self.rows = [*rows]
        self.times: list[float] = []

    def begin(self, run_id: str, version: str) -> NewAttempt:
        return NewAttempt(1, utc_now(), self.rows)

    def append(self, run_id: str, attempt: int, rows: Sequence[Line], *, first: bool) -> None:
        self.times.append(process_time())
        self.rows += rows

    def transact(
        self, name: str, place: Place, perform: Callable[[], bool], append: Callable[[], None]
    ) -> None:
        raise NotImplementedError


def execute(table: Lines | None = None) -> Execution[None]:
    """Executes the run, and stores its log in `table` if given."""
    session = Session()
    options = ExecutionOptions(session=session)
    if table is not None:
        options["sink"] = StoredLog(table, "run", "1", session, ())
    return Run(ADAPTER, Prompt(PROMPT), options, restarts=0).result()


def tenths() -> dict[str, float]:
    """Returns the CPU microseconds of a call in the first tenth of the run and in the last."""
    found: list[list[float]] = []
    for _ in range(1 if SINGLE_ROUND else 5):
        table = Lines()
        execute(table)
        each = len(table.times) // 10
        spans = pairwise(table.times[::each])
        found.append([(after - before) * MICRO / (CALLS / 10) for before, after in spans])
    first, *_, last = map(median, zip(*found, strict=True))
    return {"floor": first, "ours": last}


def rows() -> Iterator[Row]:
    table = Lines()
    whole = execute(table)
    lines = [row.line for row in table.rows]
    cut = table.rows[:-1]  # without the last answer
    assert execute(Lines(cut)) == whole
    values = [json.loads(line) for line in lines]
    costs = measure_cpu(
        {
            "floor": lambda: [json.dumps(value) for value in values],
            "unstored": execute,
            "ours": lambda: execute(Lines()),
        },
        per=len(lines),
    )
    stored = {"floor": costs["floor"], "ours": costs["ours"] - costs["unstored"]}
    yield Row("W15", "an entry of 1,000 calls, stored", "µs", stored, 5, "difference")
    yield Row(
        "W15", "call of the last tenth of 1,000, stored (floor: of the first)", "µs", tenths(), 1.2
    )
    kilobytes = sum(len(line.encode()) for line in lines) / len(lines) / 1e3
    yield Row("W15", "size of an entry", "kB", {"ours": kilobytes}, 1, "value")
    resumed = {
        "floor": lambda: [json.loads(line) for line in lines],
        "ours": lambda: execute(Lines(cut)),
    }
    yield Row(
        "W15", "run resumed after 1,000 calls, per call", "µs", measure_cpu(resumed, per=CALLS), 2
    )
