"""Reads a skill's folder: its text, fields, headings and files."""

import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path

from ...errors import WeakIncentivesError
from ...filesystem import FileStat, FilesystemLimits, HostFilesystem
from .front_matter import Field, FrontMatterReader, SkillError, SkillFinding

__all__ = ["Heading", "Skill", "StrPath", "read_skill"]

type StrPath = str | PathLike[str]

_LIMITS = FilesystemLimits(file_bytes=1_000_000, entries=10_000)
_FENCE = re.compile(r"[ \t]*+(`{3,}+(?!.*`)|~{3,}+)(.*)")  # possessive, to prevent backtracking
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]")
_MAX_HEADINGS = 300


@dataclass(slots=True)
class Heading:
    """A Markdown heading with its subtree; the root represents the complete Markdown.

    The subtree is `source[start:end]`, and its text starts at `body`.
    """

    title: str
    level: int
    start: int
    body: int
    end: int
    children: "list[Heading]"


@dataclass(frozen=True)
class Skill:
    """One skill, read from its folder.

    `source` is the exact text of its `file`, `SKILL.md`; `start` is the position of its Markdown.
    `files` are the other files in the folder.
    """

    folder: Path
    file: str
    source: str
    start: int
    fields: Mapping[str, Field]
    files: tuple[FileStat, ...]
    findings: tuple[SkillFinding, ...]

    @property
    def name(self) -> str:
        """The name in the front matter, or the folder's name if there is none."""
        return self.text("name") or self.folder.resolve().name

    def text(self, field: str) -> str:
        """Returns a field as one line, or `""` if it is missing."""
        return " ".join(self.fields[field].text.split()) if field in self.fields else ""

    @cached_property
    def markdown(self) -> Heading:
        """The tree of headings; if there are too many, only its root, with all the Markdown."""
        root = Heading("", 0, self.start, self.start, len(self.source), [])
        stack = [root]
        headings = list(_headings(self.source, self.start))
        for title, level, start, body in headings if len(headings) <= _MAX_HEADINGS else ():
            while stack[-1].level >= level:
                stack.pop().end = start
            stack[-1].children.append(Heading(title, level, start, body, len(self.source), []))
            stack.append(stack[-1].children[-1])
        return root


def read_skill(path: StrPath, *, strict: bool = False) -> Skill:
    """Reads the skill at `path`, which is its folder or its `SKILL.md`.

    Does not follow links below the folder, and does not run anything. Raises `SkillError` if the
    skill cannot be read, because `SKILL.md` is missing, is a link, is larger than 1,000,000 bytes
    or is not UTF-8. With `strict`, any finding raises it.
    """
    folder = Path(path)
    if folder.name.lower() == "skill.md":
        folder = folder.parent
    file = "SKILL.md"
    try:
        with closing(
            HostFilesystem(folder, read_only=True, hard_links=True, limits=_LIMITS)
        ) as host:
            entries = [entry for entry in host.walk() if ".git" not in entry.path.split("/")]
            names = {entry.path for entry in entries}
            file = next((name for name in ("SKILL.md", "skill.md") if name in names), file)
            data = host.read_bytes(file)
        source = data.decode()
        if "\0" in source:
            raise ValueError("it contains a NUL character, so it is not a text file")
    except (OSError, ValueError, WeakIncentivesError) as error:
        remedy = "give the folder of a skill, whose SKILL.md is a text file in UTF-8"
        raise SkillError(SkillFinding(str(folder / file), 1, str(error), remedy)) from error
    reader = FrontMatterReader(str(folder / file), [])
    start, fields = reader.read(source)
    reader.check(fields, folder.resolve().name)
    if sum(1 for _ in _headings(source, start)) > _MAX_HEADINGS:
        message = f"it has more than {_MAX_HEADINGS} headings, so it stays one section"
        reader.add(1, message, "move parts of it to files in references/")
    for entry in entries:
        if entry.kind == "other":
            message = f"{entry.path!r} is a link or a special file, so it is skipped"
            reader.add(1, message, "copy the file to this place")
    files = tuple(entry for entry in entries if entry.kind == "file" and entry.path != file)
    if strict and reader.findings:
        raise SkillError(*reader.findings)
    return Skill(folder, file, source, start, fields, files, tuple(reader.findings))


def _headings(source: str, start: int) -> Iterator[tuple[str, int, int, int]]:
    """Yields the title, level, start and end of each heading line outside fenced code."""
    fence = ""
    while start < len(source):
        end = source.find("\n", start) + 1 or len(source)
        line = source[start:end]
        if mark := _FENCE.match(line):
            if not fence:
                fence = mark[1]
            elif mark[1].startswith(fence) and not mark[2].strip():
                fence = ""
        elif not fence and (match := _HEADING.match(line)):
            words = line[match.end() :].split()
            if words and not words[-1].strip("#"):  # a heading's optional closing marks
                words.pop()
            if words:
                yield " ".join(words), len(match[1]), start, end
        start = end
