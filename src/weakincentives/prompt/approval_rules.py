"""Rules with which tools and sections declare that calls need approval."""

from collections.abc import Callable
from typing import Literal, get_args

from ..protocols import StateView
from ..signatures import is_coroutine_function, selector_form
from .context import ToolContext
from .errors import PromptValidationError

__all__ = ["Approval", "ApprovalMode", "approval_mode", "check_approval"]

type ApprovalMode = Literal["arguments", "effects"]
"""The part of a call that is approved in advance: only its arguments, or also its effects."""

# `...`: a selector can take the params, and the session and the context by keyword.
# str: type checkers infer `str` for `return "effects" if … else None`; the value is checked later.
type Approval = ApprovalMode | Callable[..., str | None]
"""A mode, or a function that returns a call's mode, or `None` if it does not need approval.

The function can take the call's params by position, and `session` and `context` by keyword.
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
    """Returns the mode for one call.

    Raises the selector's errors, and `TypeError` if the selector returns neither a mode nor `None`.
    """
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
