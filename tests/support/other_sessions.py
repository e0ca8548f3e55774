"""Functions whose sessions are another library's, which is imported for type checkers only."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from email import message
    from http.client import HTTPConnection as Session

__all__ = ["dotted", "named"]


def named(order: str, session: Session) -> str:
    """Look it up."""
    return f"{order}{session}"


def dotted(order: str, session: message.Session) -> str:  # type: ignore[name-defined] # pyright: ignore[reportAttributeAccessIssue] # what is refused
    """Look it up."""
    return f"{order}{session}"
