"""Reads what a docstring says about a function and its parameters, in the three common styles."""

import inspect
import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass

__all__ = ["Docstring", "read_docstring"]

_PARAMETERS = (
    "args|arguments|params|parameters|keyword args|keyword arguments|keyword parameters|"
    "other args|other arguments|other parameters"
)
_OTHERS = (
    "attributes|example|examples|note|notes|raises|references|return|returns|see also|side effects|"
    "todo|warning|warnings|warns|yield|yields"
)
# the first line of a section in Google's style, which a deeper block follows
_GOOGLE = re.compile(rf"(?i)(?:({_PARAMETERS})|(?:{_OTHERS}))\s*:\s*$")
_RULE = re.compile(r"-{3,}|={3,}|~{3,}")
_NUMPY = re.compile(rf"(?i)(?:{_PARAMETERS}|{_OTHERS}|methods)$")
_NAMES = r"`?(\*{0,2}\w+(?:`?\s*,\s*`?\*{0,2}\w+)*)`?"
_GOOGLE_ENTRY = re.compile(rf"{_NAMES}\s*(?:\(.*?\))?\s*:(?:\s+(.*)|$)")
_NUMPY_ENTRY = re.compile(rf"{_NAMES}\s*(?::.*)?$")
_SPHINX = re.compile(r":([a-z]+)(?:\s+([^:]*))?:(?:\s+(.*)|$)")
_SPHINX_PARAMETERS = {"param", "parameter", "arg", "argument", "key", "keyword", "kwarg"}


@dataclass(frozen=True, slots=True)
class Docstring:
    """The first paragraph of a docstring as one line, and its texts about parameters by name."""

    summary: str
    parameters: Mapping[str, str]


@dataclass(slots=True)
class _Line:
    indent: int
    text: str  # with single spaces, so that no pattern takes long
    written: str


def read_docstring(text: str | None, names: Container[str] = ()) -> Docstring:
    """Returns the parts of a docstring in Google's, NumPy's or Sphinx's style.

    The summary ends before a blank line and before a section, such as `Args:`. An entry that
    follows a line with less indentation is read only if it describes one of `names`, which are the
    function's parameters.
    """
    lines = [
        _Line(len(line) - len(line.lstrip()), " ".join(line.split()), line.strip())
        for line in inspect.cleandoc(text or "").expandtabs().split("\n")
    ]
    summary: list[str] = []
    for position, line in enumerate(lines):
        if not line.text or _heading(lines, position) or _SPHINX.match(line.text):
            break
        if not _RULE.fullmatch(line.text):
            summary.append(line.written)
    parameters: dict[str, str] = {}
    for name, described in _parameters(lines, names):
        parameters.setdefault(name, described)
    return Docstring(" ".join(summary), parameters)


def _heading(lines: list[_Line], position: int) -> str:
    """Returns the style of the section that begins at a line: google, numpy, or "" for none."""
    line = lines[position]
    following = lines[position + 1] if position + 1 < len(lines) else _Line(0, "", "")
    if line.indent:  # in an example, for one
        return ""
    if _NUMPY.match(line.text) and _RULE.fullmatch(following.text) and not following.indent:
        return "numpy"
    return "google" if _GOOGLE.match(line.text) else ""


def _parameters(lines: list[_Line], names: Container[str]) -> Iterator[tuple[str, str]]:
    """Yields the names of the documented parameters with their texts."""
    for position, line in enumerate(lines):
        style = _heading(lines, position)
        if style == "google":
            if (heading := _GOOGLE.match(line.text)) and heading[1]:
                yield from _google(lines, position, names)
        elif style == "numpy":
            if re.fullmatch(_PARAMETERS, line.text.lower()):
                yield from _numpy(lines, position)
        elif field := _SPHINX.match(line.text):
            words = (field[2] or "").split()
            if field[1] in _SPHINX_PARAMETERS and words:
                texts = [field[3] or "", *_deeper(lines, position + 1, line.indent)]
                yield words[-1].lstrip("*\\"), _joined(texts)


def _google(lines: list[_Line], position: int, names: Container[str]) -> Iterator[tuple[str, str]]:
    indent = -1
    interrupted = False  # by a line with less indentation, which may continue a text
    for here in range(position + 1, len(lines)):
        line = lines[here]
        if not line.text:
            continue
        if indent < 0:  # of the first entry
            indent = line.indent
        entry = _GOOGLE_ENTRY.match(line.text.replace("\\*", "*"))
        known = entry is not None and all(name in names for name in _names(entry[1]))
        if _heading(lines, here):
            return
        if line.indent < indent or (not line.indent and not entry):
            interrupted = True
        elif line.indent == indent and entry and (known or not interrupted):
            text = _joined([entry[2] or "", *_deeper(lines, here + 1, indent)])
            yield from ((name, text) for name in _names(entry[1]))


def _numpy(lines: list[_Line], position: int) -> Iterator[tuple[str, str]]:
    indent = lines[position].indent
    for here in range(position + 2, len(lines)):
        line = lines[here]
        if line.text and (line.indent < indent or _heading(lines, here)):
            return
        entry = _NUMPY_ENTRY.match(line.text.replace("\\*", "*"))
        if line.text and line.indent == indent and entry:
            text = _joined(list(_deeper(lines, here + 1, indent)))
            yield from ((name, text) for name in _names(entry[1]) if name != "None")


def _deeper(lines: list[_Line], position: int, indent: int) -> Iterator[str]:
    """Yields the texts of the lines from `position` on that are indented by more than `indent`."""
    for line in lines[position:]:
        if line.text and line.indent <= indent:
            return
        yield line.text


def _names(text: str) -> list[str]:
    return [name.strip("`* ") for name in text.split(",")]


def _joined(texts: list[str]) -> str:
    return " ".join(filter(None, texts))
