"""Runs an example as a command: options that choose the model, and a run that is shown live."""

from argparse import ArgumentParser, Namespace
from time import perf_counter

from rich.console import Console
from rich.markup import escape

from weakincentives import Prompt
from weakincentives.adapters.core import PromptEvaluationError
from weakincentives.runtime.session import Session

from .models import EXTRACTIVE, Choice, Offline, chosen_model
from .watch import print_outline

__all__ = ["command_line", "run"]


def command_line(name: str, description: str | None) -> ArgumentParser:
    """Returns a parser with the options that all examples have; the caller adds its own."""
    parser = ArgumentParser(prog=name, description=description)
    add = parser.add_argument
    add("--model", help="model name for OpenAI or the server at --base-url")
    add("--base-url", help="an OpenAI-compatible server, such as http://127.0.0.1:8080/v1")
    apis = ["responses", "chat"]
    add("--api", choices=apis, help="by default chat with --base-url, else responses")
    local = "a small LLM in this process (needs the extra `local`)"
    add("--local", action="store_true", help=local)
    add("--json", action="store_true", help="print the answer as JSON and nothing else")
    return parser


def run[Out](
    prompt: Prompt[Out],
    *,
    session: Session,
    options: Namespace,
    console: Console,
    task: str,
    offline: Offline = EXTRACTIVE,
) -> Out | None:
    """Evaluates the prompt with the model of `options` and shows the run.

    Returns the typed answer. Prints one line and returns `None` when the evaluation fails.
    """
    started = perf_counter()
    choice = Choice(
        model=options.model, base_url=options.base_url, api=options.api, local=options.local
    )
    with chosen_model(choice, offline) as (name, adapter):
        console.print(f"[bold]Model:[/] {escape(name)}\n{escape(task)}")
        print_outline(prompt.render(session=session), console)
        try:
            response = adapter.evaluate(prompt, session=session)
        except PromptEvaluationError as error:
            Console(stderr=True, highlight=False).print(str(error), style="red", markup=False)
            return None
    usage, seconds = response.usage, perf_counter() - started
    tokens = f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"
    console.print(f"{response.turns} turns, {tokens}, {seconds:.1f} s")
    return response.output
