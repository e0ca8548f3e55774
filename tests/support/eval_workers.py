"""An experiment on durable workers, whose processes a test may kill.

The model's requests are lines of a file. `journal` is the prompt of `eval_models.notebook` without
files.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from support.durable_processes import Extra, RunStore, dbos, engine_room
from support.eval_models import (
    Answer,
    FunctionAdapter,
    Note,
    Question,
    Reply,
    Topic,
    failed,
    turn_of,
    write_notes,
)
from weakincentives import MainLoop, serde
from weakincentives.contrib.durable import DurableRuns, WorkerFailover, durable, install
from weakincentives.evals import Case, DurableTarget, EvalRun, Experiment, evaluate
from weakincentives.evaluation.inner_loop import ProviderRequest
from weakincentives.prompt import MarkdownSection, PromptTemplate, Tool, ToolContext
from weakincentives.visibility import SectionVisibility

ANSWERS = 5  # for each run
REPEATS = 2
AT_ONCE = 3  # runs in one worker


def note(text: str, context: ToolContext) -> str:
    """Write a note."""
    context.session[Note].append(Note(text))
    return f"noted {text}"


def journal() -> PromptTemplate[Answer]:
    """Returns a prompt with state, a nested run and a section to open."""
    research = PromptTemplate(
        ns="evals",
        key="research",
        sections=[MarkdownSection[Topic](title="Topic", template="Research: $topic", key="topic")],
    )
    return PromptTemplate[Answer](
        ns="evals",
        key="journal",
        sections=[
            MarkdownSection[Question](
                title="Question",
                template="Note what you find about $text.",
                key="question",
                tools=[note, Tool.from_prompt(research, name="research")],
                state=[Note],
            ),
            MarkdownSection(
                title="Style",
                template="Write plainly.",
                summary="How to write.",
                visibility=SectionVisibility.SUMMARY,
                key="style",
            ),
        ],
    )


def cases(count: int) -> list[Case]:
    """Returns cases, half of which start with a note."""
    return [
        Case(
            id=f"{number}",
            params=(Question(f"q{number}"),),
            state=(Note("from before"),) if number % 2 else (),
        )
        for number in range(count)
    ]


def left(case: Case, run: EvalRun) -> Mapping[str, str]:
    """Returns what the run has left."""
    return {
        "notes": " ".join(note.text for note in run.session[Note].all()),
        "calls": " ".join(f"{call.name} {call.text}" for call in run.calls),
        "opened": " ".join(run.opened),
        "output": f"{run.output}",
        "text": run.text,
    }


def model(requests: Path, fails: Callable[[], bool] = bool) -> FunctionAdapter:
    """Returns a model whose requests are lines of a file; it fails while `fails` says so."""

    async def answer(request: ProviderRequest, text: str) -> Reply:
        await asyncio.sleep(0.01)
        descriptor = os.open(requests, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, b"request\n")
        os.close(descriptor)
        return failed() if turn_of(request) == 2 and fails() else write_notes(request, text)

    return FunctionAdapter(answer)


def asked(requests: Path) -> int:
    return requests.read_bytes().count(b"\n") if requests.exists() else 0


def opened(store: RunStore, executor_id: str) -> DurableRuns:
    """Sets this process up, without launching DBOS."""
    adapter = model(store.folder / "requests", (store.folder / "fails").exists)
    runs = install({"journal": durable(MainLoop(adapter), journal().bind)})
    dbos.DBOS(config=runs.config("evals", store.url, executor_id=executor_id))
    engine_room._get_or_create_dbos_registry().get_internal_queue()._polling_interval_sec = 0.05
    return runs


def worker(store: RunStore, executor_id: str) -> None:
    """Performs runs until it is killed."""
    opened(store, executor_id)
    with WorkerFailover(store.url, executor_id, every=0.3, silent=6.0):
        dbos.DBOS.launch()
        dbos.DBOS.register_queue("evals", worker_concurrency=AT_ONCE, polling_interval_sec=0.1)
        (store.folder / f"{executor_id}.ready").touch()
        while not (store.folder / "over").exists():
            asyncio.run(asyncio.sleep(0.05))


def coordinate(
    store: RunStore, count: int, *, queue: str | None = None, folder: str | None = None
) -> None:
    """Runs the experiment, and writes its results."""
    with_target(store, queue, lambda target: write(store, on(target, count, folder)))


def with_target(store: RunStore, queue: str | None, use: Callable[[DurableTarget], object]) -> None:
    """Calls `use` with the target of an experiment, in a process that has launched DBOS."""
    runs = opened(store, "desk")
    if queue is not None:
        dbos.DBOS.listen_queues([])
    dbos.DBOS.launch()
    (store.folder / "desk.ready").touch()
    use(DurableTarget(runs, "journal", queue))


def write(store: RunStore, experiment: Experiment) -> None:
    """Writes the results of an experiment for the test."""
    written = store.folder / "results.new"
    written.write_text(rows(experiment))
    written.rename(store.folder / "results")


def on(target: Extra, count: int, folder: str | None, **options: Extra) -> Experiment:
    options.setdefault("concurrency", 12)
    return evaluate(
        target, cases(count), evaluators=[left], repeats=REPEATS, folder=folder, **options
    )


def rows(experiment: Experiment) -> str:
    """Returns the results as JSON, without keys and durations."""
    return serde.dump_json(
        [
            {**asdict(result), "seconds": 0, "key": "", "scores": dict(result.scores)}
            for result in experiment["base"].results
        ]
    )
