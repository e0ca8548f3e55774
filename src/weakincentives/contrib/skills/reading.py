"""Reads the folder of one skill as a value: its text, its fields, its headings, its files."""

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
_FENCE = re.compile(r"[ \t]*+(`{3,}+(?!.*`)|~{3,}+)(.*)")  # possessive: no time to steal
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]")
_MAX_HEADINGS = 300


@dataclass(slots=True)
class Heading:
    """A heading of the Markdown, or the whole of it: where line, text and subtree lie in `source`.

    A subtree is `source[start:end]`; its text begins at `body`.
    """

    title: str
    level: int
    start: int
    body: int
    end: int
    children: "list[Heading]"


@dataclass(frozen=True)
class Skill:
    """One skill as its folder has it.

    `source` is the text of its `file`, `SKILL.md`, with every byte; `start` is where its Markdown
    begins. `files` are the other files of the folder.
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
        """The name of the front matter, else of the folder."""
        return self.text("name") or self.folder.resolve().name

    def text(self, field: str) -> str:
        """Returns a field in one line; empty where the front matter lacks it."""
        return " ".join(self.fields[field].text.split()) if field in self.fields else ""

    @cached_property
    def markdown(self) -> Heading:
        """The headings as a tree, whose root is the whole Markdown; none if there are too many."""
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
    """Reads the skill in the folder `path`, or whose `SKILL.md` `path` is.

    Follows no link below the folder and runs nothing. Raises `SkillError` for what cannot be read:
    no `SKILL.md`, a link in its place, more than 1,000,000 bytes, no UTF-8; with `strict` also for
    every finding.
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
            message = f"{entry.path!r} is a link or a special file and is left out"
            reader.add(1, message, "copy the file to this place")
    files = tuple(entry for entry in entries if entry.kind == "file" and entry.path != file)
    if strict and reader.findings:
        raise SkillError(*reader.findings)
    return Skill(folder, file, source, start, fields, files, tuple(reader.findings))


def _headings(source: str, start: int) -> Iterator[tuple[str, int, int, int]]:
    """Yields title, level, start and end of each heading line outside of fenced code."""
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
            if words and not words[-1].strip("#"):  # the marks that may close a heading
                words.pop()
            if words:
                yield " ".join(words), len(match[1]), start, end
        start = end
