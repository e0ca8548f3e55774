"""The signature of a function tool: what the model fills in, and what the context supplies."""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from copy import deepcopy
from dataclasses import field, make_dataclass
from functools import partial
from inspect import Parameter
from types import FunctionType, MappingProxyType, MethodType, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    NamedTuple,
    TypeAliasType,
    TypeVar,
    Union,
    get_args,
    get_type_hints,
)

from ..protocols import KindOf, SessionProtocol, StateView
from ..record_types import AnyType, is_record_type, origin_of, unaliased
from ..signatures import AnyFunction, annotations_of, signature_of
from .context import ToolContext
from .docstrings import read_docstring
from .errors import PromptValidationError
from .handlers import handler_place
from .tool import TOOL_NAME, ToolResult

__all__ = ["FunctionSignature", "Injected", "Resource", "described_function", "is_field"]

type Resource[T] = T
"""Annotates a parameter of a function tool that receives the resource bound for `T`.

To a type checker, it is `T` itself.
"""

type Injected = Callable[[ToolContext], object]
"""Returns the value of a parameter that the model does not fill in."""

_NO_NAMES: Mapping[str, object] = MappingProxyType({})


class FunctionSignature:
    """Reads the signature, the annotations and the docstring of one function."""

    def __init__(self, function: AnyFunction, names: Mapping[str, object] = _NO_NAMES) -> None:
        self.function = function
        described = self.described = described_function(function)
        self.docstring = read_docstring(
            getattr(described, "__doc__", None)
            or (None if inspect.isroutine(_bare(function)) else type(_bare(function)).__doc__)
        )
        self._globals = {**_BY_NAME, **getattr(described, "__globals__", {})}
        self._locals = {**_closure(described), **names}
        self.parameters = self._read_parameters()

    def refusal(self, problem: str, remedy: str) -> PromptValidationError:
        place = handler_place(_bare(self.function))
        return PromptValidationError(
            f"cannot use the function {place} as a tool because {problem}; {remedy}"
        )

    def name(self) -> str:
        """Returns the function's name in the alphabet of tool names."""
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

    def params(self, tool: str) -> tuple[AnyType, dict[str, Injected], str]:
        """Returns the params type, the injected parameters, and the one that takes the params."""
        injected: dict[str, Injected] = {}
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
        fields = tuple([self._field(name, *parts) for name, parts in shown.items()])
        name = "".join([word.title() for word in re.split(r"[_-]", tool)])
        module = getattr(self.described, "__module__", __name__)
        return _record(name, module, fields), injected, ""

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

    def _injected(self, name: str, hint: AnyType) -> "Injected | None":
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

    def _field(self, name: str, hint: AnyType, default: object) -> "_Field":
        """Returns a field of the params with its description and default."""
        kind, *metadata = get_args(hint) if origin_of(hint) is Annotated else (hint,)
        if is_field(default):
            metadata.append(default)
            default = Parameter.empty
        texts = [item for item in metadata if isinstance(item, str)]
        texts.append(self.docstring.parameters.get(name, ""))
        metadata = [item for item in metadata if not isinstance(item, str)]
        described = any(is_field(item) and item.description for item in metadata)
        text = "" if described else texts[0]
        return _Field(name, unaliased(kind), tuple(metadata), text, default)

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


def _context(context: ToolContext) -> object:
    return context


def _session(context: ToolContext) -> object:
    return context.session


def _resource(kind: KindOf[object], optional: bool, context: ToolContext) -> object:  # noqa: FBT001 - bound by `partial`
    bindings = context.prompt.resources.registry.bindings if optional else ()
    if optional and all(binding.protocol is not kind for binding in bindings):
        return None
    return context.resources.get(kind)


class _Field(NamedTuple):
    """A field of a params type; the fields of equal functions have equal keys."""

    name: str
    kind: AnyType
    metadata: tuple[object, ...]
    text: str
    default: object

    def declaration(self) -> tuple[str, AnyType, Any]:
        """Returns the arguments for `make_dataclass`."""
        kind = Annotated[self.kind, *self.metadata] if self.metadata else self.kind
        text = {"description": self.text} if self.text else {}
        if self.default is Parameter.empty:
            return self.name, kind, field(metadata=text)
        if type(self.default).__hash__ is None:  # each call gets its own copy
            copied = partial(deepcopy, self.default)
            return self.name, kind, field(default_factory=copied, metadata=text)
        return self.name, kind, field(default=self.default, metadata=text)

    def key(self) -> tuple[object, ...]:
        """Returns a value for a cache; raises `TypeError` if it has no hash."""
        default = repr(self.default) if type(self.default) in (list, dict, set) else self.default
        kind = self.kind if isinstance(self.kind, type) else (self.kind, repr(self.kind))
        parts = self.name, kind, repr(self.metadata), self.text, type(self.default), default
        hash(parts)
        return parts


_RECORDS: dict[tuple[object, ...], type] = {}
_MAX_RECORDS = 1024


def _record(name: str, module: str, fields: tuple[_Field, ...]) -> type:
    """Returns a params type; functions that a program creates again and again share one."""
    declarations = [it.declaration() for it in fields]
    try:
        key = name, module, *[it.key() for it in fields]
    except TypeError:  # an annotation or a default has no hash
        return make_dataclass(name, declarations, kw_only=True, module=module)
    if (record := _RECORDS.get(key)) is None:
        record = make_dataclass(name, declarations, kw_only=True, module=module)
        while len(_RECORDS) >= _MAX_RECORDS:
            del _RECORDS[next(iter(_RECORDS))]
        _RECORDS[key] = record
    return record


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


def described_function(function: AnyFunction) -> AnyFunction:
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


def is_field(value: object) -> bool:
    """Whether a value is what pydantic's `Field(…)` returns; this package does not import it."""
    return type(value).__name__ == "FieldInfo" and type(value).__module__ == "pydantic.fields"


def _free_type_variables(hint: AnyType) -> Iterator[TypeVar]:
    if isinstance(hint, TypeVar):
        yield hint
    elif not isinstance(hint, type):
        yield from getattr(hint, "__parameters__", ())


def _ascii(name: str) -> str:
    return re.sub(r"[^a-z0-9_-]+", "", name).strip("_")[:64] or "find_order"
