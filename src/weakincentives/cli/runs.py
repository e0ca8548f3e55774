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
from ..runtime.events import Event, ProviderCalled, ToolInvoked
from ..runtime.session.session import Session
from .output import count_of, single_line, wide_console, write_json
from .target import (
    Open,
    Params,
    Set,
    Summary,
    Tag,
    Target,
    UsageError,
    load,
    load_prompt,
    visibility_overrides,
)
from .timeline import Timeline

__all__ = ["advise", "run", "show"]

_CHARACTERS_PER_TOKEN = 4
_PROVIDERS = {
    "openai": "weakincentives.adapters.openai:OpenAIAdapter",
    "anthropic": "weakincentives.adapters.anthropic:AnthropicAdapter",
    "litellm": "weakincentives.adapters.litellm:LiteLLMAdapter",
    "claude-agent-sdk": "weakincentives.adapters.claude_agent_sdk:ClaudeAgentSDKAdapter",
}
_Adapter = Annotated[str, Option(help=f"{', '.join(_PROVIDERS)}, or package.module:name.")]
_Model = Annotated[str | None, Option(help="The model's name.")]
_BaseUrl = Annotated[str | None, Option(help="Where the provider's API is served.")]
_Api = Annotated[str | None, Option(help="responses or chat (openai only).")]
_Log = Annotated[Path | None, Option(help="Write the events to this file, one JSON object a line.")]


def run(
    target: Target,
    *,
    adapter: _Adapter = "openai",
    model: _Model = None,
    base_url: _BaseUrl = None,
    api: _Api = None,
    params: Params = None,
    set_: Set = None,
    tag: Tag = None,
    open_: Open = None,
    summary: Summary = None,
    log: _Log = None,
) -> None:
    """Evaluate a prompt: progress on stderr, the answer as JSON on stdout.

    Exits with 1 when the provider failed.
    """
    prompt = load_prompt(target, params, set_, tag)
    overrides = visibility_overrides(prompt, open_, summary)
    session = Session()
    with ExitStack() as stack:
        loop = MainLoop(_adapter(adapter, stack, model=model, base_url=base_url, api=api))
        if log is not None:
            stack.enter_context(_logging(session.bus, log))
        with _display() as show_event:
            session.bus.subscribe(Event, show_event)
            try:
                result = loop.execute(prompt, session=session, visibility_overrides=overrides)
            except WeakIncentivesError:
                raise
            except Exception as error:  # an adapter that is not ours
                cause = f"{type(error).__name__}: {error}"
                raise UsageError(f"--adapter {adapter} failed: {cause}") from error
        answer = {
            "output": result.output,
            "text": result.text,
            "restarts": result.restarts,
            "usage": result.usage,
        }
        write_json(answer, indent=None)


def show(log: Annotated[Path, Argument(help="A file that wink run --log wrote.")]) -> None:
    """Print a logged run as a timeline."""
    with _reading(log) as records:
        timeline = Timeline()
        lines = [f"{_clock(row):15}{line}" for row in records for line in timeline.add(row)]
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
    records: list[Record] = []
    for log in logs:
        with _reading(log) as rows:
            section_costs(rows)  # here, so that an error names its own file
            records += rows
    costs = section_costs(records)
    if as_json:
        write_json(costs)
        return
    table = Table("section or tool", box=None, pad_edge=False, header_style="bold")
    for title in ("requests", "characters", "tokens*", "opened or called"):
        table.add_column(title, justify="right")
    table.add_column("advice")
    for cost in costs:
        advice = cost.advice.visibility if cost.advice else ""
        name = single_line(f"{cost.prompt} {cost.path}")
        table.add_row(name, *_numbers(cost.requests, cost.sent, cost.opened), advice)
        for tool in cost.tools:
            name = f"  {single_line(tool.name)}"
            table.add_row(name, *_numbers(tool.requests, tool.sent, tool.calls), "")
    console = wide_console()
    console.print(table)
    console.print(f"* estimated at {_CHARACTERS_PER_TOKEN} characters each")
    for cost in costs:
        if cost.advice:
            text = f"{cost.advice.visibility} costs less. {cost.advice.arithmetic}"
            console.print(f"\n{single_line(cost.path)}: {text}", soft_wrap=True)


def _numbers(requests: int, sent: int, count: int) -> tuple[str, ...]:
    return f"{requests:,}", f"{sent:,}", f"{-(-sent // _CHARACTERS_PER_TOKEN):,}", f"{count:,}"


def _adapter(name: str, stack: ExitStack, **options: str | None) -> ProviderAdapter:
    """Makes the adapter that the command line names; enters it when it is a context manager."""
    arguments = {key: value for key, value in options.items() if value is not None}
    if name in _PROVIDERS and "model" not in arguments:
        raise UsageError(f"--adapter {name} needs --model")
    if name == "openai" and "base_url" in arguments and "OPENAI_API_KEY" not in os.environ:
        # most servers of one's own want no key, and the SDK insists on one
        arguments["api_key"] = "none"
    adapter = load(_PROVIDERS.get(name, name), "adapter")
    if callable(adapter):
        try:
            adapter = adapter(**arguments)
            if isinstance(adapter, AbstractContextManager):
                adapter = stack.enter_context(adapter)
        except Exception as error:  # the author's own code, or an SDK that is not installed
            raise UsageError(f"--adapter {name}: {type(error).__name__}: {error}") from error
    if not isinstance(adapter, ProviderAdapter):
        raise UsageError(
            f"--adapter {name} gives {type(adapter).__name__}; "
            "name an adapter or a function that returns one"
        )
    return adapter


@contextmanager
def _logging(bus: EventBus, log: Path) -> Generator[None]:
    """Writes events to `log`; raises a disk error only at the end, since the answer is paid for."""
    failures: list[OSError] = []
    file = log.open("w", encoding="utf-8")

    def write(event: object) -> None:
        if not failures:
            try:
                file.write(json.dumps(event_record(event), ensure_ascii=False) + "\n")
                file.flush()
            except OSError as error:
                failures.append(error)

    bus.subscribe(Event, write)
    try:
        yield
    finally:
        with suppress(OSError):  # `write` has met it already
            file.close()
    if failures:
        raise UsageError(f"{log} is cut off: {failures[0]}") from failures[0]


class _LogLines(Handler):
    """Writes each warning of the library as one line, with the place of its exception."""

    def __init__(self, write: Callable[[Iterable[str]], None]) -> None:
        super().__init__(WARNING)
        self._write = write

    def emit(self, record: LogRecord) -> None:
        text = record.getMessage()
        if record.exc_info and (error := record.exc_info[1]) is not None:
            text = f"{text}: {format_exception_only(error)[-1]}"
            for frame, line in [*walk_tb(error.__traceback__)][-1:]:
                text = f"{text} ({Path(frame.f_code.co_filename).name}:{line})"
        self._write([single_line(text)])


@contextmanager
def _display() -> Generator[Callable[[object], None]]:
    """Yields a function that prints an event on stderr; a terminal shows the sums below."""
    console = Console(stderr=True, highlight=False, markup=False)
    timeline = Timeline()
    turns = calls = tokens = 0

    def write(lines: Iterable[str]) -> None:
        for line in lines:
            text = Text(line, no_wrap=True, overflow="ellipsis")
            console.print(text, soft_wrap=not console.is_terminal)

    def show_event(event: object) -> None:
        nonlocal turns, calls, tokens
        if isinstance(event, ProviderCalled):
            turns += 1
            tokens += event.usage.input_tokens + event.usage.output_tokens
        calls += isinstance(event, ToolInvoked)
        write(timeline.add(event_record(event)))
        sums = count_of(turns, "turn"), count_of(calls, "tool call"), count_of(tokens, "token")
        live.update(Text(", ".join(sums), style="bold"), refresh=True)

    with Live(console=console, auto_refresh=False, transient=not console.is_terminal) as live:
        logger, handler = getLogger("weakincentives"), _LogLines(write)
        logger.addHandler(handler)
        try:
            yield show_event
        finally:
            logger.removeHandler(handler)
            write(timeline.end())


@contextmanager
def _reading(log: Path) -> Generator[list[Record]]:
    """Yields the records in `log`; an error about them inside the block names the file."""
    try:
        with log.open(encoding="utf-8") as file:
            yield list(read_events(file))
    except ValueError as error:
        raise UsageError(f"{log}: {error}") from error
    except (LookupError, TypeError, AttributeError) as error:
        raise UsageError(f"{log}: an event lacks fields that wink writes") from error


def _clock(record: Record) -> str:
    """The time of day, in UTC."""
    return single_line(str(record.get("created_at", "")).partition("T")[2][:12])
