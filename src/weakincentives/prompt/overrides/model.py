"""What an override can replace."""

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["ToolOverride"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOverride:
    """Other texts for a tool: its description, and the descriptions of its params by field name."""

    description: str | None = None
    param_descriptions: Mapping[str, str] = field(default_factory=dict[str, str])
