"""Lock files record the reviewed tools and instructions of an MCP server.

`differences` compares a lock with the server's current tools and describes the changes for a
reviewer or a model.

Reading a lock file requires neither a server nor the SDK. The files are designed for review and
diffs: tools and keys are sorted, texts are lists of lines, and invisible characters are escaped.
Only schema properties keep the server's order, because models write arguments in that order.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from hashlib import sha256
from pathlib import Path
from typing import Literal, cast

from ... import serde
from ...atomic_writes import replacing
from ...displays import cut, unreadable
from ...errors import message_of
from ...prompt.errors import PromptValidationError
from ...repository import repository_root
from ...serde import Json, JsonSchema
from ...serde.json_types import AnyJson

__all__ = [
    "LockError",
    "ServerLock",
    "ToolDifference",
    "ToolLock",
    "differences",
    "lock_folder",
    "lock_path",
    "lock_text",
    "model_names",
    "read_lock",
    "write_lock",
]

_FORMAT = 1
_SERVER_NAME = r"[a-z0-9][a-z0-9-]{0,31}"
_MAX_TOOL_NAME = 64
_MAX_DETAILS = 20
_MAX_EXCERPT = 120
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


class LockError(PromptValidationError):
    """A lock file is missing, cannot be read, or was edited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLock:
    """A tool as its server describes it; `annotations` are hints, which can be wrong."""

    name: str
    title: str | None = None
    description: str = ""
    input_schema: JsonSchema
    output_schema: JsonSchema | None = None
    annotations: dict[str, Json]

    @classmethod
    def from_listing(cls, tool: Mapping[str, AnyJson]) -> "ToolLock":
        """Creates a tool's lock from the protocol's JSON, which uses `inputSchema`."""
        return cls(
            name=tool["name"],
            title=tool.get("title"),
            description=tool.get("description") or "",
            input_schema=tool.get("inputSchema") or {},
            output_schema=tool.get("outputSchema"),
            annotations=tool.get("annotations") or {},
        )

    @property
    def digest(self) -> str:
        """The SHA-256 hash of all other fields, independent of key order."""
        return _digest({name: getattr(self, name) for name in self.__slots__})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLock:
    """A server: how to start or reach it, its reported identity, and its tools sorted by name.

    Either `command` or `url` is set. `env` names the environment variables that the server receives
    from this process. `${NAME}` in `command`, `url` and `headers` is replaced by the variable
    `NAME`.
    """

    name: str
    command: tuple[str, ...] | None = None
    url: str | None = None
    headers: Mapping[str, str]
    env: tuple[str, ...] = ()
    cwd: str | None = None
    server_name: str = ""
    server_version: str = ""
    protocol: str = ""
    instructions: str = ""
    tools: tuple[ToolLock, ...] = ()

    def __post_init__(self) -> None:
        if re.fullmatch(_SERVER_NAME, self.name) is None:
            raise LockError(
                f"invalid server name {self.name!r}: use 1 to 32 characters from a-z, 0-9 and "
                "'-', and start with a letter or digit"
            )
        if (not self.command) is (self.url is None):
            raise LockError(f"server {self.name!r} must have either command or url")


def lock_folder(root: Path | None = None) -> Path:
    """Returns `.weakincentives/mcp` below `root`, which defaults to the repository's top folder.

    The top folder is the nearest one, from the working directory upwards, that contains
    `.weakincentives`, `.git` or `pyproject.toml`. If there is none, it is the working directory.
    """
    here = Path.cwd()
    return (root or repository_root(here) or here) / ".weakincentives" / "mcp"


def lock_path(name: str, root: Path | None = None) -> Path:
    """Returns the path of a server's lock file; raises `LockError` for an invalid name."""
    ServerLock(name=name, url="", headers={})  # rejects a name that would leave the folder
    return lock_folder(root) / f"{name}.json"


def model_names(server: str, tools: Sequence[str]) -> dict[str, str]:
    """Maps the valid, unique names that models use, such as `server_tool`, to a server's tools.

    A name that starts with the server's name is not prefixed again. If two names would be equal,
    each changed name gets part of a hash as a suffix.
    """
    names = {tool: _model_name(server, tool) for tool in tools}
    taken: dict[str, str] = {}
    for tool in sorted(tools, key=lambda tool: (tool not in names[tool], tool)):
        name = names[tool]
        if name in taken or len(name) > _MAX_TOOL_NAME:
            name = f"{name[: _MAX_TOOL_NAME - 9]}_{_digest(tool)[:8]}"
        taken[name] = tool
    return taken


def _model_name(server: str, tool: str) -> str:
    name = re.sub(r"[^a-z0-9_-]", "_", tool.lower())
    repeated = re.match(rf"{re.escape(server)}[_-]", name) is not None
    return name if repeated else f"{server}_{name}"


# --- files


def lock_text(lock: ServerLock) -> str:
    """Returns the text of a lock file."""
    content = _fields(lock)
    del content["name"]
    content["format"] = _FORMAT
    content["instructions"] = _lines(lock.instructions)
    content["instructions_digest"] = _digest(lock.instructions)
    content["tools"] = [
        {**_fields(tool), "description": _lines(tool.description), "digest": tool.digest}
        for tool in sorted(lock.tools, key=lambda tool: tool.name)
    ]
    text = json.dumps(_sorted(content), indent=2, ensure_ascii=False)
    hidden = unreadable(text) - {"\n"}
    return text.translate({ord(char): json.dumps(char)[1:-1] for char in hidden}) + "\n"


def _fields(value: object) -> dict[str, Json]:
    return cast(dict[str, Json], serde.dump(value))  # a dataclass is dumped as a dict


def _lines(text: str) -> Json:
    return [*text.split("\n")]


def write_lock(path: Path, lock: ServerLock) -> None:
    """Replaces the file at `path` atomically; on an error, the old file is kept."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, mode=0o644, sync=True) as file:
        file.write(lock_text(lock).encode())


def read_lock(path: Path) -> ServerLock:
    """Reads the lock in a file that is named after the server.

    Raises `LockError` if the file does not exist or cannot be read, or if a hash in it does not
    match.
    """
    relock = f"run `wink mcp lock {path.stem} -- COMMAND` and review the difference"
    try:
        # Keys must be unique; otherwise a reviewer could see one value while this code reads
        # another.
        content = serde.load_unique("lock", path.read_bytes())
        if content.pop("format") != _FORMAT:
            raise LockError(f"the lock file {path} must have format {_FORMAT}; {relock}")
        tools = content["tools"]
        digests = [content.pop("instructions_digest"), *[tool.pop("digest") for tool in tools]]
        content |= {"name": path.stem, "instructions": "\n".join(content["instructions"])}
        for tool in tools:
            tool["description"] = "\n".join(tool["description"])
        lock = serde.parse(ServerLock, content)
    except FileNotFoundError as error:
        raise LockError(
            f"MCP server {path.stem!r} has no lock file {path}; run `wink mcp lock {path.stem} -- "
            f"COMMAND`, which writes .weakincentives/mcp/{path.name}, and review the file"
        ) from error
    except (OSError, *_UNREADABLE) as error:
        problem = message_of(error)
        raise LockError(f"cannot read the lock file {path}: {problem}; {relock}") from error
    for subject, digest in zip((None, *lock.tools), digests, strict=True):
        actual = _digest(lock.instructions) if subject is None else subject.digest
        if actual != digest:
            place = "its instructions" if subject is None else f"tool {subject.name!r}"
            raise LockError(f"the lock file {path} was edited at {place}; {relock}")
    return lock


def _digest(value: Json) -> str:
    return sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _sorted(value: Json, *, keep: bool = False) -> Json:
    """Returns JSON with sorted keys, except in `properties`, which keeps its order."""
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    if not isinstance(value, dict):
        return value
    names = list(value) if keep else sorted(value)
    return {name: _sorted(value[name], keep=name == "properties") for name in names}


# --- differences


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDifference:
    """A tool that was changed, removed or added; `tool` is `None` for the server's instructions.

    `details` contains one line per change, such as `input schema /properties/path/type: "a" → "b"`.
    """

    tool: str | None
    kind: Literal["changed", "vanished", "new"]
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        subject = "the server's instructions" if self.tool is None else f"tool {self.tool!r}"
        verb = {"changed": "changed", "vanished": "vanished", "new": "is new"}[self.kind]
        return "\n".join([f"{subject} {verb}", *(f"  {line}" for line in self.details)])


def differences(lock: ServerLock, live: ServerLock) -> tuple[ToolDifference, ...]:
    """Returns the differences between a lock and the live server, sorted by tool.

    Server names and versions and the order of keys and tools are ignored.
    """
    locked = {tool.name: tool for tool in lock.tools}
    offered = {tool.name: tool for tool in live.tools}
    found: list[ToolDifference] = []
    if lock.instructions != live.instructions:
        lines = _text_changes("instructions", lock.instructions, live.instructions)
        found.append(_changed(None, lines))
    for name in sorted(locked.keys() | offered.keys()):
        match locked.get(name), offered.get(name):
            case ToolLock() as old, ToolLock() as new:
                if old.digest != new.digest:
                    found.append(_changed(name, _tool_changes(old, new)))
            case None, _:
                found.append(ToolDifference(tool=name, kind="new"))
            case _:
                found.append(ToolDifference(tool=name, kind="vanished"))
    return tuple(found)


def _changed(tool: str | None, lines: Iterator[str]) -> ToolDifference:
    details = list(lines)
    if len(details) > _MAX_DETAILS:
        details[_MAX_DETAILS:] = [f"… and {len(details) - _MAX_DETAILS} lines more"]
    return ToolDifference(tool=tool, kind="changed", details=tuple(details))


def _tool_changes(old: ToolLock, new: ToolLock) -> Iterator[str]:
    yield from _changes("title", old.title, new.title)
    yield from _text_changes("description", old.description, new.description)
    yield from _changes("annotations ", dict(old.annotations), dict(new.annotations))
    yield from _changes("input schema ", old.input_schema, new.input_schema)
    yield from _changes("output schema ", old.output_schema, new.output_schema)


def _text_changes(place: str, old: str, new: str) -> Iterator[str]:
    if old != new:
        lines = unified_diff(old.split("\n"), new.split("\n"), "locked", "live", lineterm="", n=1)
        yield f"{place}:"
        yield from (f"  {line[:1000]}" for line in lines)


def _changes(place: str, old: Json, new: Json) -> Iterator[str]:
    """Yields the places, as JSON pointers relative to `place`, where the values differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            pointer = f"{place}/{key.replace('~', '~0').replace('/', '~1')}"
            if key not in new:
                yield f"{pointer}: removed {_excerpt(old[key])}"
            elif key not in old:
                yield f"{pointer}: added {_excerpt(new[key])}"
            else:
                yield from _changes(pointer, old[key], new[key])
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from _changes(f"{place}/{index}", before, after)
    elif json.dumps(old) != json.dumps(new):  # `1 == True` in Python, but they differ in JSON
        yield f"{place}: {_excerpt(old)} → {_excerpt(new)}"


def _excerpt(value: Json) -> str:
    return cut(json.dumps(value, ensure_ascii=False), _MAX_EXCERPT, counted=False)
