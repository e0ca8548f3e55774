"""A run's events as lines; a nested evaluation is indented below the one around it."""

from collections.abc import Iterable

from ..inspection.event_log import Record
from ..inspection.runs import Line, LoggedRun
from .output import short_line

__all__ = ["Timeline"]

_NESTED = "    "


class Timeline:
    """Turns the records of a log into lines that are safe for a terminal, one record at a time.

    It prints an answer when a later record shows whether the library accepted or rejected it.
    """

    def __init__(self) -> None:
        self._run = LoggedRun()

    def add(self, record: Record) -> list[str]:
        """Returns the lines of the next record.

        Raises `LookupError`, `TypeError` or `AttributeError` for a record that lacks fields.
        """
        lines = self._run.add(record)
        self._run.evaluations.clear()  # the lines are all that this view needs
        return _short(lines)

    def end(self) -> list[str]:
        """Returns the lines that are left when no record follows."""
        return _short(self._run.end())


def _short(lines: Iterable[Line]) -> list[str]:
    return [short_line(_NESTED * line.depth, line.text) for line in lines]
