"""How what a server offers differs from its lock, in words that a person or a model can read."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from typing import Literal

from ...displays import cut
from ...serde import Json
from .lock import ServerLock, ToolLock

__all__ = ["ToolDifference", "differences"]

_MAX_DETAILS = 20
_MAX_EXCERPT = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDifference:
    """One tool that changed, vanished or is new; `tool` is `None` for the server's instructions.

    `details` has a line for each change, as `input schema /properties/path/type: "a" → "b"`.
    """

    tool: str | None
    kind: Literal["changed", "vanished", "new"]
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        subject = "the server's instructions" if self.tool is None else f"tool {self.tool!r}"
        verb = {"changed": "changed", "vanished": "vanished", "new": "is new"}[self.kind]
        return "\n".join([f"{subject} {verb}", *(f"  {line}" for line in self.details)])


def differences(lock: ServerLock, live: ServerLock) -> tuple[ToolDifference, ...]:
    """Returns what differs between a lock and the live server, sorted by tool.

    Names and versions of servers, and the order of keys and tools, make no difference.
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
    """Yields the places, as JSON pointers after `place`, whose values differ."""
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
    elif json.dumps(old) != json.dumps(new):  # 1 equals true, and is another value
        yield f"{place}: {_excerpt(old)} → {_excerpt(new)}"


def _excerpt(value: Json) -> str:
    return cut(json.dumps(value, ensure_ascii=False), _MAX_EXCERPT, counted=False)
