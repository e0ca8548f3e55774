"""Reads texts: the sections and sentences of Markdown, the records of tool results, what names a
thing.

Text in, plain values out. Conversations are read in `conversation`; nothing here scores or decides.
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
    with what follows it. Code is in `body` alone.
    """

    title: str
    body: str
    units: tuple[str, ...]


# No headings by underlining (a summary may stand right above `---`), and no code by mere
# indentation.
_MARKDOWN = MarkdownIt("commonmark").enable("table").disable(["lheading", "code", "html_block"])
_NUMBER = re.compile(r"\d+(?:\.\d+)*\.?\s+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*\"'(\[])")
_SHORT_LIST = 400


@lru_cache(maxsize=64)
def sections(text: str) -> tuple[Section, ...]:
    """The text cut at its headings; what precedes the first has no title."""
    found: list[tuple[str, list[str], list[str]]] = [("", [], [])]
    for block in SyntaxTreeNode(_MARKDOWN.parse(text)).children:
        if block.type == "heading":
            found.append((_NUMBER.sub("", _text(block), count=1), [], []))
            continue
        _, bodies, units = found[-1]
        new = list(_units(block))
        listed = "; ".join(new)
        if (
            block.type.endswith("_list")
            and units
            and units[-1].endswith(":")
            and len(listed) <= _SHORT_LIST
        ):
            new = [f"{units.pop()} {listed}"]
        bodies.append(_text(block))
        for unit in new:
            if units and units[-1].endswith("?"):
                units[-1] += f" {unit}"
            else:
                units.append(unit)
    return tuple(Section(title, "\n".join(bodies), tuple(units)) for title, bodies, units in found)


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
    """The text before a JSON object or array that ends the text, and its value (None when there is
    none).
    """
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
    """`docPaths`, `doc_paths` and `doc-paths` all have the words doc, paths and path."""
    split = re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower()
    return {form for word in re.split(r"[\W_]+", split) for form in (word, word.removesuffix("s"))}


def is_path(text: str) -> bool:
    """Whether the text as a whole looks like a file's path or an address."""
    return bool(_PATH.fullmatch(text)) or ("://" in text and " " not in text)


def _labels(key: str, text: str, names: AbstractSet[str]) -> bool:
    """Whether a field says what a thing is called, rather than holding its content."""
    return bool(name_words(key) & names) and len(text) <= _LONGEST_NAME and "\n" not in text


def identifier(fields: Fields) -> str | None:
    """What names the thing that has these fields: a path before an id before a title."""
    texts = {key: value for key, value in fields.items() if isinstance(value, str) and value}
    named = [key for key in texts if is_path(texts[key]) or _labels(key, texts[key], NAMING)]
    return min(
        ((not is_path(texts[k]), "title" in k, i, texts[k]) for i, k in enumerate(named)),
        default=(None,),
    )[-1]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One string inside a JSON value: its key, the plain fields beside it, and what the nearest
    fields name.
    """

    key: str
    text: str
    fields: Fields
    source: str | None


def leaves(
    value: object, key: str = "", fields: Fields | None = None, source: str | None = None
) -> Iterator[Leaf]:
    """Every string inside a JSON value: the one walk that strings, records and statements are read
    from.
    """
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
    """Every string inside a JSON value."""
    return [leaf.text for leaf in leaves(value)]


@dataclass(frozen=True, slots=True)
class Record:
    """One thing that a tool result lists: its fields, and all of its text."""

    fields: Fields
    text: str


def records(text: str) -> list[Record]:
    """What a tool result lists: its JSON objects, its list of strings, or its lines with paths."""
    before, value = embedded_json(text)
    found: list[tuple[Fields, list[str]]] = []
    for leaf in leaves(value):
        if not identifier(leaf.fields) and (len(leaf.fields) > 1 or len(leaf.text) > _LONGEST_NAME):
            continue  # nothing names it: no thing that could be asked for
        if not found or found[-1][0] is not leaf.fields:
            found.append((leaf.fields, []))
        found[-1][1].append(leaf.text)
    for line in before.splitlines() if value is None else ():
        if path := _PATH.search(line):
            found.append(({"": path[0]}, [line]))
        elif found:
            found[-1][1].append(line)
    return [Record(fields, "\n".join(texts)) for fields, texts in found]


@dataclass(frozen=True, slots=True)
class Statement:
    """One quotable unit, with the section it stands in and the file (or other thing) that it is
    from.
    """

    text: str
    section: Section
    source: str | None


def statements(text: str, source: str | None) -> Iterator[Statement]:
    """The quotable units of a Markdown text."""
    for section in sections(text):
        for unit in section.units:
            if not is_path(unit):
                yield Statement(unit, section, source)


def result_statements(text: str, source: str | None) -> Iterator[Statement]:
    """The quotable units of a tool result; what a record holds is from what its fields name."""
    before, value = embedded_json(text)
    for leaf in leaves(value, source=source):
        if not _labels(leaf.key, leaf.text, _LABELS):
            yield from statements(leaf.text, leaf.source)
    if value is None and source is None and (listed := records(text)):
        for record in listed:
            yield from statements(record.text, identifier(record.fields))
    elif value is None:
        yield from statements(before, source)
