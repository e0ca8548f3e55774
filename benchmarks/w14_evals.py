"""W14: 2,000 cases with a provider without latency, 16 at once: what evals add to their runs.

The floor is the same runs, each with its log in a file. Memory is the peak beyond the cases.
"""

import asyncio
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks.measure import SINGLE_ROUND, Row, measure_cpu
from benchmarks.tools import Instant
from weakincentives import MainLoop
from weakincentives.evals import Case, EvalRun, evaluate
from weakincentives.evals.run_logs import RunFile, RunSink
from weakincentives.prompt import MarkdownSection, PromptTemplate
from weakincentives.runtime.session import Session

CASES = 100 if SINGLE_ROUND else 2_000
WORKERS = 16
CALLS = 5


@dataclass(frozen=True)
class Question:
    text: str


def find_order(order_id: str) -> str:
    """Looks up an order."""
    return f"order {order_id}"


section = MarkdownSection[Question](title="Question", template="$text", tools=[find_order])
template = PromptTemplate(ns="bench", key="evals", sections=[section])
model = Instant("find_order", ['{"order_id": "7"}'] * CALLS)


def cases(count: int) -> list[Case]:
    return [
        Case(id=str(number), params=(Question(f"Where is order {number}?"),), expected="done")
        for number in range(count)
    ]


def is_done(case: Case, run: EvalRun) -> bool:
    return bool(run.text == case.expected)


def run_alone(given: list[Case]) -> None:
    """Performs the runs without an experiment."""

    async def main(folder: Path) -> None:
        left = iter(given)

        async def work() -> None:
            for case in left:
                path = f"{folder}/{case.id}.jsonl"
                with RunFile(path, {"case": case.id}) as file:
                    file.open()
                    session, prompt = Session(), template.bind(*case.params)
                    prompt.declare_state(session)
                    sink = RunSink(file, case.id, "", session, ())
                    await MainLoop(model).execute_async(prompt, session=session, sink=sink)

        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(work())

    with TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))


def run_experiment(given: list[Case], folder: str = "") -> None:
    """Performs the runs of an experiment, and scores them."""
    with TemporaryDirectory() as temporary:
        experiment = evaluate(
            template,
            given,
            evaluators=[is_done],
            model=model,
            concurrency=WORKERS,
            folder=folder or temporary,
        )
    assert experiment["base"].summary("is_done").mean == 1


def peak(count: int) -> float:
    """Returns the megabytes at the peak of an experiment, beyond the cases."""
    given = cases(count)
    tracemalloc.start()
    run_experiment(given)
    megabytes = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    return megabytes


def rows() -> Iterator[Row]:
    given = cases(CASES)
    run_experiment(given)
    costs = measure_cpu(
        {"floor": lambda: run_alone(given), "ours": lambda: run_experiment(given)}, per=CASES
    )
    yield Row("W14", f"a case with {CALLS} calls", "µs", costs, 1.03)
    growth = peak(CASES * (1 if SINGLE_ROUND else 10)) - peak(CASES)
    yield Row(
        "W14", "peak of 20,000 cases beyond that of 2,000", "MB", {"ours": growth}, 20, "value"
    )
    with TemporaryDirectory() as folder:
        run_experiment(given[: CASES // 2], folder)
        started = perf_counter()
        run_experiment(given[: CASES // 2], folder)
        seconds = perf_counter() - started
    yield Row("W14", "resume after 1,000 cases", "s", {"ours": seconds}, 1, "value")
