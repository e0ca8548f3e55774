"""`wink report`: show logged runs on one page, without secrets by default."""

import os
import sys
import webbrowser
from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from ..content import FolderContentStore
from ..inspection.report import ReportedRun, readable, write_report
from ..inspection.run_timeline import read_run
from ..redaction import Redactor, credentials_in
from .printing import single_line
from .run import reading, record_errors
from .spending import price_of, spending
from .target import UsageError

__all__ = ["report"]


def report(
    logs: Annotated[list[Path], Argument(help="One or two logs from wink run --log.")],
    *,
    output: Annotated[
        Path | None,
        Option("--output", "-o", help="The page; by default, the log's name with .html."),
    ] = None,
    open_: Annotated[bool, Option("--open", help="Open the page in your browser.")] = False,
    content: Annotated[Path | None, Option(help="The folder with the run's images.")] = None,
    secrets: Annotated[bool, Option("--secrets", help="Do not mask secrets.")] = False,
) -> None:
    """Write a logged run as one HTML page; two runs are shown side by side."""
    if logs[2:]:  # a page can show at most two
        raise UsageError(f"a report takes one or two logs, got {len(logs)}")
    mask = None if secrets else Redactor(tuple(credentials_in(os.environ)))
    clean = partial(readable, secrets=secrets)
    runs: list[ReportedRun] = []
    for log in logs:
        with reading(log, mask) as records:
            total = spending(records)
            notes = [total.summary] if total else []
            run = read_run(map(clean, records))
            store = FolderContentStore(content) if content else None
            name = clean(log.name)
            runs.append(ReportedRun(name=name, run=run, price=price_of, notes=notes, content=store))
    page = output or logs[0].with_suffix(".html")
    if page in logs:
        raise UsageError(f"--output must not be the log itself, got {page}")
    pieces: list[str] = []
    with record_errors(" and ".join(map(str, logs))):
        write_report(runs, pieces.append)
    with page.open("w", encoding="utf-8") as file:
        file.writelines(pieces)
    sys.stdout.write(f"{single_line(str(page))}\n")
    if open_:
        webbrowser.open(page.resolve().as_uri())
