"""Whether a section shows its body or its summary."""

from enum import Enum

__all__ = ["SectionPath", "SectionVisibility"]

type SectionPath = tuple[str, ...]
"""Keys from a root section down to the section meant, such as `("context", "history")`."""


class SectionVisibility(Enum):
    """How a section is shown: `FULL` with its body, tools and children; `SUMMARY` with its summary alone."""

    FULL = "full"
    SUMMARY = "summary"
