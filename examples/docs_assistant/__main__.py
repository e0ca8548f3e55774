"""`python -m examples.docs_assistant [question]`: asks the assistant and shows the run."""

import argparse
import sys
from time import perf_counter

from rich.console import Console
from rich.panel import Panel

from weakincentives import serde
from weakincentives.adapters.core import PromptEvaluationError
from weakincentives.runtime.session import Session

from .library import Library
from .models import Choice, chosen_model
from .prompt import assistant, bound_params
from .watch import Watch, outline

DEFAULT_QUESTION = "What happens to session state when a tool call fails?"


def main(arguments: list[str] | None = None) -> int:
    """Asks one question; 0 when it was answered, 1 when the provider failed."""
    parser = argparse.ArgumentParser(prog="docs_assistant", description=__doc__)
    parser.add_argument("question", nargs="?", default=DEFAULT_QUESTION)
    parser.add_argument("--model", help="model name for OpenAI or the server at --base-url")
    parser.add_argument("--base-url", help="an OpenAI-compatible server, such as http://127.0.0.1:8080/v1")
    parser.add_argument("--api", choices=["responses", "chat"], help="by default chat with --base-url, else responses")
    parser.add_argument("--local", action="store_true", help="a small LLM in this process (make demo-local)")
    parser.add_argument("--json", action="store_true", help="print the answer as JSON and nothing else")
    options = parser.parse_args(arguments)
    console = Console(quiet=options.json, highlight=False)
    started = perf_counter()
    library = Library.load()
    prompt = assistant(library).bind(*bound_params(library, options.question))
    session = Session()
    Watch(console).attach(session.bus)
    choice = Choice(model=options.model, base_url=options.base_url, api=options.api, local=options.local)
    with chosen_model(choice) as (name, adapter):
        console.print(f"[bold]Model:[/] {name}")
        console.print(f"[bold]Question:[/] {options.question}")
        outline(prompt.render(session=session), console)
        try:
            response = adapter.evaluate(prompt, session=session)
        except PromptEvaluationError as error:
            Console(stderr=True, highlight=False).print(str(error), style="red", markup=False)
            return 1
    answer = response.output
    if answer is None:  # the prompt declares an output, so evaluate gives one or raises
        return 1
    if options.json:
        sys.stdout.write(serde.dump_json(answer) + "\n")
    console.print(Panel(answer.answer, title="Answer", subtitle="Sources: " + ", ".join(answer.sources)))
    usage = response.usage
    console.print(
        f"{response.turns} turns, {usage.input_tokens:,} tokens in, {usage.output_tokens:,} out, "
        f"{perf_counter() - started:.1f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
