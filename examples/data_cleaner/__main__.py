"""`python -m examples.data_cleaner [FILE]`: cleans a CSV file and shows attempts and rollbacks."""

import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from examples.common.command import command_line, run
from examples.common.watch import Watch
from weakincentives import Session, serde

from .offline import OFFLINE
from .prompt import CLEANER, Conclusion, Table
from .sheet import Sheet
from .tools import Change, Drop

SAMPLE = Path(__file__).with_name("orders.csv")


@dataclass(frozen=True, slots=True)
class Report:
    """The facts from the session, and the model's conclusion."""

    rows: int
    changes: tuple[Change, ...]
    drops: tuple[Drop, ...]
    conclusion: Conclusion


def main(arguments: list[str] | None = None) -> int:
    """Cleans one file; returns 1 if it cannot be read or the provider fails, otherwise 0."""
    parser = command_line("data_cleaner", __doc__)
    parser.add_argument(
        "file", nargs="?", type=Path, default=SAMPLE, help="by default a small sample"
    )
    parser.add_argument(
        "--output", type=Path, help="by default NAME.clean.csv in the current folder"
    )
    options = parser.parse_args(arguments)
    output = options.output or Path(f"{options.file.stem}.clean.csv")
    if not output.parent.is_dir():
        parser.error(f"cannot write to {str(output.parent)!r}: it is not a folder")
    console, session = Console(quiet=options.json, highlight=False), Session()
    try:
        sheet = Sheet.read(options.file)
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{options.file} cannot be read: {error}\n")
        return 1
    table = Table(options.file.name, ", ".join(sheet.columns))
    prompt = CLEANER.bind(table, resources={Sheet: sheet})
    Watch(console, state=sheet.text).attach(session.bus)
    task = f"Cleaning {options.file.name}"
    conclusion = run(
        prompt, session=session, options=options, console=console, task=task, offline=OFFLINE
    )
    if conclusion is None:
        return 1
    output.write_text(sheet.text(), encoding="utf-8")
    report = Report(len(sheet.rows), session[Change].all(), session[Drop].all(), conclusion)
    if options.json:
        sys.stdout.write(serde.dump_json(report) + "\n")
    for change in report.changes:
        cell = f"row {change.row} {change.column}: {change.before!r} -> {change.after!r}"
        console.print(f"{cell}, {change.reason}", markup=False)
    for drop in report.drops:
        console.print(f"row {drop.row} dropped: {drop.reason}", markup=False)
    console.print(conclusion.summary, *conclusion.doubts, sep="\n", markup=False)
    counts = f"{report.rows} rows kept, {len(report.drops)} dropped"
    console.print(f"{counts}; written to {output}", markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
