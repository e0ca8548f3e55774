"""`wink run`, `show` and `advise`: run a prompt, and later view the run and its cost."""

import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from typer import Argument, Exit, Option

from ..displays import count_of
from ..evaluation.approval import Decision
from ..evaluation.main_loop import ExecutionOptions, MainLoop
from ..evaluation.response import Completed, OutputDelta, PromptResponse, Restarted
from ..evaluation.suspension import RunSuspended
from ..inspection.costs import section_costs
from ..inspection.event_log import Record, event_record
from ..inspection.logged_entries import read_records
from ..inspection.run_timeline import Line, LoggedRun
from ..prompt.template import AnyPrompt
from ..runtime.events import Event, ProviderCalled, ToolInvoked
from ..runtime.session.session import Session
from .approval import ask, is_interactive, read_suspension, write_file
from .printing import output_so_far, print_lines, short_line, single_line, wide_console, write_json
from .run_options import (
    Adapter,
    Api,
    BaseUrl,
    Log,
    Message,
    Model,
    Setting,
    adapter_errors,
    load_loop,
    log_events,
    state_types,
    warnings_as_lines,
)
from .spending import Spending, spending
from .target import (
    Open,
    Params,
    Set,
    Summary,
    Tag,
    Target,
    UsageError,
    load_prompt,
    visibility_overrides,
)

__all__ = ["advise", "print_timeline", "reading", "record_errors", "run", "show"]

_CHARACTERS_PER_TOKEN = 4
_Suspend = Annotated[Path | None, Option(help="Store the run in this file if it needs approval.")]
_Resume = Annotated[Path | None, Option(help="Continue the run in this file; see wink approve.")]

_FRAME = 0.1  # seconds between two frames of a partial answer

type _Pause = Callable[[Callable[[], Decision]], Decision]
type _Display = tuple[Callable[[object], None], Callable[[OutputDelta], None] | None, _Pause]


def run(
    target: Target,
    message: Message = None,
    *,
    adapter: Adapter = None,
    model: Model = None,
    base_url: BaseUrl = None,
    api: Api = None,
    setting: Setting = None,
    params: Params = None,
    set_: Set = None,
    tag: Tag = None,
    open_: Open = None,
    summary: Summary = None,
    log: Log = None,
    suspend: _Suspend = None,
    resume: _Resume = None,
) -> None:
    """Evaluate a prompt: progress on stderr, the answer as JSON on stdout.

    On a terminal, asks about tool calls that need approval. Exits with 1 if the provider failed,
    and with 3 if the run was stored in the file of --suspend because it needs approval.
    """
    prompt = load_prompt(target, params, set_, tag)
    overrides = visibility_overrides(prompt, open_, summary)
    session = Session()
    with ExitStack() as stack:
        loop = load_loop(adapter, stack, setting, model=model, base_url=base_url, api=api)
        if log is not None:
            stack.enter_context(log_events(session.bus, log))
        options = ExecutionOptions(session=session, visibility_overrides=overrides, message=message)
        if resume is not None:
            options["suspension"] = suspension = read_suspension(resume)
            prompt.declare_state(session)
            types = state_types(suspension.session, target)
            session.restore(session.parse_snapshot(suspension.session, types=types))
        try:
            with _display() as (show_event, show_output, pause), adapter_errors(adapter):
                session.bus.subscribe(Event, show_event)
                if suspend is None and is_interactive():
                    options["approver"] = lambda preview: pause(lambda: ask(preview))
                answer = _evaluate(loop, prompt, options, show_output)
        except RunSuspended as suspended:
            raise _store(suspended, suspend or resume) from None
        if resume is not None:
            resume.unlink(missing_ok=True)
        write_json(answer, indent=None)


def _evaluate(
    loop: MainLoop,
    prompt: AnyPrompt,
    options: ExecutionOptions,
    show_output: Callable[[OutputDelta], None] | None,
) -> dict[str, object]:
    """Runs the prompt; a terminal shows a typed answer while it arrives."""
    output, restarts = prompt.structured_output, 0
    if output is None or output.container == "text" or show_output is None:
        result = loop.execute(prompt, **options)
        return _answer(result.whole_response, result.restarts)
    for event in loop.stream(prompt, **options):
        restarts += isinstance(event, Restarted)
        if isinstance(event, OutputDelta):
            show_output(event)
        elif isinstance(event, Completed):
            return _answer(event.response, restarts)
    raise AssertionError("a stream ends with Completed")


# Any: outputs of every type
def _answer(response: PromptResponse[Any], restarts: int) -> dict[str, object]:
    return {
        "output": response.output,
        "text": response.text,
        "restarts": restarts,
        "usage": response.usage,
    }


def show(log: Annotated[Path, Argument(help="A log from wink run --log.")]) -> None:
    """Print a logged run as a timeline."""
    with reading(log) as records:
        print_timeline(records)


def print_timeline(records: Sequence[Record]) -> None:
    """Prints a run's lines and its cost."""
    run = LoggedRun()
    lines = [f"{_clock(row):15}{_short(line)}" for row in records for line in run.add(row)]
    lines += [f"{'':15}{_short(line)}" for line in run.end()]
    if (total := spending(records)) is not None:
        lines.append(f"{'':15}{total.summary}")
    print_lines(lines)


def advise(
    logs: Annotated[list[Path], Argument(help="Logs from wink run --log.")],
    *,
    as_json: Annotated[bool, Option("--json", help="Print the costs as JSON.")] = False,
) -> None:
    """Print the cost of each section and tool in logged runs, and which sections to summarize."""
    records: list[Record] = []
    for log in logs:
        with reading(log) as rows:
            section_costs(rows)  # called once per log, so that an error names the file
            spending(rows)
            records += rows
    costs, total = section_costs(records), spending(records)
    if as_json:
        write_json(costs)
        return
    table = Table("section or tool", box=None, pad_edge=False, header_style="bold")
    dollars = ["dollars*"] if total else []
    for title in ("requests", "characters", "tokens*", *dollars, "opened or called"):
        table.add_column(title, justify="right")
    table.add_column("advice")
    for cost in costs:
        advice = cost.advice.visibility if cost.advice else ""
        name = single_line(f"{cost.prompt} {cost.path}")
        table.add_row(name, *_numbers(cost.requests, cost.sent, cost.opened, total), advice)
        for tool in cost.tools:
            name = f"  {single_line(tool.name)}"
            table.add_row(name, *_numbers(tool.requests, tool.sent, tool.calls, total), "")
    console = wide_console()
    console.print(table)
    console.print(f"* estimated at {_CHARACTERS_PER_TOKEN} characters each")
    if total is not None:
        console.print(total.summary, soft_wrap=True)
    for cost in costs:
        if cost.advice:
            text = f"{cost.advice.visibility} costs less. {cost.advice.arithmetic}"
            console.print(f"\n{single_line(f'{cost.path}')}: {text}", soft_wrap=True)


def _numbers(requests: int, sent: int, count: int, total: Spending | None) -> tuple[str, ...]:
    tokens = -(-sent // _CHARACTERS_PER_TOKEN)
    dollars = [] if total is None else [total.input_cost(tokens)]
    return f"{requests:,}", f"{sent:,}", f"{tokens:,}", *dollars, f"{count:,}"


def _store(suspended: RunSuspended, file: Path | None) -> Exception:
    """Stores a suspended run in a file; returns the exception that ends the program."""
    if file is None:
        return UsageError(f"{suspended}; here: --suspend FILE, then wink approve FILE")
    write_file(file, suspended.suspension.to_json())
    calls = count_of(len(suspended.suspension.pending), "call")
    sys.stderr.write(f"pending approval of {calls}: wink approve {file}\n")
    return Exit(3)


@contextmanager
def _display() -> Generator[_Display]:
    """Yields functions that print an event on stderr, show a partial answer, and pause the display.

    A terminal also shows totals below the events, and only a terminal shows partial answers.
    """
    console = Console(stderr=True, highlight=False, markup=False)
    is_live = console.is_terminal and not console.is_dumb_terminal
    run = LoggedRun()
    turns = calls = tokens = 0
    totals, last_frame = Text(), 0.0

    def write(lines: Iterable[str]) -> None:
        for line in lines:
            text = Text(line, no_wrap=True, overflow="ellipsis")
            console.print(text, soft_wrap=not console.is_terminal)

    def show_event(event: object) -> None:
        nonlocal turns, calls, tokens, totals
        if isinstance(event, ProviderCalled):
            turns += 1
            tokens += event.usage.input_tokens + event.usage.output_tokens
        calls += isinstance(event, ToolInvoked)
        write(map(_short, run.add(event_record(event))))
        sums = count_of(turns, "turn"), count_of(calls, "tool call"), count_of(tokens, "token")
        totals = Text(", ".join(sums), style="bold")
        live.update(totals, refresh=True)

    def show_output(delta: OutputDelta) -> None:
        nonlocal last_frame
        if (now := monotonic()) >= last_frame + _FRAME:
            last_frame = now
            live.update(Group(output_so_far(delta, console), totals), refresh=True)

    def pause(ask_user: Callable[[], Decision]) -> Decision:
        live.stop()
        try:
            return ask_user()
        finally:
            live.start()

    with Live(console=console, auto_refresh=False, transient=not console.is_terminal) as live:
        try:
            with warnings_as_lines(write):
                yield show_event, show_output if is_live else None, pause
        finally:
            write(map(_short, run.end()))


@contextmanager
def reading(log: Path, clean: Callable[[str], str] | None = None) -> Generator[list[Record]]:
    """Yields the records in `log`; errors that they cause inside the block name the file.

    `clean` is applied to each line first.
    """

    def note(lines: Iterable[str]) -> None:
        sys.stderr.writelines(f"wink: {log}: {line}\n" for line in lines)

    with record_errors(str(log)):
        try:
            with warnings_as_lines(note), log.open(encoding="utf-8-sig") as file:
                records = read_records(file, clean)
        except ValueError as error:
            raise UsageError(f"{log}: {error}") from error
        yield records


@contextmanager
def record_errors(name: str) -> Generator[None]:
    """Reports errors in records that wink did not write, naming the log."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        raise UsageError(f"{name}: an event lacks fields that wink writes") from error
    except RecursionError as error:
        raise UsageError(f"{name}: a value in an event is nested too deeply") from error


def _short(line: Line) -> str:
    """Makes a line safe for a terminal, and indents it below its parent evaluations."""
    return short_line("    " * line.depth, line.text)


def _clock(record: Record) -> str:
    """Returns the record's time of day in UTC."""
    return single_line(str(record.get("created_at", "")).partition("T")[2][:12])
