"""Reads the folder of one skill as a value: front matter, text, headings, files, and its faults.

The rules are those of agentskills.io and of its validator. YAML is parsed to nodes alone: nothing
is constructed, and aliases are never expanded.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unicodedata import normalize

from ...errors import WeakIncentivesError
from ...filesystem import FileStat, FilesystemLimits, HostFilesystem
from ...prompt.errors import PromptValidationError

try:
    import yaml
except ImportError as error:
    raise ImportError(f"{__name__} needs PyYAML: pip install 'weakincentives[skills]'") from error

if TYPE_CHECKING:
    from _typeshed import StrPath

__all__ = ["Field", "Heading", "Skill", "SkillError", "SkillFinding", "SkillWarning", "read_skill"]

_FIELDS = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
_MAX_LENGTHS = {"name": 64, "description": 1024, "compatibility": 500}
_LIMITS = FilesystemLimits(file_bytes=1_000_000, entries=10_000)
_MAX_FRONT_MATTER, _MAX_REFUSED, _MAX_HEADINGS = 32_000, 100, 300
_FRONT_MATTER = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$\n?", re.DOTALL | re.MULTILINE)
_PLAIN_FIELD = re.compile(r"^([A-Za-z][\w-]*):(.*)", re.MULTILINE)
_FENCE = re.compile(r"[ \t]*+(`{3,}+(?!.*`)|~{3,}+)(.*)")  # possessive: no time to steal
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]")
_REFUSED_YAML = {
    "Alias": "an alias",
    "Anchor": "an anchor",
    "Tag": "a tag",
    "FlowSequenceStart": "a list in brackets",
    "FlowMappingStart": "a mapping in braces",
}


class SkillFinding(NamedTuple):
    """One fault of a skill: its file, the line counted from 1, what is wrong, and the remedy."""

    path: str
    line: int
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}; {self.remedy}"


class SkillError(PromptValidationError):
    """A skill cannot be read, or `strict` refuses its `findings`."""

    def __init__(self, *findings: SkillFinding) -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings = findings


class SkillWarning(UserWarning):
    """A skill of a folder was left out; `finding` says which and why."""

    def __init__(self, finding: SkillFinding) -> None:
        super().__init__(finding)
        self.finding = finding


class Field(NamedTuple):
    """One field of the front matter: its text, its line, and where its value stands in `source`."""

    text: str
    line: int
    start: int
    end: int


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


def read_skill(path: "StrPath", *, strict: bool = False) -> Skill:
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
            raise ValueError("it holds a NUL character, so it is no text")
    except (OSError, ValueError, WeakIncentivesError) as error:
        remedy = "give the folder of a skill, whose SKILL.md is a text file in UTF-8"
        raise SkillError(SkillFinding(str(folder / file), 1, str(error), remedy)) from error
    reader = _Reader(str(folder / file), [])
    start, fields = reader.front_matter(source)
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


@dataclass(frozen=True, slots=True)
class _Reader:
    """Collects the findings of one file."""

    path: str
    findings: list[SkillFinding]

    def add(self, line: int, message: str, remedy: str) -> None:
        self.findings.append(SkillFinding(self.path, line, message, remedy))

    def front_matter(self, source: str) -> tuple[int, dict[str, Field]]:
        """Returns where the Markdown begins, and the fields before it."""
        match = _FRONT_MATTER.match(source)
        if match is None or source.startswith("\ufeff"):
            message = "it must start with front matter between two lines of three dashes (---)"
            self.add(1, message, "write name: and description: there, and no byte order mark")
        if match is None:
            return 0, {}
        text, offset = match[1], match.start(1)
        if len(text) > _MAX_FRONT_MATTER:
            size = f"{len(text):,} characters, and at most {_MAX_FRONT_MATTER:,} are read"
            self.add(1, f"the front matter has {size}", "move text to the Markdown")
            return match.end(), {}
        if "---" in text:
            message = "a value holds three dashes (---), where some readers end the front matter"
            self.add(
                source.count("\n", 0, source.index("---", offset)) + 1, message, "write a dash"
            )
        fields: dict[str, Field] = {}
        try:
            for name, field in self._yaml_fields(text, offset):
                if name in fields:
                    self.add(field.line, f"field {name!r} is there twice", "remove one")
                fields[name] = field
        except (yaml.YAMLError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            problem = getattr(error, "problem", None) or type(error).__name__
            self.add(
                1 if mark is None else mark.line + 2,
                f"the front matter is invalid YAML ({problem}) and is read line by line",
                "put the value in quotes if it holds ': ' or '#'",
            )
            fields = dict(_plain_fields(text, offset))
        return match.end(), fields

    def _yaml_fields(self, text: str, offset: int) -> Iterator[tuple[str, Field]]:
        refused: dict[str, list[int]] = {}
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            if construct := _REFUSED_YAML.get(type(token).__name__.removesuffix("Token")):
                lines = refused.setdefault(construct, [])
                lines.append(token.start_mark.line + 2)
                if len(lines) > _MAX_REFUSED:  # PyYAML takes quadratic time for nested ones
                    raise yaml.YAMLError
        for construct, (line, *_) in refused.items():
            message = f"the front matter holds {construct}, which the validator refuses"
            self.add(line, message, "write it out in lines of its own")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(node, yaml.MappingNode):
            self.add(2, "the front matter is no mapping", "write lines of `name: value`")
            return
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.add(key.start_mark.line + 2, "a name is no text", "write `name: value`")
                continue
            line, start, end = value.start_mark.line, value.start_mark.index, value.end_mark.index
            is_text = isinstance(value, yaml.ScalarNode)
            if is_text != (key.value != "metadata") and key.value in _FIELDS:
                form = "a mapping" if is_text else "a string"
                self.add(line + 2, f"field {key.value!r} must be {form}", f"write it as {form}")
            shown = value.value if is_text else text[start:end]
            yield key.value, Field(shown, line + 2, offset + start, offset + end)

    def check(self, fields: Mapping[str, Field], folder: str) -> None:
        """Adds what the standard says against the values of the fields."""
        for field in sorted(fields.keys() - _FIELDS):
            message = f"unexpected field {field!r}: the standard has none of this name"
            remedy = "nothing here obeys it: remove it, or exclude the skill if it must be obeyed"
            self.add(fields[field].line, message, remedy)
        for field, most in _MAX_LENGTHS.items():
            text, line = fields[field][:2] if field in fields else ("", 1)
            if not text.strip() and field != "compatibility":
                self.add(line, f"{field} is missing or empty", f"write {field}: and its text")
            if len(text) > most:
                length = f"{len(text):,} characters, and the limit is {most:,}"
                self.add(line, f"{field} has {length}", "shorten it")
        if "name" not in fields or not fields["name"].text.strip():
            return
        name, line = normalize("NFKC", fields["name"].text.strip()), fields["name"].line
        valid = all(char.isalnum() or char == "-" for char in name) and name == name.lower()
        if not valid or name.strip("-") != name or "--" in name:
            remedy = "use lowercase letters, digits and single hyphens between them"
            self.add(line, f"name {name!r} is not valid", remedy)
        if name != normalize("NFKC", folder):
            message = f"name {name!r} must match the directory name {folder!r}"
            self.add(line, message, "rename one of the two")


def _plain_fields(text: str, offset: int) -> Iterator[tuple[str, Field]]:
    """Yields the lines of `name: value`, where `text` is no valid YAML."""
    for match in _PLAIN_FIELD.finditer(text):
        value, line = match[2].strip(), text.count("\n", 0, match.start()) + 2
        start = offset + match.end() - len(match[2].lstrip())
        yield match[1], Field(value.strip("\"'"), line, start, start + len(value))


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
