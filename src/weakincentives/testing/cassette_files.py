"""The file of a cassette: JSON Lines, one line for each request, with its answers in order.

The first line describes the adapter. The messages of a later request begin with those of an earlier
one: its line contains only the further messages, and `after`, the number of the other line. Parts
that are the same as in that line are left out. The order of the lines depends on their content
alone.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, NotRequired, TypedDict

from .. import serde
from ..atomic_writes import replacing
from ..evaluation.logged_run import ProviderFailure
from ..evaluation.messages import AssistantMessage
from .cassette_diffs import Asked

__all__ = ["Line", "Recording", "Recordings"]

type Line = dict[str, Any]  # Any: JSON values

_VERSION = 1
_PARTS = ("tools", "output", "settings", "model")


class _Text(TypedDict):
    text: str


class _Reasoning(TypedDict):
    reasoning: str


class _Reply(TypedDict):
    reply: Annotated[AssistantMessage | ProviderFailure, serde.ByKind()]
    deltas: NotRequired[list[_Text | _Reasoning]]


@dataclass(slots=True)
class Recording:
    """The answers to equal requests, in the order in which they were given.

    `line` is the number of the first one's line in the file. Replies that were read from it have
    their types.
    """

    asked: Asked
    line: int = 0
    replies: list[Line] = field(default_factory=list[Line])
    played: int = 0


class Recordings:
    """The recordings in a file; threads can use them at the same time.

    `facts` describe the adapter that was recorded.
    """

    def __init__(
        self, path: Path, volatile: frozenset[str], normalize: Callable[[str], str]
    ) -> None:
        self.path = path
        self.facts: Line = {}
        self._volatile, self._normalize = volatile, normalize
        self._by_key: dict[str, Recording] = {}
        self._lock = Lock()

    def __iter__(self) -> Iterator[Recording]:
        return iter(self._by_key.values())

    @property
    def left(self) -> int:
        """The number of answers that were not played."""
        return sum(len(it.replies) - it.played for it in self)

    def plain(self, asked: Asked) -> Line:
        """Returns the parts of a request that count, normalized."""
        text = json.dumps(asked.without(self._volatile), sort_keys=True, ensure_ascii=False)
        plain: Line = json.loads(self._normalize(text))
        return plain

    def _key(self, asked: Asked) -> str:
        text = json.dumps(self.plain(asked), sort_keys=True)
        return sha256(text.encode()).hexdigest()

    def take(self, asked: Asked) -> tuple[Line | None, Recording | None]:
        """Returns the next reply to a request, if there is one, and the request's recording."""
        key = self._key(asked)
        with self._lock:
            recording = self._by_key.get(key)
            if recording is None or recording.played == len(recording.replies):
                return None, recording
            recording.played += 1
            return recording.replies[recording.played - 1], recording

    def add(self, asked: Asked, reply: Line) -> None:
        """Adds a reply to a request."""
        key = self._key(asked)
        with self._lock:
            self._by_key.setdefault(key, Recording(asked)).replies.append(reply)

    def renamed(self, asked: Asked) -> str:
        """Returns which other file in the folder has the request, if one has."""
        key = self._key(asked)
        for path in sorted(self.path.parent.glob("*.jsonl")):
            other = Recordings(path, self._volatile, self._normalize)
            with suppress(ValueError, OSError):  # a file of another kind
                other.load()
                if key in other._by_key:
                    return f", but {path.name} has this request: was the test renamed?"
        return ""

    def save(self, facts: Line, *, replaces: bool) -> None:
        """Writes the file; raises `FileExistsError` if it exists, unless `replaces` is set."""
        rows = sorted((_text(it.asked.to_json()), _text(it.replies)) for it in self)
        requests = [(json.loads(asked), json.loads(replies)) for asked, replies in rows]
        requests.sort(key=lambda row: len(row[0]["messages"]))
        lines: list[Line] = [{"cassette": _VERSION, **facts}]
        known: dict[str, int] = {}
        for asked, replies in requests:
            prefixes = _prefixes(asked["messages"])
            lines.append({**_shortened(asked, prefixes, lines, known), "replies": replies})
            known[prefixes[-1]] = len(lines)
            lines[-1]["_asked"] = asked
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with replacing(self.path, sync=True, is_new=not replaces) as file:
                for line in lines:
                    line.pop("_asked", None)
                    file.write(_text(line).encode("utf-8", "backslashreplace") + b"\n")
        except FileExistsError as error:
            raise FileExistsError(
                f"{self.path} was recorded by another process or test; run again, or give each "
                "test its own path"
            ) from error

    def load(self) -> None:
        """Reads the file, if it exists; raises `ValueError` with the number of a bad line."""
        lines: list[Line] = []
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            for number, text in enumerate(file, 1):
                try:
                    line: Line = json.loads(text)
                    if number > 1:
                        self._read(line, lines)
                    elif (version := line["cassette"]) != _VERSION:
                        raise ValueError(f"version {version!r}")
                    else:
                        serde.parse(int | None, line.get("max_result_chars"))
                except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as it:
                    raise ValueError(
                        f"{self.path}:{number} is not a recording of this version ({it!r}); "
                        "record it again"
                    ) from it
                lines.append(line)
        self.facts = lines[0] if lines else {}

    def _read(self, line: Line, lines: list[Line]) -> None:
        """Adds the recording in a line, which may continue one of the lines before it."""
        if "after" in line:
            earlier = lines[1:][line["after"] - 2]
            line["messages"] = [*earlier["messages"], *line["messages"]]
            line.update({name: earlier[name] for name in _PARTS if name not in line})
        asked = Asked.from_json(line)
        replies: list[Any] = serde.parse(list[_Reply], line["replies"])
        if not replies:
            raise ValueError("it has no replies")
        recording = Recording(asked, len(lines) + 1)
        self._by_key.setdefault(self._key(asked), recording).replies += replies


def _prefixes(messages: list[Line]) -> list[str]:
    """Returns a digest of the first message, of the first two, and so on."""
    digest = sha256()
    digests: list[str] = []
    for message in messages:
        digest.update(_text(message).encode())
        digests.append(digest.hexdigest())
    return digests


def _shortened(asked: Line, prefixes: list[str], lines: list[Line], known: dict[str, int]) -> Line:
    """Returns the parts of a request that its line needs."""
    for count in range(len(prefixes) - 1, 0, -1):
        if (number := known.get(prefixes[count - 1])) is not None:
            earlier = lines[number - 1]["_asked"]
            parts = {name: asked[name] for name in _PARTS if asked[name] != earlier[name]}
            return {"after": number, "messages": asked["messages"][count:], **parts}
    return asked


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True)
