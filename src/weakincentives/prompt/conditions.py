"""Conditions of sections, brought to one signature when a template is built."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from ..protocols import StateView
from ..visibility import SectionPath
from .errors import PromptRenderError

__all__ = ["BoundSelector", "bind_selector"]

_FORMS = "(), (*, session), (params) or (params, *, session)"


class BoundSelector(NamedTuple):
    """A selector as one callable of params and session, either of which may be `None`.

    What it takes is what its answer can depend on.
    """

    selector: Callable[..., object]
    needs_params: bool
    needs_session: bool

    def __call__(self, params: object, session: StateView | None, path: SectionPath) -> object:
        """The selector's answer. Whatever it raises becomes a `PromptRenderError` with `path`."""
        selector = self.selector
        try:
            if self.needs_params:
                return selector(params, session=session) if self.needs_session else selector(params)
            return selector(session=session) if self.needs_session else selector()
        except Exception as error:
            unread = self.needs_session and session is None
            hint = (
                "; it reads the session and none was given, use render(session=…)" if unread else ""
            )
            raise PromptRenderError(
                f"a selector raised {type(error).__name__}: {error}{hint}", section_path=path
            ) from error


# Any: selectors come in four signatures; which one this is, is found out here.
def bind_selector(selector: Callable[..., Any]) -> BoundSelector:
    """Brings `selector` to one signature.

    Raises `TypeError` for any form but the four that sections allow.
    """
    if not callable(selector):
        raise TypeError(
            f"{selector!r} is neither a constant nor a function; use a function of {_FORMS}"
        )
    if inspect.iscoroutinefunction(selector) or inspect.iscoroutinefunction(
        type(selector).__call__
    ):
        raise TypeError(
            f"{selector!r} is a coroutine function, and rendering awaits nothing; use a plain function"
        )
    try:
        parameters = inspect.signature(selector).parameters.values()
    except ValueError as error:
        raise TypeError(
            f"the signature of {selector!r} cannot be read; wrap it in a function of {_FORMS}"
        ) from error
    positional = [
        one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    keyword = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    if (
        len(positional) + len(keyword) != len(parameters)
        or len(positional) > 1
        or keyword not in ([], ["session"])
    ):
        raise TypeError(f"{selector!r} takes {inspect.signature(selector)}; use {_FORMS}")
    return BoundSelector(selector, needs_params=bool(positional), needs_session=bool(keyword))
