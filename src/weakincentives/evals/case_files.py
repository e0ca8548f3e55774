"""Reads YAML, JSON, JSON Lines and CSV into nodes that know their lines, and writes these formats.

Files can come from anyone: their size, depth and aliases are limited, and YAML is only parsed into
events, so that no objects are constructed. `case_types` knows what the nodes mean.
"""

import json
import math
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

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
_MAX_EXPANSION = 10  # aliases may make a file ten times as long
_TOO_DEEP = f"it is nested more than {_MAX_DEPTH} levels deep"

# Any: PyYAML has no types.
type _Yaml = Any
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
    suffix = path.suffix.lower()
    if suffix not in _READERS:
        problems.stop(1, f"its name must end in {', '.join(_READERS)}")
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
    root = _READERS[suffix](text, place, problems) if text.strip() else Node([], 1)
    if isinstance(root.value, dict) and "cases" in root.value:
        for key in root.value.keys() - {"cases", "$schema"}:
            problems.add(root.value[key].line, f"unknown key {key!r} next to 'cases'")
        root = root.value["cases"]
    if not isinstance(root.value, list):
        problems.stop(root.line, "it must contain a list of cases, or a mapping with `cases:`")
    if not root.value and not problems.found:
        problems.stop(root.line, "it has no cases; write at least one, such as `- id: first`")
    return root.value


def _mapping(nodes: Sequence[Node], problems: Problems) -> dict[str, Node]:
    """Returns the mapping whose keys and values alternate in `nodes`."""
    values: dict[str, Node] = {}
    for key, value in zip(nodes[::2], nodes[1::2], strict=True):
        if not isinstance(key.value, str):
            problems.add(key.line, "a key must be text")
        elif key.value == "<<" and key.is_plain:
            problems.add(key.line, "merge keys (<<) are not supported; repeat what they merge")
        elif key.value in values:
            problems.add(key.line, f"the key {key.value!r} appears twice; remove one of them")
        else:
            values[key.value] = value
    return values


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
    if text[:1] in ('"', "[", "{") and not place.kinds <= {"string"}:  # a cell: YAML would quote it
        cell = Problems(problems.path)
        try:
            return _JsonText(text, cell, node.line).read()
        except CaseFileError:
            if not place.admits(text):
                problems.found.extend(cell.found)
    value: Scalar = text
    if text in _WORDS:
        value = _WORDS[text]
    elif _INTEGER.fullmatch(text):
        value = int(text, 0 if text[:2] in ("0o", "0x") else 10)
    elif _FLOAT.fullmatch(text):
        value = float(text)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_exact = not is_number or json.dumps(value) == text.replace(".0e", "e")
    if isinstance(value, str) or not place.admits(value) or (place.admits(text) and not is_exact):
        if not text and place.admits(text):
            problems.add(node.line, 'the value is missing; write "" for an empty text')
        value = text
    return Node(value, node.line)


# --- YAML


def _import_yaml() -> _Yaml:
    try:
        import yaml
    except ImportError as error:
        raise missing_extra("A YAML file of cases", "PyYAML", "evals") from error
    return yaml


def _read_yaml(text: str, _: Place, problems: Problems) -> Node:
    yaml = _import_yaml()
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _YamlReader(yaml.parse(text, Loader=loader), len(text), problems).read()
    except CaseFileError:
        raise
    except (yaml.YAMLError, ValueError) as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        hint = "put text with ': ' or ' #' in quotes"
        problems.stop(mark.line + 1 if mark else 1, f"invalid YAML: {problem or error}; {hint}")


class _Item(NamedTuple):
    """A node with the number of characters and nodes in it, and its depth."""

    node: Node
    size: int = 1
    depth: int = 0


class _YamlReader:
    """Builds nodes from events; an alias refers to the same node as its anchor."""

    def __init__(self, events: Iterator[_Yaml], length: int, problems: Problems) -> None:
        self._events = events
        self._problems = problems
        self._anchors: dict[str, _Item] = {}
        self._left = _MAX_EXPANSION * length

    def read(self) -> Node:
        """Returns the only document."""
        first, *others = [*iter(self._next, None)] or [_Item(Node([], 1))]
        for other in others:
            self._problems.stop(other.node.line, "it has a second document; write one list")
        return first.node

    def _next(self, depth: int = 0) -> _Item | None:
        """Returns the next item; `None` at the end of its list, mapping or stream."""
        event = next(self._events)
        line, anchor = event.start_mark.line + 1, getattr(event, "anchor", "") or ""
        tag = getattr(event, "tag", None)
        if tag is not None:
            self._problems.add(line, f"the tag {tag} is not allowed; the prompt determines types")
        match type(event).__name__:
            case "AliasEvent":
                item = self._anchored(anchor, line)
            case "ScalarEvent":
                item = _Item(Node(_joined(event.value), line, not event.style), len(event.value))
            case "SequenceStartEvent" | "MappingStartEvent" as kind:
                if depth == _MAX_DEPTH:
                    self._problems.stop(line, _TOO_DEEP)
                items = [*iter(partial(self._next, depth + 1), None)]
                nodes = [item.node for item in items]
                value = nodes if kind[0] == "S" else _mapping(nodes, self._problems)
                size = sum(item.size + 1 for item in items)
                inner = max([item.depth for item in items], default=0)
                item = _Item(Node(value, line), size, inner + 1)
            case "SequenceEndEvent" | "MappingEndEvent" | "StreamEndEvent":
                return None
            case _:
                return self._next(depth)
        if depth + item.depth > _MAX_DEPTH:
            self._problems.stop(line, _TOO_DEEP)
        if anchor:
            self._anchors[anchor] = item
        return item

    def _anchored(self, anchor: str, line: int) -> _Item:
        if anchor not in self._anchors:
            self._problems.stop(line, f"*{anchor} must follow a complete &{anchor}")
        item = self._anchors[anchor]
        self._left -= item.size
        if self._left < 0:
            limit = f"more than {_MAX_EXPANSION} times as long"
            self._problems.stop(line, f"aliases make it {limit}; repeat less, or split it")
        return item


def _joined(text: str) -> str:
    """Joins pairs of surrogates, which PyYAML does not; raises `ValueError` for a single one."""
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError as error:
        raise ValueError("it has half of a surrogate pair, such as \\ud83d") from error


_ESCAPED = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def _has_no_aliases(_: _Yaml, __: object) -> bool:
    return True


def _write_in_quotes(emitter: _Yaml, text: str, split: object = None) -> None:  # noqa: ARG001 - PyYAML's
    """Writes text as in JSON, with characters that PyYAML would escape."""
    quoted = json.dumps(text, ensure_ascii=False)
    emitter.write_indicator(_ESCAPED.sub(lambda char: f"\\U{ord(char[0]):08x}", quoted), True)  # noqa: FBT003 - PyYAML's


def _yaml_text(cases: Sequence[Mapping[str, Json]]) -> str:
    yaml = _import_yaml()
    dumper: _Yaml = type(
        "CaseDumper",
        (yaml.SafeDumper,),
        {"ignore_aliases": _has_no_aliases, "write_double_quoted": _write_in_quotes},
    )

    def represent(dumper: _Yaml, text: str) -> _Yaml:
        is_block = "\n" in text and not _ESCAPED.search(text.replace("\n", ""))
        style = "|" if is_block else '"' if _ESCAPED.search(text) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    dumper.add_representer(str, represent)
    for pattern in (_INTEGER, _FLOAT):  # other readers have further numbers than YAML 1.1
        number = re.compile(f"(?:{pattern.pattern})$")
        dumper.add_implicit_resolver("tag:weakincentives,number", number, list("-+.0123456789"))
    text: str = yaml.dump(
        [dict(case) for case in cases],
        Dumper=dumper,
        allow_unicode=True,
        sort_keys=False,
        width=10**6,
    )
    return text


# --- JSON


@dataclass(frozen=True, slots=True)
class _JsonText:
    """JSON that begins at `first_line` of a file."""

    text: str
    problems: Problems
    first_line: int = 1
    ends: list[int] = field(init=False)

    def __post_init__(self) -> None:
        ends = [match.start() for match in re.finditer("\n", self.text)]
        object.__setattr__(self, "ends", ends)

    def read(self) -> Node:
        """Returns the only value; raises `CaseFileError` for anything but JSON."""
        try:
            node, end = self._read(self._skip(0), 1)
            if end < len(self.text):
                raise json.JSONDecodeError("text after the value", self.text, end)
        except json.JSONDecodeError as error:
            line = self._line(error.pos)
            self.problems.stop(line, f"invalid JSON: {error.msg} (column {error.colno})")
        except CaseFileError:
            raise
        except ValueError as error:  # NaN, a surrogate, or an integer of thousands of digits
            self.problems.stop(self.first_line, f"invalid JSON: {error}")
        return node

    def _line(self, position: int) -> int:
        return bisect_left(self.ends, position) + self.first_line

    def _skip(self, position: int) -> int:
        while self.text[position : position + 1] in (" ", "\t", "\r", "\n"):
            position += 1
        return position

    def _read(self, start: int, depth: int) -> tuple[Node, int]:
        """Returns the value at `start`, and the position of what follows it."""
        line, opening = self._line(start), self.text[start : start + 1]
        if opening not in ("[", "{"):
            value, end = _JSON.raw_decode(self.text, start)
            return Node(_joined(value) if type(value) is str else value, line), self._skip(end)
        if depth > _MAX_DEPTH:
            self.problems.stop(line, _TOO_DEEP)
        nodes: list[Node] = []
        closing = "]" if opening == "[" else "}"
        end = self._skip(start + 1)
        while nodes or self.text[end : end + 1] != closing:
            node, end = self._read(end, depth + 1)
            nodes.append(node)
            expected = ":" if opening == "{" and len(nodes) % 2 else ","
            separator = self.text[end : end + 1]
            if separator == closing and expected == ",":
                break
            if separator != expected:
                raise json.JSONDecodeError(f"{expected!r} is missing", self.text, end)
            end = self._skip(end + 1)
        values = nodes if opening == "[" else _mapping(nodes, self.problems)
        return Node(values, line), self._skip(end + 1)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a number in JSON")


def _finite(text: str) -> float:
    value = float(text)
    return _refuse(text) if math.isinf(value) else value


_JSON = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)


def _read_json(text: str, _: Place, problems: Problems) -> Node:
    return _JsonText(text, problems).read()


def _read_json_lines(text: str, _: Place, problems: Problems) -> Node:
    nodes: list[Node] = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            own = Problems(problems.path)
            with suppress(CaseFileError):
                nodes.append(_JsonText(line, own, number).read())
            problems.found.extend(own.found)
    return Node(nodes, 1)


def _json_text(cases: Sequence[Mapping[str, Json]]) -> str:
    return json.dumps(cases, ensure_ascii=False, indent=2) + "\n"


def _json_lines(cases: Sequence[Mapping[str, Json]]) -> str:
    return "".join(json.dumps(case, ensure_ascii=False) + "\n" for case in cases)


# --- CSV: a cell is plain text or JSON, and an empty cell is an absent key

_QUOTED = r'"([^"]*+(?:""[^"]*+)*+)"'
_CELL = re.compile(rf'(?:{_QUOTED}|([^",\r\n]*+))(,|\r\n|\r|\n|\Z)')
_LINE_END = re.compile(r"\r\n|\r|\n|\Z")
_COLUMNS = ("id", "message", "params", "expected", "cluster", "metadata", "state", "files")


def _read_csv(text: str, place: Place, problems: Problems) -> Node:
    rows = _rows(text, problems)
    line, columns = next(rows, (1, []))
    keys = [_keys(column) for column in columns]
    for index, (column, path) in enumerate(zip(columns, keys, strict=True)):
        at: Place | None = place
        for key in path:
            at = at and at.property(key)
        if at is None:
            known = "the prompt's" if len(path) > 1 else ", ".join(_COLUMNS)
            problems.add(line, f"unknown column {column!r}; the keys are {known}")
        if column in columns[:index]:
            problems.add(line, f"the column {column!r} appears twice; remove one of them")
    if "id" not in columns:
        problems.add(line, "the column 'id' is missing")
    is_table = not problems.found
    cases: list[Node] = []
    for row, cells in rows:
        if len(cells) != len(columns):
            problems.add(row, f"expected {len(columns)} cells, as in line {line}, got {len(cells)}")
        case: dict[str, Node] = {}
        for path, cell in zip(keys, cells, strict=False):
            if cell and is_table and not _put(case, path, Node(cell, row, is_plain=True)):
                problems.add(row, f"both {path[0]} and {'.'.join(path)} have a value; empty one")
        cases.append(Node(case, row))
    if not is_table:  # each row would repeat the problem
        raise CaseFileError(*problems.found)
    return Node(cases, 1)


def _rows(text: str, problems: Problems) -> Iterator[tuple[int, list[str]]]:
    """Yields the cells of each row that is not empty, and its line."""
    position, line = 0, 1
    while position < len(text) and len(problems.found) < _MAX_SHOWN:
        row, separator, cells = line, ",", list[str]()
        while separator == ",":
            match = _CELL.match(text, position)
            if match is None:  # continue with the next line
                column = position - max(text.rfind(end, 0, position) for end in "\r\n")
                hint = 'in a cell in quotes, write "" for a quote'
                problems.add(line, f"column {column}: a quote is not closed or misplaced; {hint}")
                match = _LINE_END.search(text, position)
                assert match is not None  # the end of the text matches
                position, line, cells = match.end(), line + 1, []
                break
            quoted, plain, separator = match.groups()
            cells.append(plain if quoted is None else quoted.replace('""', '"'))
            line += len(_LINE_END.findall(match[0])) - 1
            position = match.end()
        if any(cells):
            yield row, cells


def _keys(column: str) -> tuple[str, ...]:
    """Returns the keys that lead to a column, such as `params.Type.field` or `params.field`."""
    first, dot, rest = column.partition(".")
    kind, second_dot, name = rest.rpartition(".")
    if first == "params" and second_dot:
        return first, kind, name
    return (first, rest) if dot else (first,)


def _put(case: dict[str, Node], keys: Sequence[str], node: Node) -> bool:
    """Adds a cell; returns whether its mapping is made of cells and not a cell itself."""
    values = case
    for key in keys[:-1]:
        inner = values.setdefault(key, Node({}, node.line)).value
        if not isinstance(inner, dict):
            return False
        values = inner
    return values.setdefault(keys[-1], node) is node


def _csv_text(cases: Sequence[Mapping[str, Json]]) -> str:
    rows = [_cells(case) for case in cases]
    columns = dict.fromkeys(column for row in rows for column in row)
    order = sorted(columns, key=lambda column: _COLUMNS.index(column.partition(".")[0]))
    lines = [order, *([row.get(column, "") for column in order] for row in rows)]
    return "".join(",".join(map(_quoted, line)) + "\n" for line in lines)


def _quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if re.search(r'[",\r\n]', cell) else cell


def _cells(case: Mapping[str, Json]) -> dict[str, str]:
    """Returns the cells of a case; a mapping that has no other form is one cell, in JSON."""
    cells: dict[str, str] = {}
    for key, value in case.items():
        flat = _flat(value, 2 if key == "params" else 1, key) if key in _MAPPINGS else None
        if flat is not None:
            cells |= flat
        elif key in _TEXTS and value:
            cells[key] = f"{value}"
        elif (cell := _cell(value)) is not None:
            cells[key] = cell
        else:
            raise ValueError(
                f"case {case['id']!r}: CSV cannot represent {key}={value!r:.100}, because a cell "
                "has no type; save the dataset as .yaml or .json"
            )
    return cells


_MAPPINGS, _TEXTS = ("params", "metadata", "files"), ("id", "message", "cluster")


def _flat(value: Json, depth: int, column: str) -> dict[str, str] | None:
    """Returns the cells of the keys in a mapping; `None` if it must be one cell."""
    if not isinstance(value, dict) or not depth:
        cell = _cell(value)
        return None if cell is None else {column: cell}
    cells: dict[str, str] = {}
    for key, item in value.items():
        is_field = column.startswith("params") and (depth == 1 or not isinstance(item, dict))
        inner = _flat(item, depth - 1, f"{column}.{key}")
        if not inner or (is_field and "." in key):
            return None
        cells |= inner
    return cells


def _cell(value: Json) -> str | None:
    """Returns a cell that has this value wherever it is valid; `None` if it needs to be in JSON."""
    if not isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    is_text = value and typed(Node(value, 1), ANY, Problems("")).value == value
    return value if is_text else None


_READERS = {
    ".yaml": _read_yaml,
    ".yml": _read_yaml,
    ".json": _read_json,
    ".jsonl": _read_json_lines,
    ".csv": _read_csv,
}
_WRITERS = {
    ".yaml": _yaml_text,
    ".yml": _yaml_text,
    ".json": _json_text,
    ".jsonl": _json_lines,
    ".csv": _csv_text,
}


def write_cases(path: Path, cases: Sequence[Mapping[str, Json]]) -> None:
    """Replaces a file, whose suffix determines the format; raises `ValueError` for another one."""
    write = _WRITERS.get(path.suffix.lower())
    if write is None:
        raise ValueError(f"the file name must end in {', '.join(_WRITERS)}, got {path.name!r}")
    json.dumps(cases, ensure_ascii=False).encode()  # raises for what is not Unicode text
    data = write(cases).encode()
    with replacing(path) as file:
        file.write(data)
