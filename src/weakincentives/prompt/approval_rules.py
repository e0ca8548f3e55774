"""When a tool call needs a person's approval: what tools and sections declare about it."""

import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any, Literal, get_args

from ..protocols import StateView
from ..signatures import signature_of
from .context import ToolContext
from .errors import PromptValidationError

__all__ = ["Approval", "ApprovalMode", "approval_mode", "check_approval"]

type ApprovalMode = Literal["arguments", "effects"]
"""What a person approves before a call counts: its arguments, or what it would change."""

# Any: a selector takes nothing, the params, and by keyword the session or the context.
# str: type checkers read `return "effects" if … else None` as a `str`; the value is checked later.
type Approval = ApprovalMode | Callable[..., str | None]
"""A mode, or a function that returns the mode of one call, `None` for one that needs no approval.

The function takes any of the call's params, by position, and `session` and `context`, by keyword.
"""

_MODES = get_args(ApprovalMode.__value__)
_KEYWORDS = {"session", "context"}
_FORMS = "(), (params), (*, session), (*, context) or a combination"


def check_approval(subject: str, approval: object) -> None:
    """Raises `PromptValidationError` unless `approval` is `None` or an `Approval`."""
    if approval is None or approval in _MODES:
        return
    if not callable(approval):
        raise PromptValidationError(
            f"{subject}: approval must be 'arguments', 'effects' or a function, got {approval!r}"
        )
    if any(map(inspect.iscoroutinefunction, (approval, type(approval).__call__))):
        raise PromptValidationError(
            f"{subject}: approval= must be a plain function, got a coroutine function"
        )
    positional, keywords = _parameters(approval)
    if positional > 1 or not keywords <= _KEYWORDS:
        raise PromptValidationError(
            f"{subject}: approval= must take {_FORMS}, got a function of {signature_of(approval)}"
        )


# Any: the params of all tools
def approval_mode(
    approval: Approval | None, params: Any, session: StateView, context: ToolContext
) -> ApprovalMode | None:
    """Returns the mode for one call; raises what a selector raises, and `TypeError` for others."""
    if not callable(approval):
        return approval
    positional, keywords = _parameters(approval)
    values = {"session": session, "context": context}
    match approval(*(params,) * positional, **{name: values[name] for name in keywords}):
        case None | "arguments" | "effects" as mode:
            return mode
        case other:
            raise TypeError(f"approval= must return 'arguments', 'effects' or None, got {other!r}")


def _parameters(function: Callable[..., Any]) -> tuple[int, set[str]]:
    """Returns the number of positional parameters, and the names of the others."""
    parameters = signature_of(function).parameters.values()
    by_position = {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}
    positional = sum(
        parameter.kind in by_position and parameter.name not in _KEYWORDS
        for parameter in parameters
    )
    return positional, {
        parameter.name
        for parameter in parameters
        if parameter.kind not in by_position or parameter.name in _KEYWORDS
    }
