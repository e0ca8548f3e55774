"""A JSON value that grows while it arrives, and `PartialValue`, a moment in its history.

Strings and arrays get longer, and objects get new keys. The history is a list of changes, and each
moment is a position in that list, so it costs the same at the start and at the end of a long value.
"""

from .json_types import AnyJson, Json, comparable

__all__ = ["Change", "Node", "Operation", "PartialValue", "Text"]

_DEEPEST = 100  # levels in one operation; writers of JSON have a limit

type Operation = dict[str, AnyJson]
"""An operation of a JSON patch (RFC 6902): `op`, `path` and `value`."""


class Text:
    """A string that grows; its chunks are joined only when the string is read."""

    __slots__ = ("_joined", "parts", "size")

    def __init__(self, text: str) -> None:
        self.parts, self.size = [text], len(text)
        self._joined = 0, ""  # the number of joined parts, and their text

    def append(self, part: str) -> None:
        self.parts.append(part)
        self.size += len(part)

    def first(self, size: int) -> str:
        count, text = self._joined
        if len(text) < size:
            new = self.parts[count:]
            text += "".join(new)
            self._joined = count + len(new), text  # one assignment: other threads may read
        return text[:size]


class Node:
    """An object or array, and the change that added it."""

    __slots__ = ("change", "path_size", "value")

    def __init__(self, value: AnyJson, change: "Change") -> None:
        self.value = value  # a dict or list without its place's inadmissible values
        self.change = change
        outer = 0 if change.parent is None else change.parent.path_size
        self.path_size: int = outer + len(str(change.key))


class Change:
    """The addition of a value to its parent, which then has `size` items."""

    __slots__ = ("key", "parent", "size", "value")

    def __init__(self, parent: Node | None, key: str | int, size: int) -> None:
        self.parent, self.key, self.size = parent, key, size
        self.value: AnyJson = None  # a complete scalar, a `Text`, or the dict or list of a `Node`

    def path(self) -> str:
        keys: list[str] = []
        change = self
        while change.parent is not None:
            keys.append(_pointer(change.key))
            change = change.parent.change
        return "".join(reversed(keys))


def _pointer(key: str | int) -> str:
    """Returns a key as a part of a JSON pointer."""
    return "/" + str(key).replace("~", "~0").replace("/", "~1")


class PartialValue:
    """A JSON value at one moment while it arrives; creating one takes constant time."""

    __slots__ = ("changes", "count", "position", "size", "value")

    def __init__(self, changes: list[Change], size: int, position: int) -> None:
        self.changes, self.count = changes, len(changes)
        self.size, self.position = size, position  # of the last string, and in the text
        self.value: AnyJson = ...  # until it is read

    @classmethod
    def complete(cls, value: Json) -> "PartialValue":
        """Returns a value without a history."""
        complete = cls([], 0, 0)
        complete.value = value
        return complete

    def read(self) -> Json:
        """Returns the value; copies the open objects and arrays, and shares those inside them."""
        if self.value is ...:
            self.value = self._value()
        value: Json = self.value
        return value

    def patch(self, earlier: "PartialValue | None", path: str) -> list[Operation]:
        """Returns the JSON patch for the value at `path`, from an earlier value to this one."""
        if not self.changes:
            return _difference(... if earlier is None else earlier.read(), self.read(), path)
        operations: list[Operation] = []
        past = earlier if earlier and earlier.changes is self.changes else None
        begin = past.count if past else 0
        last = self.changes[begin - 1]
        if past and isinstance(last.value, Text):
            text = self._added(begin - 1)
            if len(text) > past.size:
                operations.append({"op": "replace", "path": path + last.path(), "value": text})
        new: dict[int, tuple[AnyJson, int]] = {}  # the objects and arrays in the patch
        for index in range(begin, self.count):
            change, value = self.changes[index], self._added(index)
            key = id(change.parent.value) if change.parent else 0
            container, depth = new.get(key, (None, 0))
            if isinstance(value, dict | list) and depth < _DEEPEST:
                new[id(change.value)] = value, depth + 1
            if container is None:
                operations.append({"op": "add", "path": path + change.path(), "value": value})
            elif isinstance(container, dict):
                container[change.key] = value
            else:
                container.append(value)
        return operations

    def is_due_after(self, earlier: "PartialValue") -> bool:
        """Whether a patch is short in comparison with the text that arrived since `earlier`."""
        if self.changes is not earlier.changes or not self.changes:
            return True
        parent = self.changes[self.count - 1].parent
        size = self.size + (parent.path_size if parent else 0)
        return 4 * (self.position - earlier.position) >= size

    def _value(self) -> Json:
        change = self.changes[self.count - 1]
        value = self._added(self.count - 1)
        while (parent := change.parent) is not None:
            container, size = parent.value, change.size
            is_list = isinstance(container, list)
            copy: AnyJson = container[:size] if is_list else container.copy()
            while len(copy) > size:  # the object has later keys
                copy.popitem()
            copy[change.key] = value
            value, change = copy, parent.change
        plain: Json = value
        return plain

    def _added(self, index: int) -> AnyJson:
        """Returns the value that a change added; an object or array is empty."""
        value = self.changes[index].value
        if isinstance(value, Text):
            return value.first(self.size if index == self.count - 1 else value.size)
        return type(value)() if isinstance(value, dict | list) else value


def _difference(old: AnyJson, new: Json, path: str) -> list[Operation]:
    """Returns a JSON patch between values without a common history."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() <= new.keys():
        operations: list[Operation] = []
        for key, value in new.items():
            operations += _difference(old.get(key, ...), value, path + _pointer(key))
        return operations
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        items = enumerate(zip(old, new, strict=True))
        return [part for index, pair in items for part in _difference(*pair, f"{path}/{index}")]
    if comparable(old) == comparable(new):
        return []
    return [{"op": "add" if old is ... else "replace", "path": path, "value": new}]
