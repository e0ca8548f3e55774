"""`PartialJson` parses JSON that arrives in chunks, as far as its JSON Schema allows to show it."""

import json
import re

from .json_types import AnyJson, Json
from .partial_places import Place
from .partial_value import Change, Node, PartialValue, Text

__all__ = ["PartialJson"]

_TOKEN = re.compile(
    r"""[ \t\r\n]++ | [][{}:,"] | true | false | null
    | -?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][-+]?[0-9]++)?(?=[][{}:,"\s])""",
    re.VERBOSE | re.ASCII,
)
_START_OF_TOKEN = re.compile(r"-?[0-9][-+.0-9eE]{0,5000}|-|t(?:ru?)?|f(?:a(?:ls?)?)?|n(?:ul?)?")
# A high surrogate has to wait for its other half, so each match can be encoded as UTF-8.
_CHARACTERS = re.compile(
    r"""(?: [^"\\\x00-\x1f\ud800-\udfff]++ | [\ud800-\udbff][\udc00-\udfff] | \\["\\/bfnrt]
    | \\u(?![dD][89a-fA-F])[0-9a-fA-F]{4}
    | \\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2} )++""",
    re.VERBOSE,
)
_START_OF_CHARACTER = re.compile(r"[\ud800-\udbff]|\\(?:u[0-9a-fA-F]{0,4}(?:\\(?:u\w{0,3})?)?)?")


class _Frame:
    """An open object or array in the text; `node` is `None` if it is not shown."""

    __slots__ = ("end", "key", "keys", "node", "place")

    def __init__(self, node: Node | None, place: Place | None, end: str) -> None:
        self.node, self.place, self.end = node, place, end
        self.key: str | int = 0 if end == "]" else ""
        self.keys: set[str] = set()


class PartialJson:
    """Parses JSON text that arrives in chunks, in time linear in its length.

    Shows only values that `place` admits: strings while they grow, other scalars once they are
    complete. With a `wrapper`, the text must be an object with this one key, whose value is shown.
    At anything else, at invalid JSON and at a repeated key, the parser has stopped.
    """

    def __init__(self, place: Place, wrapper: str | None = None) -> None:
        self._root, self._wrapper = place, wrapper
        self._changes: list[Change] = []
        self._stack: list[_Frame] = []
        self._place: Place | None = place  # of the next value; `None` if it is not shown
        self._expected = "value"  # or first item, first key, key, colon, next, end
        self._rest = ""  # the start of a token
        self._parts: list[str] | None = None  # of the open string
        self._text: Text | None = None  # the open string, if it is shown
        self._position = self._revision = 0
        self.has_stopped = False

    @property
    def value(self) -> PartialValue | None:
        """The value so far, or `None` if none has arrived."""
        if not self._changes:
            return None
        last = self._changes[-1].value
        size = last.size if isinstance(last, Text) else 0
        return PartialValue(self._changes, size, self._position)

    def feed(self, text: str) -> bool:
        """Parses the next chunk; returns whether the value has changed."""
        before, at = self._revision, 0
        self._position += len(text)
        text = self._rest + text
        while at < len(text) and not self.has_stopped:
            pattern = _TOKEN if self._parts is None or text[at] == '"' else _CHARACTERS
            token = pattern.match(text, at)
            if token is None:
                start = _START_OF_TOKEN if self._parts is None else _START_OF_CHARACTER
                self.has_stopped = start.fullmatch(text, at) is None
                break
            at = token.end()
            if self._parts is None:
                self._accept(token[0])
            elif token[0] == '"':
                self._end_string(self._parts)
            else:
                self._add_characters(self._parts, token[0])
        self._rest = text[at:]
        return self._revision > before

    def _accept(self, token: str) -> None:
        """Accepts a token outside strings."""
        frame = self._stack[-1] if self._stack else None
        match self._expected, token:
            case _, token if token.isspace():
                pass
            case (("value" | "first item" | "key" | "first key"), '"'):
                self._begin_string()
            case (("value" | "first item"), "{" | "["):
                self._open(token)
            case ("first item", "]") | ("first key", "}"):
                self._close()
            case "next", ("]" | "}") if frame is not None and frame.end == token:
                self._close()
            case "next", "," if frame is not None:
                self._expected = "key"
                if isinstance(frame.key, int):
                    frame.key += 1
                    self._expect_item(frame)
            case "colon", ":":
                self._expected = "value"
            case (("value" | "first item"), token) if token[0] in "-0123456789tfn":
                self._complete(_scalar(token))
            case _:
                self.has_stopped = True

    # --- strings

    def _begin_string(self) -> None:
        self._parts = []
        if self._expected not in ("key", "first key"):
            self._show_string(self._parts)

    def _add_characters(self, parts: list[str], text: str) -> None:
        if "\\" in text:
            text = json.loads(f'"{text}"')
        elif not text.isascii():  # joins halves that arrived as two characters
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        if self._text is not None:
            self._text.append(text)
            self._revision += 1
            return
        parts.append(text)
        if self._expected not in ("key", "first key"):
            self._show_string(parts)

    def _show_string(self, parts: list[str]) -> None:
        """Shows the open string if it can only be a free one."""
        if self._place and self._place.grows and self._place.shows(text := "".join(parts)):
            self._text = Text(text)
            self._add(self._text, "")

    def _end_string(self, parts: list[str]) -> None:
        shown, self._text, self._parts = self._text, None, None
        if self._expected in ("key", "first key"):
            self._end_key("".join(parts))
        elif shown is None:
            self._complete("".join(parts))
        else:
            change, text = self._changes[-1], shown.first(shown.size)
            if change.parent is not None:
                change.parent.value[change.key] = text
            self._end_value(text)

    def _end_key(self, key: str) -> None:
        frame = self._stack[-1]
        self.has_stopped = key in frame.keys
        frame.keys.add(key)
        frame.key, self._expected = key, "colon"
        if self._wrapper is not None and len(self._stack) == 1:
            self._place = self._root
            self.has_stopped = key != self._wrapper or len(frame.keys) > 1
        else:
            self._place = frame.place.property(key) if frame.node and frame.place else None

    # --- values

    def _open(self, bracket: str) -> None:
        kind, end = ("array", "]") if bracket == "[" else ("object", "}")
        node = None
        if self._wrapper is not None and not self._stack:
            self.has_stopped = bracket == "["
        elif self._place is not None and kind in self._place.kinds:
            value: AnyJson = [] if bracket == "[" else {}
            node = Node(value, self._add(value, value))
        else:
            self._hide()
        self._stack.append(frame := _Frame(node, self._place, end))
        self._expected = "first key"
        if end == "]":
            self._expect_item(frame)

    def _expect_item(self, frame: _Frame) -> None:
        index = frame.key if isinstance(frame.key, int) else 0
        self._place = frame.place.item(index) if frame.node and frame.place else None
        self._expected = "value" if index else "first item"

    def _close(self) -> None:
        self._stack.pop()
        self._expected = "next" if self._stack else "end"
        self.has_stopped = not self._stack and not self._changes  # an empty wrapper

    def _complete(self, value: Json) -> None:
        """Shows a complete scalar."""
        if self._place is not None and self._place.admits(value):
            self._add(value, value)
        else:
            self._hide()
        self._end_value(value)

    def _end_value(self, value: Json) -> None:
        frame = self._stack[-1] if self._stack else None
        if frame is not None and frame.place is not None and isinstance(frame.key, str):
            frame.place = frame.place.narrowed(frame.key, value)
        self._expected = "end" if frame is None else "next"

    def _add(self, value: AnyJson, slot: AnyJson) -> Change:
        """Adds a change; until the value is complete, its parent contains `slot`."""
        frame = self._stack[-1] if self._stack else None
        node = None if frame is None else frame.node
        if frame is None or node is None:
            change = Change(None, "", 0)
        else:
            if frame.end == "]":
                node.value.append(slot)
            else:
                node.value[frame.key] = slot
            change = Change(node, frame.key, len(node.value))
        change.value = value
        self._changes.append(change)
        self._revision += 1
        return change

    def _hide(self) -> None:
        """Omits a value that its place does not admit; only an object can do without it."""
        frame = self._stack[-1] if self._stack else None
        is_wrapped = self._wrapper is not None and len(self._stack) == 1
        is_item = frame is not None and frame.end == "]" and frame.node is not None
        self.has_stopped |= frame is None or is_wrapped or is_item


def _scalar(token: str) -> Json:
    """Returns a scalar; an object, which no place admits, if it cannot be represented."""
    try:
        value: Json = json.loads(token)
        json.dumps(value, allow_nan=False)
    except ValueError:  # more than 4,300 digits, or beyond the range of floats
        return {}
    return value
