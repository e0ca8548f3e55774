"""Tool handlers: their results, and the checks when a tool is created."""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from types import MethodType, NoneType, UnionType
from typing import Any, Protocol, Union, get_args, get_type_hints, runtime_checkable

from .. import serde
from ..content import Document, Image
from ..generics import Parametrized
from ..record_types import AnyType, field_names, is_typed_dict, origin_of, record_class
from ..signatures import AnyFunction, signature_of
from .errors import PromptValidationError

__all__ = [
    "AnyHandler",
    "ToolRenderableResult",
    "ToolResult",
    "check_handler",
    "description_of",
    "find_types",
    "handler_place",
]

type AnyHandler = Callable[..., Any]  # a handler whose types are not known yet


@runtime_checkable
class ToolRenderableResult(Protocol):
    """A result value that renders itself for the model."""

    def render(self) -> str:
        """Returns the text for the model; equal values return equal text."""
        ...


@dataclass(frozen=True, slots=True)
class ToolResult[R](Parametrized):
    """A handler's answer: a `message` for the model and a typed `value`.

    `success=False` rolls back the handler's changes; `value` is then an error payload or `None`.
    With `exclude_value_from_context`, the model receives only the message, but events and the
    session still receive the value. The model sees `media` after the text, which ends with the
    media's markers.
    """

    message: str
    value: R | None = None
    success: bool = True
    exclude_value_from_context: bool = False
    media: Sequence[Image | Document] = ()

    def render(self) -> str:
        """Returns the value's `render()`, or its JSON without `None` fields; `""` for `None`.

        Raises `TypeError` if `render()` does not return a string, and `SerdeError` for a value that
        cannot be converted to JSON.
        """
        if self.value is None:
            return ""
        # Forty times faster than isinstance(…, ToolRenderableResult). Looking at the type ignores a
        # field called `render`.
        render = getattr(type(self.value), "render", None)
        if not callable(render):
            return serde.dump_json(self.value, exclude_none=True)
        text = render(self.value)
        if not isinstance(text, str):
            raise TypeError(
                f"{type(self.value).__name__}.render() must return a string, "
                f"got {type(text).__name__}"
            )
        return text

    def content(self) -> str:
        """Returns the text for the model: the message and, unless excluded or empty, the value.

        Media markers that are missing from the text are added at the end.
        """
        body = "" if self.exclude_value_from_context else self.render()
        text = "\n\n".join(filter(None, [self.message, body]))
        for marker in [str(media) for media in self.media]:
            if marker not in text:
                text = f"{text}\n\n{marker}" if text else marker
        return text


def description_of(handler: AnyHandler | None) -> str:
    """Returns the first paragraph of a handler's docstring on one line; `""` if it has none."""
    docstring = getattr(handler, "__doc__", None) if inspect.isroutine(handler) else None
    if not docstring:
        return ""
    from .docstrings import read_docstring

    return read_docstring(docstring).summary


def check_handler(subject: str, handler: AnyHandler, first: str = "params: Params") -> None:
    """Raises `PromptValidationError` if `handler` cannot be called with a value and a context."""
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


@lru_cache(maxsize=256)  # the handlers of a hundred external tools can be methods of the same class
def _method_yields(function: AnyFunction) -> bool:
    """Returns whether a method yields; raises `TypeError` if it cannot be called as a handler."""
    signature_of(function, follow_wrapped=False).bind(None, None, context=None)
    return _yields(function)


def _yields(function: object) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _handler_name(handler: AnyHandler) -> str:
    return getattr(handler, "__name__", type(handler).__name__)


def handler_place(handler: AnyHandler | None) -> str:
    """Returns the module and qualified name of a handler, or of the function that it calls."""
    function: Any = getattr(handler, "function", handler)  # Any: a callable of any class
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def find_types(
    name: str, handler: AnyHandler | None, params_type: AnyType, result_type: AnyType
) -> tuple[AnyType, AnyType]:
    """Infers missing types from the handler's annotations.

    Raises `PromptValidationError` if the params type is neither declared nor annotated, if the
    annotations differ from the declared types, or if the return annotation is not a `ToolResult`.
    """
    takes: AnyType = None
    returned: AnyType = None
    problem = "there is no handler to take the types from"
    if handler is not None:
        # `signature` follows decorators to the wrapped function, which may take no params
        first = next(iter(signature_of(handler).parameters), "params")
        problem = f"handler {_handler_name(handler)} has no type annotation for {first!r}"
        function = _annotated_function(handler)
        try:
            hints = get_type_hints(function)
            takes, returned = hints.get(first), hints.get("return")
        except Exception as error:  # evaluating an annotation can raise anything
            problem = (
                f"the annotations of handler {_handler_name(handler)} cannot be read ({error})"
            )
        # a decorator copies the wrapped function's annotations but may convert its values
        if not hasattr(function, "__wrapped__"):
            _check_returned(name, handler, returned)
            _check_annotations(name, handler, (takes, params_type), (returned, result_type))
    params_type = params_type or takes
    if params_type is None:
        remedy = "declare the types: Tool[Params, Result](…) or params_type=Params"
        raise PromptValidationError(f"tool {name!r}: {problem}; {remedy}")
    return params_type, _result_in(returned) if result_type is None else result_type


def _annotated_function(handler: AnyHandler) -> AnyHandler:
    """Returns the function that carries a handler's annotations."""
    function = handler.__func__ if isinstance(handler, MethodType) else handler
    function = function.func if isinstance(function, partial) else function
    return function if inspect.isroutine(function) else type(function).__call__


def _result_in(returned: AnyType) -> AnyType:
    """Returns `R` for the annotation `ToolResult[R]`."""
    return get_args(returned)[0] if origin_of(returned) is ToolResult else None


def _check_annotations(
    name: str, handler: AnyHandler, params: tuple[AnyType, AnyType], result: tuple[AnyType, AnyType]
) -> None:
    """Raises `PromptValidationError` if the handler's annotations differ from the tool's types."""
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


def _type_name(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _fits(kind: AnyType, wanted: AnyType) -> bool:
    """Whether values of `kind` can have the type `wanted`; true if that cannot be determined."""
    kind, wanted = record_class(kind), record_class(wanted)
    for union in (wanted, kind):
        if isinstance(union, UnionType) or origin_of(union) is Union:
            members = get_args(union)
            pairs = [(kind, member) if union is wanted else (member, wanted) for member in members]
            return any(_fits(*pair) for pair in pairs)
    kind, wanted = origin_of(kind) or kind, origin_of(wanted) or wanted
    if Any in (kind, wanted) or kind is object or (kind is int and wanted is float):
        return True
    if is_typed_dict(kind) and is_typed_dict(wanted):
        return kind is wanted or field_names(wanted) <= field_names(kind)
    try:
        return issubclass(*[dict if is_typed_dict(part) else part for part in (kind, wanted)])
    except TypeError:  # not classes, or a protocol
        return True


def _check_returned(name: str, handler: AnyHandler, returned: object) -> None:
    if not isinstance(returned, type) or returned in (Any, object):
        return
    if not issubclass(returned, (ToolResult, Awaitable)):
        raise PromptValidationError(
            f"tool {name!r}: handler {_handler_name(handler)} must be annotated to return "
            f"ToolResult[…], got {('None' if returned is NoneType else returned.__name__)}; "
            "return ToolResult(message=…)"
        )
