"""The root of every exception that the library raises, and the one for data that does not fit its
type.

    WeakIncentivesError
    ├── the author must act     prompt.errors     PromptValidationError, PromptRenderError,
    │                                             OverridesStoreError
    │                           resources         ResourceError
    │                           contrib.durable   ReplayError, StepFailedError
    ├── the model must act      prompt.errors     ToolValidationError, OutputParseError
    │                           filesystem        PathError, FilesystemLimitError
    ├── the data must change    errors            SerdeError
    ├── the provider failed     adapters.errors   PromptEvaluationError, ThrottleError
    ├── a limit was reached     adapters.errors   DeadlineExceededError, BudgetExceededError,
    │                                             TurnLimitError
    │                           runtime           ExpansionLimitError
    └── control flow            prompt.errors     VisibilityExpansionRequired

What a model does wrong while it works (an unknown tool, broken arguments) is answered to the model
and never raised.
"""

from typing import NamedTuple

__all__ = [
    "ControlFlow",
    "SerdeError",
    "ValidationIssue",
    "WeakIncentivesError",
    "copy_error",
    "message_of",
    "plain_text",
]


class WeakIncentivesError(Exception):
    """Base of all exceptions of this library."""


class ControlFlow(WeakIncentivesError):
    """Base of exceptions that steer an evaluation and are no failures: transactions let them pass
    without an undo.
    """


def copy_error[E: WeakIncentivesError](error: E, **attributes: object) -> E:
    """Returns the exception with other `attributes`; its cause and traceback stay."""
    # Neither a constructor nor `__reduce__` runs: a subclass may take other arguments.
    twin = type(error).__new__(type(error), *error.args)
    vars(twin).update(vars(error), **attributes)
    twin.__cause__ = error.__cause__
    return twin.with_traceback(error.__traceback__)


class ValidationIssue(NamedTuple):
    """One thing that is wrong with some data: where (`path`, empty for the whole) and what
    (`message`).
    """

    path: tuple[str | int, ...]
    message: str

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.path))}: {self.message}" if self.path else self.message


class SerdeError(WeakIncentivesError, ValueError):
    """Data that does not fit its type, or a value that JSON cannot hold; `faults` lists everything
    that is wrong.

    The message names fields and rules, never the offending values, so that it can be shown to a
    model.
    """

    def __init__(self, subject: str, issues: tuple[ValidationIssue, ...]) -> None:
        super().__init__(subject, issues)
        self.subject = subject
        self.issues = issues

    def __str__(self) -> str:
        return f"{self.subject}: " + "; ".join(map(str, self.issues))


def message_of(error: BaseException) -> str:
    """The error's own text, or the name of its class where it has none or raises instead of giving
    it.
    """
    try:
        return plain_text(str(error)) or type(error).__name__
    except Exception:  # the `__str__` of a user's exception may do anything
        return type(error).__name__


def plain_text(text: str) -> str:
    """`text` as a `str` proper: a subclass may override every method that a caller relies on."""
    return str.__str__(text)
