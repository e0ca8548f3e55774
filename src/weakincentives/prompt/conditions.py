"""Converts the four forms of a section's condition to a single form when a template is built."""

from typing import NamedTuple

from ..protocols import StateView
from ..signatures import AnyFunction, is_coroutine_function, selector_form
from ..visibility import SectionPath
from .errors import PromptRenderError

__all__ = ["BoundSelector", "bind_selector"]

_FORMS = "(), (*, session), (params) or (params, *, session)"


class BoundSelector(NamedTuple):
    """Calls a selector with the params and the session, passing only arguments that it accepts."""

    selector: AnyFunction
    needs_params: bool
    needs_session: bool

    def __call__(self, params: object, session: StateView | None, path: SectionPath) -> object:
        """Returns the selector's result; raises `PromptRenderError` with `path` if it fails."""
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


def bind_selector(selector: AnyFunction) -> BoundSelector:
    """Returns `selector` in the form that all callers use.

    Raises `TypeError` if it does not have one of the four forms that sections allow; the error's
    text completes the phrase "must be".
    """
    if not callable(selector):
        raise TypeError(f"a function of {_FORMS}, got {selector!r}")
    if is_coroutine_function(selector):
        raise TypeError(
            "a plain function, because rendering does not await, got the coroutine function "
            f"{selector!r}"
        )
    try:
        needs_params, names = selector_form(selector, {"session"}, keyword_only=True)
    except ValueError as error:
        raise TypeError(
            f"a function with a readable signature, got {selector!r}; wrap it in a function of "
            f"{_FORMS}"
        ) from error
    except TypeError as error:
        raise TypeError(f"a function of {_FORMS}, got {selector!r}, which {error}") from None
    return BoundSelector(selector, needs_params=needs_params, needs_session=bool(names))
