"""Functions as tools: their signature becomes the params, and what they return the result."""

import inspect
import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

from .. import serde
from ..content import Document, Image
from ..errors import SerdeError
from ..protocols import KindOf
from ..record_types import AnyType
from ..signatures import (
    AnyFunction,
    annotations_of,
    check_names,
    is_coroutine_function,
    signature_of,
)
from .context import ToolContext
from .function_signatures import (
    FunctionSignature,
    Injected,
    Resource,
    described_function,
    is_field,
    layers,
)
from .tool import AnyTool, Effect, Tool, ToolExample, ToolResult

if TYPE_CHECKING:
    from .approval_rules import Approval

__all__ = ["FunctionHandler", "Resource", "ToolOptions", "as_tool", "tool"]

type AnyExample = ToolExample[Any, Any] | Mapping[str, object]
# Any, in both: the class method of any class, and its arguments
type _Decorated = AnyFunction | classmethod[Any, ..., Any] | staticmethod[..., Any]


class ToolOptions(TypedDict, total=False):
    """The options of `tool`, as `Tool` takes them.

    The input of an example is a mapping of arguments, and so is an example without description and
    output.
    """

    name: str
    description: str
    examples: Sequence[AnyExample]
    accepts_overrides: bool
    effect: Effect
    approval: "Approval | None"


@dataclass(frozen=True, slots=True, eq=False)
class _Marks:
    """What `tool` keeps in the `__dict__` of a function."""

    options: ToolOptions
    names: Mapping[str, object]  # local ones that its annotations use


_MARKS = "__tool_marks__"
_UNMARKED = _Marks({}, {})
type _Returned = ToolResult[object] | Awaitable[ToolResult[object]]


@overload
def tool[F: _Decorated](function: F, /, **options: Unpack[ToolOptions]) -> F: ...
@overload
def tool[F: _Decorated](**options: Unpack[ToolOptions]) -> Callable[[F], F]: ...
def tool(function: Any = None, /, **options: Unpack[ToolOptions]) -> Any:  # Any: see the overloads
    """Configures a function for `tools=[function]`: `@tool`, `@tool(name=…)` or `tool(f, name=…)`.

    The decorated function is called and typed as before. `name` and `description` default to the
    function's name and the first paragraph of its docstring. The other options are those of
    `Tool`: `effect`, `approval`, `examples` and `accepts_overrides`.
    Raises `TypeError` for an unknown option.
    """
    check_names("tool()", options, ToolOptions.__annotations__)
    frame = inspect.currentframe()
    local = frame.f_back.f_locals if frame and frame.f_back else {}
    if function is None:
        return partial(_marked, options=options, local=local)
    if options and not isinstance(function, classmethod | staticmethod):
        function = partial(function)  # another tool of the same function
    return _marked(function, options, local)


def _marked[F](function: F, options: ToolOptions, local: Mapping[str, object]) -> F:
    """Returns the function with its options and the local names that its annotations use."""
    target: Any = function  # Any: to set an attribute
    if isinstance(function, classmethod | staticmethod):
        target = function.__func__
    before = _marks_of(target)
    written = [value for value in annotations_of(target).values() if not isinstance(value, type)]
    words = set(re.findall(r"\w+", repr(written))) - getattr(target, "__globals__", {}).keys()
    names = {name: local[name] for name in words if name in local}
    if options or names:
        marks = _Marks(before.options | options, {**before.names, **names})
        try:
            setattr(target, _MARKS, marks)
        except (AttributeError, TypeError):  # a bound method, or an object with slots
            copied: Any = partial(target)
            setattr(copied, _MARKS, marks)
            marked: F = copied  # called as the function is
            return marked
    return function


def _marks_of(function: AnyFunction) -> _Marks:
    """Returns what `tool` keeps in a function, or in the one that decorators or partials wrap."""
    for layer in layers(function):
        marks = getattr(layer, _MARKS, None)
        if isinstance(marks, _Marks):
            return marks
    return _UNMARKED


# ------------------------------------------------------------------------------------- conversion


def as_tool(function: AnyTool | AnyFunction) -> AnyTool:
    """Returns the tool of a function, and a tool as it is.

    Raises `PromptValidationError` for a function that cannot be a tool.
    """
    if isinstance(function, Tool):
        return function
    marks = _marks_of(function)
    signature, options = FunctionSignature(function, marks.names), marks.options
    name = options["name"] if "name" in options else signature.name()
    params_type, injected, flat = signature.params(name)
    converted = Tool(
        name=name,
        description=options.get("description", signature.docstring.summary or name),
        handler=FunctionHandler(function, name, injected, flat),
        params_type=params_type,
        result_type=signature.result_type(),
        examples=[_example(signature, params_type, it) for it in options.get("examples", ())],
        accepts_overrides=options.get("accepts_overrides", True),
        effect=options.get("effect", "undeclared"),
        approval=options.get("approval"),
    )
    try:
        converted.params_schema()
    except SerdeError as error:
        problem = f"its params have no JSON Schema ({error})"
        raise signature.refusal(problem, "change the type") from error
    return converted


def _example(
    signature: FunctionSignature, params_type: AnyType, example: AnyExample
) -> ToolExample[Any, Any]:
    """Returns an example whose input is an instance of the params."""
    if isinstance(example, Mapping):
        example = ToolExample("", example)
    if not isinstance(example, ToolExample) or not isinstance(example.input, Mapping):
        return example  # `Tool` checks it
    try:
        return example._replace(input=serde.parse(params_type, example.input))
    except SerdeError as error:
        problem = f"the input of an example does not match its parameters ({error})"
        raise signature.refusal(problem, "correct the example") from error


class FunctionHandler:
    """The handler of a function tool: it calls the function and makes a result of what it returns.

    `injected` has the functions that return the values which the model does not supply. `flat` is
    the parameter that takes the params themselves; otherwise, the function takes their fields.
    """

    def __init__(
        self, function: AnyFunction, name: str, injected: Mapping[str, Injected], flat: str
    ) -> None:
        self.function, self._name = function, name
        self._injected, self._flat = tuple(injected.items()), flat
        if is_coroutine_function(function):  # so that it is awaited instead of run in a thread
            inspect.markcoroutinefunction(self)

    def __call__(self, params: object, /, *, context: ToolContext) -> _Returned:
        arguments = {self._flat: params} if self._flat else dict(vars(params))
        for name, value in self._injected:
            arguments[name] = value(context)
        returned = self.function(**arguments)
        if type(returned) in _NOT_AWAITABLE or not inspect.isawaitable(returned):
            return self._result(returned)
        return self._awaited(returned)

    async def _awaited(self, returned: Awaitable[object]) -> ToolResult[object]:
        value: object = returned
        while inspect.isawaitable(value):
            value = await value
        return self._result(value)

    def _result(self, returned: object) -> ToolResult[object]:
        match returned:
            case ToolResult():
                return returned
            case None:
                return ToolResult("")
            case str() if not isinstance(returned, Enum):
                return ToolResult(returned)
            case Image() | Document():
                return ToolResult("", media=(returned,))
            case bytes() | bytearray() | memoryview():
                kind, remedy = type(returned).__name__, "text, an Image or a Document"
            case Iterator() | AsyncIterator():
                kind, remedy = f"a {type(returned).__name__}", "a list"
            case [*items] if any(isinstance(item, Image | Document) for item in items):
                media = tuple([item for item in items if isinstance(item, Image | Document)])
                texts = [f"{item}" for item in items if isinstance(item, str | Image | Document)]
                if len(texts) == len(items):
                    return ToolResult("\n\n".join(texts), media=media)
                kind, remedy = "media mixed with other values", "only strings and media in a list"
            case _ if _contains(returned, (Image, Document, bytes, bytearray)):
                kind, remedy = "media or bytes inside another value", "a list of strings and media"
            case _:
                return ToolResult("", returned)
        raise TypeError(f"the function of tool {self._name!r} must return {remedy}, got {kind}")

    @property
    def resources(self) -> list[KindOf[object]]:
        """The types of the resources that the function receives."""
        return [value.args[0] for _, value in self._injected if isinstance(value, partial)]

    def missing(self, bound: Collection[object]) -> list[KindOf[object]]:
        """Returns the resources that are not `bound`, and without which a call fails."""
        required = [
            value.args[0]
            for _, value in self._injected
            if isinstance(value, partial) and not value.keywords["optional"]
        ]
        return [kind for kind in required if kind not in bound]

    @property
    def line(self) -> str:
        """The module and the line of the function, such as `shop.orders:12`."""
        described = described_function(self.function)
        line = getattr(getattr(described, "__code__", None), "co_firstlineno", 0)
        return f"{described.__module__}:{line}"

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yields problems in the function's docstring and defaults, and their remedies."""
        signature = FunctionSignature(self.function, _marks_of(self.function).names)
        for name in signature.docstring.parameters:
            if name not in signature_of(signature.described).parameters:
                yield f"its docstring describes `{name}`, which is not a parameter", "correct it"
        for name, parameter in signature.parameters.items():
            if is_field(parameter.default):
                problem = f"the default of `{name}` is a Field(…), which a direct call receives"
                yield problem, f"write {name}: Annotated[…, Field(…)] = …"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FunctionHandler) and self.function == other.function

    def __hash__(self) -> int:
        return hash(self._name)


def _contains(value: object, kinds: tuple[type, ...], depth: int = 9) -> bool:
    """Whether one of the kinds is in a value of lists, dicts, tuples and sets."""
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, _CONTAINERS):
        return False
    return any(
        isinstance(item, kinds)
        or (
            depth > 0
            and isinstance(item, (dict, *_CONTAINERS))
            and _contains(item, kinds, depth - 1)
        )
        for item in value
    )


_CONTAINERS = (list, tuple, set, frozenset)
_NOT_AWAITABLE = frozenset({ToolResult, str, NoneType, dict, list, tuple, int, float, bool})
