"""Skills as sections: descriptions become summaries, headings children, files workspaces."""

import re
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Literal, Unpack
from warnings import warn
from zlib import crc32

from ...displays import name_in_line
from ...filesystem import FileStat, Filesystem, HostFilesystem, glob_matches
from ...prompt.context import ToolContext
from ...prompt.errors import PromptValidationError
from ...prompt.sections import AnySection, MarkdownSection, SectionArguments, slug
from ...prompt.tool import AnyToolHandler, ToolResult
from ...prompt.workspace_tools import READING_TOOLS
from ...resources import Binding, ResourceContext, ResourceRegistry
from ...visibility import SectionPath, SectionVisibility
from .front_matter import SkillError, SkillFinding, SkillWarning
from .reading import Heading, Skill, StrPath, read_skill

__all__ = ["FILES", "SkillSection", "Split", "first_sentence", "skills"]

type Split = int | Literal["auto"]
"""How many heading levels become sections; `"auto"` splits texts over 8,000 characters."""

_LARGE, _SMALL = 8_000, 800  # characters: `auto` splits longer texts; shorter texts get no summary
_MAX_SUMMARY, _MAX_LISTED = 160, 50  # characters, files
_MAX_PREFIX = 48  # leaves room for the longest tool name within 64 characters
_FENCED = re.compile(r"^[ \t]*(?:```|~~~).*$", re.MULTILINE)
_BULLET = re.compile(r"^(?:[>*+-]|\d+[.)])\s+")
_SENTENCE_END = re.compile(r"(?<=[\w`)]{3}[.!?])\s")  # not after a number, "e.g." or "i.e."
FILES = "files"
_NOTES = (
    ("compatibility", "Compatibility, as the skill's author states it: {}"),
    ("allowed-tools", "Tools that the skill's author allows it; nothing here enforces this: {}"),
)


class SkillSection(MarkdownSection[None]):
    """A section that contains the skill in the folder `path`.

    Its summary is the skill's description. `split` levels of headings become child sections, and
    the folder's other files become the child section `files`, a read-only workspace with its own
    tools; nothing is executed. Texts are literal, so `$` is a dollar sign. `skill` is the skill
    with its findings, which `wink check` reports. Raises `SkillError` if the skill cannot be read
    or, with `strict`, if there are any findings. The other arguments are the same as for `Section`.
    """

    def __init__(
        self,
        path: StrPath,
        *,
        split: Split = "auto",
        strict: bool = False,
        **others: Unpack[SectionArguments[None]],
    ) -> None:
        if split != "auto" and (not isinstance(split, int) or split < 0):
            raise PromptValidationError(
                f'split must be a number of levels or "auto", got {split!r}'
            )
        skill = self.skill = read_skill(path, strict=strict)
        key = others.get("key") or slug(skill.name) or f"skill-{crc32(skill.name.encode()):x}"
        self.spans: dict[str, tuple[int, int]] = {}
        """The start and end of each section's text in `skill.source`, by its relative key."""
        # A single heading over everything is the skill's title, so it does not become a section.
        text, headings = self._divide(skill.markdown, "", split)
        children = [*self._below(headings, "", split), *_files(skill, key)]
        arguments: SectionArguments[None] = {
            "summary": skill.text("description") or first_sentence(text, skill.name),
            "visibility": SectionVisibility.SUMMARY,
            **others,
            "key": key,
            "children": [*children, *(others.get("children") or ())],
        }
        super().__init__(title=skill.name, template=text, literal=True, **arguments)

    def body_text(self) -> str:
        return self.template

    def render_body(self, params: None, *, path: SectionPath) -> str:
        return self._with_notes(self.template)

    def render_override(self, override_body: str, params: None, *, path: SectionPath) -> str:
        return self._with_notes(override_body)

    def problems(self) -> Iterator[tuple[str, str]]:
        for path, line, message, remedy in self.skill.findings:
            yield f"{path}:{line}: {message}", remedy

    def _with_notes(self, text: str) -> str:
        notes = [note.format(self.skill.text(field)) for field, note in _NOTES
                 if self.skill.text(field)]  # fmt: skip
        return "\n\n".join([*notes, text])

    def _divide(self, heading: Heading, key: str, split: Split) -> tuple[str, Sequence[Heading]]:
        """Returns a heading's text and the headings that become sections; records the span."""
        source, children, body = self.skill.source, heading.children, heading.body
        # A single heading that covers all the remaining text does not divide it.
        while len(children) == 1 and not source[body : children[0].start].strip():
            body, children = children[0].body, children[0].children
        if not split or (split == "auto" and heading.end - heading.body <= _LARGE):
            children = []
        end = children[0].start if children else heading.end
        # An override replaces the first line with text up to the last character.
        blank = len(source[heading.body : end]) - len(source[heading.body : end].lstrip())
        start = max(heading.body, source.rfind("\n", heading.body, heading.body + blank) + 1)
        end = max(start, heading.body + len(source[heading.body : end].rstrip()))
        self.spans[key] = start, end
        return source[start:end].replace("\r\n", "\n"), children

    def _below(self, headings: Sequence[Heading], key: str, split: Split) -> Iterator[AnySection]:
        """Yields a section for each heading; short ones are shown in full."""
        taken = set[str]() if key else {FILES}
        deeper = split if split == "auto" else split - 1
        for heading in headings:
            base = slug(heading.title)[:56] or "part"
            names = (base if count == 1 else f"{base}-{count}" for count in range(1, 1_000))
            name = next(name for name in names if name not in taken)
            taken.add(name)
            text, inner = self._divide(heading, f"{key}.{name}", deeper)
            titles = ", ".join(child.title for child in inner) or heading.title
            small = heading.end - heading.body <= _SMALL
            yield MarkdownSection[None](
                title=heading.title,
                key=name,
                template=text,
                summary=first_sentence(text, titles),
                visibility=SectionVisibility.FULL if small else SectionVisibility.SUMMARY,
                children=[*self._below(inner, f"{key}.{name}", deeper)],
                literal=True,
            )


def skills(
    folder: StrPath,
    *,
    include: Sequence[str] = ("**",),
    exclude: Sequence[str] = (),
    split: Split = "auto",
    strict: bool = False,
) -> tuple[SkillSection, ...]:
    """Returns a section for each skill below `folder`, sorted by path.

    `include` and `exclude` are globs over the paths of skill folders. Links, unreadable skills, and
    a second skill with the same name are skipped with a `SkillWarning`; with `strict`, they raise
    `SkillError`. Raises `OSError` if `folder` is not a directory.
    """
    for name, globs in (("include", include), ("exclude", exclude)):
        if isinstance(globs, str):
            raise PromptValidationError(f"{name} must be a list, such as [{globs!r}], got a string")
    sections: dict[str, SkillSection] = {}
    findings: list[SkillFinding] = []
    with closing(HostFilesystem(folder, read_only=True, hard_links=True)) as host:
        places = list(_places(host, "."))
    for entry in places:
        path = Path(folder, entry.path)
        if not any(glob_matches(glob, entry.path) for glob in include) or any(
            glob_matches(glob, entry.path) for glob in exclude
        ):
            continue
        if entry.kind == "other":
            remedy = "pass the folder that it leads to, or exclude it"
            findings.append(SkillFinding(str(path), 1, "it is a link, so it is skipped", remedy))
            continue
        try:
            section = SkillSection(path, split=split, strict=strict)
        except SkillError as error:
            findings += error.findings
            continue
        first = sections.setdefault(section.key, section)
        if first is not section:
            message = f"the skill in {str(first.skill.folder)!r} also has the name {section.key!r}"
            findings.append(SkillFinding(str(path), 1, message, "rename or exclude one of them"))
    if strict and findings:
        raise SkillError(*findings)
    for finding in findings:
        warn(SkillWarning(finding), stacklevel=2)
    return tuple(sections.values())


def _places(host: Filesystem, folder: str) -> Iterator[FileStat]:
    """Yields the folders of skills, and links that are not inside one."""
    entries = host.list(folder)
    if any(entry.path.rpartition("/")[2] in {"SKILL.md", "skill.md"} for entry in entries):
        yield host.stat(folder)
        return
    for entry in entries:
        if entry.kind == "directory" and not entry.path.endswith(".git"):
            yield from _places(host, entry.path)
        elif entry.kind == "other":
            yield entry


def first_sentence(text: str, title: str) -> str:
    """Returns the Markdown's first sentence or, failing that, its headings or the title."""
    prose = "\n".join(_FENCED.split(text)[::2]).replace("**", "")
    lines = [line.strip() for line in prose.split("\n")]
    headings = ", ".join(line.strip("# ") for line in lines if line.startswith("#"))
    before = takewhile(lambda line: not line.startswith("#"), lines)
    line = next((line for line in before if line and line[0] not in "|<"), headings or title)
    sentence = _SENTENCE_END.split(_BULLET.sub("", line), maxsplit=1)[0]
    cut = sentence[:_MAX_SUMMARY].rpartition(" ")[0] or sentence[:_MAX_SUMMARY]
    return sentence if len(sentence) <= _MAX_SUMMARY else f"{cut} …"


def _files(skill: Skill, key: str) -> list[AnySection]:
    """Returns the section for the skill's other files, or `[]` if there are none."""
    files = skill.files
    if not files:
        return []
    paths = [name_in_line(file.path) for file in files]
    listed = [
        f"- `{path}` ({file.size:,} bytes)"
        for path, file in zip(paths[:_MAX_LISTED], files, strict=False)
    ]
    listed += [f"- and {len(files) - _MAX_LISTED:,} more"] * (len(files) > _MAX_LISTED)
    folders = dict.fromkeys(path.partition("/")[0] for path in paths)
    prefix = key.replace("-", "_").replace(".", "_")
    if len(prefix) > _MAX_PREFIX:
        prefix = f"{prefix[:39]}_{crc32(key.encode()):08x}"
    return [
        MarkdownSection[None](
            title="Files",
            key=FILES,
            summary=f"Files of this skill, to be read: {', '.join(folders)}"[:400],
            template="Nothing here runs a script: read it as text. Paths are relative to the "
            "skill's folder.\n\n" + "\n".join(listed),
            visibility=SectionVisibility.SUMMARY,
            tools=[
                replace(
                    tool,
                    name=f"{prefix}_{tool.name}",
                    handler=_InFolder(tool.handler, skill.folder),
                    accepts_overrides=False,
                )
                for tool in READING_TOOLS
                if tool.handler is not None
            ],
            literal=True,
            accepts_overrides=False,
        )
    ]


@dataclass(frozen=True, slots=True)
class _InFolder:
    """A file tool for a read-only workspace, which opens the skill's folder for each call."""

    handler: AnyToolHandler
    folder: Path

    def __call__(
        self, params: object, /, *, context: ToolContext
    ) -> ToolResult[object] | Awaitable[ToolResult[object]]:
        with closing(HostFilesystem(self.folder, read_only=True, hard_links=True)) as host:
            resources = ResourceContext(ResourceRegistry.of(Binding.instance(Filesystem, host)))
            with resources:
                return self.handler(params, context=replace(context, resources=resources))
