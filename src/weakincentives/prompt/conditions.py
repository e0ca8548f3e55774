"""Conditions of sections: callables of four forms, brought to one when a template is built."""

import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any, NamedTuple

from ..protocols import StateView
from ..signatures import signature_of
from ..visibility import SectionPath
from .errors import PromptRenderError

__all__ = ["BoundSelector", "bind_selector"]

_POSITIONAL = {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}
_FORMS = "(), (*, session), (params) or (params, *, session)"


class BoundSelector(NamedTuple):
    """A selector as a callable of params and session; it passes on only what the selector takes."""

    selector: Callable[..., object]
    needs_params: bool
    needs_session: bool

    def __call__(self, params: object, session: StateView | None, path: SectionPath) -> object:
        """Returns the answer; raises `PromptRenderError` with `path` if the selector raises."""
        args = (params,) if self.needs_params else ()
        keywords = {"session": session} if self.needs_session else {}
        try:
            return self.selector(*args, **keywords)
        except Exception as error:
            hint = ""
            if self.needs_session and session is None:
                hint = "; it reads the session and none was given, use render(session=…)"
            raise PromptRenderError(
                f"a condition raised {type(error).__name__}: {error}{hint}", section_path=path
            ) from error


# Any: selectors come in four forms, and this is where the form is found.
def bind_selector(selector: Callable[..., Any]) -> BoundSelector:
    """Brings `selector` to one form.

    Raises `TypeError` for any form but the four that sections allow.
    """
    if not callable(selector):
        raise TypeError(
            f"a condition must be a constant or a function of {_FORMS}, got {selector!r}"
        )
    if any(map(inspect.iscoroutinefunction, (selector, type(selector).__call__))):
        raise TypeError(
            "a condition must be a plain function, because rendering does not await, got the "
            f"coroutine function {selector!r}"
        )
    try:
        signature = signature_of(selector)
    except ValueError as error:
        raise TypeError(
            f"cannot read the signature of {selector!r}; wrap it in a function of {_FORMS}"
        ) from error
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    positional = sum(kind in _POSITIONAL for kind in kinds.values())
    needs_session = kinds.get("session") is Parameter.KEYWORD_ONLY
    if positional > 1 or positional + needs_session != len(kinds):
        raise TypeError(
            f"a condition must take {_FORMS}, got {selector!r}, which takes {signature}"
        )
    return BoundSelector(selector, needs_params=positional == 1, needs_session=needs_session)
