"""`wink runs`: list, show, cancel and delete durable runs, and create their tables.

Needs only the database, not the prompt or the agent's code.
"""

import logging
import re
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option, Typer

from ..displays import count_of, table_lines
from ..inspection.logged_entries import records_of
from ..limits import utc_now
from .printing import print_lines, write_json
from .run import print_timeline
from .target import UsageError

if TYPE_CHECKING:  # imported on use, to keep `wink --help` fast
    from ..contrib.durable import StoredRun, WaitingRuns

__all__ = ["app"]

app = Typer(no_args_is_help=True, help="Inspect, cancel and delete durable runs.")

_LIMIT = 100
_UNITS = {"d": "days", "h": "hours"}

Url = Annotated[
    str,
    Argument(
        metavar="URL",
        help="The database of the runs: sqlite:///FILE or postgresql://USER@HOST/DATABASE.",
    ),
]
Log = Annotated[
    str | None,
    Option(
        metavar="URL",
        help="The application's database, if tools are transactional; it has the runs' logs.",
    ),
]
RunId = Annotated[str, Argument(metavar="RUN_ID", help="The id of a run, as printed by `list`.")]
RunIds = Annotated[
    list[str], Argument(metavar="RUN_ID...", help="The ids of runs, as printed by `list`.")
]
Status = Annotated[
    Literal["running", "waiting", "ended", "failed", "cancelled"] | None,
    Option(help="List only runs in this state."),
]
AsJson = Annotated[bool, Option("--json", help="Print the runs as JSON.")]
All = Annotated[bool, Option("--all", help=f"List all runs, not only the newest {_LIMIT}.")]
Before = Annotated[
    str, Option(metavar="AGE", help="The minimum time since the end of a run, such as 30d or 12h.")
]


@app.command("list")
def list_(
    url: Url, *, status: Status = None, all_: All = False, as_json: AsJson = False, log: Log = None
) -> None:
    """Print the runs in a database, newest first."""
    with _open(url, log) as runs:
        found = runs.list_runs(status=status, limit=None if all_ else _LIMIT + 1)
    more = len(found) > _LIMIT and not all_
    if more:
        found = found[:_LIMIT]
    if as_json:
        write_json(found)
    else:
        _print_table(found)
    if more:
        sys.stderr.write(f"wink: there are more than {_LIMIT} runs; pass --all to list them\n")


@app.command()
def show(url: Url, run_id: RunId, *, log: Log = None) -> None:
    """Print a run as a timeline, like wink show, even while it is running."""
    with _open(url, log) as runs:
        print_timeline(records_of(runs.log(run_id), run_id))


@app.command()
def cancel(url: Url, run_id: RunId, *, log: Log = None) -> None:
    """Cancel a run before its next request or tool call, or while it is suspended."""
    with _open(url, log) as runs:
        runs.cancel(run_id)
        for run in runs.list_runs(run_ids=[run_id]):
            if run.status != "cancelled":
                raise UsageError(f"cannot cancel run {run_id!r} because it has ended: {run.status}")
    print_lines([f"cancelled {run_id}"])


@app.command()
def delete(url: Url, run_ids: RunIds, *, log: Log = None) -> None:
    """Delete runs that have ended, with their logs. If one has not ended, delete none."""
    with _open(url, log) as runs:
        runs.delete(run_ids)
    print_lines(f"deleted {run_id}" for run_id in dict.fromkeys(run_ids))


@app.command()
def clean(url: Url, *, before: Before, log: Log = None) -> None:
    """Delete all runs that ended before a given time, with their logs."""
    time = _time_before(before)
    with _open(url, log) as runs:
        number = runs.delete_ended(time)
    print_lines([f"deleted {count_of(number, 'run')} that ended before {time:%Y-%m-%d %H:%M} UTC"])


@app.command()
def create(url: Url, *, log: Log = None) -> None:
    """Create the tables for durable runs, or migrate them to the installed version of DBOS.

    The role in the URL must be allowed to create tables; workers do not need this privilege.
    """
    from ..contrib.durable import create_tables

    with _without_log_of_dbos():
        create_tables(url, log_url=log)
    print_lines(["the tables are up to date"])


@contextmanager
def _open(url: str, log: str | None) -> Generator["WaitingRuns"]:
    from ..contrib.durable import open_waiting_runs

    with _without_log_of_dbos(), open_waiting_runs(url, log_url=log) as runs:
        try:
            yield runs
        except ValueError as error:
            raise UsageError(str(error)) from error


@contextmanager
def _without_log_of_dbos() -> Generator[None]:
    """Suppresses DBOS's log messages about errors that it also raises."""
    logger = logging.getLogger("dbos")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _time_before(age: str) -> datetime:
    match = re.fullmatch(r"(\d+)([dh])", age, re.ASCII)
    if match is None:
        raise UsageError(
            f"--before must be a number of days or hours, such as 30d or 12h, got {age!r}"
        )
    number, unit = match.groups()
    try:
        return utc_now() - timedelta(**{_UNITS[unit]: int(number)})
    except (OverflowError, ValueError) as error:  # int() accepts at most 4,300 digits
        raise UsageError(f"--before must be an age since the year 1, got {age!r}") from error


def _print_table(runs: Sequence["StoredRun"]) -> None:
    rows = [["run", "agent", "status", "started (UTC)", "attempts", "pending"]]
    rows += [
        [
            run.run_id,
            run.agent,
            run.status,
            f"{run.started:%Y-%m-%d %H:%M:%S}",
            "?" if run.attempts is None else str(run.attempts),
            str(run.pending) if run.pending else "",
        ]
        for run in runs
    ]
    print_lines(table_lines(rows))
