"""Checks the handlers of tools when a tool is built, and reads their types."""

import inspect
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from itertools import takewhile
from types import MethodType, NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from ..record_types import field_names, is_typed_dict, record_class
from ..signatures import signature_of
from .errors import PromptValidationError
from .tool_result import ToolResult

__all__ = ["AnyHandler", "check_handler", "description_of", "find_types"]

type AnyHandler = Callable[..., Any]  # a handler whose types are not known yet


def description_of(handler: AnyHandler | None) -> str:
    """Returns the first paragraph of a handler's docstring in one line; `""` without one."""
    docstring = getattr(handler, "__doc__", None) if inspect.isroutine(handler) else None
    lines = takewhile(str.strip, (docstring or "").strip().splitlines())
    return " ".join([line.strip() for line in lines])


def check_handler(subject: str, handler: AnyHandler, first: str = "params: Params") -> None:
    """Raises `PromptValidationError` unless `handler` can be called with a value and a context."""
    name = _handler_name(handler)
    try:
        if isinstance(handler, MethodType):
            yields = _method_yields(handler.__func__)
        else:
            signature_of(handler, follow_wrapped=False).bind(None, context=None)
            yields = _yields(handler) or _yields(type(handler).__call__)
    except (TypeError, ValueError) as error:
        raise PromptValidationError(
            f"{subject}: handler {name} cannot be called as "
            f"handler({first.partition(':')[0]}, context=…) ({error}); "
            f"declare it as def {name}({first}, *, context: ToolContext)"
        ) from error
    if yields:
        raise PromptValidationError(
            f"{subject}: handler {name} must return its result, not yield it"
        )


@lru_cache(maxsize=256)  # the handlers of a hundred foreign tools are methods of one class
def _method_yields(function: Callable[..., object]) -> bool:
    """Returns whether a method yields; raises `TypeError` unless it fits a handler's call."""
    signature_of(function, follow_wrapped=False).bind(None, None, context=None)
    return _yields(function)


def _yields(function: object) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _handler_name(handler: AnyHandler) -> str:
    return getattr(handler, "__name__", type(handler).__name__)


# Any: the types are those that annotations name.
def find_types(
    name: str, handler: AnyHandler | None, params_type: Any, result_type: Any
) -> tuple[Any, Any]:
    """Fills the types that are missing from the handler's annotations.

    Raises `PromptValidationError` when they lack the type of the params, when the handler is
    annotated for other types than the declared ones, or to return anything but a `ToolResult`.
    """
    takes: Any = None
    returned: Any = None
    problem = "there is no handler to take the types from"
    if handler is not None:
        # `signature` follows decorators to the wrapped function, which may take no params
        first = next(iter(signature_of(handler).parameters), "params")
        problem = f"handler {_handler_name(handler)} has no type annotation for {first!r}"
        function = _annotated_function(handler)
        try:
            hints = get_type_hints(function)
            takes, returned = hints.get(first), hints.get("return")
        except Exception as error:  # whatever an annotation raises when it is evaluated
            problem = (
                f"the annotations of handler {_handler_name(handler)} cannot be read ({error})"
            )
        # a decorator copies the annotations of the wrapped function, and may convert its values
        if not hasattr(function, "__wrapped__"):
            _check_returned(name, handler, returned)
            _check_annotations(name, handler, (takes, params_type), (returned, result_type))
    params_type = params_type or takes
    if params_type is None:
        remedy = "declare the types: Tool[Params, Result](…) or params_type=Params"
        raise PromptValidationError(f"tool {name!r}: {problem}; {remedy}")
    return params_type, _result_in(returned) if result_type is None else result_type


def _annotated_function(handler: AnyHandler) -> AnyHandler:
    """Returns the function whose annotations are those of a handler."""
    function = handler.__func__ if isinstance(handler, MethodType) else handler
    function = function.func if isinstance(function, partial) else function
    return function if inspect.isroutine(function) else type(function).__call__


def _result_in(returned: Any) -> Any:  # Any: as above
    """Returns `R` for the annotation `ToolResult[R]`."""
    return get_args(returned)[0] if get_origin(returned) is ToolResult else None


# Any: as above
def _check_annotations(
    name: str, handler: AnyHandler, params: tuple[Any, Any], result: tuple[Any, Any]
) -> None:
    """Raises `PromptValidationError` for a handler annotated for other types than the tool's."""
    (takes, params_type), (returned, result_type) = params, result
    returns = _result_in(returned)
    for problem, annotated, declared, fits in (
        ("takes", takes, params_type, _fits(params_type, takes)),
        ("returns ToolResult of", returns, result_type, _fits(returns, result_type)),
    ):
        if not fits:
            raise PromptValidationError(
                f"tool {name!r}: handler {_handler_name(handler)} {problem} "
                f"{_type_name(annotated)}, but the tool is declared with {_type_name(declared)}; "
                "use the same type in both places"
            )


def _type_name(kind: Any) -> str:  # Any: as above
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _fits(kind: Any, wanted: Any) -> bool:  # Any: as above
    """Tells whether values of `kind` can be of the type `wanted`, as far as their classes tell."""
    kind, wanted = record_class(kind), record_class(wanted)
    for union in (wanted, kind):
        if isinstance(union, UnionType) or get_origin(union) is Union:
            members = get_args(union)
            pairs = [(kind, member) if union is wanted else (member, wanted) for member in members]
            return any(_fits(*pair) for pair in pairs)
    kind, wanted = get_origin(kind) or kind, get_origin(wanted) or wanted
    if Any in (kind, wanted) or kind is object or (kind is int and wanted is float):
        return True
    if is_typed_dict(kind) and is_typed_dict(wanted):
        return kind is wanted or field_names(wanted) <= field_names(kind)
    try:
        return issubclass(*[dict if is_typed_dict(part) else part for part in (kind, wanted)])
    except TypeError:  # no classes, or a protocol
        return True


def _check_returned(name: str, handler: AnyHandler, returned: Any) -> None:  # Any: as above
    if not isinstance(returned, type) or returned in (Any, object):
        return
    if not issubclass(returned, (ToolResult, Awaitable)):
        raise PromptValidationError(
            f"tool {name!r}: handler {_handler_name(handler)} must be annotated to return "
            f"ToolResult[…], got {('None' if returned is NoneType else returned.__name__)}; "
            "return ToolResult(message=…)"
        )
