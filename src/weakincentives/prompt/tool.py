"""Tools: what a section lets the model call, what a handler is given and what it answers."""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from itertools import takewhile
from typing import Any, Literal, Protocol, get_type_hints, runtime_checkable

from .. import serde
from ..generics import Parametrized
from .context import ToolContext
from .errors import PromptValidationError

__all__ = [
    "NON_REPEATABLE",
    "AnyTool",
    "Effect",
    "Tool",
    "ToolExample",
    "ToolHandler",
    "ToolRenderableResult",
    "ToolResult",
    "check_description",
]

_NAME = r"[a-z0-9_-]{1,64}"
_MAX_DESCRIPTION = 1024  # what providers take


@runtime_checkable
class ToolRenderableResult(Protocol):
    """A tool result that says itself how the model sees it."""

    def render(self) -> str:
        """The text for the model; equal values give equal text."""
        ...


@dataclass(frozen=True, slots=True)
class ToolResult[R](Parametrized):
    """What a handler answers: a `message` for the model and a typed `value`.

    `success=False` undoes what the handler did to the session; `value` is then an error payload or
    `None`. With `exclude_value_from_context` the model sees the message alone, events and session
    still get the value.
    """

    message: str
    value: R | None = None
    success: bool = True
    exclude_value_from_context: bool = False

    def render(self) -> str:
        """The value as the model would see it: its own `render()`, else its JSON without `None`
        fields; `""` for none.

        Raises `TypeError` if `render()` gives no string and `SerdeError` for a value that JSON
        cannot hold.
        """
        if self.value is None:
            return ""
        # What isinstance(…, ToolRenderableResult) asks, at a fortieth of its cost; a mere field
        # does not count.
        own = getattr(type(self.value), "render", None)
        if not callable(own):
            return serde.dump_json(self.value, exclude_none=True)
        text = own(self.value)
        if not isinstance(text, str):
            raise TypeError(
                f"{type(self.value).__name__}.render() must return a string, got {type(text).__name__}"
            )
        return text

    def content(self) -> str:
        """All that the model is sent: the message, a blank line, the rendered value unless it is
        excluded or empty.
        """
        body = "" if self.exclude_value_from_context else self.render()
        return f"{self.message}\n\n{body}" if body else self.message


class ToolHandler[P, R](Protocol):
    """A function, or coroutine function, from params to a `ToolResult`."""

    def __call__(
        self, params: P, /, *, context: ToolContext
    ) -> ToolResult[R] | Awaitable[ToolResult[R]]: ...


@dataclass(frozen=True, slots=True)
class ToolExample[P, R](Parametrized):
    """One call of a tool and what it gives, shown to the model with the section that owns the tool."""

    description: str
    input: P
    output: R


type Effect = Literal["pure", "repeatable", "at_most_once", "transactional"]
"""What it means to run a tool again: nothing ever, nothing new, or something that must not happen
twice.

A `"transactional"` one must not either; where a run is recorded, its effect commits together with
the record.
"""

_EFFECTS = ("pure", "repeatable", "at_most_once", "transactional")
NON_REPEATABLE: frozenset[Effect] = frozenset({"at_most_once", "transactional"})


@dataclass(frozen=True, slots=True, init=False)
class Tool[P, R](Parametrized):
    """Something that the model can call.

    `Tool[Params, Result](name=…, description=…, handler=…)`, or without the subscript when the
    handler is annotated or `params_type` is given. A missing description is the first paragraph of
    the handler's docstring, its lines joined by spaces, else the name. Names are 1-64 of a-z, 0-9,
    `_`, `-`; descriptions have 1-1,024 characters, and `wink check` advises 200 at most; params are
    dataclasses. An effect of `"pure"` says that it changes nothing, `"at_most_once"` and
    `"transactional"` that the same call must not be made twice when `MainLoop` starts an evaluation
    again. Raises `PromptValidationError` for anything else, and for a handler that cannot be called
    as `handler(params, context=…)`.
    """

    type_fields = ("params_type", "result_type")

    name: str
    description: str
    handler: ToolHandler[P, R] | None
    params_type: type[P]
    result_type: type[R]
    examples: tuple[ToolExample[P, R], ...]
    accepts_overrides: bool
    effect: Effect

    def __init__(
        self,
        *,
        name: str,
        description: str | None = None,
        handler: ToolHandler[P, R] | None = None,
        params_type: type[P] | None = None,
        result_type: type[R] | None = None,
        examples: Sequence[ToolExample[P, R]] = (),
        accepts_overrides: bool = True,
        effect: Effect = "repeatable",
    ) -> None:
        if not isinstance(name, str) or re.fullmatch(_NAME, name) is None:
            raise PromptValidationError(
                f"tool name {name!r} is not valid; use 1 to 64 of a-z, 0-9, '_' and '-'"
            )
        if handler is not None:
            _check_handler(name, handler)
        if description is None:
            docstring = getattr(handler, "__doc__", None) if inspect.isroutine(handler) else None
            description = _first_paragraph(docstring or "") or name
        check_description(name, description)
        params_type = params_type or self.inherited_arguments.get("params_type")
        result_type = result_type or self.inherited_arguments.get("result_type")
        if params_type is None or (result_type is None and handler is not None):
            params, result, why = _annotated_types(name, handler)
            params_type, result_type = params_type or params, result_type or result
            if params_type is None:
                raise PromptValidationError(
                    f"tool {name!r}: {why}; say the types: Tool[Params, Result](…) or params_type=Params"
                )
        if effect not in _EFFECTS:
            raise PromptValidationError(
                f"tool {name!r}: effect {effect!r} is none of {', '.join(map(repr, _EFFECTS))}"
            )
        if not (isinstance(params_type, type) and is_dataclass(params_type)):
            raise PromptValidationError(
                f"tool {name!r}: params type {params_type!r} is no dataclass; declare the params as a dataclass"
            )
        for example in examples:
            if not isinstance(example, ToolExample) or not isinstance(example.input, params_type):
                raise PromptValidationError(
                    f"tool {name!r}: example {example!r} is no ToolExample with an input of {params_type.__name__}"
                )
        assign = object.__setattr__
        assign(self, "name", name)
        assign(self, "description", description)
        assign(self, "handler", handler)
        assign(self, "params_type", params_type)
        assign(self, "result_type", object if result_type is None else result_type)
        assign(self, "examples", tuple(examples))
        assign(self, "accepts_overrides", accepts_overrides)
        assign(self, "effect", effect)

    def __hash__(self) -> int:
        return hash((self.name, self.handler))  # examples may hold values without a hash


# Any: a registry holds the tools of all sections, each with types of its own.
type AnyTool = Tool[Any, Any]


def _first_paragraph(docstring: str) -> str:
    """The lines up to the first blank one, joined by spaces."""
    return " ".join([line.strip() for line in takewhile(str.strip, docstring.strip().splitlines())])


def check_description(name: str, description: object) -> None:
    """Raises `PromptValidationError` unless it is a text of 1 to 1,024 characters that UTF-8 can
    encode.
    """
    if not isinstance(description, str):
        raise PromptValidationError(
            f"tool {name!r}: its description is {description!r}; write it as text"
        )
    if not 1 <= len(description) <= _MAX_DESCRIPTION:
        raise PromptValidationError(
            f"tool {name!r}: its description has {len(description)} characters; "
            f"write 1 to {_MAX_DESCRIPTION} and put the rest into the section's text"
        )
    if description.encode(errors="ignore").decode() != description:
        raise PromptValidationError(
            f"tool {name!r}: its description {description!r} cannot be encoded as UTF-8; write it without surrogates"
        )


# Any: the handler's own types are what is being found out here.
def _check_handler(name: str, handler: Callable[..., Any]) -> None:
    try:
        inspect.signature(handler, follow_wrapped=False).bind(None, context=None)
    except (TypeError, ValueError) as error:
        raise PromptValidationError(
            f"tool {name!r}: handler {_handler_name(handler)} cannot be called as handler(params, context=…) "
            f"({error}); declare it as def {_handler_name(handler)}(params: Params, *, context: ToolContext)"
        ) from error
    yielding = (inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(yields(code) for yields in yielding for code in (handler, type(handler).__call__)):
        raise PromptValidationError(
            f"tool {name!r}: handler {_handler_name(handler)} yields; return a ToolResult"
        )


def _handler_name(handler: Callable[..., Any]) -> str:
    return getattr(handler, "__name__", type(handler).__name__)


def _annotated_types(name: str, handler: Callable[..., Any] | None) -> tuple[Any, Any, str]:
    """Params and result type as the handler's annotations give them, `None` where they do not, and
    why they do not.

    Raises `PromptValidationError` when they promise another class than `ToolResult`.
    """
    if handler is None:
        return None, None, "there is no handler that says them"
    function = (
        handler if inspect.isroutine(handler) else getattr(handler, "func", type(handler).__call__)
    )
    # a function that it wraps may take nothing
    first = next(iter(inspect.signature(handler).parameters), "params")
    why = f"handler {_handler_name(handler)} does not say the type of {first!r}"
    hints: Mapping[str, Any] = {}
    try:
        hints = get_type_hints(function)
    except Exception as error:  # whatever an annotation raises when it is evaluated
        why = f"the annotations of handler {_handler_name(handler)} cannot be read ({error})"
    returned = hints.get("return")
    # else the annotations of what it wraps, whose answer it may turn
    own = not hasattr(function, "__wrapped__")
    right = (ToolResult, Awaitable)
    if (
        own
        and isinstance(returned, type)
        and returned not in (Any, object)
        and not issubclass(returned, right)
    ):
        raise PromptValidationError(
            f"tool {name!r}: handler {_handler_name(handler)} is annotated to return {returned.__name__}; "
            f"declare ToolResult[…] and return ToolResult(message=…)"
        )
    arguments: tuple[Any, ...] = getattr(returned, "__args__", ())
    return (
        hints.get(first),
        arguments[0] if getattr(returned, "__origin__", None) is ToolResult else None,
        why,
    )
