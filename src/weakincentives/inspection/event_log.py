"""Events as lines of JSON: a run writes them, and readers need none of the types in them."""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import TextIO

from .. import serde
from ..errors import SerdeError
from ..evaluation.messages import sendable
from ..protocols import EventBus
from ..runtime.events import Event, Operation, PromptRendered, SectionTexts
from ..serde import Json

__all__ = [
    "LOG_START",
    "LoggedEvaluation",
    "Record",
    "RunningEvaluations",
    "event_record",
    "read_events",
    "write_events",
    "write_lines",
]

type Record = dict[str, Json]
"""An event as plain JSON values; `event` is the name of its type."""

_VERSION = 4
LOG_START = f'{{"event": "LogStart", "version": {_VERSION}}}\n'
"""The first line of a log. 0.1.0 wrote none, and events of earlier versions have fewer fields."""

_MAX_DEPTH = 8
_LONE = re.compile(r"[\ud800-\udfff]")
_SURROGATE = re.compile(_LONE.pattern + r"|\\u[dD][89a-fA-F]")


def write_events(bus: EventBus, file: TextIO) -> Callable[[], None]:
    """Writes each later `Event` on `bus` to `file` as a line; returns a function that stops it."""

    def write(line: str) -> None:
        file.write(line)
        file.flush()

    return write_lines(bus, write)


def write_lines(bus: EventBus, write: Callable[[str], object]) -> Callable[[], None]:
    """Passes a log to `write`, line by line, as `write_events` writes it; returns how to stop.

    The first line is `LOG_START`. Evaluations that begin later also record what each tool call
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
    """Returns the event as JSON values; a value that JSON cannot hold becomes `{"$repr": …}`.

    `PromptRendered` gets `sections`: for each enabled section its `path`, `visibility`, and sizes
    in characters: of the text as it is `shown`, of its `summary`, of its `tools`, and, as
    `expanded_size`, of all texts and tools that opening it shows.
    """
    name = type(event).__name__
    if not is_dataclass(event):
        return {"event": name, "value": _to_json(event)}
    values: dict[str, object] = {field.name: getattr(event, field.name) for field in fields(event)}
    if isinstance(event, PromptRendered):
        del values["visibility"], values["measure"]
        values["sections"] = [_sizes(texts) for texts in event.measure()]
    return {"event": name, **{key: _to_json(value) for key, value in values.items()}}


def read_events(lines: Iterable[str]) -> Iterator[Record]:
    """Yields the events that `write_events` wrote.

    Logs of earlier versions are read too. Lone surrogates, which nothing can print, become escapes.
    Raises `ValueError` with the number of a line that is no
    event or begins a log of a later version.
    """
    for number, line in enumerate(lines, start=1):
        try:
            record = _escaped(json.loads(line)) if _SURROGATE.search(line) else json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict) or not isinstance(record.get("event"), str):
            remedy = (
                "name a log that `wink run --log` or write_events wrote"
                if number == 1
                else "it may have been cut off"
            )
            raise ValueError(f"line {number} is no event; {remedy}")  # noqa: TRY004 - not a matter of types
        if record["event"] != "LogStart":
            yield record
        elif record.get("version") not in range(2, _VERSION + 1):
            raise ValueError(
                f"line {number} begins a log of version {record.get('version')!r}, which is later "
                f"than {_VERSION}; update weakincentives to read it"
            )


def _escaped(value: Json) -> Json:
    """Returns JSON whose texts and names UTF-8 can encode."""
    text = json.dumps(value, ensure_ascii=False)
    escaped: Json = json.loads(_LONE.sub(lambda lone: f"\\\\u{ord(lone[0]):x}", text))
    return escaped


@dataclass(slots=True, eq=False)
class LoggedEvaluation:
    """An evaluation in a log; it continues the `restarted` one with other sections open.

    `unanswered` counts the tool calls of its last turn that have not ended yet. `outer` has the
    evaluations of other sessions around it.
    """

    name: Json
    event_id: Json = None
    outer: tuple["LoggedEvaluation", ...] = ()
    restarted: "LoggedEvaluation | None" = None
    turn: int = 0
    unanswered: int = 0
    restarting: bool = False


class RunningEvaluations:
    """Follows a log record by record and knows which evaluations run inside which.

    A log has a record for the start of an evaluation and one for its end. Before version 4 it had
    none for an end without a response, which follows from the next record of the session; it still
    does where another evaluation goes on with this one. Evaluations of different sessions may
    overlap. `parent_id` says in which evaluation one runs; 0.1.0 did not write it, and there an
    evaluation runs only inside those of its own session.
    """

    def __init__(self) -> None:
        self._by_session: defaultdict[Json, list[LoggedEvaluation]] = defaultdict(list)
        self._by_id: dict[Json, tuple[LoggedEvaluation, ...]] = {}  # each with those around it

    def add(self, record: Record) -> tuple[LoggedEvaluation, ...]:
        """Returns the evaluations around `record`, outermost first; the last one published it."""
        running = self._by_session[record.get("session_id")]
        match record:
            case {"event": "PromptRendered"}:
                restarted = running.pop() if running and running[-1].restarting else None
                parent_id = record.get("parent_id")
                while running and not _is_around(running[-1], record):
                    self._by_id.pop(running.pop().event_id, None)  # it has failed
                apart = not running and parent_id is not None
                outer = self._by_id.get(parent_id, ()) if apart else ()
                event_id = record.get("event_id")
                running.append(LoggedEvaluation(record.get("name"), event_id, outer, restarted))
                self._by_id[event_id] = (*running[0].outer, *running)
            case {"event": "ProviderCalled", "turn": int(turn)}:
                while len(running) > 1 and running[-1].turn + 1 != turn:
                    running.pop()  # it has failed inside a tool call of the one around it
                for evaluation in running[-1:]:
                    evaluation.turn = turn
                    calls = record.get("tool_calls")
                    evaluation.unanswered = calls if isinstance(calls, int) else 0
            case {"event": "ToolInvoked", "prompt_name": name}:
                while len(running) > 1 and running[-1].name != name:
                    running.pop()  # likewise
                for evaluation in running[-1:]:
                    evaluation.unanswered -= 1
            case {"event": "VisibilityExpanded"}:
                for evaluation in running[-1:]:
                    evaluation.restarting = True
            case {"event": "PromptExecuted" | "EvaluationStopped"} if running:
                around = self._by_id.pop(running[-1].event_id, ())
                running.pop()
                return around
            case _:
                pass
        return (*running[0].outer, *running) if running else ()


def _is_around(evaluation: LoggedEvaluation, record: Record) -> bool:
    """Whether a tool call of the evaluation can have started the one that `record` begins."""
    if "parent_id" in record:
        return evaluation.event_id == record["parent_id"]
    return evaluation.unanswered > 0


def _to_json(value: object, depth: int = 0) -> Json:
    """Converts a value as a whole where `serde` can, else its parts."""
    if isinstance(value, str):
        return sendable(value)
    try:
        if not isinstance(value, Mapping):  # its keys may be section paths
            return serde.dump(value)
    except SerdeError:
        pass
    if depth < _MAX_DEPTH:
        if isinstance(value, Mapping):
            return {_to_key(key): _to_json(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [_to_json(item, depth + 1) for item in value]
        if is_dataclass(value) and not isinstance(value, type):
            # as in JSON, which has no bytes of media
            names = [field.name for field in fields(value) if field.init]
            return {name: _to_json(getattr(value, name, None), depth + 1) for name in names}
    try:
        return {"$repr": sendable(repr(value))}
    except Exception as error:  # a foreign type's own repr
        return {"$repr": f"<{type(value).__name__}: its repr raised {type(error).__name__}>"}


def _to_key(key: object) -> str:
    return sendable(".".join(map(str, key)) if isinstance(key, tuple) else str(key))


def _sizes(texts: SectionTexts) -> Record:
    return {
        "path": ".".join(texts.path),
        "visibility": texts.visibility.value if texts.visibility else "hidden",
        "shown": len(texts.shown),
        "summary": None if texts.summary is None else len(texts.summary),
        "expanded_size": texts.expanded_size,
        "tools": {name: len(text) for name, text in texts.tools.items()},
    }
