"""`python -m examples.code_reviewer [PATH]`: reviews a Python project and shows the run."""

import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from examples.common.command import command_line, run
from examples.common.watch import Watch
from weakincentives import Session, serde

from .offline import OFFLINE
from .prompt import SAMPLE, Finding, Review, reviewer


@dataclass(frozen=True, slots=True)
class Report:
    """The verdict and its findings."""

    review: Review
    findings: tuple[Finding, ...]


def main(arguments: list[str] | None = None) -> int:
    """Reviews one project; returns 0 whatever the verdict, 1 when the provider fails."""
    parser = command_line("code_reviewer", __doc__)
    parser.add_argument(
        "path", nargs="?", type=Path, default=SAMPLE, help="a folder; by default a small sample"
    )
    options = parser.parse_args(arguments)
    if not options.path.is_dir():
        parser.error(f"{str(options.path)!r} is no folder")
    if next(options.path.rglob("*.py"), None) is None:
        parser.error(f"{str(options.path)!r} has no Python file to review")
    console, session = Console(quiet=options.json, highlight=False), Session()
    Watch(console).attach(session.bus)
    prompt = reviewer(options.path).bind()
    task = f"Reviewing {options.path.resolve().name}"
    review = run(
        prompt, session=session, options=options, console=console, task=task, offline=OFFLINE
    )
    if review is None:
        return 1
    report = Report(review, session[Finding].all())
    if options.json:
        sys.stdout.write(serde.dump_json(report) + "\n")
    for finding in report.findings:
        place = f"{finding.path}:{finding.line}: {finding.severity}"
        console.print(f"{place}: {finding.title}. {finding.suggestion}", markup=False)
    console.print(f"{review.verdict}: {review.summary}", markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
