"""`python -m examples.docs_assistant [question]`: asks the assistant and shows the run."""

import sys

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from examples.common.command import command_line, run
from examples.common.watch import Watch
from weakincentives import Session, serde

from .library import Library
from .prompt import assistant

DEFAULT_QUESTION = "What happens to session state when a tool call fails?"


def main(arguments: list[str] | None = None) -> int:
    """Asks one question; returns 0 if it is answered, and 1 if the provider fails."""
    parser = command_line("docs_assistant", __doc__)
    parser.add_argument("question", nargs="?", default=DEFAULT_QUESTION)
    options = parser.parse_args(arguments)
    console = Console(quiet=options.json, highlight=False)
    library, session = Library.load(), Session()
    Watch(console).attach(session.bus)
    answer = run(
        assistant(library),
        session=session,
        options=options,
        console=console,
        task=f"Documents: {len(library.documents)}",
        messages=[options.question],
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
