"""Functions with postponed annotations, as `from __future__ import annotations` creates them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from weakincentives.prompt import Resource, ToolContext

if TYPE_CHECKING:
    from collections.abc import Callable

    import weakincentives as wi
    from weakincentives import Session

__all__ = [
    "Database",
    "Finder",
    "Query",
    "count",
    "describe",
    "find",
    "local_tools",
    "look_up",
    "lookup",
    "unknown",
]


@dataclass
class Query:
    """A question."""

    text: str


class Database:
    """Answers questions."""

    def ask(self, text: str) -> str:
        """Returns an answer."""
        return f"{text}!"


class Finder:
    """Finds things."""

    def __call__(self, query: Query) -> str:
        return query.text


def find(q: str, c: ToolContext) -> str:
    """Find it."""
    return f"{q} {c.call_id}"


def look_up(q: str, session: Session, db: Resource[Database] | None = None) -> str:
    """Look it up."""
    return f"{q} {session.session_id} {db.ask(q) if db else None}"


def describe(q: str, context: wi.ToolContext) -> wi.ToolResult[str]:
    """Describe it."""
    from weakincentives import ToolResult

    return ToolResult(f"{q} {context.call_id}")


def unknown(visit: Callable[[], str]) -> str:
    """Do it."""
    return visit()


def count(ids: list[int]) -> Callable[[], str]:
    """Count them."""
    return partial(str, ids)


lookup = partial(look_up)


def local_tools(decorate: Any) -> tuple[Any, Any]:  # Any: functions
    """Returns two functions whose annotations name a class of this function."""

    @dataclass
    class Place:
        name: str

    @decorate  # type: ignore[untyped-decorator] # any decorator
    def visit(first: Place, second: Place) -> str:
        """Visit both."""
        return f"{first.name} {second.name}"

    def stay(first: Place, nights: int) -> str:
        """Stay there."""
        return f"{Place(first.name).name} {nights}"

    return visit, stay
