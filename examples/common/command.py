"""Runs an example as a command: its options choose the model, and it shows the run live."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NoReturn

from rich.console import Console
from rich.markup import escape

from examples.offline_model import Plan, follow
from weakincentives import Chat, MainLoop, Prompt, Session, TokenUsage, serde
from weakincentives.adapters.core import PromptEvaluationError
from weakincentives.evaluation import Execution, TurnOptions

from .models import EXTRACTIVE, Choice, Offline, chosen_model
from .watch import Watch, print_outline

__all__ = ["command_line", "play", "run"]


def command_line(name: str, description: str | None) -> ArgumentParser:
    """Returns a parser with the options that all examples share; the caller adds its own."""
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


def play[Out](
    prompt: Prompt[Out],
    plan: Callable[[], Plan],
    messages: Sequence[str],
    description: str | None,
    state: Callable[[], str] | None = None,
    *,
    show: Callable[[Out], str] = str,
) -> NoReturn:
    """Runs a complete example: sends the messages to the model that the options choose, and exits.

    `plan` replaces the model if none is configured, `state` is passed to `Watch`, and `show`
    formats the last answer. The exit code is 1 if the provider fails.
    """
    options = command_line(prompt.name, description).parse_args()
    console, session = Console(quiet=options.json, highlight=False), Session()
    Watch(console, state).attach(session.bus)
    answer = run(
        prompt,
        session=session,
        options=options,
        console=console,
        task=f"Messages: {len(messages)}",
        messages=messages,
        offline=Offline("an offline plan (no LLM: fixed steps)", follow(plan)),
    )
    if answer is None:
        sys.exit(1)
    if options.json:
        sys.stdout.write(serde.dump_json(answer) + "\n")
    if not isinstance(answer, str):  # otherwise `run` has printed it
        console.print(show(answer), markup=False)
    sys.exit()


def run[Out](
    prompt: Prompt[Out],
    *,
    session: Session,
    options: Namespace,
    console: Console,
    task: str,
    messages: Sequence[str] = (),
    offline: Offline = EXTRACTIVE,
    turn: TurnOptions | None = None,
) -> Out | None:
    """Runs the prompt with the model that `options` choose, once for each message if there are any.

    Shows the run and returns the last typed answer. `turn` contains the options for every turn. If
    an evaluation fails, prints its error and returns `None`. Raises `RunSuspended` if a call needs
    an approval and nobody can decide now.
    """
    started = perf_counter()
    choice = Choice(
        model=options.model, base_url=options.base_url, api=options.api, local=options.local
    )
    with chosen_model(choice, offline) as (name, adapter):
        console.print(f"[bold]Model:[/] {escape(name)}\n{escape(task)}")
        print_outline(prompt.render(session=session), console)
        chat = Chat(MainLoop(adapter), prompt, session=session)
        inputs: Sequence[str | None] = messages or [None]
        try:
            executions = [_send(chat, message, console, turn or {}) for message in inputs]
        except PromptEvaluationError as error:
            Console(stderr=True, highlight=False).print(str(error), style="red", markup=False)
            return None
    usages, seconds = [execution.usage for execution in executions], perf_counter() - started
    usage = sum(usages, start=TokenUsage())
    turns = sum(execution.response.turns for execution in executions)
    tokens = f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"
    console.print(f"{turns} turns, {tokens}, {seconds:.1f} s")
    return executions[-1].output


def _send[Out](
    chat: Chat[Out], message: str | None, console: Console, turn: TurnOptions
) -> Execution[Out]:
    if message is None:
        return chat.send(**turn)
    console.print(f"\n[bold]> {escape(message)}[/]")
    execution = chat.send(message, **turn)
    if isinstance(execution.output, str):
        console.print(execution.text, markup=False)
    return execution
