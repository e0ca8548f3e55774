"""How sections are shown: the choices, a session's overrides, and one conversation's decisions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

__all__ = [
    "SectionDecisions",
    "SectionPath",
    "SectionVisibility",
    "SetVisibilityOverride",
    "VisibilityOverrides",
]

type SectionPath = tuple[str, ...]
"""Keys from a root section down to the section meant, such as `("context", "history")`."""


class SectionVisibility(Enum):
    """How a section is shown: `FULL` with its body, tools and children; `SUMMARY` with its summary
    alone.
    """

    FULL = "full"
    SUMMARY = "summary"


_NOTHING: Mapping[SectionPath, SectionVisibility] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class VisibilityOverrides:
    """Visibility by section path, kept as session state; it beats the sections' own selectors.

    Keyed by path alone: two prompts in one session share it, and paths that a prompt does not have
    are ignored.
    """

    overrides: Mapping[SectionPath, SectionVisibility] = field(default_factory=lambda: _NOTHING)

    def __post_init__(self) -> None:
        object.__setattr__(self, "overrides", MappingProxyType(dict(self.overrides)))

    def __reduce__(
        self,
    ) -> tuple[type["VisibilityOverrides"], tuple[dict[SectionPath, SectionVisibility]]]:
        return VisibilityOverrides, (dict(self.overrides),)

    def get(self, path: SectionPath) -> SectionVisibility | None:
        """The override for `path`, or `None`."""
        return self.overrides.get(path)

    def with_override(
        self, path: SectionPath, visibility: SectionVisibility
    ) -> "VisibilityOverrides":
        """A copy in which `path` has `visibility`."""
        return VisibilityOverrides({**self.overrides, path: visibility})


@dataclass(frozen=True, slots=True, kw_only=True)
class SetVisibilityOverride:
    """Event: from now on the section at `path` is shown as `visibility`. Every `Session` folds it."""

    path: SectionPath
    visibility: SectionVisibility

    def __post_init__(self) -> None:
        if not isinstance(self.path, tuple):
            raise TypeError(
                f"path is {self.path!r}; give a tuple of keys, such as ('guide', 'details')"
            )


class SectionDecisions:
    """What one conversation has decided about its sections; plain values, which can be pickled.

    `overrides` beat the sections' own visibility. `opened` holds what the model has opened and
    closed: in this conversation, and before it as far as the session remembers. `enabled` and
    `visibility` keep the answers of conditions, so that each condition is asked once in a
    conversation; they grow when further ones are asked.
    """

    __slots__ = ("enabled", "opened", "overrides", "visibility")

    def __init__(
        self,
        overrides: Mapping[SectionPath, SectionVisibility],
        opened: Mapping[SectionPath, SectionVisibility],
        enabled: dict[SectionPath, bool] | None = None,
        visibility: dict[SectionPath, SectionVisibility] | None = None,
    ) -> None:
        self.overrides = overrides
        self.opened = opened
        self.enabled: dict[SectionPath, bool] = {} if enabled is None else enabled
        self.visibility: dict[SectionPath, SectionVisibility] = (
            {} if visibility is None else visibility
        )

    def changed(self, changes: Mapping[SectionPath, SectionVisibility]) -> "SectionDecisions":
        """The decisions after the model opened and closed what `changes` says; both share the
        answers.
        """
        return SectionDecisions(
            {**self.overrides, **changes}, {**self.opened, **changes}, self.enabled, self.visibility
        )

    def copy(self) -> "SectionDecisions":
        """The same decisions for another conversation, or for a look at what could be: answers are
        kept apart.
        """
        return SectionDecisions(
            self.overrides, self.opened, dict(self.enabled), dict(self.visibility)
        )

    def __reduce__(self) -> tuple[object, ...]:  # a read-only mapping cannot be pickled
        values = dict(self.overrides), dict(self.opened), self.enabled, self.visibility
        return SectionDecisions, values
