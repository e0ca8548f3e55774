"""The meaning of a case in a file: its JSON Schema, and the types of its params, state and output.

A case has the keys `id`, `message`, `params`, `expected`, `cluster`, `metadata`, `state` and
`files`. The same schema tells editors what is valid and tells us how to read plain text.
"""

import base64
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from glob import glob
from operator import attrgetter
from os import PathLike, fspath, walk
from pathlib import Path
from types import GenericAlias
from unicodedata import normalize

from .. import serde
from ..displays import count_of
from ..errors import SerdeError
from ..filesystem.paths import FilesystemLimits, PathError, glob_matches, normal_path
from ..prompt.template import AnyPrompt, AnyTemplate, Prompt
from ..record_types import AnyType
from ..serde.json_types import AnyJson, Json, JsonSchema
from ..serde.partial_places import Place
from .case_files import (
    ANY,
    CaseFileError,
    CaseProblem,
    Node,
    Problems,
    read_nodes,
    typed,
    write_cases,
)
from .cases import Case

__all__ = ["Paths", "case_schema", "load_cases", "save_cases"]

type Paths = str | PathLike[str] | Iterable[str | PathLike[str]]

_MAX_BYTES = 100_000_000  # of the files that the cases of one load name
_MAGIC = re.compile(r"[*?[]")
_TEXT, _WORDS = {"type": "string"}, {"type": ["string", "integer"]}


def case_schema(target: AnyTemplate | AnyPrompt | None = None) -> JsonSchema:
    """Returns the JSON Schema of a file of cases for a prompt, for editors that check YAML or JSON.

    The first line of a YAML file can name it: `# yaml-language-server: $schema=cases.schema.json`.
    """
    return _CaseTypes(target).schema


def load_cases(paths: Paths, target: AnyTemplate | AnyPrompt | None) -> list[Case]:
    """Reads cases; see `Dataset.load`."""
    types, found, cases = _CaseTypes(target), list[CaseProblem](), dict[str, Case]()
    for path in _files_at([paths] if isinstance(paths, str | PathLike) else paths, found):
        problems = Problems(str(path))
        try:
            for node in read_nodes(path, types.place, problems):
                case = types.read(node, path.parent, problems)
                if case is None:
                    continue
                case_id = normalize("NFC", case.id)
                if case_id in cases:
                    other = cases[case_id].source
                    problems.add(node.line, f"the id {case_id!r} is already used in {other}")
                cases.setdefault(case_id, case)
        except CaseFileError:  # `problems` has its problems
            pass
        own = sorted(problems.found, key=attrgetter("line"))
        found += _without_repeats(own) if path.suffix.lower() == ".csv" else own
    if found:
        raise CaseFileError(*found)
    if not cases:
        raise ValueError("Dataset.load needs at least one path, got none")
    return [*cases.values()]


def _files_at(paths: Iterable[str | PathLike[str]], found: list[CaseProblem]) -> Iterator[Path]:
    for path in [fspath(path) for path in paths]:
        is_glob = _MAGIC.search(path) and not Path(path).exists()
        matches = sorted(glob(path, recursive=True)) if is_glob else [path]  # noqa: PTH207 - absolute, too
        if not matches:
            found.append(CaseProblem(path, 1, "no file matches this pattern"))
        yield from map(Path, matches)


def _without_repeats(problems: Sequence[CaseProblem]) -> Iterator[CaseProblem]:
    """Reports a problem that several rows of a table have only for the first one."""
    counts = Counter(problem.message for problem in problems)
    for problem in problems:
        if more := counts.pop(problem.message, 0):
            note = f" (and in {count_of(more - 1, 'more row')})" if more > 1 else ""
            yield problem._replace(message=problem.message + note)


class _CaseTypes:
    """The types of a prompt's cases. Without a prompt, cases have neither params nor state."""

    def __init__(self, target: AnyTemplate | AnyPrompt | None) -> None:
        template = target.template if isinstance(target, Prompt) else target
        registry = template.registry if template else None
        self.params = _by_name(registry.params_types if registry else ())
        self.state = _by_name(registry.state if registry else ())
        self.output = template.structured_output if template else None
        bound = target.params.keys() if isinstance(target, Prompt) else ()
        required = registry.required_params.difference(bound) if registry else frozenset()
        self.required = [name for name, kind in self.params.items() if kind in required]
        self.schema = self._schema()
        self._bytes: dict[Path, bytes] = {}
        self._bytes_left = _MAX_BYTES
        case = self.schema["$defs"]["eval.case"]
        # An editor reads `id: 7` as a number, but the id is the text.
        texts = {"id": _TEXT, "cluster": _TEXT}
        self._case = {**case, "properties": {**case["properties"], **texts}}
        self.place = Place([self._case], self.schema)

    def bytes_of(self, file: Path) -> bytes:
        """Returns the content of a file, once for all cases; raises `_FileProblem` for too much."""
        if file not in self._bytes:
            self._bytes_left -= file.stat().st_size
            if self._bytes_left < 0:
                raise _FileProblem(f"the files of all cases have more than {_MAX_BYTES:,} bytes")
            self._bytes[file] = file.read_bytes()
        return self._bytes[file]

    def _schema(self) -> JsonSchema:
        output: list[AnyType] = [self.output.output_type] if self.output else []
        kinds = *self.params.values(), *self.state.values(), *output
        # One schema for all types, so that definitions with the same name are kept apart.
        schema = serde.json_schema(GenericAlias(tuple, kinds))
        parts = iter(schema.get("prefixItems", ()))
        params = {name: next(parts) for name in self.params}
        state = {name: {"type": "array", "items": next(parts)} for name in self.state}
        by_type = _object(params, required=self.required)
        content = [_TEXT, *(_object({key: _TEXT}, required=[key]) for key in ("from", "base64"))]
        properties = {
            "id": _WORDS,
            "message": _TEXT,
            "params": {"anyOf": [by_type, *params.values()]} if len(params) == 1 else by_type,
            "expected": next(parts, {}),
            "cluster": _WORDS,
            "metadata": {"type": "object"},
            "state": _object(state),
            "files": {"type": "object", "additionalProperties": {"anyOf": content}},
        }
        required = ["id", "params"] if self.required else ["id"]
        cases = {"type": "array", "items": {"$ref": "#/$defs/eval.case"}}
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "anyOf": [cases, _object({"$schema": _TEXT, "cases": cases}, required=["cases"])],
            "$defs": {
                **schema.get("$defs", {}),
                "eval.case": _object(properties, required=required),
            },
        }

    def read(self, node: Node, folder: Path, problems: Problems) -> Case | None:
        """Returns a case, or `None` after adding its problems."""
        count = len(problems.found)
        if not isinstance(node.value, dict):
            problems.add(node.line, f"a case must be a mapping, got {node.value!r:.60}")
            return None
        reader = _CaseReader(node, self, problems)
        case = Case(
            id=reader.text("id"),
            message=reader.values.get("message"),
            params=reader.params(),
            expected=reader.expected(),
            state=reader.state(),
            files=reader.files(folder),
            cluster=reader.text("cluster"),
            metadata=reader.values.get("metadata", {}),
            source=f"{problems.path}:{node.line}",
        )
        if not case.id and "id" not in node.value:
            problems.add(node.line, "the case has no id")
        return case if len(problems.found) == count else None


_FORMS: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "id": ("text that is not empty", (str, int, float)),
    "message": ("text", (str,)),
    "params": ("a mapping", (dict,)),
    "expected": ("", (object,)),
    "cluster": ("text", (str, int, float)),
    "metadata": ("a mapping", (dict,)),
    "state": ("a mapping", (dict,)),
    "files": ("a mapping", (dict,)),
}


class _CaseReader:
    """Reads the parts of one case; what is wrong with them is added to `problems`."""

    def __init__(self, node: Node, types: _CaseTypes, problems: Problems) -> None:
        assert isinstance(node.value, dict)
        self._line = node.line
        self._nodes = nodes = dict[str, Node](node.value)
        self._types = types
        self._problems = problems
        self.values: dict[str, AnyJson] = {}
        for key, item in nodes.items():
            place = types.place.property(key)
            if place is None:
                problems.add(item.line, f"unknown key {key!r}; a case has {', '.join(_FORMS)}")
                continue
            value = _value(item, place, problems)
            form, kinds = _FORMS[key]
            if not isinstance(value, kinds) or (form and isinstance(value, bool)):
                problems.add(item.line, f"{key} must be {form}, got {value!r:.60}")
            elif key == "id" and value == "":
                problems.add(item.line, f"{key} must be {form}")
            else:
                self.values[key] = value

    def text(self, key: str) -> str:
        """Returns text; a number is text that is not in quotes."""
        return f"{self.values.get(key, '')}"

    def params(self) -> tuple[object, ...]:
        types, values = self._types, self.values.get("params", {})
        if "params" in self._nodes and "params" not in self.values:
            return ()
        if len(types.params) == 1 and values.keys() - types.params.keys():
            [name] = types.params
            return (self._parse(types.params[name], values, "params"),)
        self._check_known("params", types.params)
        for name in types.required:
            if name not in values:
                self._problems.add(self._line, f"params of the type {name} are missing")
        known = values.keys() & types.params.keys()
        return tuple(
            [
                self._parse(types.params[name], value, "params", name)
                for name, value in values.items()
                if name in known
            ]
        )

    def state(self) -> tuple[object, ...]:
        types = self._types.state
        self._check_known("state", types)
        return tuple(
            [
                value
                for name, values in self.values.get("state", {}).items()
                if name in types
                for value in self._parse(GenericAlias(list, (types[name],)), values, "state", name)
            ]
        )

    def expected(self) -> AnyJson:
        output, value = self._types.output, self.values.get("expected")
        if output is None or "expected" not in self.values:
            return value
        extra = output.allow_extra_keys
        return self._parse(output.output_type, value, "expected", allow_extra=extra)

    def files(self, folder: Path) -> dict[str, bytes]:
        files: dict[str, bytes] = {}
        for path, source in self.values.get("files", {}).items():
            try:
                files |= _contents(path.replace("\\", "/"), source, folder, self._types)
            except (PathError, SerdeError, OSError, _FileProblem) as error:
                line = _at(self._nodes["files"], (path,)).line
                self._problems.add(line, f"files: {error}")
        return files

    def _check_known(self, key: str, types: Mapping[str, AnyType]) -> None:
        for name in self.values.get(key, {}).keys() - types.keys():
            known = ", ".join(sorted(types)) or "none"
            line = _at(self._nodes[key], (name,)).line
            self._problems.add(line, f"the prompt has no {key} of type {name!r}; known: {known}")

    def _parse(self, kind: AnyType, value: Json, *path: str, allow_extra: bool = False) -> AnyJson:
        """Returns a value of a type; an empty tuple stands for one that is not valid."""
        try:
            return serde.parse(kind, value, allow_extra=allow_extra)
        except SerdeError as error:
            for issue in error.issues:
                node = _at(self._nodes[path[0]], (*path[1:], *issue.path))
                got = "" if isinstance(node.value, dict | list) else f", got {node.value!r:.60}"
                place = ".".join(map(str, (*path, *issue.path)))
                self._problems.add(node.line, f"{place}: {issue.message}{got}")
            return ()


def _value(node: Node, place: Place, problems: Problems) -> AnyJson:
    """Returns a JSON value; `place` determines how plain text is read."""
    node = typed(node, place, problems) if node.is_plain else node
    items = node.value
    if isinstance(items, dict):
        for key, item in items.items():  # the literals in a union's members, such as `kind`
            part = place.property(key)
            if part is not None and not part.kinds and isinstance(item.value, str):
                place = place.narrowed(key, _value(item, part, problems))
        return {
            key: _value(item, place.property(key) or ANY, problems) for key, item in items.items()
        }
    if isinstance(items, list):
        return [
            _value(item, place.item(index) or ANY, problems) for index, item in enumerate(items)
        ]
    return items


def _at(node: Node, path: Iterable[int | str]) -> Node:
    """Returns the innermost node on a path; skips names of types, which a union adds."""
    for key in path:
        match node.value, key:
            case dict(items), str() if key in items:
                node = items[key]
            case list(items), int() if key < len(items):
                node = items[key]
            case _:
                pass
    return node


def _object(properties: Mapping[str, AnyJson], required: Sequence[str] = ()) -> JsonSchema:
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return schema | ({"required": [*required]} if required else {})


def _by_name(kinds: Iterable[AnyType]) -> dict[str, AnyType]:
    """Returns types by name; names that are not unique have their module."""
    kinds = sorted(set(kinds), key=lambda kind: (kind.__name__, kind.__module__))
    count = Counter(kind.__name__ for kind in kinds)
    return {
        kind.__name__
        if count[kind.__name__] == 1
        else f"{kind.__module__}.{kind.__qualname__}": kind
        for kind in kinds
    }


# --- files of a case


class _FileProblem(ValueError):
    """A file of a case cannot be read."""


def _contents(path: str, source: AnyJson, folder: Path, types: _CaseTypes) -> dict[str, bytes]:
    """Returns the files that a case has at `path`; other files are read from `folder`."""
    limits = FilesystemLimits()
    match source:
        case str():
            return {normal_path(path, limits): source.encode()}
        case {"base64": str(text)} if len(source) == 1:
            return {normal_path(path, limits): serde.parse(bytes, text)}
        case {"from": str(pattern)} if len(source) == 1:
            pattern = normal_path(pattern.replace("\\", "/"), limits)
        case _:
            raise _FileProblem(f"{path!r} must be text, {{from: path}} or {{base64: text}}")
    found = _matches(pattern, folder) if _MAGIC.search(pattern) else {"": folder / pattern}
    if not found:
        raise _FileProblem(f"no file matches {pattern!r} in the folder of the case")
    contents: dict[str, bytes] = {}
    root = folder.resolve()
    for name, file in found.items():
        if not file.resolve().is_relative_to(root):
            raise _FileProblem(f"{pattern!r} leads out of the folder of the case")
        if not file.is_file():
            raise _FileProblem(f"{pattern!r} is not a file; for a folder, write '{pattern}/**'")
        if file.stat().st_size > limits.file_bytes:
            raise _FileProblem(f"{pattern!r} has more than {limits.file_bytes:,} bytes")
        contents[normal_path(f"{path}/{name}", limits)] = types.bytes_of(file)
    return contents


def _matches(pattern: str, folder: Path) -> dict[str, Path]:
    """Returns files by their path below the part of the pattern that is not a pattern."""
    parts = pattern.split("/")
    fixed = next(index for index, part in enumerate(parts) if _MAGIC.search(part))
    base, rest = folder.joinpath(*parts[:fixed]), "/".join(parts[fixed:])
    files = [Path(root, name) for root, _, names in walk(base) for name in names]
    found = {file.relative_to(base).as_posix(): file for file in files}
    return {name: found[name] for name in sorted(found) if glob_matches(rest, name)}


# --- writing


def save_cases(path: str | PathLike[str], cases: Iterable[Case]) -> None:
    """Writes cases; see `Dataset.save`."""
    cases = [*cases]
    kinds = {type(value) for case in cases for value in (*case.params, *case.state)} - {dict}
    names = {kind: name for name, kind in _by_name(kinds).items()}
    write_cases(Path(path), [_written(case, names) for case in cases])


def _written(case: Case, names: Mapping[AnyType, str]) -> dict[str, Json]:
    if not isinstance(case.message, str | None):
        raise ValueError(  # noqa: TRY004 - the type is right, but the format has no place for it
            f"case {case.id!r}: a message with images or documents cannot be saved in a file"
        )
    params: dict[str, Json] = {}
    for value in case.params:
        if isinstance(value, dict):  # a TypedDict, which has lost its name
            if len(case.params) > 1:
                raise ValueError(f"case {case.id!r}: cannot tell the TypedDict of {value!r:.100}")
            params = dict(_dumped(value))
        else:
            params[names[type(value)]] = _dumped(value)
    state: dict[str, list[Json]] = {}
    for value in case.state:
        state.setdefault(names[type(value)], []).append(_dumped(value))
    parts: dict[str, AnyJson] = {
        "message": case.message,
        "params": params or None,
        "expected": case.expected if case.expected is None else _dumped(case.expected),
        "cluster": case.cluster or None,
        "metadata": _dumped(dict(case.metadata)) or None,
        "state": state or None,
        "files": {path: _content(data) for path, data in case.files.items()} or None,
    }
    return {"id": case.id, **{key: value for key, value in parts.items() if value is not None}}


def _dumped(value: object) -> AnyJson:
    kind = type(value)
    return serde.dump(value) if kind in (dict, list) else serde.dump_lossless(kind, value)


def _content(data: bytes) -> Json:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.urlsafe_b64encode(data).decode()}
