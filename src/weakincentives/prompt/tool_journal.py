"""What at-most-once tools have answered during one execution, so that starting again does not run
them again.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from .tool import ToolResult

__all__ = ["JournalEntry", "ToolJournal"]


@dataclass(slots=True)
class JournalEntry:
    """One call that was begun; until `result` is set its outcome is unknown."""

    # Any: results of all tools.
    result: ToolResult[Any] = field(
        default_factory=lambda: ToolResult(
            message="This call was begun before and its outcome is unknown; it is not run again.",
            success=False,
        )
    )


class ToolJournal:
    """Calls by tool and arguments, in order.

    After `rewind`, the first call of a tool with some arguments stands for the first one recorded
    with them, and so on; calls beyond the record are new.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], list[JournalEntry]] = {}
        self._made: Counter[tuple[str, str]] = Counter()

    def rewind(self) -> None:
        """A new evaluation begins: its calls are compared with the record from the start."""
        self._made.clear()

    def enter(self, name: str, arguments: str) -> tuple[JournalEntry, bool]:
        """The entry of a call, and whether it is an earlier one whose answer is to be given again."""
        key = name, arguments
        entries = self._entries.setdefault(key, [])
        index = self._made[key]
        self._made[key] += 1
        if index < len(entries):
            return entries[index], True
        entries.append(JournalEntry())
        return entries[-1], False
