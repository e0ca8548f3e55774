"""Signatures of functions that users pass, such as handlers and selectors."""

import inspect
import sys
from collections.abc import Callable

__all__ = ["AnyFunction", "signature_of"]

type AnyFunction = Callable[..., object]
"""A function that users pass, whose signature is read before it is called."""


def signature_of(function: AnyFunction, *, follow_wrapped: bool = True) -> inspect.Signature:
    """Like `inspect.signature`, but annotations may name what is not defined.

    Python 3.14 evaluates them here for the first time, and a module may import the names for type
    checkers only. Raises `ValueError` or `TypeError` if there is no signature.
    """
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(
            function, follow_wrapped=follow_wrapped, annotation_format=Format.FORWARDREF
        )
    return inspect.signature(function, follow_wrapped=follow_wrapped)
