"""The calls of tools that must not run twice, and their answers, over a run's evaluations."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..prompt.tool import ToolResult

__all__ = ["CallHistory", "CallRecord"]

_UNKNOWN = "This call was begun before and its outcome is unknown; it is not run again."


@dataclass(slots=True)
class CallRecord:
    """One call that began; until it ends, `result` says that its outcome is unknown."""

    # Any: results of all tools.
    result: ToolResult[Any] = field(default_factory=lambda: ToolResult(_UNKNOWN, success=False))


class CallHistory:
    """Keeps the records of calls by tool and arguments, in the order of the calls."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, str], list[CallRecord]] = {}

    def replay(self) -> Callable[[str, str], tuple[CallRecord, bool]]:
        """Returns a function that gives each next call of one evaluation its record.

        The function takes the tool's name and the arguments, and says whether an earlier evaluation
        made the call: the first call with some arguments is the first one recorded with them, and
        so on. Calls beyond the history are new, and get a record.
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
