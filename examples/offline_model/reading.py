"""Parses texts: sections and sentences of Markdown, records in tool results, names of things.

Text in, plain values out. `conversation` reads conversations; this module neither scores nor
decides.
"""

import json
import re
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import lru_cache

from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

type Fields = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Section:
    """A Markdown heading without its number, all text below it, and that text's quotable units.

    A unit is a sentence, a list item, a table row, a lead-in with its short list, or a question
    with the unit that follows it. Only `body` contains code.
    """

    title: str
    body: str
    units: tuple[str, ...]


# Without underlined headings (a summary may appear right above `---`) and indented code.
_MARKDOWN = MarkdownIt("commonmark").enable("table").disable(["lheading", "code", "html_block"])
_NUMBER = re.compile(r"\d+(?:\.\d+)*\.?\s+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*\"'(\[])")
_SHORT_LIST = 400


@lru_cache(maxsize=64)
def sections(text: str) -> tuple[Section, ...]:
    """Splits the text at its headings; the section before the first has no title."""
    parts: list[tuple[str, list[str], list[str]]] = [("", [], [])]
    for block in SyntaxTreeNode(_MARKDOWN.parse(text)).children:
        if block.type == "heading":
            parts.append((_NUMBER.sub("", _text(block), count=1), [], []))
            continue
        _, bodies, units = parts[-1]
        new = list(_units(block))
        items = "; ".join(new)
        is_short_list = block.type.endswith("_list") and len(items) <= _SHORT_LIST
        if is_short_list and units and units[-1].endswith(":"):
            new = [f"{units.pop()} {items}"]
        bodies.append(_text(block))
        for unit in new:
            if units and units[-1].endswith("?"):
                units[-1] += f" {unit}"
            else:
                units.append(unit)
    return tuple(Section(title, "\n".join(bodies), tuple(units)) for title, bodies, units in parts)


def _text(node: SyntaxTreeNode) -> str:
    if node.type in {"inline", "fence"}:
        return node.content.replace("**", "")
    return "\n".join(_text(child) for child in node.children)


def _units(node: SyntaxTreeNode) -> Iterator[str]:
    match node.type:
        case "inline":
            yield from _SENTENCE_END.split(" ".join(_text(node).split()))
        case "tr":
            yield ": ".join(filter(None, map(_text, node.children)))
        case "fence" | "thead":
            pass
        case _:
            for child in node.children:
                yield from _units(child)


def embedded_json(text: str) -> tuple[str, object]:
    """Returns the text before a trailing JSON object or array, and its value or `None`."""
    for start in re.finditer(r"^\s*(?=[\[{])", text, re.MULTILINE):
        try:
            return text[: start.start()], json.loads(text[start.end() :])
        except ValueError:
            continue
    return text, None


_NAMING = "path file filename id key name url uri slug doc document page ref reference source title"
NAMING = frozenset(_NAMING.split())
_LABELS = NAMING | {"heading", "headings"}
_LONGEST_NAME = 120
_PATH = re.compile(
    r"(?<![\w./-])[\w./-]*\w\w\.[A-Za-z]\w{0,4}\b(?!\.\w)|(?<!\w)[\w.-]+(?:/[\w.-]+)+"
)


def name_words(name: str) -> set[str]:
    """Returns a name's words, such as doc, paths and path for `docPaths` and for `doc_paths`."""
    words = re.split(r"[\W_]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower())
    return {form for word in words for form in (word, word.removesuffix("s"))}


def is_path(text: str) -> bool:
    """Whether the whole text looks like a file path or a URL."""
    return bool(_PATH.fullmatch(text)) or ("://" in text and " " not in text)


def _is_label(key: str, text: str, names: AbstractSet[str]) -> bool:
    """Whether a field is the name of a thing, rather than its content."""
    return bool(name_words(key) & names) and len(text) <= _LONGEST_NAME and "\n" not in text


def identifier(fields: Fields) -> str | None:
    """Returns the name among a thing's fields: preferably a path, then an id, then a title."""
    texts = {key: value for key, value in fields.items() if isinstance(value, str) and value}
    names = [
        (not is_path(text), "title" in key, text)
        for key, text in texts.items()
        if is_path(text) or _is_label(key, text, NAMING)
    ]
    return min(names, key=lambda name: name[:2])[-1] if names else None


@dataclass(frozen=True, slots=True)
class Leaf:
    """One string inside a JSON value: its key, the plain fields next to it, and its source."""

    key: str
    text: str
    fields: Fields
    source: str | None


def leaves(
    value: object, key: str = "", fields: Fields | None = None, source: str | None = None
) -> Iterator[Leaf]:
    """Yields every string inside a JSON value, for strings, records and statements."""
    match value:
        case str():
            yield Leaf(key, value, {key: value} if fields is None else fields, source)
        case Mapping():
            plain = {
                name: item for name, item in value.items() if isinstance(item, str | int | float)
            }
            for name, item in value.items():
                yield from leaves(item, name, plain, identifier(plain) or source)
        case list():
            for item in value:
                yield from leaves(item, key, None, source)
        case _:
            pass


def strings(value: object) -> list[str]:
    """Returns every string inside a JSON value."""
    return [leaf.text for leaf in leaves(value)]


@dataclass(frozen=True, slots=True)
class Record:
    """One thing in a tool result: its fields, and all of its text."""

    fields: Fields
    text: str


def records(text: str) -> list[Record]:
    """Returns the things in a result: JSON objects, strings of a list, or lines with paths."""
    before, value = embedded_json(text)
    things: list[tuple[Fields, list[str]]] = []
    for leaf in leaves(value):
        if not identifier(leaf.fields) and (len(leaf.fields) > 1 or len(leaf.text) > _LONGEST_NAME):
            continue  # nameless, so no call could read it
        if not things or things[-1][0] is not leaf.fields:
            things.append((leaf.fields, []))
        things[-1][1].append(leaf.text)
    for line in before.splitlines() if value is None else ():
        if path := _PATH.search(line):
            things.append(({"": path[0]}, [line]))
        elif things:
            things[-1][1].append(line)
    return [Record(fields, "\n".join(texts)) for fields, texts in things]


@dataclass(frozen=True, slots=True)
class Statement:
    """One quotable unit, with its section and its source, such as a file."""

    text: str
    section: Section
    source: str | None


def statements(text: str, source: str | None) -> Iterator[Statement]:
    """Yields the quotable units of a Markdown text."""
    for section in sections(text):
        for unit in section.units:
            if not is_path(unit):
                yield Statement(unit, section, source)


def result_statements(text: str, source: str | None) -> Iterator[Statement]:
    """Yields the quotable units of a tool result; the fields of a record name its source."""
    before, value = embedded_json(text)
    for leaf in leaves(value, source=source):
        if not _is_label(leaf.key, leaf.text, _LABELS):
            yield from statements(leaf.text, leaf.source)
    if value is None:
        things = records(text) if source is None else []
        for thing in things:
            yield from statements(thing.text, identifier(thing.fields))
        if not things:
            yield from statements(before, source)
