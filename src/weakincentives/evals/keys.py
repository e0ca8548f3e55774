"""The keys of runs and scores: a digest of everything that can change them, and of nothing else.

A function is described by its source, its defaults, the arguments of a `partial`, its closure, and
whatever it uses from its own module: functions, classes, and the values of variables. An object is
described by its fields, and by its class if that is in a module of a described function. Functions
and classes of other modules are not followed.
"""

import ast
import inspect
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from functools import lru_cache, partial
from hashlib import sha256
from secrets import token_hex
from textwrap import dedent
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType

from .. import serde
from ..content import to_content
from ..errors import SerdeError
from ..evaluation.adapter import ConnectingAdapter
from ..evaluation.config import RunConfig
from ..evaluation.messages import sendable_content
from ..model_settings import ModelSettings
from ..prompt.function_tools import FunctionHandler
from ..prompt.template import AnyPrompt, Prompt, PromptTemplate
from ..prompt.tool import PromptHandler
from ..record_types import AnyType
from ..serde.json_types import AnyJson, AnyValue
from .cases import Case
from .scores import Evaluator, JudgeModel

__all__ = [
    "case_digests",
    "digest",
    "halves",
    "key_of",
    "names_of_fields",
    "prompt_parts",
    "variant_parts",
]

type Parts = dict[str, str]
"""Digests by name; their names say what has changed."""

_NOT_OF_ANSWERS = ("deadline", "budget", "prices", "settings", "supports_dynamic_tools")
_PLAIN = frozenset([str, int, float, bool, type(None)])
_LIBRARY = f"{__name__.partition('.')[0]}."


def digest(*values: object) -> str:
    """Returns a short digest of values, which is the same in every process.

    Raises `SerdeError` for an object that is not a value.
    """
    if all(isinstance(value, str) for value in values):  # most are
        return _digest(values)
    return _Description().digest(values)


def _digest(value: AnyJson) -> str:
    return sha256(json.dumps(value).encode()).hexdigest()[:24]


@lru_cache(maxsize=256)
def names_of_fields(kind: AnyType) -> tuple[str, ...]:
    """Returns the names of a dataclass's fields."""
    return tuple([item.name for item in fields(kind)])


def halves(digests: str) -> tuple[str, str]:
    """Returns the two digests that were joined in one text."""
    return digests[: len(digests) // 2], digests[len(digests) // 2 :]


def case_digests(case: Case) -> tuple[str, str]:
    """Returns the digest of a case's input, and one of what only evaluators read."""
    message = None if case.message is None else sendable_content(to_content(case.message))
    given = digest(message, case.params, case.state, sorted(case.files.items()))
    return given, digest(case.expected, sorted(case.metadata.items()))


def key_of(evaluator: Evaluator, model: JudgeModel = None) -> str:
    """Returns a key that changes with the evaluator's source and settings.

    For a judge, it also changes with the prompt, including its overrides, and with the judge's
    model, which is `model` if it was given none. The name, the direction and the margin of a score
    are not included. Of an object of another module that is not a value, such as a client, only the
    type is included. The key is new each time for a list or mapping that contains itself.
    """
    parts = [evaluator.function, evaluator.settings, evaluator.scale.bounds, evaluator.on_failure]
    if evaluator.is_judge:
        parts.append(model if evaluator.model is None else evaluator.model)
    try:
        return _Description(is_lenient=True).digest(parts)[:16]
    except RecursionError:
        return token_hex(8)


def prompt_parts(prompt: AnyPrompt) -> Parts:
    """Returns the digests of a prompt's sections, tools and output, with its overrides."""
    template, descriptor = prompt.template, prompt.descriptor
    stored = prompt.overrides
    texts: dict[str, list[object]] = {}
    for text_id, text in descriptor.texts.items():
        shown = stored.texts.get(text_id, text.text) if stored else text.text
        texts.setdefault(".".join(text.path), []).append([*text_id, shown])
    parts = {f"section {path}": digest(path, items) for path, items in texts.items()}
    for node in template.registry.sections:
        section = node.section
        rules: list[AnyValue] = [section.enabled, section.visibility, section.params_from]
        code = type(section).render_body, type(section).render_summary
        rules += [it for it in code if not it.__module__.startswith(_LIBRARY)]
        given = _Description(is_lenient=True).digest(section.default_params)
        path = f"section {node.key}"
        own = [section.title, section.literal, given, *map(_code, (*rules, section.approval))]
        parts[path] = digest(parts.get(path), own)
        for tool in node.tools:
            contract = [tool.name, tool.description, tool.params_schema(), tool.effect]
            parts[f"tool {tool.name}"] = digest(contract, _code(tool.handler), _code(tool.approval))
    output = template.structured_output
    schema = None if output is None else serde.json_schema(output.output_type)
    parts["output"] = digest(schema, prompt.output_type)
    parts["prompt"] = digest(
        *(descriptor.ns, descriptor.key, [section.path for section in descriptor.sections]),
        *(template.disclosure.name, template.closable, _code(template.accept)),
    )
    return parts


def _code(value: AnyValue) -> object:
    """Returns a function's source without comments, and the fixed values that it is bound to.

    For a nested prompt, returns its parts, and for other objects their fixed values.
    """
    if isinstance(value, FunctionHandler):
        value = value.function
    if isinstance(value, PromptHandler):
        template: AnyValue = value.template
        model: AnyValue = value.adapter
        is_known = isinstance(model, ConnectingAdapter)
        parts = prompt_parts(Prompt(template))
        return [parts, variant_parts(model) if is_known else _fixed(model)]
    if isinstance(value, partial):
        return [_code(value.func), *map(_fixed, (value.args, *sorted(value.keywords.items())))]
    function = inspect.unwrap(value) if callable(value) else value
    owner = getattr(function, "__self__", None)
    function = getattr(function, "__func__", function)
    if not isinstance(function, FunctionType):
        call: AnyValue = type(value).__call__ if callable(value) else None
        own = [_code(call)] if isinstance(call, FunctionType) else []
        return [getattr(value, "name", type(value).__qualname__), _fixed(value), *own]
    closure = inspect.getclosurevars(function).nonlocals
    bound = [owner, function.__defaults__, *sorted(closure.items())]
    source: object = function.__code__
    with suppress(OSError, TypeError, SyntaxError):  # such as a lambda inside a call
        source = ast.dump(ast.parse(dedent(inspect.getsource(function))))
    return [source, *map(_fixed, bound)]


def _fixed(value: AnyValue) -> object:
    """Returns a value that nothing can change during a run, or only the type of another one."""
    kind: AnyType = type(value)
    if kind in _PLAIN or kind is bytes:
        return value
    if kind is tuple:
        return [_fixed(item) for item in value]
    params: AnyValue = getattr(kind, "__dataclass_params__", None)
    names = names_of_fields(kind) if params is not None and params.frozen else ()
    return [kind.__qualname__, *[_fixed(getattr(value, name, None)) for name in names]]


def variant_parts(
    adapter: ConnectingAdapter,
    config: RunConfig | None = None,
    settings: Sequence[ModelSettings | None] = (),
) -> Parts:
    """Returns the digests of a variant's model, settings and limits; `settings` nearest first."""
    config = adapter.config if config is None else config.over(adapter.config)
    merged = ModelSettings()
    for layer in (*settings, config.settings):
        if layer is not None:
            merged = merged.over(layer)
    limits = {
        item.name: getattr(config, item.name)
        for item in fields(RunConfig)
        if item.name not in _NOT_OF_ANSWERS and not item.name.startswith("_")
    }
    return {
        "model": digest(adapter.identity()),
        **{f"setting {name}": digest(value) for name, value in _given(merged).items()},
        "limits": digest(limits),
    }


@dataclass(slots=True)
class _Description:
    """Describes values as JSON; an object is replaced by its digest, so that it can be shared."""

    is_lenient: bool = False
    modules: set[str] = field(default_factory=set[str])  # those of described functions
    known: dict[int, tuple[object, str]] = field(default_factory=dict[int, tuple[object, str]])

    def digest(self, value: object) -> str:
        return _digest(self.of(value))

    def of(self, value: AnyValue) -> AnyJson:
        if type(value) in _PLAIN:
            return value
        match value:
            case bool() | int() | float() | str():
                return value
            case bytes():
                return sha256(value).hexdigest()
            case re.Pattern():
                return [value.pattern, value.flags]
            case list() | tuple():
                return [self.of(item) for item in value]
            case set() | frozenset():
                return sorted(json.dumps(self.of(item)) for item in value)
            case Mapping():
                return {"items": [[self.of(key), self.of(item)] for key, item in value.items()]}
            case _:
                return self._object(value)

    def _object(self, value: object) -> str:
        if id(value) not in self.known:
            self.known[id(value)] = value, "itself"
            function = value if isinstance(value, FunctionType) else type(value).__call__
            if self.is_lenient and isinstance(function, FunctionType):
                module = f"{function.__module__}"
                self.modules |= set() if module.startswith(_LIBRARY) else {module}
            try:
                parts = self._parts(value)
            except SerdeError:
                if not self.is_lenient:
                    raise
                parts = [type(value).__qualname__]
            if type(value).__module__ in self.modules:
                parts = [*parts, _state(value), type(value)]
            self.known[id(value)] = value, self.digest(parts)
        return self.known[id(value)][1]

    def _parts(self, value: AnyValue) -> Sequence[object]:
        if isinstance(value, type) and value.__module__ in self.modules:
            return _class(value)
        inner = getattr(value, "__wrapped__", None)  # of a function with a cache
        if isinstance(inner, FunctionType) and not isinstance(value, FunctionType):
            return [inner]
        return _parts(value)


def _parts(value: AnyValue) -> Sequence[object]:
    """Returns what determines the behaviour of an object."""
    kind: AnyType = type(value)
    match value:
        case ModelSettings():
            return [_given(value)]
        case ConnectingAdapter():
            return [variant_parts(value)]
        case PromptTemplate():
            return [Prompt(value)]
        case Prompt():
            return [prompt_parts(value), value.settings, value.template.accept]
        case partial():
            return [value.func, value.args, value.keywords]
        case MethodType():
            return [value.__func__, value.__self__]
        case FunctionType():
            return _function(value)
        case CodeType():
            return [value.co_code, value.co_names, value.co_consts]
        case _ if hasattr(value, "__qualname__"):
            return [f"{getattr(value, '__module__', '')}.{value.__qualname__}"]
        case _ if is_dataclass(value):
            state = {name: getattr(value, name) for name in names_of_fields(kind)}
            return [kind.__qualname__, state, callable(value) and kind.__call__]
        case _ if callable(value):
            return [kind.__qualname__, getattr(value, "__dict__", None), kind.__call__]
        case _:
            return [kind.__qualname__, serde.dump(value)]


def _given(settings: ModelSettings) -> dict[str, object]:
    return {name: getattr(settings, name) for name in sorted(settings.given - {"timeout"})}


def _function(function: FunctionType) -> Sequence[object]:
    """Describes a function; one of this library only by its name, so that releases may edit it."""
    closure = inspect.getclosurevars(function).nonlocals
    bound = [function.__defaults__, function.__kwdefaults__, closure]
    if f"{function.__module__}".startswith(_LIBRARY):
        return [function.__module__, function.__qualname__, *bound]
    code = function.__code__
    source: object = code
    if function.__name__ != "<lambda>":  # whose source may lack lines
        with suppress(OSError, TypeError):  # the source of code in a shell is not available
            source = inspect.getsource(code)
    given, module = function.__globals__, function.__module__
    used = {name: given[name] for name in _names(code) if name in given}
    return [source, *bound, {name: it for name, it in used.items() if _is_followed(it, module)}]


def _is_followed(value: AnyValue, module: str) -> bool:
    """Whether a function's key includes a variable of its module."""
    if isinstance(value, ModuleType) or value is os.environ:
        return False
    if hasattr(value, "__qualname__"):  # a function or a class
        return bool(value.__module__ == module)
    return type(value).__module__ == module or isinstance(value, partial) or not callable(value)


def _class(kind: AnyType) -> Sequence[object]:
    """Describes a class by its bases, methods, attributes and the defaults of its fields."""
    members: dict[str, object] = {}
    for name, value in vars(kind).items():
        inner = getattr(value, "__func__", getattr(value, "fget", getattr(value, "func", value)))
        if isinstance(inner, FunctionType) and not _is_generated(kind, name, inner):
            members[name] = [type(value).__qualname__, inner]
        elif not name.startswith("__") and not isinstance(value, MemberDescriptorType):
            members[name] = value
    items: AnyValue = getattr(kind, "__dataclass_fields__", {}).values()
    defaults = [(item.name, item.default, item.default_factory) for item in items]
    return [kind.__qualname__, kind.__bases__, members, defaults]


def _is_generated(kind: AnyType, name: str, method: FunctionType) -> bool:
    """Whether a method is one that `dataclass` has made, whose code depends on Python's version."""
    has_source = method.__code__.co_filename != "<string>"
    return is_dataclass(kind) and not has_source and name.startswith("__") and name != "__call__"


def _state(value: object) -> Mapping[str, object]:
    """Returns the attributes of an object, including those in slots."""
    slots = [name for kind in type(value).__mro__ for name in vars(kind).get("__slots__", ())]
    return {name: getattr(value, name, None) for name in slots} | getattr(value, "__dict__", {})


def _names(code: CodeType) -> list[str]:
    """Returns the global names in a function and in the functions inside it."""
    inside = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return [*code.co_names, *[name for inner in inside for name in _names(inner)]]
