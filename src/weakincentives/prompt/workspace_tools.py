"""The file tools of a workspace: their params, handlers and results.

Handlers use the `Filesystem` resource; this module does not know where the resource comes from.
"""

import re
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NoReturn

from ..content import ContentError, Document, Image, Media, MediaSupport
from ..displays import cut, name_in_line
from ..errors import WeakIncentivesError
from ..filesystem import FileStat, Filesystem, GrepMatch
from ..filesystem.search import is_text
from .context import ToolContext
from .errors import ToolValidationError
from .tool import AnyTool, AnyToolHandler, Effect, Tool, ToolResult

__all__ = ["READING_TOOLS", "WRITING_TOOLS", "FileText", "Listing", "Matches"]

# the maximum number of characters in an answer, in a line of a file, and in a matching line
_MAX_ANSWER, _MAX_LINE, _MAX_MATCH = 40_000, 2_000, 500
_CONTEXT_LINES, _MAX_EDITED_LINES = 3, 40  # lines around an edit, and the total maximum

_FILE = {"description": "Path of the file below the root, such as 'src/app.py'."}
_DIRECTORY = {"description": "Path of a directory below the root; '.' is the root."}
_OFFSET = {"description": "The first one to show, counted from 1."}
_LIMIT = {"description": "How many to show at most."}
_FIRST_LINE = {"description": "The first line to show, counted from 1."}
_MAX_LINES = {"description": "How many lines to show at most."}
_GLOB = {"description": "Such as '**/*.py'; '*' stays within a directory, '**' does not."}
_REGEX = {"description": "A regular expression; no look-around, no back-references."}
_SEARCHED = {"description": "Directory or file to search; '.' is the root."}
_ONLY = {"description": "Searches only files that match, such as '**/*.py'."}
_IGNORE_CASE = {"description": "Whether 'a' finds 'A'."}
_CONTENT = {"description": "The whole new content."}
_OLD = {"description": "The text to replace, exactly as in the file, without line numbers."}
_NEW = {"description": "The text that takes its place; may be empty."}
_REPLACE_ALL = {"description": "Replaces every occurrence, not just the one."}
_ENTRY = {"description": "Path of the file or directory below the root."}
_RECURSIVE = {"description": "Removes a directory with all that it holds."}


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
    offset: int = field(default=1, metadata=_FIRST_LINE)
    limit: int = field(default=2_000, metadata=_MAX_LINES)


@dataclass(frozen=True, slots=True)
class GlobParams:
    """Arguments of `glob`."""

    pattern: str = field(metadata=_GLOB)
    path: str = field(default=".", metadata=_DIRECTORY)
    offset: int = field(default=1, metadata=_OFFSET)
    limit: int = field(default=200, metadata=_LIMIT)


@dataclass(frozen=True, slots=True)
class GrepParams:
    """Arguments of `grep`."""

    pattern: str = field(metadata=_REGEX)
    path: str = field(default=".", metadata=_SEARCHED)
    glob: str = field(default="**", metadata=_ONLY)
    ignore_case: bool = field(default=False, metadata=_IGNORE_CASE)
    offset: int = field(default=1, metadata=_OFFSET)
    limit: int = field(default=100, metadata=_LIMIT)


@dataclass(frozen=True, slots=True)
class WriteFileParams:
    """Arguments of `write_file`."""

    path: str = field(metadata=_FILE)
    content: str = field(metadata=_CONTENT)


@dataclass(frozen=True, slots=True)
class EditFileParams:
    """Arguments of `edit_file`."""

    path: str = field(metadata=_FILE)
    old: str = field(metadata=_OLD)
    new: str = field(metadata=_NEW)
    replace_all: bool = field(default=False, metadata=_REPLACE_ALL)


@dataclass(frozen=True, slots=True)
class RemoveParams:
    """Arguments of `remove`."""

    path: str = field(metadata=_ENTRY)
    recursive: bool = field(default=False, metadata=_RECURSIVE)


@dataclass(frozen=True, slots=True)
class Listing:
    """Files and directories; the model sees one per line."""

    entries: tuple[FileStat, ...]

    def render(self) -> str:
        return "\n".join(map(_entry_line, self.entries))


@dataclass(frozen=True, slots=True)
class FileText:
    """A file's lines without line endings, from `offset` on; the model sees `cat -n` format."""

    path: str
    offset: int
    lines: tuple[str, ...]

    def render(self) -> str:
        numbered = enumerate(self.lines, self.offset)
        return "\n".join(f"{number:>6}\t{line}" for number, line in numbered)


@dataclass(frozen=True, slots=True)
class Matches:
    """Matching lines; the model sees them in the format of `grep -n`."""

    matches: tuple[GrepMatch, ...]

    def render(self) -> str:
        return "\n".join(map(_match_line, self.matches))


@contextmanager
def _files(context: ToolContext) -> Generator[Filesystem]:
    """Yields the filesystem; its errors are reported to the model and not logged."""
    filesystem = context.resources.get(Filesystem)
    try:
        yield filesystem
    except (OSError, ValueError, WeakIncentivesError) as error:
        raise ToolValidationError(str(error)) from error


def list_directory(params: ListDirectoryParams, /, *, context: ToolContext) -> ToolResult[Listing]:
    """List what a directory holds; directories end in '/'."""
    with _files(context) as files:
        entries = files.list(params.path)
        message, page = _page(f"Entries of {params.path!r}", entries, params, _entry_line)
    return ToolResult(message, Listing(page))


def read_file(params: ReadFileParams, /, *, context: ToolContext) -> ToolResult[FileText]:
    """Read a text file with line numbers, in pages by offset and limit; or see an image or PDF."""
    with _files(context) as files:
        data = files.read_bytes(params.path)
        if media := _visible_media(params.path, data, context.adapter.media):
            message = f"{params.path!r} is {media.mime} of {len(data):,} bytes."
            return ToolResult(message, media=[media])
        lines = _lines(_text_of(params.path, data))
        message, page = _page(f"Lines of {params.path!r}", lines, params, "123456\t{}".format)
    return ToolResult(message, FileText(params.path, params.offset, page))


def glob(params: GlobParams, /, *, context: ToolContext) -> ToolResult[Listing]:
    """Find files by a pattern of their path, such as '**/*.py'."""
    with _files(context) as files:
        matching = files.glob(params.pattern, params.path)
        subject = f"Files that match {params.pattern!r:.200}"
        message, page = _page(subject, matching, params, _entry_line)
    return ToolResult(message, Listing(page))


def grep(params: GrepParams, /, *, context: ToolContext) -> ToolResult[Matches]:
    """Search the text of files by a regular expression, line by line; binary files are skipped."""
    with _files(context) as files:
        matches = files.grep(
            params.pattern,
            params.path,
            glob=params.glob,
            ignore_case=params.ignore_case,
            deadline=context.deadline,
        )
        shown = (replace(match, line=cut(match.line, _MAX_MATCH)) for match in matches)
        subject = f"Lines that match {params.pattern!r:.200}"
        message, page = _page(subject, shown, params, _match_line)
    return ToolResult(message, Matches(page))


def write_file(params: WriteFileParams, /, *, context: ToolContext) -> ToolResult[FileStat]:
    """Write a whole text file; makes missing directories and replaces what was there."""
    with _files(context) as files:
        verb = "Replaced" if files.exists(params.path) else "Created"
        files.write_text(params.path, params.content)
        message = f"{verb} {params.path!r}. Lines: {len(_lines(params.content))}."
        return ToolResult(message, files.stat(params.path), exclude_value_from_context=True)


def edit_file(params: EditFileParams, /, *, context: ToolContext) -> ToolResult[FileText]:
    """Replace text in a file; the old text must be there exactly once unless replace_all is set."""
    path, old, new = params.path, params.old, params.new
    if not old or old == new:
        problem = "old and new are the same text" if old else "old is empty; use write_file"
        raise ToolValidationError(problem)
    with _files(context) as files:
        text = _read_text(files, path)
        if "\r\n" in text and "\r" not in old + new and old.replace("\n", "\r\n") in text:
            # the model does not see line endings, so keep the file's own
            old, new = old.replace("\n", "\r\n"), new.replace("\n", "\r\n")
        count = text.count(old)
        occurrences = islice(re.finditer(re.escape(old), text), 10)
        lines = [text.count("\n", 0, match.start()) + 1 for match in occurrences]
        if not count:
            _refuse_missing(path, old, text)
        if count > 1 and not params.replace_all:
            places = ", ".join(map(str, lines)) + ", …" * (count > len(lines))
            raise ToolValidationError(
                f"old appears {count} times in {path!r}, at lines {places}; add surrounding lines "
                "until it is unique, or set replace_all"
            )
        size = len(text) + count * (len(new) - len(old))
        if size > files.limits.file_bytes:  # checked before the memory is used
            raise ToolValidationError(
                f"{path!r} would have {size:,} characters, which is too large for a file here; "
                "replace fewer occurrences"
            )
        edited = text.replace(old, new)
        files.write_text(path, edited)
    first = max(lines[0] - _CONTEXT_LINES, 1)
    last = lines[0] + new.removesuffix("\n").count("\n") + _CONTEXT_LINES
    shown = _lines(edited)[first - 1 : min(last, first + _MAX_EDITED_LINES - 1)]
    return ToolResult(f"Edited {path!r}. Replaced: {count}.", FileText(path, first, shown))


def remove(params: RemoveParams, /, *, context: ToolContext) -> ToolResult[FileStat]:
    """Remove a file or, with recursive, a directory."""
    with _files(context) as files:
        removed = files.stat(params.path)
        files.delete(params.path, recursive=params.recursive)
    return ToolResult(f"Removed {params.path!r}.", removed, exclude_value_from_context=True)


def _refuse_missing(path: str, old: str, text: str) -> NoReturn:
    spaced = " ".join(old.split()) in " ".join(text.split())
    hint = " (it appears with different white space)" if spaced else ""
    raise ToolValidationError(
        f"cannot find old in {path!r}{hint}; copy it exactly from read_file, with its indentation "
        "and without line numbers"
    )


type _PageParams = ListDirectoryParams | ReadFileParams | GlobParams | GrepParams


def _page[T](
    subject: str, items: Iterable[T], params: _PageParams, show: Callable[[T], str]
) -> tuple[str, tuple[T, ...]]:
    """Returns a message about `items`, and the requested items that fit in one answer."""
    start, remaining, more = params.offset, _MAX_ANSWER, ""
    if start < 1 or params.limit < 1:
        raise ToolValidationError(
            f"offset and limit must be at least 1, got {start} and {params.limit}"
        )
    page: list[T] = []
    for item in islice(items, min(start, 2**31) - 1, None):
        remaining -= len(show(item)) + 1
        if len(page) == params.limit or remaining < 0:
            following = start + len(page)
            more = f"; more follow, go on with offset={following} or narrow what you ask for"
            break
        page.append(item)
    if not page and start > 1:
        raise ToolValidationError(f"{subject}: fewer than {start}; use a smaller offset")
    end = start + len(page) - 1
    total = f" of {len(items)}" if isinstance(items, Sequence) else ""
    extent = f"{start} to {end}{total}" if more or start > 1 else end
    return f"{subject}: {extent}{more}.", tuple(page)


def _visible_media(path: str, data: bytes, support: MediaSupport) -> Image | Document | None:
    """Returns a file as an image or PDF, if the model can see it."""
    name = path.rpartition("/")[2]
    try:
        media = Media.from_bytes(data, name=name if name.isprintable() else "")
    except ContentError:
        return None
    if support.problem_in_result(media) or not isinstance(media, Image | Document):
        return None
    return media


def _read_text(files: Filesystem, path: str) -> str:
    return _text_of(path, files.read_bytes(path))


def _text_of(path: str, data: bytes) -> str:
    problem = f"is a binary file of {len(data):,} bytes"
    if is_text(data):
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            byte = f"byte 0x{data[error.start]:02x} at {error.start:,} of {len(data):,}"
            problem = f"is not UTF-8 text ({byte})"
    raise ToolValidationError(f"{path!r} {problem}; no tool here can show or edit it")


def _lines(text: str) -> tuple[str, ...]:
    """Splits at line feeds, like `grep`, and truncates long lines; drops an empty last line."""
    lines = text.removesuffix("\n").split("\n") if text else []
    return tuple(cut(line.removesuffix("\r"), _MAX_LINE) for line in lines)


def _entry_line(stat: FileStat) -> str:
    kinds = {
        "directory": "/",
        "file": f" ({stat.size:,} bytes)",
        "other": " (no regular file, cannot be opened)",
    }
    return name_in_line(stat.path) + kinds[stat.kind]


def _match_line(match: GrepMatch) -> str:
    return f"{name_in_line(match.path)}:{match.line_number}: {match.line}"


def _tools(effect: Effect, **handlers: AnyToolHandler) -> tuple[AnyTool, ...]:
    named = handlers.items()
    return tuple(Tool(name=name, handler=handler, effect=effect) for name, handler in named)


READING_TOOLS = _tools(
    "pure", list_directory=list_directory, read_file=read_file, glob=glob, grep=grep
)
WRITING_TOOLS = _tools("repeatable", write_file=write_file, edit_file=edit_file, remove=remove)
