"""The base class of the library's exceptions, and the errors that all packages share.

    WeakIncentivesError
    ├── the author must act     runs                ConcurrentRunError
    │                           prompt.errors       PromptValidationError, PromptRenderError,
    │                                               OverridesStoreError
    │                           resources           ResourceError
    │                           evaluation          ChangedRunError
    │                           contrib.durable     WaitingRunsError
    │                           contrib.mcp         LockError
    │                           contrib.skills      SkillError
    │                           evals               ComparisonError, CaseFileError
    ├── the model must act      prompt.errors       ToolValidationError, OutputParseError,
    │                                               OutputRejected
    │                           filesystem          PathError, FilesystemLimitError
    │                           contrib.mcp         ServerEndedError
    ├── the data must change    errors              SerdeError
    │                           content             ContentError
    │                           evals               ScoreError
    ├── the provider failed     evaluation.errors   PromptEvaluationError, ThrottleError
    ├── a limit was reached     evaluation.errors   DeadlineExceededError, BudgetExceededError,
    │                                               TurnLimitError, DepthLimitError
    │                           evaluation          ExpansionLimitError
    ├── a person must act       evaluation          RunSuspended
    └── control flow            prompt.errors       VisibilityExpansionRequired

The model's own mistakes, such as an unknown tool or invalid arguments, are reported to the model
and never raised.
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
    """The base class of all exceptions in this library."""


class ControlFlow(WeakIncentivesError):
    """The base class of exceptions that redirect an evaluation; they commit transactions."""


class ValidationIssue(NamedTuple):
    """A mistake in some data: `path` is its location, and `message` describes the mistake.

    The path consists of keys and indexes; it is empty for the value as a whole.
    """

    path: tuple[str | int, ...]
    message: str

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.path))}: {self.message}" if self.path else self.message


class SerdeError(WeakIncentivesError, ValueError):
    """Data does not match its type, or JSON cannot represent a value; `issues` lists all mistakes.

    The message names fields and rules but never quotes the data, so it can be shown to a model.
    """

    def __init__(self, subject: str, issues: tuple[ValidationIssue, ...]) -> None:
        super().__init__(subject, issues)
        self.subject = subject
        self.issues = issues

    def __str__(self) -> str:
        return f"{self.subject}: " + "; ".join(map(str, self.issues))


def copy_error[E: WeakIncentivesError](error: E, **attributes: object) -> E:
    """Returns a copy of `error` with other `attributes`; keeps its chain and traceback.

    Raising the copy in `__exit__` replaces its context; set the context again afterwards.
    """
    # Calls neither the constructor nor `__reduce__`, because a subclass may take other arguments.
    kind = type(error)
    new = next(
        method
        for base in kind.__mro__
        if isinstance(method := vars(base).get("__new__"), BuiltinFunctionType)
    )
    twin: E = new(kind, *error.args)
    twin.args = error.args
    for member in [member for base in kind.__mro__ for member in vars(base).values()]:
        if isinstance(member, MemberDescriptorType):  # `__slots__` and fields of `OSError`
            with suppress(AttributeError):  # it has no value
                member.__set__(twin, member.__get__(error))
    vars(twin).update(vars(error), **attributes)
    twin.__cause__, twin.__context__ = error.__cause__, error.__context__
    twin.__suppress_context__ = error.__suppress_context__
    return twin.with_traceback(error.__traceback__)


def message_of(error: BaseException) -> str:
    """Returns the text of `error`, or its class name if the text is empty or cannot be read.

    The text of a `KeyError` is only its key, so the class name is put before it.
    """
    try:
        text = plain_text(str(error))
        if text and type(error).__str__ is KeyError.__str__:
            return f"{type(error).__name__}: {text}"
        return text if text.strip() else type(error).__name__
    except Exception:  # the `__str__` of a user-defined exception may do anything
        return type(error).__name__


def missing_extra(user: str, library: str, extra: str) -> ImportError:
    """Returns the error for a missing `library` that `user` needs and `extra` installs."""
    return ImportError(
        f"{user} needs {library}; run pip install '.[{extra}]' in a checkout of weakincentives "
        "(the package of this name on PyPI is another project)"
    )


def plain_text(text: str) -> str:
    """Returns `text` as an exact `str`; a subclass of `str` may override every method."""
    return str.__str__(text)
