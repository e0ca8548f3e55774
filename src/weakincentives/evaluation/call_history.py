"""The calls of tools that must not run twice, and their answers, over a run's evaluations."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from ..prompt.tool import ToolResult
from .messages import ToolCall

__all__ = ["UNKNOWN", "CallHistory", "CallRecord"]

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


class CallHistory:
    """The records of calls by tool and arguments, each list in the order of the calls."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], list[CallRecord]] = {}

    @property
    def records(self) -> Iterator[CallRecord]:
        """All records, those of equal calls in the order of the calls."""
        return chain.from_iterable(self._records.values())

    def replay(self) -> Callable[[str, str], tuple[CallRecord, bool]]:
        """Returns a function that matches the calls of a new evaluation with the records.

        The function takes a tool's name and arguments. It returns the call's record, and whether an
        earlier evaluation made the call. Equal calls match in order: the second call matches the
        second record of these arguments. A call without a record adds one.
        """
        counts: Counter[tuple[str, str]] = Counter()

        def record(name: str, arguments: str) -> tuple[CallRecord, bool]:
            key = name, arguments
            records = self._records.setdefault(key, [])
            index = counts[key]
            counts[key] += 1
            if index < len(records):
                return records[index], True
            records.append(CallRecord())
            return records[-1], False

        return record
