"""`python -m examples.skills_assistant [question]`: answers from a folder of skills."""

import sys
from pathlib import Path

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from examples.common.command import command_line, run
from examples.common.watch import Watch
from weakincentives import Session, serde

from .offline import OFFLINE
from .prompt import FOLDER, assistant

DEFAULT_QUESTION = "Rows were deleted by mistake. How do I restore them?"


def main(arguments: list[str] | None = None) -> int:
    """Asks one question; returns 0 if it is answered, and 1 if the provider fails."""
    parser = command_line("skills_assistant", __doc__)
    parser.add_argument("question", nargs="?", default=DEFAULT_QUESTION)
    parser.add_argument("--skills", type=Path, default=FOLDER, help="a folder of skills")
    options = parser.parse_args(arguments)
    if not options.skills.is_dir():
        parser.error(f"{str(options.skills)!r} is not a folder")
    console, session = Console(quiet=options.json, highlight=False), Session()
    Watch(console).attach(session.bus)
    answer = run(
        assistant(options.skills).bind(),
        session=session,
        options=options,
        console=console,
        task=f"Skills: {options.skills.name}",
        messages=[options.question],
        offline=OFFLINE,
    )
    if answer is None:
        return 1
    if options.json:
        sys.stdout.write(serde.dump_json(answer) + "\n")
    sources = Text("Sources: " + ", ".join(answer.sources))
    console.print(Panel(Text(answer.answer), title="Answer", subtitle=sources))
    return 0


if __name__ == "__main__":
    sys.exit(main())
