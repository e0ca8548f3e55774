"""An example as a command: the options that choose the model, and one run that is shown as it
happens.
"""

from argparse import ArgumentParser, Namespace
from time import perf_counter

from rich.console import Console
from rich.markup import escape

from weakincentives import Prompt
from weakincentives.adapters.core import PromptEvaluationError
from weakincentives.runtime.session import Session

from .models import EXTRACTIVE, Choice, Offline, chosen_model
from .watch import outline

__all__ = ["command_line", "run"]


def command_line(name: str, description: str | None) -> ArgumentParser:
    """A parser with the options that all examples have; the caller adds its own."""
    parser = ArgumentParser(prog=name, description=description)
    parser.add_argument("--model", help="model name for OpenAI or the server at --base-url")
    parser.add_argument(
        "--base-url", help="an OpenAI-compatible server, such as http://127.0.0.1:8080/v1"
    )
    parser.add_argument(
        "--api",
        choices=["responses", "chat"],
        help="by default chat with --base-url, else responses",
    )
    parser.add_argument(
        "--local", action="store_true", help="a small LLM in this process (needs the extra `local`)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the answer as JSON and nothing else"
    )
    return parser


def run[Out](
    prompt: Prompt[Out],
    *,
    session: Session,
    options: Namespace,
    console: Console,
    about: str,
    offline: Offline = EXTRACTIVE,
) -> Out | None:
    """The prompt's typed answer, from the model that `options` name; `None`, with one line said,
    when it failed.
    """
    started = perf_counter()
    choice = Choice(
        model=options.model, base_url=options.base_url, api=options.api, local=options.local
    )
    with chosen_model(choice, offline) as (name, adapter):
        console.print(f"[bold]Model:[/] {escape(name)}\n{escape(about)}")
        outline(prompt.render(session=session), console)
        try:
            response = adapter.evaluate(prompt, session=session)
        except PromptEvaluationError as error:
            Console(stderr=True, highlight=False).print(str(error), style="red", markup=False)
            return None
    usage, seconds = response.usage, perf_counter() - started
    console.print(
        f"{response.turns} turns, {usage.input_tokens:,} tokens in, {usage.output_tokens:,} out, {seconds:.1f} s"
    )
    return response.output
