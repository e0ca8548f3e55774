"""What differs between a request and the recorded ones, by section, message, tool and setting."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any, Protocol

from ..displays import one_line

__all__ = ["Asked", "describe_miss"]

_MAX_SHOWN = 60  # characters of a text
_MAX_CHANGES = 12
# Any: JSON values
type AnyJson = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The parts of a request that can change its answer, as JSON.

    The content of the first message, if it is the prompt, is a mapping of sections to their texts.
    """

    messages: Sequence[AnyJson]
    tools: Sequence[AnyJson]
    output: AnyJson
    settings: Mapping[str, AnyJson]
    model: str

    def to_json(self) -> dict[str, AnyJson]:
        """Returns the parts by name."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, line: Mapping[str, AnyJson]) -> "Asked":
        """Returns the parts in a line of a file; raises a built-in error if they are malformed."""
        _names(line)
        return cls(**{name: line[name] for name in cls.__slots__})

    def without(self, volatile: frozenset[str]) -> dict[str, AnyJson]:
        """Returns the parts without the texts of these sections."""
        parts = self.to_json()
        first = self.messages[0]
        if volatile and isinstance(first.get("content"), dict):
            content = {
                key: "" if volatile & {key, key.rpartition(".")[2]} else text
                for key, text in first["content"].items()
            }
            parts["messages"] = [{**first, "content": content}, *self.messages[1:]]
        return parts


class Known(Protocol):
    """The recordings with which a request is compared."""

    def plain(self, asked: Asked) -> Mapping[str, AnyJson]: ...
    def __iter__(self) -> Iterator["HasAsked"]: ...


class HasAsked(Protocol):
    """A recording."""

    asked: Asked
    line: int


def describe_miss(asked: Asked, recordings: Known) -> str:
    """Returns what differs from the nearest recording, and how many recordings are stale."""
    asked_parts = recordings.plain(asked)
    others = [recordings.plain(it.asked) for it in recordings]
    if not others:
        return "- the cassette has no recordings"
    found = [list(_changes(asked_parts, it)) for it in others]
    nearest, changes = min(zip(recordings, found, strict=True), key=lambda pair: len(pair[1]))
    lines = [f"the nearest recording is line {nearest.line}", *changes[:_MAX_CHANGES]]
    if (more := len(changes) - _MAX_CHANGES) > 0:
        lines.append(f"and {more} more differences")
    if sections := _sections(asked_parts):
        stale = sum(_sections(it) != sections for it in others)
        if stale:
            lines.append(f"of {len(others)} recordings, {stale} have other texts of sections")
    return "\n".join(f"- {line}" for line in lines)


def _sections(parts: Mapping[str, AnyJson]) -> dict[str, str]:
    content = parts["messages"][0].get("content")
    return content if isinstance(content, dict) else {}


def _names(parts: Mapping[str, AnyJson]) -> tuple[dict[str, AnyJson], dict[str, AnyJson]]:
    """Returns the names of called tools by call id, and the tools by name."""
    calls = [call for message in parts["messages"] for call in message.get("tool_calls", ())]
    names = {f"{call['call_id']}": call["name"] for call in calls}
    return names, {f"{tool['name']}": tool for tool in parts["tools"]}


def _changes(asked_parts: Mapping[str, AnyJson], other: Mapping[str, AnyJson]) -> Iterator[str]:
    """Yields each difference; the recorded text comes first."""
    new, old = asked_parts["messages"], other["messages"]
    (new_names, new_tools), (names, old_tools) = _names(asked_parts), _names(other)
    names |= new_names
    before, after = ([json.dumps(it, sort_keys=True) for it in each] for each in (old, new))
    for kind, i, j, k, m in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        for index, (one, two) in enumerate(zip_longest(old[i:j], new[k:m]), 1):
            if one is None:
                yield f"message {k + index} is new"
            elif two is None:
                yield f"message {i + index} is missing"
            else:
                yield from _message_changes(k + index, two, one, names)
    for name in sorted(old_tools.keys() | new_tools.keys()):
        if name not in old_tools or name not in new_tools:
            yield f"tool {name!r} is {'new' if name in new_tools else 'missing'}"
        for path, one, two in _paths(old_tools.get(name, {}), new_tools.get(name, {})):
            if name in old_tools and name in new_tools:
                yield f"tool {name!r}, {path}: {_shown(one, two)}"
    for part in ("output", "settings", "model"):
        for path, one, two in _paths(other[part], asked_parts[part]):
            yield f"{part} {path}: {_shown(one, two)}"


def _message_changes(
    number: int, new: AnyJson, old: AnyJson, tools: Mapping[str, str]
) -> Iterator[str]:
    if isinstance(new.get("content"), dict) and isinstance(old.get("content"), dict):
        before, after = old["content"], new["content"]
        for key in [*before, *(key for key in after if key not in before)]:
            if before.get(key) != after.get(key):
                yield f"section {key!r}: {_shown(before.get(key, ''), after.get(key, ''))}"
        return
    tool = tools.get(f"{new.get('call_id')}")
    place = f"message {number}, tool {tool!r}," if tool else f"message {number},"
    old, new = ({**it, "content": _as_json(it.get("content"))} for it in (old, new))
    for path, before, after in _paths(old, new):
        inner = path.replace("$.content", "$", 1)
        yield f"{place} {inner}: {_shown(before, after)}"


def _as_json(content: AnyJson) -> AnyJson:
    """Returns the JSON in a text, so that a difference inside it has a path."""
    if isinstance(content, str) and content[:1] in ("{", "["):
        try:
            return json.loads(content)
        except ValueError:
            return content
    return content


def _paths(old: AnyJson, new: AnyJson, path: str = "$") -> Iterator[tuple[str, AnyJson, AnyJson]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from _paths(old.get(key), new.get(key), f"{path}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (one, two) in enumerate(zip(old, new, strict=True)):
            yield from _paths(one, two, f"{path}[{index}]")
    elif old != new:
        yield path, old, new


def _shown(old: AnyJson, new: AnyJson) -> str:
    """Returns both texts, shortened to the words that differ."""
    if not isinstance(old, str) or not isinstance(new, str):
        return f"{_short(old)} is now {_short(new)}"
    before, after = old.split(), new.split()
    matcher = SequenceMatcher(None, before, after, autojunk=False)
    changed = [it for it in matcher.get_opcodes() if it[0] != "equal"]
    if not changed:
        return "white space differs"
    start, end = changed[0][1], changed[-1][2]
    first, last = changed[0][3], changed[-1][4]
    gone, added = " ".join(before[start:end]), " ".join(after[first:last])
    if gone and added:
        return f"{_short(gone)} is now {_short(added)}"
    return f"{_short(added)} was added" if added else f"{_short(gone)} was removed"


def _short(value: AnyJson) -> str:
    text = one_line(value if isinstance(value, str) else json.dumps(value))
    return repr(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…")
