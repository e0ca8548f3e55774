"""The keys of runs and scores: a digest of everything that can change them, and of nothing else.

A function is described by its code, its defaults, the arguments of a `partial`, its closure, and
whatever it uses from its own module: functions, classes, and the values of variables. An object is
described by its fields, and by its class if that is in a module of a described function. Functions
and classes of other modules are not followed. Of the values that a prompt's functions use, only
those that a run cannot change are described, and of all others the type.
"""

import inspect
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from functools import lru_cache, partial
from hashlib import sha256
from io import StringIO
from secrets import token_hex
from textwrap import dedent
from tokenize import COMMENT, NL, TokenError, generate_tokens
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Literal

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
    "key_of",
    "names_of_fields",
    "prompt_parts",
    "variant_parts",
]

type Parts = dict[str, str]
"""Digests by name; their names say what has changed."""

type _Purpose = Literal["values", "params", "evaluator", "prompt"]

_NOT_OF_ANSWERS = ("deadline", "budget", "prices", "settings", "supports_dynamic_tools")
_PLAIN = frozenset([str, int, float, bool, type(None)])
_LIBRARY = f"{__name__.partition('.')[0]}."


def digest(*values: object) -> str:
    """Returns a short digest of values, which is the same in every process.

    Raises `SerdeError` for an object that is not a value.
    """
    return _Description().digest(values)


def _digest(value: AnyJson) -> str:
    return sha256(json.dumps(value).encode()).hexdigest()[:24]


@lru_cache(maxsize=256)
def names_of_fields(kind: AnyType) -> tuple[str, ...]:
    """Returns the names of a dataclass's fields."""
    return tuple([item.name for item in fields(kind)])


def case_digests(case: Case) -> tuple[str, str]:
    """Returns the digest of a case's input, and one of what only evaluators read."""
    message = None if case.message is None else sendable_content(to_content(case.message))
    given = _Description().of([message, case.state, sorted(case.files.items())])
    params = _Description("params").of(case.params)
    return _digest([given, params]), digest(case.expected, case.metadata)


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
        return _Description("evaluator").digest(parts)[:16]
    except RecursionError:
        return token_hex(8)


def prompt_parts(prompt: AnyPrompt, within: "_Description | None" = None) -> Parts:
    """Returns the digests of a prompt's sections, tools and output, with its overrides."""

    def code(*values: object) -> str:
        return (within or _Description("prompt")).digest(values)

    template, descriptor = prompt.template, prompt.descriptor
    stored = prompt.overrides
    texts: dict[str, list[object]] = {}
    for text_id, text in descriptor.texts.items():
        shown = stored.texts.get(text_id, text.text) if stored else text.text
        texts.setdefault(".".join(text.path), []).append([*text_id, shown])
    parts = {f"section {path}": digest(path, items) for path, items in texts.items()}
    for node in template.registry.sections:
        section = node.section
        methods: list[AnyValue] = [type(section).render_body, type(section).render_summary]
        own = [it for it in methods if not it.__module__.startswith(_LIBRARY)]
        given = _Description("evaluator").digest([section.default_params])
        rules = section.enabled, section.visibility, section.params_from, section.approval
        path = f"section {node.key}"
        described = [parts.get(path), section.title, section.literal]
        parts[path] = digest(*described, given, code(*rules, *own))
        for tool in node.tools:
            contract = [tool.name, tool.description, tool.params_schema(), tool.effect]
            parts[f"tool {tool.name}"] = digest(contract, code(tool.handler, tool.approval))
    output = template.structured_output
    schema = None if output is None else serde.json_schema(output.output_type)
    parts["output"] = digest(schema, prompt.output_type)
    parts["prompt"] = digest(
        *(descriptor.ns, descriptor.key, [section.path for section in descriptor.sections]),
        *(template.disclosure.name, template.closable, code(template.accept)),
    )
    return parts


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
    """Describes values as JSON; an object is replaced by its digest, so that it can be shared.

    Objects that are not values raise `SerdeError` among `"values"` and `"params"`, whose mappings
    keep their order, because a template can show it; elsewhere, their type describes them. So it
    does for everything in a `"prompt"` that can change during a run.
    """

    purpose: _Purpose = "values"
    modules: set[str] = field(default_factory=set[str])  # those of described functions
    known: dict[int, tuple[object, str]] = field(default_factory=dict[int, tuple[object, str]])

    def digest(self, values: Iterable[object]) -> str:
        return _digest([self.of(value) for value in values])

    def of(self, value: AnyValue) -> AnyJson:
        if type(value) in _PLAIN:
            return value
        match value:
            case bool() | int() | float() | str():
                return value
            case bytes():
                return sha256(value).hexdigest()
            case re.Pattern():
                return [self.of(value.pattern), value.flags]
            case list() | set() | Mapping() if self.purpose == "prompt":
                return type(value).__qualname__
            case list() | tuple():
                return [self.of(item) for item in value]
            case set() | frozenset():
                return sorted(json.dumps(self.of(item)) for item in value)
            case Mapping():
                items = [[self.of(key), self.of(item)] for key, item in value.items()]
                if self.purpose == "values":
                    items.sort(key=json.dumps)
                return {"items": items}
            case _:
                return self._object(value)

    def _object(self, value: object) -> str:
        if id(value) not in self.known:
            self.known[id(value)] = value, "itself"
            is_strict = self.purpose in ("values", "params")
            function = value if isinstance(value, FunctionType) else type(value).__call__
            if isinstance(function, FunctionType) and not is_strict:
                module = f"{function.__module__}"
                self.modules |= set() if module.startswith(_LIBRARY) else {module}
            try:
                parts = self._parts(value)
            except SerdeError:
                if is_strict:
                    raise
                parts = [type(value).__qualname__]
            if type(value).__module__ in self.modules:
                state = None if self.purpose == "prompt" else _state(value)
                parts = [*parts, state, type(value)]
            self.known[id(value)] = value, self.digest(parts)
        return self.known[id(value)][1]

    def _parts(self, value: AnyValue) -> Sequence[object]:
        """Returns what determines the behaviour of an object."""
        match value:
            case ModelSettings():
                return [digest(_given(value))]
            case ConnectingAdapter():
                return [digest(variant_parts(value))]
            case FunctionHandler():
                return [value.function]
            case PromptHandler():
                nested: AnyValue = value.template
                return [digest(prompt_parts(Prompt(nested), self)), value.adapter]
            case PromptTemplate() if self.purpose != "prompt":  # whose functions can use it
                return [Prompt(value)]
            case Prompt() if self.purpose != "prompt":
                return [digest(prompt_parts(value)), value.settings, value.template.accept]
            case type() if value.__module__ in self.modules:
                return _class(value)
            case _:
                return _code(value) or self._fields(value)

    def _fields(self, value: AnyValue) -> Sequence[object]:
        kind: AnyType = type(value)
        own = [kind.__qualname__, callable(value) and kind.__call__]
        is_prompt = self.purpose == "prompt"
        params: AnyValue = getattr(kind, "__dataclass_params__", None)
        if params is not None and (params.frozen or not is_prompt):
            return [*own, *[(it, getattr(value, it, None)) for it in names_of_fields(kind)]]
        if isinstance(value, Enum):
            return [*own, value.name, value.value]
        if is_prompt:
            return own
        return [*own, getattr(value, "__dict__", None) if callable(value) else serde.dump(value)]


def _given(settings: ModelSettings) -> dict[str, object]:
    return {name: getattr(settings, name) for name in sorted(settings.given - {"timeout"})}


def _code(value: AnyValue) -> Sequence[object]:
    """Describes code; returns nothing for anything else."""
    match value:
        case partial():
            return [value.func, value.args, _items(value.keywords)]
        case MethodType():
            return [value.__func__, value.__self__]
        case FunctionType():
            return _function(value)
        case CodeType():
            return [value.co_code, value.co_names, value.co_consts]
        case _ if isinstance(inner := getattr(value, "__wrapped__", None), FunctionType):
            return [inner]  # of a function with a cache
        case _ if hasattr(value, "__qualname__"):
            return [f"{getattr(value, '__module__', '')}.{value.__qualname__}"]
        case _:
            return ()


def _function(function: FunctionType) -> Sequence[object]:
    """Describes a function; one of this library only by its name, so that releases may edit it."""
    closure = inspect.getclosurevars(function).nonlocals
    bound = [function.__defaults__, _items(function.__kwdefaults__ or {}), _items(closure)]
    if f"{function.__module__}".startswith(_LIBRARY):
        return [function.__module__, function.__qualname__, *bound]
    code = function.__code__
    source: object = code
    if function.__name__ != "<lambda>":  # whose source may lack lines
        with suppress(OSError, TypeError, SyntaxError, TokenError):  # code in a shell has no source
            lines = StringIO(dedent(inspect.getsource(code))).readline
            kept = [it.string for it in generate_tokens(lines) if it.type not in (COMMENT, NL)]
            source = "\0".join(kept)
    given, module = function.__globals__, function.__module__
    used = {name: given[name] for name in _names(code) if name in given}
    return [source, *bound, *[it for it in used.items() if _is_followed(it[1], module)]]


def _items(values: Mapping[str, object]) -> tuple[object, ...]:
    return tuple(sorted(values.items()))


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
            members[name] = type(value).__qualname__, inner
        elif not name.startswith("__") and not isinstance(value, MemberDescriptorType):
            members[name] = value
    items: AnyValue = getattr(kind, "__dataclass_fields__", {}).values()
    defaults = [(item.name, item.default, item.default_factory) for item in items]
    return [kind.__qualname__, kind.__bases__, *members.items(), *defaults]


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
