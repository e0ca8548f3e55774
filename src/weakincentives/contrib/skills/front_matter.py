"""The front matter of a `SKILL.md`: its fields and its violations of the standard.

The rules come from agentskills.io and its validator. YAML is only parsed into nodes: no objects are
constructed, and aliases are never expanded.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from unicodedata import normalize

from ...errors import missing_extra
from ...prompt.errors import PromptValidationError

try:
    import yaml
except ImportError as error:
    raise missing_extra(__name__, "PyYAML", "skills") from error

__all__ = ["Field", "FrontMatterReader", "SkillError", "SkillFinding", "SkillWarning"]

_FIELDS = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
_MAX_LENGTHS = {"name": 64, "description": 1024, "compatibility": 500}
_MAX_FRONT_MATTER, _MAX_REFUSED = 32_000, 100
_FRONT_MATTER = re.compile(r"\ufeff?---[ \t]*\r?\n(.*?)^---[ \t]*\r?$\n?", re.DOTALL | re.MULTILINE)
_PLAIN_FIELD = re.compile(r"^([A-Za-z][\w-]*):(.*)", re.MULTILINE)
_REFUSED_YAML = {
    "Alias": "an alias",
    "Anchor": "an anchor",
    "Tag": "a tag",
    "FlowSequenceStart": "a list in brackets",
    "FlowMappingStart": "a mapping in braces",
}


class SkillFinding(NamedTuple):
    """A problem in a skill: its file, the line (starting at 1), the message, and the remedy."""

    path: str
    line: int
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}; {self.remedy}"


class SkillError(PromptValidationError):
    """A skill cannot be read, or it has `findings` and `strict` is set."""

    def __init__(self, *findings: SkillFinding) -> None:
        super().__init__("\n".join(map(str, findings)))
        self.findings = findings


class SkillWarning(UserWarning):
    """A skill in a folder was skipped; `finding` states which one and why."""

    def __init__(self, finding: SkillFinding) -> None:
        super().__init__(finding)
        self.finding = finding


class Field(NamedTuple):
    """One front matter field: its text, its line, and the position of its value in `source`."""

    text: str
    line: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class FrontMatterReader:
    """Reads the fields of one file, and collects problems as findings."""

    path: str
    findings: list[SkillFinding]

    def add(self, line: int, message: str, remedy: str) -> None:
        self.findings.append(SkillFinding(self.path, line, message, remedy))

    def read(self, source: str) -> tuple[int, dict[str, Field]]:
        """Returns the position where the Markdown starts, and the fields before it."""
        match = _FRONT_MATTER.match(source)
        if match is None or source.startswith("\ufeff"):
            message = "it must start with front matter between two lines of three dashes (---)"
            self.add(1, message, "write name: and description: there, and no byte order mark")
        if match is None:
            return int(source.startswith("\ufeff")), {}
        text, offset = match[1], match.start(1)
        if len(text) > _MAX_FRONT_MATTER:
            size = f"{len(text):,} characters, and at most {_MAX_FRONT_MATTER:,} are read"
            self.add(1, f"the front matter has {size}", "move text to the Markdown")
            return match.end(), {}
        if "---" in text:
            message = "a value contains three dashes (---), where some readers end the front matter"
            self.add(
                source.count("\n", 0, source.index("---", offset)) + 1, message, "write a dash"
            )
        fields: dict[str, Field] = {}
        try:
            for name, field in self._yaml_fields(text, offset):
                if name in fields:
                    self.add(field.line, f"field {name!r} occurs twice", "remove one")
                fields[name] = field
        except (yaml.YAMLError, RecursionError) as error:
            mark = getattr(error, "problem_mark", None)
            problem = getattr(error, "problem", None) or type(error).__name__
            self.add(
                1 if mark is None else mark.line + 2,
                f"the front matter is invalid YAML ({problem}) and is read line by line",
                "put the value in quotes if it contains ': ' or '#'",
            )
            fields = dict(_plain_fields(text, offset))
        return match.end(), fields

    def _yaml_fields(self, text: str, offset: int) -> Iterator[tuple[str, Field]]:
        refused: dict[str, list[int]] = {}
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            if construct := _REFUSED_YAML.get(type(token).__name__.removesuffix("Token")):
                lines = refused.setdefault(construct, [])
                lines.append(token.start_mark.line + 2)
                if len(lines) > _MAX_REFUSED:  # PyYAML takes quadratic time if they are nested
                    raise yaml.YAMLError
        for construct, (line, *_) in refused.items():
            message = f"the front matter contains {construct}, which the validator rejects"
            self.add(line, message, "write it on separate lines")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(node, yaml.MappingNode):
            self.add(2, "the front matter is not a mapping", "write lines of `name: value`")
            return
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.add(key.start_mark.line + 2, "a name is not a string", "write `name: value`")
                continue
            line, start, end = value.start_mark.line, value.start_mark.index, value.end_mark.index
            is_text = isinstance(value, yaml.ScalarNode)
            if is_text != (key.value != "metadata") and key.value in _FIELDS:
                form = "a mapping" if is_text else "a string"
                self.add(line + 2, f"field {key.value!r} must be {form}", f"write it as {form}")
            shown = value.value if is_text else text[start:end]
            yield key.value, Field(shown, line + 2, offset + start, offset + end)

    def check(self, fields: Mapping[str, Field], folder: str) -> None:
        """Adds findings for field values that violate the standard."""
        for field in sorted(fields.keys() - _FIELDS):
            message = f"unexpected field {field!r}: it is not in the standard"
            remedy = "it is ignored: remove it, or exclude the skill if it is essential"
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
    """Yields the lines of the form `name: value` if `text` is not valid YAML."""
    for match in _PLAIN_FIELD.finditer(text):
        value, line = match[2].strip(), text.count("\n", 0, match.start()) + 2
        start = offset + match.end() - len(match[2].lstrip())
        yield match[1], Field(value.strip("\"'"), line, start, start + len(value))
