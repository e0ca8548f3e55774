"""`wink run`, `show` and `advise`: a run as it happens, afterwards, and what it cost."""

import json
import os
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from logging import WARNING, Handler, LogRecord, getLogger
from pathlib import Path
from traceback import format_exception_only, walk_tb
from typing import Annotated

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from ..adapters.core import ProviderAdapter
from ..errors import WeakIncentivesError
from ..evaluation.main_loop import MainLoop
from ..inspection.costs import section_costs
from ..inspection.event_log import Record, event_record, read_events
from ..protocols import EventBus
from ..runtime.events import Event
from ..runtime.session.session import Session
from .output import counted, in_one_line, wide_console, write_json
from .target import (
    Open,
    Params,
    Set,
    Summary,
    Tag,
    Target,
    UsageError,
    bound_prompt,
    loaded,
    opened,
)
from .timeline import Timeline

__all__ = ["advise", "run", "show"]

_CHARACTERS_PER_TOKEN = 4
_PROVIDERS = {
    "openai": "weakincentives.adapters.openai:OpenAIAdapter",
    "litellm": "weakincentives.adapters.litellm:LiteLLMAdapter",
    "claude-agent-sdk": "weakincentives.adapters.claude_agent_sdk:ClaudeAgentSDKAdapter",
}


def run(
    target: Target,
    *,
    adapter: Annotated[
        str, Option(help=f"{', '.join(_PROVIDERS)}, or package.module:name.")
    ] = "openai",
    model: Annotated[str | None, Option(help="The model's name.")] = None,
    base_url: Annotated[str | None, Option(help="Where the provider's API is served.")] = None,
    api: Annotated[str | None, Option(help="responses or chat (openai only).")] = None,
    params: Params = None,
    set_: Set = None,
    tag: Tag = None,
    open_: Open = None,
    summary: Summary = None,
    log: Annotated[
        Path | None, Option(help="Write the events to this file, one JSON object a line.")
    ] = None,
) -> None:
    """Evaluate a prompt: progress on stderr, the answer as JSON on stdout. Exits with 1 when the
    provider failed.
    """
    prompt = bound_prompt(target, params, set_, tag)
    overrides = opened(prompt, open_, summary)
    session = Session()
    with ExitStack() as stack:
        chosen = _adapter(adapter, stack, model=model, base_url=base_url, api=api)
        if log is not None:
            stack.enter_context(_logged(session.bus, log))
        with _display() as show_event:
            session.bus.subscribe(Event, show_event)
            try:
                done = MainLoop(chosen).execute(
                    prompt, session=session, visibility_overrides=overrides
                )
            except WeakIncentivesError:
                raise
            except Exception as error:  # an adapter that is not ours
                raise UsageError(
                    f"--adapter {adapter} failed: {type(error).__name__}: {error}"
                ) from error
        answer = {
            "output": done.output,
            "text": done.text,
            "restarts": done.restarts,
            "usage": done.usage,
        }
        write_json(answer, indent=None)


def show(log: Annotated[Path, Argument(help="A file that wink run --log wrote.")]) -> None:
    """Print a logged run as a timeline."""
    with _reading(log) as events:
        timeline = Timeline()
        lines = [f"{_clock(record):15}{line}" for record in events for line in timeline.add(record)]
        lines += [f"{'':15}{line}" for line in timeline.end()]
    console = wide_console()
    for line in lines:
        console.print(Text(line, no_wrap=True, overflow="ellipsis"), soft_wrap=True)


def advise(
    logs: Annotated[list[Path], Argument(help="Files that wink run --log wrote.")],
    *,
    as_json: Annotated[bool, Option("--json", help="Print the costs as JSON.")] = False,
) -> None:
    """Print what each section and tool cost over logged runs, and which sections to summarize."""
    events: list[Record] = []
    for log in logs:
        with _reading(log) as one:
            section_costs(one)  # here, so that a fault is told of its own file
            events += one
    costs = section_costs(events)
    if as_json:
        write_json(costs)
        return
    table = Table("section or tool", box=None, pad_edge=False, header_style="bold")
    for title in ("requests", "characters", "tokens*", "opened or called"):
        table.add_column(title, justify="right")
    table.add_column("advice")
    for cost in costs:
        advice = cost.advice.visibility if cost.advice else ""
        table.add_row(
            in_one_line(f"{cost.prompt} {cost.path}"),
            *_numbers(cost.requests, cost.sent, cost.opened),
            advice,
        )
        for tool in cost.tools:
            table.add_row(
                f"  {in_one_line(tool.name)}", *_numbers(tool.requests, tool.sent, tool.calls), ""
            )
    console = wide_console()
    console.print(table)
    console.print(f"* estimated at {_CHARACTERS_PER_TOKEN} characters each")
    for cost in costs:
        if cost.advice:
            console.print(
                f"\n{in_one_line(cost.path)}: {cost.advice.visibility} costs less. {cost.advice.arithmetic}",
                soft_wrap=True,
            )


def _numbers(requests: int, sent: int, count: int) -> tuple[str, ...]:
    return f"{requests:,}", f"{sent:,}", f"{-(-sent // _CHARACTERS_PER_TOKEN):,}", f"{count:,}"


def _adapter(name: str, stack: ExitStack, **options: str | None) -> ProviderAdapter:
    """The adapter that the command line names, with the options that were given; a context manager
    is entered.
    """
    given = {key: value for key, value in options.items() if value is not None}
    if name in _PROVIDERS and "model" not in given:
        raise UsageError(f"--adapter {name} needs --model")
    if name == "openai" and "base_url" in given and "OPENAI_API_KEY" not in os.environ:
        # most servers of one's own want no key, and the SDK insists on one
        given["api_key"] = "none"
    made = loaded(_PROVIDERS.get(name, name), "adapter")
    if callable(made):
        try:
            made = made(**given)
            made = stack.enter_context(made) if isinstance(made, AbstractContextManager) else made
        except Exception as error:  # the author's own code, or an SDK that is not installed
            raise UsageError(f"--adapter {name}: {type(error).__name__}: {error}") from error
    if not isinstance(made, ProviderAdapter):
        raise UsageError(
            f"--adapter {name} gives {type(made).__name__}; name an adapter or a function that gives one"
        )
    return made


@contextmanager
def _logged(bus: EventBus, log: Path) -> Generator[None]:
    """Writes events to `log`.

    A disk that refuses one is told of at the end: the run's answer is paid for.
    """
    refused: list[OSError] = []
    file = log.open("w", encoding="utf-8")

    def write(event: object) -> None:
        if not refused:
            try:
                file.write(json.dumps(event_record(event), ensure_ascii=False) + "\n")
                file.flush()
            except OSError as error:
                refused.append(error)

    bus.subscribe(Event, write)
    try:
        yield
    finally:
        with suppress(OSError):  # `write` has met it already
            file.close()
    if refused:
        raise UsageError(f"{log} is cut off: {refused[0]}") from refused[0]


class _LogLines(Handler):
    """Writes what the library warns of in one line each, with the place of an exception instead of
    its traceback.
    """

    def __init__(self, write: Callable[[Iterable[str]], None]) -> None:
        super().__init__(WARNING)
        self._write = write

    def emit(self, record: LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and (error := record.exc_info[1]) is not None:
            text = f"{text}: {format_exception_only(error)[-1]}"
            for frame, line in [*walk_tb(error.__traceback__)][-1:]:
                text = f"{text} ({Path(frame.f_code.co_filename).name}:{line})"
        self._write([in_one_line(text)])


@contextmanager
def _display() -> Generator[Callable[[object], None]]:
    """Prints events on stderr; on a terminal with the sums so far below them."""
    console = Console(stderr=True, highlight=False, markup=False)
    timeline = Timeline()
    turns = calls = tokens = 0

    def write(lines: Iterable[str]) -> None:
        for line in lines:
            console.print(
                Text(line, no_wrap=True, overflow="ellipsis"), soft_wrap=not console.is_terminal
            )

    def observed(event: object) -> None:
        nonlocal turns, calls, tokens
        match record := event_record(event):
            case {
                "event": "ProviderCalled",
                "usage": {"input_tokens": int(given), "output_tokens": int(got)},
            }:
                turns, tokens = turns + 1, tokens + given + got
            case {"event": "ToolInvoked"}:
                calls += 1
            case _:
                pass
        write(timeline.add(record))
        sums = (
            f"{counted(turns, 'turn')}, {counted(calls, 'tool call')}, {counted(tokens, 'token')}"
        )
        live.update(Text(sums, style="bold"), refresh=True)

    with Live(console=console, auto_refresh=False, transient=not console.is_terminal) as live:
        log, handler = getLogger("weakincentives"), _LogLines(write)
        log.addHandler(handler)
        try:
            yield observed
        finally:
            log.removeHandler(handler)
            write(timeline.end())


@contextmanager
def _reading(log: Path) -> "Generator[list[Record]]":
    """The events in `log`; whatever in them cannot be understood is a mistake about that file."""
    try:
        with log.open(encoding="utf-8") as file:
            yield list(read_events(file))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{log}: {error if isinstance(error, ValueError) else 'an event lacks what wink writes'}"
        ) from error


def _clock(record: Record) -> str:
    """The time of day, in UTC."""
    return in_one_line(str(record.get("created_at", "")).partition("T")[2][:12])
