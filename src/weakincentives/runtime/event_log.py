"""Events as lines of JSON: written while a run goes on, read back without the types that they were made of."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TextIO

from .. import serde
from ..adapters.transcript import sendable
from ..errors import SerdeError
from ..ports import EventBus
from ..prompt.measure import measure
from ..prompt.renderer import RenderedPrompt
from ..prompt.walk import Scene
from ..serde import Json
from .events import Event, PromptRendered

__all__ = ["Record", "event_record", "read_events", "write_events"]

type Record = dict[str, Json]
"""An event as plain JSON values; `event` is the name of its type."""

_DEEPEST = 8


def write_events(bus: EventBus, file: TextIO) -> Callable[[], None]:
    """Writes each `Event` on `bus` to `file` from now on, one a line; the result ends that."""

    def write(event: object) -> None:
        file.write(json.dumps(event_record(event), ensure_ascii=False) + "\n")
        file.flush()

    return bus.subscribe(Event, write)


def event_record(event: object) -> Record:
    """The event as JSON; what JSON cannot hold stands as `{"$repr": …}`, a rendered prompt as the sizes of `sections`.

    Sizes are in characters: of each enabled section's text as it is shown, of its summary, of its tools, and the
    `weight` of all that a summary hides.
    """
    name = type(event).__name__
    if not is_dataclass(event):
        return {"event": name, "value": _plain(event)}
    values = {one.name: getattr(event, one.name) for one in fields(event)}
    sections: Record = {}
    if isinstance(event, PromptRendered):
        rendered = values.pop("rendered")
        if isinstance(rendered, RenderedPrompt):
            sections = {"sections": _sizes(rendered.scene)}
    return {"event": name, **{key: _plain(value) for key, value in values.items()}, **sections}


def read_events(lines: Iterable[str]) -> Iterator[Record]:
    """The events that `write_events` wrote. Raises `ValueError` with the number of a line that holds none."""
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict) or not isinstance(record.get("event"), str):
            raise ValueError(f"line {number} is no event; it may have been cut off")  # noqa: TRY004 - not a matter of types
        yield record


def _plain(value: object, depth: int = 0) -> Json:
    """`value` as JSON, taken apart only where it cannot be dumped whole."""
    if isinstance(value, str):
        return sendable(value)
    try:
        if not isinstance(value, Mapping):  # whose keys may be section paths
            return serde.dump(value)
    except SerdeError:
        pass
    if depth < _DEEPEST:
        match value:
            case Mapping():
                return {_key(key): _plain(item, depth + 1) for key, item in value.items()}
            case list() | tuple() | set() | frozenset():
                return [_plain(item, depth + 1) for item in value]
            case _ if is_dataclass(value) and not isinstance(value, type):
                return {one.name: _plain(getattr(value, one.name, None), depth + 1) for one in fields(value)}
            case _:
                pass
    try:
        return {"$repr": sendable(repr(value))}
    except Exception as error:  # a foreign type's own repr
        return {"$repr": f"<{type(value).__name__}: its repr raised {type(error).__name__}>"}


def _key(key: object) -> str:
    return sendable(".".join(map(str, key)) if isinstance(key, tuple) else str(key))


def _sizes(scene: Scene) -> list[Json]:
    return [
        {
            "path": ".".join(one.path),
            "visibility": one.visibility.value if one.visibility else "hidden",
            "shown": len(one.shown),
            "summary": None if one.summary is None else len(one.summary),
            "weight": one.weight,
            "tools": {name: len(text) for name, text in one.tools.items()},
        }
        for one in measure(scene)
    ]
