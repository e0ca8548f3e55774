"""Conditions of sections, brought to one signature when a template is built."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ..ports import StateView
from ..visibility import SectionPath
from .errors import PromptRenderError

__all__ = ["BoundSelector", "SelectorArity", "normalise"]

_FORMS = "(), (*, session), (params) or (params, *, session)"


class SelectorArity(Enum):
    """What a selector asks for, and so what its answer can depend on."""

    NOTHING = "nothing"
    SESSION = "session"
    PARAMS = "params"
    PARAMS_AND_SESSION = "params and session"


@dataclass(frozen=True, slots=True)
class BoundSelector:
    """A selector as one callable of params and session, either of which may be `None`."""

    arity: SelectorArity
    call: Callable[[object, StateView | None], object]

    @property
    def needs_params(self) -> bool:
        """Whether params must be found before it is called."""
        return self.arity in (SelectorArity.PARAMS, SelectorArity.PARAMS_AND_SESSION)

    def __call__(self, params: object, session: StateView | None, path: SectionPath) -> object:
        """The selector's answer. Whatever it raises becomes a `PromptRenderError` with `path`."""
        try:
            return self.call(params, session)
        except Exception as error:
            hint = "; it reads the session and none was given, use render(session=…)" if session is None else ""
            if self.arity in (SelectorArity.NOTHING, SelectorArity.PARAMS):
                hint = ""
            raise PromptRenderError(
                f"a selector raised {type(error).__name__}: {error}{hint}", section_path=path
            ) from error


# Any: selectors come in four signatures; which one this is, is found out here.
def normalise(selector: Callable[..., Any]) -> BoundSelector:
    """Brings `selector` to one signature. Raises `TypeError` for any form but the four that sections allow."""
    try:
        parameters = inspect.signature(selector).parameters.values()
    except ValueError as error:
        raise TypeError(f"the signature of {selector!r} cannot be read; wrap it in a function of {_FORMS}") from error
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    keyword = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    if len(positional) + len(keyword) != len(parameters) or len(positional) > 1 or keyword not in ([], ["session"]):
        raise TypeError(f"{selector!r} takes {inspect.signature(selector)}; use {_FORMS}")
    match bool(positional), bool(keyword):
        case False, False:
            return BoundSelector(SelectorArity.NOTHING, lambda _params, _session: selector())
        case False, True:
            return BoundSelector(SelectorArity.SESSION, lambda _params, session: selector(session=session))
        case True, False:
            return BoundSelector(SelectorArity.PARAMS, lambda params, _session: selector(params))
        case _:
            return BoundSelector(
                SelectorArity.PARAMS_AND_SESSION, lambda params, session: selector(params, session=session)
            )
