"""The session state that overrides how sections are shown, and the event that changes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from .visibility import SectionPath, SectionVisibility

__all__ = ["SetVisibilityOverride", "VisibilityOverrides"]

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
