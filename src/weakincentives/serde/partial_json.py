"""Reads JSON as it arrives: `PartialJson` parses chunks of text, guided by a JSON Schema.

A value that arrives only grows: strings and arrays get longer, and objects get new keys. It is kept
as a list of changes, and each `PartialValue` is a position in that list, so a partial value costs
the same at the start and at the end of a long text.
"""

import json
import re
from collections.abc import Callable
from math import isfinite

from .json_types import AnyJson, Json
from .partial_places import Place

__all__ = ["Operation", "PartialJson", "PartialValue"]

type Operation = dict[str, AnyJson]
"""An operation of a JSON patch (RFC 6902): `op`, `path` and `value`."""

type _Step = Callable[["PartialJson", str, int], int]
"""Parses the text from an index, and returns the index of the first character that it left."""

_SPACE = re.compile(r"[ \t\r\n]*+")
_CHARACTERS = re.compile(r'[^"\\\x00-\x1f]++')
_SCALAR = re.compile(r"[-+.\w]*+", re.ASCII)
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*+)(\.\d++)?([eE][-+]?\d++)?", re.ASCII)
_WORDS: dict[str, Json] = {"true": True, "false": False, "null": None}
_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[\da-fA-F]{4})')
_SURROGATE = re.compile("[\ud800-\udfff]")
_WORD_STARTS = frozenset("tfn")
_LONGEST_ESCAPE = 6


class _Text:
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


class _Node:
    """An object or array, and the change that added it."""

    __slots__ = ("change", "path_size", "value")

    def __init__(self, value: AnyJson, change: "_Change") -> None:
        self.value = value  # a dict or list without its place's inadmissible values
        self.change = change
        outer = 0 if change.parent is None else change.parent.path_size
        self.path_size: int = outer + len(str(change.key))


class _Change:
    """The addition of a value to its parent, which then has `size` items."""

    __slots__ = ("key", "parent", "size", "value")

    def __init__(self, parent: _Node | None, key: str | int, size: int) -> None:
        self.parent, self.key, self.size = parent, key, size
        self.value: AnyJson = None  # a complete scalar, a `_Text`, or the dict or list of a `_Node`

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

    def __init__(self, changes: list[_Change], size: int, position: int) -> None:
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
        if earlier is None:
            return [{"op": "add", "path": path, "value": self.read()}]
        if self.changes is not earlier.changes or not self.changes:
            return _difference(earlier.read(), self.read(), path)
        operations: list[Operation] = []
        last = self.changes[earlier.count - 1]
        if isinstance(last.value, _Text):
            text = self._added(earlier.count - 1)
            if len(text) > earlier.size:
                operations.append({"op": "replace", "path": path + last.path(), "value": text})
        new: dict[int, AnyJson] = {}
        for index in range(earlier.count, self.count):
            change, value = self.changes[index], self._added(index)
            container = new.get(id(change.parent.value)) if change.parent else None
            if isinstance(value, dict | list):
                new[id(change.value)] = value
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
        if isinstance(value, _Text):
            return value.first(self.size if index == self.count - 1 else value.size)
        return type(value)() if isinstance(value, dict | list) else value


def _difference(old: Json, new: Json, path: str = "") -> list[Operation]:
    """Returns a JSON patch from one value to another."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() <= new.keys():
        operations: list[Operation] = []
        for key, value in new.items():
            inner = path + _pointer(key)
            if key in old:
                operations += _difference(old[key], value, inner)
            else:
                operations.append({"op": "add", "path": inner, "value": value})
        return operations
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        items = enumerate(zip(old, new, strict=True))
        return [part for index, pair in items for part in _difference(*pair, f"{path}/{index}")]
    if type(old) is type(new) and old == new:
        return []
    return [{"op": "replace", "path": path, "value": new}]


class _Frame:
    """An open object or array in the text; `node` is `None` if it is not shown."""

    __slots__ = ("is_list", "key", "keys", "node", "place", "unwraps")

    def __init__(self, node: _Node | None, place: Place | None, *, is_list: bool) -> None:
        self.node, self.place, self.is_list = node, place, is_list
        self.key: str | int = 0 if is_list else ""
        self.keys: set[str] = set()
        self.unwraps = False  # whether it is the wrapper, whose value is shown instead


class PartialJson:
    """Parses JSON text that arrives in chunks, in time linear in its length.

    Shows only values that `place` admits: strings while they grow, other scalars once they are
    complete. An object whose only key is `wrapper` shows that key's value instead. At invalid JSON
    and at a repeated key, the parser stops, and the value remains as it is.
    """

    def __init__(self, place: Place, wrapper: str | None = None) -> None:
        self._root = place
        self._begin(wrapper)

    def _begin(self, wrapper: str | None) -> None:
        self._wrapper = wrapper
        self._changes: list[_Change] = []
        self._stack: list[_Frame] = []
        self._place: Place | None = self._root  # of the next value; `None` if it is not shown
        self._step: _Step | None = PartialJson._value
        self._parts: list[str] = []  # of the string, key or scalar that is being read
        self._escape = self._half = ""  # the start of an escape sequence or a surrogate pair
        self._is_key = False
        self._text: _Text | None = None  # the open string, if it is shown
        self._position = self._revision = 0
        # In a union, the wrapper can also be a field. If another key follows, it was.
        is_field = wrapper is not None and self._root.property(wrapper) is not None
        self._kept: list[str] | None = [] if is_field else None
        self._reads_again = False

    @property
    def has_stopped(self) -> bool:
        """Whether the text is not JSON of the place."""
        return self._step is None

    @property
    def value(self) -> PartialValue | None:
        """The value so far, or `None` if none has arrived."""
        if not self._changes:
            return None
        last = self._changes[-1].value
        size = last.size if isinstance(last, _Text) else 0
        return PartialValue(self._changes, size, self._position)

    def feed(self, text: str) -> bool:
        """Parses the next chunk; returns whether the value has changed."""
        before, at = self._revision, 0
        if self._kept is not None:
            self._kept.append(text)
        self._position += len(text)
        while at < len(text) and self._step is not None:
            at = self._step(self, text, at)
        if self._reads_again and self._kept is not None:
            kept = "".join(self._kept)
            self._begin(None)
            return self.feed(kept)
        return self._revision > before

    def _stop(self, text: str) -> int:
        self._step = None
        return len(text)

    # --- steps

    def _value(self, text: str, at: int) -> int:
        at = _skip(text, at)
        match text[at : at + 1]:
            case "":
                return at
            case '"':
                return self._begin_string(at + 1, is_key=False)
            case "{" | "[" as bracket:
                self._open(is_list=bracket == "[")
                return at + 1
            case "]" if self._stack and self._stack[-1].key == 0:  # an empty array
                return self._after_value(text, at)
            case character if character in "-0123456789tfn":
                self._parts = []
                self._step = PartialJson._scalar
                return at
            case _:
                return self._stop(text)

    def _key(self, text: str, at: int) -> int:
        at = _skip(text, at)
        match text[at : at + 1]:
            case "":
                return at
            case '"':
                return self._begin_string(at + 1, is_key=True)
            case "}" if not self._stack[-1].keys:
                self._show_root()
                return self._after_value(text, at)
            case _:
                return self._stop(text)

    def _colon(self, text: str, at: int) -> int:
        at = _skip(text, at)
        if text[at : at + 1] not in ("", ":"):
            return self._stop(text)
        if at < len(text):
            self._step = PartialJson._value
        return at + 1

    def _after_value(self, text: str, at: int) -> int:
        at = _skip(text, at)
        frame = self._stack[-1] if self._stack else None
        match text[at : at + 1]:
            case "":
                return at
            case "," if frame is not None and isinstance(frame.key, int):
                frame.key += 1
                self._expect_item(frame)
            case "," if frame is not None:
                self._step = PartialJson._key
            case "]" | "}" as bracket if frame is not None and frame.is_list == (bracket == "]"):
                self._stack.pop()
                self._step = PartialJson._after_value
            case _:
                return self._stop(text)
        return at + 1

    def _scalar(self, text: str, at: int) -> int:
        match = _SCALAR.match(text, at)
        end = match.end() if match else at
        self._parts.append(text[at:end])
        is_word = self._parts[0][:1] in _WORD_STARTS
        if end == len(text) and not (is_word and "".join(self._parts) in _WORDS):
            return end  # more of it may follow
        token = "".join(self._parts)
        number = _NUMBER.fullmatch(token)
        if token in _WORDS:
            self._complete(_WORDS[token])
        elif number is None:
            return self._stop(text)
        else:
            self._complete(_number(token, is_integer=number.lastindex is None))
        return end

    def _string(self, text: str, at: int) -> int:
        if self._escape:
            self._escape += text[at]
            if _ESCAPE.fullmatch(self._escape):
                character: str = json.loads(f'"{self._escape}"')
                self._escape = ""
                return at + 1 if self._take(character) else self._stop(text)
            is_open = self._escape[1] == "u" and len(self._escape) < _LONGEST_ESCAPE
            return at + 1 if is_open else self._stop(text)
        if (match := _CHARACTERS.match(text, at)) is not None:
            return match.end() if self._take(match[0]) else self._stop(text)
        if text[at] == "\\":
            self._escape = "\\"
        elif text[at] != '"' or self._half or not self._end_string():
            return self._stop(text)
        return at + 1

    # --- strings

    def _begin_string(self, at: int, *, is_key: bool) -> int:
        self._parts, self._half, self._is_key = [], "", is_key
        self._step = PartialJson._string
        self._show_string()
        return at

    def _take(self, part: str) -> bool:
        """Adds a part of the string; returns false for a lone surrogate."""
        if self._half or (not part.isascii() and _SURROGATE.search(part)):
            part = self._half + part
            self._half = part[-1] if "\ud800" <= part[-1] <= "\udbff" else ""
            try:
                pairs = part.removesuffix(self._half).encode("utf-16-le", "surrogatepass")
                part = pairs.decode("utf-16-le")
            except UnicodeDecodeError:
                return False
        if self._text is None:
            self._parts.append(part)
            self._show_string()
        elif part:
            self._text.append(part)
            self._revision += 1
        return True

    def _show_string(self) -> None:
        """Shows the open string if it can only be a free one."""
        if self._is_key or self._place is None or not self._place.grows:
            return
        if self._place.shows(text := "".join(self._parts)):
            self._text = _Text(text)
            self._add(self._text, "")

    def _end_string(self) -> bool:
        if self._is_key:
            return self._end_key("".join(self._parts))
        if self._text is None:
            self._complete("".join(self._parts))
            return True
        text, change = self._text.first(self._text.size), self._changes[-1]
        self._text = None
        if change.parent is not None:
            change.parent.value[change.key] = text
        self._narrow(text)
        self._step = PartialJson._after_value
        return True

    def _end_key(self, key: str) -> bool:
        frame = self._stack[-1]
        if key in frame.keys:
            return False
        if frame.unwraps:
            self._reads_again = self._kept is not None
            return False
        if not frame.keys and self._wrapper is not None and len(self._stack) == 1:
            frame.unwraps = key == self._wrapper
            if not frame.unwraps:
                self._show_root()
        frame.keys.add(key)
        frame.key = key
        if frame.unwraps:
            self._place = self._root
        else:
            self._place = frame.place.property(key) if frame.node and frame.place else None
        self._step = PartialJson._colon
        return True

    # --- values

    def _open(self, *, is_list: bool) -> None:
        frame = _Frame(None, self._place, is_list=is_list)
        may_be_wrapper = self._wrapper is not None and not self._stack and not is_list
        if not may_be_wrapper:
            frame.node = self._add_node(is_list=is_list)
        self._stack.append(frame)
        if self._step is not None:
            self._step = PartialJson._key
            if is_list:
                self._expect_item(frame)

    def _expect_item(self, frame: _Frame) -> None:
        index = frame.key if isinstance(frame.key, int) else 0
        self._place = frame.place.item(index) if frame.node and frame.place else None
        self._step = PartialJson._value

    def _show_root(self) -> None:
        """Shows the object at the root if it could have been the wrapper, but is not."""
        if self._wrapper is not None and len(self._stack) == 1:
            frame = self._stack.pop()
            self._place = self._root
            frame.node = self._add_node(is_list=False)
            self._stack.append(frame)

    def _add_node(self, *, is_list: bool) -> _Node | None:
        kind = "array" if is_list else "object"
        if self._place is None or kind not in self._place.kinds:
            self._hide()
            return None
        value: AnyJson = [] if is_list else {}
        return _Node(value, self._add(value, value))

    def _complete(self, value: Json) -> None:
        """Shows a complete scalar."""
        self._step = PartialJson._after_value
        if self._place is not None and self._place.admits(value):
            self._add(value, value)
            self._narrow(value)
        else:
            self._hide()

    def _narrow(self, value: Json) -> None:
        frame = self._stack[-1] if self._stack else None
        if frame is not None and frame.place is not None and isinstance(frame.key, str):
            frame.place = frame.place.narrowed(frame.key, value)

    def _add(self, value: AnyJson, slot: AnyJson) -> _Change:
        """Adds a change; until the value is complete, its parent contains `slot`."""
        frame = self._stack[-1] if self._stack else None
        if frame is None or frame.unwraps or frame.node is None:
            change = _Change(None, "", 0)
        else:
            container = frame.node.value
            if frame.is_list:
                container.append(slot)
            else:
                container[frame.key] = slot
            change = _Change(frame.node, frame.key, len(container))
        change.value = value
        self._changes.append(change)
        self._revision += 1
        return change

    def _hide(self) -> None:
        """Omits a value that its place does not admit; stops where nothing can be omitted."""
        frame = self._stack[-1] if self._stack else None
        if frame is None or frame.unwraps or (frame.is_list and frame.node is not None):
            self._step = None
            self._reads_again = self._kept is not None and frame is not None


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _number(token: str, *, is_integer: bool) -> Json:
    """Returns a number; an object, which no place admits, if JSON or Python cannot represent it."""
    try:
        number = int(token) if is_integer else float(token)
    except ValueError:  # more than 4,300 digits
        return {}
    return number if isfinite(number) else {}
