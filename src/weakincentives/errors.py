"""The base of every exception that the library raises, and the errors that all packages share.

    WeakIncentivesError
    ├── the author must act     runs                ConcurrentRunError
    │                           prompt.errors       PromptValidationError, PromptRenderError,
    │                                               OverridesStoreError
    │                           resources           ResourceError
    │                           evaluation          ChangedRunError
    │                           contrib.durable     WaitingRunsError
    │                           contrib.mcp         LockError
    │                           contrib.skills      SkillError
    ├── the model must act      prompt.errors       ToolValidationError, OutputParseError,
    │                                               OutputRejected
    │                           filesystem          PathError, FilesystemLimitError
    │                           contrib.mcp         ServerEndedError
    ├── the data must change    errors              SerdeError
    │                           content             ContentError
    ├── the provider failed     evaluation.errors   PromptEvaluationError, ThrottleError
    ├── a limit was reached     evaluation.errors   DeadlineExceededError, BudgetExceededError,
    │                                               TurnLimitError, DepthLimitError
    │                           evaluation          ExpansionLimitError
    ├── a person must act       evaluation          RunSuspended
    └── control flow            prompt.errors       VisibilityExpansionRequired

The model's own mistakes, such as an unknown tool or broken arguments, are answered to the model and
never raised.
"""

from contextlib import suppress
from types import BuiltinFunctionType, MemberDescriptorType
from typing import NamedTuple

__all__ = [
    "ControlFlow",
    "SerdeError",
    "ValidationIssue",
    "WeakIncentivesError",
    "copy_error",
    "message_of",
    "missing_extra",
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
    """Returns a copy of `error` with other `attributes`, and with its chain and traceback.

    A `raise` in `__exit__` replaces the context of the copy; set it again after that.
    """
    # Neither constructors nor `__reduce__` run: a subclass may take other arguments.
    kind = type(error)
    new = next(
        method
        for base in kind.__mro__
        if isinstance(method := vars(base).get("__new__"), BuiltinFunctionType)
    )
    twin: E = new(kind, *error.args)
    twin.args = error.args
    for member in [member for base in kind.__mro__ for member in vars(base).values()]:
        if isinstance(member, MemberDescriptorType):  # `__slots__`, and fields of `OSError`
            with suppress(AttributeError):  # it has no value
                member.__set__(twin, member.__get__(error))
    vars(twin).update(vars(error), **attributes)
    twin.__cause__, twin.__context__ = error.__cause__, error.__context__
    twin.__suppress_context__ = error.__suppress_context__
    return twin.with_traceback(error.__traceback__)


def message_of(error: BaseException) -> str:
    """Returns the text of `error`, or its class's name if the text is empty or cannot be read.

    The text of a `KeyError` is only its key, so the class's name precedes it.
    """
    try:
        text = plain_text(str(error))
        if text and type(error).__str__ is KeyError.__str__:
            return f"{type(error).__name__}: {text}"
        return text if text.strip() else type(error).__name__
    except Exception:  # the `__str__` of a user's exception may do anything
        return type(error).__name__


def missing_extra(user: str, library: str, extra: str) -> ImportError:
    """Returns the error for a `library` that `user` needs and the `extra` installs."""
    return ImportError(
        f"{user} needs {library}; run pip install '.[{extra}]' in a checkout of weakincentives "
        "(the package of this name on PyPI is another project)"
    )


def plain_text(text: str) -> str:
    """Returns `text` as an exact `str`; a subclass of `str` may override every method."""
    return str.__str__(text)
