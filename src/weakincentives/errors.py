"""The base of every exception that the library raises, and the errors that all packages share.

    WeakIncentivesError
    ├── the author must act     prompt.errors       PromptValidationError, PromptRenderError,
    │                                               OverridesStoreError
    │                           resources           ResourceError
    │                           contrib.durable     ReplayError, StepFailedError
    ├── the model must act      prompt.errors       ToolValidationError, OutputParseError
    │                           filesystem          PathError, FilesystemLimitError
    ├── the data must change    errors              SerdeError
    ├── the provider failed     evaluation.errors   PromptEvaluationError, ThrottleError
    ├── a limit was reached     evaluation.errors   DeadlineExceededError, BudgetExceededError,
    │                                               TurnLimitError
    │                           evaluation          ExpansionLimitError
    └── control flow            prompt.errors       VisibilityExpansionRequired

The model's own mistakes, such as an unknown tool or broken arguments, are answered to the model and
never raised.
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
    """Base of exceptions that redirect an evaluation; a transaction commits when one passes it."""


class ValidationIssue(NamedTuple):
    """One mistake in some data: `path` leads to the place, `message` says what is wrong there.

    The path consists of keys and indexes and is empty for the whole value.
    """

    path: tuple[str | int, ...]
    message: str

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.path))}: {self.message}" if self.path else self.message


class SerdeError(WeakIncentivesError, ValueError):
    """Data does not fit its type, or JSON cannot hold a value; `issues` lists all mistakes.

    The message names fields and rules and never quotes the data, so a model may read it.
    """

    def __init__(self, subject: str, issues: tuple[ValidationIssue, ...]) -> None:
        super().__init__(subject, issues)
        self.subject = subject
        self.issues = issues

    def __str__(self) -> str:
        return f"{self.subject}: " + "; ".join(map(str, self.issues))


def copy_error[E: WeakIncentivesError](error: E, **attributes: object) -> E:
    """Returns a copy of `error` with other `attributes`, and with its cause and traceback."""
    # Neither a constructor nor `__reduce__` runs: a subclass may take other arguments.
    twin = type(error).__new__(type(error), *error.args)
    vars(twin).update(vars(error), **attributes)
    twin.__cause__ = error.__cause__
    return twin.with_traceback(error.__traceback__)


def message_of(error: BaseException) -> str:
    """Returns the text of `error`, or its class's name if the text is empty or cannot be read."""
    try:
        return plain_text(str(error)) or type(error).__name__
    except Exception:  # the `__str__` of a user's exception may do anything
        return type(error).__name__


def plain_text(text: str) -> str:
    """Returns `text` as an exact `str`; a subclass of `str` may override every method."""
    return str.__str__(text)
