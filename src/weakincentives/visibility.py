"""Whether a section shows its body or its summary, and what one conversation has decided about
that.
"""

from collections.abc import Mapping
from enum import Enum

__all__ = ["SectionDecisions", "SectionPath", "SectionVisibility"]

type SectionPath = tuple[str, ...]
"""Keys from a root section down to the section meant, such as `("context", "history")`."""


class SectionVisibility(Enum):
    """How a section is shown: `FULL` with its body, tools and children; `SUMMARY` with its summary
    alone.
    """

    FULL = "full"
    SUMMARY = "summary"


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
