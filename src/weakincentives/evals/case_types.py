"""The type of a case in a file of cases for a prompt: its JSON Schema, reading and writing.

A case has the keys `id`, `message`, `params`, `expected`, `cluster`, `metadata`, `state` and
`files`. The same type tells editors what is valid and tells us how to read plain text.
"""

import base64
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache, partial
from glob import glob
from itertools import chain
from operator import attrgetter, itemgetter
from os import PathLike, fspath
from pathlib import Path
from typing import Any, NotRequired, TypedDict
from unicodedata import normalize

from .. import serde
from ..errors import SerdeError, ValidationIssue
from ..filesystem.host import HostFilesystem
from ..filesystem.paths import FilesystemLimits, normal_path
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

_MAGIC = re.compile(r"[*?[]")
# Any: the parts of these types are only known at run time, which type checkers do not accept.
_typed_dict: Any = TypedDict
_optional: Any = NotRequired
_list: Any = list
_dict: Any = dict
_From, _Base64 = _typed_dict("From", {"from": str}), _typed_dict("Base64", {"base64": bytes})


def case_schema(target: AnyTemplate | AnyPrompt | None = None) -> JsonSchema:
    """Returns the JSON Schema of a file of cases for a prompt, for editors that check YAML or JSON.

    The first line of a YAML file can name it: `# yaml-language-server: $schema=cases.schema.json`.
    """
    return _types_of(target).schema


def load_cases(paths: Paths, target: AnyTemplate | AnyPrompt | None) -> list[Case]:
    """Reads cases; see `Dataset.load`."""
    types, found, cases = _types_of(target), list[CaseProblem](), dict[str, Case]()
    for path in _files_at([paths] if isinstance(paths, str | PathLike) else paths, found):
        problems = Problems(str(path))
        reader = _CaseReader(types, path.parent, problems)
        with suppress(CaseFileError):  # `problems` has its problems
            for node in read_nodes(path, types.place, problems):
                case = reader.read(node)
                if case is not None and (other := cases.setdefault(case.id, case)) is not case:
                    used = f"the id {case.id!r} is already used in {other.source}"
                    problems.add(node.line, used)
        found += sorted(problems.found, key=attrgetter("line"))
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


def _types_of(target: AnyTemplate | AnyPrompt | None) -> "_CaseTypes":
    if isinstance(target, Prompt):
        return _cached_types(target.template, frozenset(target.params))
    return _cached_types(target, frozenset())


class _CaseTypes:
    """The types of a prompt's cases. Without a prompt, cases have neither params nor state."""

    def __init__(self, template: AnyTemplate | None, bound: frozenset[AnyType]) -> None:
        registry = template.registry if template else None
        output = template.structured_output if template else None
        required = registry.required_params.difference(bound) if registry else frozenset()
        params = _by_name(registry.params_types if registry else ())
        state = _by_name(registry.state if registry else ())
        by_type = _typed_dict(
            "Params",
            {key: kind if kind in required else _optional[kind] for key, kind in params.items()},
        )
        keys: dict[str, AnyType] = {
            "id": str | int,  # editors read text without quotes as a number
            "message": _optional[str],
            "params": by_type if required else _optional[by_type],
            "expected": _optional[output.output_type if output else Any],
            "cluster": _optional[str | int],
            "metadata": _optional[dict[str, Any]],
            "state": _optional[
                _typed_dict("State", {key: _optional[_list[kind]] for key, kind in state.items()})
            ],
            "files": _optional[_dict[str, str | _From | _Base64]],
        }
        self.keys, self.params, self.state = [*keys], params, [*state]
        self.by_type = case = _typed_dict("Case", keys)
        self.direct: AnyType = None  # with the fields of the only params type
        if len(params) == 1:
            self.direct = _typed_dict("DirectCase", keys | {"params": next(iter(params.values()))})
            case |= self.direct
        file = _typed_dict("File", {"$schema": _optional[str], "cases": _list[case]})
        dialect = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
        self.schema: JsonSchema = dialect | serde.json_schema(_list[case] | file)
        self.place = Place([self.schema], self.schema).item(0) or ANY


_cached_types = lru_cache(maxsize=16)(_CaseTypes)  # serde keeps what it has made for a type


class _CaseReader:
    """Reads the cases of one file; what is wrong with them is added to `problems`."""

    def __init__(self, types: _CaseTypes, folder: Path, problems: Problems) -> None:
        self._types = types
        self._problems = problems
        self._folder = cache(partial(HostFilesystem, folder, read_only=True))
        self._content = cache(self._read_file)  # cases can share a file

    def read(self, node: Node) -> Case | None:
        """Returns a case, or `None` after adding its problems."""
        count, types = len(self._problems.found), self._types
        for key in ("id", "cluster"):
            if isinstance(node.value, dict) and key in node.value:
                item = node.value[key]  # text, even if it looks like a number
                node.value[key] = Node(item.value, item.line)
        written = _value(node, types.place, self._problems)
        if not isinstance(written, dict):
            self._problems.add(node.line, f"a case must be a mapping, got {written!r:.60}")
            return None
        if written.get("id") == "":
            self._problems.add(_at(node, ("id",)).line, "id must be text that is not empty")
        params = written.get("params")
        has_fields = isinstance(params, dict) and params.keys() - types.params.keys()
        is_direct = bool(has_fields) and types.direct is not None
        values = self._parse(types.direct if is_direct else types.by_type, written, node)
        if values is None:
            return None

        def by_type(key: str) -> AnyJson:  # in the order of the file
            return [values[key][name] for name in written.get(key, {})]

        case = Case(
            id=normalize("NFC", f"{values['id']}"),
            message=values.get("message"),
            params=tuple([values["params"]] if is_direct else by_type("params")),
            expected=values.get("expected"),
            state=tuple(chain.from_iterable(by_type("state"))),
            files=self._files(node, values.get("files", {})),
            cluster=f"{values.get('cluster', '')}",
            metadata=values.get("metadata", {}),
            source=f"{self._problems.path}:{node.line}",
        )
        return case if len(self._problems.found) == count else None

    def _parse(self, kind: AnyType, written: Json, node: Node) -> AnyJson:
        """Returns the values of a case by key, or `None` after adding its problems."""
        try:
            return serde.parse(kind, written)
        except SerdeError as error:
            found = [self._problem(node, issue) for issue in error.issues]
            for line, message in dict.fromkeys(found):
                self._problems.add(line, message)
            return None

    def _problem(self, node: Node, issue: ValidationIssue) -> tuple[int, str]:
        """Returns the line and the message of an issue in a case."""
        path = issue.path
        if path[0] not in self._types.keys:
            message = f"unknown key {path[0]!r}; a case has {', '.join(self._types.keys)}"
        elif path[0] in ("id", "cluster") and path[1:]:  # an issue with each type
            path, message = path[:1], f"{path[0]} must be text"
        elif path[0] == "state" and path[1:2] and path[1] not in self._types.state:
            known = ", ".join(self._types.state) or "no state"
            message = f"state: unknown type {path[1]!r}; the prompt's sections declare {known}"
        elif path[0] == "files" and path[1:]:  # one of the issues with each form
            path = path[:2]
            message = f"files: {path[1]!r} must be text, {{from: path}} or {{base64: text}}"
        else:
            value = _at(node, path).value
            got = "" if isinstance(value, dict | list) else f", got {value!r:.60}"
            message = f"{'.'.join(map(str, path))}: {issue.message}{got}"
        return _at(node, path).line, message

    def _files(self, node: Node, sources: Mapping[str, AnyJson]) -> dict[str, bytes]:
        files: dict[str, bytes] = {}
        for name, source in sources.items():
            try:
                path = normal_path(name.replace("\\", "/"), FilesystemLimits())
                match source:
                    case {"from": pattern}:
                        new = self._copies(path, pattern.replace("\\", "/"))
                    case {"base64": data}:
                        new = {path: data}
                    case text:
                        new = {path: text.encode()}
                if twice := min(files.keys() & new.keys(), default=""):
                    raise ValueError(f"{twice!r} is written twice; remove one of them")
                files |= new
            except (ValueError, OSError) as error:
                self._problems.add(_at(node, ("files", name)).line, f"files: {error}")
        return files

    def _copies(self, path: str, pattern: str) -> dict[str, bytes]:
        """Returns the files in the folder that match; a pattern's files are below `path`."""
        fixed = _MAGIC.split(pattern, maxsplit=1)[0]
        if fixed == pattern:
            return {path: self._content(pattern)}
        base, _, _ = fixed.rpartition("/")
        names = [file.path for file in self._folder().glob(pattern)]
        if not names:
            raise ValueError(f"no file matches {pattern!r} in the folder of the case")
        start = len(base) + 1 if base else 0
        return {f"{path}/{name[start:]}": self._content(name) for name in names}

    def _read_file(self, name: str) -> bytes:
        return self._folder().read_bytes(name)


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


def _by_name(kinds: Iterable[AnyType]) -> dict[str, AnyType]:
    """Returns types by name; names that are not unique have their module."""
    names = {kind: f"{kind.__module__}.{kind.__qualname__}" for kind in kinds}
    count = Counter(kind.__name__ for kind in names)
    short = {kind: kind.__name__ for kind in names if count[kind.__name__] == 1}
    return {name: kind for kind, name in sorted((names | short).items(), key=itemgetter(1))}


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
    params = {names.get(type(value), ""): _dumped(value) for value in case.params}
    if "" in params and len(case.params) > 1:
        raise ValueError(f"case {case.id!r}: a TypedDict can only be saved as the only params")
    state: dict[str, list[Json]] = {}
    for value in case.state:
        state.setdefault(names[type(value)], []).append(_dumped(value))
    keys: dict[str, AnyJson] = {
        "id": case.id,
        "message": case.message,
        "params": params.get("", params) or None,
        "expected": None if case.expected is None else _dumped(case.expected),
        "cluster": case.cluster or None,
        "metadata": _dumped(dict(case.metadata)) or None,
        "state": state or None,
        "files": {path: _content(data) for path, data in case.files.items()} or None,
    }
    return {key: value for key, value in keys.items() if value is not None}


def _dumped(value: object) -> AnyJson:
    kind = type(value)
    return serde.dump(value) if kind in (dict, list) else serde.dump_lossless(kind, value)


def _content(data: bytes) -> Json:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.urlsafe_b64encode(data).decode()}
