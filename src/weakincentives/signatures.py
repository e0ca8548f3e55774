"""Signatures of functions that users pass, such as handlers and selectors."""

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import wraps
from inspect import Parameter
from typing import Any, cast

__all__ = [
    "AnyFunction",
    "annotations_of",
    "argument_remedy",
    "check_names",
    "did_you_mean",
    "is_coroutine_function",
    "selector_form",
    "signature_of",
    "with_remedies",
]

_POSITIONAL = {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}
_NAMEABLE = {Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD}

# What other libraries call some arguments.
_SYNONYMS = {
    "message_history": "conversation",
    "model": "adapter",
    "cost_limit": "max_cost",
    "request_limit": "max_calls",
    "stop_sequences": "stop",
    "thinking": "reasoning",
    "tool_calls_limit": "max_tool_calls",
    "total_tokens_limit": "max_tokens",
    "usage_limits": "budget",
}

# Where this library takes the arguments that other libraries pass to an agent or a run.
_ELSEWHERE = {
    "api_key": "pass it to the adapter, such as adapter_for(model, api_key=…)",
    "base_url": "pass it to the adapter, such as adapter_for(model, base_url=…)",
    "instructions": "write them in a section, such as MarkdownSection(title=…, template=…)",
    "output_type": "declare the output on the template, such as PromptTemplate[Answer](…)",
    "system_prompt": "write it in a section, such as MarkdownSection(title=…, template=…)",
    "tools": "pass them to a section, such as MarkdownSection(title=…, template=…, tools=[…])",
}
_SETTINGS = {"max_output_tokens", "reasoning", "temperature", "tool_choice", "top_p"}

type AnyFunction = Callable[..., object]
"""A function that users pass, whose signature is read before it is called."""


def signature_of(function: AnyFunction, *, follow_wrapped: bool = True) -> inspect.Signature:
    """Like `inspect.signature`, but annotations may contain undefined names.

    Python 3.14 evaluates annotations only at this point, and a module may import the names only for
    type checkers. Raises `ValueError` or `TypeError` if the callable has no signature.
    """
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(
            function, follow_wrapped=follow_wrapped, annotation_format=Format.FORWARDREF
        )
    return inspect.signature(function, follow_wrapped=follow_wrapped)


def annotations_of(function: AnyFunction) -> Mapping[str, object]:
    """Returns the annotations of a function, which may name what is not defined."""
    if sys.version_info >= (3, 14) and getattr(function, "__annotate__", None) is not None:
        from annotationlib import Format, get_annotations

        return get_annotations(function, format=Format.FORWARDREF)
    annotations: Mapping[str, object] = getattr(function, "__annotations__", {})
    return annotations


def is_coroutine_function(function: object) -> bool:
    """Returns whether calling `function`, or an object with `__call__`, returns a coroutine."""
    return any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))


def selector_form(
    selector: AnyFunction, names: AbstractSet[str], *, keyword_only: bool = False
) -> tuple[bool, frozenset[str]]:
    """Returns whether `selector` takes params by position, and which of `names` it takes by name.

    With `keyword_only`, a positional parameter receives the params even if it has one of the names.
    Raises `TypeError` for any other parameters, and `ValueError` if the callable has no signature.
    """
    signature = signature_of(selector)
    parameters = signature.parameters.values()
    by_name = {Parameter.KEYWORD_ONLY} if keyword_only else _NAMEABLE
    taken = {
        parameter.name
        for parameter in parameters
        if parameter.name in names and parameter.kind in by_name
    }
    others = [parameter.kind for parameter in parameters if parameter.name not in taken]
    if len(others) > 1 or not _POSITIONAL.issuperset(others):
        raise TypeError(f"takes {signature}")
    return bool(others), frozenset(taken)


def check_names(function: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises `TypeError` for a keyword argument that `function` does not take."""
    names = list(known)
    for name in given:
        if name not in names:
            remedy = argument_remedy(name, names, "it takes")
            raise TypeError(f"{function} got an unexpected keyword argument {name!r}; {remedy}")


def with_remedies[F: AnyFunction](constructor: F) -> F:
    """Decorates an `__init__` without `**`, so that an unknown name raises an error with a remedy.

    The `TypeError` names the class of the instance, which may be a subclass.
    """
    init: Any = constructor  # Any: a function, of which this reads the parameters
    code = init.__code__
    names = code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]
    known = frozenset(names)

    @wraps(init)
    def construct(self: object, *args: object, **given: object) -> None:
        if not known.issuperset(given):
            check_names(f"{type(self).__name__}()", given, names)
        init(self, *args, **given)

    return cast(F, construct)


def argument_remedy(name: str, known: Iterable[str], otherwise: str = "use one of") -> str:
    """Returns the remedy for an unknown argument: where it belongs, or that of `did_you_mean`."""
    names = list(known)
    if name in _SETTINGS and "settings" in names:
        return f"pass settings=ModelSettings({name}=…)"
    return _ELSEWHERE.get(name) or did_you_mean(name, names, otherwise)


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "use one of") -> str:
    """Returns the remedy for an unknown name: the nearest known one, or all of them."""
    from difflib import get_close_matches

    names = list(known)
    synonym = _SYNONYMS.get(name)
    nearest = [synonym] if synonym in names else get_close_matches(name, names, 1)
    return f"did you mean {nearest[0]!r}?" if nearest else f"{otherwise} {', '.join(names)}"
