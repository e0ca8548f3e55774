"""The calls of tools that must not run twice, and their answers, over a run's evaluations."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from .. import serde
from ..errors import SerdeError
from ..prompt.tool import ToolResult
from .messages import AssistantMessage, Message, ToolCall, ToolMessage
from .tool_answers import without_bytes

__all__ = [
    "UNKNOWN",
    "CallHistory",
    "CallRecord",
    "CallReplay",
    "RecordedCall",
    "call_key",
    "messages_of",
]

# Any: results of all tools.
UNKNOWN: ToolResult[Any] = ToolResult(
    "This call was begun before and its outcome is unknown; it is not run again.", success=False
)


@dataclass(slots=True)
class CallRecord:
    """One call that began; until it ends, `result` says that its outcome is unknown.

    `call` is `None` for a call that the conversation itself has.
    """

    call: ToolCall | None = None
    result: ToolResult[Any] = UNKNOWN  # Any: as above


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """A record as JSON can hold it: the tool, the key of its arguments, and the answer."""

    name: str
    key: str
    call: ToolCall | None
    answer: ToolMessage


class CallHistory:
    """The records of calls by tool and arguments, each list in the order of the calls."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], list[CallRecord]] = {}

    @property
    def records(self) -> Iterator[CallRecord]:
        """All records, those of equal calls in the order of the calls."""
        return chain.from_iterable(self._records.values())

    def recorded(self) -> tuple[RecordedCall, ...]:
        """Returns the records for JSON; of a result, only what the model reads stays."""
        return tuple(
            [
                RecordedCall(name, key, record.call, _answer_of(record))
                for (name, key), records in self._records.items()
                for record in records
            ]
        )

    def restore(self, calls: Iterable[RecordedCall]) -> None:
        """Adds what `recorded` returned."""
        for item in calls:
            answer = item.answer
            result = UNKNOWN
            if not answer.unknown:
                result = ToolResult(answer.content, success=answer.success)
            self._records.setdefault((item.name, item.key), []).append(
                CallRecord(item.call, result)
            )

    def replay(self) -> "CallReplay":
        """Returns what matches the calls of a new evaluation with the records."""
        return CallReplay(self._records)


class CallReplay:
    """Matches the calls of one evaluation with the records, by tool name and arguments.

    Equal calls match in order: the second call matches the second record of these arguments.
    """

    def __init__(self, records: dict[tuple[str, str], list[CallRecord]]) -> None:
        self._records = records
        self._counts: Counter[tuple[str, str]] = Counter()

    def is_next(self, name: str, arguments: str) -> bool:
        """Whether an earlier evaluation made the next call with these arguments."""
        key = name, arguments
        return self._counts[key] < len(self._records.get(key, ()))

    def __call__(self, name: str, arguments: str) -> tuple[CallRecord, bool]:
        """Returns the call's record, and whether an earlier evaluation made the call.

        Adds a record for a call that has none.
        """
        key, recorded = (name, arguments), self.is_next(name, arguments)
        records = self._records.setdefault(key, [])
        if not recorded:
            records.append(CallRecord())
        self._counts[key] += 1
        return records[self._counts[key] - 1], recorded

    def forget(self, record: CallRecord) -> None:
        """Removes the record of a call that was just made, since it has been undone."""
        for key, records in self._records.items():
            if records and records[-1] is record:
                records.pop()
                self._counts[key] -= 1


def messages_of(records: Iterable[CallRecord]) -> list[Message]:
    """Returns calls and their answers as messages; nothing for calls that a conversation has."""
    calls: list[ToolCall] = []
    answers: list[ToolMessage] = []
    for record in records:
        if record.call is not None:
            calls.append(record.call)
            result, unknown = without_bytes(record.result), record.result is UNKNOWN
            call_id, content, media = record.call.call_id, result.content(), tuple(result.media)
            answers.append(ToolMessage(call_id, content, result.success, unknown, media))
    return [AssistantMessage(tool_calls=tuple(calls)), *answers] if calls else []


def _answer_of(record: CallRecord) -> ToolMessage:
    result, unknown = record.result, record.result is UNKNOWN
    call_id = record.call.call_id if record.call else ""
    return ToolMessage(call_id, result.content(), result.success, unknown)


def call_key(call: ToolCall, params: object) -> str:
    """Returns the same text for calls whose params are equal."""
    try:
        if isinstance(params, dict):  # in the order in which the model wrote it
            return json.dumps(params, sort_keys=True, default=str)
        return serde.dump_json_lossless(type(params), params)
    except SerdeError:  # JSON cannot hold these params: compare what the model wrote
        return _normalize(call.arguments)


def _normalize(arguments: str) -> str:
    """Returns the same text for arguments that are the same JSON."""
    try:
        return json.dumps(json.loads(arguments.strip() or "{}"), sort_keys=True)
    except ValueError:
        return arguments
