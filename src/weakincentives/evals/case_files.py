"""Reads YAML, JSON, JSON Lines and CSV into nodes that know their lines, and writes these formats.

Files can come from anyone: their size and depth are limited, and YAML is only parsed into events,
so that no objects are constructed. `case_types` knows what the nodes mean.
"""

import csv
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import NamedTuple, NoReturn

from ..atomic_writes import replacing
from ..errors import WeakIncentivesError, missing_extra
from ..serde.json_types import Json
from ..serde.partial_places import Place

__all__ = [
    "ANY",
    "CaseFileError",
    "CaseProblem",
    "Node",
    "Problems",
    "read_nodes",
    "typed",
    "write_cases",
]

_MAX_BYTES, _MAX_DEPTH, _MAX_SHOWN = 50_000_000, 64, 100
_TOO_DEEP = f"it is nested more than {_MAX_DEPTH} levels deep"

type Scalar = bool | int | float | str | None


class CaseProblem(NamedTuple):
    """A problem in a file of cases, and its line, starting at 1."""

    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


class CaseFileError(WeakIncentivesError, ValueError):
    """Files of cases cannot be used; `problems` lists everything that is wrong with them."""

    def __init__(self, *problems: CaseProblem) -> None:
        shown = [f"{problem}" for problem in problems[:_MAX_SHOWN]]
        more = [f"and {len(problems) - len(shown)} more"] if len(problems) > len(shown) else []
        super().__init__("\n".join([*shown, *more]))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Problems:
    """The problems of one file that have been found so far."""

    path: str
    found: list[CaseProblem] = field(default_factory=list[CaseProblem])

    def add(self, line: int, message: str) -> None:
        self.found.append(CaseProblem(self.path, line, message))

    def stop(self, line: int, message: str) -> NoReturn:
        self.add(line, message)
        raise CaseFileError(*self.found)


@dataclass(frozen=True, slots=True)
class Node:
    """A value in a file, and its line.

    Text is plain if its type decides how it is read: YAML without quotes, or a cell in CSV.
    """

    value: "Scalar | list[Node] | dict[str, Node]"
    line: int
    is_plain: bool = False


def read_nodes(path: Path, place: Place, problems: Problems) -> Sequence[Node]:
    """Returns the cases of a file, and adds to `problems` what is wrong with its syntax.

    `place` is the type of a case. Raises `CaseFileError` if the rest cannot be read.
    """
    suffix = _suffix(path)
    if suffix not in _WRITERS:
        problems.stop(1, f"its name must end in {_SUFFIXES}")
    if not path.is_file():
        problems.stop(1, "it is not a file; for the files of a folder, pass 'folder/*.yaml'")
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        problems.stop(1, f"it has more than {_MAX_BYTES:,} bytes; split it into several files")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problems.stop(line, f"it is not UTF-8 ({error.reason}); save it as UTF-8")
    if suffix == ".csv":
        cases = _read_csv(text, place, problems)
    elif suffix == ".jsonl":
        cases = _read_json_lines(text, problems)
    elif suffix == ".json":
        cases = _listed(_nodes(_json_events(text, problems), problems), problems)
    else:
        cases = _listed(_nodes(_yaml_events(text, problems), problems), problems)
    if not cases and not problems.found:
        problems.stop(1, "it has no cases; write at least one, such as `- id: first`")
    return cases


def _suffix(path: Path) -> str:
    return path.suffix.lower().replace(".yml", ".yaml")


def _listed(nodes: Sequence[Node], problems: Problems) -> list[Node]:
    """Returns the cases of a file's only value: a list, or a mapping with `cases`."""
    root, *others = nodes or [Node([], 1)]
    for other in others:
        problems.stop(other.line, "it has a second document; write one list")
    if isinstance(root.value, dict) and "cases" in root.value:
        for key in root.value.keys() - {"cases", "$schema"}:
            problems.add(root.value[key].line, f"unknown key {key!r} next to 'cases'")
        root = root.value["cases"]
    if not isinstance(root.value, list):
        problems.stop(root.line, "it must contain a list of cases, or a mapping with `cases:`")
    return root.value


# --- events: the start of a list "[" or mapping "{", its "end", or a "scalar", each with a node

type _Events = Iterator[tuple[str, Node]]


def _nodes(events: _Events, problems: Problems) -> list[Node]:
    """Returns the values that events describe."""
    nodes, outer = list[Node](), list[tuple[str, int, list[Node]]]()
    for kind, event in events:
        node = event
        if kind in ("[", "{"):
            outer.append((kind, event.line, nodes))
            if len(outer) > _MAX_DEPTH:
                problems.stop(event.line, _TOO_DEEP)
            nodes = []
            continue
        if kind == "end":
            opening, line, before = outer.pop()
            node = Node(nodes if opening == "[" else _mapping(nodes, problems), line)
            nodes = before
        nodes.append(node)
    return nodes


def _mapping(nodes: Sequence[Node], problems: Problems) -> dict[str, Node]:
    """Returns the mapping whose keys and values alternate in `nodes`."""
    values: dict[str, Node] = {}
    for key, value in zip(nodes[::2], nodes[1::2], strict=True):
        if not isinstance(key.value, str):
            problems.add(key.line, "a key must be text")
        elif key.value in values:
            problems.add(key.line, f"the key {key.value!r} appears twice; remove one of them")
        else:
            values[key.value] = value
    return values


_YAML_KINDS = {
    "ScalarEvent": "scalar",
    "SequenceStartEvent": "[",
    "SequenceEndEvent": "end",
    "MappingStartEvent": "{",
    "MappingEndEvent": "end",
}


def _yaml_events(text: str, problems: Problems) -> _Events:
    try:
        import yaml
    except ImportError as error:
        raise missing_extra("A YAML file of cases", "PyYAML", "evals") from error
    try:
        for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            line = event.start_mark.line + 1
            if getattr(event, "anchor", None) or getattr(event, "tag", None):
                problems.stop(line, "tags, anchors and aliases (!, &, *) are not supported")
            kind = _YAML_KINDS.get(type(event).__name__)
            if kind == "scalar":
                yield kind, Node(event.value, line, is_plain=not event.style)
            elif kind:
                yield kind, Node(None, line)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        hint = "put text with ': ' or ' #' in quotes"
        problems.stop(mark.line + 1 if mark else 1, f"invalid YAML: {problem or error}; {hint}")


_TOKEN = re.compile(r'[\[\]{}]|"(?:[^"\\]|\\.)*+"|[^\[\]{}",:\s]+')
_BRACKETS = {"[": "[", "{": "{", "]": "end", "}": "end"}


def _json_events(text: str, problems: Problems, first_line: int = 1) -> _Events:
    line, position = first_line, 0
    try:
        _JSON.decode(text)  # so that the tokens are known to be JSON
        for match in _TOKEN.finditer(text):
            line += text.count("\n", position, match.start())
            position = match.start()
            if match[0] in _BRACKETS:
                yield _BRACKETS[match[0]], Node(None, line)
            else:
                value: Scalar = _JSON.decode(match[0])
                f"{value}".encode()  # raises for half of a surrogate pair
                yield "scalar", Node(value, line)
    except json.JSONDecodeError as error:
        line += error.lineno - 1
        problems.stop(line, f"invalid JSON: {error.msg} (column {error.colno})")
    except RecursionError:
        problems.stop(line, _TOO_DEEP)
    except ValueError as error:
        problems.stop(line, f"invalid JSON: {error}")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a number in JSON")
    return value


_JSON = json.JSONDecoder(parse_constant=_finite, parse_float=_finite)


def _read_json_lines(text: str, problems: Problems) -> list[Node]:
    nodes: list[Node] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            with suppress(CaseFileError):  # `problems` has it
                nodes += _nodes(_json_events(line, problems, number), problems)
    return nodes


# --- plain text

ANY = Place([{}], {})
"""The place of a value of any type."""

_INTEGER = re.compile(r"[-+]?[0-9]{1,4000}|0o[0-7]{1,1000}|0x[0-9a-fA-F]{1,1000}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS = dict.fromkeys(("null", "Null", "NULL", "~", ""), None) | {
    word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")
}


def typed(node: Node, place: Place, problems: Problems) -> Node:
    """Reads plain text as a value of a type that `place` admits, by YAML 1.2's core schema.

    Where text is admitted too, a number must be written as in JSON, so that `1.10` remains text.
    """
    text = node.value
    assert isinstance(text, str)
    if text[:1] in ('"', "[", "{") and place.kinds & {"array", "object"}:  # a cell with JSON
        cell = Problems(problems.path)
        with suppress(CaseFileError):
            [parsed] = _nodes(_json_events(text, cell, node.line), cell)
            problems.found.extend(cell.found)
            return parsed
        if not place.admits(text):
            problems.found.extend(cell.found)
    value: Scalar = text
    if text in _WORDS:
        value = _WORDS[text]
    elif _INTEGER.fullmatch(text):
        value = int(text, 0 if text[:2] in ("0o", "0x") else 10)
    elif _FLOAT.fullmatch(text):
        value = float(text)
    is_text = place.admits(text)
    is_exact = text in _WORDS or json.dumps(value) == text.replace(".0e", "e")
    if place.admits(value) and (is_exact or not is_text):
        return Node(value, node.line)
    if is_text and not text:
        problems.add(node.line, 'the value is missing; write "" for an empty text')
    return Node(text, node.line)


# --- CSV: a cell is plain text or JSON, and an empty cell is an absent key

_CELL = re.compile(r'(?:"((?:[^"]|"")*+)"|([^",\r\n]*+))(,|\r\n?|\n|\Z)|[^\r\n]*+(?:\r\n?|\n|\Z)')
_LINE_END = re.compile(r"\r\n?|\n")


def _read_csv(text: str, place: Place, problems: Problems) -> list[Node]:
    (line, columns), *rows = [*_rows(text, problems)] or [(1, ["id"])]
    paths = [column.partition(".")[::2] for column in columns]
    count = len(problems.found)
    for column, (key, inner) in dict(zip(columns, paths, strict=True)).items():
        at = place.property(key)
        if at is None or (inner and at.property(inner) is None):
            params = place.property("params")
            is_field = params is not None and params.property(column) is not None
            remedy = f"; for the field of the params, write 'params.{column}'" * is_field
            problem = f"unknown column {column!r}: cases of this prompt have no such key{remedy}"
            problems.add(line, problem)
        if columns.count(column) > 1 or (inner and key in columns):
            problems.add(line, f"the column {column!r} appears twice, or is part of another column")
    if "id" not in columns:
        problems.add(line, "the column 'id' is missing")
    if len(problems.found) > count:  # each row would repeat the problem
        raise CaseFileError(*problems.found)
    cases: list[Node] = []
    for row, cells in rows:
        if len(cells) != len(columns):
            problems.add(row, f"expected {len(columns)} cells, as in line {line}, got {len(cells)}")
            continue
        case: dict[str, Node] = {}
        for (key, inner), cell in zip(paths, cells, strict=True):
            node = Node(cell, row, is_plain=True)
            if cell and inner:
                parts = case.setdefault(key, Node({}, row)).value
                assert isinstance(parts, dict)  # no column is part of another
                parts[inner] = node
            elif cell:
                case[key] = node
        cases.append(Node(case, row))
    return cases


def _rows(text: str, problems: Problems) -> Iterator[tuple[int, list[str]]]:
    """Yields the line and the cells of each row that is not empty."""
    position, line = 0, 1
    while position < len(text):
        row, cells, separator = line, list[str](), ","
        while separator == ",":
            match = _CELL.match(text, position)
            assert match is not None  # the last alternative matches the rest of any line
            quoted, plain, separator = match.groups()
            if separator is None:
                problems.add(
                    line,
                    f"column {len(cells) + 1}: a quote is not closed or misplaced; "
                    'in a cell in quotes, write "" for a quote',
                )
                cells = []
            else:
                cells.append(plain if quoted is None else quoted.replace('""', '"'))
            line += len(_LINE_END.findall(match[0]))
            position = match.end()
        if any(cells):
            yield row, cells


# --- writing

_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_PLAIN_KEY = re.compile(
    r"(?!(?:y|n|yes|no|on|off|true|false|null)$)[a-z_]\w*", re.IGNORECASE | re.ASCII
)
_TEXTS = ("id", "message", "cluster")


def _yaml(value: Json, indent: str = "") -> str:
    """Returns YAML that follows a key or a dash. Text is a block if it has lines, or in quotes."""
    inner = indent + "  "
    match value:
        case dict() if value:
            keys = [key if _PLAIN_KEY.fullmatch(key) else _quoted(key) for key in value]
            items = zip(keys, value.values(), strict=True)
            return "".join([f"\n{indent}{key}:{_yaml(item, inner)}" for key, item in items])
        case list() if value:
            return "".join([f"\n{indent}- {_yaml(item, inner).lstrip()}" for item in value])
        case str() if "\n" in value and value.strip() and not _HIDDEN.search(value):
            lines = value.removesuffix("\n").split("\n")
            block = "".join(["\n" + (line and indent + line) for line in lines])
            return f" |2{'+' if value.endswith('\n') else '-'}{block}"
        case _:
            return " " + _quoted(value)


def _quoted(value: Json) -> str:
    return _HIDDEN.sub(lambda char: f"\\u{ord(char[0]):04x}", _json(value))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _csv_text(cases: Sequence[Mapping[str, Json]]) -> str:
    columns = list(dict.fromkeys(key for case in cases for key in case))
    rows = [[_cell(case, key) if key in case else "" for key in columns] for case in cases]
    file = StringIO()
    csv.writer(file).writerows([columns, *rows])
    return file.getvalue()


def _cell(case: Mapping[str, Json], key: str) -> str:
    value = case[key]
    if not isinstance(value, str):
        return _json(value)
    is_text = key in _TEXTS or typed(Node(value, 1), ANY, Problems("")).value == value
    if not value or not is_text:
        raise ValueError(
            f"case {case['id']!r}: CSV cannot represent {key}={value!r:.100}, because a cell has "
            "no type; save the dataset as .yaml or .json"
        )
    return value


_WRITERS: Mapping[str, Callable[[Sequence[Mapping[str, Json]]], str]] = {
    ".yaml": lambda cases: f"{_yaml([dict(case) for case in cases]).lstrip()}\n",
    ".json": lambda cases: json.dumps(cases, ensure_ascii=False, indent=2) + "\n",
    ".jsonl": lambda cases: "".join([f"{_json(case)}\n" for case in cases]),
    ".csv": _csv_text,
}
_SUFFIXES = ", ".join(_WRITERS)


def write_cases(path: Path, cases: Sequence[Mapping[str, Json]]) -> None:
    """Replaces a file, whose suffix determines the format; raises `ValueError` for another one."""
    write = _WRITERS.get(_suffix(path))
    if write is None:
        raise ValueError(f"the file name must end in {_SUFFIXES}, got {path.name!r}")
    data = write(cases).encode()  # raises for what is not Unicode text
    with replacing(path) as file:
        file.write(data)
