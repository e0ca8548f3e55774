"""Exports a prompt as skills: imported skills byte for byte, other sections as a new skill."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from ...filesystem import FilesystemLimits, HostFilesystem
from ...prompt.registry import SectionNode
from ...prompt.renderer import AnyRenderedPrompt
from ...prompt.sections import slug
from ...prompt.template import AnyPrompt
from ...runtime.session import Session
from ...visibility import SectionVisibility
from .front_matter import SkillError, SkillFinding
from .reading import StrPath
from .skill_sections import FILES, SkillSection, first_sentence

__all__ = ["SkillExport", "export_skills"]

_LIMITS = FilesystemLimits(file_bytes=100_000_000)
_FULL, _SUMMARY = SectionVisibility.FULL, SectionVisibility.SUMMARY


@dataclass(frozen=True, slots=True)
class SkillExport:
    """The folder of one skill: its name and files; `notes` lists the parts that were not exported.

    `source` is the folder of an imported skill, from which file modes are copied.
    """

    name: str
    files: dict[str, bytes]
    notes: list[str] = field(default_factory=list[str])
    source: Path | None = None

    def write(self, folder: StrPath, *, replace: bool = False) -> None:
        """Writes the skill to a subfolder of `folder` that is named after the skill.

        Raises `FileExistsError` if the subfolder already exists, unless `replace` is set. Replacing
        keeps unrelated files.
        """
        Path(folder).mkdir(parents=True, exist_ok=True)
        with closing(HostFilesystem(folder, limits=_LIMITS)) as host:
            if not replace and host.exists(self.name):
                raise FileExistsError(
                    f"{self.name!r} already exists in {str(folder)!r}; replace it"
                )
            for path, data in self.files.items():
                place = f"{self.name}/{path}"
                host.write_bytes(place, data)
                if self.source is not None and (self.source / path).stat().st_mode & 0o100:
                    (Path(folder) / place).chmod(0o755)


def export_skills(
    prompt: AnyPrompt, *, description: str = "", session: Session | None = None
) -> tuple[SkillExport, ...]:
    """Returns the skills in `prompt` as folders, with its overrides applied to their texts.

    Each `SkillSection` is exported as its original files. The other sections become one new skill,
    named after the prompt's key; a summarized section becomes a file in `references/`, which its
    summary refers to. `description` is the new skill's description; the default is the skill's
    first sentence. Raises `PromptRenderError` if params are missing, and `SkillError` if two skills
    have the same name.
    """
    rendered = prompt.render(session=session or Session())
    registry, view = rendered.registry, rendered.view
    exports = [
        _imported(node, node.section, rendered)
        for node in registry.sections
        if isinstance(node.section, SkillSection) and view.is_enabled(node)
    ]
    roots = [node for node in registry.sections if not node.depth and view.is_enabled(node)]
    if any(not isinstance(node.section, SkillSection) for node in roots):
        exports.append(_Writer(rendered).skill(prompt, roots, description))
    names = [export.name for export in exports]
    for name in names:
        if names.count(name) > 1:
            remedy = "export them from prompts of their own"
            raise SkillError(SkillFinding(name, 1, "two skills have this name", remedy))
    return tuple(exports)


def _imported(node: SectionNode, section: SkillSection, rendered: AnyRenderedPrompt) -> SkillExport:
    """Returns an imported skill's files, with overridden texts in their original places."""
    skill, notes = section.skill, list[str]()
    edits: list[tuple[int, int, str]] = []
    spans = {node.key + key: span for key, span in section.spans.items()}
    nodes = rendered.registry.sections[node.index : node.end]
    for own in [own for own in nodes if own.key in spans]:
        body, summary, (start, end) = own.body_override, own.summary_override, spans[own.key]
        if body is not None and body.strip("\n") != own.section.body_text().strip("\n"):
            text = body.strip("\n")
            # An empty section's text does not have its own line yet.
            edits.append((start, end, text if start < end else f"\n{text}\n"))
        if summary is None or summary == own.section.summary:
            continue
        description = skill.fields.get("description")
        if own is node and description is not None:
            before = skill.source[description.start : description.end]
            line_end = before[len(before.rstrip()) :]  # after a multi-line block
            edits.append((description.start, description.end, _quoted(summary) + line_end))
        else:
            notes.append(f"{own.key}: the summary is omitted because SKILL.md has no field for it")
    for other in nodes:
        if other.key not in {*spans, f"{node.key}.{FILES}"} or (other is node and node.tools):
            what = "its tools are" if other is node else "it is"
            notes.append(
                f"{other.key}: {what} omitted because the skill's files do not contain them"
            )
    source = skill.source
    for start, end, text in sorted(edits, reverse=True):
        lines = text.replace("\n", "\r\n") if "\r\n" in skill.source else text
        source = source[:start] + lines + source[end:]
    host = HostFilesystem(skill.folder, read_only=True, hard_links=True, limits=_LIMITS)
    with closing(host):
        files = {file.path: host.read_bytes(file.path) for file in skill.files}
    files[skill.file] = source.encode()
    return SkillExport(skill.folder.resolve().name, files, notes, skill.folder)


def _quoted(text: str) -> str:
    """Returns a YAML string in double quotes, on one line."""
    import yaml  # imported late, so that `front_matter` reports a missing extra

    quoted: str = yaml.safe_dump(text, default_style='"', allow_unicode=True, width=2**30).strip()
    return quoted.replace("---", r"\x2D--")  # the validator ends the front matter at any ---


class _Writer:
    """Writes sections that are not skills as the files of a new skill."""

    def __init__(self, rendered: AnyRenderedPrompt) -> None:
        self.view = rendered.view
        self.expanded = rendered.view.fully_expanded()
        self.files: dict[str, bytes] = {}
        self.notes: list[str] = []

    def skill(self, prompt: AnyPrompt, roots: list[SectionNode], description: str) -> SkillExport:
        text = "\n\n".join(block for node in roots for block in self._blocks(node, 2))
        name = slug(prompt.key) or "prompt"
        if prompt.output_type is not None:
            self.notes.append("the output type is omitted because a skill has none")
        description = description.strip() or first_sentence(text.partition("\n\n")[2], prompt.name)
        fields = {"name": name, "description": description}
        front_matter = "".join(f"{key}: {_quoted(value[:1024])}\n" for key, value in fields.items())
        source = f"---\n{front_matter}---\n\n# {prompt.name}\n\n{text}\n"
        return SkillExport(name, {"SKILL.md": source.encode(), **self.files}, self.notes)

    def _blocks(self, node: SectionNode, level: int) -> Iterator[str]:
        """Yields the heading and text of a section and of the children shown inside it."""
        yield f"{'#' * min(level, 6)} {node.section.title.strip()}"
        if isinstance(node.section, SkillSection):
            name = node.section.skill.folder.resolve().name
            yield f"{self._summary(node)}\n\nThis is the skill `{name}`."
        elif level > 1 and self.view.visibility_of(node) is _SUMMARY:
            path = f"references/{node.key}.md"
            yield f"{self._summary(node)}\n\nRead `{path}` in this skill's folder for all of it."
            self.files[path] = ("\n\n".join(self._blocks(node, 1)) + "\n").encode()
        else:
            if node.tools:
                names = ", ".join(tool.name for tool in node.tools)
                self.notes.append(f"{node.key}: its tools are omitted ({names})")
            text = self.expanded.render({node: _FULL}).texts[0].removeprefix(node.heading)
            yield from filter(None, [text.strip("\n")])
            for child in self.view.registry.children(node):
                if self.view.is_enabled(child):
                    yield from self._blocks(child, level + 1)

    def _summary(self, node: SectionNode) -> str:
        text = self.expanded.render({node: _SUMMARY}).texts[0].removeprefix(node.heading)
        return text.rpartition("\n\n---\n")[0].strip("\n")  # without the note on how to open it
