"""Functions as tools: their signature becomes the params, and what they return the result."""

import inspect
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from copy import deepcopy
from dataclasses import dataclass, field, make_dataclass
from enum import Enum
from functools import lru_cache, partial
from inspect import Parameter
from types import FunctionType, MethodType, NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    TypeAliasType,
    TypedDict,
    TypeVar,
    Union,
    Unpack,
    get_args,
    get_type_hints,
    overload,
)

from .. import serde
from ..content import Document, Image
from ..errors import SerdeError
from ..protocols import KindOf, SessionProtocol, StateView
from ..record_types import AnyType, is_record_type, origin_of, unaliased
from ..signatures import (
    AnyFunction,
    annotations_of,
    check_names,
    is_coroutine_function,
    signature_of,
)
from .context import ToolContext
from .docstrings import read_docstring
from .errors import PromptValidationError
from .handlers import handler_place
from .tool import TOOL_NAME, AnyTool, Effect, Tool, ToolExample, ToolResult

if TYPE_CHECKING:
    from .approval_rules import Approval

__all__ = ["FunctionHandler", "Resource", "ToolOptions", "as_tool", "tool"]

type Resource[T] = T
"""Annotates a parameter of a function tool that receives the resource bound for `T`.

To a type checker, it is `T` itself.
"""

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
type _Injected = Callable[[ToolContext], object]
type _Returned = ToolResult[object] | Awaitable[ToolResult[object]]


@overload
def tool[F: _Decorated](function: F, /, **options: Unpack[ToolOptions]) -> F: ...
@overload
def tool[F: _Decorated](**options: Unpack[ToolOptions]) -> Callable[[F], F]: ...
def tool(function: Any = None, /, **options: Unpack[ToolOptions]) -> Any:  # Any: see the overloads
    """Configures a function for `tools=[function]`: `@tool`, `@tool(name=…)` or `tool(f, name=…)`.

    The decorated function is called and typed as before. `name` and `description` default to the
    function's name and the first paragraph of its docstring; the other options are those of `Tool`.
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
    before = _marks_of(target.func if isinstance(target, partial) else target)
    words = re.findall(r"\w+", repr(annotations_of(target)))
    if local is getattr(target, "__globals__", None):
        words = []
    names = {name: local[name] for name in words if name in local}
    if options or names:
        marks = _Marks(before.options | options, {**before.names, **names})
        setattr(target, _MARKS, marks)
    return function


def _marks_of(function: object) -> _Marks:
    marks = getattr(function, _MARKS, None)
    return marks if isinstance(marks, _Marks) else _UNMARKED


# ------------------------------------------------------------------------------------- conversion


def as_tool(function: AnyTool | AnyFunction) -> AnyTool:
    """Returns the tool of a function, and a tool as it is.

    Raises `PromptValidationError` for a function that cannot be a tool.
    """
    if isinstance(function, Tool):
        return function
    try:
        hash(function)
    except TypeError:
        return _convert.__wrapped__(function, _UNMARKED)
    return _convert(function, _marks_of(function))


@lru_cache(maxsize=1024)
def _convert(function: AnyFunction, _: "_Marks") -> AnyTool:
    reader = _Reader(function)
    options = reader.options
    name = reader.name()
    params_type, injected, flat = reader.params()
    handler = FunctionHandler(function, name, injected, flat)
    made = Tool(
        name=name,
        description=options.get("description", reader.docstring.summary or name),
        handler=handler,
        params_type=params_type,
        result_type=reader.result_type(),
        examples=[reader.example(params_type, item) for item in options.get("examples", ())],
        accepts_overrides=options.get("accepts_overrides", True),
        effect=options.get("effect", "undeclared"),
        approval=options.get("approval"),
    )
    try:
        made.params_schema()
    except SerdeError as error:
        raise reader.refusal(f"its params have no JSON Schema ({error})", "change the type") from (
            error
        )
    return made


class FunctionHandler:
    """The handler of a function tool: it calls the function and makes a result of what it returns.

    `injected` has the functions that return the values which the model does not supply. `flat` is
    the parameter that takes the params themselves; otherwise, the function takes their fields.
    """

    def __init__(
        self, function: AnyFunction, name: str, injected: Mapping[str, _Injected], flat: str
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
        return self._result(await returned)

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
            case _:
                return ToolResult("", returned)
        raise TypeError(f"the function of tool {self._name!r} must return {remedy}, got {kind}")

    @property
    def line(self) -> str:
        """The module and the line of the function, such as `shop.orders:12`."""
        described = _described(self.function)
        line = getattr(getattr(described, "__code__", None), "co_firstlineno", 0)
        return f"{described.__module__}:{line}"

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yields problems in the function's docstring and defaults, and their remedies."""
        reader = _Reader(self.function)
        for name in reader.docstring.parameters:
            if name not in signature_of(reader.described).parameters:
                yield f"its docstring describes `{name}`, which is not a parameter", "correct it"
        for name, parameter in reader.parameters.items():
            if _is_field(parameter.default):
                problem = f"the default of `{name}` is a Field(…), which a direct call receives"
                yield problem, f"write {name}: Annotated[…, Field(…)] = …"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FunctionHandler) and self.function == other.function

    def __hash__(self) -> int:
        return hash(self._name)


_NOT_AWAITABLE = frozenset({ToolResult, str, NoneType, dict, list, tuple, int, float, bool})


def _context(context: ToolContext) -> object:
    return context


def _session(context: ToolContext) -> object:
    return context.session


def _resource(kind: KindOf[object], optional: bool, context: ToolContext) -> object:  # noqa: FBT001 - bound by `partial`
    bindings = context.prompt.resources.registry.bindings if optional else ()
    if optional and all(binding.protocol is not kind for binding in bindings):
        return None
    return context.resources.get(kind)


# ----------------------------------------------------------------------------------------- reading


class _Reader:
    """Reads the signature, the annotations and the docstring of one function."""

    def __init__(self, function: AnyFunction) -> None:
        self.function = function
        marks = _marks_of(function)
        described = _described(function)
        if not marks.options and not isinstance(function, partial):
            marks = _marks_of(described)
        self.options = marks.options
        self.described = described
        self.docstring = read_docstring(
            getattr(described, "__doc__", None)
            or (None if inspect.isroutine(_bare(function)) else type(_bare(function)).__doc__)
        )
        self._globals = {**_BY_NAME, **getattr(described, "__globals__", {})}
        self._locals = {**_closure(described), **marks.names}
        self.parameters = self._read_parameters()

    def refusal(self, problem: str, remedy: str) -> PromptValidationError:
        place = handler_place(_bare(self.function))
        return PromptValidationError(
            f"cannot use the function {place} as a tool because {problem}; {remedy}"
        )

    def name(self) -> str:
        """Returns the given name, or the function's name in the alphabet of tool names."""
        if "name" in self.options:
            return self.options["name"]
        bare = _bare(self.function)
        own: str = getattr(bare, "__name__", type(bare).__name__)
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", own).lower()
        if re.fullmatch(TOOL_NAME, name) is None:
            problem = f"its name {own!r} is not 1 to 64 characters from a-z, 0-9, '_' and '-'"
            raise self.refusal(problem, f"pass one, as in @tool(name={_ascii(name)!r})")
        return name

    def _read_parameters(self) -> dict[str, Parameter]:
        bare = _bare(self.function)
        if inspect.isclass(bare) or not callable(bare):
            raise self.refusal("it is not a function", "pass a function")
        call = bare if inspect.isroutine(bare) else type(bare).__call__
        if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
            raise self.refusal("it yields its result", "return a list or a string")
        try:
            signature = signature_of(_plain_partial(self.function))
        except (TypeError, ValueError) as error:
            raise self.refusal(f"it has no signature ({error})", "wrap it in a function") from error
        bound = _bound_names(self.function)
        parameters = {
            name: item for name, item in signature.parameters.items() if name not in bound
        }
        for name, parameter in parameters.items():
            if stars := _STARS.get(parameter.kind):
                raise self.refusal(
                    f"its parameter {stars}{name} has no schema",
                    "name each parameter, or use functools.wraps if a decorator hides them",
                )
            if parameter.kind is Parameter.POSITIONAL_ONLY:
                raise self.refusal(f"its parameter {name!r} is positional-only", "remove the /")
            if parameter.annotation is Parameter.empty:
                remedy = f"annotate it, as in {name}: str"
                if name in ("self", "cls") and name == next(iter(parameters)):
                    remedy = "bind it, as in tools=[instance.method]"
                raise self.refusal(f"its parameter {name!r} has no type", remedy)
        return parameters

    def params(self) -> tuple[AnyType, dict[str, _Injected], str]:
        """Returns the params type, the injected parameters, and the one that takes the params."""
        injected: dict[str, _Injected] = {}
        shown: dict[str, tuple[AnyType, object]] = {}
        for name, parameter in self.parameters.items():
            hint = self._hint(name, parameter.annotation)
            if (value := self._injected(name, hint)) is not None:
                injected[name] = value
                continue
            if free := next(_free_type_variables(hint), None):
                raise self.refusal(f"the type {free} of {name!r} has no schema", "use a type")
            shown[name] = hint, parameter.default
        if len(shown) == 1:
            [(name, (hint, default))] = shown.items()
            record = get_args(hint)[0] if origin_of(hint) is Annotated else hint
            if default is Parameter.empty and is_record_type(record):
                return record, injected, name
        fields = [self._field(name, *parts) for name, parts in shown.items()]
        name = "".join([word.title() for word in re.split(r"[_-]", self.name())])
        module = getattr(self.described, "__module__", __name__)
        return make_dataclass(name, fields, kw_only=True, module=module), injected, ""

    def _hint(self, name: str, annotation: object) -> AnyType:
        """Returns the type that an annotation means; it may be a string."""
        try:
            return self._evaluated(annotation)
        except Exception as error:  # evaluating an annotation can raise anything
            text = getattr(annotation, "__forward_arg__", annotation)
            short = re.sub(rf"(?:\w+\.)+({'|'.join(_BY_NAME)})\b", r"\1", f"{text}")
            if short != text:  # imported for type checkers only, together with its module
                return self._hint(name, short)
            raise self.refusal(
                f"the type {text!r} of {name!r} cannot be read ({error})", "import it at run time"
            ) from error

    def _evaluated(self, annotation: object) -> AnyType:
        def annotated() -> None: ...

        annotated.__annotations__ = {"value": annotation}
        hints = get_type_hints(annotated, self._globals, self._locals, include_extras=True)
        return hints["value"]

    def _injected(self, name: str, hint: AnyType) -> "_Injected | None":
        kind, optional = _without_none(_without_metadata(hint))
        kind = _without_metadata(kind)
        if kind is ToolContext:
            return _context
        if kind in _SESSIONS or kind is _session_class():
            return _session
        if kind is Resource:
            raise self.refusal(f"{name!r} does not say which resource", "write Resource[Type]")
        if origin_of(kind) is not Resource:
            return None
        return partial(_resource, get_args(kind)[0], optional)

    def _field(self, name: str, hint: AnyType, default: object) -> tuple[str, AnyType, Any]:
        """Returns a field of the params with its description and default."""
        kind, *metadata = get_args(hint) if origin_of(hint) is Annotated else (hint,)
        if _is_field(default):
            metadata.append(default)
            default = Parameter.empty
        texts = [item for item in metadata if isinstance(item, str)]
        texts += [self.docstring.parameters.get(name, "")]
        metadata = [item for item in metadata if not isinstance(item, str)]
        described = any(_is_field(item) and item.description for item in metadata)
        text = {} if described or not texts[0] else {"description": texts[0]}
        kind = unaliased(kind)
        if metadata:
            kind = Annotated[kind, *metadata]
        if default is Parameter.empty:
            return name, kind, field(metadata=text)
        if getattr(type(default), "__hash__", None) is None:  # each call gets its own copy
            return name, kind, field(default_factory=partial(deepcopy, default), metadata=text)
        return name, kind, field(default=default, metadata=text)

    def result_type(self) -> AnyType:
        """Returns the type of the result's value; `object` if the annotation does not tell."""
        annotation = annotations_of(self.described).get("return", object)
        try:
            hint = self._evaluated(annotation)
        except Exception:  # imported for type checkers only
            return object
        if origin_of(hint) is ToolResult:
            return get_args(hint)[0]
        return object if isinstance(hint, TypeVar) or hint in (None, NoneType, str) else hint

    def example(self, params_type: AnyType, example: AnyExample) -> ToolExample[Any, Any]:
        """Returns an example whose input is an instance of the params."""
        if isinstance(example, Mapping):
            example = ToolExample("", example)
        if not isinstance(example, ToolExample) or not isinstance(example.input, Mapping):
            return example  # `Tool` checks it
        try:
            return example._replace(input=serde.parse(params_type, example.input))
        except SerdeError as error:
            problem = f"the input of an example does not match its parameters ({error})"
            raise self.refusal(problem, "correct the example") from error


_STARS: dict[object, str] = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}
_BY_NAME = {"ToolContext": ToolContext, "Session": SessionProtocol, "Resource": Resource}
_SESSIONS = (SessionProtocol, StateView)


def _session_class() -> object:
    """Returns the class `Session` if it is imported; an annotation cannot mean it otherwise."""
    module = sys.modules.get("weakincentives.runtime.session.session")
    return getattr(module, "Session", SessionProtocol)


def _bare(function: AnyFunction) -> AnyFunction:
    """Returns the function in partials and bound methods."""
    while isinstance(function, partial):
        function = function.func
    return function


def _described(function: AnyFunction) -> AnyFunction:
    """Returns the function whose annotations and docstring a signature shows."""
    while True:
        bare = _bare(function)
        bare = bare.__func__ if isinstance(bare, MethodType) else bare
        if not inspect.isroutine(bare) and not inspect.isclass(bare):
            bare = type(bare).__call__
        if not hasattr(bare, "__signature__"):
            bare = getattr(bare, "__wrapped__", bare)
        if bare is function:
            return function
        function = bare


def _plain_partial(function: AnyFunction) -> AnyFunction:
    """Returns a partial without the `__wrapped__` that shows its bound arguments again."""
    if not isinstance(function, partial):
        return function
    return partial(_plain_partial(function.func), *function.args, **function.keywords)


def _bound_names(function: AnyFunction) -> AbstractSet[str]:
    names: set[str] = set()
    while isinstance(function, partial):
        names |= function.keywords.keys()
        function = function.func
    return names


def _closure(function: AnyFunction) -> dict[str, object]:
    """Returns the variables that a function takes from the functions around it."""
    if not isinstance(function, FunctionType):
        return {}
    variables = inspect.getclosurevars(function).nonlocals
    return {**variables, **{kind.__name__: kind for kind in function.__type_params__}}


def _without_metadata(hint: AnyType) -> AnyType:
    """Returns a hint without `Annotated` and aliases, except `Resource`."""
    while hint is not Resource and origin_of(hint) is not Resource:
        if origin_of(hint) is Annotated:
            hint = get_args(hint)[0]
        elif isinstance(hint, TypeAliasType):
            hint = hint.__value__
        else:
            break
    return hint


def _without_none(hint: AnyType) -> tuple[AnyType, bool]:
    """Returns `T` and true for `T | None`; any other hint and false."""
    if isinstance(hint, UnionType) or origin_of(hint) is Union:
        members = [member for member in get_args(hint) if member is not NoneType]
        if len(members) == 1:
            return members[0], True
    return hint, False


def _is_field(value: object) -> bool:
    """Whether a value is what pydantic's `Field(…)` returns; only `serde` imports pydantic."""
    return type(value).__name__ == "FieldInfo" and type(value).__module__ == "pydantic.fields"


def _free_type_variables(hint: AnyType) -> Iterator[TypeVar]:
    if isinstance(hint, TypeVar):
        yield hint
    elif not isinstance(hint, type):
        yield from getattr(hint, "__parameters__", ())


def _ascii(name: str) -> str:
    return re.sub(r"[^a-z0-9_-]+", "", name).strip("_")[:64] or "find_order"
