"""Writes events as lines of JSON, which can be read without the event types."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from logging import getLogger
from typing import TextIO

from .. import serde
from ..errors import SerdeError
from ..evaluation.messages import sendable
from ..protocols import EventBus
from ..runtime import events
from ..runtime.events import Event, Operation, PromptRendered, SectionTexts
from ..runtime.session.snapshots import type_name
from ..serde import Json
from ..serde.json_types import AnyJson

__all__ = ["LOG_START", "Record", "event_record", "read_events", "write_events", "write_lines"]

type Record = dict[str, AnyJson]
"""An event as plain JSON values; `event` contains the name of its type."""

_log = getLogger(__name__)
_VERSION = 5
LOG_START = f'{{"event": "LogStart", "version": {_VERSION}}}\n'
"""The first line of a log."""

_OWN_NAMES = {*events.__all__, "LogStart"}
_MAX_DEPTH = 8
_LONE = re.compile(r"[\ud800-\udfff]")
_SURROGATE = re.compile(_LONE.pattern + r"|\\u[dD][89a-fA-F]")


def write_events(bus: EventBus, file: TextIO) -> Callable[[], None]:
    """Writes each future `Event` on `bus` to `file` as one line; returns a function to stop it."""

    def write(line: str) -> None:
        file.write(line)
        file.flush()

    return write_lines(bus, write)


def write_lines(bus: EventBus, write: Callable[[str], object]) -> Callable[[], None]:
    """Passes the same lines as `write_events` to `write`; returns a function to stop it.

    The first line is `LOG_START`. Until it is stopped, new evaluations also record each tool call's
    changes.
    """
    write(LOG_START)

    def write_event(event: object) -> None:
        write(json.dumps(event_record(event), ensure_ascii=False) + "\n")

    ends = bus.subscribe(Operation, _record_changes), bus.subscribe(Event, write_event)

    def stop() -> None:
        for end in ends:
            end()

    return stop


def _record_changes(operation: Operation) -> None:
    if operation.kind == "evaluation":
        operation.record_changes()


def event_record(event: object) -> Record:
    """Converts an event to JSON; a value that JSON cannot represent becomes `{"$repr": …}`.

    A `PromptRendered` record also contains `sections`. For each enabled section, it lists the
    `path` and `visibility`, and the sizes in characters of its current text (`shown`), its
    `summary`, its `tools`, and all texts and tools that become visible when it is opened
    (`expanded_size`).
    """
    name = _name_of(type(event))
    if not is_dataclass(event):
        return {"event": name, "value": _to_json(event)}
    values: dict[str, object] = {field.name: getattr(event, field.name) for field in fields(event)}
    if isinstance(event, PromptRendered):
        del values["visibility"], values["measure"]
        values["sections"] = [_sizes(texts) for texts in event.measure()]
    record = {key: _to_json(value) for key, value in values.items()}
    if "event" in record:  # a custom event has a field named `event`
        record["event_field"] = record.pop("event")
    return {"event": name, **record}


def _name_of(event_type: type[object]) -> str:
    """Returns an event's name in logs; a custom type cannot have the name of a library event."""
    name = event_type.__name__
    is_own = event_type.__module__.partition(".")[0] == __name__.partition(".")[0]
    return name if is_own or name not in _OWN_NAMES else type_name(event_type)


def read_events(lines: Iterable[str]) -> Iterator[Record]:
    """Yields the events that `write_events` wrote, even from several concatenated logs.

    Lone surrogates, which cannot be printed, become escapes. An incomplete last line, which a
    killed process leaves, is skipped, and the logger gets a warning. Raises `ValueError` with the
    line number for any other line that is not an event, or if the log has another version.
    """
    lines = iter(lines)
    for number, line in enumerate(lines, start=1):
        record = _read_event(line)
        if record is None:
            if number > 1 and not line.endswith("\n") and next(lines, None) is None:
                _log.warning("Line %d, the last one, is incomplete, so it was skipped", number)
                return
            remedy = "name a log that `wink run --log` or write_events wrote"
            raise ValueError(f"line {number} is not an event; {remedy}")
        if record["event"] != "LogStart":
            yield record
        elif (version := record.get("version")) != _VERSION:
            is_old = isinstance(version, int) and version < _VERSION
            remedy = (
                "read it with weakincentives 0.2, or log the run again"
                if is_old
                else "update weakincentives to read it"
            )
            raise ValueError(
                f"line {number} starts a log of version {version!r}, but this reader supports "
                f"version {_VERSION}; {remedy}"
            )


def _read_event(line: str) -> Record | None:
    """Returns the event in a line, with text that UTF-8 can encode, or `None` if it has none."""
    try:
        record = json.loads(line)
        if _SURROGATE.search(line):
            text = json.dumps(record, ensure_ascii=False)
            record = json.loads(_LONE.sub(lambda lone: f"\\\\u{ord(lone[0]):x}", text))
    except (ValueError, RecursionError):
        return None
    is_event = isinstance(record, dict) and isinstance(record.get("event"), str)
    return record if is_event else None


def _to_json(value: object, depth: int = 0) -> Json:
    """Converts a value with `serde` if possible; otherwise converts its parts."""
    if isinstance(value, str):
        return sendable(value)
    try:
        if not isinstance(value, Mapping):  # section paths can be the keys
            return serde.dump(value)
    except SerdeError:
        pass
    if depth < _MAX_DEPTH:
        if isinstance(value, Mapping):
            return {_to_key(key): _to_json(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [_to_json(item, depth + 1) for item in value]
        if is_dataclass(value) and not isinstance(value, type):
            # As in the JSON from `serde`, which does not include the bytes of media.
            names = [field.name for field in fields(value) if field.init]
            return {name: _to_json(getattr(value, name, None), depth + 1) for name in names}
    try:
        return {"$repr": sendable(repr(value))}
    except Exception as error:  # raised by a custom repr
        return {"$repr": f"<{type(value).__name__}: its repr raised {type(error).__name__}>"}


def _to_key(key: object) -> str:
    try:
        return sendable(".".join(map(str, key)) if isinstance(key, tuple) else str(key))
    except Exception as error:  # raised by a custom str
        return f"<{type(key).__name__}: its str raised {type(error).__name__}>"


def _sizes(texts: SectionTexts) -> Record:
    return {
        "path": ".".join(texts.path),
        "visibility": texts.visibility.value if texts.visibility else "hidden",
        "shown": len(texts.shown),
        "summary": None if texts.summary is None else len(texts.summary),
        "expanded_size": texts.expanded_size,
        "tools": {name: len(text) for name, text in texts.tools.items()},
    }
