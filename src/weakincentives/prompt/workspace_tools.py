"""The file tools of a workspace: what the model can ask for, and how files are shown to it.

Files are reached through the `Filesystem` resource alone; where that comes from is not known here.
"""

import re
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import islice
from typing import Any

from ..errors import WeakIncentivesError
from ..filesystem import FileStat, Filesystem, GrepMatch
from .context import ToolContext
from .errors import ToolValidationError
from .tool import AnyTool, Effect, Tool, ToolHandler, ToolResult

__all__ = ["READING_TOOLS", "WRITING_TOOLS", "FileText", "Listing", "Matches"]

# characters of an answer, a line of a file, a line found
_MAX_TEXT, _MAX_LINE, _MAX_MATCH = 40_000, 2_000, 500
_AROUND, _MAX_EDITED = 3, 40  # lines shown around an edit, and in all

_FILE = {"description": "Path of the file below the root, such as 'src/app.py'."}
_DIRECTORY = {"description": "Path of a directory below the root; '.' is the root."}
_OFFSET = {"description": "The first one to show, counted from 1."}
_LIMIT = {"description": "How many to show at most."}


@dataclass(frozen=True, slots=True)
class ListDirectoryParams:
    """Arguments of `list_directory`."""

    path: str = field(default=".", metadata=_DIRECTORY)
    offset: int = field(default=1, metadata=_OFFSET)
    limit: int = field(default=200, metadata=_LIMIT)


@dataclass(frozen=True, slots=True)
class ReadFileParams:
    """Arguments of `read_file`."""

    path: str = field(metadata=_FILE)
    offset: int = field(
        default=1, metadata={"description": "The first line to show, counted from 1."}
    )
    limit: int = field(default=2_000, metadata={"description": "How many lines to show at most."})


@dataclass(frozen=True, slots=True)
class GlobParams:
    """Arguments of `glob`."""

    pattern: str = field(
        metadata={"description": "Such as '**/*.py'; '*' stays within a directory, '**' does not."}
    )
    path: str = field(default=".", metadata=_DIRECTORY)
    offset: int = field(default=1, metadata=_OFFSET)
    limit: int = field(default=200, metadata=_LIMIT)


@dataclass(frozen=True, slots=True)
class GrepParams:
    """Arguments of `grep`."""

    pattern: str = field(
        metadata={"description": "A regular expression; no look-around, no back-references."}
    )
    path: str = field(
        default=".", metadata={"description": "Directory or file to search; '.' is the root."}
    )
    glob: str = field(
        default="**", metadata={"description": "Searches only files that match, such as '**/*.py'."}
    )
    ignore_case: bool = field(default=False, metadata={"description": "Whether 'a' finds 'A'."})
    offset: int = field(default=1, metadata=_OFFSET)
    limit: int = field(default=100, metadata=_LIMIT)


@dataclass(frozen=True, slots=True)
class WriteFileParams:
    """Arguments of `write_file`."""

    path: str = field(metadata=_FILE)
    content: str = field(metadata={"description": "The whole new content."})


@dataclass(frozen=True, slots=True)
class EditFileParams:
    """Arguments of `edit_file`."""

    path: str = field(metadata=_FILE)
    old: str = field(
        metadata={
            "description": "The text to replace, exactly as in the file, without line numbers."
        }
    )
    new: str = field(metadata={"description": "The text that takes its place; may be empty."})
    replace_all: bool = field(
        default=False, metadata={"description": "Replaces every occurrence, not just the one."}
    )


@dataclass(frozen=True, slots=True)
class RemoveParams:
    """Arguments of `remove`."""

    path: str = field(metadata={"description": "Path of the file or directory below the root."})
    recursive: bool = field(
        default=False, metadata={"description": "Removes a directory with all that it holds."}
    )


@dataclass(frozen=True, slots=True)
class Listing:
    """Files and directories; the model sees one a line."""

    entries: tuple[FileStat, ...]

    def render(self) -> str:
        return "\n".join(map(_entry, self.entries))


@dataclass(frozen=True, slots=True)
class FileText:
    """Lines of a file, the first of them its line `offset`, without their ends; the model sees them
    as by `cat -n`.
    """

    path: str
    offset: int
    lines: tuple[str, ...]

    def render(self) -> str:
        return "\n".join(
            f"{number:>6}\t{line}" for number, line in enumerate(self.lines, self.offset)
        )


@dataclass(frozen=True, slots=True)
class Matches:
    """Lines that were found; the model sees them as by `grep -n`."""

    matches: tuple[GrepMatch, ...]

    def render(self) -> str:
        return "\n".join(map(_match, self.matches))


@contextmanager
def _answering_errors() -> Generator[None]:
    """Turns what a filesystem refuses into an answer to the model, which is not logged."""
    try:
        yield
    except (OSError, ValueError, WeakIncentivesError) as error:
        raise ToolValidationError(str(error)) from error


def _on_files[P, R](handler: Callable[[P, Filesystem], ToolResult[R]]) -> ToolHandler[P, R]:
    """Gives `handler` the filesystem."""

    @wraps(handler)
    def handle(params: P, /, *, context: ToolContext) -> ToolResult[R]:
        filesystem = context.resources.get(Filesystem)
        with _answering_errors():
            return handler(params, filesystem)

    return handle


@_on_files
def list_directory(params: ListDirectoryParams, filesystem: Filesystem) -> ToolResult[Listing]:
    """List what a directory holds; directories end in '/'."""
    said, entries = _page(
        f"Entries of {params.path!r}", filesystem.list(params.path), params, _entry
    )
    return ToolResult(said, Listing(entries))


@_on_files
def read_file(params: ReadFileParams, filesystem: Filesystem) -> ToolResult[FileText]:
    """Read a text file with line numbers; page through a long one with offset and limit."""
    text = _lines(_text(filesystem, params.path))
    said, lines = _page(f"Lines of {params.path!r}", text, params, "123456\t{}".format)
    return ToolResult(said, FileText(params.path, params.offset, lines))


@_on_files
def glob(params: GlobParams, filesystem: Filesystem) -> ToolResult[Listing]:
    """Find files by a pattern of their path, such as '**/*.py'."""
    found = filesystem.glob(params.pattern, params.path)
    said, entries = _page(f"Files that match {params.pattern!r:.200}", found, params, _entry)
    return ToolResult(said, Listing(entries))


def grep(params: GrepParams, /, *, context: ToolContext) -> ToolResult[Matches]:
    """Search the text of files by a regular expression, line by line; binary files are skipped."""
    filesystem = context.resources.get(Filesystem)
    with _answering_errors():
        found = filesystem.grep(
            params.pattern,
            params.path,
            glob=params.glob,
            ignore_case=params.ignore_case,
            deadline=context.deadline,
        )
        cut = (replace(match, line=_cut(match.line, _MAX_MATCH)) for match in found)
        said, matches = _page(f"Lines that match {params.pattern!r:.200}", cut, params, _match)
        return ToolResult(said, Matches(matches))


@_on_files
def write_file(params: WriteFileParams, filesystem: Filesystem) -> ToolResult[FileStat]:
    """Write a whole text file; makes missing directories and replaces what was there."""
    did = "Replaced" if filesystem.exists(params.path) else "Created"
    filesystem.write_text(params.path, params.content)
    said = f"{did} {params.path!r}. Lines: {len(_lines(params.content))}."
    return ToolResult(said, filesystem.stat(params.path), exclude_value_from_context=True)


@_on_files
def edit_file(params: EditFileParams, filesystem: Filesystem) -> ToolResult[FileText]:
    """Replace text in a file; the old text must be there exactly once, unless replace_all is set."""
    path, old, new = params.path, params.old, params.new
    if not old or old == new:
        raise ToolValidationError(
            "old and new are the same text" if old else "old is empty; use write_file"
        )
    text = _text(filesystem, path)
    if "\r\n" in text and "\r" not in old + new and (windows := old.replace("\n", "\r\n")) in text:
        # how lines end is not shown, so they end as before
        old, new = windows, new.replace("\n", "\r\n")
    count = text.count(old)
    lines = [
        text.count("\n", 0, one.start()) + 1
        for one in islice(re.finditer(re.escape(old), text), 10)
    ]
    if not count:
        near = (
            " (it is with other white space)"
            if " ".join(old.split()) in " ".join(text.split())
            else ""
        )
        raise ToolValidationError(
            f"old is not in {path!r}{near}; copy it exactly from read_file, indentation included, line numbers left out"
        )
    if count > 1 and not params.replace_all:
        raise ToolValidationError(
            f"old is in {path!r} {count} times, at lines {', '.join(map(str, lines))}{', …' * (count > len(lines))}; "
            f"add lines around it until it is unique, or set replace_all"
        )
    size = len(text) + count * (len(new) - len(old))
    if size > filesystem.limits.file_bytes:  # asked before memory is spent
        raise ToolValidationError(
            f"{path!r} would have {size:,} characters, too many for a file here; replace fewer"
        )
    edited = text.replace(old, new)
    filesystem.write_text(path, edited)
    first = max(lines[0] - _AROUND, 1)
    last = min(lines[0] + new.removesuffix("\n").count("\n") + _AROUND, first + _MAX_EDITED - 1)
    return ToolResult(
        f"Edited {path!r}. Replaced: {count}.",
        FileText(path, first, _lines(edited)[first - 1 : last]),
    )


@_on_files
def remove(params: RemoveParams, filesystem: Filesystem) -> ToolResult[FileStat]:
    """Remove a file or, with recursive, a directory."""
    removed = filesystem.stat(params.path)
    filesystem.delete(params.path, recursive=params.recursive)
    return ToolResult(f"Removed {params.path!r}.", removed, exclude_value_from_context=True)


type _Paged = ListDirectoryParams | ReadFileParams | GlobParams | GrepParams


def _page[T](
    what: str, items: Iterable[T], params: _Paged, show: Callable[[T], str]
) -> tuple[str, tuple[T, ...]]:
    """What to say of `items`, and those that `params` ask for, as many as one answer can hold."""
    start, room, more = params.offset, _MAX_TEXT, ""
    if start < 1 or params.limit < 1:
        raise ToolValidationError(f"offset is {start} and limit {params.limit}; both count from 1")
    page: list[T] = []
    for item in islice(items, min(start, 2**31) - 1, None):
        room -= len(show(item)) + 1
        if len(page) == params.limit or room < 0:
            more = (
                f"; more follow, go on with offset={start + len(page)} or narrow what you ask for"
            )
            break
        page.append(item)
    if not page and start > 1:
        raise ToolValidationError(f"{what}: fewer than {start}; use a smaller offset")
    end = start + len(page) - 1
    total = f" of {len(items)}" if isinstance(items, Sequence) else ""
    return f"{what}: {f'{start} to {end}{total}' if more or start > 1 else end}{more}.", tuple(page)


def _text(filesystem: Filesystem, path: str) -> str:
    data = filesystem.read_bytes(path)
    fault = f"is a binary file of {len(data):,} bytes"
    if b"\0" not in data[:8192]:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            fault = f"is not UTF-8 text (byte 0x{data[error.start]:02x} at {error.start:,} of {len(data):,})"
    raise ToolValidationError(f"{path!r} {fault}; no tool here can show or edit it")


def _lines(text: str) -> tuple[str, ...]:
    """The lines as they are shown: cut at line feeds, as `grep` does, and the last one begins no
    further line.
    """
    lines = text.removesuffix("\n").split("\n") if text else []
    return tuple(_cut(line.removesuffix("\r"), _MAX_LINE) for line in lines)


def _cut(line: str, limit: int) -> str:
    return (
        line if len(line) <= limit else f"{line[:limit]}… ({len(line) - limit:,} more characters)"
    )


def _entry(stat: FileStat) -> str:
    kinds = {
        "directory": "/",
        "file": f" ({stat.size:,} bytes)",
        "other": " (no regular file, cannot be opened)",
    }
    return _name(stat.path) + kinds[stat.kind]


def _match(match: GrepMatch) -> str:
    return f"{_name(match.path)}:{match.line_number}: {match.line}"


def _name(path: str) -> str:
    # a line break in a name must not look like a further line
    return path if path.isprintable() else repr(path)


# Any: handlers of all types.
def _tools(effect: Effect, **handlers: ToolHandler[Any, Any]) -> tuple[AnyTool, ...]:
    return tuple(
        Tool(name=name, handler=handler, effect=effect) for name, handler in handlers.items()
    )


READING_TOOLS = _tools(
    "pure", list_directory=list_directory, read_file=read_file, glob=glob, grep=grep
)
WRITING_TOOLS = _tools("repeatable", write_file=write_file, edit_file=edit_file, remove=remove)
