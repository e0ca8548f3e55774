"""Runs an experiment in a process of its own, which a test may kill.

Arguments: the experiment's folder, a file to which each request adds a line, and the file for the
results.
"""

import asyncio
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from support.eval_models import FunctionAdapter, Note, Question, notebook, write_notes
from weakincentives import serde
from weakincentives.evals import Case, EvalRun, Progress, evaluate
from weakincentives.evaluation.inner_loop import ProviderRequest
from weakincentives.evaluation.messages import AssistantMessage

CASES = 24
CONCURRENCY = 4
ANSWERS = 5  # for each case


def notes_written(case: Case, run: EvalRun) -> Mapping[str, str]:
    """Returns what the run has left in its session and its files."""
    assert run.files is not None
    return {
        "notes": " ".join(note.text for note in run.session[Note].all()),
        "file": run.files.read_text("notes.txt"),
        "calls": " ".join(call.name for call in run.calls),
        "output": f"{run.output}",
    }


def main(folder: str, requests: str, results: str) -> None:
    """Runs the experiment, and writes its results."""
    descriptor = os.open(requests, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def answer(request: ProviderRequest, text: str) -> AssistantMessage:
        await asyncio.sleep(0.004)
        os.write(descriptor, b"request\n")
        return write_notes(request, text)

    def show(progress: Progress) -> None:
        sys.stdout.write(f"{progress.done}\n")
        sys.stdout.flush()

    experiment = evaluate(
        notebook(),
        [Case(id=f"{number}", params=(Question(f"q{number}"),)) for number in range(CASES)],
        evaluators=[notes_written],
        model=FunctionAdapter(answer),
        concurrency=CONCURRENCY,
        folder=folder,
        progress=show,
    )
    rows = [
        {**asdict(result), "seconds": 0, "scores": dict(result.scores)}
        for result in experiment["base"].results
    ]
    Path(results).write_text(serde.dump_json(rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
