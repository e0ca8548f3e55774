"""`wink chat`: chat with a prompt on the terminal."""

import sys
from collections.abc import Iterable
from contextlib import ExitStack, closing, suppress
from importlib import import_module
from pathlib import Path
from shutil import copytree
from typing import Annotated

from typer import Option

from ..content import ContentStore, FolderContentStore, MemoryContentStore
from ..displays import count_of
from ..errors import SerdeError, WeakIncentivesError
from ..evaluation.approval import Decision, Preview
from ..evaluation.chat import Chat
from ..evaluation.messages import ToolsAdded, ToolsRemoved
from ..evaluation.response import (
    AnswerRejected,
    ApprovalRequested,
    Completed,
    OutputDelta,
    ReasoningDelta,
    Restarted,
    StreamEvent,
    TextDelta,
    ToolCallFinished,
    ToolCallStarted,
)
from ..prompt.template import AnyPrompt
from ..runtime.events import Compacted
from ..runtime.session.session import Session
from .approval import ask, is_interactive, write_file
from .printing import LiveOutput, as_json, printable, short_line, source_line
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
from .target import (
    Open,
    Params,
    Set,
    Summary,
    Tag,
    Target,
    UsageError,
    load_prompt,
    read_text,
    visibility_overrides,
)

__all__ = ["chat"]

_Save = Annotated[Path | None, Option(help="Save the chat to this file after each turn.")]
_Resume = Annotated[
    Path | None, Option(help="Continue the chat in this file; without --save, save it there.")
]


def chat(
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
    save: _Save = None,
    resume: _Resume = None,
) -> None:
    """Chat with a prompt: answers on stdout, tools and sections on stderr.

    MESSAGE is the first message. Press Ctrl-C to stop a turn, and Ctrl-D to end the chat. If the
    input is not a terminal, each line is a message, and a provider error ends the chat with exit
    code 1.
    """
    prompt = load_prompt(target, params, set_, tag)
    overrides = visibility_overrides(prompt, open_, summary)
    file = save or resume
    session, screen = Session(content=_content_store(file, resume)), _Screen(prompt, message)
    prompt.render(session=session, visibility_overrides=overrides)  # raises if params are missing
    with ExitStack() as stack:
        loop = load_loop(adapter, stack, setting, model=model, base_url=base_url, api=api)
        talk = Chat(loop, prompt, session=session)
        if resume is not None:
            turns = _restore(talk, session, resume, target)
            screen.write_lines([f"{resume}: continues after {count_of(turns, 'turn')}"])
        elif save is not None and save.exists():
            raise UsageError(f"{save} exists; continue it with --resume {save}, or delete it")
        if log is not None:
            stack.enter_context(log_events(session.bus, log))
        stack.enter_context(warnings_as_lines(screen.write_lines))
        stack.enter_context(adapter_errors(adapter))
        stack.enter_context(prompt.resources)  # kept open between turns
        if file is not None:
            _save(session, file)  # fails early if the file cannot be written
        while (text := screen.read_message()) is not None:
            try:
                approver = screen.ask if is_interactive() else None
                stream = talk.stream(text, visibility_overrides=overrides, approver=approver)
                with closing(stream) as events, closing(screen):
                    for event in events:
                        screen.show(event)
            except KeyboardInterrupt:
                screen.write_lines(["stopped; press Ctrl-D to end the chat"])
            except WeakIncentivesError as error:
                if not screen.interactive:
                    raise
                screen.write_lines([f"wink: {error}"])
            finally:
                if file is not None:
                    _save(session, file)


def _content_store(file: Path | None, resume: Path | None) -> ContentStore:
    """Returns a store in a folder next to the chat's file, with any resumed chat's content."""
    if file is None:
        return MemoryContentStore()
    if resume is not None and resume != file and _content_folder(resume).is_dir():
        copytree(_content_folder(resume), _content_folder(file), dirs_exist_ok=True)
    return FolderContentStore(_content_folder(file))


def _content_folder(file: Path) -> Path:
    return file.with_name(f"{file.name}.content")


class _Screen:
    """Shows the events of a chat and reads the user's messages.

    On a terminal, text is shown as soon as it arrives, and a typed answer as far as it has arrived,
    until it is complete. In a file or pipe, an answer is written only once it is final, because
    text that has been written cannot be removed.
    """

    def __init__(self, prompt: AnyPrompt, first: str | None) -> None:
        self._first = first
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()
        output = prompt.structured_output
        is_typed = output is not None and output.container != "text"
        live = LiveOutput() if is_typed else None
        self._live = live if live is not None and live.is_supported else None
        self._streams = sys.stdout.isatty() and self._live is None
        self._in_text = False  # whether the last output was the model's text
        self._reasoning: list[str] = []  # the chunks of reasoning that is not complete
        self._turn_has_text = False
        if self.interactive:
            with suppress(ImportError):  # not available on Windows
                import_module("readline")  # adds editing keys to `input`

    def read_message(self) -> str | None:
        """Returns the user's next non-blank message, or `None` at the end of the input."""
        self._turn_has_text = False
        if (first := self._first) is not None:
            self._first = None
            return first
        while True:
            try:
                line = input("> ") if self.interactive else next(sys.stdin).rstrip("\n")
            except (EOFError, StopIteration):
                self._in_text = self.interactive  # the cursor is after the prompt
                self._end_line()
                return None
            except KeyboardInterrupt:
                if not self.interactive:
                    raise
                self._in_text = True
                self.write_lines(["press Ctrl-D to end the chat"])
                continue
            if line.strip():
                return line

    def show(self, event: StreamEvent[object]) -> None:  # noqa: C901 - one case for each event
        """Shows one event of a turn; reasoning is one line, written once it is complete."""
        if self._reasoning and not isinstance(event, ReasoningDelta):
            reasoning, self._reasoning = "".join(self._reasoning), []
            self.write_lines([f"  thinks: {reasoning}"])
        match event:
            case TextDelta(text):
                if self._streams:
                    self._write_text(text)
            case ReasoningDelta(text):
                self._reasoning.append(text)
            case OutputDelta():
                if self._live is not None:
                    self._live.show(event)
            case ToolCallStarted(call):
                self.write_lines([f"  {call.name} {call.arguments}"])
            case ToolCallFinished(call, message):
                outcome = "ok" if message.success else "failed"
                self.write_lines([f"  {call.name} {outcome}: {message.content}"])
            case ApprovalRequested():  # shown by `ask`
                self._end_line()
            case ToolsAdded(tools):
                self.write_lines([f"  new tools: {', '.join([tool.name for tool in tools])}"])
            case ToolsRemoved(names):
                self.write_lines([f"  closed tools: {', '.join(names)}"])
            case AnswerRejected(reason):
                self._discard_text(f"  rejected: {reason}")
            case Restarted(section_keys, reason):
                self._discard_text(f"  restarts with {', '.join(section_keys)} open: {reason}")
            case Compacted(tokens_before=before, tokens_after=after):
                self.write_lines([f"  compacted conversation: {before:,} to {after:,} tokens"])
            case Completed(response):
                if not self._in_text:
                    is_shown = self._live is not None and response.output is not None
                    self._write_text(as_json(response.output) if is_shown else response.text)
                self._end_line()
                sources = [source_line(it, response.text) for it in response.citations]
                sys.stderr.writelines(sources)

    def ask(self, preview: Preview) -> Decision:
        """Asks the user about a tool call."""
        self._end_line()
        return ask(preview)

    def write_lines(self, lines: Iterable[str]) -> None:
        """Prints lines about the turn on standard error."""
        self._end_line()
        sys.stderr.writelines(f"{short_line('', line)}\n" for line in lines)
        sys.stderr.flush()

    def _discard_text(self, reason: str) -> None:
        note = ["  the text above is discarded"] if self._turn_has_text else []
        self.write_lines([reason, *note])
        self._turn_has_text = False

    def _write_text(self, text: str) -> None:
        self.close()
        sys.stdout.write(printable(text))
        sys.stdout.flush()
        self._in_text = self._turn_has_text = True

    def close(self) -> None:
        """Removes the typed answer so far from the terminal."""
        if self._live is not None:
            self._live.hide()

    def _end_line(self) -> None:
        self.close()
        if self._in_text:
            sys.stdout.write("\n")
            sys.stdout.flush()
        self._in_text = False


def _restore[Out](chat: Chat[Out], session: Session, file: Path, target: str) -> int:
    """Restores the chat's session from the file; returns the number of turns so far."""
    text = read_text(file)
    try:
        session.restore(session.parse_snapshot(text, types=state_types(text, target)))
    except SerdeError as error:
        raise UsageError(f"{file} is not a chat of {target}: {error}") from error
    if chat.conversation is None:
        raise UsageError(f"{file} has no chat of {chat.prompt.ns}/{chat.prompt.key}")
    return len(chat.conversation.turns)


def _save(session: Session, file: Path) -> None:
    """Stores the session's snapshot; on an error, the file keeps its old content."""
    write_file(file, session.snapshot().to_json())
