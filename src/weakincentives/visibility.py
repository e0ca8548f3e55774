"""The visibility of sections: the two forms, session overrides and conversation decisions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

__all__ = [
    "SectionDecisions",
    "SectionPath",
    "SectionVisibility",
    "SetVisibilityOverride",
    "ShownSection",
    "VisibilityOverrides",
]

type SectionPath = tuple[str, ...]
"""The keys from a root section down to a section, such as `("context", "history")`."""


class SectionVisibility(Enum):
    """The form of a section: body, tools and children (`FULL`), or only a summary (`SUMMARY`)."""

    FULL = "full"
    SUMMARY = "summary"


class ShownSection(NamedTuple):
    """A section's text as the model sees it: the full text or the summary."""

    path: SectionPath
    visibility: SectionVisibility
    text: str


@dataclass(frozen=True, slots=True)
class VisibilityOverrides:
    """Session state: visibility by section path, which overrides the sections' own selectors.

    All prompts in a session share it; a prompt ignores the paths of sections that it does not have.
    """

    overrides: Mapping[SectionPath, SectionVisibility] = field(
        default_factory=dict[SectionPath, SectionVisibility]
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "overrides", MappingProxyType(dict(self.overrides)))

    def __reduce__(
        self,
    ) -> tuple[type["VisibilityOverrides"], tuple[dict[SectionPath, SectionVisibility]]]:
        return VisibilityOverrides, (dict(self.overrides),)

    def get(self, path: SectionPath) -> SectionVisibility | None:
        """Returns the override for `path`, or `None`."""
        return self.overrides.get(path)

    def with_override(
        self, path: SectionPath, visibility: SectionVisibility
    ) -> "VisibilityOverrides":
        """Returns a copy in which `path` has `visibility`."""
        return VisibilityOverrides({**self.overrides, path: visibility})


@dataclass(frozen=True, slots=True, kw_only=True)
class SetVisibilityOverride:
    """Event: sets the visibility of the section at `path`; every `Session` stores it."""

    path: SectionPath
    visibility: SectionVisibility

    def __post_init__(self) -> None:
        if not isinstance(self.path, tuple):
            raise TypeError(
                "path must be a tuple of section keys, such as ('guide', 'details'), got "
                f"{self.path!r}"
            )


@dataclass(slots=True, eq=False)
class SectionDecisions:
    """The decisions about the sections of one conversation; they can be pickled.

    `overrides` take precedence over the sections' own visibility. `opened` contains the sections
    that the model opened or closed in this conversation, and earlier ones that the session
    remembers. `enabled` and `visibility` cache the results of conditions, because a conversation
    evaluates each condition only once; further results are added to both.
    """

    overrides: Mapping[SectionPath, SectionVisibility]
    opened: Mapping[SectionPath, SectionVisibility]
    enabled: dict[SectionPath, bool] = field(default_factory=dict[SectionPath, bool])
    visibility: dict[SectionPath, SectionVisibility] = field(
        default_factory=dict[SectionPath, SectionVisibility]
    )

    def changed(self, changes: Mapping[SectionPath, SectionVisibility]) -> "SectionDecisions":
        """Returns the decisions after the model made `changes`; both share the cached results."""
        return SectionDecisions(
            {**self.overrides, **changes}, {**self.opened, **changes}, self.enabled, self.visibility
        )

    def copy(self) -> "SectionDecisions":
        """Returns equal decisions for another conversation, which caches its own results."""
        return SectionDecisions(
            self.overrides, self.opened, dict(self.enabled), dict(self.visibility)
        )

    def __reduce__(self) -> tuple[object, ...]:  # a read-only mapping cannot be pickled
        values = dict(self.overrides), dict(self.opened), self.enabled, self.visibility
        return SectionDecisions, values
