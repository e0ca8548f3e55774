"""Reads events from the bytes of a streamed reply, in any form that servers send.

`EventDecoder` does not perform any I/O. It accepts more than the standard for server-sent events
allows: events without data, several values in one event, and plain JSON instead of events.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress

from ..serde.json_types import AnyJson

__all__ = ["EventDecoder", "read_events"]


class EventDecoder:
    """Decodes the bytes of a reply into JSON values, in linear time.

    `done` is true after the server's last event. Raises `ValueError` for an event whose data is not
    JSON, unless the reply ends in the middle of that event.
    """

    def __init__(self) -> None:
        self.done = False
        self._line: list[bytes] = []  # chunks of an incomplete line
        self._after_return = False
        self._name = b""
        self._data: list[bytes] = []
        self._plain: list[bytes] = []  # lines outside events
        self._tried = False
        self._has_events = False

    def feed(self, chunk: bytes) -> Iterator[AnyJson]:
        """Yields the values in the events that `chunk` completes."""
        if self._after_return and chunk[:1] == b"\n":
            chunk = chunk[1:]
        self._after_return = chunk[-1:] == b"\r"
        for part in chunk.splitlines(keepends=True):
            self._line.append(part)
            if part[-1:] in b"\r\n":
                line, self._line = b"".join(self._line).rstrip(b"\r\n"), []
                yield from self._take(line)

    def end(self) -> Iterator[AnyJson]:
        """Yields the remaining values when the reply ends."""
        with suppress(ValueError):  # the reply ends in the middle of an event
            yield from self._take(b"".join(self._line))
            yield from self._dispatch()
        if self._plain and not self._has_events:
            yield json.loads(b"\n".join(self._plain))

    def _take(self, line: bytes) -> Iterator[AnyJson]:
        name, _, value = line.partition(b":")
        if not line:
            yield from self._dispatch()
        elif name == b"data":
            self._data.append(value.removeprefix(b" "))
        elif name == b"event":
            self._name = value.strip()
        elif name not in (b"", b"id", b"retry"):  # a comment has an empty name
            self._plain.append(line)

    def _dispatch(self) -> Iterator[AnyJson]:
        name, data, self._name, self._data = self._name, self._data, b"", []
        if self._plain and not self._tried:
            self._tried = True
            with suppress(ValueError):
                value = json.loads(b"\n".join(self._plain))
                self._plain, self._tried, self._has_events = [], False, True
                yield value
        for text in _values(data):
            if text.startswith(b"[DONE]"):
                self.done = True
            elif name == b"error":
                yield _failure(text)
            else:
                value = json.loads(text)
                self._has_events = True
                yield value


def _values(data: list[bytes]) -> list[bytes]:
    """Returns the JSON texts in an event, usually just one; some servers do not separate events."""
    if len(data) > 1:
        try:
            json.loads(b"\n".join(data))
        except ValueError:
            return [line for line in data if line.strip()]
    text = b"\n".join(data)
    return [text] if text.strip() else []


def _failure(text: bytes) -> AnyJson:
    """Returns the data of an `error` event, marked as a failure."""
    try:
        value = json.loads(text)
    except ValueError:
        value = text.decode(errors="replace")
    return {"error": value}


def read_events(chunks: Iterable[bytes]) -> Iterator[AnyJson]:
    """Yields the values in the events in `chunks`."""
    decoder = EventDecoder()
    for chunk in chunks:
        yield from decoder.feed(chunk)
        if decoder.done:
            return
    yield from decoder.end()
