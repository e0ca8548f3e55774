"""When a tool call needs a person's approval: what tools and sections declare about it."""

from collections.abc import Callable
from typing import Literal, get_args

from ..protocols import StateView
from ..signatures import is_coroutine_function, selector_form
from .context import ToolContext
from .errors import PromptValidationError

__all__ = ["Approval", "ApprovalMode", "approval_mode", "check_approval"]

type ApprovalMode = Literal["arguments", "effects"]
"""What a person approves before a call counts: its arguments, or what it would change."""

# `...`: a selector takes nothing, the params, and by keyword the session or the context.
# str: type checkers read `return "effects" if … else None` as a `str`; the value is checked later.
type Approval = ApprovalMode | Callable[..., str | None]
"""A mode, or a function that returns the mode of one call, `None` for one that needs no approval.

The function takes any of the call's params, by position, and `session` and `context`, by keyword.
"""

_MODES = get_args(ApprovalMode.__value__)
_NAMES = {"session", "context"}
_FORMS = "(), (params), (*, session), (*, context) or a combination"


def check_approval(subject: str, approval: object) -> None:
    """Raises `PromptValidationError` unless `approval` is `None` or an `Approval`."""
    if approval is None or approval in _MODES:
        return
    if not callable(approval):
        raise PromptValidationError(
            f"{subject}: approval must be 'arguments', 'effects' or a function, got {approval!r}"
        )
    if is_coroutine_function(approval):
        raise PromptValidationError(
            f"{subject}: approval= must be a plain function, got a coroutine function"
        )
    try:
        selector_form(approval, _NAMES)
    except TypeError as error:
        raise PromptValidationError(
            f"{subject}: approval= must take {_FORMS}, got a function that {error}"
        ) from None


def approval_mode(
    approval: Approval | None, params: object, session: StateView, context: ToolContext
) -> ApprovalMode | None:
    """Returns the mode for one call; raises what a selector raises, and `TypeError` for others."""
    if not callable(approval):
        return approval
    needs_params, names = selector_form(approval, _NAMES)
    args = (params,) if needs_params else ()
    values = {"session": session, "context": context}
    match approval(*args, **{name: values[name] for name in names}):
        case None | "arguments" | "effects" as mode:
            return mode
        case other:
            raise TypeError(f"approval= must return 'arguments', 'effects' or None, got {other!r}")
