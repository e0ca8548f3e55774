"""The signature of a function tool: what the model fills in, and what the context supplies."""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from copy import deepcopy
from dataclasses import field, make_dataclass
from enum import Enum
from functools import lru_cache, partial
from inspect import Parameter
from types import FunctionType, MappingProxyType, MethodType, NoneType, UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_type_hints

from ..protocols import KindOf, SessionProtocol, StateView
from ..record_types import AnyType, is_record_type, origin_of, unaliased, unaliased_once
from ..signatures import AnyFunction, annotations_of, signature_of
from .context import ToolContext
from .docstrings import read_docstring
from .errors import PromptValidationError
from .handlers import handler_place
from .tool import TOOL_NAME, ToolResult

__all__ = ["FunctionSignature", "Injected", "Resource", "described_function", "is_field", "layers"]

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
        own = getattr(described, "__globals__", {})
        self._globals = {**_BY_NAME, **own}
        self._locals = {**_closure(described), **names}
        self._defined = own.keys() | self._locals.keys()
        self.parameters = self._read_parameters()
        self.docstring = read_docstring(_docstring_of(function), self.parameters)

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
        own = signature_of(bare, follow_wrapped=False).parameters  # of a wrapper, its own
        takes_all = any(item.kind is Parameter.VAR_KEYWORD for item in own.values())
        for name, parameter in parameters.items():
            if name not in own and not takes_all:
                problem = f"its wrapper does not accept the keyword argument {name!r}"
                raise self.refusal(problem, "add **kwargs to the wrapper")
            if stars := _STARS.get(parameter.kind):
                raise self.refusal(
                    f"its parameter {stars}{name} has no schema",
                    "name each parameter, or use functools.wraps if a decorator hides them",
                )
            if re.fullmatch("__.*__", name):
                raise self.refusal(f"its parameter {name!r} has a reserved name", "rename it")
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
        written = getattr(annotation, "__forward_arg__", annotation)
        text = f"{written}"
        try:
            hint = self._evaluated(annotation)
        except Exception as error:  # evaluating an annotation can raise anything
            short = re.sub(rf"\b(?:wi|weakincentives[\w.]*)\.({'|'.join(_BY_NAME)})\b", r"\1", text)
            if short != text:  # imported for type checkers only, together with its module
                return self._hint(name, short)
            raise self.refusal(
                f"the type {text!r} of {name!r} cannot be read ({error})", "import it at run time"
            ) from error
        words = set(re.findall(r"[\w.]+", text)) if isinstance(written, str) else set[str]()
        for word in words & _BY_NAME.keys() - self._defined:
            module = _imports_of(self.described.__module__).get(word, "")
            if module and not f"{module}.".startswith("weakincentives."):
                problem = f"the type {word} of {name!r}, from {module}, is unknown at run time"
                raise self.refusal(problem, "import it at run time")
        return hint

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
        if origin_of(kind) is Resource:
            return partial(_resource, get_args(kind)[0], optional=optional)
        if _contains_injectable(hint):
            remedy = "annotate it as Resource[Type], ToolContext or Session, or as `| None` of one"
            raise self.refusal(f"{name!r} mixes injected and other types", remedy)
        return None

    def _field(self, name: str, hint: AnyType, default: object) -> "_Field":
        """Returns a field of the params with its description and default."""
        hint = unaliased(hint)
        kind, *metadata = get_args(hint) if origin_of(hint) is Annotated else (hint,)
        inner = unaliased(_without_none(kind)[0])
        inside = get_args(inner)[1:] if origin_of(inner) is Annotated else ()
        if is_field(default):
            metadata.append(default)
            default = Parameter.empty
        texts = [item for item in (*metadata, *inside) if isinstance(item, str)]
        texts.append(self.docstring.parameters.get(name, ""))
        metadata = [item for item in metadata if not isinstance(item, str)]
        described = any(is_field(item) and item.description for item in (*metadata, *inside))
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


def _resource(kind: KindOf[object], context: ToolContext, *, optional: bool) -> object:
    bindings = context.prompt.resources.registry.bindings if optional else ()
    if optional and all(binding.protocol != kind for binding in bindings):
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
        if _is_mutable(self.default):  # each call gets its own copy
            copied = partial(_copy, self.default)
            return self.name, kind, field(default_factory=copied, metadata=text)
        return self.name, kind, field(default=self.default, metadata=text)

    def key(self) -> tuple[object, ...]:
        """Returns a value for a cache; raises `TypeError` if it has no hash."""
        default = repr(self.default) if type(self.default) in (list, dict, set) else self.default
        kind = self.kind if isinstance(self.kind, type) else (self.kind, repr(self.kind))
        parts = self.name, kind, repr(self.metadata), self.text, type(self.default), default
        hash(parts)
        return parts


def _is_mutable(default: object) -> bool:
    kind = type(default)
    if getattr(kind, "__hash__", None) is None:
        return True
    params: Any = getattr(kind, "__dataclass_params__", None)  # Any: private to dataclasses
    if isinstance(default, Enum | type) or callable(default):
        return False
    return hasattr(default, "__dict__") and not (params and params.frozen)


def _copy(default: object) -> object:
    try:
        return deepcopy(default)
    except Exception:  # a lock, for example
        return default


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


_MAX_ALIASES = 100  # an alias may refer to itself
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


def layers(function: AnyFunction) -> Iterator[AnyFunction]:
    """Yields a function, and the functions inside it, through partials, methods and decorators."""
    layer: Any = function  # Any: a callable of any class
    seen: set[int] = set()
    while id(layer) not in seen:
        seen.add(id(layer))
        yield layer
        if isinstance(layer, partial):
            layer = layer.func
        elif isinstance(layer, MethodType):
            layer = layer.__func__
        elif hasattr(layer, "__wrapped__"):
            layer = getattr(layer, "__wrapped__")  # noqa: B009 - of any class
        elif not inspect.isroutine(layer) and not inspect.isclass(layer):
            layer = type(layer).__call__


def described_function(function: AnyFunction) -> AnyFunction:
    """Returns the function whose annotations a signature shows."""
    for layer in layers(function):
        function = layer
        if hasattr(layer, "__signature__"):
            break
    return function


def _docstring_of(function: AnyFunction) -> str | None:
    """Returns the outermost docstring of a function, or else that of a callable's class."""
    every = [layer for layer in layers(function) if not isinstance(layer, partial)]
    for layer in every:
        text = (
            layer.__doc__
            if inspect.isroutine(layer)
            else getattr(layer, "__dict__", {}).get("__doc__")
        )
        if isinstance(text, str) and text.strip():
            return text
    return next((type(layer).__doc__ for layer in every if not inspect.isroutine(layer)), None)


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
    found: dict[str, object] = {kind.__name__: kind for kind in function.__type_params__}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    for name, cell in cells:
        with suppress(ValueError):  # a variable that is assigned later
            found[name] = cell.cell_contents
    return found


def _without_metadata(hint: AnyType) -> AnyType:
    """Returns a hint without `Annotated` and aliases, except `Resource`."""
    for _ in range(_MAX_ALIASES):
        if origin_of(hint) is Annotated:
            hint = get_args(hint)[0]
        elif hint is Resource or origin_of(hint) is Resource:
            break
        else:
            inner = unaliased_once(hint)
            if inner is hint:
                break
            hint = inner
    return hint


@lru_cache(maxsize=256)
def _imports_of(module: str) -> Mapping[str, str]:
    """Returns the names that a module imports with `from`, even for type checkers only."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError, SyntaxError):  # the source is not there
        return {}
    return {
        item.asname or item.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and not node.level
        for item in node.names
    }


def _is_injectable(hint: AnyType) -> bool:
    kind = _without_metadata(hint)
    return kind is ToolContext or kind in _SESSIONS or Resource in (kind, origin_of(kind))


def _contains_injectable(hint: AnyType) -> bool:
    """Whether an injected type is a part of a hint, such as of a list or a union."""
    return any(_is_injectable(part) or _contains_injectable(part) for part in get_args(hint))


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
