"""`python -m examples.code_reviewer [PATH]`: reviews a Python project and shows the run.

`--fix` also proposes fixes: the terminal shows each change, and you approve or deny it.
"""

import sys
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from examples.common.command import command_line, run
from examples.common.watch import Watch
from weakincentives import RunSuspended, Session, serde
from weakincentives.cli.approval import ask, is_interactive, read_suspension, write_file
from weakincentives.cli.target import UsageError
from weakincentives.evaluation import TurnOptions

from .offline import FIXING, OFFLINE
from .prompt import SAMPLE, Finding, Review, fixing, reviewer


@dataclass(frozen=True, slots=True)
class Report:
    """The verdict and its findings."""

    review: Review
    findings: tuple[Finding, ...]


def main(arguments: list[str] | None = None) -> int:
    """Reviews one project; returns 0 whatever the verdict.

    Returns 1 if the provider fails, and 3 if the run is suspended in a file, pending approval.
    """
    parser = command_line("code_reviewer", __doc__)
    parser.add_argument("path", nargs="?", type=Path, help="a folder; by default a small sample")
    parser.add_argument("--fix", action="store_true", help="propose fixes, each for your approval")
    parser.add_argument(
        "--run", type=Path, default=Path("review.json"), help="the file of a suspended run"
    )
    options = parser.parse_args(arguments)
    root = _folder(parser, options)
    console, session = Console(quiet=options.json, highlight=False), Session()
    Watch(console).attach(session.bus)
    try:
        review = run(
            (fixing if options.fix else reviewer)(root).bind(),
            session=session,
            options=options,
            console=console,
            task=f"Reviewing {root.resolve().name}",
            offline=FIXING if options.fix else OFFLINE,
            turn=_turn(parser, options),
        )
    except RunSuspended as waiting:
        write_file(options.run, waiting.suspension.to_json())
        steps = f"wink approve {options.run}, then the same command again"
        sys.stderr.write(f"The review waits for approval: {steps}\n")
        return 3
    if review is None:
        return 1
    if options.fix:
        options.run.unlink(missing_ok=True)
    report = Report(review, session[Finding].all())
    if options.json:
        sys.stdout.write(serde.dump_json(report) + "\n")
    for finding in report.findings:
        place = f"{finding.path}:{finding.line}: {finding.severity}"
        console.print(f"{place}: {finding.title}. {finding.suggestion}", markup=False)
    console.print(f"{review.verdict}: {review.summary}", markup=False)
    return 0


def _folder(parser: ArgumentParser, options: Namespace) -> Path:
    if options.fix and options.path is None:
        parser.error("--fix changes files: name the folder")
    root: Path = options.path or SAMPLE
    if not root.is_dir():
        parser.error(f"{str(root)!r} is not a folder")
    if next(root.rglob("*.py"), None) is None:
        parser.error(f"{str(root)!r} has no Python file to review")
    return root


def _turn(parser: ArgumentParser, options: Namespace) -> TurnOptions:
    """Returns who decides on fixes: the terminal, the decisions on a stored run, or nobody yet.

    Without a terminal or a stored run, the run is suspended at its first fix.
    """
    turn = TurnOptions()
    if options.fix and is_interactive():
        turn["approver"] = ask
    if options.fix and options.run.exists():
        try:
            turn["suspension"] = read_suspension(options.run)
        except UsageError as error:
            parser.error(str(error))
    return turn


if __name__ == "__main__":
    sys.exit(main())
