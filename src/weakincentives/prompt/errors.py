"""Errors about prompts, and the signal that requests sections; see `weakincentives.errors`."""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from ..errors import ControlFlow, WeakIncentivesError, copy_error
from ..visibility import SectionDecisions, SectionPath, SectionVisibility

if TYPE_CHECKING:
    from ..limits import RunUsage

__all__ = [
    "OutputParseError",
    "OutputRejected",
    "OverridesStoreError",
    "PromptError",
    "PromptRenderError",
    "PromptValidationError",
    "ToolError",
    "ToolValidationError",
    "VisibilityExpansionRequired",
]


class PromptError(WeakIncentivesError):
    """Base class of errors about prompts."""


class _PlacedError(PromptError):
    """An error in one section of a prompt, or in a `$placeholder` of the section's text."""

    def __init__(
        self,
        message: str,
        *,
        detail: str = "",
        section_path: SectionPath | None = None,
        placeholder: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.section_path = section_path
        self.placeholder = placeholder

    def __str__(self) -> str:
        message = f"{self.message} {self.detail}" if self.detail else self.message
        places = [f"section {'.'.join(self.section_path)!r}"] if self.section_path else []
        places += [f"placeholder {self.placeholder!r}"] if self.placeholder else []
        return f"{message} ({', '.join(places)})" if places else message


class PromptValidationError(_PlacedError):
    """A prompt's definition or bindings are invalid; raised before anything is sent."""


class PromptRenderError(_PlacedError):
    """A bound prompt cannot be rendered: params are missing, or a selector or template failed.

    If params are missing, `missing` is their type.
    """

    missing: type | None = None


class ToolError(PromptError):
    """An expected failure of a tool: the model receives the message, and changes are undone."""


class ToolValidationError(ToolError):
    """A tool rejected its arguments; the model receives the message as a failed result."""


class OutputParseError(PromptError):
    """A final answer does not match the declared output; `raw_response` is the complete answer."""

    def __init__(self, message: str, *, raw_response: str = "") -> None:
        super().__init__(message)
        self.raw_response = raw_response


class OutputRejected(PromptError):
    """A template's `accept` rejected an answer; the model receives the message to correct it."""


class OverridesStoreError(PromptError):
    """Stored overrides cannot be read or written; the file is left unchanged.

    The message names the prompt and the tag.
    """


class VisibilityExpansionRequired(PromptError, ControlFlow):
    """The model requests sections that only a new evaluation can open.

    `requested_overrides` maps section paths to `FULL`; pass it to `render(visibility_overrides=…)`.
    `section_keys` are the keys as the model wrote them. The session keeps its state. Adapters that
    use the library's own loop add the evaluation's usage and section decisions with
    `with_progress`.
    """

    def __init__(
        self,
        message: str = "Visibility expansion required",
        *,
        requested_overrides: Mapping[SectionPath, SectionVisibility],
        reason: str,
        section_keys: tuple[str, ...],
    ) -> None:
        from ..limits import RunUsage

        super().__init__(message)
        self._overrides = MappingProxyType(dict(requested_overrides))
        self._reason = reason
        self._section_keys = section_keys
        self._spent = RunUsage()
        self._turns = 0
        self._decisions: SectionDecisions | None = None

    @property
    def requested_overrides(self) -> Mapping[SectionPath, SectionVisibility]:
        """The requested visibility by section path, always `FULL`."""
        return self._overrides

    @property
    def reason(self) -> str:
        """Why the sections are needed, in the model's words."""
        return self._reason

    @property
    def section_keys(self) -> tuple[str, ...]:
        """The keys exactly as the model wrote them."""
        return self._section_keys

    @property
    def run_usage(self) -> "RunUsage":
        """The usage of the interrupted evaluation, including nested runs."""
        return self._spent

    @property
    def turns(self) -> int:
        """The number of requests in the interrupted evaluation, excluding nested runs."""
        return self._turns

    @property
    def decisions(self) -> SectionDecisions | None:
        """The section decisions of the interrupted evaluation, if its adapter provides them."""
        return self._decisions

    def with_progress(
        self, run_usage: "RunUsage", decisions: SectionDecisions | None, turns: int
    ) -> Self:
        """Returns a copy with the usage and the section decisions of the interrupted evaluation."""
        return copy_error(self, _spent=run_usage, _decisions=decisions, _turns=turns)

    def __str__(self) -> str:
        keys = ", ".join(".".join(path) for path in self._overrides)
        return f"Visibility expansion required for sections: {keys}. Reason: {self._reason}"

    def __reduce__(self) -> tuple[object, ...]:
        rebuild = partial(
            type(self),
            requested_overrides=dict(self._overrides),
            reason=self._reason,
            section_keys=self._section_keys,
        )
        names = "_spent", "_decisions", "_turns"
        return rebuild, self.args, {name: getattr(self, name) for name in names}
